//! Access to `/vcr/…`, which opens files and records into them.
//!
//! A web page in a browser on the same machine reaches every loopback port. It cannot choose the `Host` and `Origin` headers
//! that the browser sends, and cannot send `application/json` elsewhere without a preflight, so those three are checked:
//!
//! - `Host` is a loopback name or address. A page that rebinds its own name to this machine sends that name. Where others are
//!   allowed to reach the server, also other addresses and names without a dot, neither of which such a page can have.
//! - `Origin` is absent, as in requests of programs, or the server's own. Where it is absent, `Sec-Fetch-Site` shows that a page
//!   of another origin sent what is no GET.
//! - A body is `application/json`. What `curl -d` sends by default is what an HTML form sends.
//!
//! With a token, `Authorization: Bearer TOKEN` is required and takes the place of the first two.
//!
//! See docs/decisions/0055-who-may-call-vcr.md.

use std::{fmt, net::IpAddr, sync::Arc};

use http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts, uri::Authority};
use subtle::ConstantTimeEq;

/// The conditions for a call of `/vcr/…`. The default is that of a loopback listener without a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Whether other machines are allowed to reach the listener.
    pub is_reachable: bool,
    /// Whether any `Host` is taken: for pages that are no secret and change nothing that lasts.
    pub takes_any_host: bool,
    /// What every call has to present.
    pub token: Option<AdminToken>,
}

/// The secret of `--admin-token`. Its `Debug` form does not contain it.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminToken(Arc<str>);

impl AdminToken {
    /// Takes the token; `None` for an empty one.
    #[must_use]
    pub fn new(token: &str) -> Option<Self> {
        (!token.is_empty()).then(|| Self(token.into()))
    }

    fn is_presented(&self, headers: &HeaderMap) -> bool {
        let sent = headers.get(header::AUTHORIZATION).map_or(&[][..], |value| value.as_bytes());
        let mut parts = sent.splitn(2, |byte| *byte == b' ');
        let is_bearer = parts.next().is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer"));
        is_bearer && bool::from(self.0.as_bytes().ct_eq(parts.next().unwrap_or_default()))
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("AdminToken")
    }
}

/// A refused call: its status, and what to do.
pub(crate) type RefusedCall = (StatusCode, &'static str);

impl Access {
    /// That of pages for everyone who reaches the server, but for web pages of another origin.
    #[must_use]
    pub fn of_anyone() -> Self {
        Self { is_reachable: true, takes_any_host: true, token: None }
    }

    /// Checks the caller, by the head of the request.
    ///
    /// # Errors
    /// 401 without the token where there is one, 403 for a `Host` or an `Origin` that a web page may have.
    pub fn check(&self, parts: &Parts) -> Result<(), RefusedCall> {
        if let Some(token) = &self.token {
            let refused = (StatusCode::UNAUTHORIZED, "send the value of --admin-token as Authorization: Bearer TOKEN");
            return if token.is_presented(&parts.headers) { Ok(()) } else { Err(refused) };
        }
        let host = host_of(parts);
        if host.as_ref().is_some_and(|host| !self.takes(host.host())) {
            return Err((
                StatusCode::FORBIDDEN,
                "/vcr/... is not answered under this Host: ask for 127.0.0.1 or localhost, or start with --admin-token",
            ));
        }
        let mut origins = parts.headers.get_all(header::ORIGIN).iter();
        if origins.any(|origin| !is_own(origin.to_str().unwrap_or_default(), host.as_ref())) {
            return Err((
                StatusCode::FORBIDDEN,
                "/vcr/... is not answered to web pages of another Origin: call it without one, or start with \
                 --admin-token",
            ));
        }
        let is_of_a_page = |site: &HeaderValue| site == "cross-site" || site == "same-site";
        let changes = parts.method != Method::GET && parts.method != Method::HEAD;
        if changes && parts.headers.get_all("sec-fetch-site").iter().any(is_of_a_page) {
            return Err((
                StatusCode::FORBIDDEN,
                "/vcr/... takes no changes from web pages of another origin (Sec-Fetch-Site): call it from a program, or \
                 start with --admin-token",
            ));
        }
        Ok(())
    }

    fn takes(&self, host: &str) -> bool {
        let host = host.trim_matches(['[', ']']);
        let address = host.parse::<IpAddr>();
        let is_local = address.as_ref().map_or(host.eq_ignore_ascii_case("localhost"), |ip| ip.is_loopback());
        self.takes_any_host || is_local || self.is_reachable && (address.is_ok() || !host.contains('.'))
    }
}

/// Checks that a body is JSON by its content type: 415 where it is of another type, or of none.
pub(super) fn check_type(headers: &HeaderMap) -> Result<(), RefusedCall> {
    let sent = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = sent.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err((
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "a body has to be sent as Content-Type: application/json (curl --json, or -H 'content-type: application/json')",
    ))
}

/// Host and port of a request: of its target over HTTP/2, else of its header. One that cannot be read is an empty name.
fn host_of(parts: &Parts) -> Option<Authority> {
    let unreadable = || Authority::from_static("unreadable.invalid");
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let sent = hosts.next().map(|host| Authority::try_from(host.as_bytes()).unwrap_or_else(|_| unreadable()));
    if hosts.next().is_some() {
        return Some(unreadable());
    }
    sent.or_else(|| parts.uri.authority().cloned())
}

fn is_own(origin: &str, host: Option<&Authority>) -> bool {
    let is_web = |scheme: &str| ["http", "https"].iter().any(|web| web.eq_ignore_ascii_case(scheme));
    let authority = origin.split_once("://").filter(|(scheme, _)| is_web(scheme)).map(|(_, authority)| authority);
    host.is_some_and(|host| authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host.as_str())))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn checked(access: &Access, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::post("/vcr/sessions");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        access.check(&request.body(()).unwrap().into_parts().0).map_or_else(|(status, _)| status.as_u16(), |()| 200)
    }

    #[test]
    fn a_loopback_listener_takes_loopback_hosts_and_its_own_origin() {
        let local = Access::default();
        for host in ["127.0.0.1:8000", "127.9.9.9", "localhost:1", "LOCALHOST", "[::1]:80"] {
            assert_eq!(checked(&local, &[("host", host)]), 200, "{host}");
            assert_eq!(checked(&local, &[("host", host), ("origin", &format!("http://{host}"))]), 200, "{host}");
            let extension = format!("chrome-extension://{host}");
            for origin in
                [&*extension, "null", "http://evil.example", "https://localhost:9", "http://127.0.0.1.evil.example", ""]
            {
                assert_eq!(checked(&local, &[("host", host), ("origin", origin)]), 403, "{host} {origin}");
            }
        }
        for host in
            ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1", "vcr", "localhost.", "a b"]
        {
            assert_eq!(checked(&local, &[("host", host)]), 403, "{host}");
            assert_eq!(checked(&local, &[("host", host), ("origin", &format!("http://{host}"))]), 403, "{host}");
        }
        assert_eq!(checked(&local, &[("host", "localhost"), ("host", "evil.example")]), 403);
        for (site, status) in [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)] {
            assert_eq!(checked(&local, &[("host", "localhost"), ("sec-fetch-site", site)]), status, "{site}");
        }
        assert_eq!(checked(&local, &[]), 200, "HTTP/1.0 has no Host, and no browser sends it");
    }

    #[test]
    fn a_reachable_listener_takes_addresses_and_names_that_no_page_can_rebind() {
        let reachable = Access { is_reachable: true, ..Access::default() };
        for (host, status) in [("10.0.0.1:8000", 200), ("[fe80::1]:1", 200), ("vcr:8000", 200), ("evil.example", 403)] {
            assert_eq!(checked(&reachable, &[("host", host)]), status, "{host}");
        }
        assert_eq!(checked(&reachable, &[("host", "vcr"), ("origin", "http://evil.example")]), 403);
    }

    #[test]
    fn a_token_is_required_and_takes_the_place_of_the_host() {
        let access = Access { is_reachable: true, token: AdminToken::new("s3cret"), ..Access::default() };
        assert_eq!(checked(&access, &[("host", "localhost")]), 401);
        assert_eq!(checked(&access, &[("host", "localhost"), ("authorization", "Bearer s3cre")]), 401);
        assert_eq!(checked(&access, &[("host", "vcr.example"), ("authorization", "bearer s3cret")]), 200);
        assert!(!format!("{access:?}").contains("s3cret"));
        assert_eq!(AdminToken::new(""), None);
    }

    #[test]
    fn a_body_is_json_by_its_content_type() {
        for (sent, is_taken) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("text/plain", false),
            ("application/x-www-form-urlencoded", false),
            ("multipart/form-data", false),
            ("text/plain; application/json", false),
        ] {
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, sent.parse().unwrap())]);
            assert_eq!(check_type(&headers).is_ok(), is_taken, "{sent}");
        }
        assert_eq!(check_type(&HeaderMap::new()).unwrap_err().0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
}
