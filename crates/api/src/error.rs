//! Error answers: status and body, exactly as the engine writes them.

use serde_json::{Value, json};
use text::python::write_string;

/// Class of an answer that broke off, which no client sees.
const BROKEN_OFF: &str = "BrokenOff";

/// An error for a client, decided before the first byte of an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{status}: {message}")]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// Human-readable message.
    pub message: String,
    /// The engine's class of error, such as `BadRequestError`.
    pub kind: &'static str,
    /// The parameter at fault.
    pub param: Option<String>,
    /// A word instead of the status as `code`, where clients have to distinguish errors of one status.
    pub code: Option<&'static str>,
    /// Details of a miss for programs, as `vcr`.
    pub detail: Option<Box<Value>>,
    /// The engine's response, where this error is from a record.
    pub recorded: Option<Box<RecordedError>>,
}

/// An error as it was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordedError {
    /// Headers beside those of every answer.
    pub headers: Vec<(String, String)>,
    /// The body, which takes the place of the error's own; `None` where it was not recorded.
    pub body: Option<String>,
}

impl ApiError {
    fn of(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, message, kind, param: None, code: None, detail: None, recorded: None }
    }

    /// A check of the engine's own that failed: 400, `BadRequestError`.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::of(400, "BadRequestError", message)
    }

    /// A check of one parameter that failed; the engine names it in the message too.
    #[must_use]
    pub fn parameter(name: &str, message: &str) -> Self {
        let param = Some(name.to_owned());
        Self { param, ..Self::bad_request(format!("{message} (parameter={name})")) }
    }

    /// As [`parameter`](Self::parameter), with the value that failed, as Python would print it.
    #[must_use]
    pub fn parameter_value(name: &str, message: &str, value: &str) -> Self {
        let param = Some(name.to_owned());
        Self { param, ..Self::bad_request(format!("{message} (parameter={name}, value={value})")) }
    }

    /// The framework's error for a body that does not fit the schema: 400, `Bad Request`.
    #[must_use]
    pub fn framework(message: impl Into<String>, param: Option<String>) -> Self {
        Self { param, ..Self::of(400, "Bad Request", message) }
    }

    /// A body that is not even text or that broke off, which the framework refuses in words of its own.
    #[must_use]
    pub fn unreadable() -> Self {
        Self::of(400, "detail", "There was an error parsing the body")
    }

    /// Returns whether the framework found it, before the request reached an endpoint.
    #[must_use]
    pub fn is_of_framework(&self) -> bool {
        ["Bad Request", "detail"].contains(&self.kind)
    }

    /// A content type other than JSON.
    #[must_use]
    pub fn unsupported_media_type() -> Self {
        Self::framework("1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", None)
    }

    /// A request of the Responses family that its handler refuses.
    #[must_use]
    pub fn invalid_request(status: u16, message: impl Into<String>, param: &str) -> Self {
        Self { param: Some(param.to_owned()), ..Self::of(status, "invalid_request_error", message) }
    }

    /// An endpoint of the engine that this server does not have: 501.
    #[must_use]
    pub fn not_implemented(message: impl Into<String>) -> Self {
        Self::of(501, "NotImplementedError", message)
    }

    /// An endpoint that the server was not started with: 403.
    #[must_use]
    pub fn permission_denied(message: impl Into<String>) -> Self {
        Self::of(403, "PermissionDeniedError", message)
    }

    /// A prompt that leaves no room: 400.
    #[must_use]
    pub fn prompt_too_long(prompt_tokens: u32, max_model_len: u32) -> Self {
        let count = if prompt_tokens == max_model_len.saturating_add(1) { "at least " } else { "" };
        let message = format!(
            "This model's maximum context length is {max_model_len} tokens. However, your prompt contains \
             {count}{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please \
             reduce the length of the input prompt."
        );
        Self::parameter_value("input_tokens", &message, &prompt_tokens.to_string())
    }

    /// A model that is not served: 404.
    #[must_use]
    pub fn unknown_model(name: &str, served: &[String]) -> Self {
        let message = format!("The model `{name}` does not exist. Valid aliases: {}.", served.join(", "));
        Self { param: Some("model".to_owned()), ..Self::not_found(message) }
    }

    /// A body over the limit, in bytes: 413.
    #[must_use]
    pub fn too_large(limit: usize) -> Self {
        Self::of(413, "Request Entity Too Large", format!("The request body is larger than {limit} bytes."))
    }

    /// No recorded answer for this request, for the reason that `code` names. SDKs do not retry 422.
    #[must_use]
    pub fn miss(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::of(status, "vcr_miss", message) }
    }

    /// Too many requests at a time: 503.
    #[must_use]
    pub fn busy() -> Self {
        let message = "The engine is currently busy and cannot accept new requests. Please try again later or on a \
                       different instance.";
        Self::of(503, "Service Unavailable", message)
    }

    /// A request about an adapter that makes no sense: 400, with the engine's own word for it.
    #[must_use]
    pub fn invalid_input(message: impl Into<String>) -> Self {
        Self::of(400, "InvalidUserInput", message)
    }

    /// Something that is not there: 404.
    #[must_use]
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::of(404, "NotFoundError", message)
    }

    /// An error that was recorded; the message and the kind are those where its body was not.
    #[must_use]
    pub fn recorded(status: u16, message: String, kind: &'static str, recorded: RecordedError) -> Self {
        Self { recorded: Some(Box::new(recorded)), ..Self::of(status, kind, message) }
    }

    /// Returns whether it is sent as it is, in every family: it has a recorded body.
    #[must_use]
    pub fn is_verbatim(&self) -> bool {
        self.recorded.as_ref().is_some_and(|recorded| recorded.body.is_some())
    }

    /// A fault of the server itself: 500.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::of(500, "InternalServerError", message)
    }

    /// A recorded answer that broke off: its connection ends in the place of an answer.
    #[must_use]
    pub fn broken_off() -> Self {
        Self::of(500, BROKEN_OFF, "The recorded answer broke off.")
    }

    /// Checks whether the connection ends in the place of an answer.
    #[must_use]
    pub fn ends_connection(&self) -> bool {
        self.kind == BROKEN_OFF
    }

    /// The payload of the event by which a stream reports it: JSON with spaces and in ASCII, unlike everything else.
    #[must_use]
    pub fn event(&self) -> String {
        let ascii = |text: &str| {
            let mut out = String::new();
            write_string(text, true, &mut out);
            out
        };
        let (message, kind, status) = (ascii(&self.message), ascii(self.kind), self.status);
        let param = self.param.as_deref().map_or_else(|| "null".to_owned(), ascii);
        format!("{{\"error\": {{\"message\": {message}, \"type\": {kind}, \"param\": {param}, \"code\": {status}}}}}")
    }

    /// The body: compact JSON with the engine's field order.
    #[must_use]
    pub fn body(&self) -> String {
        if let Some(body) = self.recorded.as_ref().and_then(|recorded| recorded.body.clone()) {
            return body;
        }
        if self.kind == "detail" {
            return json!({"detail": self.message}).to_string();
        }
        let code = self.code.map_or_else(|| Value::from(self.status), Value::from);
        let mut error = json!({"message": self.message, "type": self.kind, "param": self.param, "code": code});
        if let (Some(detail), Some(fields)) = (&self.detail, error.as_object_mut()) {
            fields.insert("vcr".to_owned(), (**detail).clone());
        }
        json!({"error": error}).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_json_in_ascii() {
        assert_eq!(
            ApiError::parameter("prompt", "naïve \u{1f980}").event(),
            r#"{"error": {"message": "na\u00efve \ud83e\udd80 (parameter=prompt)", "type": "BadRequestError", "param": "prompt", "code": 400}}"#
        );
        assert_eq!(
            ApiError::internal("Internal server error").event(),
            r#"{"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}"#
        );
    }

    #[test]
    fn bodies_have_the_engines_field_order() {
        assert_eq!(
            ApiError::unknown_model("nope", &["tiny-qwen3".to_owned()]).body(),
            r#"{"error":{"message":"The model `nope` does not exist. Valid aliases: tiny-qwen3.","type":"NotFoundError","param":"model","code":404}}"#
        );
        assert_eq!(
            ApiError::miss(422, "no_match", "nothing").body(),
            r#"{"error":{"message":"nothing","type":"vcr_miss","param":null,"code":"no_match"}}"#
        );
    }
}
