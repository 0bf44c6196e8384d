//! The layer: which requests get a fault, and what of it is not in a body.

use std::{convert::Infallible, future::pending, mem, sync::Arc};

use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::Value;
use tokio::time::sleep;
use tower::Service;

use super::{
    notes::FaultNotes,
    observed::{ObservedSide, ServedBody, SharedResponse},
    pages::MetricsPages,
    quota::{MeteredBody, PromptTokens},
    server::ServerFaults,
};
use crate::{
    http::{broken, header_text, unreceived},
    mcp::ROOT,
    middleware::{Intercept, called},
};
use ::faults::{
    ChosenFault, Fault, FaultKind, FaultRequest, FaultedBody, QuotaTicket, RefusalContext, RefusalFault, StreamFault,
};
use api::{ApiError, Endpoint};
use base::lock::Lock;
use net::{
    server::{ConnectionEnd, media_type, receive_whole},
    wire::RawObject,
};
use recording::redaction::RedactionRules;
use replay::{
    account,
    player::{
        ConcernsRecord, OnReply, RETRY_COUNT, ReplacedRecords, SemanticReplies, SemanticReply, is_retry,
        why_unanswerable,
    },
};

const LARGEST_PAGE: usize = 64 << 20;

/// In the extensions of a response: the faults that were chosen for its request.
#[derive(Debug, Clone)]
pub(crate) struct FaultsOf(pub(crate) Vec<Arc<Fault>>);

/// Faults before a service.
#[derive(Debug, Clone)]
pub(crate) struct FaultLayer {
    pub(crate) faults: Arc<ServerFaults>,
    /// Bytes of a request body that are accepted.
    pub(crate) body_limit: usize,
    /// The served model's length and names, of which errors speak.
    pub(crate) max_model_len: u32,
    pub(crate) names: Arc<[String]>,
    pub(crate) refusal: fn(ApiError, Endpoint) -> Response,
    /// Number of the replica.
    pub(crate) replica: u32,
    /// Its earlier pages of metrics.
    pub(crate) pages: Arc<MetricsPages>,
}

impl Intercept for FaultLayer {
    fn takes(&self, request: &Request) -> bool {
        self.faults.takes(request.method(), request.uri().path())
    }

    async fn respond<S>(self, request: Request, inner: S) -> Response
    where
        S: Service<Request, Response = Response, Error = Infallible, Future: Send> + Send,
    {
        let (mut request, mut faulted) = match self.choose(request).await {
            Ok(chosen) => chosen,
            Err(refused) => return refused,
        };
        let beyond = faulted.take_quotas();
        let (chosen, replied) = (faulted.chosen.clone(), Arc::clone(&faulted.replied));
        let early = match beyond {
            Some(response) => Some(response),
            None => faulted.before_answer(|it| it.fault.selection.record.is_none()).await,
        };
        self.note_try(&mut request, (&faulted.requested, early.is_some()));
        let mut response = match early {
            Some(response) => faulted.answers_first(response),
            None => match faulted.announced(request) {
                Ok(request) => {
                    let response = called(inner, request).await;
                    let response = faulted.with_page(&self.pages, response).await;
                    faulted.after(response).await
                }
                Err(refused) => faulted.answers_first(*refused),
            },
        };
        response.extensions_mut().insert(shown(&chosen, &replied.lock()));
        response
    }
}

/// Faults that are answers, and whether each was applied.
type RepliedFaults = Arc<Lock<Vec<(Arc<Fault>, bool)>>>;

/// Those of a request that its client got or may still get, as a page shows them.
fn shown(chosen: &[ChosenFault], replied: &[(Arc<Fault>, bool)]) -> FaultsOf {
    let is_applied = |fault: &Arc<Fault>| replied.iter().any(|(it, is_applied)| *is_applied && Arc::ptr_eq(it, fault));
    let is_shown = |chosen: &&ChosenFault| match chosen.fault.kind {
        FaultKind::Reply(_) => is_applied(&chosen.fault),
        _ => chosen.is_certain(),
    };
    FaultsOf(chosen.iter().filter(is_shown).map(|chosen| Arc::clone(&chosen.fault)).collect())
}

/// The faults of a request whose response comes.
struct FaultedRequest {
    notes: FaultNotes,
    chosen: Vec<ChosenFault>,
    context: RefusalContext,
    refusal: fn(ApiError, Endpoint) -> Response,
    requested: Bytes,
    replied: RepliedFaults,
    /// What it takes from quotas, and the headers that say what is left.
    tickets: Vec<QuotaTicket>,
    quota_headers: HeaderMap,
    served: Option<SharedResponse>,
}

impl FaultLayer {
    /// Notes a try that is answered by a fault. The retry of one that was is none to records, none of which was served to it.
    fn note_try(&self, request: &mut Request, (body, has_failed): (&Bytes, bool)) {
        let is_retry = is_retry(request.headers());
        if !has_failed && !is_retry {
            return;
        }
        let (path, headers) = (request.uri().path(), request.headers());
        let key = FaultRequest { path, headers, body, session: None, replica: self.replica }.hash().into();
        let mut failed = self.faults.failed.lock();
        if has_failed {
            failed.add(key, is_retry);
        } else if failed.take(key) {
            request.headers_mut().remove(RETRY_COUNT);
        }
    }

    /// Chooses the faults of a request.
    /// Errors: the response to a request whose body or headers are wrong.
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
        let own = [self.faults.of_session(session), own].concat();
        let chosen = set.choose_with(&seen, own);
        let (model, rpc_id) = if chosen.is_empty() { (String::new(), None) } else { named_in(path, &body) };
        let (max_model_len, names) = (self.max_model_len, Arc::clone(&self.names));
        let context = RefusalContext { endpoint, max_model_len, names, model, rpc_id };
        let served = self.faults.log().and_then(|log| log.begin(path, &body));
        let faulted = FaultedRequest {
            notes: FaultNotes { set, is_quiet: served.is_some() },
            chosen,
            context,
            refusal: self.refusal,
            requested: body.clone(),
            replied: Arc::default(),
            tickets: Vec::new(),
            quota_headers: HeaderMap::new(),
            served,
        };
        Ok((Request::from_parts(parts, Body::from(body)), faulted))
    }
}

/// The model that a request names, and its id where it is to an MCP server: null for a batch, and for what is no request of JSON-RPC.
fn named_in(path: &str, body: &[u8]) -> (String, Option<Value>) {
    let named = RawObject::read(body).unwrap_or_default();
    (named.value("model").unwrap_or_default(), path.starts_with(ROOT).then(|| named.value("id").unwrap_or_default()))
}

impl FaultedRequest {
    /// Takes the request from its quotas; the response, where it is beyond one.
    fn take_quotas(&mut self) -> Option<Response> {
        for it in &self.chosen {
            match self.notes.set.admit(it) {
                Some(Ok((ticket, left))) => {
                    self.tickets.push(ticket);
                    self.quota_headers.extend(left);
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

    async fn with_page(&self, pages: &MetricsPages, response: Response) -> Response {
        let is_meant = |it: &ChosenFault| matches!(it.fault.kind, FaultKind::Metrics(_));
        if !self.chosen.iter().any(is_meant) {
            return response;
        }
        let (mut parts, body) = response.into_parts();
        let Ok(page) = receive_whole(body, LARGEST_PAGE).await else { return broken(ConnectionEnd::Close) };
        let page = String::from_utf8_lossy(&page).into_owned();
        let page = pages.faulted(&self.notes.set, &self.chosen, page, |it| self.notes.happened(it));
        parts.headers.remove(header::CONTENT_LENGTH);
        Response::from_parts(parts, Body::from(page))
    }

    fn refused(&self, fault: &RefusalFault) -> Response {
        let mut response = (self.refusal)(fault.error(&self.context), self.context.endpoint);
        response.headers_mut().extend(fault.headers());
        response
    }

    /// Lets faults happen that come before an answer; a response where it is one of them.
    async fn before_answer(&self, is_meant: impl Fn(&ChosenFault) -> bool) -> Option<Response> {
        let comes_before = |it: &ChosenFault| match it.fault.kind {
            FaultKind::Delay(_) | FaultKind::NotReady { .. } => true,
            _ => replaces_answer(&it.fault),
        };
        for it in self.chosen.iter().filter(|it| is_meant(it) && comes_before(it)) {
            self.notes.happened(it);
            match &it.fault.kind {
                FaultKind::Delay(time) => sleep(*time).await,
                FaultKind::NotReady { .. } => return Some(StatusCode::SERVICE_UNAVAILABLE.into_response()),
                FaultKind::Refusal(fault) => return Some(self.refused(fault)),
                FaultKind::Stream(StreamFault::Break(end)) => return Some(broken(*end)),
                FaultKind::Hang => pending::<()>().await,
                kind => debug_assert!(false, "{kind:?} does not come before an answer"),
            }
        }
        None
    }

    /// Puts the faults into the request that what answers it has to know: those that are answers, and the records whose answers others replace.
    /// Errors: the refusal of a request that names a fault itself which its response format cannot carry.
    fn announced(&self, mut request: Request) -> Result<Request, Box<Response>> {
        let mut replies = Vec::new();
        for chosen in &self.chosen {
            let FaultKind::Reply(fault) = chosen.fault.kind else { continue };
            if chosen.rule.is_none() && !chosen.fault.selection.is_of_record {
                let (parts, body) = request.into_parts();
                if let Some(reason) = why_unanswerable(parts.clone(), self.requested.clone(), fault) {
                    (self.on_reply(chosen.clone()))(Err(reason.clone()));
                    let message = format!("This request cannot get the fault {reason}.");
                    return Err(Box::new((self.refusal)(ApiError::bad_request(message), self.context.endpoint)));
                }
                request = Request::from_parts(parts, body);
            }
            replies.push(SemanticReply {
                fault,
                concerns: concerning(vec![chosen.clone()]),
                number: chosen.request.wrapping_add(chosen.nth),
                on_outcome: self.on_reply(chosen.clone()),
            });
        }
        if !replies.is_empty() {
            request.extensions_mut().insert(SemanticReplies(replies));
        }
        let is_replaced = |chosen: &&ChosenFault| {
            let selection = &chosen.fault.selection;
            replaces_answer(&chosen.fault) && !selection.is_of_record && selection.record.is_some()
        };
        let replaced: Vec<ChosenFault> = self.chosen.iter().filter(is_replaced).cloned().collect();
        if !replaced.is_empty() {
            request.extensions_mut().insert(ReplacedRecords(concerning(replaced)));
        }
        Ok(request)
    }

    /// Notes the outcome of a fault that is an answer.
    fn on_reply(&self, chosen: ChosenFault) -> OnReply {
        let (notes, replied) = (self.notes.clone(), self.replied.clone());
        Arc::new(move |outcome| {
            replied.lock().push((Arc::clone(&chosen.fault), outcome.is_ok()));
            match outcome {
                Ok(()) => notes.happened(&chosen),
                Err(reason) => notes.unapplied(&chosen, &reason),
            }
        })
    }

    /// The response of a fault before everything that answers.
    fn answers_first(mut self, response: Response) -> Response {
        self.chosen.retain(|chosen| chosen.fault.selection.record.is_none());
        self.end_replies();
        self.served(response)
    }

    /// Notes the faults that are answers and of which nothing has become.
    fn end_replies(&self) {
        let replied = self.replied.lock().clone();
        let has_outcome = |chosen: &&ChosenFault| replied.iter().any(|(fault, _)| Arc::ptr_eq(fault, &chosen.fault));
        let is_reply = |chosen: &&ChosenFault| matches!(chosen.fault.kind, FaultKind::Reply(_));
        for chosen in self.chosen.iter().filter(is_reply).filter(|chosen| !has_outcome(chosen)) {
            let reason = match chosen.fault.selection.record {
                Some(_) => "the record of a trace is chosen too late for it; use other conditions than record=",
                None => "another fault answers, or no model does",
            };
            (self.on_reply(chosen.clone()))(Err(reason.to_owned()));
        }
    }

    /// Puts the faults into the response that are in its head and body.
    async fn after(mut self, mut response: Response) -> Response {
        let record = header_text(response.headers(), "x-vcr-record").map(str::to_owned);
        self.chosen.retain(|chosen| chosen.concerns_record(record.as_deref()));
        self.end_replies();
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
            self.notes.happened(chosen);
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
        let keeps_length =
            |chosen: &ChosenFault| matches!(&chosen.fault.kind, FaultKind::Stream(fault) if fault.keeps_length());
        if !self.chosen.iter().all(keeps_length) {
            response.headers_mut().remove(header::CONTENT_LENGTH);
        }
        if let Some(served) = &self.served {
            response = response.map(|body| ServedBody::observe(body, ObservedSide::Before, served));
        }
        let (notes, chosen, context) = (self.notes.clone(), mem::take(&mut self.chosen), self.context.clone());
        let on_fault = Arc::new(move |chosen: &ChosenFault| notes.happened(chosen));
        self.served(response.map(|body| Body::new(FaultedBody::new(body, is_stream, context, chosen, on_fault))))
    }

    /// Notes what leaves of a response, where that is noted.
    fn served(&self, response: Response) -> Response {
        let Some(served) = &self.served else { return response };
        served.lock().status = response.status().as_u16();
        response.map(|body| ServedBody::observe(body, ObservedSide::After, served))
    }
}

fn concerning(chosen: Vec<ChosenFault>) -> ConcernsRecord {
    Arc::new(move |record| chosen.iter().any(|chosen| chosen.concerns_record(record)))
}

/// Returns true for a fault after which nothing comes of an answer.
fn replaces_answer(fault: &Fault) -> bool {
    match &fault.kind {
        FaultKind::Hang | FaultKind::Refusal(_) => true,
        FaultKind::Stream(StreamFault::Break(_)) => fault.place.or(fault.kind.own_place()).is_none(),
        _ => false,
    }
}
