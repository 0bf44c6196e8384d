//! Accepts connections, answers them with a service, and drains on shutdown.
//!
//! The caller brings a bound listener and any future as the shutdown signal, so tests run on port 0 and never wait.
//! `TCP_NODELAY` is on: a token must not wait for an acknowledgement of the previous one. HTTP/1.1, and HTTP/2 where the
//! listener says so; with TLS ([`Tls`]) or without. Limits: a client that sends nothing is only bound by a deadline once its first bytes
//! told the version, where both are spoken.

mod listener;
mod manners;
mod tls;

use std::{convert::Infallible, error::Error, future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use http::{Request, Response};
use http_body::Body;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use self::{
    listener::{Accepted, Versions},
    manners::Reworded,
};
pub use self::{
    listener::{Listener, NO_ADDRESS, bind_unix},
    manners::Manners,
    tls::{ClientCertificates, Refresh, Tls, TlsError, TlsFiles},
};

/// How long a client may take for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long accepting rests after an error such as too many open files.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// In the extensions of a request that came through TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverTls;

/// How a drain ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DrainReport {
    /// Connections that were still busy at the deadline and were closed.
    pub cut: usize,
}

/// Why a listener could not be had.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another program listens there.
    #[error("{address} is in use by another program")]
    InUse {
        /// The address that was asked for.
        address: String,
    },
    /// A file that is no socket has the name of the Unix socket.
    #[error("cannot listen on {address}: there is a file of that name, which is left alone")]
    NoSocket {
        /// The path that was asked for.
        address: String,
    },
    /// Anything else: no such interface, no permission, a name that does not resolve.
    #[error("cannot listen on {address}")]
    Other {
        /// The address that was asked for.
        address: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Listens on `address` (`host:port`; port 0 takes a free one).
///
/// # Errors
/// When the address is in use or cannot be had.
pub async fn bind(address: &str) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|source| {
        let address = address.to_owned();
        if source.kind() == io::ErrorKind::AddrInUse {
            BindError::InUse { address }
        } else {
            BindError::Other { address, source }
        }
    })
}

/// Serves until `shutdown` completes, then lets requests in flight finish for up to `drain`.
///
/// The service is called once per request with the client's address; when a client leaves, the future or the body that
/// is answering it is dropped.
pub async fn run<S, F, B>(
    listener: impl Into<Listener>,
    service: S,
    shutdown: impl Future<Output = ()>,
    drain: Duration,
) -> DrainReport
where
    S: Fn(Request<Incoming>, SocketAddr) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let listener = listener.into();
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => {
                    let (service, stopped) = (service.clone(), stopped.clone());
                    let way = Way { versions: listener.versions, tls: listener.tls.clone(), manners: listener.manners };
                    connections.spawn(open(accepted, way, service, stopped));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_REST).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    drop(stop);
    let all_closed = async { while connections.join_next().await.is_some() {} };
    if timeout(drain, all_closed).await.is_ok() {
        return DrainReport::default();
    }
    let cut = connections.len();
    connections.shutdown().await;
    DrainReport { cut }
}

/// What is spoken on a connection.
#[derive(Debug, Clone)]
struct Way {
    versions: Versions,
    tls: Option<Arc<Tls>>,
    manners: Manners,
}

/// Answers what comes over a new connection.
async fn open<S, F, B>(accepted: Accepted, way: Way, service: S, stopped: watch::Receiver<()>)
where
    S: Fn(Request<Incoming>, SocketAddr) -> F + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    match accepted {
        Accepted::Tcp(stream, peer) => {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%peer, %error, "cannot set TCP_NODELAY");
            }
            secure((stream, peer), way, service, stopped).await;
        }
        Accepted::Unix(stream) => secure((stream, NO_ADDRESS), way, service, stopped).await,
    }
}

/// Shakes hands where there is TLS.
async fn secure<I, S, F, B>((stream, peer): (I, SocketAddr), mut way: Way, service: S, mut stopped: watch::Receiver<()>)
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: Fn(Request<Incoming>, SocketAddr) -> F + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let Some(tls) = way.tls.take() else { return answer((stream, peer), &way, service, stopped).await };
    let shaken = tokio::select! {
        shaken = timeout(HANDSHAKE_TIMEOUT, tls.acceptor().accept(stream)) => shaken,
        _ = stopped.changed() => return,
    };
    match shaken {
        Ok(Ok(stream)) => {
            let marked = move |mut request: Request<Incoming>, peer| {
                request.extensions_mut().insert(OverTls);
                service(request, peer)
            };
            answer((stream, peer), &way, marked, stopped).await;
        }
        Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS handshake"),
        Err(_) => tracing::debug!(%peer, "no TLS handshake in time"),
    }
}

async fn answer<I, S, F, B>((stream, peer): (I, SocketAddr), way: &Way, service: S, mut stopped: watch::Receiver<()>)
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: Fn(Request<Incoming>, SocketAddr) -> F + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let service = service_fn(move |request| {
        let response = service(request, peer);
        async move { Ok::<_, Infallible>(response.await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(way.manners.head_timeout);
    if way.versions == Versions::Http1 {
        builder = builder.http1_only();
    }
    let stream = Reworded::new(stream, way.manners.refusal);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection ended early");
    }
}
