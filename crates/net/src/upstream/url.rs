//! URLs of upstreams.

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use http::{
    Uri,
    uri::{Authority, PathAndQuery, Scheme},
};
use tokio::net::lookup_host;

/// The port of plain HTTP in a URL without port.
const DEFAULT_PORT: u16 = 80;

/// The URL of an upstream: `http://host:port` (or `https`, or `h2c` for HTTP/2 without TLS), optionally with a path that is
/// prepended to every request's path; or `unix:/path/to/socket`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamUrl {
    transport: Transport,
    authority: Authority,
    prefix: String,
}

/// The protocol below the requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Transport {
    Http,
    Https,
    PriorKnowledge,
    Unix(PathBuf),
}

/// A text that is not the URL of an upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an upstream URL: {reason}")]
pub struct UrlError {
    text: String,
    reason: &'static str,
}

impl UrlError {
    /// Builds the error for `text`; secrets in it are removed.
    #[must_use]
    pub fn of(text: &str, reason: &'static str) -> Self {
        Self { text: without_secrets(text), reason }
    }
}

impl UpstreamUrl {
    pub(super) fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Returns the value of the `host` header.
    pub(super) fn host(&self) -> &str {
        self.authority.as_str()
    }

    /// Returns the host, without the brackets of an IPv6 address, and the port.
    pub(super) fn address(&self) -> (&str, u16) {
        let host = self.authority.host().trim_start_matches('[').trim_end_matches(']');
        (host, self.authority.port_u16().unwrap_or(DEFAULT_PORT))
    }

    /// Returns host and port; `None` for a Unix socket and for `https` without port.
    #[must_use]
    pub fn tcp_address(&self) -> Option<(&str, u16)> {
        let is_tcp = !matches!(self.transport, Transport::Unix(_))
            && (self.transport != Transport::Https || self.authority.port().is_some());
        is_tcp.then(|| self.address())
    }

    /// Returns true if its host and port are those of this listener: requests would come back to it.
    pub async fn leads_to(&self, own: SocketAddr) -> bool {
        let Some(address) = self.tcp_address().filter(|(_, port)| *port == own.port()) else { return false };
        let Ok(mut found) = lookup_host(address).await else { return false };
        found.any(|found| found.ip() == own.ip() || (own.ip().is_unspecified() && found.ip().is_loopback()))
    }

    /// Builds the path and query for a request to `uri`, with the prefix of this URL.
    pub(super) fn path(&self, uri: &Uri) -> PathAndQuery {
        let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let target =
            PathAndQuery::from_str(&format!("{}{path}", self.prefix)).or_else(|_| PathAndQuery::from_str(path));
        target.unwrap_or_else(|_| PathAndQuery::from_static("/"))
    }

    /// Builds the absolute URI for a request to `uri`.
    pub(super) fn target(&self, uri: &Uri) -> Uri {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(if self.transport == Transport::Https { Scheme::HTTPS } else { Scheme::HTTP });
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(self.path(uri));
        Uri::from_parts(parts).unwrap_or_default()
    }
}

impl FromStr for UpstreamUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let fail = |reason| UrlError::of(text, reason);
        if let Some(path) = text.trim().strip_prefix("unix:") {
            let path = Path::new(path.strip_prefix("//").filter(|path| path.starts_with('/')).unwrap_or(path));
            if !path.is_absolute() {
                return Err(fail("write a socket as unix:/absolute/path"));
            }
            let (transport, authority) = (Transport::Unix(path.to_owned()), Authority::from_static("localhost"));
            return Ok(Self { transport, authority, prefix: String::new() });
        }
        let uri: Uri = text.trim().parse().map_err(|_| fail("write it as http://HOST:PORT"))?;
        let transport = match uri.scheme_str() {
            Some("http") => Transport::Http,
            Some("https") => Transport::Https,
            Some("h2c") => Transport::PriorKnowledge,
            _ => return Err(fail("it must start with http://, https://, h2c:// or unix:/")),
        };
        let authority = uri.authority().cloned().ok_or_else(|| fail("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(fail("credentials do not belong in the URL; clients send their own"));
        }
        if uri.query().is_some() {
            return Err(fail("it must not have a query"));
        }
        Ok(Self { transport, authority, prefix: uri.path().trim_end_matches('/').to_owned() })
    }
}

/// Returns a URL without user, password and query, so that it can be logged.
#[must_use]
pub fn without_secrets(text: &str) -> String {
    let (text, query) = text.split_once('?').map_or((text, ""), |(text, _)| (text, "?…"));
    let Some(at) = text.rfind('@') else { return format!("{text}{query}") };
    let scheme = text.find("://").filter(|scheme| *scheme < at).map_or(0, |scheme| scheme + 3);
    let (start, end) = (text.get(..scheme).unwrap_or_default(), text.get(at..).unwrap_or_default());
    format!("{start}…{end}{query}")
}

/// Hides, in each URL of a text, what stands before the host.
#[must_use]
pub fn without_userinfo(text: &str) -> String {
    let mut parts = text.split("://");
    let before = parts.next().unwrap_or_default().to_owned();
    parts.fold(before, |shown, part| {
        let word = part.split(|c: char| c.is_whitespace() || "'`\"".contains(c)).next().unwrap_or_default();
        let authority = word.split(['/', '?', '#']).next().unwrap_or_default();
        let is_port = |(_, port): (&str, &str)| port.bytes().all(|byte| byte.is_ascii_digit() || byte == b']');
        // A password may have a slash.
        let is_cut = !authority.contains('@') && !authority.rsplit_once(':').is_none_or(is_port);
        let hidden = if is_cut { word } else { authority }
            .rfind('@')
            .and_then(|at| part.get(at..))
            .map(|host| format!("…{host}"));
        format!("{shown}://{}", hidden.as_deref().unwrap_or(part))
    })
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match &self.transport {
            Transport::Http => "http",
            Transport::Https => "https",
            Transport::PriorKnowledge => "h2c",
            Transport::Unix(path) => return write!(f, "unix:{}", path.display()),
        };
        write!(f, "{scheme}://{}{}", self.authority, self.prefix)
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
    fn a_text_shows_no_userinfo() {
        let text = "`http://u:p@h:1/a@b` and 'https://key@h' or http://h/?x=y@z, a@b";
        assert_eq!(without_userinfo(text), "`http://…@h:1/a@b` and 'https://…@h' or http://h/?x=y@z, a@b");
        assert_eq!(
            without_userinfo("http://u:p/w@h http://[::1]:1/a@b http://h:1/@b"),
            "http://…@h http://[::1]:1/a@b http://h:1/@b"
        );
    }

    #[test]
    fn every_transport_is_displayed_as_it_is_parsed() {
        for (text, target) in [
            ("https://api.example.org/v2", "https://api.example.org/v2/x"),
            ("h2c://10.0.0.1:9", "http://10.0.0.1:9/x"),
            ("unix:/run/engine.sock", "http://localhost/x"),
        ] {
            let url: UpstreamUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), text);
            assert_eq!(url.target(&"/x".parse().unwrap()).to_string(), target);
        }
        assert_eq!("unix:///run/a".parse::<UpstreamUrl>().unwrap().to_string(), "unix:/run/a");
    }

    #[test]
    fn errors_give_a_reason_and_no_credentials() {
        for (text, reason) in [
            ("127.0.0.1:8000", "http://"),
            ("ftp://host", "http://"),
            ("http://host/?q=1", "query"),
            ("unix:engine.sock", "absolute"),
            ("", "http://"),
        ] {
            let error = text.parse::<UpstreamUrl>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let error = "http://user:secret@host:1".parse::<UpstreamUrl>().unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
