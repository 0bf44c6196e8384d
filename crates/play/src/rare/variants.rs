//! Generation requests in other forms: batches of conversations, invocations, tokens in and out.

use axum::{extract::State, response::Response};
use http::StatusCode;

use crate::{
    HandlerState, ServerState,
    http::{ErrorResponse, json},
    request::{
        extract::{JsonBody, ScaleOutEnabled},
        pipeline::{Arrival, respond, start},
    },
};
use api::{
    ApiError,
    answers::ResponseForm,
    batch_body, batch_request, invocation,
    token_in_out::{TokenEncoder, TokenRequest},
};

type VariantAnswer = Result<Response, ErrorResponse>;

/// An endpoint that needs a model.
pub(in super::super) async fn unserved(_: JsonBody) -> ErrorResponse {
    ApiError::not_implemented("vllm-vcr does not serve this endpoint.").into()
}

/// `/v1/chat/completions/batch`
pub(in super::super) async fn batch(State(state): HandlerState, arrival: Arrival) -> VariantAnswer {
    let read = |state: &ServerState, body: &[u8]| {
        let request = batch_request(body, state.model.parsers.parses(), |model| state.check_model(model))?;
        Ok((request, ()))
    };
    let (started, ()) = start(&state, arrival, read).await?;
    let extra = started.headers.clone();
    let body = batch_body(&started.into_body().await?.text).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(json(StatusCode::OK, body, extra))
}

/// `/invocations`
pub(in super::super) async fn invoke(State(state): HandlerState, arrival: Arrival) -> VariantAnswer {
    let (started, ()) = start(&state, arrival, |_, body| Ok((invocation(body)?, ()))).await?;
    Ok(respond(started).await?)
}

/// `/inference/v1/generate`
pub(in super::super) async fn tokens(
    State(state): HandlerState,
    _: ScaleOutEnabled,
    arrival: Arrival,
) -> VariantAnswer {
    let read = |_: &ServerState, body: &[u8]| {
        let request = TokenRequest::parse(body)?;
        Ok((request.completion()?, request))
    };
    let (started, request) = start(&state, arrival, read).await?;
    Ok(respond(started.in_form(ResponseForm::Tokens(TokenEncoder::new(&request)))).await?)
}
