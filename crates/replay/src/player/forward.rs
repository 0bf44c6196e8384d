//! Requests that go upstream. `play` forwards them here and copies their responses for the recorder, the client's bytes first and as
//! they came; the tap forwards them itself.

pub(crate) mod completion;

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{Extensions, Method, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tower_service::Service;

use crate::{
    account::{
        self, Admin, Ledger,
        http::{plain, put},
    },
    player::{
        CassettePlayer, Completed, Fork, ModeExceptions, PlayerConfig,
        incoming::{IncomingRequest, upstream_header},
        record::recorder::PendingExchange,
    },
};
use base::rate_limited_log::RateLimitedLog;
use net::{
    server::{BodyError, Informational, RequestBody, ResponseBody, media_type, whole_body},
    upstream::{self, BodyObserver, Observed, OutgoingBody, Relayed, UpstreamBody},
    wire::{Edits, is_unambiguous_path, percent_decoded, span_in},
};
use recording::{
    canonical::{boundary, upstream_suffix},
    capture::Capture,
    exchange::{ExchangeRequest, outcome_of},
    trace::Outcome,
};

/// Warnings of upstreams that did not answer.
static UNREACHABLE: RateLimitedLog = RateLimitedLog::new();

/// A request that goes upstream.
#[derive(Debug)]
pub struct Forward {
    /// It, its body read.
    pub request: Request<RequestBody>,
    /// The exchange that it begins, where it is recorded.
    pub pending: Option<PendingExchange>,
}

impl CassettePlayer {
    /// A request that goes upstream, and is recorded or compared.
    pub(super) fn begin_forward(&self, incoming: IncomingRequest, is_recorded: bool) -> Forward {
        self.in_session(&incoming.session, |state| state.counts.forwarded += 1);
        let recorder = self.recorder.as_ref().filter(|_| is_recorded);
        let pending = recorder.map(|recorder| recorder.begin(request_of(&incoming), incoming.at));
        let pending = pending.or_else(|| self.begin_comparison(&incoming));
        let incoming = match &self.config.selection {
            ModeExceptions::Fork(Fork { model: Some(model), .. }) => with_model(incoming, model),
            _ => incoming,
        };
        let mut request = incoming.into_request();
        // A request whose body was read is answered before another protocol could begin; a compressed response could not be read.
        upstream::remove(request.headers_mut(), |name| {
            name == header::UPGRADE || (name == header::ACCEPT_ENCODING && pending.is_some())
        });
        Forward { request, pending }
    }

    /// Answers a request with the response of the upstream.
    pub async fn forward(&self, Forward { mut request, pending }: Forward) -> Response<ResponseBody> {
        let Some(upstream) = &self.upstream else {
            return plain(StatusCode::BAD_GATEWAY, "there is no upstream");
        };
        if let Ok(Some(name)) = account::upstream_of(request.extensions()) {
            let message = format!(
                "only `vllm-vcr tap` reaches upstreams by name (--upstream {name}=URL); this server has one without a name"
            );
            pending.into_iter().for_each(drop);
            return plain(StatusCode::BAD_GATEWAY, &message);
        }
        let informational = request.extensions_mut().remove::<Informational>().unwrap_or_default();
        // The server has no count of them; its log has them.
        let respond = |request: Request<RequestBody>| upstream.send(request.map(OutgoingBody::from));
        match upstream::pass_informational(request, &informational, || {}, respond).await {
            Ok(response) => copied(response, pending),
            Err(error) => {
                pending.into_iter().for_each(|pending| pending.unanswered(&error));
                if let Some(held) = UNREACHABLE.due() {
                    tracing::warn!(%error, cause = error.cause(), held, "upstream failed");
                }
                let mut response = error.response().map(whole_body);
                put(response.headers_mut(), "x-vcr-miss", "upstream_unreachable");
                response
            }
        }
    }

    /// Answers `/vcr/…` where that is served beside everything else.
    ///
    /// # Errors
    /// With any other request.
    pub async fn administer(
        self: &Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, Box<Request<Incoming>>> {
        let Admin::Here(access) = &self.config.admin else { return Err(Box::new(request)) };
        if !request.uri().path().starts_with("/vcr/") {
            return Err(Box::new(request));
        }
        let mut router = account::router(Arc::clone(self) as Arc<dyn Ledger>, access.clone());
        let response = router.call(request).await.unwrap_or_else(|never: Infallible| match never {});
        Ok(response.map(|body| body.map_err(BodyError::broken).boxed_unsync()))
    }

    /// Returns whether a request that the player passes on may go upstream. A path that the upstream may read as another one stays here
    /// where not everything may leave, and one that is frozen does too.
    pub fn may_relay(&self, method: &Method, path: &str, extensions: &Extensions) -> bool {
        let PlayerConfig { mode, selection, .. } = &self.config;
        let (is_clear, plain) = (is_unambiguous_path(path), percent_decoded(path));
        let looks = [Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
        let is_of_api = plain.to_ascii_lowercase().starts_with("/v1/");
        let upstream = upstream_suffix(upstream_header(extensions).as_slice());
        if selection.freezes(&(boundary(method.as_str(), &plain, &Value::Null) + &upstream), path) {
            return false;
        }
        match mode.records() {
            true => is_clear || *selection == ModeExceptions::None,
            false => looks && is_clear && !is_of_api,
        }
    }

    /// A request that the player passed on, where it may go upstream: where only records answer, nothing leaves but the question how
    /// the server does.
    ///
    /// # Errors
    /// With the response, where it may not.
    pub fn relayed(&self, request: Request<RequestBody>) -> Result<Request<RequestBody>, Box<Response<ResponseBody>>> {
        if self.may_relay(request.method(), request.uri().path(), request.extensions()) {
            return Ok(request);
        }
        Err(Box::new(plain(StatusCode::NOT_FOUND, "this was not recorded, and it does not go upstream")))
    }
}

#[derive(Deserialize)]
struct ModelField<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
}

/// The same request for another model, where its body names one; every other byte stays.
fn with_model(mut incoming: IncomingRequest, model: &str) -> IncomingRequest {
    let read = serde_json::from_slice::<ModelField<'_>>(&incoming.bytes).ok().and_then(|read| read.model);
    let Some(span) = read.and_then(|named| span_in(&incoming.bytes, named.get().as_bytes())) else {
        if incoming.body.get("model").is_some() || incoming.raw.is_some() {
            tracing::warn!("{} {}: its model stays: its body is no plain JSON", incoming.parts.method, incoming.path());
        }
        return incoming;
    };
    let mut edits = Edits::default();
    edits.replace(span, Value::from(model).to_string());
    incoming.bytes = edits.apply(&incoming.bytes).into();
    if let Some(length) = incoming.parts.headers.get_mut(header::CONTENT_LENGTH) {
        *length = incoming.bytes.len().into();
    }
    incoming
}

pub(super) fn request_of(incoming: &IncomingRequest) -> ExchangeRequest {
    ExchangeRequest {
        method: incoming.parts.method.as_str().to_owned(),
        target: incoming.target().to_owned(),
        headers: incoming.counted.clone(),
        body: incoming.body.clone(),
        raw: incoming.raw.clone(),
        size: incoming.bytes.len(),
        is_retry: incoming.is_retry(),
        session: incoming.session.clone(),
    }
}

/// Passes the response on, and copies it for the recorder where its exchange is recorded.
fn copied(response: Response<UpstreamBody>, pending: Option<PendingExchange>) -> Response<ResponseBody> {
    let is_readable = !response.headers().contains_key(header::CONTENT_ENCODING);
    let Some(mut pending) = pending.filter(|pending| is_readable || pending.give_up("came compressed")) else {
        return response.map(|body| Relayed::untouched(body).boxed_unsync());
    };
    pending.status = response.status().as_u16();
    let mut capture = pending.capture();
    capture.headers(response.headers());
    if media_type(response.headers()).starts_with("text/event-stream") {
        capture = capture.splitting();
    }
    let is_empty = response.body().is_end_stream();
    let completions = pending.completions();
    let mut recording = ResponseRecording(Some(Box::new((pending, capture))));
    if is_empty {
        // The end of an empty body is never polled.
        recording.end(None);
    }
    response.map(|body| {
        Completed::new(Observed::new(Relayed::untouched(body), recording), Some(completions)).boxed_unsync()
    })
}

/// The observer of a response that is recorded; empty once the exchange has ended.
#[derive(Debug)]
struct ResponseRecording(Option<Box<(PendingExchange, Capture)>>);

impl ResponseRecording {
    fn submit(&mut self, outcome: Outcome) {
        if let Some(recording) = self.0.take() {
            let (pending, capture) = *recording;
            pending.end(capture, Vec::new(), outcome);
        }
    }
}

impl BodyObserver for ResponseRecording {
    fn data(&mut self, bytes: &Bytes) {
        if let Some((pending, capture)) = self.0.as_deref_mut() {
            capture.received(bytes, pending.elapsed());
        }
    }

    fn end(&mut self, error: Option<&BodyError>) {
        self.submit(error.map_or(Outcome::Finished, outcome_of));
    }

    fn has_all(&self) -> bool {
        self.0.as_ref().is_some_and(|recording| recording.1.is_whole_stream())
    }
}

impl Drop for ResponseRecording {
    fn drop(&mut self) {
        let is_whole = self.0.as_ref().is_some_and(|recording| recording.1.is_whole_stream());
        self.submit(if is_whole { Outcome::Finished } else { Outcome::ClientGone });
    }
}
