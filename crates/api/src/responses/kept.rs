//! Requests and answers about stored responses.
//!
//! A conversation goes on with the messages that an earlier response answered, without their instructions, and with the
//! texts of its output: reasoning and tool calls do not come along, as on the engine.

use serde_json::{Value, json};

use crate::{ApiError, Query, answers::put, issues::Issues};

/// Reads the query for a stored response: the index of the first event, if it is requested as events; a negative one
/// counts from the end.
///
/// # Errors
/// A number or a flag that is none.
pub fn events_from(query: &Query) -> Result<Option<i64>, ApiError> {
    let mut issues = Issues::new();
    let from = query.integer("starting_after", &mut issues).map_or(0, |after| after.saturating_add(1));
    let is_stream = query.flag("stream", false, &mut issues);
    issues.unless_any(is_stream.then_some(from))
}

/// A response that is not kept.
#[must_use]
pub fn not_found(id: &str) -> ApiError {
    ApiError::invalid_request(404, format!("Response with id '{id}' not found."), "response_id")
}

/// A response that nothing makes any more.
#[must_use]
pub fn not_cancellable() -> ApiError {
    ApiError::invalid_request(400, "Cannot cancel a synchronous response.", "response_id")
}

/// The body of a response once it is cancelled.
#[must_use]
pub fn cancelled(body: &str) -> String {
    let mut response: Value = serde_json::from_str(body).unwrap_or_default();
    put(&mut response, "status", "cancelled".into());
    response.to_string()
}

/// The conversation after a response to some messages.
#[must_use]
pub fn history(messages: &[Value], body: &str) -> Vec<Value> {
    let response: Value = serde_json::from_str(body).unwrap_or_default();
    let mut history: Vec<Value> = messages.iter().filter(|message| message["role"] != "system").cloned().collect();
    let output = response.get("output").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let texts = output.iter().filter(|item| item["type"] == "message").filter_map(|item| item["content"].as_array());
    history.extend(texts.flatten().map(|part| json!({"role": "assistant", "content": part["text"]})));
    history
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_goes_on_without_instructions_and_reasoning() {
        let messages = [json!({"role": "system", "content": "Be brief."}), json!({"role": "user", "content": "Hi"})];
        let body = json!({"output": [
            {"type": "reasoning", "content": [{"text": "Hm."}]},
            {"type": "message", "content": [{"text": "Hello."}]},
            {"type": "function_call", "name": "f"},
        ]});
        let expected = [json!({"role": "user", "content": "Hi"}), json!({"role": "assistant", "content": "Hello."})];
        assert_eq!(history(&messages, &body.to_string()), expected);
    }

    #[test]
    fn a_query_has_where_events_begin() {
        let read = |query| events_from(&Query::new(Some(query)));
        assert_eq!(read("").unwrap(), None);
        assert_eq!(read("starting_after=3").unwrap(), None);
        assert_eq!(read("stream=1").unwrap(), Some(0));
        assert_eq!(read("stream=true&starting_after=3").unwrap(), Some(4));
        assert_eq!(read("stream=maybe").unwrap_err().status, 400);
        assert_eq!(read("starting_after=x").unwrap_err().status, 400);
    }
}
