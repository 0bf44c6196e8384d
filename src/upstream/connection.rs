//! One HTTP/1.1 connection to the upstream.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use http::{Request, Response};
use http_body::Body;
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};

use super::{Failure, UpstreamUrl, url::Way};

/// What reads and writes the connection while it is polled.
type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// An open connection. Nothing happens on it unless it is polled.
pub(super) struct Connection<B> {
    sender: SendRequest<B>,
    driver: Driver,
}

/// A request that got no answer.
#[derive(Debug)]
pub(super) struct Unsent<B> {
    /// The request, where no byte of it was sent.
    pub(super) request: Option<Request<B>>,
    pub(super) error: hyper::Error,
}

impl<B> Connection<B>
where
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// Connects to a host and port, or to a socket.
    ///
    /// # Errors
    /// When the host's name does not resolve or nobody listens there.
    pub(super) async fn open(url: &UpstreamUrl) -> Result<Self, Failure> {
        if let Way::Unix(path) = url.way() {
            return Self::over(UnixStream::connect(path).await.map_err(Failure::Connect)?).await;
        }
        let stream = TcpStream::connect(url.address()).await.map_err(Failure::Connect)?;
        stream.set_nodelay(true).map_err(Failure::Connect)?;
        Self::over(stream).await
    }

    async fn over(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Self, Failure> {
        let mut builder = http1::Builder::new();
        // Head and body leave in one piece, which is cheaper than to tell the system of several.
        builder.writev(false);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(Failure::Http)?;
        Ok(Self { sender, driver: Box::pin(connection) })
    }

    /// Sends a request and waits for the head of its answer. The connection is given back unless it ended with it.
    ///
    /// # Errors
    /// When the connection ends before; with the request, where it was not sent.
    pub(super) async fn send(
        mut self,
        request: Request<B>,
    ) -> Result<(Response<Incoming>, Option<Self>), Box<Unsent<B>>> {
        let answered = {
            let mut sending = pin!(self.sender.try_send_request(request));
            let mut driver = Some(&mut self.driver);
            poll_fn(|cx| {
                if let Poll::Ready(answered) = sending.as_mut().poll(cx) {
                    return Poll::Ready((answered, driver.is_some()));
                }
                if driver.as_mut().is_some_and(|driver| driver.as_mut().poll(cx).is_ready()) {
                    driver = None;
                }
                sending.as_mut().poll(cx).map(|answered| (answered, driver.is_some()))
            })
            .await
        };
        match answered {
            (Ok(response), true) => Ok((response, Some(self))),
            (Ok(response), false) => Ok((response, None)),
            (Err(mut failed), _) => {
                Err(Box::new(Unsent { request: failed.take_message(), error: failed.into_error() }))
            }
        }
    }
}

impl<B> Connection<B> {
    /// Reads and writes what can be; ready when the connection has ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.driver.as_mut().poll(cx).map(|ended| {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection to the upstream ended");
            }
        })
    }

    /// Whether it is open, and idle.
    pub(super) fn is_idle(&mut self) -> bool {
        self.poll(&mut Context::from_waker(Waker::noop())).is_pending() && self.sender.is_ready()
    }
}

impl<B> fmt::Debug for Connection<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}
