//! The HTTP client for upstreams.
//!
//! It follows no redirects, adds no headers of its own beyond `host`, has no timeouts by default and keeps connections alive.
//! HTTP/1.1 over TCP, TLS or a Unix socket; HTTP/2 where TLS negotiates it, or by prior knowledge (`h2c://`).
//!
//! A plain HTTP/1.1 connection has no task of its own: the task that reads the response polls it ([`UpstreamBody`]). So bytes
//! that arrived together are passed on together, without a switch of tasks. All other connections, and upgrades, use hyper's
//! client and its tasks.
//!
//! Limits: no upgrades and no informational responses over HTTP/2; at most 100 headers in an HTTP/1.1 response, hyper's
//! default, which would cost time on every response to raise.

mod body;
mod chunked;
mod connection;
mod connector;
mod endpoint;
mod error;
mod head_limit;
mod headers;
mod options;
mod pinned;
mod pool;
mod relay;
mod url;

use std::{error::Error, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{
    HeaderMap, Request, Response, StatusCode, Uri,
    header::{self, HeaderValue},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::time::{Instant, timeout};

pub(crate) use self::connector::http1_tls;
pub use self::{
    body::UpstreamBody,
    connector::{Authorities, AuthoritiesError},
    endpoint::{EndpointUrl, NamedEndpoint, NamedUpstream},
    error::{FetchError, UpstreamBodyError, UpstreamError, UpstreamErrorText, error_response},
    headers::{remove, requested_upgrade},
    options::{OutgoingBody, UpstreamOptions},
    relay::{BodyObserver, Observed, Relayed, pass_informational},
    url::{UpstreamUrl, UrlError, without_secrets, without_userinfo},
};
use self::{
    connection::{Connection, IncomingBody},
    connector::{ConnectTimeout, Connector},
    error::UpstreamFailure,
    pool::Pool,
    url::Transport,
};

/// A client for one upstream; clones share their connections.
#[derive(Debug, Clone)]
pub struct Upstream {
    url: UpstreamUrl,
    pool: Arc<Pool>,
    client: Client<Connector, OutgoingBody>,
    options: UpstreamOptions,
}

/// A response that is waited for. Without the future's type hyper's client is compiled here; with it, in each crate that sends.
type Receiving<'a> = BoxFuture<'a, Result<Response<UpstreamBody>, UpstreamFailure>>;

/// A response with its whole body.
#[derive(Debug, Clone)]
pub struct FetchedResponse {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// When its head arrived.
    pub at: Instant,
}

impl Upstream {
    /// Builds a client for `url`, which connects with its first request.
    #[must_use]
    pub fn new(url: UpstreamUrl, options: &UpstreamOptions) -> Self {
        let connector = Connector::new(&url, options);
        let mut builder = Client::builder(TokioExecutor::new());
        builder.http2_only(*url.transport() == Transport::PriorKnowledge).pool_max_idle_per_host(pool::MAX_IDLE);
        Self { client: builder.build(connector), pool: Arc::new(Pool::default()), options: options.clone(), url }
    }

    /// Builds a client for the same upstream with connections of its own. A connection belongs to the runtime that opened it,
    /// so each runtime should have its own client.
    #[must_use]
    pub fn with_own_connections(&self) -> Self {
        Self::new(self.url.clone(), &self.options)
    }

    /// Returns the upstream's URL.
    #[must_use]
    pub fn url(&self) -> &UpstreamUrl {
        &self.url
    }

    /// Sends a request and returns when the head of the response has arrived.
    ///
    /// Path and query are kept, hop-by-hop headers are removed except for upgrades, `host` or `:authority` is the upstream's. A request that met
    /// a connection which the upstream had just closed is sent again over another one.
    ///
    /// # Errors
    /// When the upstream cannot be reached, closes the connection before the head of its response, or exceeds a timeout.
    pub async fn send(&self, mut request: Request<OutgoingBody>) -> Result<Response<UpstreamBody>, UpstreamError> {
        let is_upgrade = headers::prepare_request(request.headers_mut());
        headers::frame_body(&mut request, is_upgrade);
        if request.version() == http::Version::HTTP_2 {
            headers::join_cookies(request.headers_mut());
        }
        if matches!(self.url.transport(), Transport::Https | Transport::PriorKnowledge) {
            // hyper's client adds it over HTTP/1.1; HTTP/2 has `:authority`, and nginx refuses requests with both.
            request.headers_mut().remove(header::HOST);
        } else if let Ok(host) = HeaderValue::from_str(self.url.host()) {
            request.headers_mut().insert(header::HOST, host);
        }
        let is_driven = !is_upgrade && matches!(self.url.transport(), Transport::Http | Transport::Unix(_));
        let received: Receiving<'_> = if is_driven { Box::pin(self.drive(request)) } else { self.delegate(request) };
        let received: Receiving<'_> = match self.options.response_timeout {
            None => received,
            Some(limit) => {
                Box::pin(async move { timeout(limit, received).await.map_err(|_| UpstreamFailure::TimedOut(limit))? })
            }
        };
        let mut response = received.await.map_err(|source| UpstreamError { upstream: self.url.to_string(), source })?;
        headers::prepare_response(response.status(), response.headers_mut());
        Ok(response)
    }

    /// Sends a request, named as this program's unless it has a `user-agent`, and collects a response of at most `most_bytes`.
    ///
    /// # Errors
    /// As those of [`send`](Self::send); a body that breaks off or is longer.
    pub async fn fetch(
        &self,
        mut request: Request<OutgoingBody>,
        most_bytes: usize,
    ) -> Result<FetchedResponse, FetchError> {
        let agent = HeaderValue::from_static(concat!("vllm-vcr/", env!("CARGO_PKG_VERSION")));
        request.headers_mut().entry(header::USER_AGENT).or_insert(agent);
        let (head, body) = self.send(request).await?.into_parts();
        let at = Instant::now();
        let incomplete = |error: Box<dyn Error + Send + Sync>| match error.is::<LengthLimitError>() {
            true => FetchError::Incomplete(format!("the answer has more than {} MiB", most_bytes >> 20)),
            false => FetchError::Incomplete(format!("the answer breaks off: {error}")),
        };
        let body = Limited::new(body, most_bytes).collect().await.map_err(incomplete)?;
        Ok(FetchedResponse { status: head.status, headers: head.headers, body: body.to_bytes(), at })
    }

    /// Sends over a connection that the reader of the response polls.
    async fn drive(&self, mut request: Request<OutgoingBody>) -> Result<Response<UpstreamBody>, UpstreamFailure> {
        *request.uri_mut() = Uri::from(self.url.path(request.uri()));
        *request.version_mut() = http::Version::HTTP_11;
        while let Some(connection) = self.pool.take() {
            match connection.send(request).await {
                Ok(response) => return Ok(self.with_body(response)),
                Err(unsent) => request = unsent.request.ok_or(UpstreamFailure::Http(unsent.error))?,
            }
        }
        let opened = Box::pin(Connection::open(&self.url));
        let connection = match self.options.connect_timeout {
            Some(limit) => timeout(limit, opened).await.map_err(|_| ConnectTimeout(limit))??,
            None => opened.await?,
        };
        match connection.send(request).await {
            Ok(response) => Ok(self.with_body(response)),
            Err(unsent) => Err(UpstreamFailure::Http(unsent.error)),
        }
    }

    /// Sends over a connection of hyper's client.
    fn delegate(&self, mut request: Request<OutgoingBody>) -> Receiving<'_> {
        *request.uri_mut() = self.url.target(request.uri());
        *request.version_mut() = match self.url.transport() {
            Transport::PriorKnowledge => http::Version::HTTP_2,
            Transport::Http | Transport::Https | Transport::Unix(_) => http::Version::HTTP_11,
        };
        let received = self.client.request(request);
        Box::pin(async { Ok(self.with_body(received.await?.map(|body| IncomingBody::Hyper(body, None)))) })
    }

    fn with_body(&self, response: Response<IncomingBody>) -> Response<UpstreamBody> {
        response.map(|body| UpstreamBody::new(body, &self.pool))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::stream;
    use http::{Method, Version};
    use http_body::Frame;
    use http_body_util::StreamBody;
    use hyper::{
        server::conn::{http1, http2},
        service::service_fn,
    };
    use hyper_util::rt::TokioIo;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };
    use tokio_rustls::{
        TlsAcceptor,
        rustls::{ServerConfig, crypto::ring},
    };

    use super::*;
    use crate::server::RequestBody;

    /// A body that does not say how long it is.
    fn unsized_body(text: &'static str) -> OutgoingBody {
        let frame = stream::iter([Ok(Frame::data(Bytes::from_static(text.as_bytes())))]);
        OutgoingBody::untouched(RequestBody::Boxed(StreamBody::new(frame).boxed_unsync()))
    }

    /// Returns the bytes that an HTTP/1.1 upstream receives, up to `end`.
    async fn received(request: Request<OutgoingBody>, options: &UpstreamOptions, end: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let upstream = Upstream::new(url, options);
        let reading = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut all = Vec::new();
            while !all.ends_with(end.as_bytes()) {
                assert!(stream.read_buf(&mut all).await.unwrap() > 0, "{}", String::from_utf8_lossy(&all));
            }
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            String::from_utf8(all).unwrap()
        };
        let (response, all) = tokio::join!(upstream.send(request), reading);
        assert_eq!(response.unwrap().status(), 204);
        all
    }

    #[tokio::test]
    async fn a_body_of_unknown_length_is_sent_whatever_the_method_is() {
        for method in [Method::GET, Method::HEAD, Method::DELETE, Method::POST] {
            let mut request = Request::new(unsized_body("abc"));
            *request.method_mut() = method.clone();
            let options = UpstreamOptions::default();
            let wait = timeout(Duration::from_secs(20), received(request, &options, "0\r\n\r\n"));
            let all = wait.await.unwrap_or_else(|_| panic!("{method}: the body did not arrive"));
            assert!(all.contains("transfer-encoding: chunked\r\n") && all.ends_with("3\r\nabc\r\n0\r\n\r\n"), "{all}");
        }
    }

    /// Returns the URI and the `host` headers that a server sees behind TLS which negotiates this protocol, or without TLS.
    async fn seen_host(protocol: Option<&'static [u8]>) -> (Uri, Vec<HeaderValue>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let folder = std::env::temp_dir().join(format!("vllm-vcr-net-{port}"));
        std::fs::write(&folder, made.cert.pem()).unwrap();
        let authorities = Authorities::read(&folder).unwrap();
        std::fs::remove_file(folder).unwrap();
        let key = made.signing_key.serialize_der().try_into().unwrap();
        let mut tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        tls.alpn_protocols = protocol.iter().map(|name| name.to_vec()).collect();
        let (seen, seen_by) = tokio::sync::oneshot::channel();
        let seen = std::sync::Mutex::new(Some(seen));
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let service = service_fn(|request: Request<hyper::body::Incoming>| {
                let hosts = request.headers().get_all(header::HOST).iter().cloned().collect();
                seen.lock().unwrap().take().unwrap().send((request.uri().clone(), hosts)).unwrap();
                async { Ok::<_, std::convert::Infallible>(Response::new(http_body_util::Empty::<Bytes>::new())) }
            });
            match protocol {
                Some(name) => {
                    let stream = TokioIo::new(TlsAcceptor::from(Arc::new(tls)).accept(stream).await.unwrap());
                    match name {
                        b"h2" => http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await,
                        _ => http1::Builder::new().serve_connection(stream, service).await,
                    }
                }
                None => http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await,
            }
        });
        let scheme = if protocol.is_some() { "https" } else { "h2c" };
        let url = format!("{scheme}://localhost:{port}").parse().unwrap();
        let options = UpstreamOptions { authorities: Some(Arc::new(authorities)), ..UpstreamOptions::default() };
        let request = Request::get("/a").header(header::HOST, "tap:1").body(unsized_body("")).unwrap();
        assert_eq!(Upstream::new(url, &options).send(request).await.unwrap().status(), 200);
        seen_by.await.unwrap()
    }

    #[tokio::test]
    async fn the_host_stands_in_one_place() {
        for protocol in [Some(&b"h2"[..]), None] {
            let (uri, hosts) = seen_host(protocol).await;
            assert_eq!((uri.host(), uri.path(), hosts.len()), (Some("localhost"), "/a", 0), "{uri}");
        }
        let (uri, hosts) = seen_host(Some(b"http/1.1")).await;
        assert!(
            uri.host().is_none() && hosts.len() == 1 && hosts[0].as_bytes().starts_with(b"localhost:"),
            "{hosts:?}"
        );
    }

    #[tokio::test]
    async fn cookies_of_http2_are_one_field_towards_http1() {
        for (version, cookies) in
            [(Version::HTTP_2, "cookie: a=1; b=2\r\n"), (Version::HTTP_11, "cookie: a=1\r\ncookie: b=2\r\n")]
        {
            let mut request = Request::new(unsized_body(""));
            (*request.method_mut(), *request.version_mut()) = (Method::POST, version);
            for cookie in ["a=1", "b=2"] {
                request.headers_mut().append(header::COOKIE, HeaderValue::from_static(cookie));
            }
            let all = received(request, &UpstreamOptions::default(), "0\r\n\r\n").await;
            assert!(all.contains(cookies), "{all}");
        }
    }
}
