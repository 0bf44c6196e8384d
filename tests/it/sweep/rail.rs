//! A guardrail between a client and a model, with one weakness.

use std::{net::SocketAddr, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};
use vllm_vcr::{
    api::{Endpoint, answers::Answer},
    net::{
        upstream::UpstreamOptions,
        wire::{encode_event, value_text},
    },
    prove::{ReadEvents, StreamClient, answer_events},
    recording::cassette::SseEvent,
};

/// What the rail does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rail {
    /// Nothing: bytes pass.
    PassThrough,
    /// Answers are held until they are complete, and refused with an error where they have the canary.
    Holds,
    /// Events pass until the text so far has the canary.
    CarryOver,
    /// Every fifth event is sampled, and loses its text.
    Samples,
    /// Streams are not looked at.
    BodiesOnly,
    /// As one that holds, but a stream is refused with a bare text in an event.
    InvalidBlock,
}

/// The canary of all tests.
pub(super) const CANARY: &str = "sk-canary-4711";

/// A running rail; its upstream is known once it is sent.
pub(super) struct RunningRail {
    pub(super) address: SocketAddr,
    pub(super) upstream: watch::Sender<Option<SocketAddr>>,
}

#[derive(Debug, Clone)]
struct RailState {
    rail: Rail,
    upstream: watch::Receiver<Option<SocketAddr>>,
}

impl RailState {
    async fn upstream(&self) -> SocketAddr {
        self.upstream.clone().wait_for(Option::is_some).await.unwrap().unwrap()
    }
}

impl RunningRail {
    pub(super) async fn start(rail: Rail) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (upstream, known) = watch::channel(None);
        let state = RailState { rail, upstream: known };
        if rail == Rail::PassThrough {
            tokio::spawn(forward(listener, state));
        } else {
            tokio::spawn(serve(listener, state));
        }
        Self { address, upstream }
    }
}

async fn forward(listener: TcpListener, state: RailState) {
    while let Ok((mut client, _)) = listener.accept().await {
        let state = state.clone();
        tokio::spawn(async move {
            let mut server = TcpStream::connect(state.upstream().await).await?;
            client.set_nodelay(true)?;
            server.set_nodelay(true)?;
            copy_bidirectional(&mut client, &mut server).await
        });
    }
}

async fn serve(listener: TcpListener, state: RailState) {
    while let Ok((client, _)) = listener.accept().await {
        let state = state.clone();
        let service = service_fn(move |request| answer(state.clone(), request));
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(client), service));
    }
}

async fn answer(state: RailState, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let endpoint = Endpoint::of_path(request.uri().path());
    let body = request.into_body().collect().await?.to_bytes();
    let url = format!("http://{}", state.upstream().await).parse().unwrap();
    let client = StreamClient::new(url, &UpstreamOptions::default(), HeaderMap::new(), Duration::from_secs(30));
    let received = client.post(endpoint.path().unwrap(), body).await;
    let (status, body) = (received.status, received.body());
    let is_stream = received.headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"text/event"));
    let passed = match state.rail {
        Rail::PassThrough => Some(body),
        Rail::Holds => (!has_canary(endpoint, &body)).then_some(body),
        Rail::BodiesOnly => (is_stream || !has_canary(endpoint, &body)).then_some(body),
        Rail::CarryOver if is_stream => Some(carried(endpoint, &body)),
        Rail::CarryOver => (!has_canary(endpoint, &body)).then_some(body),
        Rail::Samples if is_stream => Some(sampled(&body)),
        Rail::Samples => Some(body),
        Rail::InvalidBlock if is_stream && has_canary(endpoint, &body) => Some("data: blocked\n\n".into()),
        Rail::InvalidBlock => (!has_canary(endpoint, &body)).then_some(body),
    };
    let blocked = json!({"type": "error", "error": {"type": "content_filter", "message": "the answer was blocked"}});
    let (status, is_stream, body) = match passed {
        Some(body) => (status, is_stream, body),
        None => (403, false, blocked.to_string().into()),
    };
    let kind = if is_stream { "text/event-stream" } else { "application/json" };
    Ok(Response::builder().status(status).header("content-type", kind).body(Full::new(body)).unwrap())
}

/// Whether an answer has the canary anywhere, as it is or in base64.
fn has_canary(endpoint: Endpoint, body: &Bytes) -> bool {
    let answer = match serde_json::from_slice::<Value>(body) {
        Ok(body) => Answer::read(endpoint, body),
        Err(_) => accumulated(endpoint, &ReadEvents::of(body).events),
    };
    let text = answer.map(|answer| answer.into_body().to_string()).unwrap_or_default();
    text.contains(CANARY) || text.contains(&BASE64_STANDARD.encode(CANARY))
}

fn accumulated(endpoint: Endpoint, events: &[SseEvent]) -> Option<Answer> {
    Answer::accumulate(endpoint, &answer_events(events))
}

fn encoded(event: &SseEvent) -> Bytes {
    encode_event(event.name.as_deref(), &value_text(&event.data))
}

/// Events until the text has the canary, then an error.
fn carried(endpoint: Endpoint, body: &Bytes) -> Bytes {
    let events = ReadEvents::of(body).events;
    let mut out = Vec::new();
    for (place, event) in events.iter().enumerate() {
        let text = accumulated(endpoint, &events[..=place]).map(|answer| answer.into_body().to_string());
        if text.is_some_and(|text| text.contains(CANARY)) {
            let error = json!({"error": {"type": "content_filter", "message": "the answer was blocked"}});
            out.extend_from_slice(format!("data: {error}\n\ndata: [DONE]\n\n").as_bytes());
            return out.into();
        }
        out.extend_from_slice(&encoded(event));
    }
    out.into()
}

/// Every fifth event without its text.
fn sampled(body: &Bytes) -> Bytes {
    let mut out = Vec::new();
    for (place, mut event) in ReadEvents::of(body).events.into_iter().enumerate() {
        if let Some(content) = event.data.pointer_mut("/choices/0/delta/content").filter(|_| place % 5 == 4) {
            *content = "".into();
        }
        out.extend_from_slice(&encoded(&event));
    }
    out.into()
}
