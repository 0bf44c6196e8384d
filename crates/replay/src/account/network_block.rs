//! Requests of a wrapped command to other servers, which reach this one as a proxy (`--block-network`): refused and counted.
//!
//! A request is one for a proxy if its target names a host (`GET http://host/path`), or a host only (`CONNECT host:443`). One that names
//! this server is answered as any other: some clients do not read ports in `NO_PROXY`.
//!
//! Limits: the first [`MOST`] hosts have a count of their own. What ignores the proxy variables does not come here.
//!
//! See docs/decisions/0081-other-calls-of-a-command.md.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::OnceLock,
};

use base::lock::Lock;
use http::{Method, Request, Response, StatusCode, Uri, Version, uri::Authority};
use hyper::ext::ReasonPhrase;
use serde_json::json;

use super::http::{put, whole};
use net::server::ResponseBody;

/// Hosts that are counted by their names.
const MOST: usize = 1000;

/// The name of all others, which no host can have.
const OTHERS: &str = "other hosts";

/// The refusal of requests to other servers, and how many there were.
#[derive(Debug, Default)]
pub struct NetworkBlock {
    /// This server's own address, once it is bound.
    own: OnceLock<SocketAddr>,
    refused: Lock<BTreeMap<String, u64>>,
}

impl NetworkBlock {
    /// Sets the address that is this server's own.
    pub fn serves_at(&self, own: SocketAddr) {
        let _first = self.own.set(own);
    }

    /// Refused requests so far by their hosts, `api.example.com:443`.
    pub(crate) fn refused(&self) -> BTreeMap<String, u64> {
        self.refused.lock().clone()
    }

    /// Refuses a request for another server. One for this server loses what names it.
    pub fn check<B>(&self, request: &mut Request<B>) -> Option<Response<ResponseBody>> {
        let is_tunnel = *request.method() == Method::CONNECT;
        // Over HTTP/2 every target names the server.
        let is_proxied = is_tunnel || request.version() < Version::HTTP_2;
        let host = request.uri().authority().filter(|_| is_proxied)?;
        if self.is_own(host) && !is_tunnel {
            let path = request.uri().path_and_query().cloned();
            *request.uri_mut() = path.map_or_else(|| Uri::from_static("/"), Uri::from);
            return None;
        }
        let scheme = if is_tunnel { "https" } else { request.uri().scheme_str().unwrap_or("http") };
        let named = named(host, scheme);
        let is_first = self.count(&named);
        let requested = if is_tunnel { "a connection".to_owned() } else { request.method().to_string() };
        let message = format!(
            "--block-network refuses {requested} to {named}: the command's calls go to this server only. Send this one to OPENAI_BASE_URL, \
             ANTHROPIC_BASE_URL or VLLM_VCR_URL, so that it is recorded and played; or let it through: --allow-host {}",
            host.host()
        );
        if is_first {
            tracing::warn!("{message}");
        }
        Some(refusal(&message, &named))
    }

    /// Counts a refusal; true for the first one of its host.
    fn count(&self, host: &str) -> bool {
        let mut refused = self.refused.lock();
        let has_room = refused.len() < MOST || refused.contains_key(host);
        let count = refused.entry(if has_room { host } else { OTHERS }.to_owned()).or_default();
        *count += 1;
        *count == 1
    }

    fn is_own(&self, host: &Authority) -> bool {
        let Some(own) = self.own.get() else { return false };
        let name = host.host().trim_matches(['[', ']']);
        let is_here = |ip: IpAddr| ip == own.ip() || ip.is_loopback();
        let is_local = name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_here);
        is_local && host.port_u16().unwrap_or(80) == own.port()
    }
}

/// Host and port, without a user's name and password.
fn named(host: &Authority, scheme: &str) -> String {
    let usual = if scheme == "https" { 443 } else { 80 };
    format!("{}:{}", host.host(), host.port_u16().unwrap_or(usual))
}

/// The response. Clients show its reason where it refuses a tunnel, and its body elsewhere.
fn refusal(message: &str, host: &str) -> Response<ResponseBody> {
    let error = json!({"error": {"message": message, "type": "vcr_blocked", "param": null, "code": "network_blocked"}});
    let mut response = whole(StatusCode::FORBIDDEN.as_u16(), "application/json", error.to_string());
    put(response.headers_mut(), "x-should-retry", "false");
    put(response.headers_mut(), "connection", "close");
    if let Ok(reason) = ReasonPhrase::try_from(format!("Blocked by vllm-vcr --block-network: {host}")) {
        response.extensions_mut().insert(reason);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(block: &NetworkBlock, method: &str, target: &str) -> (Option<u16>, String) {
        let mut request = Request::builder().method(method).uri(target).body(()).unwrap();
        let status = block.check(&mut request).map(|response| response.status().as_u16());
        (status, request.uri().to_string())
    }

    #[test]
    fn requests_for_other_servers_are_refused_and_counted_by_host() {
        let block = NetworkBlock::default();
        block.serves_at("127.0.0.1:8123".parse().unwrap());
        for (method, target, kept) in [
            ("POST", "/v1/chat/completions?a=b", Some("/v1/chat/completions?a=b")),
            ("POST", "http://127.0.0.1:8123/v1/models?a=b", Some("/v1/models?a=b")),
            ("GET", "http://localhost:8123", Some("/")),
            ("GET", "http://[::1]:8123/x", Some("/x")),
            ("GET", "http://localhost:8124/x", None),
            ("GET", "http://127.0.0.1/x", None),
            ("GET", "http://user:secret@api.example.com/x", None),
            ("CONNECT", "api.example.com:443", None),
            ("CONNECT", "localhost:8123", None),
            ("GET", "http://localhost.example.com:8123/x", None),
        ] {
            let (status, uri) = checked(&block, method, target);
            assert_eq!(status, kept.is_none().then_some(403), "{method} {target}");
            assert_eq!(uri, kept.unwrap_or(&uri), "{method} {target}");
        }
        let refused = block.refused();
        assert_eq!(refused.values().sum::<u64>(), 6, "{refused:?}");
        assert_eq!((refused["api.example.com:80"], refused["api.example.com:443"]), (1, 1), "{refused:?}");
        (0..2 * MOST).for_each(|number| drop(checked(&block, "GET", &format!("http://h{number}.example/"))));
        assert_eq!(block.refused().len(), MOST + 1);
    }
}
