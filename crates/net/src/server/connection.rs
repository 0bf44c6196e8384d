//! One connection: hyper reads requests and writes responses, [`events`](super::events) writes streams of events, which takes
//! far less memory while a stream waits than hyper does. How a connection ends before its response does is in [`ending`](super::ending).
//!
//! For a stream of events the connection is taken back from hyper before the head of the response is written, and hyper's
//! state, which is boxed, is freed; after the stream hyper gets the connection again. The bytes are the same either way.
//!
//! Limits: only HTTP/1.1 responses with status 200 and unknown length are taken; hyper writes all others.

use std::{
    convert::Infallible,
    error::Error,
    future::{Future, pending, poll_fn},
    io,
    pin::Pin,
    sync::Arc,
    task::Poll,
};

use axum_core::body::Body;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    ConnectionContext, Peer, SharedResponding, SharedService,
    connection_stream::ConnectionStream,
    ending::{ConnectionEnd, WrittenFirst},
    error_rewriter::ErrorRewriter,
    events::{self, StreamEnd},
    header_timeout::HeaderTimer,
    reserve::health_request,
    upgrade::{HeldConnection, Upgrade},
    write_watch::{SlowHead, WriteWait, WriteWatch},
};
use base::lock::Lock;

/// The first bytes of an HTTP/2 connection (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Clone)]
pub(super) struct ConnectionService {
    pub(super) service: SharedService,
    pub(super) client: Peer,
}

impl ConnectionService {
    fn call(&self, request: Request<Incoming>) -> SharedResponding {
        (self.service)(request, self.client.clone())
    }
}

/// Serves the requests of a connection until it ends.
/// Errors: when the connection breaks, or its client does not keep to HTTP.
pub(super) async fn serve<I: ConnectionStream>(
    stream: I,
    context: &ConnectionContext,
    service: ConnectionService,
    stopped: watch::Receiver<()>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let options = context.options;
    let mut wire =
        ErrorRewriter::new(stream, options.bad_request, context.lateness.clone(), context.informational.clone());
    if context.is_reserved {
        // Boxed: it is rare, and every connection would have memory for its reads.
        return Box::pin(reserved(wire, context, service, stopped)).await;
    }
    if context.http2 {
        let begins = timeout(options.header_timeout, begins_http2(&mut wire));
        if begins.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))? {
            return Box::pin(http2(wire, service, stopped)).await;
        }
    }
    let (mut stopped, builder) = (Some(stopped), http1_builder(context));
    loop {
        let Some((mut back, mut stream)) = Box::pin(http1(wire, &builder, service.clone(), &mut stopped)).await? else {
            return Ok(());
        };
        let close = stream.close || stopped.is_none();
        if close {
            stream.response.headers_mut().append(header::CONNECTION, HeaderValue::from_static("close"));
        }
        match events::send(&mut back, stream.response).await {
            StreamEnd::Whole(unread) if !close && !is_stopping(stopped.as_ref()) => {
                back.rewind(&unread);
                wire = back;
            }
            StreamEnd::Whole(_) => return Ok(back.shutdown().await?),
            StreamEnd::Broken(Some(end)) => {
                Box::pin(end.end(back)).await;
                return Ok(());
            }
            StreamEnd::Broken(None) | StreamEnd::Cut => return Ok(()),
        }
    }
}

/// Answers one request of `/health`, or refuses the request.
async fn reserved<I: ConnectionStream>(
    mut wire: ErrorRewriter<I>,
    context: &ConnectionContext,
    service: ConnectionService,
    stopped: watch::Receiver<()>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let Some(read) = health_request(&mut wire).await? else { return Ok(()) };
    wire.rewind(&read);
    let mut builder = http1_builder(context);
    builder.keep_alive(false);
    // A stream of events is none of the answers that have the reserve.
    let _stream = Box::pin(http1(wire, &builder, service, &mut Some(stopped))).await?;
    Ok(())
}

/// Builds hyper's HTTP/1 configuration.
fn http1_builder(context: &ConnectionContext) -> http1::Builder {
    let mut builder = http1::Builder::new();
    // hyper copies what it writes into one buffer: its list for vectored writes has 16 places, of which an event fills three.
    builder.writev(false).timer(HeaderTimer::default()).header_read_timeout(context.options.header_timeout);
    builder
}

/// Returns true if the server is shutting down.
fn is_stopping(stopped: Option<&watch::Receiver<()>>) -> bool {
    !stopped.is_some_and(|stopped| matches!(stopped.has_changed(), Ok(false)))
}

/// Returns true if the client speaks HTTP/2, and puts the bytes back.
async fn begins_http2<I: AsyncRead + Unpin>(wire: &mut ErrorRewriter<I>) -> io::Result<bool> {
    let mut read = Vec::new();
    while read.len() < PREFACE.len() && PREFACE.starts_with(&read) {
        let mut more = [0; PREFACE.len()];
        let left = more.get_mut(read.len()..).unwrap_or_default();
        let count = wire.read(left).await?;
        if count == 0 {
            break;
        }
        read.extend_from_slice(left.get(..count).unwrap_or_default());
    }
    let is_http2 = read == PREFACE;
    wire.rewind(&read);
    Ok(is_http2)
}

async fn http2<I: ConnectionStream>(
    wire: ErrorRewriter<I>,
    service: ConnectionService,
    mut stopped: watch::Receiver<()>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let writes = wire.writes();
    let of_streams = writes.clone();
    let service = service_fn(move |request| {
        let (response, writes) = (service.call(request), of_streams.clone());
        async move {
            let mut response = response.await;
            if let Some(end) = response.extensions_mut().remove::<ConnectionEnd>() {
                return Err(end);
            }
            if let Some(pace) = response.extensions_mut().remove::<SlowHead>() {
                sleep(pace.time(response.headers())).await;
            }
            Ok(response.map(|body| WrittenFirst::new(body, writes)))
        }
    });
    let connection = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(wire), service);
    tokio::pin!(connection);
    let served = poll_fn(|context| {
        // The bodies of its streams are polled by tasks of their own.
        writes.served_by(context);
        connection.as_mut().poll(context)
    });
    tokio::select! {
        ended = served => return Ok(ended?),
        _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
    }
    Ok(connection.await?)
}

/// Response that hyper must not send.
enum TakenResponse {
    Stream(EventStream),
    Nothing(ConnectionEnd),
}

/// A stream of events that hyper must not send.
struct EventStream {
    response: Response<Body>,
    /// The connection closes after it.
    close: bool,
}

/// Returns whether the client wants the connection closed after the response; `None` where a stream must stay with hyper: other
/// versions than HTTP/1.1, `HEAD`, and connection options beyond `close` and `keep-alive`.
fn wants_close(request: &Request<Incoming>) -> Option<bool> {
    if request.version() != Version::HTTP_11 || *request.method() == Method::HEAD {
        return None;
    }
    let mut close = false;
    for value in request.headers().get_all(header::CONNECTION) {
        for option in value.to_str().ok()?.split(',').map(str::trim) {
            if option.eq_ignore_ascii_case("close") {
                close = true;
            } else if !option.eq_ignore_ascii_case("keep-alive") {
                return None;
            }
        }
    }
    Some(close)
}

/// Shared storage for a value that the service leaves for the connection.
type SharedSlot<T> = Arc<Lock<Option<T>>>;

/// Serves requests with hyper until the connection ends or a stream of events begins; returns the latter with the connection.
/// `stopped` becomes `None` when the server is shutting down.
async fn http1<I: ConnectionStream>(
    wire: ErrorRewriter<I>,
    builder: &http1::Builder,
    service: ConnectionService,
    stopped: &mut Option<watch::Receiver<()>>,
) -> hyper::Result<Option<(ErrorRewriter<I>, EventStream)>> {
    let (taken, upgrades) = (SharedSlot::<TakenResponse>::default(), SharedSlot::<Upgrade>::default());
    let writes = wire.writes();
    let service = service_fn(intercept(service, Arc::clone(&taken), Arc::clone(&upgrades), writes.clone()));
    let mut connection = Box::new(builder.serve_connection(TokioIo::new(wire), service));
    let mut stop = Box::pin(async {
        match stopped.as_mut() {
            Some(stopped) => drop(stopped.changed().await),
            None => pending().await,
        }
    });
    let mut is_stopped = false;
    let ended = poll_fn(|context| {
        if !is_stopped && stop.as_mut().poll(context).is_ready() {
            is_stopped = true;
            Pin::new(&mut *connection).graceful_shutdown();
        }
        match Pin::new(&mut *connection).poll(context) {
            Poll::Ready(Err(error)) => match ConnectionEnd::of(&error) {
                Some(end) => return Poll::Ready(Ok(Some(TakenResponse::Nothing(end)))),
                None => return Poll::Ready(Err(error)),
            },
            Poll::Ready(Ok(())) => return Poll::Ready(Ok(None)),
            Poll::Pending => {}
        }
        // hyper may still have to write the previous response; this one comes after it.
        let taken = if writes.is_held_up() { None } else { taken.lock().take() };
        taken.map_or(Poll::Pending, |taken| Poll::Ready(Ok(Some(taken))))
    })
    .await;
    drop(stop);
    if is_stopped {
        *stopped = None;
    }
    let taken = ended?;
    let upgrade = upgrades.lock().take();
    if taken.is_none() && upgrade.is_none() {
        return Ok(None);
    }
    let parts = connection.into_parts();
    let mut wire = parts.io.into_inner();
    wire.rewind(&parts.read_buf);
    match (taken, upgrade) {
        (Some(TakenResponse::Stream(stream)), _) => return Ok(Some((wire, stream))),
        (Some(TakenResponse::Nothing(end)), _) => Box::pin(end.end(wire)).await,
        (None, Some(upgrade)) => {
            let (held, released) = HeldConnection::new(wire);
            upgrade.complete(Box::new(held));
            // It counts as a connection, and is cut as one, until its last byte.
            let _never_sent = released.await;
        }
        (None, None) => {}
    }
    Ok(None)
}

type Responding = Pin<Box<dyn Future<Output = Result<Response<WrittenFirst>, Infallible>> + Send>>;

/// Wraps a service so that streams of events, broken responses and upgrades are put into their slots.
///
/// hyper never gets what is taken: its future stays pending until the connection is taken back.
fn intercept(
    service: ConnectionService,
    slot: SharedSlot<TakenResponse>,
    upgrades: SharedSlot<Upgrade>,
    writes: WriteWatch,
) -> impl Fn(Request<Incoming>) -> Responding + Unpin {
    move |request: Request<Incoming>| {
        let close = wants_close(&request);
        let (response, slot, upgrades, writes) =
            (service.call(request), Arc::clone(&slot), Arc::clone(&upgrades), writes.clone());
        Box::pin(async move {
            let mut response = response.await;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                *upgrades.lock() = response.extensions_mut().remove();
            }
            if let Some(pace) = response.extensions_mut().remove::<SlowHead>() {
                let mut wait = WriteWait::default();
                poll_fn(|context| writes.poll_written(&mut wait, context)).await;
                writes.pace(pace);
            }
            let end = response.extensions_mut().remove::<ConnectionEnd>().map(TakenResponse::Nothing);
            let taken = match (end, close.filter(|_| is_event_stream(&response))) {
                (Some(end), _) => end,
                (None, Some(close)) => TakenResponse::Stream(EventStream { response, close }),
                (None, None) => return Ok(response.map(|body| WrittenFirst::new(body, writes))),
            };
            *slot.lock() = Some(taken);
            pending().await
        })
    }
}

fn is_event_stream(response: &Response<Body>) -> bool {
    let headers: &HeaderMap = response.headers();
    let is = |value: &HeaderValue| value.as_bytes().starts_with(b"text/event-stream");
    let has_framing = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION, header::TRAILER]
        .iter()
        .any(|name| headers.contains_key(name));
    response.status() == StatusCode::OK && headers.get(header::CONTENT_TYPE).is_some_and(is) && !has_framing
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;
    use crate::server::Listener;

    #[tokio::test]
    async fn a_connection_holds_no_room_for_what_is_rare() {
        let listener = crate::server::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let context = ConnectionContext::new(&Listener::from(listener), &Arc::default());
        let (_stop, stopped) = watch::channel(());
        let answered: SharedService =
            Arc::new(|_, _| Box::pin(async { Response::new(Body::empty()) }) as SharedResponding);
        let client = Peer::new(crate::server::NO_ADDRESS, &context, &stopped);
        let served = serve(stream, &context, ConnectionService { service: answered, client }, stopped);
        // A thousand and some, the client's channels among them; a buffer of the reserve alone would add as much.
        assert!(size_of_val(&served) <= 1_300, "{} bytes", size_of_val(&served));
    }
}
