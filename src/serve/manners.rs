//! How a server behaves towards clients where HTTP leaves it open, so that it can behave like another one.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

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
const OWN_WORDS: [&[u8]; 2] = [
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n",
    b"HTTP/1.1 414 URI Too Long\r\nconnection: close\r\ncontent-length: 0\r\n",
];

/// A connection on which hyper's own refusals are said in other words.
#[derive(Debug)]
pub(super) struct Reworded<I> {
    stream: I,
    refusal: Option<fn() -> Vec<u8>>,
    /// Words that are not written yet, and how many of them are.
    words: Vec<u8>,
    written: usize,
}

impl<I> Reworded<I> {
    pub(super) fn new(stream: I, refusal: Option<fn() -> Vec<u8>>) -> Self {
        Self { stream, refusal, words: Vec::new(), written: 0 }
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
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Reworded<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, said: &[u8]) -> Poll<io::Result<usize>> {
        match self.refuse(context, said) {
            Some(written) => written,
            None => Pin::new(&mut self.stream).poll_write(context, said),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        said: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match said.first().and_then(|first| self.refuse(context, first)) {
            Some(written) => written,
            None => Pin::new(&mut self.stream).poll_write_vectored(context, said),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
