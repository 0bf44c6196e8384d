//! Address of `/vcr/…`.

use std::{net::IpAddr, sync::Arc};

use tokio::sync::oneshot;

use super::{
    args::CassetteArgs,
    failure::{Exit, Failure},
    output,
};
use crate::{
    net::server,
    replay::account::{self, Ledger},
};

/// Address of `/vcr/…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AdminAt {
    /// Beside everything else.
    Serving,
    /// On a listener of their own.
    Listener(String),
    /// Nowhere.
    Nowhere,
}

/// Of this machine only, on any port.
const OWN: &str = "127.0.0.1:0";

/// As was asked; beside everything else where only this machine can ask, else on a listener that only this machine can reach.
pub(super) fn at(args: &CassetteArgs, asked: Option<&str>, address: &str) -> AdminAt {
    match asked {
        Some(listener) => AdminAt::Listener(listener.to_owned()),
        None if args.no_admin => AdminAt::Nowhere,
        None if args.admin || is_loopback(address) => AdminAt::Serving,
        None => AdminAt::Listener(OWN.to_owned()),
    }
}

fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Answers until it is dropped.
pub(super) struct Questions {
    _until_dropped: oneshot::Sender<()>,
}

/// Begins to answer on a listener of their own, if that is where.
///
/// # Errors
/// When the address cannot be had.
pub(super) async fn answer(
    at: &AdminAt,
    account: impl FnOnce() -> Arc<dyn Ledger>,
) -> Result<Option<Questions>, Failure> {
    let AdminAt::Listener(address) = at else { return Ok(None) };
    let listener = server::bind(address).await?;
    let local = listener.local_addr().map_err(|error| Failure::new(Exit::Environment, error))?;
    output::note(&format!("questions at http://{local}/vcr/report\n"));
    let (sender, dropped) = oneshot::channel::<()>();
    let account = account();
    tokio::spawn(async move {
        let until = async { drop(dropped.await) };
        account::serve(account, listener, until).await
    });
    Ok(Some(Questions { _until_dropped: sender }))
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
