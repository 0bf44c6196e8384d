//! The HTTP server: accepts connections, serves their requests with a service, and drains on shutdown.
//!
//! The caller passes a bound listener and any future as the shutdown signal, so tests run on port 0 and never wait.
//! `TCP_NODELAY` is on: a token must not wait for an acknowledgement of the previous one. HTTP/1.1 and, where the listener is
//! so configured, HTTP/2; with TLS ([`Tls`]) or without.
//!
//! Limits: the header timeout covers everything up to the end of a request's head; a body has no timeout unless the service
//! sets one.
//!
//! See docs/decisions/0013-hyper-below-the-router.md.

mod body;
mod connection;
mod connection_options;
mod connection_stream;
mod descriptors;
mod ending;
mod error_rewriter;
mod events;
mod handshakes;
mod header_timeout;
mod informational;
mod lateness_tracker;
mod listener;
mod reserve;
mod tls;
mod upgrade;
mod workers;
mod write_watch;

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use axum_core::body::Body;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request, Response, header};
use hyper::body::Incoming;
use tokio::{
    net::{TcpListener, TcpStream, UnixStream},
    runtime::Handle,
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

pub(crate) use self::write_watch::HeadEnd;
pub use self::{
    body::{BodyError, NotWhole, RequestBody, ResponseBody, Stopping, UntilStopping, receive_whole, whole_body},
    connection_options::ConnectionOptions,
    descriptors::raise_descriptor_limit,
    ending::ConnectionEnd,
    informational::Informational,
    lateness_tracker::LatenessTracker,
    listener::{Listener, ListenerPlace, NO_ADDRESS, bind_unix},
    reserve::refused_connections,
    tls::{ClientCertificates, Tls, TlsError, TlsFiles},
    upgrade::{RawConnection, RawStream, Upgrade},
    workers::Workers,
    write_watch::SlowHead,
};
use self::{
    connection::ConnectionService,
    connection_stream::ConnectionStream,
    handshakes::{Handshake, Handshakes},
    listener::Accepted,
    reserve::{Lent, RESERVED_FOR, Reserve},
};
use base::rate_limited_log::RateLimitedLog;

/// Returns the media type of `content-type` without its parameters; empty where there is none.
#[must_use]
pub fn media_type(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// Pause before the next accept after an error such as too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Time after the drain's deadline in which connections that were cut may end.
const ABORT_WITHIN: Duration = Duration::from_millis(500);

/// Warnings of connections that could not be accepted or registered.
static FAILING: RateLimitedLog = RateLimitedLog::new();

/// The mark in the extensions of a request that arrived over TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverTls;

/// The client of a connection, and the connection's side channels.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address; [`NO_ADDRESS`] over a Unix socket.
    pub address: SocketAddr,
    /// Tracks the lateness of the events that the response sends.
    pub lateness: LatenessTracker,
    /// Sends informational responses; HTTP/1.1 only.
    pub informational: Informational,
    /// Completes when the server shuts down.
    pub stopping: Stopping,
}

impl Peer {
    fn new(address: SocketAddr, context: &ConnectionContext, stopped: &watch::Receiver<()>) -> Self {
        Self {
            address,
            lateness: context.lateness.clone(),
            informational: context.informational.clone(),
            stopping: Stopping(stopped.clone()),
        }
    }
}

/// A function from a request and its client to a future response.
pub trait ClientService: Fn(Request<Incoming>, Peer) -> Self::Responding + Send + Sync + 'static {
    /// The future response.
    type Responding: Future<Output = Response<Body>> + Send + 'static;
}

impl<S, F: Future<Output = Response<Body>> + Send + 'static> ClientService for S
where
    S: Fn(Request<Incoming>, Peer) -> F + Send + Sync + 'static,
{
    type Responding = F;
}

/// A service without its type: with it and axum's body, connections are compiled once for all services, and what a service holds is proven
/// to go from thread to thread once. See docs/src/internals/performance.md.
type SharedService = Arc<dyn Fn(Request<Incoming>, Peer) -> SharedResponding + Send + Sync>;

type SharedResponding = BoxFuture<'static, Response<Body>>;

/// The result of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DrainReport {
    /// Connections that were still busy at the deadline and were closed, upgraded ones such as WebSockets among them.
    pub cut: usize,
}

/// Errors of binding a listener.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another program listens there.
    #[error("{0} is in use by another program")]
    InUse(String),
    /// A file that is no socket has the name of the Unix socket.
    #[error("cannot listen on {0}: a file of that name exists and is no socket; remove it or choose another path")]
    NoSocket(String),
    /// Anything else: no such interface, no permission, a name that does not resolve.
    #[error("cannot listen on {address}")]
    Other {
        /// The requested address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Listens on `address` (`host:port`; port 0 takes a free one).
///
/// # Errors
/// When the address is in use or cannot be bound.
pub async fn bind(address: &str) -> Result<TcpListener, BindError> {
    listener::listen(address).await.map_err(|source| {
        let address = address.to_owned();
        if source.kind() == io::ErrorKind::AddrInUse {
            BindError::InUse(address)
        } else {
            BindError::Other { address, source }
        }
    })
}

/// Serves until `shutdown` completes, then waits up to `drain` for requests in flight.
///
/// The service is called once per request with the client; when a client disconnects, the future or the body of its response
/// is dropped.
pub async fn run(
    listener: impl Into<Listener>,
    service: impl ClientService + Clone,
    shutdown: impl Future<Output = ()> + Send,
    drain: Duration,
) -> DrainReport {
    run_on(&Workers::current(), listener, move || service.clone(), shutdown, drain).await
}

/// Serves as [`run`] does, on `workers`. `make` builds a service for each of them and is called inside its runtime.
pub async fn run_on<S: ClientService>(
    workers: &Workers,
    listener: impl Into<Listener>,
    make: impl Fn() -> S,
    shutdown: impl Future<Output = ()> + Send,
    drain: Duration,
) -> DrainReport {
    let services = workers.in_each(|| {
        let service = make();
        Arc::new(move |request, peer| Box::pin(service(request, peer)) as SharedResponding) as SharedService
    });
    serve(&services, listener.into(), Box::pin(shutdown), drain).await
}

/// Serves until `shutdown`. Without the future's type connections and hyper's server are compiled here; with it, in each crate that serves.
fn serve<'a>(
    services: &'a [(Handle, SharedService)],
    listener: Listener,
    shutdown: BoxFuture<'a, ()>,
    drain: Duration,
) -> BoxFuture<'a, DrainReport> {
    Box::pin(accept_all(services, listener, shutdown, drain))
}

async fn accept_all(
    services: &[(Handle, SharedService)],
    listener: Listener,
    mut shutdown: BoxFuture<'_, ()>,
    drain: Duration,
) -> DrainReport {
    let mut next_service = services.iter().cycle();
    let (handshakes, reserve) = (Arc::new(Handshakes::default()), Reserve::new());
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = next(&listener, &reserve) => if let Some((accepted, lent)) = accepted {
                let Some((handle, service)) = next_service.next() else { unreachable!("invariant: there is a worker") };
                let mut context = ConnectionContext::new(&listener, &handshakes);
                context.is_reserved = lent.is_some();
                let new = NewConnection { context, service: Arc::clone(service), stopped: stopped.clone() };
                let serving = new.open(accepted);
                match lent {
                    None => connections.spawn_on(serving, handle),
                    Some(lent) => connections.spawn_on(on_reserve(serving, lent), handle),
                };
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
    connections.abort_all();
    // A task that computes ends only when it yields; it is left behind.
    if timeout(ABORT_WITHIN, async { while connections.join_next().await.is_some() {} }).await.is_err() {
        tracing::warn!(connections = connections.len(), "busy connections are left behind at the drain's deadline");
    }
    DrainReport { cut }
}

/// Accepts the next connection, on the reserve where all other descriptors are in use; `None` after a pause where that fails.
async fn next(listener: &Listener, reserve: &Reserve) -> Option<(Accepted, Option<Lent>)> {
    let error = match listener.accept().await {
        Ok(accepted) => return Some((accepted, None)),
        Err(error) => error,
    };
    if let Some(held) = FAILING.due() {
        tracing::warn!(%error, held, "{}", descriptors::accept_error(&error));
    }
    let Some(lent) = reserve.lend(&error) else {
        sleep(ACCEPT_RETRY).await;
        return None;
    };
    // There may be no client at all: the system looks for a descriptor first.
    let accepted = timeout(ACCEPT_RETRY, listener.accept()).await.ok()?.ok()?;
    Some((accepted, Some(lent)))
}

/// Serves a connection on the reserve, in the time that it has.
async fn on_reserve(serving: impl Future<Output = ()>, lent: Lent) {
    let _cut_or_served = timeout(RESERVED_FOR, serving).await;
    drop(lent);
}

/// Everything that a connection needs beside its stream.
#[derive(Debug, Clone)]
struct ConnectionContext {
    http2: bool,
    tls: Option<Handshake>,
    options: ConnectionOptions,
    lateness: LatenessTracker,
    informational: Informational,
    /// It is on the reserve: one question of health is answered, all else is refused.
    is_reserved: bool,
}

impl ConnectionContext {
    fn new(listener: &Listener, handshakes: &Arc<Handshakes>) -> Self {
        let handshake = |tls| Handshake { tls: Arc::clone(tls), handshakes: Arc::clone(handshakes) };
        Self {
            http2: listener.http2,
            tls: listener.tls.as_ref().map(handshake),
            options: listener.options,
            lateness: LatenessTracker::new(listener.lateness.as_ref()),
            informational: Informational::default(),
            is_reserved: false,
        }
    }
}

/// A connection that is about to be served.
struct NewConnection {
    context: ConnectionContext,
    service: SharedService,
    stopped: watch::Receiver<()>,
}

impl NewConnection {
    /// Registers it with the current runtime and serves it.
    async fn open(mut self, accepted: Accepted) {
        let error = match accepted {
            Accepted::Tcp(stream, peer) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%peer, %error, "cannot set TCP_NODELAY");
                }
                match TcpStream::from_std(stream) {
                    Ok(stream) => return self.secure(stream, peer).await,
                    Err(error) => error,
                }
            }
            Accepted::Unix(stream) => match UnixStream::from_std(stream) {
                Ok(stream) => return self.secure(stream, NO_ADDRESS).await,
                Err(error) => error,
            },
        };
        if let Some(held) = FAILING.due() {
            tracing::warn!(%error, held, "cannot serve a connection");
        }
    }

    /// Serves it, after a handshake where there is TLS.
    async fn secure<I: ConnectionStream>(&mut self, stream: I, peer: SocketAddr) {
        match self.context.tls.take() {
            // Boxed: connections without TLS would otherwise hold room for the handshake.
            Some(handshake) => Box::pin(self.shake_hands(handshake, stream, peer)).await,
            None => self.serve(stream, peer).await,
        }
    }

    async fn shake_hands<I: ConnectionStream>(&mut self, handshake: Handshake, stream: I, peer: SocketAddr) {
        if let Some(stream) = handshake.shake(stream, peer.ip(), &mut self.stopped).await {
            let service = Arc::clone(&self.service);
            self.service = Arc::new(move |mut request: Request<Incoming>, peer| {
                request.extensions_mut().insert(OverTls);
                service(request, peer)
            });
            self.serve(stream, peer).await;
        }
    }

    async fn serve<I: ConnectionStream>(&self, stream: I, peer: SocketAddr) {
        let client = Peer::new(peer, &self.context, &self.stopped);
        let service = ConnectionService { service: Arc::clone(&self.service), client };
        if let Err(error) = connection::serve(stream, &self.context, service, self.stopped.clone()).await {
            tracing::debug!(%peer, %error, "the connection ended early");
        }
    }
}
