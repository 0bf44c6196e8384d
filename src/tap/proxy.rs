//! Forwards requests, and decides which of them are recorded.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use serde::Deserialize;
use serde_json::json;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::time::{sleep, timeout};

use super::{
    Config, RecorderReport, TapError,
    amend::{Added, amend},
    assemble::Assembler,
    body::{Answer, Received, Relayed, Sent, Watched},
    event::StreamEvent,
    exchange::{Exchange, Room},
    learned::Learned,
    recorder::{self, RecorderConfig, RecorderThread},
    request::{Asked, RequestFacts, recorded_endpoint},
    restore::restore_answer,
};
use crate::{
    prompt::BlockHasher,
    trace::{Endpoint, Meta, Outcome, TokenizerId},
    upstream::{self, Upstream, UpstreamError},
};

/// The largest body of a request or a JSON answer that is looked at; a larger one passes as it comes.
const LARGEST_READ_BODY: usize = 64 << 20;

/// How often, and how far apart, the upstream is asked for its version while it is not up yet.
const VERSION_TRIES: u32 = 300;
const VERSION_PAUSE: Duration = Duration::from_secs(2);

/// The tap behind its listener.
#[derive(Debug)]
pub(super) struct Proxy {
    upstream: Upstream<Sent>,
    learned: Arc<Learned>,
    room: Arc<Room>,
    recorder: Mutex<Option<RecorderThread>>,
    keeps_bodies: bool,
    forwarded: AtomicU64,
}

impl Proxy {
    /// Creates the trace and starts its recorder. An upstream that is up already is asked for its version first.
    pub(super) async fn start(config: Config) -> Result<Self, TapError> {
        let learned = Arc::new(Learned::default());
        let upstream = Upstream::new(config.upstream.clone());
        if let Ok(Ok(Some(version))) = timeout(VERSION_PAUSE, version_of(&upstream)).await {
            learned.set_version(version);
        }
        let meta = Meta { vllm_version: learned.version(), ..meta(&config) };
        let keeps_bodies = config.tokenizer.is_some();
        let assembler = Assembler {
            hasher: BlockHasher::new(config.block_hash, config.block_size),
            record_tokens: config.record_tokens,
            tokenizer: config.tokenizer,
        };
        let recorder = RecorderConfig { path: config.trace_out, create: config.create, meta, assembler };
        let (handle, thread) = recorder::start(recorder, Arc::clone(&learned))?;
        Ok(Self {
            upstream,
            learned,
            room: Arc::new(Room::new(handle)),
            recorder: Mutex::new(Some(thread)),
            keeps_bodies,
            forwarded: AtomicU64::new(0),
        })
    }

    /// Asks an upstream that is not up yet for its version in the background, until it answers.
    pub(super) fn learn_version(&self) {
        if self.learned.version().is_some() {
            return;
        }
        let (upstream, learned) = (self.upstream.clone(), Arc::clone(&self.learned));
        tokio::spawn(async move {
            for _ in 0..VERSION_TRIES {
                match version_of(&upstream).await {
                    Ok(Some(version)) => return learned.set_version(version),
                    Ok(None) => return,
                    Err(_) => sleep(VERSION_PAUSE).await,
                }
            }
        });
    }

    /// Requests that are cut from now on are cut by us.
    pub(super) fn begin_cutting(&self) {
        self.room.begin_cutting();
    }

    /// Requests forwarded so far.
    pub(super) fn forwarded(&self) -> u64 {
        self.forwarded.load(Ordering::Relaxed)
    }

    /// Closes the trace; blocks until it is written.
    pub(super) fn finish(&self) -> Result<RecorderReport, TapError> {
        self.room.recorder.close();
        let thread = self.recorder.lock().unwrap_or_else(PoisonError::into_inner).take();
        thread.map_or_else(|| Ok(RecorderReport::default()), RecorderThread::join)
    }

    /// Answers one request with the upstream's answer.
    pub(super) async fn forward(&self, request: Request<Incoming>) -> Response<Answer> {
        self.forwarded.fetch_add(1, Ordering::Relaxed);
        match recorded_endpoint(request.method(), request.uri().path()) {
            Some(endpoint) => self.record(endpoint, request).await,
            None => match self.upstream.send(request.map(Relayed::untouched)).await {
                Ok(response) => passed(response),
                Err(error) => unreachable_upstream(&error),
            },
        }
    }

    async fn record(&self, endpoint: Endpoint, request: Request<Incoming>) -> Response<Answer> {
        let (parts, body) = request.into_parts();
        let body = match gather(body).await {
            Gathered::Whole(body) => body,
            Gathered::TooLarge(body) => return self.record_unread(endpoint, Request::from_parts(parts, body)).await,
            Gathered::Broken => return refusal(StatusCode::BAD_REQUEST, "the request's body ended early"),
        };
        let asked = Asked::read(&body);
        let facts = RequestFacts::new(endpoint, &parts.headers, &body, asked.as_ref());
        let amended = asked.as_ref().and_then(|asked| amend(&body, asked, &self.learned));
        let mut exchange = Exchange::begin(Arc::clone(&self.room), facts, self.keeps_bodies.then(|| body.clone()));
        let Some((amended, added)) = amended else {
            let response = self.send_as_is(parts, body).await;
            return self.answer(response, exchange, Added::default()).await;
        };
        let response = self.upstream.send(amended_request(&parts, amended)).await;
        let refused = response.as_ref().is_ok_and(|response| is_refusal(response.status()));
        if !refused {
            return self.answer(response, exchange, added).await;
        }
        exchange.restart();
        let response = self.send_as_is(parts, body).await;
        if response.as_ref().is_ok_and(|response| response.status().is_success()) && self.learned.refused_amendments() {
            tracing::info!("the upstream refuses return_token_ids: recording goes on without ids");
        }
        self.answer(response, exchange, Added::default()).await
    }

    async fn send_as_is(&self, parts: Parts, body: Bytes) -> Result<Response<Received>, UpstreamError> {
        self.upstream.send(Request::from_parts(parts, Relayed::whole(body))).await
    }

    async fn record_unread(&self, endpoint: Endpoint, request: Request<Sent>) -> Response<Answer> {
        let facts = RequestFacts::new(endpoint, request.headers(), &[], None);
        let exchange = Exchange::begin(Arc::clone(&self.room), facts, None);
        let response = self.upstream.send(request).await;
        self.answer(response, exchange, Added::default()).await
    }

    async fn answer(
        &self,
        response: Result<Response<Received>, UpstreamError>,
        mut exchange: Exchange,
        added: Added,
    ) -> Response<Answer> {
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                exchange.status(StatusCode::BAD_GATEWAY.as_u16());
                exchange.end(Outcome::UpstreamFailed);
                return unreachable_upstream(&error);
            }
        };
        exchange.status(response.status().as_u16());
        if response.body().is_end_stream() {
            exchange.unread();
            exchange.end_of_answer();
            return passed(response);
        }
        let readable = !response.headers().contains_key(header::CONTENT_ENCODING);
        match kind(response.headers()) {
            Kind::Events if readable => response
                .map(|body| Answer::Watched(Box::new(Watched::new(body, exchange, added, Arc::clone(&self.learned))))),
            Kind::Json if readable && response.status().is_success() => whole_answer(response, exchange, added).await,
            Kind::Events | Kind::Json | Kind::Other => {
                exchange.unread();
                response.map(|body| Answer::Timed(Relayed::untouched(body), exchange))
            }
        }
    }
}

fn meta(config: &Config) -> Meta {
    Meta {
        format: Some(crate::trace::FORMAT),
        block_size: Some(config.block_size),
        block_hash: Some(config.block_hash),
        tokenizer: config.tokenizer.as_ref().map(|tokenizer| TokenizerId {
            name: tokenizer.name().to_owned(),
            fingerprint: tokenizer.fingerprint().to_owned(),
        }),
        recorder: Some(concat!("vllm-vcr ", env!("CARGO_PKG_VERSION")).to_owned()),
        started_at: OffsetDateTime::now_utc().format(&Rfc3339).ok(),
        timing_zero: Some("http".to_owned()),
        ..Meta::default()
    }
}

/// The amended request. It asks for no compression, which would have to be undone to be read.
fn amended_request(parts: &Parts, body: Bytes) -> Request<Sent> {
    let mut parts = parts.clone();
    upstream::remove(&mut parts.headers, |name| name == header::ACCEPT_ENCODING);
    tell_length(&mut parts.headers, &body);
    Request::from_parts(parts, Relayed::whole(body))
}

/// Corrects the length where one is told, in its place among the headers.
fn tell_length(headers: &mut HeaderMap, body: &Bytes) {
    if let Some(length) = headers.get_mut(header::CONTENT_LENGTH) {
        *length = body.len().into();
    }
}

fn is_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY)
}

/// An answer that nothing looks at. The server writes `content-length: 0` last unless a body is there to be polled.
fn passed(response: Response<Received>) -> Response<Answer> {
    let tells_empty = response.headers().get(header::CONTENT_LENGTH).is_some_and(|length| length == "0");
    response.map(|body| if tells_empty { Answer::Empty } else { Answer::Passed(Relayed::untouched(body)) })
}

/// A JSON answer is read whole: its ids can only be taken out, and its length told, when all of it is there. One that is
/// too long for that passes with its ids.
async fn whole_answer(response: Response<Received>, mut exchange: Exchange, added: Added) -> Response<Answer> {
    let (mut parts, body) = response.into_parts();
    let body = match gather(body).await {
        Gathered::Whole(body) => body,
        Gathered::TooLarge(body) => {
            exchange.unread();
            return Response::from_parts(parts, Answer::Timed(body, exchange));
        }
        Gathered::Broken => {
            exchange.end(Outcome::UpstreamFailed);
            return refusal(StatusCode::BAD_GATEWAY, "the upstream broke off in the middle of its answer");
        }
    };
    let at = exchange.elapsed();
    let parsed = StreamEvent::read(&body);
    if let (Some(parsed), Some(findings)) = (&parsed, exchange.findings()) {
        findings.saw_answer(parsed, at);
    }
    let restored = parsed.as_ref().filter(|_| added.any()).and_then(|parsed| restore_answer(&body, parsed));
    drop(parsed);
    exchange.end_of_answer();
    let body = restored.map_or(body, |restored| {
        let restored = Bytes::from(restored);
        tell_length(&mut parts.headers, &restored);
        restored
    });
    Response::from_parts(parts, Answer::Passed(Relayed::whole(body)))
}

enum Kind {
    Events,
    Json,
    Other,
}

fn kind(headers: &HeaderMap) -> Kind {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match media_type.split(';').next().unwrap_or_default().trim() {
        "text/event-stream" => Kind::Events,
        "application/json" => Kind::Json,
        _ => Kind::Other,
    }
}

enum Gathered<R> {
    Whole(Bytes),
    TooLarge(Relayed<R>),
    Broken,
}

/// Receives a body, up to the limit.
async fn gather<R: Body<Data = Bytes> + Unpin>(mut body: R) -> Gathered<R> {
    if body.size_hint().lower() > LARGEST_READ_BODY as u64 {
        return Gathered::TooLarge(Relayed::untouched(body));
    }
    let mut gathered = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Gathered::Broken };
        if let Ok(data) = frame.into_data() {
            gathered.extend_from_slice(&data);
        }
        if gathered.len() > LARGEST_READ_BODY {
            return Gathered::TooLarge(Relayed::resumed(gathered.freeze(), body));
        }
    }
    Gathered::Whole(gathered.freeze())
}

fn unreachable_upstream(error: &UpstreamError) -> Response<Answer> {
    let what = if error.is_connect() { "cannot be reached" } else { "broke off without an answer" };
    tracing::warn!(%error, cause = error.cause(), "upstream failed");
    refusal(StatusCode::BAD_GATEWAY, &format!("vllm-vcr tap: the upstream {what}: {}", error.cause()))
}

/// An answer of the tap's own, in the shape of the engine's errors.
fn refusal(status: StatusCode, message: &str) -> Response<Answer> {
    let body = json!({"error": {"message": message, "type": "UpstreamError", "param": null, "code": status.as_u16()}});
    let mut response = Response::new(Answer::Passed(Relayed::whole(Bytes::from(body.to_string()))));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

/// The upstream's version; `None` when it answers but does not say.
async fn version_of(upstream: &Upstream<Sent>) -> Result<Option<String>, UpstreamError> {
    #[derive(Deserialize)]
    struct Version {
        version: String,
    }
    let mut request = Request::new(Relayed::whole(Bytes::new()));
    *request.method_mut() = Method::GET;
    *request.uri_mut() = http::Uri::from_static("/version");
    let response = upstream.send(request).await?;
    let body = http_body_util::Limited::new(response.into_body(), 64 << 10).collect().await;
    let version = body.ok().and_then(|body| serde_json::from_slice::<Version>(&body.to_bytes()).ok());
    Ok(version.map(|version| version.version))
}
