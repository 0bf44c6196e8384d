//! The path of a request: decoded, and without the prefix under which a proxy shows the server.

use http::{Request, Uri, uri::PathAndQuery};

/// What follows the prefix as text, as the guard of the API keys sees it.
pub(super) fn below<'a>(path: &'a str, root: &str) -> &'a str {
    path.strip_prefix(root).unwrap_or(path)
}

/// What follows the prefix where a path segment ends there, as the routes see it.
fn route<'a>(path: &'a str, root: &str) -> &'a str {
    match path.strip_prefix(root) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        _ => path,
    }
}

/// Gives the request the path that the routes know.
pub(super) fn rewrite<B>(request: &mut Request<B>, sent: &str, root: &str) {
    let path = route(sent, root);
    if path == request.uri().path() || path.contains(['?', '#', '%']) {
        return;
    }
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut parts = request.uri().clone().into_parts();
    let Ok(path_and_query) = format!("{path}{query}").parse::<PathAndQuery>() else { return };
    parts.path_and_query = Some(path_and_query);
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}

/// The path with its last `/` taken away or, where it has none, added.
pub(super) fn other_ending(path: &str) -> String {
    path.strip_suffix('/').map_or_else(|| format!("{path}/"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::wire::percent_decoded;

    #[test]
    fn the_guard_takes_the_prefix_as_text_the_routes_as_segments() {
        assert_eq!((below("/api/v1", "/api"), route("/api/v1", "/api")), ("/v1", "/v1"));
        assert_eq!((below("/apiv1", "/api"), route("/apiv1", "/api")), ("v1", "/apiv1"));
        assert_eq!((below("/v1", "/api"), route("/v1", "/api")), ("/v1", "/v1"));
        assert_eq!((below("/v1", ""), route("/v1", "")), ("/v1", "/v1"));
    }

    #[test]
    fn a_rewritten_request_keeps_its_query_and_its_authority() {
        for (uri, path) in
            [("/api/%761/x?a=%20", "/v1/x?a=%20"), ("http://h/api/x", "http://h/x"), ("/a%3Fb", "/a%3Fb")]
        {
            let mut request = Request::builder().uri(uri).body(()).unwrap();
            let sent = percent_decoded(request.uri().path()).into_owned();
            rewrite(&mut request, &sent, "/api");
            assert_eq!(request.uri().to_string(), path);
        }
    }
}
