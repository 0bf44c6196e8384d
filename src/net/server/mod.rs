//! Accepts connections, answers them with a service, and drains on shutdown.
//!
//! The caller brings a bound listener and any future as the shutdown signal, so tests run on port 0 and never wait.
//! `TCP_NODELAY` is on: a token must not wait for an acknowledgement of the previous one. HTTP/1.1, and HTTP/2 where the
//! listener says so; with TLS ([`Tls`]) or without. A client has a deadline for everything up to the end of a request's
//! head. Limits: a body may take for ever, unless the service minds.
//!
//! See docs/decisions/0013-hyper-below-the-router.md.

mod alarm;
mod body;
mod connection;
mod crew;
mod descriptors;
mod events;
mod handover;
mod interim;
mod listener;
mod manners;
mod outbox;
mod tls;

use std::{error::Error, future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use http::{HeaderMap, Request, Response, header};
use http_body::Body;
use hyper::body::Incoming;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

use self::listener::{Accepted, Versions};
pub use self::{
    body::{AnswerBody, BodyError, RequestBody, whole_body},
    crew::Crew,
    descriptors::raise_descriptor_limit,
    handover::{Handover, RawConnection, RawStream},
    interim::Interim,
    listener::{Listener, NO_ADDRESS, bind_unix},
    manners::Manners,
    outbox::Outbox,
    tls::{ClientCertificates, Refresh, Tls, TlsError, TlsFiles},
};

/// The media type that headers tell, without its parameters; empty where they tell none.
#[must_use]
pub fn media_type(headers: &HeaderMap) -> &str {
    let told = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    told.split(';').next().unwrap_or_default().trim()
}

/// How long a client may take for a TLS handshake, its turn included.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// TLS handshakes at a time. They cost far more than requests, and whoever only begins one holds a place no longer than the
/// time-out; more clients than that wait for their turn.
const HANDSHAKES: usize = 256;

/// How long accepting rests after an error such as too many open files.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// In the extensions of a request that came through TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverTls;

/// Who sent a request.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address; [`NO_ADDRESS`] over a Unix socket.
    pub address: SocketAddr,
    /// Where the events of its answer are noted.
    pub outbox: Outbox,
    /// Where interim answers are said, over HTTP/1.1.
    pub interim: Interim,
}

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
    listener::listen(address).await.map_err(|source| {
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
/// The service is called once per request with who sent it; when a client leaves, the future or the body that
/// is answering it is dropped.
pub async fn run<S, F, B>(
    listener: impl Into<Listener>,
    service: S,
    shutdown: impl Future<Output = ()>,
    drain: Duration,
) -> DrainReport
where
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Unpin + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    run_by(&Crew::here(), listener, move || service.clone(), shutdown, drain).await
}

/// As [`run`], by the runtimes of a crew, for each of which `make` makes a service inside it.
pub async fn run_by<S, F, B>(
    crew: &Crew,
    listener: impl Into<Listener>,
    make: impl Fn() -> S,
    shutdown: impl Future<Output = ()>,
    drain: Duration,
) -> DrainReport
where
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Unpin + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let workers = crew.equip(make);
    let mut turns = workers.iter().cycle();
    let listener = listener.into();
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => {
                    let Some((handle, service)) = turns.next() else { continue };
                    let (service, stopped) = (service.clone(), stopped.clone());
                    let outbox = Outbox::new(listener.lateness.as_ref());
                    let tls = listener.tls.as_ref().map(|tls| (Arc::clone(tls), Arc::clone(&handshakes)));
                    let way = Way { versions: listener.versions, tls, manners: listener.manners, outbox, interim: Interim::default() };
                    connections.spawn_on(open(accepted, way, service, stopped), handle);
                }
                Err(error) => {
                    tracing::warn!(%error, "{}", descriptors::why_not_accepted(&error));
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
    /// And what bounds its handshakes.
    tls: Option<(Arc<Tls>, Arc<Semaphore>)>,
    manners: Manners,
    outbox: Outbox,
    interim: Interim,
}

/// Answers what comes over a new connection.
async fn open<S, F, B>(accepted: Accepted, way: Way, service: S, stopped: watch::Receiver<()>)
where
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Unpin + 'static,
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
            match TcpStream::from_std(stream) {
                Ok(stream) => secure((stream, peer), way, service, stopped).await,
                Err(error) => tracing::warn!(%peer, %error, "cannot serve a connection"),
            }
        }
        Accepted::Unix(stream) => match UnixStream::from_std(stream) {
            Ok(stream) => secure((stream, NO_ADDRESS), way, service, stopped).await,
            Err(error) => tracing::warn!(%error, "cannot serve a connection"),
        },
    }
}

/// Shakes hands where there is TLS. What that takes is apart, so that connections without it do not hold room for it.
async fn secure<I, S, F, B>((stream, peer): (I, SocketAddr), mut way: Way, service: S, stopped: watch::Receiver<()>)
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Unpin + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    match way.tls.take() {
        Some((tls, turns)) => Box::pin(shake_hands((&tls, &turns), (stream, peer), way, service, stopped)).await,
        None => answer((stream, peer), &way, service, stopped).await,
    }
}

async fn shake_hands<I, S, F, B>(
    (tls, turns): (&Tls, &Semaphore),
    (stream, peer): (I, SocketAddr),
    way: Way,
    service: S,
    mut stopped: watch::Receiver<()>,
) where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Unpin + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let shaking = async {
        let _turn = turns.acquire().await;
        tls.acceptor().accept(stream).await
    };
    let shaken = tokio::select! {
        shaken = timeout(HANDSHAKE_TIMEOUT, shaking) => shaken,
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

async fn answer<I, S, F, B>((stream, peer): (I, SocketAddr), way: &Way, service: S, stopped: watch::Receiver<()>)
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Unpin + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let sender = Peer { address: peer, outbox: way.outbox.clone(), interim: way.interim.clone() };
    let service = move |request| service(request, sender.clone());
    if let Err(error) = connection::answer(stream, way, service, stopped).await {
        tracing::debug!(%peer, %error, "connection ended early");
    }
}
