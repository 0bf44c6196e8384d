//! `/render`: a request as the token request that it comes to, for each of the four families.
//!
//! Limits: offsets of tokens and the constraints of a tool parser are left out; a request counts against `--max-num-queued-reqs`, though it never runs.

use axum::extract::State;
use serde_json::Value;

use crate::{
    HandlerState, ServerState,
    generate::parse::ParsedBy,
    http::{ErrorResponse, JsonText, REQUEST_ID, header_text},
    request::{
        extract::{JsonBody, ScaleOutEnabled},
        messages::{chat_of, system_messages},
        prompts::prompts_of,
    },
};
use api::{
    Api, ApiError, GenerationRequest,
    anthropic::MessagesRequest,
    responses::ResponsesRequest,
    token_in_out::{RenderRequest, Rendered},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum RequestFamily {
    Of(Api),
    Messages,
    Responses,
}

/// A request that was read, beside its prompts.
struct ReadRequest {
    request: RenderRequest,
    id: Option<String>,
    by: Option<ParsedBy>,
    sends_reasoning: bool,
}

/// `/render`: the body is one token request, or a list of them of a completion.
pub(in super::super) async fn answer(
    State(state): HandlerState,
    _: ScaleOutEnabled,
    JsonBody { headers, bytes: body }: JsonBody,
    family: RequestFamily,
) -> Result<JsonText, ErrorResponse> {
    let (asked_id, prompts, read) = prompts_of(&state, body, move |state, body| family.read(state, body)).await?;
    let id = header_text(&headers, REQUEST_ID).map(str::to_owned).or(asked_id).unwrap_or_else(|| state.fresh_id());
    if prompts.iter().any(|(ids, _)| ids.is_empty()) {
        return Err(ApiError::bad_request("No token_ids rendered").into());
    }
    let defaults = (state.model.sampling.temperature, state.model.sampling.top_p);
    let is_one = prompts.len() == 1;
    let rendered = prompts.iter().enumerate().map(|(at, (ids, max_tokens))| {
        let id = match (family, &read.id) {
            (_, Some(id)) => id.clone(),
            (RequestFamily::Of(Api::Completions), None) if is_one => format!("cmpl-{id}"),
            (RequestFamily::Of(Api::Completions), None) => format!("cmpl-{id}-{at}"),
            _ => format!("chatcmpl-{id}"),
        };
        let rendered = Rendered { id: &id, ids, max_tokens: *max_tokens, defaults };
        let mut rendered = read.request.token_request(&rendered);
        if let (Some(ended), Some(slot)) = (family.reasoning_ended(&read, ids), rendered.get_mut("reasoning_ended")) {
            *slot = ended.into();
        }
        rendered
    });
    let rendered: Vec<Value> = rendered.collect();
    let body = match (family, rendered.as_slice()) {
        (RequestFamily::Of(Api::Completions), _) => Value::Array(rendered).to_string(),
        (_, [one]) => one.to_string(),
        _ => Value::Array(rendered).to_string(),
    };
    Ok(JsonText(body))
}

impl RequestFamily {
    fn read(self, state: &ServerState, body: &[u8]) -> Result<(GenerationRequest, ReadRequest), ApiError> {
        let mut id = None;
        let (request, rendered) = match self {
            Self::Of(api) => {
                let request = GenerationRequest::parse(api, body)?;
                state.check_model(request.model.as_deref())?;
                (request, RenderRequest::parse(api, body)?)
            }
            Self::Messages => {
                let message = MessagesRequest::parse(body)?;
                (chat_of(state, &message)?, message.rendered(system_messages(&state.model, &message))?)
            }
            Self::Responses => {
                let response = ResponsesRequest::parse(body)?;
                state.check_model(response.model())?;
                if response.previous().is_some() {
                    let message = "previous_response_id is not supported by the stateless render endpoint.";
                    return Err(ApiError::invalid_request(400, message, "previous_response_id"));
                }
                id = Some(response.id().map_or_else(|| format!("resp_{}", state.fresh_id()), str::to_owned));
                response.rendered(response.messages(Vec::new())?)?
            }
        };
        let by = ParsedBy::of(&state.model.parsers, &request);
        let rendered = rendered.with_defaults(&state.model.generation);
        let shows = by.as_ref().is_some_and(ParsedBy::shows_special_tokens);
        let rendered = if shows { rendered.showing_special_tokens() } else { rendered };
        let reasons = state.model.parsers.formats.reasoning.filter(|_| self != Self::Of(Api::Completions));
        let rendered = match reasons {
            Some(_) => rendered.with_reasoning(&state.config.template_kwargs),
            None => rendered,
        };
        let sends_reasoning = request.include_reasoning;
        Ok((request, ReadRequest { request: rendered, id, by, sends_reasoning }))
    }

    /// Checks whether the answer begins behind the reasoning; `None` where the response leaves it open.
    fn reasoning_ended(self, read: &ReadRequest, prompt: &[u32]) -> Option<bool> {
        match self {
            Self::Of(Api::Completions) | Self::Responses => None,
            Self::Of(Api::Chat) | Self::Messages if !read.sends_reasoning => Some(true),
            Self::Of(Api::Chat) | Self::Messages => read.by.as_ref()?.is_reasoning_closed(prompt),
        }
    }
}
