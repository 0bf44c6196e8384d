//! Reserved file descriptors: where all others are in use, one client at a time is answered with them, if it asks for health.
//!
//! Others get a 503 at once. Without the reserve it cannot be seen from outside why the server takes no connection.

use std::{
    fs::File,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use base::lock::Lock;
use memchr::memmem;
use rustix::io::Errno;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

/// Time that a client has on the reserve, from its connection to the end of the answer.
pub(super) const RESERVED_FOR: Duration = Duration::from_secs(2);

/// Time that it has for the head of its request: others wait behind it, and what they sent is there when they are accepted.
const HEAD_WITHIN: Duration = Duration::from_millis(50);

/// Maximum number of bytes of a request's head.
const LONGEST_HEAD: usize = 8 << 10;

/// Number of descriptors: for the client's connection, and for one to an upstream that is asked.
const COUNT: usize = 2;

/// The answer to all but questions of health.
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 129\r\nretry-after: 1\r\n\
connection: close\r\n\r\n{\"error\":{\"message\":\"All files that this server may have open are in use.\",\"type\":\"service_unavailable\",\
\"param\":null,\"code\":503}}";

/// Connections that were refused so: descriptors are the process's, not a server's.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Connections of this process that got a 503 because all of its file descriptors were in use.
#[must_use]
pub fn refused_connections() -> u64 {
    REFUSED.load(Relaxed)
}

/// The descriptors, while they are not lent; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Reserve(Arc<Lock<ReservedFiles>>);

#[derive(Debug, Default)]
struct ReservedFiles {
    files: Vec<File>,
    is_lent: bool,
}

/// The right to the freed descriptors. Dropping it takes them back.
#[derive(Debug)]
pub(super) struct Lent(Reserve);

impl Reserve {
    pub(super) fn new() -> Self {
        let reserve = Self::default();
        reserve.0.lock().fill();
        reserve
    }

    /// Frees the descriptors for one connection; `None` where they are in use.
    pub(super) fn lend(&self, error: &io::Error) -> Option<Lent> {
        let is_exhausted =
            [Errno::MFILE, Errno::NFILE].iter().any(|it| error.raw_os_error() == Some(it.raw_os_error()));
        let mut state = self.0.lock();
        if !is_exhausted || state.is_lent {
            return None;
        }
        state.fill();
        if state.files.is_empty() {
            return None;
        }
        state.files.clear();
        state.is_lent = true;
        Some(Lent(self.clone()))
    }
}

impl ReservedFiles {
    /// Opens what is missing, as far as that is possible.
    fn fill(&mut self) {
        while self.files.len() < COUNT
            && let Ok(file) = File::open("/dev/null")
        {
            self.files.push(file);
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.is_lent = false;
        state.fill();
    }
}

/// Reads the head of a request; returns the bytes read where it asks for health, and answers it otherwise.
/// Errors: when the connection breaks, or the head takes too long.
pub(super) async fn health_request<I: AsyncRead + AsyncWrite + Unpin>(wire: &mut I) -> io::Result<Option<Vec<u8>>> {
    let mut read = Vec::with_capacity(LONGEST_HEAD / 8);
    let is_head = |read: &[u8]| [&b"\r\n\r\n"[..], b"\n\n"].iter().any(|end| memmem::find(read, end).is_some());
    let reading = async {
        while read.len() < LONGEST_HEAD && !is_head(&read) {
            if wire.read_buf(&mut read).await? == 0 {
                break;
            }
        }
        io::Result::Ok(())
    };
    timeout(HEAD_WITHIN, reading).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    if asks_for_health(&read) {
        return Ok(Some(read));
    }
    REFUSED.fetch_add(1, Relaxed);
    wire.write_all(BUSY).await?;
    wire.shutdown().await?;
    // A connection that is closed with bytes to read is reset, and the answer may be lost.
    let unread = async { while wire.read(&mut [0; 1024]).await.is_ok_and(|count| count > 0) {} };
    let _elapsed = timeout(RESERVED_FOR / 10, unread).await;
    Ok(None)
}

fn asks_for_health(request: &[u8]) -> bool {
    let line = request.split(|byte| *byte == b'\r' || *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let is_read = matches!(words.next(), Some(b"GET" | b"HEAD"));
    let path = words.next().and_then(|target| target.split(|byte| *byte == b'?').next()).unwrap_or_default();
    is_read && path.split(|byte| *byte == b'/').any(|part| part == b"health" || part == b"ping")
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[test]
    fn the_reserve_is_lent_once_and_for_a_full_table_only() {
        let reserve = Reserve::new();
        let full = io::Error::from_raw_os_error(Errno::MFILE.raw_os_error());
        assert!(reserve.lend(&io::ErrorKind::ConnectionAborted.into()).is_none());
        assert_eq!(reserve.0.lock().files.len(), COUNT);
        let lent = reserve.lend(&full).unwrap();
        assert!(reserve.0.lock().files.is_empty() && reserve.lend(&full).is_none());
        drop(lent);
        assert_eq!(reserve.0.lock().files.len(), COUNT);
        assert!(reserve.lend(&full).is_some());
    }

    #[tokio::test]
    async fn only_questions_of_health_are_served() {
        for (line, is_served) in [
            ("GET /health HTTP/1.1", true),
            ("HEAD /api/health/recording?a HTTP/1.1", true),
            ("GET /ping HTTP/1.1", true),
            ("POST /health HTTP/1.1", false),
            ("GET /v1/models?/health HTTP/1.1", false),
            ("PRI * HTTP/2.0", false),
        ] {
            let (mut server, mut client) = duplex(4096);
            client.write_all(format!("{line}\r\n\r\n").as_bytes()).await.unwrap();
            client.shutdown().await.unwrap();
            let refused = refused_connections();
            let read = health_request(&mut server).await.unwrap();
            assert_eq!(read.is_some(), is_served, "{line}");
            assert!(is_served || refused_connections() > refused, "{line}");
            drop(server);
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
            assert_eq!(body.map(str::len), (!is_served).then_some(129), "{answer}");
        }
    }
}
