//! Hop-by-hop headers (RFC 9110, section 7.6.1).

use http::{
    HeaderMap, HeaderName, Method, Request, StatusCode,
    header::{self, HeaderValue},
};
use http_body::Body as _;

use super::OutgoingBody;

const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Returns the protocol that a request wants, or a response accepts, to upgrade to. HTTP/2 does not count: each connection
/// negotiates it by itself.
#[must_use]
pub fn requested_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(header::UPGRADE)?;
    let is_named = named_by_connection(headers).any(|name| name == header::UPGRADE);
    let is_http = protocol.as_bytes().get(..2).is_some_and(|start| start.eq_ignore_ascii_case(b"h2"));
    (is_named && !is_http).then(|| protocol.clone())
}

/// Removes the hop-by-hop headers of a client's request, and adds those that hold for the upstream's connection too: `TE:
/// trailers` and an upgrade. Returns whether it is an upgrade.
pub(super) fn prepare_request(headers: &mut HeaderMap) -> bool {
    let protocol = requested_upgrade(headers);
    let trailers = headers.get_all(header::TE).iter().any(|value| {
        value.to_str().is_ok_and(|value| value.split(',').any(|one| one.trim().eq_ignore_ascii_case("trailers")))
    });
    strip_hop_by_hop(headers);
    if let Some(protocol) = protocol {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, protocol);
        return true;
    }
    if trailers {
        headers.insert(header::CONNECTION, HeaderValue::from_static("TE"));
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    false
}

/// Announces the chunks of a body of unknown length, which hyper would leave out for methods that seldom have one.
pub(super) fn frame_body(request: &mut Request<OutgoingBody>, is_upgrade: bool) {
    let seldom = [Method::GET, Method::HEAD].contains(request.method());
    let is_unknown = !request.body().is_end_stream() && request.body().size_hint().exact().is_none();
    if seldom && is_unknown && !is_upgrade {
        request.headers_mut().insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// Joins the fields into which HTTP/2 may split cookies (RFC 9113, section 8.2.3).
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() < 2 {
        return;
    }
    let is_sensitive = headers.get_all(header::COOKIE).iter().any(HeaderValue::is_sensitive);
    if let Ok(mut whole) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
        whole.set_sensitive(is_sensitive);
        headers.insert(header::COOKIE, whole);
    }
}

/// Removes the hop-by-hop headers of a response, except for an upgrade that the upstream accepts.
pub(super) fn prepare_response(status: StatusCode, headers: &mut HeaderMap) {
    let protocol = requested_upgrade(headers).filter(|_| status == StatusCode::SWITCHING_PROTOCOLS);
    strip_hop_by_hop(headers);
    if let Some(protocol) = protocol {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
}

fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = named_by_connection(headers).collect();
    // A length beside a transfer coding is ignored (RFC 9112, section 6.3) and may be wrong.
    let is_coded = headers.contains_key(header::TRANSFER_ENCODING);
    remove(headers, |name| {
        HOP_BY_HOP.contains(&name.as_str()) || named.contains(name) || (is_coded && name == header::CONTENT_LENGTH)
    });
}

pub(super) fn named_by_connection(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> + '_ {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
}

/// Removes headers and keeps the order of the others, which `HeaderMap::remove` does not.
pub fn remove(headers: &mut HeaderMap, mut unwanted: impl FnMut(&HeaderName) -> bool) {
    if !headers.keys().any(&mut unwanted) {
        return;
    }
    let mut last = None;
    for (name, value) in std::mem::take(headers) {
        last = name.or(last);
        if let Some(name) = last.clone().filter(|name| !unwanted(name)) {
            headers.append(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn listed(headers: &HeaderMap) -> Vec<(&str, &str)> {
        headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect()
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let mut all = headers(&[
            ("connection", "close, X-Private"),
            ("x-private", "1"),
            ("keep-alive", "5"),
            ("transfer-encoding", "chunked"),
            ("x-request-id", "7"),
            ("accept", "*/*"),
            ("trailer", "x-sum"),
            ("via", "a"),
        ]);
        strip_hop_by_hop(&mut all);
        assert_eq!(
            all.keys().map(HeaderName::as_str).collect::<Vec<_>>(),
            ["x-request-id", "accept", "trailer", "via"]
        );
    }

    #[test]
    fn a_length_beside_a_transfer_coding_is_removed() {
        let mut answer = headers(&[("content-length", "-15"), ("a", "1"), ("transfer-encoding", "chunked")]);
        prepare_response(StatusCode::OK, &mut answer);
        assert_eq!(listed(&answer), [("a", "1")]);
        let mut whole = headers(&[("content-length", "15")]);
        prepare_response(StatusCode::OK, &mut whole);
        assert_eq!(listed(&whole), [("content-length", "15")]);
    }

    #[test]
    fn trailers_and_upgrades_are_passed_on() {
        let mut trailers = headers(&[("te", "gzip, trailers"), ("connection", "TE, close")]);
        assert!(!prepare_request(&mut trailers));
        assert_eq!(listed(&trailers), [("connection", "TE"), ("te", "trailers")]);
        let mut socket = headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket"), ("a", "1")]);
        assert!(prepare_request(&mut socket));
        assert_eq!(listed(&socket), [("a", "1"), ("connection", "Upgrade"), ("upgrade", "websocket")]);
        let mut h2 = headers(&[("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), ("http2-settings", "x")]);
        assert!(!prepare_request(&mut h2));
        assert_eq!(listed(&h2), []);
        let mut offer = headers(&[("connection", "Upgrade"), ("upgrade", "websocket")]);
        prepare_response(StatusCode::UPGRADE_REQUIRED, &mut offer);
        assert_eq!(listed(&offer), []);
    }

    #[test]
    fn cookies_are_joined_in_their_place() {
        let mut crumbs =
            headers(&[("cookie", "a=1"), ("x", "1"), ("cookie", "b=2"), ("cookie", "c=3; d=4"), ("y", "2")]);
        join_cookies(&mut crumbs);
        assert_eq!(listed(&crumbs), [("cookie", "a=1; b=2; c=3; d=4"), ("x", "1"), ("y", "2")]);
    }

    #[test]
    fn removing_a_header_keeps_the_order_and_every_value() {
        let mut all = headers(&[("a", "1"), ("gone", "2"), ("b", "3"), ("a", "4"), ("gone", "5"), ("c", "6")]);
        remove(&mut all, |name| name == "gone");
        assert_eq!(listed(&all), [("a", "1"), ("a", "4"), ("b", "3"), ("c", "6")]);
    }
}
