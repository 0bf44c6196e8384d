//! Pool of idle connections.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    OutgoingBody,
    connection::{self, Connection},
    connector::Io,
};

/// Idle time after which a connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// Interval of the search for connections that the upstream has closed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of idle connections; further ones are closed. Each thread of a server has a pool for each upstream.
pub(super) const MAX_IDLE: usize = 512;

/// The idle connections of one upstream. The one used last is used next.
pub(super) struct Pool<B: OutgoingBody> {
    idle: Mutex<Vec<Idle<B>>>,
    sweeper: OnceLock<()>,
}

struct Idle<B: OutgoingBody> {
    connection: IdleConnection<B>,
    since: Instant,
}

/// A connection without a request.
enum IdleConnection<B: OutgoingBody> {
    /// A connection with hyper's state and buffers.
    Hyper(Connection<B>),
    /// A socket without them.
    Socket(Io),
}

impl<B: OutgoingBody> IdleConnection<B> {
    fn is_idle(&mut self) -> bool {
        match self {
            Self::Hyper(connection) => connection.is_idle(),
            Self::Socket(io) => connection::is_idle(io),
        }
    }
}

impl<B: OutgoingBody> Default for Pool<B> {
    fn default() -> Self {
        Self { idle: Mutex::default(), sweeper: OnceLock::new() }
    }
}

impl<B: OutgoingBody> Pool<B> {
    /// Takes a connection that was open a moment ago.
    pub(super) fn take(&self) -> Option<Connection<B>> {
        loop {
            let mut waiting = self.idle().pop()?.connection;
            if !waiting.is_idle() {
                continue;
            }
            match waiting {
                IdleConnection::Hyper(connection) => return Some(connection),
                IdleConnection::Socket(io) => {
                    if let Some(connection) = Connection::reuse(io) {
                        return Some(connection);
                    }
                }
            }
        }
    }

    /// Drops closed connections, and those that were idle for too long.
    fn sweep(&self) {
        let waiting = std::mem::take(&mut *self.idle());
        let is_kept = |idle: &mut Idle<B>| idle.since.elapsed() < IDLE_TIMEOUT && idle.connection.is_idle();
        let mut kept: Vec<Idle<B>> =
            waiting.into_iter().filter_map(|mut idle| is_kept(&mut idle).then_some(idle)).collect();
        let mut idle = self.idle();
        // Connections returned in the meantime were used last.
        kept.append(&mut idle);
        *idle = kept;
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle<B>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: OutgoingBody> Pool<B> {
    /// Returns a connection whose response was received completely.
    pub(super) fn give_back(self: &Arc<Self>, connection: Connection<B>) {
        self.keep(IdleConnection::Hyper(connection));
    }

    /// Returns the socket of a connection that was taken from hyper.
    pub(super) fn give_back_socket(self: &Arc<Self>, io: Io) {
        self.keep(IdleConnection::Socket(io));
    }

    fn keep(self: &Arc<Self>, mut connection: IdleConnection<B>) {
        if !connection.is_idle() {
            return;
        }
        let mut idle = self.idle();
        if idle.len() >= MAX_IDLE {
            return;
        }
        idle.push(Idle { connection, since: Instant::now() });
        drop(idle);
        self.sweeper.get_or_init(|| {
            let pool = Arc::downgrade(self);
            tokio::spawn(sweep(pool));
        });
    }
}

async fn sweep<B: OutgoingBody>(pool: Weak<Pool<B>>) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        let Some(pool) = pool.upgrade() else { return };
        pool.sweep();
    }
}

impl<B: OutgoingBody> fmt::Debug for Pool<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("idle", &self.idle().len()).finish_non_exhaustive()
    }
}
