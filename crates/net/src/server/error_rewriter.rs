//! The stream below hyper: replaces hyper's own error responses, writes informational responses and reports flushes.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    connection_stream::{ConnectionStream, poll_write_all},
    informational::Informational,
    lateness_tracker::LatenessTracker,
    write_watch::WriteWatch,
};

/// The responses that hyper makes itself when it cannot parse a request. A service's response never starts like this: there
/// `date` comes first.
const HYPER_ERRORS: [&[u8]; 3] = [
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n",
    b"HTTP/1.1 414 URI Too Long\r\nconnection: close\r\ncontent-length: 0\r\n",
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n",
];

/// A connection that replaces hyper's error responses with those of [`ConnectionOptions`](super::ConnectionOptions).
///
/// It also writes informational responses between hyper's writes, and informs the lateness tracker when all is written.
#[derive(Debug)]
pub(super) struct ErrorRewriter<I> {
    stream: I,
    bad_request: Option<fn() -> Vec<u8>>,
    /// What is left of the replacement that is being written.
    replacement: BytesMut,
    lateness: LatenessTracker,
    informational: Informational,
    /// Bytes that were read and are to be read again.
    unread: Bytes,
    writes: WriteWatch,
}

impl<I> ErrorRewriter<I> {
    pub(super) fn new(
        stream: I,
        bad_request: Option<fn() -> Vec<u8>>,
        lateness: LatenessTracker,
        informational: Informational,
    ) -> Self {
        Self {
            stream,
            bad_request,
            replacement: BytesMut::new(),
            lateness,
            informational,
            unread: Bytes::new(),
            writes: WriteWatch::default(),
        }
    }

    /// Puts bytes back in front of those that are not read yet.
    pub(super) fn rewind(&mut self, read: &[u8]) {
        if !read.is_empty() {
            // Copied: they may be a small slice of a large buffer, which would stay in memory with them.
            self.unread = [read, &self.unread].concat().into();
        }
    }

    pub(super) fn writes(&self) -> WriteWatch {
        self.writes.clone()
    }
}

impl<I: ConnectionStream> ConnectionStream for ErrorRewriter<I> {
    fn reset_when_dropped(&self) {
        self.stream.reset_when_dropped();
    }
}

impl<I: AsyncWrite + Unpin> ErrorRewriter<I> {
    /// Writes the replacement of an error response; `None` when `bytes` is none.
    fn replace(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Option<Poll<io::Result<usize>>> {
        let bad_request = self.bad_request?;
        if !HYPER_ERRORS.iter().any(|error| bytes.starts_with(error)) {
            return None;
        }
        if self.replacement.is_empty() {
            self.replacement = bad_request().as_slice().into();
        }
        let written = poll_write_all(&mut self.stream, context, &mut self.replacement);
        Some(written.map_ok(|()| bytes.len()))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for ErrorRewriter<I> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let count = self.unread.len().min(into.remaining());
            into.put_slice(&self.unread.split_to(count));
            if self.unread.is_empty() {
                // Releases the allocation, which an empty slice would hold.
                self.unread = Bytes::new();
            }
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for ErrorRewriter<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(written) = self.replace(context, bytes) {
            return self.writes.observe(written);
        }
        let this = &mut *self;
        let written = match this.writes.poll_paced(&mut this.stream, context, bytes) {
            Some(written) => written,
            None => Pin::new(&mut this.stream).poll_write(context, bytes),
        };
        this.writes.observe(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = match slices.first().and_then(|first| self.replace(context, first)) {
            Some(written) => written,
            None => Pin::new(&mut self.stream).poll_write_vectored(context, slices),
        };
        self.writes.observe(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes once it has written all that it holds, so this is between two messages.
        let this = &mut *self;
        ready!(this.informational.poll_write(&mut this.stream, context))?;
        let flushed = ready!(Pin::new(&mut this.stream).poll_flush(context));
        this.lateness.flushed();
        this.writes.flushed(context);
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
