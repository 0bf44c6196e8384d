//! The Responses API as vLLM 0.32 speaks it: requests become chat requests, chat answers become responses.
//!
//! Reasoning and tool calls are where the chat answer has them. Responses are stored by the server, see
//! `kept` for their requests.
//!
//! Limits: an input item of no known kind is refused, but not with all that the engine tried on it;
//! log probabilities are not sent; built-in tools (search, code, MCP) are repeated and never called, as on a server
//! without a tool server; tools of other kinds than function, custom and web search are repeated as they came.

mod answer;
mod items;
mod kept;
mod request;
mod schema;
mod stream;
mod tools;

pub use self::{
    answer::{ResponseHead, queued_body},
    kept::{cancelled, events_from, history, not_cancellable, not_found},
    request::ResponsesRequest,
    stream::ResponseEncoder,
};
use super::ApiError;
pub use super::answers::completed;

/// The error of a server without a store for a request in the background.
#[must_use]
pub fn no_store() -> ApiError {
    let message = "This vLLM engine does not support `store=True` and therefore does not support the background mode. \
                   To enable these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when \
                   launching the vLLM server.";
    ApiError::invalid_request(400, message, "background")
}

/// The id of an item: the same for the same response and place.
fn item_id(kind: &str, response: &str, place: usize) -> String {
    let seed = u64::try_from(place).unwrap_or(u64::MAX);
    let hash = xxhash_rust::xxh3::xxh3_64_with_seed(response.as_bytes(), seed);
    format!("{kind}_{:016x}", (hash >> 2) | 0x8000_0000_0000_0000)
}
