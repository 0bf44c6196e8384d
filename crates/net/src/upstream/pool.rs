//! Pool of idle connections.

use std::{
    fmt,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    connection::{self, Connection},
    connector::Io,
};
use base::lock::Lock;

/// Idle time after which a connection is used no more. vLLM's server closes idle connections after 5 seconds
/// (`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`), and a request that is sent just then gets no response.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Interval of the search for connections that the upstream has closed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of idle connections; further ones are closed. Each thread of a server has a pool for each upstream.
pub(super) const MAX_IDLE: usize = 512;

/// The idle connections of one upstream. The one used last is used next.
#[derive(Default)]
pub(super) struct Pool {
    idle: Lock<Vec<PooledConnection>>,
    sweeper: OnceLock<()>,
}

struct PooledConnection {
    connection: IdleConnection,
    since: Instant,
}

impl PooledConnection {
    fn may_be_used(&mut self) -> bool {
        self.since.elapsed() < IDLE_TIMEOUT && self.connection.is_idle()
    }
}

/// A connection without a request.
enum IdleConnection {
    /// A connection with hyper's state and buffers.
    Hyper(Connection),
    /// A socket without them.
    Socket(Io),
}

impl IdleConnection {
    fn is_idle(&mut self) -> bool {
        match self {
            Self::Hyper(connection) => connection.is_idle(),
            Self::Socket(io) => connection::is_idle(io),
        }
    }
}

impl Pool {
    /// Takes a connection that was open a moment ago.
    pub(super) fn take(&self) -> Option<Connection> {
        loop {
            let mut waiting = self.idle.lock().pop()?;
            if !waiting.may_be_used() {
                continue;
            }
            match waiting.connection {
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
        let waiting = std::mem::take(&mut *self.idle.lock());
        let mut kept: Vec<PooledConnection> =
            waiting.into_iter().filter_map(|mut idle| idle.may_be_used().then_some(idle)).collect();
        let mut idle = self.idle.lock();
        // Connections returned in the meantime were used last.
        kept.append(&mut idle);
        *idle = kept;
    }

    /// Returns a connection whose response was received completely.
    pub(super) fn give_back(self: &Arc<Self>, connection: Connection) {
        self.keep(IdleConnection::Hyper(connection));
    }

    /// Returns the socket of a connection that was taken from hyper.
    pub(super) fn give_back_socket(self: &Arc<Self>, io: Io) {
        self.keep(IdleConnection::Socket(io));
    }

    fn keep(self: &Arc<Self>, mut connection: IdleConnection) {
        if !connection.is_idle() {
            return;
        }
        let mut idle = self.idle.lock();
        if idle.len() >= MAX_IDLE {
            return;
        }
        idle.push(PooledConnection { connection, since: Instant::now() });
        drop(idle);
        self.sweeper.get_or_init(|| {
            let pool = Arc::downgrade(self);
            tokio::spawn(sweep(pool));
        });
    }
}

async fn sweep(pool: Weak<Pool>) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        let Some(pool) = pool.upgrade() else { return };
        pool.sweep();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("idle", &self.idle.lock().len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_connection_that_the_engine_may_be_closing_is_not_used_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let pool = Pool::default();
        for (idle, is_used) in [(Duration::ZERO, true), (Duration::from_millis(4500), false)] {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let connection = IdleConnection::Socket(Io::new(stream));
            pool.idle.lock().push(PooledConnection { connection, since: Instant::now() - idle });
            assert_eq!(pool.take().is_some(), is_used, "{idle:?}");
        }
    }
}
