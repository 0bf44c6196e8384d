//! One HTTP/1.1 connection to the upstream.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderValue, Request, Response, StatusCode, Version, header};
use http_body::Body;
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
    OutgoingBody, UpstreamFailure, UpstreamUrl,
    chunked::Chunked,
    connector::Io,
    head_limit::{HeadLimit, HeadLimited},
    headers::named_by_connection,
    relay::{BodyObserver, Observed},
    url::Transport,
};
use crate::server::{BodyError, RequestBody};

/// An open connection. It reads and writes only while it is polled.
pub(super) struct Connection {
    sender: SendRequest<SentBody>,
    driver: Box<http1::Connection<TokioIo<HeadLimited<Io>>, SentBody>>,
    limit: HeadLimit,
    body_end: BodyEnd,
}

type SentBody = Observed<RequestBody, BodyEnd>;

/// The body of a response while it arrives.
pub(super) enum IncomingBody {
    /// A body that hyper reads; without connection where that has ended or is managed by hyper's client.
    Hyper(Incoming, Option<Connection>),
    /// A stream of events, and whether the connection closes after it.
    Events { events: Chunked<Io>, is_last: bool },
    /// The end was reached, or the body failed.
    Done,
}

/// A request without a response.
#[derive(Debug)]
pub(super) struct Unsent {
    /// The request, where nothing of it was sent.
    pub(super) request: Option<Request<OutgoingBody>>,
    pub(super) error: hyper::Error,
}

impl Connection {
    /// Connects over TCP or a Unix socket.
    /// Errors: when the host's name does not resolve or the connection is refused.
    pub(super) async fn open(url: &UpstreamUrl) -> Result<Self, UpstreamFailure> {
        let io = if let Transport::Unix(path) = url.transport() {
            Io::new(UnixStream::connect(path).await.map_err(UpstreamFailure::Connect)?)
        } else {
            let stream = TcpStream::connect(url.address()).await.map_err(UpstreamFailure::Connect)?;
            stream.set_nodelay(true).map_err(UpstreamFailure::Connect)?;
            Io::new(stream)
        };
        Self::handshake(io).await.map_err(UpstreamFailure::Http)
    }

    /// Gives an idle connection to hyper again; `None` where that fails.
    pub(super) fn reuse(io: Io) -> Option<Self> {
        Self::handshake(io).now_or_never()?.ok()
    }

    async fn handshake(io: Io) -> hyper::Result<Self> {
        let io = HeadLimited::new(io);
        let limit = io.limit();
        let mut builder = http1::Builder::new();
        // hyper copies head and body into one buffer, which is cheaper than a vectored write.
        builder.writev(false);
        let (sender, driver) = builder.handshake(TokioIo::new(io)).await?;
        Ok(Self { sender, driver: Box::new(driver), limit, body_end: BodyEnd::default() })
    }

    /// Sends a request and waits for the head of its response.
    /// Errors: when the connection ends before; with the request, where nothing of it was sent.
    pub(super) async fn send(self, request: Request<OutgoingBody>) -> Result<Response<IncomingBody>, Box<Unsent>> {
        let Self { mut sender, driver, limit, body_end } = self;
        limit.allow_head();
        body_end.0.store(request.body().is_end_stream(), Relaxed);
        let request = request.map(|body| Observed::new(body, body_end.clone()));
        let mut driver = Some(driver);
        let received = {
            let mut sending = pin!(sender.try_send_request(request));
            poll_fn(|cx| {
                loop {
                    if let Poll::Ready(received) = sending.as_mut().poll(cx) {
                        return Poll::Ready(received);
                    }
                    if driver.as_mut().is_some_and(|driver| Pin::new(&mut **driver).poll(cx).is_ready()) {
                        // It may have ended before it took the request, which it returns when it is dropped.
                        driver = None;
                    }
                    if let Poll::Ready(received) = sending.as_mut().poll(cx) {
                        return Poll::Ready(received);
                    }
                    if !limit.is_reached() {
                        return Poll::Pending;
                    }
                    // That was the head of an informational response.
                    limit.allow_head();
                }
            })
            .await
        };
        match (received, driver) {
            (Ok(response), Some(driver)) => Ok(Self { sender, driver, limit, body_end }.with_body(response)),
            (Ok(response), None) => Ok(response.map(|body| IncomingBody::Hyper(body, None))),
            (Err(mut failed), _) => {
                let request = failed.take_message().map(|request| request.map(Observed::into_body));
                Err(Box::new(Unsent { request, error: failed.into_error() }))
            }
        }
    }

    /// Selects the reader of a response's body: [`Chunked`] for a stream of events, hyper for all others.
    fn with_body(self, response: Response<Incoming>) -> Response<IncomingBody> {
        // hyper must have nothing left to write when the connection is taken from it.
        let is_sent = self.body_end.0.load(Relaxed) && !self.limit.is_write_pending();
        if !(is_sent && self.limit.is_reached() && is_chunked_events(&response)) {
            self.limit.allow_all();
            return response.map(|body| IncomingBody::Hyper(body, Some(self)));
        }
        let is_last = named_by_connection(response.headers()).any(|name| name == "close");
        let parts = self.driver.into_parts();
        let (io, after) = parts.io.into_inner().into_parts();
        let unread = if parts.read_buf.is_empty() { after } else { [&parts.read_buf[..], &after].concat().into() };
        let events = Chunked::new(io, unread);
        response.map(|_| IncomingBody::Events { events, is_last })
    }

    /// Reads and writes as far as possible; ready when the connection has ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut *self.driver).poll(cx).map(|ended| {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection to the upstream ended");
            }
        })
    }

    pub(super) fn is_idle(&mut self) -> bool {
        self.poll(&mut Context::from_waker(Waker::noop())).is_pending() && self.sender.is_ready()
    }
}

/// Returns whether a connection is open and has nothing to read.
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

/// Whether hyper has taken the whole body of the request.
#[derive(Debug, Clone, Default)]
struct BodyEnd(Arc<AtomicBool>);

impl BodyObserver for BodyEnd {
    fn data(&mut self, _: &Bytes) {}

    fn end(&mut self, error: Option<&BodyError>) {
        self.0.store(error.is_none(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::timeout,
    };

    use super::*;

    #[tokio::test]
    async fn a_request_that_a_closed_connection_did_not_take_comes_back() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let connection = Connection::reuse(Io::new(here)).unwrap();
        let response = async {
            let _request = there.read(&mut [0; 1024]).await.unwrap();
            there.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        };
        let (first, ()) = tokio::join!(connection.send(Request::new(OutgoingBody::whole("one".into()))), response);
        let IncomingBody::Hyper(_, Some(mut connection)) = first.unwrap().into_body() else { panic!("not kept") };
        assert!(connection.is_idle());
        drop(there);
        // The runtime learns of it, the connection is not polled.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let second =
            timeout(Duration::from_secs(10), connection.send(Request::new(OutgoingBody::whole("two".into())))).await;
        let unsent = second.expect("it fails at once").err().unwrap();
        assert!(unsent.request.is_some(), "{}", unsent.error);
    }
}
