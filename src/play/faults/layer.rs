//! The layer: which requests get a fault, and what of it is not in a body.

use std::{
    convert::Infallible,
    future::pending,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{body::Body, extract::Request, response::Response};
use futures_util::future::{BoxFuture, Either};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::time::sleep;
use tower::{Layer, Service};

use super::{
    pages::MetricsPages,
    quota::{MeteredBody, PromptTokens},
    server::ServerFaults,
};
use crate::{
    api::{ApiError, Endpoint},
    faults::{ChosenFault, FaultKind, FaultRequest, FaultSet, FaultedBody, QuotaTicket, StreamFault},
    net::server::{NotWhole, media_type, receive_whole},
    recording::redaction::RedactionRules,
    replay::account,
};

/// Largest page of metrics.
const LARGEST_PAGE: usize = 64 << 20;

/// Puts faults before a service.
#[derive(Debug, Clone)]
pub(in crate::play) struct FaultLayer {
    pub(in crate::play) faults: Arc<ServerFaults>,
    /// Bytes of a request body that are accepted.
    pub(in crate::play) body_limit: usize,
    /// An error in the words of an endpoint.
    pub(in crate::play) refusal: fn(ApiError, Endpoint) -> Response,
    /// Number of the replica.
    pub(in crate::play) replica: u32,
    /// Its earlier pages of metrics.
    pub(in crate::play) pages: Arc<MetricsPages>,
}

impl<S> Layer<S> for FaultLayer {
    type Service = Faulting<S>;

    fn layer(&self, inner: S) -> Faulting<S> {
        Faulting { layer: self.clone(), inner }
    }
}

/// A service with faults before it.
#[derive(Debug, Clone)]
pub(in crate::play) struct Faulting<S> {
    layer: FaultLayer,
    inner: S,
}

impl<S> Service<Request> for Faulting<S>
where
    S: Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<S::Future, BoxFuture<'static, Result<Response, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        if !self.layer.faults.takes(request.method(), request.uri().path()) {
            return Either::Left(self.inner.call(request));
        }
        let (layer, mut inner) = (self.layer.clone(), self.inner.clone());
        let pages = Arc::clone(&layer.pages);
        Either::Right(Box::pin(async move {
            match layer.before(request).await {
                Err(response) => Ok(response),
                Ok((request, faulted)) => {
                    let response = inner.call(request).await?;
                    let response = faulted.with_page(&pages, response).await;
                    Ok(faulted.after(response))
                }
            }
        }))
    }
}

/// The faults of a request whose response comes.
struct FaultedRequest {
    set: Arc<FaultSet>,
    chosen: Vec<ChosenFault>,
    endpoint: Endpoint,
    refusal: fn(ApiError, Endpoint) -> Response,
    /// What it takes from quotas, and the headers that say what is left.
    tickets: Vec<QuotaTicket>,
    quota_headers: HeaderMap,
}

impl FaultLayer {
    /// Chooses the faults of a request, and lets those happen that come before its answer.
    ///
    /// # Errors
    /// The response, where a fault gives it.
    async fn before(self, request: Request) -> Result<(Request, FaultedRequest), Response> {
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
        chosen.extend(FaultSet::new(own, 0).choose(&seen));
        let (tickets, quota_headers) = (Vec::new(), HeaderMap::new());
        let mut faulted = FaultedRequest { set, chosen, endpoint, refusal: self.refusal, tickets, quota_headers };
        faulted.take_quotas()?;
        for it in faulted.chosen.iter().filter(|it| it.fault.selection.record.is_none()) {
            match &it.fault.kind {
                FaultKind::Delay(time) => {
                    faulted.happened(it);
                    sleep(*time).await;
                }
                FaultKind::Hang => {
                    faulted.happened(it);
                    pending().await
                }
                _ => {}
            }
            if let Some(response) = faulted.refused(it) {
                return Err(response);
            }
        }
        Ok((Request::from_parts(parts, Body::from(body)), faulted))
    }
}

impl FaultedRequest {
    /// Takes the request from its quotas.
    ///
    /// # Errors
    /// The response, where it is beyond one.
    fn take_quotas(&mut self) -> Result<(), Response> {
        for it in &self.chosen {
            match self.set.admit(it) {
                Some(Ok((ticket, left))) => {
                    self.tickets.push(ticket);
                    self.quota_headers.extend(left.headers);
                }
                Some(Err((refusal, line))) => {
                    tracing::info!("fault: --fault '{line}'");
                    let fault = refusal.fault();
                    let mut response = (self.refusal)(fault.error(), self.endpoint);
                    let after = fault.headers().remove(header::RETRY_AFTER);
                    response.headers_mut().extend(after.map(|after| (header::RETRY_AFTER, after)));
                    response.headers_mut().extend(refusal.headers);
                    return Err(response);
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Puts faults into a page of metrics.
    async fn with_page(&self, pages: &MetricsPages, response: Response) -> Response {
        let is_meant = |it: &ChosenFault| matches!(it.fault.kind, FaultKind::Metrics(_));
        if !self.chosen.iter().any(is_meant) {
            return response;
        }
        let (mut parts, body) = response.into_parts();
        let Ok(page) = receive_whole(body, LARGEST_PAGE).await else { return broken() };
        let page = String::from_utf8_lossy(&page).into_owned();
        let page = pages.faulted(&self.set, &self.chosen, page, |it| self.happened(it));
        parts.headers.remove(header::CONTENT_LENGTH);
        Response::from_parts(parts, Body::from(page))
    }

    fn happened(&self, chosen: &ChosenFault) {
        note(&self.set, chosen);
    }

    /// The response of a fault that is all of the response.
    fn refused(&self, chosen: &ChosenFault) -> Option<Response> {
        match &chosen.fault.kind {
            FaultKind::NotReady { .. } => {
                self.happened(chosen);
                let mut response = Response::new(Body::empty());
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                Some(response)
            }
            FaultKind::Refusal(fault) => {
                self.happened(chosen);
                let mut response = (self.refusal)(fault.error(), self.endpoint);
                response.headers_mut().extend(fault.headers());
                Some(response)
            }
            FaultKind::Stream(StreamFault::Reset | StreamFault::Close) if chosen.fault.place.is_none() => {
                self.happened(chosen);
                Some(broken())
            }
            _ => None,
        }
    }

    /// Puts the faults into the response that are in its head and body.
    fn after(mut self, mut response: Response) -> Response {
        let record = response.headers().get("x-vcr-record").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let concerns = |chosen: &ChosenFault| FaultSet::concerns_record(chosen, record.as_deref());
        self.chosen.retain(concerns);
        for chosen in &self.chosen {
            let is_later = chosen.fault.selection.record.is_some();
            if let Some(refused) = self.refused(chosen).filter(|_| is_later) {
                return refused;
            }
            if let FaultKind::ContentType(value) = &chosen.fault.kind
                && let Ok(value) = HeaderValue::from_str(value)
            {
                self.happened(chosen);
                response.headers_mut().insert(header::CONTENT_TYPE, value);
            }
        }
        let is_stream = media_type(response.headers()) == "text/event-stream";
        response.headers_mut().extend(std::mem::take(&mut self.quota_headers));
        if !self.tickets.is_empty() {
            let prompt = response.extensions().get::<PromptTokens>().map(|PromptTokens(count)| *count);
            let tickets = std::mem::take(&mut self.tickets);
            response = response.map(|body| Body::new(MeteredBody::new(body, is_stream, prompt, tickets)));
        }
        self.chosen.retain(|chosen| matches!(chosen.fault.kind, FaultKind::Stream(_)));
        if self.chosen.is_empty() {
            return response;
        }
        let is_edit = |chosen: &ChosenFault| matches!(chosen.fault.kind, FaultKind::Stream(StreamFault::Edit { .. }));
        if self.chosen.iter().any(is_edit) {
            response.headers_mut().remove(header::CONTENT_LENGTH);
        }
        let Self { set, chosen, endpoint, .. } = self;
        let on_fault = Arc::new(move |chosen: &ChosenFault| note(&set, chosen));
        response.map(|body| Body::new(FaultedBody::new(body, is_stream, endpoint, chosen, on_fault)))
    }
}

/// Counts and prints a fault that happens.
fn note(set: &FaultSet, chosen: &ChosenFault) {
    let line = set.happened(chosen);
    tracing::info!("fault: --fault '{line}'");
}

/// A response whose connection ends before its first byte.
fn broken() -> Response {
    let ends = futures_util::stream::once(async {
        Err::<bytes::Bytes, _>(std::io::Error::other("a fault ends the connection"))
    });
    let mut response = Response::new(Body::from_stream(ends));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

/// The error of a body that was not received.
pub(in crate::play) fn unreceived(why: NotWhole, limit: usize) -> ApiError {
    match why {
        NotWhole::TooLarge => ApiError::too_large(limit),
        NotWhole::BrokeOff => ApiError::unreadable(),
    }
}
