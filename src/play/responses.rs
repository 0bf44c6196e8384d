//! `/v1/responses`, and the paths of responses that would be kept.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use http::{Response, StatusCode};

use super::{
    State,
    generate::{Arrival, Started, start},
    http::{AnswerBody, events, json},
    info,
    translate::translated,
};
use crate::openai::{
    ApiError, ChatAnswer,
    responses::{ResponseEvents, ResponseHead, ResponsesRequest, response_body},
};

/// The id in a kept response's path, and the methods that the path takes.
pub(super) fn kept(path: &str) -> Option<(&str, &'static str)> {
    let rest = path.strip_prefix("/v1/responses/")?;
    let (id, methods) = rest.strip_suffix("/cancel").map_or((rest, "GET"), |id| (id, "POST"));
    (!id.is_empty() && !id.contains('/')).then_some((id, methods))
}

/// Answers a request for a response.
///
/// # Errors
/// Everything that the engine refuses before the first byte, and a miss where those are errors.
pub(super) async fn answer(state: &Arc<State>, arrival: Arrival) -> Result<Response<AnswerBody>, ApiError> {
    let read = |state: &State, body: &[u8]| {
        let request = ResponsesRequest::parse(body)?;
        state.check_model(request.model())?;
        request.check_store()?;
        Ok((request.chat()?, request))
    };
    let (started, request) = start(state, arrival, read).await?;
    let head = head(state, &started, &request);
    let extra = started.headers.clone();
    if started.stream {
        let mut told = ResponseEvents::new(Arc::new(request), head);
        let opening = stream::iter(told.open());
        return Ok(events(opening.chain(translated(started.into_events(), told)), extra));
    }
    let chat = ChatAnswer::read(&started.into_body().await?).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(json(StatusCode::OK, response_body(&request, &head, &chat), extra))
}

fn head(state: &State, started: &Started, request: &ResponsesRequest) -> ResponseHead {
    ResponseHead {
        id: request.id().map_or_else(|| format!("resp_{}", state.fresh_id()), str::to_owned),
        created_at: info::unix_seconds(),
        model: state.models.first().cloned().unwrap_or_default(),
        temperature: state.sampling.temperature,
        top_p: state.sampling.top_p,
        max_output_tokens: started.max_tokens,
        cache: started.cached,
    }
}
