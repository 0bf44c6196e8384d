//! The layer: which requests get a fault, and what of it is not in a body.

use std::{convert::Infallible, future::pending, mem, sync::Arc};

use axum::{body::Body, extract::Request, response::Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};
use serde_json::Value;
use tokio::time::sleep;
use tower::Service;

use super::{
    observed::{ObservedSide, ServedBody, SharedResponse, note_status},
    pages::MetricsPages,
    quota::{MeteredBody, PromptTokens},
    server::ServerFaults,
};
use crate::{
    api::{ApiError, Endpoint},
    faults::{
        ChosenFault, Fault, FaultKind, FaultRequest, FaultSet, FaultedBody, QuotaTicket, RefusalContext, RefusalFault,
        StreamFault,
    },
    net::server::{ConnectionEnd, NotWhole, media_type, receive_whole},
    play::{
        http::{body_of_type, events_of_type},
        middleware::{Intercept, called},
    },
    recording::redaction::RedactionRules,
    replay::{
        account,
        delivery::RecordedContent,
        player::{SemanticResponse, semantic_response},
    },
};

/// Largest page of metrics.
const LARGEST_PAGE: usize = 64 << 20;

/// In the extensions of a response: the faults that were chosen for its request.
#[derive(Debug, Clone)]
pub(in crate::play) struct FaultsOf(pub(in crate::play) Vec<Arc<Fault>>);

/// Faults before a service.
#[derive(Debug, Clone)]
pub(in crate::play) struct FaultLayer {
    pub(in crate::play) faults: Arc<ServerFaults>,
    /// Bytes of a request body that are accepted.
    pub(in crate::play) body_limit: usize,
    /// The served model's length and names, of which errors speak.
    pub(in crate::play) max_model_len: u32,
    pub(in crate::play) names: Arc<[String]>,
    /// An error in the words of an endpoint.
    pub(in crate::play) refusal: fn(ApiError, Endpoint) -> Response,
    /// Number of the replica.
    pub(in crate::play) replica: u32,
    /// Its earlier pages of metrics.
    pub(in crate::play) pages: Arc<MetricsPages>,
}

impl Intercept for FaultLayer {
    fn takes(&self, request: &Request) -> bool {
        self.faults.takes(request.method(), request.uri().path())
    }

    async fn respond<S>(self, request: Request, inner: S) -> Response
    where
        S: Service<Request, Response = Response, Error = Infallible, Future: Send> + Send,
    {
        let (request, mut faulted) = match self.choose(request).await {
            Ok(chosen) => chosen,
            Err(refused) => return refused,
        };
        let beyond = faulted.take_quotas();
        let shown = FaultsOf(faulted.chosen.iter().map(|chosen| Arc::clone(&chosen.fault)).collect());
        let early = match beyond {
            Some(response) => Some(response),
            None => faulted.before_answer(|it| it.fault.selection.record.is_none()).await,
        };
        let mut response = match early {
            Some(response) => faulted.served(response),
            None => match faulted.reply() {
                Some(reply) => faulted.after(reply).await,
                None => {
                    let response = called(inner, request).await;
                    let response = faulted.with_page(&self.pages, response).await;
                    faulted.after(response).await
                }
            },
        };
        response.extensions_mut().insert(shown);
        response
    }
}

/// The faults of a request whose response comes.
struct FaultedRequest {
    set: Arc<FaultSet>,
    chosen: Vec<ChosenFault>,
    context: RefusalContext,
    refusal: fn(ApiError, Endpoint) -> Response,
    /// The request, where a fault gives another answer to it.
    asked: Option<(Parts, Bytes)>,
    /// What it takes from quotas, and the headers that say what is left.
    tickets: Vec<QuotaTicket>,
    quota_headers: HeaderMap,
    /// Where what is served is noted.
    served: Option<SharedResponse>,
}

impl FaultLayer {
    /// Chooses the faults of a request.
    ///
    /// # Errors
    /// The response to a request whose body or headers are wrong.
    async fn choose(&self, request: Request) -> Result<(Request, FaultedRequest), Response> {
        let set = self.faults.current();
        let endpoint = Endpoint::of_path(request.uri().path());
        let refused = |error| (self.refusal)(error, endpoint);
        let own = self.faults.of_headers(request.headers()).map_err(refused)?;
        let (parts, body) = request.into_parts();
        let body = receive_whole(body, self.body_limit).await;
        let body = body.map_err(|why| refused(unreceived(why, self.body_limit)))?;
        let session = account::session_of(&parts.extensions, &parts.headers, &RedactionRules::default()).ok().flatten();
        let (path, headers, session) = (parts.uri.path(), &parts.headers, session.as_deref());
        let seen = FaultRequest { path, headers, body: &body, session, replica: self.replica };
        let mut chosen = set.choose(&seen);
        if !own.is_empty() {
            chosen.extend(FaultSet::new(own, 0).choose(&seen).into_iter().map(ChosenFault::of_request));
        }
        let mut context = self.context(endpoint);
        if !chosen.is_empty() {
            context.model = model_of(&body);
        }
        let has_reply = chosen.iter().any(|chosen| matches!(chosen.fault.kind, FaultKind::Reply(_)));
        let asked = has_reply.then(|| (parts.clone(), body.clone()));
        let served = self.faults.log().and_then(|log| log.begin(parts.uri.path(), &body));
        let (refusal, tickets, quota_headers) = (self.refusal, Vec::new(), HeaderMap::new());
        let faulted = FaultedRequest { set, chosen, context, refusal, asked, tickets, quota_headers, served };
        Ok((Request::from_parts(parts, Body::from(body)), faulted))
    }

    fn context(&self, endpoint: Endpoint) -> RefusalContext {
        let (max_model_len, names) = (self.max_model_len, Arc::clone(&self.names));
        RefusalContext { endpoint, max_model_len, names, model: String::new() }
    }
}

/// The model that a request names.
fn model_of(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct NamedModelOnly {
        model: Option<String>,
    }
    serde_json::from_slice(body).ok().and_then(|named: NamedModelOnly| named.model).unwrap_or_default()
}

impl FaultedRequest {
    /// Takes the request from its quotas; the response, where it is beyond one.
    fn take_quotas(&mut self) -> Option<Response> {
        for it in &self.chosen {
            match self.set.admit(it) {
                Some(Ok((ticket, left))) => {
                    self.tickets.push(ticket);
                    self.quota_headers.extend(left.headers);
                }
                Some(Err((refusal, line))) => {
                    tracing::info!("fault: --fault '{line}'");
                    let mut response = self.refused(&refusal.fault());
                    response.headers_mut().extend(refusal.headers);
                    return Some(response);
                }
                None => {}
            }
        }
        self.chosen.retain(|it| !matches!(it.fault.kind, FaultKind::Quota(_)));
        None
    }

    /// Puts faults into a page of metrics.
    async fn with_page(&self, pages: &MetricsPages, response: Response) -> Response {
        let is_meant = |it: &ChosenFault| matches!(it.fault.kind, FaultKind::Metrics(_));
        if !self.chosen.iter().any(is_meant) {
            return response;
        }
        let (mut parts, body) = response.into_parts();
        let Ok(page) = receive_whole(body, LARGEST_PAGE).await else { return broken(ConnectionEnd::Close) };
        let page = String::from_utf8_lossy(&page).into_owned();
        let page = pages.faulted(&self.set, &self.chosen, page, |it| self.happened(it));
        parts.headers.remove(header::CONTENT_LENGTH);
        Response::from_parts(parts, Body::from(page))
    }

    /// The response of a refusal.
    fn refused(&self, fault: &RefusalFault) -> Response {
        let mut response = (self.refusal)(fault.error(&self.context), self.context.endpoint);
        response.headers_mut().extend(fault.headers());
        response
    }

    fn happened(&self, chosen: &ChosenFault) {
        note(&self.set, chosen, self.served.is_some());
    }

    /// Lets faults happen that come before an answer; a response where it is one of them.
    async fn before_answer(&self, is_meant: impl Fn(&ChosenFault) -> bool) -> Option<Response> {
        for it in self.chosen.iter().filter(|it| is_meant(it)) {
            match &it.fault.kind {
                FaultKind::Delay(time) => {
                    self.happened(it);
                    sleep(*time).await;
                }
                FaultKind::Hang => {
                    self.happened(it);
                    pending().await
                }
                FaultKind::NotReady { .. } => {
                    self.happened(it);
                    let mut response = Response::default();
                    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                    return Some(response);
                }
                FaultKind::Refusal(fault) => {
                    self.happened(it);
                    return Some(self.refused(fault));
                }
                FaultKind::Stream(StreamFault::Break(end))
                    if it.fault.place.or(it.fault.kind.own_place()).is_none() =>
                {
                    self.happened(it);
                    return Some(broken(*end));
                }
                _ => {}
            }
        }
        None
    }

    /// The answer that a fault gives in place of another one; a refusal where the request's wire cannot say it.
    fn reply(&self) -> Option<Response> {
        let (parts, body) = self.asked.clone()?;
        let (chosen, fault) = self.chosen.iter().find_map(|chosen| match chosen.fault.kind {
            FaultKind::Reply(fault) => Some((chosen, fault)),
            _ => None,
        })?;
        let number = chosen.request.wrapping_add(chosen.nth);
        Some(match semantic_response(parts, self.with_model(&body), fault, number) {
            Ok(SemanticResponse { content, content_type }) => {
                self.happened(chosen);
                let content_type = HeaderValue::from_static(content_type);
                match content {
                    RecordedContent::Events(events) => {
                        let events = futures_util::stream::iter(events.into_iter().map(|(_, event)| event));
                        events_of_type(StatusCode::OK, content_type, events, HeaderMap::new())
                    }
                    RecordedContent::Body(body) => {
                        body_of_type(StatusCode::OK, Some(content_type), body, HeaderMap::new())
                    }
                }
            }
            Err(reason) => {
                let message = format!("This request cannot get the fault {reason}.");
                (self.refusal)(ApiError::bad_request(message), self.context.endpoint)
            }
        })
    }

    /// The body of a request, with the served model where it names none.
    fn with_model(&self, body: &Bytes) -> Bytes {
        match (serde_json::from_slice::<Value>(body), self.context.names.first()) {
            (Ok(Value::Object(mut fields)), Some(model)) if !fields.contains_key("model") => {
                fields.insert("model".to_owned(), model.clone().into());
                Value::Object(fields).to_string().into()
            }
            _ => body.clone(),
        }
    }

    /// Puts the faults into the response that are in its head and body.
    async fn after(mut self, mut response: Response) -> Response {
        let record = response.headers().get("x-vcr-record").and_then(|value| value.to_str().ok()).map(str::to_owned);
        self.chosen.retain(|chosen| FaultSet::concerns_record(chosen, record.as_deref()));
        if let Some(other) = self.before_answer(|it| it.fault.selection.record.is_some()).await {
            return self.served(other);
        }
        let is_stream = media_type(response.headers()) == "text/event-stream";
        for chosen in &self.chosen {
            match &chosen.fault.kind {
                FaultKind::ContentType(value) => {
                    let Ok(value) = HeaderValue::from_str(value) else { continue };
                    response.headers_mut().insert(header::CONTENT_TYPE, value);
                }
                FaultKind::SlowHead(pace) => drop(response.extensions_mut().insert(*pace)),
                _ => continue,
            }
            self.happened(chosen);
        }
        response.headers_mut().extend(mem::take(&mut self.quota_headers));
        if !self.tickets.is_empty() {
            let prompt = response.extensions().get::<PromptTokens>().map(|PromptTokens(count)| *count);
            let tickets = mem::take(&mut self.tickets);
            response = response.map(|body| Body::new(MeteredBody::new(body, is_stream, prompt, tickets)));
        }
        self.chosen.retain(|chosen| matches!(chosen.fault.kind, FaultKind::Stream(_)));
        if self.chosen.is_empty() && self.served.is_none() {
            return response;
        }
        let keeps_length = |chosen: &ChosenFault| match &chosen.fault.kind {
            FaultKind::Stream(fault) => fault.keeps_length(),
            _ => true,
        };
        if !self.chosen.iter().all(keeps_length) {
            response.headers_mut().remove(header::CONTENT_LENGTH);
        }
        if let Some(served) = &self.served {
            response = response.map(|body| ServedBody::observe(body, ObservedSide::Before, served));
        }
        let (set, chosen, is_quiet) = (self.set.clone(), mem::take(&mut self.chosen), self.served.is_some());
        let on_fault = Arc::new(move |chosen: &ChosenFault| note(&set, chosen, is_quiet));
        let context = self.context.clone();
        self.served(response.map(|body| Body::new(FaultedBody::new(body, is_stream, context, chosen, on_fault))))
    }

    /// Notes what leaves of a response, where that is noted.
    fn served(&self, response: Response) -> Response {
        let Some(served) = &self.served else { return response };
        note_status(served, response.status().as_u16());
        response.map(|body| ServedBody::observe(body, ObservedSide::After, served))
    }
}

/// A response without a head, for its connection ends.
fn broken(end: ConnectionEnd) -> Response {
    let mut response = Response::default();
    response.extensions_mut().insert(end);
    response
}

/// Counts a fault that happens, and prints it unless whoever chose it looks at what is served.
fn note(set: &FaultSet, chosen: &ChosenFault, is_quiet: bool) {
    let line = set.happened(chosen);
    if is_quiet {
        tracing::debug!("fault: --fault '{line}'");
    } else {
        tracing::info!("fault: --fault '{line}'");
    }
}

/// The error of a body that was not received.
pub(in crate::play) fn unreceived(why: NotWhole, limit: usize) -> ApiError {
    match why {
        NotWhole::TooLarge => ApiError::too_large(limit),
        NotWhole::BrokeOff => ApiError::unreadable(),
    }
}
