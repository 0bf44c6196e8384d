//! Admin endpoints: metrics for Prometheus, health for supervisors, rotation.
//!
//! `/metrics` shows every count. `/health` is 200 as long as requests are forwarded; `/health/recording` is 503 while no
//! trace can be written, the disk does not answer or the recorder cannot keep up. Nothing else is answered, and nothing here shows what clients send.

use std::{future::Future, path::Path, sync::Arc};

use axum::{
    Router,
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use http::{HeaderValue, StatusCode, header};

use super::{counts::RecorderCounts, shared_state::SharedState};
use net::server::Listener;
use recording::recorder::RecorderState;
use replay::account::serve_router;

/// Handle to operate a serving tap.
#[derive(Debug, Clone)]
pub struct Handle {
    shared: Arc<SharedState>,
}

impl Handle {
    pub(super) fn new(shared: Arc<SharedState>) -> Self {
        Self { shared }
    }

    /// Closes the trace file within a second and goes on in the next one. Standard output is not rotated.
    pub fn rotate(&self) {
        self.shared.rotate();
    }

    /// Returns the trace file that was begun first; `None` where exchanges are recorded in a cassette.
    #[must_use]
    pub fn trace(&self) -> Option<&Path> {
        Some(&self.shared.recorder.as_ref()?.path)
    }

    /// Returns every counter in Prometheus' text format.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.shared.metrics.page()
    }

    /// Answers the operator's requests at `listener` until `shutdown`.
    pub async fn serve(self, listener: impl Into<Listener>, shutdown: impl Future<Output = ()> + Send) {
        serve_router(self.router(), listener, shutdown).await;
    }

    fn router(self) -> Router {
        Router::new()
            .route("/metrics", get(metrics))
            .route("/health", get(|| async { text(StatusCode::OK, "forwarding\n") }))
            .route("/health/recording", get(recording))
            .method_not_allowed_fallback(|| async { text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n") })
            .fallback(|| async { text(StatusCode::NOT_FOUND, "try /metrics, /health or /health/recording\n") })
            .with_state(self)
    }
}

async fn metrics(State(handle): State<Handle>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], handle.metrics())
}

/// Reports whether the recorder works, for a supervisor.
async fn recording(State(handle): State<Handle>) -> Response {
    let recorder = &handle.shared.metrics.recorder;
    let state = match recorder.progress.state() {
        RecorderState::Recording => {
            let emptied = RecorderCounts::get(&recorder.emptied);
            let times = if emptied == 1 { "once".to_owned() } else { format!("{emptied} times") };
            let state = format!("recording; another program emptied the trace {times}\n");
            return text(StatusCode::OK, if emptied == 0 { "recording\n".to_owned() } else { state });
        }
        RecorderState::Failing => "the trace cannot be written\n".to_owned(),
        RecorderState::Stalled(silence) => format!("the disk has not answered for {} s\n", silence.as_secs()),
        RecorderState::Searching(silence) => {
            format!("one record has been searched for secrets for {} s; others wait\n", silence.as_secs())
        }
        RecorderState::Behind => "the recorder cannot keep up: records are dropped\n".to_owned(),
    };
    text(StatusCode::SERVICE_UNAVAILABLE, state)
}

fn text(status: StatusCode, body: impl IntoResponse) -> Response {
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"))], body).into_response()
}
