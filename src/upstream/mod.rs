//! The one HTTP client: connections to the server that is being recorded.
//!
//! It follows no redirects, adds no headers of its own beyond `host`, sets no time limits and keeps connections alive.
//! Plain HTTP/1.1 only for now.

use std::{error::Error, fmt, str::FromStr};

use http::{
    HeaderMap, HeaderName, Request, Response, Uri,
    header::{self, HeaderValue},
    uri::{Authority, PathAndQuery, Scheme},
};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

/// Where the upstream is: `http://host:port`, optionally with a path that is put before every request's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamUrl {
    authority: Authority,
    prefix: String,
}

/// A text that is not the URL of an upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an upstream URL: {reason}")]
pub struct UrlError {
    text: String,
    reason: &'static str,
}

/// A request that the upstream did not answer.
#[derive(Debug, thiserror::Error)]
#[error("the upstream at {upstream} did not answer")]
pub struct UpstreamError {
    upstream: String,
    source: hyper_util::client::legacy::Error,
}

impl UpstreamError {
    /// Whether no connection could be made at all.
    #[must_use]
    pub fn is_connect(&self) -> bool {
        self.source.is_connect()
    }

    /// The innermost cause, in the system's words.
    #[must_use]
    pub fn cause(&self) -> String {
        let mut cause: &dyn Error = &self.source;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        cause.to_string()
    }
}

/// A client for one upstream; clones share their connections.
#[derive(Debug)]
pub struct Upstream<B> {
    url: UpstreamUrl,
    client: Client<HttpConnector, B>,
}

impl<B> Clone for Upstream<B> {
    fn clone(&self) -> Self {
        Self { url: self.url.clone(), client: self.client.clone() }
    }
}

impl<B> Upstream<B>
where
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    /// A client for `url`. Connects when the first request is sent.
    #[must_use]
    pub fn new(url: UpstreamUrl) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self { url, client: Client::builder(TokioExecutor::new()).build(connector) }
    }

    /// Sends a request to the upstream: its path and query are kept, hop-by-hop headers are dropped, `host` is the
    /// upstream's. Returns when the head of the answer is there.
    ///
    /// # Errors
    /// When the upstream cannot be reached or breaks off before the head of its answer.
    pub async fn send(&self, mut request: Request<B>) -> Result<Response<Incoming>, UpstreamError> {
        *request.uri_mut() = self.url.target(request.uri());
        *request.version_mut() = http::Version::HTTP_11;
        strip_hop_by_hop(request.headers_mut());
        if let Ok(host) = HeaderValue::from_str(self.url.authority.as_str()) {
            request.headers_mut().insert(header::HOST, host);
        }
        let mut response = self
            .client
            .request(request)
            .await
            .map_err(|source| UpstreamError { upstream: self.url.to_string(), source })?;
        strip_hop_by_hop(response.headers_mut());
        Ok(response)
    }
}

impl UpstreamUrl {
    fn target(&self, asked: &Uri) -> Uri {
        let path = asked.path_and_query().map_or("/", PathAndQuery::as_str);
        let target =
            PathAndQuery::from_str(&format!("{}{path}", self.prefix)).or_else(|_| PathAndQuery::from_str(path));
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(target.unwrap_or_else(|_| PathAndQuery::from_static("/")));
        Uri::from_parts(parts).unwrap_or_default()
    }
}

impl FromStr for UpstreamUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let fail = |reason| UrlError { text: without_userinfo(text), reason };
        let uri: Uri = text.trim().parse().map_err(|_| fail("write it as http://HOST:PORT"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(fail("https upstreams are not supported yet; use http://HOST:PORT")),
            _ => return Err(fail("it must start with http://")),
        }
        let authority = uri.authority().cloned().ok_or_else(|| fail("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(fail("credentials do not belong in the URL; clients send their own"));
        }
        if uri.query().is_some() {
            return Err(fail("it must not have a query"));
        }
        Ok(Self { authority, prefix: uri.path().trim_end_matches('/').to_owned() })
    }
}

fn without_userinfo(text: &str) -> String {
    match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => format!("{}…{}", &text[..scheme + 3], &text[at..]),
        _ => text.to_owned(),
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.prefix)
    }
}

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
fn strip_hop_by_hop(headers: &mut HeaderMap) {
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
    use super::*;

    #[test]
    fn a_url_keeps_host_and_path_prefix() {
        let url: UpstreamUrl = "http://127.0.0.1:8000/engine/".parse().unwrap();
        assert_eq!(url.to_string(), "http://127.0.0.1:8000/engine");
        let target = url.target(&"/v1/models?x=1".parse().unwrap());
        assert_eq!(target.to_string(), "http://127.0.0.1:8000/engine/v1/models?x=1");
    }

    #[test]
    fn bad_urls_say_why_and_never_show_credentials() {
        for (text, reason) in [
            ("127.0.0.1:8000", "http://"),
            ("https://host", "not supported"),
            ("http://host/?q=1", "query"),
            ("", "http://"),
        ] {
            let error = text.parse::<UpstreamUrl>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let error = "http://user:secret@host:1".parse::<UpstreamUrl>().unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }

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
