//! One HTTP/1.1 connection to the upstream.

use std::{
    fmt,
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use futures_util::FutureExt;
use http::{HeaderValue, Request, Response, StatusCode, Version, header};
use http_body::{Body, Frame, SizeHint};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, ReadBuf},
    net::{TcpStream, UnixStream},
};

use super::{
    Failure, OutgoingBody, UpstreamUrl,
    chunked::Chunked,
    connector::Io,
    gate::{Gate, Gated},
    headers::named_by_connection,
    url::Way,
};

/// An open connection. Nothing happens on it unless it is polled.
pub(super) struct Connection<B: OutgoingBody> {
    sender: SendRequest<Outgoing<B>>,
    driver: Box<http1::Connection<TokioIo<Gated<Io>>, Outgoing<B>>>,
    gate: Gate,
    has_ended: Arc<AtomicBool>,
}

/// The body of an answer as it comes.
pub(super) enum Coming<B: OutgoingBody> {
    /// Read by the library; without a connection that has ended or is not ours.
    Library(Incoming, Option<Connection<B>>),
    /// A stream of events; the connection may be used again after it.
    Events(Chunked<Io>),
    /// A stream of events; the connection ends with it.
    LastEvents(Chunked<Io>),
    /// There is nothing more.
    Over,
}

/// A request that got no answer.
#[derive(Debug)]
pub(super) struct Unsent<B> {
    /// The request, where no byte of it was sent.
    pub(super) request: Option<Request<B>>,
    pub(super) error: hyper::Error,
}

impl<B: OutgoingBody> Connection<B> {
    /// Connects to a host and port, or to a socket.
    ///
    /// # Errors
    /// When the host's name does not resolve or nobody listens there.
    pub(super) async fn open(url: &UpstreamUrl) -> Result<Self, Failure> {
        let io = if let Way::Unix(path) = url.way() {
            Io::Unix(UnixStream::connect(path).await.map_err(Failure::Connect)?)
        } else {
            let stream = TcpStream::connect(url.address()).await.map_err(Failure::Connect)?;
            stream.set_nodelay(true).map_err(Failure::Connect)?;
            Io::Tcp(stream)
        };
        Self::over(io).await.map_err(Failure::Http)
    }

    /// The connection that was idle; `None` where the library does not take it.
    pub(super) fn again(io: Io) -> Option<Self> {
        Self::over(io).now_or_never()?.ok()
    }

    async fn over(io: Io) -> hyper::Result<Self> {
        let io = Gated::new(io);
        let gate = io.gate();
        let mut builder = http1::Builder::new();
        // Head and body leave in one piece, which is cheaper than to tell the system of several.
        builder.writev(false);
        let (sender, driver) = builder.handshake(TokioIo::new(io)).await?;
        Ok(Self { sender, driver: Box::new(driver), gate, has_ended: Arc::default() })
    }

    /// Sends a request and waits for the head of its answer.
    ///
    /// # Errors
    /// When the connection ends before; with the request, where it was not sent.
    pub(super) async fn send(self, request: Request<B>) -> Result<Response<Coming<B>>, Box<Unsent<B>>> {
        let Self { mut sender, driver, gate, has_ended } = self;
        gate.let_head_pass();
        has_ended.store(request.body().is_end_stream(), Relaxed);
        let request = request.map(|body| Outgoing { body, has_ended: Arc::clone(&has_ended) });
        let mut driver = Some(driver);
        let answered = {
            let mut sending = pin!(sender.try_send_request(request));
            poll_fn(|cx| {
                loop {
                    if let Poll::Ready(answered) = sending.as_mut().poll(cx) {
                        return Poll::Ready(answered);
                    }
                    if driver.as_mut().is_some_and(|driver| Pin::new(&mut **driver).poll(cx).is_ready()) {
                        // It may have ended before it took the request, which it gives back when it is dropped.
                        driver = None;
                    }
                    if let Poll::Ready(answered) = sending.as_mut().poll(cx) {
                        return Poll::Ready(answered);
                    }
                    if !gate.is_shut() {
                        return Poll::Pending;
                    }
                    // It was the head of an interim answer.
                    gate.let_head_pass();
                }
            })
            .await
        };
        match (answered, driver) {
            (Ok(response), Some(driver)) => Ok(Self { sender, driver, gate, has_ended }.coming(response)),
            (Ok(response), None) => Ok(response.map(|body| Coming::Library(body, None))),
            (Err(mut failed), _) => {
                let request = failed.take_message().map(|request| request.map(|outgoing| outgoing.body));
                Err(Box::new(Unsent { request, error: failed.into_error() }))
            }
        }
    }

    /// Decides who reads an answer's body.
    fn coming(self, response: Response<Incoming>) -> Response<Coming<B>> {
        let is_sent = self.has_ended.load(Relaxed) && !self.gate.is_held_up();
        if !(is_sent && self.gate.is_shut() && is_chunked_events(&response)) {
            self.gate.open();
            return response.map(|body| Coming::Library(body, Some(self)));
        }
        let is_last = named_by_connection(response.headers()).any(|name| name == "close");
        let parts = self.driver.into_parts();
        let (io, after) = parts.io.into_inner().into_parts();
        let unread = if parts.read_buf.is_empty() { after } else { [&parts.read_buf[..], &after].concat().into() };
        let events = Chunked::new(io, unread);
        response.map(|_| if is_last { Coming::LastEvents(events) } else { Coming::Events(events) })
    }

    /// Reads and writes what can be; ready when the connection has ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut *self.driver).poll(cx).map(|ended| {
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

/// Whether a connection without a request is open, and nothing came over it.
pub(super) fn is_idle(io: &mut Io) -> bool {
    let mut byte = [0];
    let mut cx = Context::from_waker(Waker::noop());
    Pin::new(io).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
}

fn is_chunked_events(response: &Response<Incoming>) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    let headers = response.headers();
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.as_bytes().get(..EVENTS.len()));
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter().map(HeaderValue::as_bytes);
    response.status() == StatusCode::OK
        && response.version() == Version::HTTP_11
        && kind.is_some_and(|kind| kind.eq_ignore_ascii_case(EVENTS))
        && codings.next().is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked"))
        && codings.next().is_none()
}

impl<B: OutgoingBody> fmt::Debug for Connection<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl<B: OutgoingBody> fmt::Debug for Coming<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Library(..) => "Library",
            Self::Events(_) => "Events",
            Self::LastEvents(_) => "LastEvents",
            Self::Over => "Over",
        })
    }
}

/// The body of a request, which tells when it has been taken whole.
#[derive(Debug)]
pub(super) struct Outgoing<B> {
    body: B,
    has_ended: Arc<AtomicBool>,
}

impl<B: Body + Unpin> Body for Outgoing<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.has_ended.store(true, Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use http_body_util::Full;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::timeout,
    };

    use super::*;

    #[tokio::test]
    async fn a_request_that_a_closed_connection_did_not_take_comes_back() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let connection = Connection::<Full<Bytes>>::again(Io::Unix(here)).unwrap();
        let answer = async {
            let _request = there.read(&mut [0; 1024]).await.unwrap();
            there.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        };
        let (first, ()) = tokio::join!(connection.send(Request::new(Full::from("one"))), answer);
        let Coming::Library(_, Some(mut connection)) = first.unwrap().into_body() else { panic!("not kept") };
        assert!(connection.is_idle());
        drop(there);
        // The runtime learns of it, the connection does not.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let second = timeout(Duration::from_secs(10), connection.send(Request::new(Full::from("two")))).await;
        let unsent = second.expect("nobody answers").unwrap_err();
        assert!(unsent.request.is_some(), "{}", unsent.error);
    }
}
