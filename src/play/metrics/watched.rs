//! Watches a request until its answer is over, however that comes about.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::Instant;

use super::{
    Metrics,
    visits::{Served, Visit, handler, is_load},
};
use crate::{net::server::BodyError, play::http::AnswerBody};

/// Counts the request that `answering` answers.
pub(in super::super) async fn watch<B>(
    metrics: &Arc<Metrics>,
    request: Request<B>,
    is_served: Served,
    answering: impl AsyncAnswer<B>,
) -> Response<AnswerBody> {
    let path = request.uri().path();
    let mut guard = Guard {
        loads: is_served == Served::Yes && is_load(path),
        handler: handler(path, is_served),
        metrics: Arc::clone(metrics),
        started: Instant::now(),
        method: request.method().clone(),
        request_bytes: length(request.headers()),
        answered: None,
    };
    if guard.loads {
        metrics.visits.load.fetch_add(1, Relaxed);
    }
    let response = answering.answer(request).await;
    guard.answered = Some((response.status().as_u16(), length(response.headers())));
    response.map(|body| Watched { body, _guard: guard }.boxed_unsync())
}

/// What answers a request.
pub(in super::super) trait AsyncAnswer<B> {
    /// Answers it.
    fn answer(self, request: Request<B>) -> impl Future<Output = Response<AnswerBody>> + Send;
}

impl<B, F: FnOnce(Request<B>) -> R, R: Future<Output = Response<AnswerBody>> + Send> AsyncAnswer<B> for F {
    fn answer(self, request: Request<B>) -> impl Future<Output = Response<AnswerBody>> + Send {
        self(request)
    }
}

fn length(headers: &HeaderMap) -> u64 {
    headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(0)
}

/// Counts when it is dropped.
#[derive(Debug)]
struct Guard {
    metrics: Arc<Metrics>,
    started: Instant,
    handler: Option<&'static str>,
    method: Method,
    request_bytes: u64,
    loads: bool,
    /// Status and length of the answer; `None` where the client left before.
    answered: Option<(u16, u64)>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let visits = &self.metrics.visits;
        if self.loads {
            visits.load.fetch_sub(1, Relaxed);
        }
        if let Some(((status, response_bytes), handler)) = self.answered.zip(self.handler) {
            let (method, request_bytes, took) = (self.method.clone(), self.request_bytes, self.started.elapsed());
            visits.record(&Visit { handler, method, status, request_bytes, response_bytes, took });
        }
    }
}

/// A body that counts when it is over.
struct Watched {
    body: AnswerBody,
    _guard: Guard,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
