//! What a connection is made of: a stream of bytes, which may be reset.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::server::TlsStream;

/// Writes all of these bytes, and takes out those that are written.
pub(super) fn poll_write_all<I: AsyncWrite + Unpin>(
    stream: &mut I,
    context: &mut Context<'_>,
    bytes: &mut BytesMut,
) -> Poll<io::Result<()>> {
    while !bytes.is_empty() {
        let written = ready!(Pin::new(&mut *stream).poll_write(context, bytes))?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        bytes.advance(written);
    }
    Poll::Ready(Ok(()))
}

/// A connection's stream of bytes.
pub(super) trait ConnectionStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Lets the connection be reset when it is dropped, where its kind can be.
    fn reset_when_dropped(&self);
}

impl ConnectionStream for TcpStream {
    fn reset_when_dropped(&self) {
        if let Err(error) = self.set_zero_linger() {
            tracing::debug!(%error, "a connection cannot be reset");
        }
    }
}

impl ConnectionStream for UnixStream {
    fn reset_when_dropped(&self) {}
}

impl<I: ConnectionStream> ConnectionStream for TlsStream<I> {
    fn reset_when_dropped(&self) {
        self.get_ref().0.reset_when_dropped();
    }
}
