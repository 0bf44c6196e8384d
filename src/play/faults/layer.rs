//! The layer: which requests get a fault, and what of it is not in a body.

use std::{
    convert::Infallible,
    future::pending,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{body::Body, extract::Request, response::Response};
use futures_util::future::{BoxFuture, Either};
use http::{HeaderValue, header};
use tokio::time::sleep;
use tower::{Layer, Service};

use super::server::ServerFaults;
use crate::{
    api::{ApiError, Endpoint},
    faults::{ChosenFault, FaultKind, FaultRequest, FaultSet, FaultedBody, StreamFault},
    net::server::{NotWhole, media_type, receive_whole},
    recording::redaction::RedactionRules,
    replay::account,
};

/// In the extensions of a response: the faults that were chosen for its request.
#[derive(Debug, Clone)]
pub(in crate::play) struct FaultsOf(pub(in crate::play) Vec<String>);

/// Puts faults before a service.
#[derive(Debug, Clone)]
pub(in crate::play) struct FaultLayer {
    pub(in crate::play) faults: Arc<ServerFaults>,
    /// Bytes of a request body that are accepted.
    pub(in crate::play) body_limit: usize,
    /// An error in the words of an endpoint.
    pub(in crate::play) refusal: fn(ApiError, Endpoint) -> Response,
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
        Either::Right(Box::pin(async move {
            let (request, faulted) = match layer.choose(request).await {
                Ok(chosen) => chosen,
                Err(refused) => return Ok(refused),
            };
            let shown = FaultsOf(faulted.chosen.iter().map(|chosen| chosen.fault.what()).collect());
            let mut response = match faulted.before().await {
                Some(response) => response,
                None => faulted.after(inner.call(request).await?),
            };
            response.extensions_mut().insert(shown);
            Ok(response)
        }))
    }
}

/// The faults of a request whose response comes.
struct FaultedRequest {
    set: Arc<FaultSet>,
    chosen: Vec<ChosenFault>,
    endpoint: Endpoint,
    refusal: fn(ApiError, Endpoint) -> Response,
}

impl FaultLayer {
    /// Chooses the faults of a request.
    ///
    /// # Errors
    /// The response to a request whose body or headers are wrong.
    async fn choose(self, request: Request) -> Result<(Request, FaultedRequest), Response> {
        let set = self.faults.current();
        let endpoint = Endpoint::of_path(request.uri().path());
        let refused = |error| (self.refusal)(error, endpoint);
        let own = self.faults.of_headers(request.headers()).map_err(refused)?;
        let (parts, body) = request.into_parts();
        let body = receive_whole(body, self.body_limit).await;
        let body = body.map_err(|why| refused(unreceived(why, self.body_limit)))?;
        let session = account::session_of(&parts.extensions, &parts.headers, &RedactionRules::default()).ok().flatten();
        let seen =
            FaultRequest { path: parts.uri.path(), headers: &parts.headers, body: &body, session: session.as_deref() };
        let mut chosen = set.choose(&seen);
        chosen.extend(FaultSet::new(own, 0).choose(&seen));
        let faulted = FaultedRequest { set, chosen, endpoint, refusal: self.refusal };
        Ok((Request::from_parts(parts, Body::from(body)), faulted))
    }
}

impl FaultedRequest {
    /// Lets the faults happen that come before an answer; the response, where one of them gives it.
    async fn before(&self) -> Option<Response> {
        for it in self.chosen.iter().filter(|it| it.fault.selection.record.is_none()) {
            match &it.fault.kind {
                FaultKind::Delay(time) => {
                    self.happened(it);
                    sleep(*time).await;
                }
                FaultKind::Hang => {
                    self.happened(it);
                    pending().await
                }
                _ => {}
            }
            if let Some(response) = self.refused(it) {
                return Some(response);
            }
        }
        None
    }

    fn happened(&self, chosen: &ChosenFault) {
        note(&self.set, chosen);
    }

    /// The response of a fault that is all of the response.
    fn refused(&self, chosen: &ChosenFault) -> Option<Response> {
        match &chosen.fault.kind {
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
        self.chosen.retain(|chosen| matches!(chosen.fault.kind, FaultKind::Stream(_)));
        if self.chosen.is_empty() {
            return response;
        }
        let is_edit = |chosen: &ChosenFault| matches!(chosen.fault.kind, FaultKind::Stream(StreamFault::Edit { .. }));
        if self.chosen.iter().any(is_edit) {
            response.headers_mut().remove(header::CONTENT_LENGTH);
        }
        let is_stream = media_type(response.headers()) == "text/event-stream";
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
