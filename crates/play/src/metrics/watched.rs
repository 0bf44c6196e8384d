//! Watches a request until its answer is over, however that comes about.

use std::{
    ops::ControlFlow,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
};

use axum::{
    body::Body as ResponseBody,
    extract::{MatchedPath, Request},
    response::Response,
};
use bytes::Bytes;
use http::{HeaderMap, Method, header};
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::{
    Metrics,
    http_requests::{HttpRequest, NONE, handler, is_load},
};
use crate::{live::LiveNumber, middleware::Middleware};

/// In the extensions of an answer: the endpoint does not take such requests, which count as those that nothing serves.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct NotServed;

/// The middleware that counts requests, by the endpoints with a series of their own.
#[derive(Debug, Clone)]
pub(in super::super) struct Watch {
    metrics: Arc<Metrics>,
    endpoints: Arc<[CountedEndpoint]>,
}

/// Label of an endpoint, and the counters of its requests.
#[derive(Debug, Clone, Copy)]
struct CountedEndpoint {
    path: &'static str,
    handler: Option<&'static str>,
    is_load: bool,
}

impl Watch {
    pub(in super::super) fn new(metrics: &Arc<Metrics>, paths: &[&'static str]) -> Self {
        let counted =
            |path: &&'static str| CountedEndpoint { path, handler: handler(Some(path)), is_load: is_load(path) };
        Self { metrics: Arc::clone(metrics), endpoints: paths.iter().map(counted).collect() }
    }

    fn endpoint(&self, request: &Request) -> Option<&CountedEndpoint> {
        let matched = request.extensions().get::<MatchedPath>()?.as_str();
        self.endpoints.iter().find(|endpoint| endpoint.path == matched)
    }
}

impl Middleware for Watch {
    type Kept = Guard;

    fn before(&self, request: &mut Request) -> ControlFlow<Response, Guard> {
        let endpoint = self.endpoint(request);
        let loads = endpoint.is_some_and(|endpoint| endpoint.is_load);
        if loads {
            self.metrics.http.load.fetch_add(1, Relaxed);
        }
        ControlFlow::Continue(Guard {
            loads,
            handler: endpoint.map_or(Some(NONE), |endpoint| endpoint.handler),
            metrics: Arc::clone(&self.metrics),
            started: Instant::now(),
            method: request.method().clone(),
            request_bytes: length(request.headers()),
            answered: None,
            live: self.metrics.live.begin(request),
        })
    }

    fn after(mut guard: Guard, response: Response) -> Response {
        if response.extensions().get::<NotServed>().is_some() {
            guard.handler = Some(NONE);
        }
        if let Some(number) = guard.live {
            guard.metrics.live.answered(number, &response);
        }
        guard.answered = Some((response.status().as_u16(), length(response.headers())));
        response.map(|body| ResponseBody::new(CountedBody { body, _guard: guard }))
    }
}

fn length(headers: &HeaderMap) -> u64 {
    headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(0)
}

/// Status and length of an answer that its client did not wait for: the engine's server then makes one of nothing, `null`.
const LEFT: (u16, u64) = (200, 4);

/// A request in progress, which is counted when this is dropped.
#[derive(Debug)]
pub(in super::super) struct Guard {
    metrics: Arc<Metrics>,
    started: Instant,
    handler: Option<&'static str>,
    method: Method,
    request_bytes: u64,
    loads: bool,
    /// Status and length of the answer; `None` where the client left before it.
    answered: Option<(u16, u64)>,
    /// Its number among those that are shown.
    live: Option<LiveNumber>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let http = &self.metrics.http;
        if self.loads {
            http.load.fetch_sub(1, Relaxed);
        }
        if let Some(number) = self.live {
            self.metrics.live.ended(number, self.started.elapsed());
        }
        let (status, response_bytes) = self.answered.unwrap_or(LEFT);
        if let Some(handler) = self.handler {
            let (method, request_bytes, took) = (self.method.clone(), self.request_bytes, self.started.elapsed());
            http.record(&HttpRequest { handler, method, status, request_bytes, response_bytes, took });
        }
    }
}

/// A body that counts when it is over.
struct CountedBody {
    body: ResponseBody,
    _guard: Guard,
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
