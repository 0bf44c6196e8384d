//! Connector: TCP, TLS over TCP, Unix sockets.

use std::{
    fs,
    future::Future,
    io::{self, IoSlice},
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_util::{
    client::legacy::connect::{Connected, Connection, HttpConnector},
    rt::TokioIo,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, InvalidDnsNameError, ServerName, pem::PemObject},
    },
};
use tower_service::Service;

use super::{UpstreamOptions, UpstreamUrl, pinned::Pinned, url::Transport};
use crate::server::{RawConnection, RawStream};

/// Protocols offered by ALPN, preferred first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Trusted certificates: of authorities, and of servers themselves.
#[derive(Debug, Clone)]
pub struct Authorities(Arc<Pinned>);

/// Errors of reading trusted certificates.
#[derive(Debug, thiserror::Error)]
pub enum AuthoritiesError {
    /// The file cannot be read.
    #[error("cannot read {path}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file holds no certificate.
    #[error("{} holds no certificate in PEM", .0.display())]
    Empty(PathBuf),
}

impl Authorities {
    /// Reads a PEM file of certificates.
    ///
    /// # Errors
    /// When it cannot be read or holds no certificate.
    pub fn read(path: &Path) -> Result<Self, AuthoritiesError> {
        let text = fs::read(path).map_err(|source| AuthoritiesError::Unreadable { path: path.to_owned(), source })?;
        let pinned = Pinned::new(CertificateDer::pem_slice_iter(&text).filter_map(Result::ok).collect());
        pinned.map(|pinned| Self(Arc::new(pinned))).map_err(|_| AuthoritiesError::Empty(path.to_owned()))
    }
}

/// The connect timeout was exceeded.
#[derive(Debug, thiserror::Error)]
#[error("no connection within {0:?}")]
pub(super) struct ConnectTimeout(pub(super) Duration);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector,
    tls: Option<TlsConnector>,
    socket: Option<Arc<Path>>,
    connect_timeout: Option<Duration>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Connector {
    pub(super) fn new(url: &UpstreamUrl, options: &UpstreamOptions) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        let (tls, socket) = match url.transport() {
            Transport::Https => (Some(tls(options)), None),
            Transport::Unix(path) => (None, Some(Arc::from(path.as_path()))),
            Transport::Http | Transport::PriorKnowledge => (None, None),
        };
        Self { tcp, tls, socket, connect_timeout: options.connect_timeout }
    }

    async fn connect(mut self, uri: Uri) -> Result<Io, BoxError> {
        if let Some(path) = &self.socket {
            return Ok(Io::new(UnixStream::connect(path).await?));
        }
        let stream = self.tcp.call(uri.clone()).await?.into_inner();
        let Some(tls) = &self.tls else { return Ok(Io::new(stream)) };
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(|error: InvalidDnsNameError| BoxError::from(error))?;
        let stream = tls.connect(name, stream).await?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(Io { is_http2, ..Io::new(stream) })
    }
}

fn tls(options: &UpstreamOptions) -> TlsConnector {
    let mut config = client_config(options.authorities.as_ref());
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
    TlsConnector::from(Arc::new(config))
}

/// TLS for HTTP/1.1, with Mozilla's root certificates.
pub(crate) fn http1_tls() -> TlsConnector {
    TlsConnector::from(Arc::new(client_config(None)))
}

fn client_config(authorities: Option<&Arc<Authorities>>) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = match builder.with_safe_default_protocol_versions() {
        Ok(builder) => builder,
        Err(error) => unreachable!("ring speaks the default versions: {error}"),
    };
    let builder = match authorities {
        Some(authorities) => {
            let trusted: Arc<Pinned> = Arc::clone(&authorities.0);
            builder.dangerous().with_custom_certificate_verifier(trusted)
        }
        None => builder.with_root_certificates(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }),
    };
    builder.with_no_client_auth()
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Io>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connect_timeout, connector) = (self.connect_timeout, self.clone());
        Box::pin(async move {
            let connected = connector.connect(uri);
            let io = match connect_timeout {
                Some(limit) => timeout(limit, connected).await.map_err(|_| ConnectTimeout(limit))?,
                None => connected.await,
            };
            Ok(TokioIo::new(io?))
        })
    }
}

/// A connection of any kind.
pub(super) struct Io {
    stream: RawConnection,
    /// Both sides have agreed on HTTP/2.
    is_http2: bool,
}

impl Io {
    pub(super) fn new(stream: impl RawStream + 'static) -> Self {
        Self { stream: Box::new(stream), is_http2: false }
    }
}

impl Connection for Io {
    fn connected(&self) -> Connected {
        if self.is_http2 { Connected::new().negotiated_h2() } else { Connected::new() }
    }
}

impl AsyncRead for Io {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
