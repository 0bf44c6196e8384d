//! Download of one file: redirects are followed, and the proxies of the environment are used.
//!
//! The proxy is the first of `ALL_PROXY`, `HTTPS_PROXY` and `HTTP_PROXY`, for whatever scheme, and tunnels every connection
//! (`CONNECT`); hosts of `NO_PROXY` are reached without it. A token is sent to the host that was asked first, and to none that
//! it redirects to.

use std::{env, error::Error, io, thread, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Uri, header, uri::Authority};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Builder,
    time::timeout,
};
use tokio_rustls::rustls::pki_types::ServerName;

use crate::{server::RawConnection, upstream::http1_tls, wire::percent_decoded};
use base::causes::causes;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_mins(5);
const MOST_REDIRECTS: usize = 10;

/// The head of a proxy's answer is shorter.
const MOST_HEAD: usize = 16 << 10;

/// Reasons for which a file cannot be downloaded.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The address is none that can be asked.
    #[error("`{0}` is not an address")]
    BadAddress(String),
    /// No connection, or one that broke.
    #[error("{0}")]
    Connection(String),
    /// The proxy opens no tunnel.
    #[error("the proxy at {proxy} answered: {answer}")]
    Proxy {
        /// Its host and port.
        proxy: String,
        /// The first line of its answer.
        answer: String,
    },
    /// Redirects without an end.
    #[error("too many redirects")]
    Redirects,
    /// The server's answer is no file.
    #[error("status {0}")]
    Status(u16),
    /// A timeout was exceeded.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
}

impl DownloadError {
    fn broken(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Connection(causes(&*error.into()).last().map(ToString::to_string).unwrap_or_default())
    }
}

/// Downloads a file of at most so many bytes; `None` where there is none, or none for this bearer token. Blocks, with a thread
/// and a runtime of its own.
///
/// # Errors
/// For an answer other than a file, 401, 403 and 404.
pub fn download(url: &str, bearer: Option<&str>, most_bytes: usize) -> Result<Option<Vec<u8>>, DownloadError> {
    let proxy = HttpProxy::from_env();
    let fetched = || -> Result<Option<Vec<u8>>, DownloadError> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(DownloadError::broken)?;
        runtime.block_on(async {
            let fetched = timeout(TIMEOUT, fetch(url, bearer, most_bytes, proxy.as_ref()));
            fetched.await.map_err(|_| DownloadError::TimedOut(TIMEOUT))?
        })
    };
    // The caller may be on a thread of another runtime.
    thread::scope(|scope| scope.spawn(fetched).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

async fn fetch(
    url: &str,
    mut bearer: Option<&str>,
    most_bytes: usize,
    proxy: Option<&HttpProxy>,
) -> Result<Option<Vec<u8>>, DownloadError> {
    let mut url = url.to_owned();
    for _ in 0..=MOST_REDIRECTS {
        let uri: Uri = url.parse().map_err(|_| DownloadError::BadAddress(url.clone()))?;
        let response = send(&uri, bearer.take(), proxy).await?;
        let location = response.headers().get(header::LOCATION).and_then(|location| location.to_str().ok());
        match (response.status(), location) {
            (StatusCode::OK, _) => {
                let body = Limited::new(response.into_body(), most_bytes).collect().await;
                return Ok(Some(body.map_err(DownloadError::broken)?.to_bytes().into()));
            }
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND, _) => return Ok(None),
            (status, Some(location)) if status.is_redirection() => url = resolved(&uri, location),
            (status, _) => return Err(DownloadError::Status(status.as_u16())),
        }
    }
    Err(DownloadError::Redirects)
}

/// The address of a redirect, which may be relative to that of the request.
fn resolved(base: &Uri, location: &str) -> String {
    let scheme = base.scheme_str().unwrap_or("https");
    let authority = base.authority().map_or("", Authority::as_str);
    let location = location.split('#').next().unwrap_or_default();
    if location.split(['/', '?']).next().is_some_and(|start| start.ends_with(':')) {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    }
}

async fn send(uri: &Uri, bearer: Option<&str>, proxy: Option<&HttpProxy>) -> Result<Response<Incoming>, DownloadError> {
    let connected = timeout(CONNECT_TIMEOUT, connect(uri, proxy.filter(|proxy| !proxy.spares(uri))));
    let stream = connected.await.map_err(|_| DownloadError::TimedOut(CONNECT_TIMEOUT))??;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(DownloadError::broken)?;
    tokio::spawn(connection);
    let mut request = Request::get(uri.path_and_query().map_or("/", |path| path.as_str()))
        .header(header::HOST, uri.authority().map_or("", Authority::as_str))
        .header(header::USER_AGENT, concat!("vllm-vcr/", env!("CARGO_PKG_VERSION")))
        .header(header::ACCEPT, "*/*");
    if let Some(token) = bearer {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(DownloadError::broken)?;
    sender.send_request(request).await.map_err(DownloadError::broken)
}

async fn connect(uri: &Uri, proxy: Option<&HttpProxy>) -> Result<RawConnection, DownloadError> {
    let (host, port, is_tls) = address(uri).ok_or_else(|| DownloadError::BadAddress(uri.to_string()))?;
    let stream = match proxy {
        Some(proxy) => proxy.tunnel(host, port).await?,
        None => Box::new(TcpStream::connect((host, port)).await.map_err(DownloadError::broken)?),
    };
    if is_tls { encrypted(stream, host).await } else { Ok(stream) }
}

/// Host and port, and whether TLS is spoken there.
fn address(uri: &Uri) -> Option<(&str, u16, bool)> {
    let is_tls = match uri.scheme_str()? {
        "https" => true,
        "http" => false,
        _ => return None,
    };
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
    Some((host, uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 }), is_tls))
}

async fn encrypted(stream: RawConnection, host: &str) -> Result<RawConnection, DownloadError> {
    let name = ServerName::try_from(host.to_owned()).map_err(DownloadError::broken)?;
    Ok(Box::new(http1_tls().connect(name, stream).await.map_err(DownloadError::broken)?))
}

/// A proxy, and the hosts that are reached without it.
#[derive(Debug)]
struct HttpProxy {
    uri: Uri,
    /// The value of `proxy-authorization`.
    authorization: Option<String>,
    spared: Vec<String>,
}

impl HttpProxy {
    fn from_env() -> Option<Self> {
        let either = |name: &str| env::var(name).or_else(|_| env::var(name.to_lowercase())).ok();
        let spared = either("NO_PROXY").unwrap_or_default();
        ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"]
            .into_iter()
            .filter_map(either)
            .find_map(|url| Self::new(&url, &spared))
    }

    /// Reads `http://USER:PASSWORD@HOST:PORT`, of which only the host is needed; `None` for what is no such proxy.
    fn new(url: &str, spared: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let (credentials, host) = rest.rsplit_once('@').map_or((None, rest), |(user, host)| (Some(user), host));
        let uri: Uri = format!("{scheme}://{host}").parse().ok()?;
        address(&uri)?;
        let authorization = credentials.map(|credentials| {
            let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
            let [user, password] = [user, password].map(percent_decoded);
            format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
        });
        Some(Self { uri, authorization, spared: spared.split(',').map(str::to_ascii_lowercase).collect() })
    }

    /// Returns whether a host is reached without the proxy: it is listed, or fits an entry with a `*` or a dot at one end.
    fn spares(&self, uri: &Uri) -> bool {
        let host = uri.host().unwrap_or_default().to_ascii_lowercase();
        self.spared.iter().any(|entry| match (entry.strip_prefix('*'), entry.strip_suffix('*')) {
            (Some(end), _) => host.ends_with(end),
            (None, Some(start)) => host.starts_with(start),
            (None, None) if entry.starts_with('.') => host.ends_with(entry),
            (None, None) if entry.ends_with('.') => host.starts_with(entry),
            (None, None) => host == *entry,
        })
    }

    async fn tunnel(&self, host: &str, port: u16) -> Result<RawConnection, DownloadError> {
        let no_address = || DownloadError::BadAddress(self.uri.to_string());
        let (proxy, proxy_port, is_tls) = address(&self.uri).ok_or_else(no_address)?;
        let opened = TcpStream::connect((proxy, proxy_port)).await.map_err(DownloadError::broken)?;
        let mut stream: RawConnection = Box::new(opened);
        if is_tls {
            stream = encrypted(stream, proxy).await?;
        }
        let target = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n");
        if let Some(authorization) = self.authorization.as_ref().filter(|value| HeaderValue::from_str(value).is_ok()) {
            request.push_str(&format!("proxy-authorization: {authorization}\r\n"));
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await.map_err(DownloadError::broken)?;
        let head = head(&mut stream).await.map_err(DownloadError::broken)?;
        let answer = head.lines().next().unwrap_or_default();
        if answer.split(' ').nth(1).is_some_and(|status| status.starts_with('2')) {
            return Ok(stream);
        }
        Err(DownloadError::Proxy { proxy: format!("{proxy}:{proxy_port}"), answer: answer.to_owned() })
    }
}

/// Reads the head of a response byte by byte: what follows is the tunnel's.
async fn head(stream: &mut RawConnection) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < MOST_HEAD {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::net::TcpListener;

    use super::*;

    /// A server that gives these responses one after the other, and the heads of the requests that it received.
    async fn server(responses: Vec<String>) -> (String, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let received = Arc::new(Mutex::new(Vec::new()));
        let heads = Arc::clone(&received);
        tokio::spawn(async move {
            for response in responses {
                let mut stream: RawConnection = Box::new(listener.accept().await.unwrap().0);
                loop {
                    let head = head(&mut stream).await.unwrap();
                    let is_tunnel = head.starts_with("CONNECT");
                    heads.lock().unwrap().push(head);
                    if !is_tunnel {
                        break;
                    }
                    stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
                }
                stream.write_all(response.as_bytes()).await.unwrap();
            }
        });
        (address, received)
    }

    fn response(status: &str, header: &str, body: &str) -> String {
        format!("HTTP/1.1 {status}\r\n{header}content-length: {}\r\n\r\n{body}", body.len())
    }

    #[tokio::test]
    async fn a_redirect_is_followed_without_the_token() {
        let (elsewhere, at_elsewhere) = server(vec![response("200 OK", "", "content")]).await;
        let location = format!("location: http://{elsewhere}/cdn?x=1\r\n");
        let (hub, at_hub) =
            server(vec![response("307 Temporary", "location: ../b\r\n", ""), response("302 Found", &location, "")])
                .await;
        let got = fetch(&format!("http://{hub}/a/c"), Some("secret"), 100, None).await.unwrap();
        assert_eq!(got.as_deref(), Some(&b"content"[..]));
        let heads = at_hub.lock().unwrap().concat() + &at_elsewhere.lock().unwrap().concat();
        assert!(heads.starts_with("GET /a/c HTTP/1.1\r\n") && heads.contains("GET /cdn?x=1 "), "{heads}");
        assert_eq!(heads.matches("authorization: Bearer secret").count(), 1, "{heads}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_download_brings_its_own_runtime() {
        let (hub, _) = server(vec![response("200 OK", "", "content"), response("404 Not Found", "", "")]).await;
        let url = format!("http://{hub}/x");
        let got = thread::spawn(move || [download(&url, None, 100), download(&url, None, 100)]).join().unwrap();
        assert!(matches!(&got, [Ok(Some(content)), Ok(None)] if content == b"content"), "{got:?}");
    }

    #[tokio::test]
    async fn answers_without_a_file_are_distinguished() {
        let (hub, _) = server(vec![
            response("404 Not Found", "", ""),
            response("401 Unauthorized", "", ""),
            response("500 Oops", "", ""),
            response("200 OK", "", "too much"),
        ])
        .await;
        let url = format!("http://{hub}/x");
        assert!(matches!(fetch(&url, None, 7, None).await, Ok(None)));
        assert!(matches!(fetch(&url, None, 7, None).await, Ok(None)));
        assert!(matches!(fetch(&url, None, 7, None).await, Err(DownloadError::Status(500))));
        assert!(matches!(fetch(&url, None, 7, None).await, Err(DownloadError::Connection(_))));
        assert!(matches!(fetch("ftp://x/y", None, 7, None).await, Err(DownloadError::BadAddress(_))));
        let (round, _) = server(vec![response("302 Found", "location: /\r\n", ""); 11]).await;
        assert!(matches!(fetch(&format!("http://{round}/"), None, 7, None).await, Err(DownloadError::Redirects)));
    }

    #[tokio::test]
    async fn a_proxy_tunnels_unless_it_is_not_for_the_host() {
        let (at, heads) = server(vec![response("200 OK", "", "tunnelled")]).await;
        let proxy = HttpProxy::new(&format!("us%65r:pass@{at}"), "localhost,.internal,*.corp,10.*").unwrap();
        let got = fetch("http://hub.example/x", None, 100, Some(&proxy)).await.unwrap();
        assert_eq!(got.as_deref(), Some(&b"tunnelled"[..]));
        let heads = heads.lock().unwrap().concat();
        let authorization = format!("proxy-authorization: Basic {}", STANDARD.encode("user:pass"));
        assert!(heads.starts_with("CONNECT hub.example:80 HTTP/1.1\r\n") && heads.contains(&authorization), "{heads}");
        let spares = |host: &str| proxy.spares(&format!("https://{host}/").parse().unwrap());
        for host in ["LOCALHOST", "a.internal", "a.corp", "10.0.0.1"] {
            assert!(spares(host), "{host}");
        }
        assert!(!spares("internal") && !spares("localhost.com"));
        assert!(HttpProxy::new("socks5://x", "").is_none());
    }

    #[test]
    fn redirects_are_relative_to_the_request() {
        let base: Uri = "https://h/a/b?q".parse().unwrap();
        for (location, expected) in [
            ("http://x/y", "http://x/y"),
            ("//x/y", "https://x/y"),
            ("/y?u=http://z", "https://h/y?u=http://z"),
            ("c#part", "https://h/a/c"),
        ] {
            assert_eq!(resolved(&base, location), expected);
        }
    }
}
