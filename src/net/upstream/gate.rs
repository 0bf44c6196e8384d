//! A connection that is read up to the end of a head first: what follows waits until it is known who reads the body.
//!
//! The HTTP library reads heads, whole bodies and streams alike through its own buffers, which are too large for thousands
//! of streams that wait. So it is shown an answer's head and nothing else, unless that says at once that no events follow.
//! Where they do, the connection is taken from it, with all that it has not seen; otherwise it is let on.
//!
//! Limits: a head whose lines end without carriage returns is not noticed, and everything passes at once.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use memchr::memmem;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What ends a head.
const END: &[u8] = b"\r\n\r\n";

/// What the head of a stream of events says.
const EVENTS: &[u8] = b"text/event-stream";

/// Everything passes.
const OPEN: u8 = 0;
/// Everything up to the end of a head passes.
const HEAD: u8 = 1;
/// A head has passed, nothing else does.
const SHUT: u8 = 2;

/// What may pass; clones are of the same gate.
#[derive(Debug, Clone, Default)]
pub(super) struct Gate(Arc<State>);

#[derive(Debug, Default)]
struct State {
    passes: AtomicU8,
    /// Whether something that was to be written waits for the peer.
    is_held_up: AtomicBool,
}

impl Gate {
    /// Lets one head pass. Nobody is woken: whoever opens a gate polls what reads behind it.
    pub(super) fn let_head_pass(&self) {
        self.0.passes.store(HEAD, Relaxed);
    }

    /// Lets everything pass.
    pub(super) fn open(&self) {
        self.0.passes.store(OPEN, Relaxed);
    }

    /// Whether a head has passed and nothing else does.
    pub(super) fn is_shut(&self) -> bool {
        self.0.passes.load(Relaxed) == SHUT
    }

    /// Whether something that was to be written waits for the peer.
    pub(super) fn is_held_up(&self) -> bool {
        self.0.is_held_up.load(Relaxed)
    }
}

/// A connection behind a gate.
#[derive(Debug)]
pub(super) struct Gated<I> {
    stream: I,
    gate: Gate,
    /// Whether a part of the head has passed.
    is_begun: bool,
    /// How many bytes of a head's end were the last to pass.
    ended: usize,
    /// What arrived with a head and came after it.
    after: Bytes,
}

impl<I> Gated<I> {
    pub(super) fn new(stream: I) -> Self {
        Self { stream, gate: Gate::default(), is_begun: false, ended: 0, after: Bytes::new() }
    }

    pub(super) fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// The connection, and what was read of it and did not pass.
    pub(super) fn into_parts(self) -> (I, Bytes) {
        (self.stream, self.after)
    }

    /// Keeps what comes after a head; `start` is where the new bytes begin.
    fn shut_after_head(&mut self, read: &mut ReadBuf<'_>, start: usize) {
        let new = read.filled().get(start..).unwrap_or_default();
        let is_begun = std::mem::replace(&mut self.is_begun, true);
        let Some(length) = self.head_end(new) else { return };
        self.is_begun = false;
        let (head, after) = new.split_at(length);
        if !is_begun && memmem::find(head, EVENTS).is_none() {
            self.gate.open();
            return;
        }
        self.gate.0.passes.store(SHUT, Relaxed);
        self.after = [after, &self.after].concat().into();
        read.set_filled(start + length);
    }

    /// How many of these bytes belong to the head, where it ends in them.
    fn head_end(&mut self, new: &[u8]) -> Option<usize> {
        for (place, byte) in new.iter().enumerate() {
            self.ended = match END.get(self.ended) {
                Some(expected) if expected == byte => self.ended + 1,
                _ => usize::from(*byte == b'\r'),
            };
            if self.ended == END.len() {
                self.ended = 0;
                return Some(place + 1);
            }
        }
        None
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Gated<I> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, read: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let passes = self.gate.0.passes.load(Relaxed);
        if passes == SHUT {
            return Poll::Pending;
        }
        let start = read.filled().len();
        if self.after.is_empty() {
            std::task::ready!(Pin::new(&mut self.stream).poll_read(context, read))?;
        } else {
            let part = self.after.len().min(read.remaining());
            read.put_slice(&self.after.split_to(part));
        }
        if passes == HEAD {
            self.shut_after_head(read, start);
        }
        Poll::Ready(Ok(()))
    }
}

/// The library puts what it writes together itself, so lists of buffers need no way of their own.
impl<I: AsyncWrite + Unpin> AsyncWrite for Gated<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.gate.0.is_held_up.store(written.is_pending(), Relaxed);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

    /// What passes of what comes in parts of a size, once it is all there.
    async fn passes(gated: &mut Gated<tokio::io::DuplexStream>) -> String {
        let mut passed = Vec::new();
        loop {
            let mut more = [0; 256];
            tokio::select! {
                biased;
                count = gated.read(&mut more) => match count.unwrap() {
                    0 => break,
                    count => passed.extend_from_slice(&more[..count]),
                },
                () = std::future::ready(()), if gated.gate.is_shut() => break,
            }
        }
        String::from_utf8(passed).unwrap()
    }

    async fn gated(bytes: &str, part: usize) -> Gated<tokio::io::DuplexStream> {
        let (here, mut there) = duplex(part);
        let bytes = bytes.to_owned();
        tokio::spawn(async move { there.write_all(bytes.as_bytes()).await });
        let gated = Gated::new(here);
        gated.gate().let_head_pass();
        gated
    }

    #[tokio::test]
    async fn a_head_of_events_passes_alone_however_it_is_cut() {
        for part in 1..80 {
            let mut gated = gated(&format!("{HEAD}5\r\ndata:"), part).await;
            assert_eq!(passes(&mut gated).await, HEAD, "{part}");
            gated.gate().open();
            assert_eq!(passes(&mut gated).await, "5\r\ndata:", "{part}");
        }
    }

    #[tokio::test]
    async fn heads_pass_one_by_one() {
        let early = "HTTP/1.1 103 Early Hints\r\nx: text/event-stream\r\n\r\n";
        let mut gated = gated(&format!("{early}{HEAD}rest"), 4096).await;
        assert_eq!(passes(&mut gated).await, early);
        gated.gate().let_head_pass();
        assert_eq!(passes(&mut gated).await, HEAD);
        let (_, after) = gated.into_parts();
        assert_eq!(after, "rest");
    }

    #[tokio::test]
    async fn after_the_head_of_anything_else_everything_passes() {
        let whole = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(passes(&mut gated(whole, 4096).await).await, whole);
    }
}
