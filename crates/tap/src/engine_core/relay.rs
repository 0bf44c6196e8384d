//! Connections between engines and a front end: each one that an engine makes here becomes one to the front end, and their bytes pass as they
//! are, so that identities, subscriptions, heartbeats and the end of either side are those of the two programs themselves.
//!
//! One message is changed: the front end's answer to an engine's greeting names the addresses of its sockets, and an engine is to connect
//! here instead. Each of these addresses gets a listener, on the address by which the engine reached the tap, on a free port.
//!
//! Limits: sockets of the transport `ipc` are refused, since engines that use them are started by the front end itself.

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    select,
    sync::{Semaphore, watch},
    task::AbortHandle,
    time::{sleep, timeout},
};

use super::{
    addresses::{InitAddresses, SocketRole},
    observer::CoreObserver,
};
use base::{lock::Lock, rate_limited_log::RateLimitedLog};
use engine_core::{
    zmtp::{COMMAND, GREETING, put_frame, put_message},
    zmtp_reader::{ZmtpReader, ZmtpUnit},
};

/// Connections at once: each engine has one for its handshake, and two for each process of the front end.
const MOST_CONNECTIONS: usize = 4096;

/// Addresses of the front end's sockets that have a listener here.
const MOST_ADDRESSES: usize = 1024;

/// Bytes that are read in one go.
const PORTION: usize = 64 << 10;

/// Bytes of a message that is observed.
pub(super) const MOST_BYTES: u64 = 64 << 20;

/// Frames of a request that are read: its type and its fields. Others are arrays of media, which are not recorded.
const REQUEST_FRAMES: usize = 2;

/// Bytes of a message of the handshake.
const MOST_HANDSHAKE_BYTES: u64 = 1 << 20;

/// Longest time to connect to the front end.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct CoreRelay {
    observer: Arc<CoreObserver>,
    /// The oldest first: a front end that is started again has other sockets, and those of before are given up some time.
    sockets: Lock<VecDeque<SocketListener>>,
    stop: watch::Receiver<bool>,
    places: Arc<Semaphore>,
    failing: RateLimitedLog,
}

/// A socket of the front end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RelayedSocket {
    pub(super) role: SocketRole,
    /// `HOST:PORT`.
    pub(super) address: String,
}

/// A listener that stands for a socket of the front end, for engines that reach the tap at this address.
#[derive(Debug)]
struct SocketListener {
    socket: RelayedSocket,
    ip: IpAddr,
    at: SocketAddr,
    accepting: AbortHandle,
}

/// The side that ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndedBy {
    Engine,
    FrontEnd,
    /// The tap is shut down.
    Tap,
}

/// The end of a direction: which of its sides is gone.
enum PassEnd {
    Source(Option<io::Error>),
    Target(io::Error),
}

impl CoreRelay {
    /// Creates a relay that ends when `stop` becomes true.
    pub(super) fn new(observer: Arc<CoreObserver>, stop: watch::Receiver<bool>) -> Self {
        let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        Self { observer, sockets: Lock::default(), stop, places, failing: RateLimitedLog::default() }
    }

    /// Relays what arrives at a listener to a socket of the front end until the tap is shut down. The type of the future is hidden: a relayed
    /// handshake begins others like it.
    pub(super) fn serve(self: Arc<Self>, listener: TcpListener, socket: RelayedSocket) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut stop = self.stop.clone();
            loop {
                let accepted = select! {
                    _ = stop.wait_for(|stop| *stop) => return,
                    accepted = listener.accept() => accepted,
                };
                let Ok((engine, _)) = accepted else {
                    // There are no more descriptors, for now.
                    sleep(PAUSE).await;
                    continue;
                };
                let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
                    tracing::warn!(MOST_CONNECTIONS, "a connection of an engine is refused: too many are open");
                    continue;
                };
                let (relay, socket) = (Arc::clone(&self), socket.clone());
                tokio::spawn(async move {
                    if let Err(error) = relay.connection(engine, &socket).await {
                        tracing::debug!(%error, ?socket, "a connection of an engine ends");
                    }
                    drop(place);
                });
            }
        })
    }

    /// Relays one connection until either side ends it.
    async fn connection(self: &Arc<Self>, mut engine: TcpStream, socket: &RelayedSocket) -> io::Result<()> {
        // Without the front end the engine's connection ends: its socket tries again by itself, as it would there.
        let connected = timeout(CONNECT_WITHIN, TcpStream::connect(socket.address.as_str())).await?;
        let mut front = connected.inspect_err(|error| {
            if self.failing.due().is_some() {
                tracing::warn!(%error, address = %socket.address, "the front end does not accept a connection; the engine tries again");
            }
        })?;
        engine.set_nodelay(true)?;
        front.set_nodelay(true)?;
        let ip = engine.local_addr()?.ip();
        let (mut from_engine, mut to_engine) = engine.split();
        let (mut from_front, mut to_front) = front.split();
        let mut stop = self.stop.clone();
        let connection = self.observer.next_connection();
        let observed = |side| Some(SideObserver::new(Arc::clone(&self.observer), side));
        let (mut of_engine, mut of_front) = match socket.role {
            SocketRole::Input => (observed(RelayedSide::Ready), observed(RelayedSide::Requests(connection))),
            SocketRole::Output => (observed(RelayedSide::Outputs), None),
            SocketRole::Handshake | SocketRole::Coordinator => (None, None),
        };
        let sent = pass(&mut from_engine, &mut to_front, &mut of_engine);
        let received = async {
            match socket.role {
                SocketRole::Handshake => self.handshake(&mut from_front, &mut to_engine, ip).await,
                _ => pass(&mut from_front, &mut to_engine, &mut of_front).await,
            }
        };
        let (ended, error) = select! {
            _ = stop.wait_for(|stop| *stop) => (EndedBy::Tap, None),
            end = sent => end.sides(EndedBy::Engine, EndedBy::FrontEnd),
            end = received => end.sides(EndedBy::FrontEnd, EndedBy::Engine),
        };
        self.observer.end_connection(connection, ended);
        error.map_or(Ok(()), Err)
    }

    /// Passes the front end's side of a handshake on, with own addresses in place of the front end's.
    async fn handshake(
        self: &Arc<Self>,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        ip: IpAddr,
    ) -> PassEnd {
        let mut reader = ZmtpReader::new(MOST_HANDSHAKE_BYTES, usize::MAX);
        let (mut portion, mut units, mut greeting_left) = (vec![0; PORTION], Vec::new(), GREETING);
        loop {
            let read = match from.read(&mut portion).await {
                Ok(0) => return PassEnd::Source(None),
                Ok(read) => portion.get(..read).unwrap_or_default(),
                Err(error) => return PassEnd::Source(Some(error)),
            };
            reader.push(read, |unit| units.push(unit));
            // libzmq sends its greeting in parts, each once it has one of its peer's: they cannot wait for each other.
            let greeting = read.get(..read.len().min(greeting_left)).unwrap_or_default();
            greeting_left -= greeting.len();
            let mut bytes = greeting.to_vec();
            for unit in units.drain(..) {
                if let Err(error) = self.put_unit(&mut bytes, unit, ip).await {
                    tracing::error!(%error, "a handshake is given up");
                    return PassEnd::Source(Some(error));
                }
            }
            if let Err(error) = to.write_all(&bytes).await {
                return PassEnd::Target(error);
            }
        }
    }

    async fn put_unit(self: &Arc<Self>, bytes: &mut Vec<u8>, unit: ZmtpUnit, ip: IpAddr) -> io::Result<()> {
        match unit {
            // It has passed.
            ZmtpUnit::Greeting(_) => {}
            ZmtpUnit::Command(command) => {
                put_frame(bytes, COMMAND, command.len());
                bytes.extend(command);
            }
            ZmtpUnit::Message(mut frames) => {
                if let [frame] = frames.as_mut_slice()
                    && let Some(mut init) = InitAddresses::read(frame)
                {
                    for (role, address) in init.sockets_mut() {
                        *address = self.stand_for(role, address, ip).await?;
                    }
                    *frame = init.encode();
                }
                put_message(bytes, &frames);
            }
            ZmtpUnit::TooLong => {
                return Err(io::Error::other(format!("its message is longer than {MOST_HANDSHAKE_BYTES} bytes")));
            }
        }
        Ok(())
    }

    /// Returns the address here that stands for one of the front end.
    async fn stand_for(self: &Arc<Self>, role: SocketRole, address: &str, ip: IpAddr) -> io::Result<String> {
        let Some(target) = address.strip_prefix("tcp://") else {
            return Err(io::Error::other(format!(
                "the front end's socket {address} is of no TCP address; start it with --data-parallel-size-local 0"
            )));
        };
        let socket = RelayedSocket { role, address: target.to_owned() };
        if let Some(known) = self.sockets.lock().iter().find(|known| known.socket == socket && known.ip == ip) {
            return Ok(format!("tcp://{}", known.at));
        }
        let listener = TcpListener::bind((ip, 0)).await?;
        let at = listener.local_addr()?;
        tracing::debug!(%at, ?socket, "a socket of the front end is relayed");
        let accepting = tokio::spawn(Arc::clone(self).serve(listener, socket.clone())).abort_handle();
        let mut sockets = self.sockets.lock();
        sockets.push_back(SocketListener { socket, ip, at, accepting });
        if sockets.len() > MOST_ADDRESSES
            && let Some(oldest) = sockets.pop_front()
        {
            oldest.accepting.abort();
        }
        Ok(format!("tcp://{at}"))
    }
}

impl PassEnd {
    /// Names the side that is gone, with the error if there was one.
    fn sides(self, source: EndedBy, target: EndedBy) -> (EndedBy, Option<io::Error>) {
        match self {
            Self::Source(error) => (source, error),
            Self::Target(error) => (target, Some(error)),
        }
    }
}

/// Passes bytes on as they come, each portion after it was observed: what follows from it is observed later.
async fn pass(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    observer: &mut Option<SideObserver>,
) -> PassEnd {
    let mut portion = vec![0; PORTION];
    loop {
        let bytes = match from.read(&mut portion).await {
            Ok(0) => return PassEnd::Source(None),
            Ok(read) => portion.get(..read).unwrap_or_default(),
            Err(error) => return PassEnd::Source(Some(error)),
        };
        observer.iter_mut().for_each(|observer| observer.observe(bytes));
        if let Err(error) = to.write_all(bytes).await {
            return PassEnd::Target(error);
        }
    }
}

/// Observer of one side of a connection.
struct SideObserver {
    observer: Arc<CoreObserver>,
    side: RelayedSide,
    reader: ZmtpReader,
}

/// Messages that a side of a connection sends.
#[derive(Debug, Clone, Copy)]
enum RelayedSide {
    /// The front end's requests, by the connection of this number.
    Requests(u64),
    /// The settings of an engine that is ready.
    Ready,
    /// Outputs of an engine's steps.
    Outputs,
}

impl SideObserver {
    fn new(observer: Arc<CoreObserver>, side: RelayedSide) -> Self {
        let reader = match side {
            RelayedSide::Requests(_) => ZmtpReader::new(MOST_BYTES, REQUEST_FRAMES),
            RelayedSide::Ready => ZmtpReader::new(1 << 20, 1),
            RelayedSide::Outputs => ZmtpReader::new(MOST_BYTES, usize::MAX),
        };
        let reader = reader.within(&observer.held);
        Self { observer, side, reader }
    }

    fn observe(&mut self, bytes: &[u8]) {
        let Self { observer, side, reader } = self;
        reader.push(bytes, |unit| match (unit, *side) {
            (ZmtpUnit::Message(frames), RelayedSide::Requests(connection)) => {
                observer.observe_front_end(connection, &frames);
            }
            (ZmtpUnit::Message(frames), RelayedSide::Ready) => observer.observe_ready(&frames),
            (ZmtpUnit::Message(frames), RelayedSide::Outputs) => observer.observe_engine(&frames),
            // Nothing but a request is so long.
            (ZmtpUnit::TooLong, RelayedSide::Requests(_)) => observer.miss_request(&"it is too long"),
            (ZmtpUnit::TooLong, RelayedSide::Outputs) => {
                observer.is_unread(&"it is too long");
                observer.mark_incomplete();
            }
            (ZmtpUnit::TooLong, RelayedSide::Ready) | (ZmtpUnit::Greeting(_) | ZmtpUnit::Command(_), _) => {}
        });
    }
}
