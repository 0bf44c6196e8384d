//! Single endpoints, such as MCP servers, which have paths of their own: their URLs, and requests to them.

use std::{fmt, str::FromStr};

use http::{HeaderName, HeaderValue, Uri, request::Parts, uri::PathAndQuery};

use super::{Upstream, UpstreamOptions, UpstreamUrl, UrlError, headers, without_secrets};

/// An endpoint under a name.
#[derive(Debug, Clone)]
pub struct NamedEndpoint {
    /// Its name: its place is `/mcp/NAME`.
    pub name: String,
    /// Its URL.
    pub url: EndpointUrl,
    /// Headers that every request to it gets, in place of the client's; they are not recorded.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// A named endpoint and the client that reaches it.
#[derive(Debug)]
pub struct NamedUpstream {
    /// The endpoint.
    pub endpoint: NamedEndpoint,
    /// Its client.
    pub upstream: Upstream,
}

impl NamedUpstream {
    /// Builds the client, which connects with its first request.
    #[must_use]
    pub fn new(endpoint: NamedEndpoint, reach: &UpstreamOptions) -> Self {
        Self { upstream: Upstream::new(endpoint.url.origin().clone(), reach), endpoint }
    }

    /// Clones it with connections of its own.
    #[must_use]
    pub fn with_own_connections(&self) -> Self {
        Self { upstream: self.upstream.with_own_connections(), endpoint: self.endpoint.clone() }
    }

    /// Makes the head of a client's request that of one to the endpoint: its URL with `rest` at the end of the path, and its own headers;
    /// the `withheld` ones of the client do not go on.
    pub fn address(&self, parts: &mut Parts, rest: &str, withheld: &[&str]) {
        parts.uri = self.endpoint.url.target(rest, parts.uri.query()).into();
        headers::remove(&mut parts.headers, |name| withheld.contains(&name.as_str()));
        for (name, value) in &self.endpoint.headers {
            parts.headers.insert(name, value.clone());
        }
    }
}

/// The URL of an endpoint: `http://host:port/path?query`, or `https`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointUrl {
    origin: UpstreamUrl,
    path: String,
    query: Option<String>,
}

impl EndpointUrl {
    /// Returns the server's scheme, host and port.
    #[must_use]
    pub fn origin(&self) -> &UpstreamUrl {
        &self.origin
    }

    /// Returns what is requested of it: the path with `rest` at its end, its own query and the client's.
    #[must_use]
    pub fn target(&self, rest: &str, query: Option<&str>) -> PathAndQuery {
        let path = format!("{}{rest}", self.path);
        let queries = [self.query.as_deref(), query].into_iter().flatten().collect::<Vec<_>>().join("&");
        let target = if queries.is_empty() { path } else { format!("{path}?{queries}") };
        // The parts come from URLs that were parsed.
        target.parse().unwrap_or_else(|_| PathAndQuery::from_static("/"))
    }
}

impl FromStr for EndpointUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let text = text.trim();
        let fail = |reason| UrlError::of(text, reason);
        let (base, query) = text.split_once('?').map_or((text, None), |(base, query)| (base, Some(query)));
        let uri: Uri = base.parse().map_err(|_| fail("write it as http://HOST:PORT/PATH"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(fail("write it as http://HOST:PORT/PATH"));
        };
        if authority.as_str().contains('@') {
            return Err(fail("credentials do not belong in the URL; send them with --upstream-header"));
        }
        let origin =
            format!("{scheme}://{authority}").parse().map_err(|_| fail("it must start with http:// or https://"))?;
        let query = query.filter(|query| !query.is_empty()).map(str::to_owned);
        let url = Self { origin, path: uri.path().to_owned(), query };
        let is_sound = url.query.is_none() || url.target("", None) != "/";
        is_sound.then_some(url).ok_or_else(|| fail("its query cannot be sent"))
    }
}

impl fmt::Display for EndpointUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let query = self.query.as_deref().map(|_| "?…").unwrap_or_default();
        f.write_str(&without_secrets(&format!("{}{}", self.origin, self.path)))?;
        f.write_str(query)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_an_endpoint_is_kept_as_it_is() {
        for (text, rest, query, expected) in [
            ("http://h:1/mcp", "", None, "/mcp"),
            ("http://h:1/mcp/", "", None, "/mcp/"),
            ("http://h:1", "", Some("a=1"), "/?a=1"),
            ("https://h/a/b?key=k", "/c", Some("d=2"), "/a/b/c?key=k&d=2"),
        ] {
            let url: EndpointUrl = text.parse().unwrap();
            assert_eq!(url.target(rest, query), expected, "{text}");
        }
    }

    #[test]
    fn a_url_is_shown_without_its_query() {
        let url: EndpointUrl = "https://h/a?key=hidden".parse().unwrap();
        assert_eq!((url.to_string(), url.origin().to_string()), ("https://h/a?…".to_owned(), "https://h".to_owned()));
        for text in ["h:1/mcp", "ftp://h/", "http://u:hidden@h/", "", "/mcp", "http://h/?\u{7f}"] {
            let error = text.parse::<EndpointUrl>().unwrap_err().to_string();
            assert!(!error.contains("hidden"), "{error}");
        }
    }
}
