//! Cassettes before the endpoints: what was recorded is answered, the rest passes.

use std::{ops::ControlFlow, sync::Arc};

use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt;
use tokio::time::Instant;

use super::{
    extract::clock,
    metrics::{Metrics, count_played},
    middleware::Replay,
    routes,
};
use crate::{
    net::server::{BodyError, RequestBody},
    replay::player::{CassettePlayer, Outcome, Unanswered},
};

/// The cassettes of a server, and where their answers are counted.
#[derive(Debug, Clone)]
pub(super) struct Cassettes {
    pub(super) player: Arc<CassettePlayer>,
    pub(super) metrics: Arc<Metrics>,
}

impl Replay for Cassettes {
    fn takes(&self, _: &Request) -> bool {
        true
    }

    async fn answer(self, mut request: Request) -> ControlFlow<Response, Request> {
        let clock = match clock(request.extensions()) {
            Ok(clock) => clock,
            Err(error) => return ControlFlow::Break(error.into_response()),
        };
        if !routes::is_routed(request.extensions()) {
            request.extensions_mut().insert(Unanswered);
        }
        let at = Instant::now();
        let request = request.map(|body| RequestBody::Boxed(body.map_err(BodyError::broken).boxed_unsync()));
        match Box::pin(self.player.answer(request, &clock.pacer)).await {
            Outcome::Answered(response) => ControlFlow::Break(count_played(&self.metrics, response.map(Body::new), at)),
            Outcome::Passed(request) => ControlFlow::Continue(request.map(Body::new)),
        }
    }
}
