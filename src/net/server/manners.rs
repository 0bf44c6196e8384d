//! How a server behaves towards clients where HTTP leaves it open, so that it can behave like another one.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{interim::Interim, outbox::Outbox};

/// The behaviour.
#[derive(Debug, Clone, Copy)]
pub struct Manners {
    /// How long a client may take for the head of a request, and may be idle before its next one.
    pub head_timeout: Duration,
    /// The whole answer, with its head, to what is no HTTP/1 request; `None` for an empty 400. It should close.
    pub refusal: Option<fn() -> Vec<u8>>,
}

impl Default for Manners {
    fn default() -> Self {
        Self { head_timeout: Duration::from_secs(30), refusal: None }
    }
}

/// What hyper says of its own accord to what it cannot read: no answer of a service starts like this, which all have a
/// date first.
const OWN_WORDS: [&[u8]; 3] = [
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n",
    b"HTTP/1.1 414 URI Too Long\r\nconnection: close\r\ncontent-length: 0\r\n",
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n",
];

/// A connection on which hyper's own refusals are said in other words and interim answers in between, and that tells its
/// outbox when all is written.
#[derive(Debug)]
pub(super) struct Reworded<I> {
    stream: I,
    refusal: Option<fn() -> Vec<u8>>,
    /// Words that are not written yet, and how many of them are.
    words: Vec<u8>,
    written: usize,
    outbox: Outbox,
    interim: Interim,
    /// What was read and is to be read again.
    unread: Bytes,
    held_up: HeldUp,
}

/// Whether the last write has to wait for the client; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldUp(Arc<AtomicBool>);

impl HeldUp {
    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl<I> Reworded<I> {
    pub(super) fn new(stream: I, refusal: Option<fn() -> Vec<u8>>, outbox: Outbox, interim: Interim) -> Self {
        Self {
            stream,
            refusal,
            words: Vec::new(),
            written: 0,
            outbox,
            interim,
            unread: Bytes::new(),
            held_up: HeldUp::default(),
        }
    }

    /// Has these bytes read again before any others. They are copied: they may be a small part of a large buffer, which
    /// would be kept with them.
    pub(super) fn rewind(&mut self, read: &[u8]) {
        if !read.is_empty() {
            self.unread = [read, &self.unread].concat().into();
        }
    }

    pub(super) fn held_up(&self) -> HeldUp {
        self.held_up.clone()
    }

    fn told<T>(&self, written: Poll<T>) -> Poll<T> {
        self.held_up.0.store(written.is_pending(), Ordering::Relaxed);
        written
    }
}

impl<I: AsyncWrite + Unpin> Reworded<I> {
    /// Writes other words for a refusal; `None` for anything else.
    fn refuse(&mut self, context: &mut Context<'_>, said: &[u8]) -> Option<Poll<io::Result<usize>>> {
        let refusal = self.refusal?;
        if !OWN_WORDS.iter().any(|words| said.starts_with(words)) {
            return None;
        }
        if self.words.is_empty() {
            self.words = refusal();
        }
        Some(self.say(context, said.len()))
    }

    fn say(&mut self, context: &mut Context<'_>, instead_of: usize) -> Poll<io::Result<usize>> {
        while let Some(rest) = self.words.get(self.written..).filter(|rest| !rest.is_empty()) {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, rest))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
        }
        (self.words, self.written) = (Vec::new(), 0);
        Poll::Ready(Ok(instead_of))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Reworded<I> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let count = self.unread.len().min(into.remaining());
            into.put_slice(&self.unread.split_to(count));
            if self.unread.is_empty() {
                self.unread = Bytes::new();
            }
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Reworded<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, said: &[u8]) -> Poll<io::Result<usize>> {
        let written = match self.refuse(context, said) {
            Some(written) => written,
            None => Pin::new(&mut self.stream).poll_write(context, said),
        };
        self.told(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        said: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = match said.first().and_then(|first| self.refuse(context, first)) {
            Some(written) => written,
            None => Pin::new(&mut self.stream).poll_write_vectored(context, said),
        };
        self.told(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes once it has written all that it holds.
        let this = &mut *self;
        ready!(this.interim.poll_write(&mut this.stream, context))?;
        let flushed = ready!(Pin::new(&mut this.stream).poll_flush(context));
        this.outbox.written();
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
