//! The address of an upstream.

use std::{fmt, str::FromStr};

use http::{
    Uri,
    uri::{Authority, PathAndQuery},
};

/// The port of plain HTTP where none is named.
const DEFAULT_PORT: u16 = 80;

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

impl UpstreamUrl {
    /// The path and query that a request for `asked` is sent to.
    pub(super) fn target(&self, asked: &Uri) -> Uri {
        let path = asked.path_and_query().map_or("/", PathAndQuery::as_str);
        let target =
            PathAndQuery::from_str(&format!("{}{path}", self.prefix)).or_else(|_| PathAndQuery::from_str(path));
        Uri::from(target.unwrap_or_else(|_| PathAndQuery::from_static("/")))
    }

    /// Host and port, as the `host` header has them.
    pub(super) fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// The host to connect to, without the brackets of an IPv6 address, and its port.
    pub(super) fn address(&self) -> (&str, u16) {
        let host = self.authority.host().trim_start_matches('[').trim_end_matches(']');
        (host, self.authority.port_u16().unwrap_or(DEFAULT_PORT))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_keeps_host_and_path_prefix() {
        let url: UpstreamUrl = "http://127.0.0.1:8000/engine/".parse().unwrap();
        assert_eq!(url.to_string(), "http://127.0.0.1:8000/engine");
        let target = url.target(&"/v1/models?x=1".parse().unwrap());
        assert_eq!(target.to_string(), "/engine/v1/models?x=1");
        assert_eq!(url.address(), ("127.0.0.1", 8000));
    }

    #[test]
    fn an_address_has_a_port_and_no_brackets() {
        assert_eq!("http://[::1]".parse::<UpstreamUrl>().unwrap().address(), ("::1", 80));
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
}
