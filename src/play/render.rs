//! `/v1/chat/completions/render` and `/v1/completions/render`: a request as the token request that it comes to.
//!
//! Limits: neither offsets of tokens nor a reasoning parser's state are told; a request counts against
//! `--max-num-queued-reqs`, though it never runs.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;

use super::{State, prompts::prompts_of};
use crate::openai::{
    Api, ApiError, GenerationRequest,
    token_in_out::{RenderRequest, Rendered},
};

/// The body: one token request of a chat, a list of them of a completion.
///
/// # Errors
/// As of the request itself, and a prompt without tokens.
pub(super) async fn answer(state: &Arc<State>, api: Api, headers: &HeaderMap, body: Bytes) -> Result<String, ApiError> {
    let read = move |state: &State, body: &[u8]| {
        let request = GenerationRequest::parse(api, body)?;
        state.check_model(request.model.as_deref())?;
        Ok((request, RenderRequest::parse(api, body)?))
    };
    let (asked_id, prompts, request) = prompts_of(state, body, read).await?;
    let sent_id = headers.get("x-request-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let id = sent_id.or(asked_id).unwrap_or_else(|| state.fresh_id());
    if prompts.iter().any(|(ids, _)| ids.is_empty()) {
        return Err(ApiError::bad_request("No token_ids rendered"));
    }
    let defaults = (state.sampling.temperature, state.sampling.top_p);
    let is_one = prompts.len() == 1;
    let rendered = prompts.iter().enumerate().map(|(at, (ids, max_tokens))| {
        let id = match api {
            Api::Chat => format!("chatcmpl-{id}"),
            Api::Completions if is_one => format!("cmpl-{id}"),
            Api::Completions => format!("cmpl-{id}-{at}"),
        };
        request.token_request(&Rendered { id: &id, ids, max_tokens: *max_tokens, defaults })
    });
    let rendered: Vec<Value> = rendered.collect();
    Ok(match (api, rendered.as_slice()) {
        (Api::Chat, [one]) => one.to_string(),
        _ => Value::Array(rendered).to_string(),
    })
}
