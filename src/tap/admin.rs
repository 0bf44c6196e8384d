//! The operator's side: counts for Prometheus, health for supervisors, rotation.
//!
//! `/metrics` shows every count. `/health` is 200 as long as requests are forwarded; `/health/recording` is 503 while no
//! trace can be written, the disk does not answer or the recorder cannot keep up. Nothing else is answered, and nothing here shows what clients send.

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;

use super::proxy::Proxy;
use crate::{
    net::server::{self, Listener},
    recording::recorder::RecorderState,
};

/// How long an admin request may go on after shutdown begins.
const DRAIN: Duration = Duration::from_millis(100);

/// A tap that serves, to whom operates it.
#[derive(Debug, Clone)]
pub struct Handle {
    proxy: Arc<Proxy>,
}

impl Handle {
    pub(super) fn new(proxy: Arc<Proxy>) -> Self {
        Self { proxy }
    }

    /// Closes the trace file within a second and goes on in the next one. Standard output is not rotated.
    pub fn rotate(&self) {
        self.proxy.rotate();
    }

    /// Every count as Prometheus reads it.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.proxy.metrics().page()
    }

    /// Answers the operator's requests at `listener` until `shutdown`.
    pub async fn serve(self, listener: impl Into<Listener>, shutdown: impl Future<Output = ()>) {
        let service = move |request, _peer| {
            let handle = self.clone();
            async move { handle.answer(&request) }
        };
        server::run(listener, service, shutdown, DRAIN).await;
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        match request.uri().path() {
            "/metrics" if is_read => text(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", self.metrics()),
            "/health" if is_read => text(StatusCode::OK, "text/plain", "forwarding\n"),
            "/health/recording" if is_read => {
                let said = match self.proxy.metrics().recorder.progress.state() {
                    RecorderState::Recording => return text(StatusCode::OK, "text/plain", "recording\n"),
                    RecorderState::Failing => "the trace cannot be written\n".to_owned(),
                    RecorderState::Stalled(silence) => {
                        format!("the disk has not answered for {} s\n", silence.as_secs())
                    }
                    RecorderState::Behind => "the recorder cannot keep up: records are dropped\n".to_owned(),
                };
                text(StatusCode::SERVICE_UNAVAILABLE, "text/plain", said)
            }
            "/metrics" | "/health" | "/health/recording" => {
                text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET\n")
            }
            _ => text(StatusCode::NOT_FOUND, "text/plain", "try /metrics, /health or /health/recording\n"),
        }
    }
}

fn text(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
