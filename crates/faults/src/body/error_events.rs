//! Errors as events, in the words of the endpoints.

use api::{ApiError, Endpoint, anthropic};
use bytes::Bytes;
use net::wire::encode_event;
use serde_json::{Value, json};

use crate::{kind::RefusalContext, piece::FaultedForm};

/// An error in the middle of a body, and what follows it.
///
/// The engine writes a failure with spaces in its JSON and `[DONE]` after it, Messages as an event `error` and nothing after it. It ends
/// `/v1/responses` without a word; the event there is OpenAI's `error`. An MCP server fails with an internal error of JSON-RPC.
pub(super) fn error_events(error: &ApiError, context: &RefusalContext, form: FaultedForm, events: u64) -> Vec<Bytes> {
    if context.rpc_id.is_some() {
        let rpc = error.body();
        return vec![if form == FaultedForm::Whole { rpc.into() } else { encode_event(Some("message"), &rpc) }];
    }
    match (form, context.endpoint) {
        (FaultedForm::Whole, Endpoint::Messages) => vec![anthropic::error_body(error).into()],
        (FaultedForm::Whole, _) => vec![error.body().into()],
        (_, Endpoint::Messages) => {
            let kind = if error.status == 500 { "internal_error" } else { error.kind };
            let data = json!({"type": "error", "error": {"type": kind, "message": error.message}});
            vec![encode_event(Some("error"), &data.to_string())]
        }
        (_, Endpoint::Responses) => {
            let data = json!({
                "type": "error", "sequence_number": events, "code": error.kind, "message": error.message, "param": null,
            });
            vec![encode_event(Some("error"), &data.to_string())]
        }
        _ => {
            let message = Value::from(error.message.as_str());
            let data = format!(
                "{{\"error\": {{\"message\": {message}, \"type\": \"{}\", \"param\": null, \"code\": {}}}}}",
                error.kind, error.status
            );
            vec![encode_event(None, &data), encode_event(None, "[DONE]")]
        }
    }
}
