//! Address of `/vcr/…`.

use std::{
    env,
    net::{IpAddr, SocketAddr},
};

use tokio::sync::oneshot;

use crate::{
    cli::{failure::Failure, output, player::args::CassetteArgs},
    net::server,
    replay::{
        account::{self, Access, Admin, AdminToken, Router},
        player::CassettePlayer,
    },
};

/// Address of `/vcr/…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) enum AdminAt {
    /// Beside everything else.
    Serving(Access),
    /// On a listener of their own.
    Listener(String, Access),
    /// Nowhere.
    Nowhere,
}

impl AdminAt {
    /// What the server itself answers.
    pub(in crate::cli) fn beside(&self) -> Admin {
        match self {
            Self::Serving(access) => Admin::Here(access.clone()),
            Self::Listener(..) | Self::Nowhere => Admin::Off,
        }
    }
}

/// Of this machine only, on any port.
const OWN: &str = "127.0.0.1:0";

/// The environment variable for `--admin-token`.
const TOKEN: &str = "VLLM_VCR_ADMIN_TOKEN";

/// As was asked; beside everything else where only this machine can ask, else on a listener that only this machine can reach.
pub(in crate::cli) fn at(args: &CassetteArgs, requested: Option<&str>, address: &str) -> Result<AdminAt, Failure> {
    let token = match &args.admin_token {
        Some(token) => AdminToken::new(&token.0),
        None => env::var(TOKEN).ok().as_deref().and_then(AdminToken::new),
    };
    let access =
        |address: &str| Access { is_reachable: !is_loopback(address), token: token.clone(), ..Access::default() };
    Ok(match requested {
        Some(listener) if token.is_none() && !is_loopback(listener) => {
            let message = format!("--admin-listen {listener} can be reached from other machines");
            let hint = format!("add --admin-token TOKEN or set {TOKEN}, or listen on 127.0.0.1");
            return Err(Failure::usage(message).hint(hint));
        }
        Some(listener) => AdminAt::Listener(listener.to_owned(), access(listener)),
        None if args.no_admin => AdminAt::Nowhere,
        None if args.admin || is_loopback(address) => AdminAt::Serving(access(address)),
        None => AdminAt::Listener(OWN.to_owned(), access(OWN)),
    })
}

fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Answers until it is dropped.
pub(in crate::cli) struct AdminApi {
    address: SocketAddr,
    _until_dropped: oneshot::Sender<()>,
}

/// Sets the server's address, which calls of the wrapped command may have, and the URL of `/vcr/…` for the messages of misses: that of the
/// server, or of a listener of their own.
pub(in crate::cli) fn serves_at(
    player: &CassettePlayer,
    (own, server): (Option<SocketAddr>, &str),
    at: &AdminAt,
    admin_api: Option<&AdminApi>,
) {
    own.into_iter().zip(&player.config().network_block).for_each(|(own, block)| block.serves_at(own));
    match (at, admin_api) {
        (AdminAt::Serving(_), _) if server.starts_with("http") => player.pages_are_at(server),
        (AdminAt::Listener(..), Some(admin_api)) => player.pages_are_at(&format!("http://{}", admin_api.address)),
        (AdminAt::Serving(_) | AdminAt::Listener(..) | AdminAt::Nowhere, _) => {}
    }
}

/// Prints the address of such a listener, with one of its pages.
pub(in crate::cli) fn announce(admin_api: Option<&AdminApi>, page: &str) {
    if let Some(AdminApi { address, .. }) = admin_api {
        output::note(&format!("admin pages at http://{address}{page}\n"));
    }
}

/// Begins to answer on a listener of their own, if that is where. A server calls it before it announces itself, so that a program that waits
/// for it can ask at once.
pub(in crate::cli) async fn answer(
    at: &AdminAt,
    pages: impl FnOnce(&Access) -> Router,
) -> Result<Option<AdminApi>, Failure> {
    let AdminAt::Listener(address, access) = at else { return Ok(None) };
    let pages = pages(access);
    let listener = server::bind(address).await?;
    let local = listener.local_addr().map_err(Failure::environment)?;
    let (sender, dropped) = oneshot::channel::<()>();
    tokio::spawn(async move {
        let until = async { drop(dropped.await) };
        account::serve(pages, listener, until).await
    });
    Ok(Some(AdminApi { address: local, _until_dropped: sender }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_recognised() {
        for (address, is_own) in [
            ("127.0.0.1:80", true),
            ("[::1]:8000", true),
            ("localhost:1", true),
            ("0.0.0.0:80", false),
            ("[::]:1", false),
        ] {
            assert_eq!(is_loopback(address), is_own, "{address}");
        }
    }
}
