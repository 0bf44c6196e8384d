//! Cassettes before the endpoints: what was recorded is answered, the rest passes.

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt;
use tokio::time::Instant;

use super::{Player, extract::clock, metrics::count_played, routes};
use crate::{
    net::server::{BodyError, RequestBody},
    replay::player::{Outcome, Unanswered},
};

/// Answers from a cassette, or passes the request on.
pub(super) async fn replay(State(player): State<Player>, mut request: Request, next: Next) -> Response {
    let Some(cassette_player) = &player.state.config.cassette_player else { return next.run(request).await };
    let clock = match clock(request.extensions()) {
        Ok(clock) => clock,
        Err(error) => return error.into_response(),
    };
    if !routes::is_routed(request.extensions()) {
        request.extensions_mut().insert(Unanswered);
    }
    let at = Instant::now();
    let request = request.map(|body| RequestBody::Boxed(body.map_err(BodyError::broken).boxed_unsync()));
    match Box::pin(cassette_player.answer(request, &clock.pacer)).await {
        Outcome::Answered(response) => count_played(&player.state.metrics, response.map(Body::new), at),
        Outcome::Passed(request) => next.run(request.map(Body::new)).await,
    }
}
