//! Generation requests in other forms: batches of conversations, invocations, tokens in and out.

use axum::{extract::State, response::Response};
use http::StatusCode;

use crate::{
    HandlerState, ServerState,
    http::{ErrorResponse, header_text, json},
    request::{
        extract::{JsonBody, ScaleOutEnabled},
        pipeline::{Arrival, respond, start},
    },
};
use api::{
    ADAPTER_HEADER, ApiError,
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

const NO_SESSIONS: &str =
    "Invalid payload. stateful sessions not enabled, X-Amzn-SageMaker-Session-Id header not supported";

/// `/invocations`
pub(in super::super) async fn invoke(State(state): HandlerState, arrival: Arrival) -> VariantAnswer {
    let header = |name| header_text(&arrival.headers, name).filter(|value| !value.is_empty());
    let has_session = header("x-amzn-sagemaker-session-id").is_some();
    let adapter = header(ADAPTER_HEADER).map(str::to_owned);
    let read = move |_: &ServerState, body: &[u8]| {
        if has_session {
            return Err(ApiError::framework(NO_SESSIONS, None));
        }
        Ok((invocation(body, adapter)?, ()))
    };
    let (started, ()) = start(&state, arrival, read).await?;
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
