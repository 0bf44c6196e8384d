//! A deck on a listener of its own: what is none of its business goes upstream as it came.

use std::{future::Future, sync::Arc, time::Duration};

use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;
use tokio::time::timeout;

use super::{Deck, Outcome, capture, request};
use crate::{
    serve::{self, AnswerBody, DrainReport, Listener, RequestBody},
    timing::Pacer,
    upstream::{Reach, Upstream, UpstreamUrl},
};

/// How long a server may take to tell its version.
const PATIENCE: Duration = Duration::from_secs(2);

impl Deck {
    /// Serves until `shutdown` completes, then drains.
    pub async fn serve(
        self: &Arc<Self>,
        listener: impl Into<Listener>,
        shutdown: impl Future<Output = ()>,
        drain: Duration,
    ) -> DrainReport {
        let (deck, pacer) = (Arc::clone(self), Pacer::precise());
        let flushing = self.keep_flushed();
        let service = move |mut request, _| {
            let (deck, pacer) = (Arc::clone(&deck), pacer.clone());
            async move {
                super::enter(&mut request);
                match deck.answer(request, &pacer).await {
                    Outcome::Answered(response) => response,
                    Outcome::Passed(request) => deck.relay(request).await,
                }
            }
        };
        let drained = serve::run(listener, service, shutdown, drain).await;
        flushing.abort();
        drained
    }

    /// Passes a request on that is not recorded.
    async fn relay(&self, request: Request<RequestBody>) -> Response<AnswerBody> {
        match &self.upstream {
            Some(upstream) => capture::pass(upstream, request).await,
            None => request::plain(StatusCode::NOT_FOUND, "nothing was recorded here, and there is no upstream"),
        }
    }
}

/// The engine at an address and its version, where it tells it.
pub async fn engine_at(url: &UpstreamUrl, reach: &Reach) -> Option<String> {
    let mut request = Request::new(RequestBody::Read(None));
    *request.method_mut() = Method::GET;
    *request.uri_mut() = Uri::from_static("/version");
    let upstream = Upstream::new(url.clone(), reach);
    let response = timeout(PATIENCE, upstream.send(request)).await.ok()?.ok()?;
    let body = timeout(PATIENCE, Limited::new(response.into_body(), 64 << 10).collect()).await.ok()?.ok()?;
    let version = serde_json::from_slice::<Value>(&body.to_bytes()).ok()?;
    Some(format!("vllm {}", version.get("version")?.as_str()?))
}
