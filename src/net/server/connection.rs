//! One connection: requests and answers by hyper, and streams of events by [`events`](super::events), which holds far less
//! memory while a stream waits than hyper does.
//!
//! What hyper needs is boxed, and gone while a stream is on its way.
//!
//! For a stream of events hyper is asked for the connection back before the answer's head is written; when the stream is
//! over, hyper gets it again for the next request. The bytes are the same either way.
//!
//! Limits: only HTTP/1.1 answers with status 200 whose length is not known are taken; the others stay hyper's.

use std::{
    convert::Infallible,
    error::Error,
    future::{Future, pending, poll_fn},
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body::Body;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::watch,
    time::timeout,
};

use super::{
    Way,
    alarm::Alarm,
    events::{self, Sent},
    handover::Handover,
    listener::Versions,
    manners::Reworded,
};

/// What a client of HTTP/2 says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a connection is answered with.
pub(super) trait Service<B>: Fn(Request<Incoming>) -> Self::Answering + Clone + Send + Unpin + 'static {
    type Answering: Future<Output = Response<B>> + Send + 'static;
}

impl<S, F, B> Service<B> for S
where
    S: Fn(Request<Incoming>) -> F + Clone + Send + Unpin + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
{
    type Answering = F;
}

/// Answers what comes over a connection until it ends.
///
/// # Errors
/// When it ended early.
pub(super) async fn answer<I, S, B>(
    stream: I,
    way: &Way,
    service: S,
    stopped: watch::Receiver<()>,
) -> Result<(), Box<dyn Error + Send + Sync>>
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: Service<B>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut wire = Reworded::new(stream, way.manners.refusal, way.outbox.clone(), way.interim.clone());
    if way.versions == Versions::Both {
        let begins = timeout(way.manners.head_timeout, begins_http2(&mut wire));
        if begins.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))? {
            return Box::pin(http2(wire, service, stopped)).await;
        }
    }
    let (mut stopped, builder) = (Some(stopped), http1_builder(way));
    loop {
        let Some((mut back, mut taken)) = Box::pin(http1(wire, &builder, service.clone(), &mut stopped)).await? else {
            return Ok(());
        };
        if stopped.is_none() {
            taken.after = After::Close;
        }
        if taken.after == After::Close {
            taken.response.headers_mut().append(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let after = taken.after;
        match events::send(&mut back, taken.response).await {
            Sent::Whole(unread) if after == After::Keep && !is_over(stopped.as_ref()) => {
                back.rewind(&unread);
                wire = back;
            }
            Sent::Whole(_) => return Ok(back.shutdown().await?),
            Sent::Cut => return Ok(()),
        }
    }
}

/// How hyper reads and answers the requests of one connection.
fn http1_builder(way: &Way) -> http1::Builder {
    let mut builder = http1::Builder::new();
    // What is written is put together first: a list of what to write would hold 16 pieces, of which an event has three.
    builder.writev(false).timer(Alarm::default()).header_read_timeout(way.manners.head_timeout);
    builder
}

/// Whether the server was told to stop.
fn is_over(stopped: Option<&watch::Receiver<()>>) -> bool {
    !stopped.is_some_and(|stopped| matches!(stopped.has_changed(), Ok(false)))
}

/// Whether the client speaks HTTP/2. Nothing that was read is lost.
async fn begins_http2<I: AsyncRead + Unpin>(wire: &mut Reworded<I>) -> io::Result<bool> {
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

async fn http2<I, S, B>(
    wire: Reworded<I>,
    service: S,
    mut stopped: watch::Receiver<()>,
) -> Result<(), Box<dyn Error + Send + Sync>>
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: Service<B>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let service = service_fn(move |request| {
        let response = service(request);
        async move { Ok::<_, Infallible>(response.await) }
    });
    let connection = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(wire), service);
    tokio::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return Ok(ended?),
        _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
    }
    Ok(connection.await?)
}

/// A stream of events that hyper is not to send.
struct Taken<B> {
    response: Response<B>,
    after: After,
}

/// What becomes of the connection after a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Keep,
    Close,
}

impl After {
    /// What the request asked for; `None` where it asked for something else that hyper knows.
    fn of(request: &Request<Incoming>) -> Option<Self> {
        if request.version() != Version::HTTP_11 || *request.method() == Method::HEAD {
            return None;
        }
        let mut after = Self::Keep;
        for value in request.headers().get_all(header::CONNECTION) {
            for token in value.to_str().ok()?.split(',').map(str::trim) {
                if token.eq_ignore_ascii_case("close") {
                    after = Self::Close;
                } else if !token.eq_ignore_ascii_case("keep-alive") {
                    return None;
                }
            }
        }
        Some(after)
    }
}

/// Where a stream is put that is taken.
type Tray<B> = Arc<Mutex<Option<Taken<B>>>>;

/// Lets hyper answer until the connection ends or is taken back for a stream of events. `stopped` is taken out once it
/// has happened.
async fn http1<I, S, B>(
    wire: Reworded<I>,
    builder: &http1::Builder,
    service: S,
    stopped: &mut Option<watch::Receiver<()>>,
) -> hyper::Result<Option<(Reworded<I>, Taken<B>)>>
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: Service<B>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let (tray, handed) = (Tray::default(), Arc::<Mutex<Option<Handover>>>::default());
    let service = service_fn(taking(service, Arc::clone(&tray), Arc::clone(&handed)));
    let is_held_up = wire.held_up();
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
        if let Poll::Ready(ended) = Pin::new(&mut *connection).poll(context) {
            return Poll::Ready(ended.map(|()| None));
        }
        // What hyper still has to write comes first.
        let taken = if is_held_up.get() { None } else { lock(&tray).take() };
        taken.map_or(Poll::Pending, |taken| Poll::Ready(Ok(Some(taken))))
    })
    .await;
    drop(stop);
    if is_stopped {
        *stopped = None;
    }
    let taken = ended?;
    let handover = handed.lock().unwrap_or_else(PoisonError::into_inner).take();
    if taken.is_none() && handover.is_none() {
        return Ok(None);
    }
    let parts = connection.into_parts();
    let mut wire = parts.io.into_inner();
    wire.rewind(&parts.read_buf);
    match (taken, handover) {
        (Some(taken), _) => return Ok(Some((wire, taken))),
        (None, Some(handover)) => handover.give(Box::new(wire)),
        (None, None) => {}
    }
    Ok(None)
}

fn lock<B>(tray: &Tray<B>) -> MutexGuard<'_, Option<Taken<B>>> {
    tray.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What hyper does with a request.
type Answering<B> = Pin<Box<dyn Future<Output = Result<Response<B>, Infallible>> + Send>>;

/// A service that never answers what is to be taken.
fn taking<S, B>(
    service: S,
    tray: Tray<B>,
    handed: Arc<Mutex<Option<Handover>>>,
) -> impl Fn(Request<Incoming>) -> Answering<B> + Unpin
where
    S: Service<B>,
    B: Send + 'static,
{
    move |request: Request<Incoming>| {
        let after = After::of(&request);
        let (response, tray, handed) = (service(request), Arc::clone(&tray), Arc::clone(&handed));
        Box::pin(async move {
            let mut response = response.await;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                *handed.lock().unwrap_or_else(PoisonError::into_inner) = response.extensions_mut().remove();
            }
            match after.filter(|_| is_event_stream(&response)) {
                Some(after) => {
                    *lock(&tray) = Some(Taken { response, after });
                    pending().await
                }
                None => Ok(response),
            }
        })
    }
}

fn is_event_stream<B>(response: &Response<B>) -> bool {
    let headers: &HeaderMap = response.headers();
    let is = |value: &HeaderValue| value.as_bytes().starts_with(b"text/event-stream");
    let has_framing = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION, header::TRAILER]
        .iter()
        .any(|name| headers.contains_key(name));
    response.status() == StatusCode::OK && headers.get(header::CONTENT_TYPE).is_some_and(is) && !has_framing
}
