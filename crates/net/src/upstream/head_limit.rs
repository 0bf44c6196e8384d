//! A connection that hyper reads up to the end of a response's head only.
//!
//! hyper reads heads, whole bodies and streams through its own buffers, which are too large for thousands of streams that
//! wait. So reading stops after a head that may announce events. Where it does, the connection is taken from hyper with the
//! bytes that hyper has not seen; otherwise the limit is lifted.
//!
//! Limits: the end of a head whose lines end without carriage returns is not found; nothing is held back then.

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

use crate::server::HeadEnd;

/// The media type in the head of a stream of events.
const EVENTS: &[u8] = b"text/event-stream";

/// All bytes are read.
const ALL: u8 = 0;
/// Bytes up to the end of a head are read.
const HEAD: u8 = 1;
/// The end of a head was reached; nothing is read.
const REACHED: u8 = 2;

/// The handle of a connection's limit; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct HeadLimit(Arc<HeadLimitState>);

#[derive(Debug, Default)]
struct HeadLimitState {
    mode: AtomicU8,
    /// The last write waits for the peer.
    is_write_pending: AtomicBool,
}

impl HeadLimit {
    /// Allows to read one head. No task is woken: the caller polls the reader next.
    pub(super) fn allow_head(&self) {
        self.0.mode.store(HEAD, Relaxed);
    }

    pub(super) fn allow_all(&self) {
        self.0.mode.store(ALL, Relaxed);
    }

    /// Returns whether a head was read and nothing more is.
    pub(super) fn is_reached(&self) -> bool {
        self.0.mode.load(Relaxed) == REACHED
    }

    /// Returns whether the last write waits for the peer.
    pub(super) fn is_write_pending(&self) -> bool {
        self.0.is_write_pending.load(Relaxed)
    }
}

#[derive(Debug)]
pub(super) struct HeadLimited<I> {
    stream: I,
    limit: HeadLimit,
    /// A part of the head was read.
    is_begun: bool,
    end: HeadEnd,
    /// Bytes that arrived after the head.
    after: Bytes,
}

impl<I> HeadLimited<I> {
    pub(super) fn new(stream: I) -> Self {
        Self { stream, limit: HeadLimit::default(), is_begun: false, end: HeadEnd::default(), after: Bytes::new() }
    }

    pub(super) fn limit(&self) -> HeadLimit {
        self.limit.clone()
    }

    /// Returns the connection and the bytes after the head that were not passed on.
    pub(super) fn into_parts(self) -> (I, Bytes) {
        (self.stream, self.after)
    }

    /// Takes the bytes after a head out of `read`; `start` is the index of the first new byte.
    fn stop_after_head(&mut self, read: &mut ReadBuf<'_>, start: usize) {
        let new = read.filled().get(start..).unwrap_or_default();
        let is_begun = std::mem::replace(&mut self.is_begun, true);
        let Some(length) = self.end.find(new) else { return };
        self.is_begun = false;
        let (head, after) = new.split_at(length);
        // Only a head that arrived whole can be searched; others stop, and the caller lifts the limit.
        if !is_begun && memmem::find(head, EVENTS).is_none() {
            self.limit.allow_all();
            return;
        }
        self.limit.0.mode.store(REACHED, Relaxed);
        self.after = [after, &self.after].concat().into();
        read.set_filled(start + length);
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for HeadLimited<I> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, read: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mode = self.limit.0.mode.load(Relaxed);
        if mode == REACHED {
            return Poll::Pending;
        }
        let start = read.filled().len();
        if self.after.is_empty() {
            std::task::ready!(Pin::new(&mut self.stream).poll_read(context, read))?;
        } else {
            let part = self.after.len().min(read.remaining());
            read.put_slice(&self.after.split_to(part));
        }
        if mode == HEAD {
            self.stop_after_head(read, start);
        }
        Poll::Ready(Ok(()))
    }
}

/// Vectored writes are not forwarded: hyper is configured to write single buffers.
impl<I: AsyncWrite + Unpin> AsyncWrite for HeadLimited<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.limit.0.is_write_pending.store(written.is_pending(), Relaxed);
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

    /// Reads up to the limit or the end.
    async fn readable(limited: &mut HeadLimited<tokio::io::DuplexStream>) -> String {
        let mut text = Vec::new();
        loop {
            let mut more = [0; 256];
            tokio::select! {
                biased;
                count = limited.read(&mut more) => match count.unwrap() {
                    0 => break,
                    count => text.extend_from_slice(&more[..count]),
                },
                () = std::future::ready(()), if limited.limit.is_reached() => break,
            }
        }
        String::from_utf8(text).unwrap()
    }

    async fn limited(bytes: &str, part: usize) -> HeadLimited<tokio::io::DuplexStream> {
        let (here, mut there) = duplex(part);
        let bytes = bytes.to_owned();
        tokio::spawn(async move { there.write_all(bytes.as_bytes()).await });
        let limited = HeadLimited::new(here);
        limited.limit().allow_head();
        limited
    }

    #[tokio::test]
    async fn reading_stops_after_a_head_of_events_however_it_is_cut() {
        for part in 1..80 {
            let mut limited = limited(&format!("{HEAD}5\r\ndata:"), part).await;
            assert_eq!(readable(&mut limited).await, HEAD, "{part}");
            limited.limit().allow_all();
            assert_eq!(readable(&mut limited).await, "5\r\ndata:", "{part}");
        }
    }

    #[tokio::test]
    async fn heads_are_read_one_by_one() {
        let early = "HTTP/1.1 103 Early Hints\r\nx: text/event-stream\r\n\r\n";
        let mut limited = limited(&format!("{early}{HEAD}rest"), 4096).await;
        assert_eq!(readable(&mut limited).await, early);
        limited.limit().allow_head();
        assert_eq!(readable(&mut limited).await, HEAD);
        let (_, after) = limited.into_parts();
        assert_eq!(after, "rest");
    }

    #[tokio::test]
    async fn other_responses_are_read_to_their_end() {
        let whole = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(readable(&mut limited(whole, 4096).await).await, whole);
    }
}
