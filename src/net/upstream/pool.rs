//! Connections that wait for their next request.

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

/// A connection that was not used for so long is closed.
const LONGEST_IDLE: Duration = Duration::from_secs(90);

/// How often connections are looked for that the upstream closed meanwhile.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// So many connections wait at most; further ones are closed. Each thread of a server has a pool for each upstream.
pub(super) const MOST_IDLE: usize = 512;

/// The idle connections of one upstream; the one that was used last is used next.
pub(super) struct Pool<B: OutgoingBody> {
    idle: Mutex<Vec<Idle<B>>>,
    sweeper: OnceLock<()>,
}

struct Idle<B: OutgoingBody> {
    connection: Waiting<B>,
    since: Instant,
}

/// A connection without a request.
enum Waiting<B: OutgoingBody> {
    /// As the library holds it.
    Held(Connection<B>),
    /// What it was made of, which holds no buffers.
    Bare(Io),
}

impl<B: OutgoingBody> Waiting<B> {
    fn is_idle(&mut self) -> bool {
        match self {
            Self::Held(connection) => connection.is_idle(),
            Self::Bare(io) => connection::is_idle(io),
        }
    }
}

impl<B: OutgoingBody> Default for Pool<B> {
    fn default() -> Self {
        Self { idle: Mutex::default(), sweeper: OnceLock::new() }
    }
}

impl<B: OutgoingBody> Pool<B> {
    /// A connection that is open, as far as can be known.
    pub(super) fn take(&self) -> Option<Connection<B>> {
        loop {
            let mut waiting = self.idle().pop()?.connection;
            if !waiting.is_idle() {
                continue;
            }
            match waiting {
                Waiting::Held(connection) => return Some(connection),
                Waiting::Bare(io) => {
                    if let Some(connection) = Connection::again(io) {
                        return Some(connection);
                    }
                }
            }
        }
    }

    /// Forgets the connections that ended, and those of no use.
    fn sweep(&self) {
        let waiting = std::mem::take(&mut *self.idle());
        let is_kept = |idle: &mut Idle<B>| idle.since.elapsed() < LONGEST_IDLE && idle.connection.is_idle();
        let mut kept: Vec<Idle<B>> =
            waiting.into_iter().filter_map(|mut idle| is_kept(&mut idle).then_some(idle)).collect();
        let mut idle = self.idle();
        // What was given back meanwhile was used last.
        kept.append(&mut idle);
        *idle = kept;
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle<B>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: OutgoingBody> Pool<B> {
    /// Keeps a connection whose answer was received whole.
    pub(super) fn give_back(self: &Arc<Self>, connection: Connection<B>) {
        self.keep(Waiting::Held(connection));
    }

    /// Keeps a connection that the library does not hold.
    pub(super) fn give_back_bare(self: &Arc<Self>, io: Io) {
        self.keep(Waiting::Bare(io));
    }

    fn keep(self: &Arc<Self>, mut connection: Waiting<B>) {
        if !connection.is_idle() {
            return;
        }
        let mut idle = self.idle();
        if idle.len() >= MOST_IDLE {
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
        sleep(SWEEP_EVERY).await;
        let Some(pool) = pool.upgrade() else { return };
        pool.sweep();
    }
}

impl<B: OutgoingBody> fmt::Debug for Pool<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("idle", &self.idle().len()).finish_non_exhaustive()
    }
}
