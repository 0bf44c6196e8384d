//! Who may call: a web page in a browser on this machine reaches every loopback port, and its own name can be made to lead here.
//!
//! - `Origin` is absent, as in requests of programs, or that of a page of this machine, or one that `--allowed-origins` names.
//! - `Host` is an address, `localhost`, a name without a dot, or one that `--mcp-host` names: such a page has none of these.

use std::net::IpAddr;

use http::{HeaderMap, Uri, header, uri::Authority};

/// Checks host and origin of a request; other names of this server are `hosts`, other pages that may call `origins`.
/// Errors: what to do, where a page of another origin may have sent it.
pub(super) fn check(headers: &HeaderMap, uri: &Uri, hosts: &[String], origins: &[String]) -> Result<(), &'static str> {
    if !takes_host(headers, uri, hosts) {
        return Err("MCP servers are not served under this Host: name it with --mcp-host");
    }
    let is_known = |origin: &str| origins.iter().any(|known| known != "*" && known == origin) || is_local(origin);
    if headers.get_all(header::ORIGIN).iter().all(|origin| origin.to_str().is_ok_and(is_known)) {
        Ok(())
    } else {
        Err("MCP servers are not served to web pages of this Origin: name it with --allowed-origins")
    }
}

fn takes_host(headers: &HeaderMap, uri: &Uri, hosts: &[String]) -> bool {
    let mut sent = headers.get_all(header::HOST).iter();
    let host = match (sent.next(), sent.next()) {
        (Some(host), None) => match Authority::try_from(host.as_bytes()) {
            Ok(host) => Some(host),
            Err(_) => return false,
        },
        (Some(_), Some(_)) => return false,
        (None, _) => uri.authority().cloned(),
    };
    // HTTP/1.0 has no host, and no browser sends it.
    let Some(host) = host else { return true };
    let name = host.host().trim_matches(['[', ']']);
    let is_named = hosts.iter().any(|known| known == "*" || known.eq_ignore_ascii_case(name));
    is_named || name.parse::<IpAddr>().is_ok() || !name.contains('.')
}

/// Whether an origin is that of a page of this machine.
fn is_local(origin: &str) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    let Some(authority) = authority.and_then(|authority| authority.parse::<Authority>().ok()) else { return false };
    let name = authority.host().trim_matches(['[', ']']);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(headers: &[(&str, &str)], hosts: &[&str], origins: &[&str]) -> bool {
        let named = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut sent = HeaderMap::new();
        for (name, value) in headers {
            sent.append(http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        check(&sent, &Uri::from_static("/mcp/s"), &named(hosts), &named(origins)).is_ok()
    }

    #[test]
    fn hosts_are_those_that_no_page_can_have() {
        for (host, is_taken) in [
            ("127.0.0.1:8000", true),
            ("localhost:1", true),
            ("[::1]:80", true),
            ("10.1.2.3", true),
            ("vcr:8000", true),
            ("evil.example", false),
            ("127.0.0.1.evil.example:80", false),
            ("a b", false),
        ] {
            assert_eq!(takes(&[("host", host)], &[], &[]), is_taken, "{host}");
        }
        assert!(takes(&[("host", "VCR.example:80")], &["vcr.example"], &[]));
        assert!(takes(&[("host", "any.example")], &["*"], &[]));
        assert!(takes(&[], &[], &[]));
        assert!(!takes(&[("host", "localhost"), ("host", "evil.example")], &["*"], &[]));
    }

    #[test]
    fn origins_are_those_of_this_machine_and_those_that_are_named() {
        for (origin, is_taken) in [
            ("http://localhost:6274", true),
            ("https://127.0.0.1", true),
            ("http://[::1]:3000", true),
            ("http://evil.example", false),
            ("http://localhost.evil.example", false),
            ("http://localhost:80@evil.example", false),
            ("chrome-extension://localhost", false),
            ("null", false),
            ("", false),
            ("https://ui.example", true),
        ] {
            assert_eq!(takes(&[("origin", origin)], &[], &["*", "https://ui.example"]), is_taken, "{origin}");
        }
        assert!(!takes(&[("origin", "http://localhost"), ("origin", "http://evil.example")], &[], &[]));
    }
}
