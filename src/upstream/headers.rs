//! Headers of one connection, and taking headers out.

use http::{HeaderMap, HeaderName, header};

const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Removes the headers that concern one connection only (RFC 9110, section 7.6.1).
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    remove(headers, |name| HOP_BY_HOP.contains(&name.as_str()) || named.contains(name));
}

/// Removes headers and leaves the others in their order, which `HeaderMap::remove` does not.
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
    use http::HeaderValue;

    use super::*;

    #[test]
    fn hop_by_hop_headers_go_and_the_rest_stays() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Private"),
            ("x-private", "1"),
            ("keep-alive", "5"),
            ("transfer-encoding", "chunked"),
            ("x-request-id", "7"),
            ("accept", "*/*"),
            ("via", "a"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-request-id", "accept", "via"]);
    }

    #[test]
    fn removing_a_header_keeps_the_order_and_every_value() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("a", "1"), ("gone", "2"), ("b", "3"), ("a", "4"), ("gone", "5"), ("c", "6")] {
            headers.append(name, HeaderValue::from_static(value));
        }
        remove(&mut headers, |name| name == "gone");
        let left: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(left, [("a", "1"), ("a", "4"), ("b", "3"), ("c", "6")]);
    }
}
