//! The path of a request: below the prefix under which a proxy shows the server, and with another end.

use http::{Request, Uri, uri::PathAndQuery};

use net::wire::percent_decoded;

/// The path after the prefix as text, for the check of API keys.
pub(super) fn below<'a>(path: &'a str, root: &str) -> &'a str {
    path.strip_prefix(root).unwrap_or(path)
}

/// The path after the prefix where a path segment ends there, for the routes.
fn route<'a>(path: &'a str, root: &str) -> &'a str {
    match path.strip_prefix(root) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        _ => path,
    }
}

/// In the extensions of a request whose path was rewritten: the decoded path as it was sent.
#[derive(Debug, Clone)]
pub(crate) struct SentPath(pub(crate) String);

pub(super) fn rewrite<B>(mut request: Request<B>, root: &str) -> Request<B> {
    let is_same = route(&percent_decoded(request.uri().path()), root) == request.uri().path();
    if is_same {
        return request;
    }
    let sent = percent_decoded(request.uri().path()).into_owned();
    let path = route(&sent, root);
    if !path.contains(['?', '#', '%']) {
        let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = format!("{path}{query}").parse::<PathAndQuery>().ok();
        if let Some(uri) = parts.path_and_query.is_some().then(|| Uri::from_parts(parts).ok()).flatten() {
            *request.uri_mut() = uri;
        }
    }
    request.extensions_mut().insert(SentPath(sent));
    request
}

/// The path with its last `/` taken away or, where it has none, added.
pub(crate) fn other_ending(path: &str) -> String {
    path.strip_suffix('/').map_or_else(|| format!("{path}/"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let request = rewrite(Request::builder().uri(uri).body(()).unwrap(), "/api");
            assert_eq!(request.uri().to_string(), path);
        }
    }
}
