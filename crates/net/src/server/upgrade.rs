//! Upgrades (HTTP/1.1): after a response with status 101 is written, the service receives the raw connection.

use std::{
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use base::lock::Lock;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
};

/// A connection after its upgrade; its bytes are not interpreted.
pub type RawConnection = Box<dyn RawStream>;

/// A stream of bytes in both directions.
pub trait RawStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<I: AsyncRead + AsyncWrite + Send + Unpin> RawStream for I {}

/// The receiver of an upgraded connection, put into the extensions of a response with status 101.
#[derive(Clone)]
pub struct Upgrade {
    receiver: Arc<Lock<Option<oneshot::Sender<RawConnection>>>>,
}

impl Upgrade {
    /// Builds an upgrade and the channel that receives its connection. The channel closes without one when the connection
    /// ends first.
    #[must_use]
    pub fn new() -> (Self, oneshot::Receiver<RawConnection>) {
        let (sender, receiver) = oneshot::channel();
        (Self { receiver: Arc::new(Lock::new(Some(sender))) }, receiver)
    }

    /// Passes the connection to the receiver.
    pub(super) fn complete(&self, connection: RawConnection) {
        let receiver = self.receiver.lock().take();
        if let Some(receiver) = receiver {
            let _dropped_by_service = receiver.send(connection);
        }
    }
}

/// A raw connection for which its server waits. It breaks when the server no longer does.
#[derive(Debug)]
pub(super) struct HeldConnection<I> {
    stream: I,
    /// Closed when the server waits no longer.
    waiting: oneshot::Sender<()>,
}

impl<I> HeldConnection<I> {
    /// Wraps a connection; the receiver fails when that is dropped.
    pub(super) fn new(stream: I) -> (Self, oneshot::Receiver<()>) {
        let (waiting, released) = oneshot::channel();
        (Self { stream, waiting }, released)
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for HeldConnection<I> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.waiting.poll_closed(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for HeldConnection<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.waiting.is_closed() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl fmt::Debug for Upgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upgrade").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum_core::body::Body;
    use http::{Request, Response, StatusCode};
    use hyper::body::Incoming;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    use super::*;
    use crate::server::{DrainReport, Peer, bind, run};

    /// Upgrades a connection to an echo, stops the server and does `then` with the client; returns the drain's report.
    async fn drained<F: Future<Output = ()>>(drain: Duration, then: impl FnOnce(TcpStream) -> F) -> DrainReport {
        let listener = bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let echo = |_: Request<Incoming>, _: Peer| async {
            let (upgrade, connection) = Upgrade::new();
            tokio::spawn(async move {
                let (mut read, mut write) = tokio::io::split(connection.await.unwrap());
                tokio::io::copy(&mut read, &mut write).await
            });
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert("upgrade", http::HeaderValue::from_static("echo"));
            response.extensions_mut().insert(upgrade);
            response
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let server = run(listener, echo, async { drop(stopped.await) }, drain);
        let using = async {
            let request = b"GET / HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
            client.write_all(request).await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                assert!(client.read_buf(&mut head).await.unwrap() > 0);
            }
            drop(stop);
            then(client).await;
        };
        tokio::join!(server, using).0
    }

    #[tokio::test]
    async fn an_upgraded_connection_is_waited_for() {
        let report = drained(Duration::from_secs(60), |mut client| async move {
            for _ in 0..3 {
                client.write_all(b"hello").await.unwrap();
                let mut echoed = [0; 5];
                client.read_exact(&mut echoed).await.unwrap();
                assert_eq!(&echoed, b"hello");
                tokio::task::yield_now().await;
            }
        });
        assert_eq!(report.await.cut, 0);
    }

    #[tokio::test]
    async fn an_upgraded_connection_is_cut_at_the_deadline() {
        let report = drained(Duration::from_millis(50), |mut client| async move {
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).await.unwrap();
            assert!(rest.is_empty());
        });
        assert_eq!(report.await.cut, 1);
    }
}
