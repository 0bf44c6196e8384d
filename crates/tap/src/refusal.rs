//! Content of an error response that is recorded: headers that a client acts on, and a small body.
//!
//! An engine's message may repeat its client's content. Unless content is recorded, a body keeps its shape, its numbers and
//! the words that engines have for kinds of errors and for a request's fields; every other text in it is replaced, but for messages that are known
//! to be the same for everybody. Limits: compressed bodies and those of more than [`LARGEST`] bytes are not kept.

use std::collections::BTreeMap;

use http::{HeaderMap, header};
use serde_json::{Map, Value};

use recording::{
    cassette::Moment,
    trace::{RecordedErrorResponse, Response, ResponseContent, WITHHELD, is_acted_on},
};

/// The largest body that is kept, in bytes.
const LARGEST: usize = 16 << 10;

/// The longest value of a header that is kept, in bytes.
const LONGEST_HEADER: usize = 256;

/// Fields of bodies that are kept; any other field may have the client's content.
const NAMES: [&str; 8] = ["code", "detail", "error", "message", "object", "param", "status", "type"];

/// Messages that do not depend on the request.
const KNOWN_MESSAGES: [&str; 9] = [
    "Bad Gateway",
    "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    "Gateway Timeout",
    "Internal Server Error",
    "Internal server error",
    "Not Found",
    "Service Unavailable",
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
    "Unauthorized",
];

/// Names of request fields that are kept in `param`.
const PARAMS: [&str; 20] = [
    "input",
    "input_text",
    "input_tokens",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "model",
    "n",
    "prompt",
    "prompt_logprobs",
    "response_format",
    "stop",
    "stream_options",
    "temperature",
    "tool_choice",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
];

/// An error on its way to the client.
#[derive(Debug, Default)]
pub(super) struct Refusal {
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
    /// The body is compressed or too long.
    is_lost: bool,
}

impl Refusal {
    /// Creates an error from its headers.
    pub(super) fn new(headers: &HeaderMap) -> Self {
        let kept = headers.iter().filter(|(name, value)| is_acted_on(name.as_str()) && value.len() <= LONGEST_HEADER);
        let text = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
        };
        Self {
            headers: kept.filter_map(text).collect(),
            body: Vec::new(),
            is_lost: headers.contains_key(header::CONTENT_ENCODING),
        }
    }

    /// Creates an error from the `error` of a stream's event.
    pub(super) fn of_event(error: &str) -> Self {
        let mut made = Self::default();
        made.push(format!("{{\"error\": {error}}}").as_bytes());
        made
    }

    /// Appends to the body.
    pub(super) fn push(&mut self, data: &[u8]) {
        self.is_lost |= self.body.len() + data.len() > LARGEST;
        if self.is_lost {
            self.body = Vec::new();
        } else {
            self.body.extend_from_slice(data);
        }
    }

    /// Returns the bytes that it holds.
    pub(super) fn weight(&self) -> usize {
        self.body.capacity() + self.headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
    }

    pub(super) fn into_response(self, keeps_content: bool) -> RecordedErrorResponse {
        let body = String::from_utf8(self.body).ok().filter(|body| !body.is_empty());
        let body = body.and_then(|body| if keeps_content { Some(body) } else { without_content(&body) });
        RecordedErrorResponse { headers: self.headers, body }
    }
}

/// Withholds the same texts of a response that is recorded itself: of an error's body, and of an error inside another body or event.
pub(super) fn withhold_error(response: &mut Response, status: Option<u16>) {
    match &mut response.content {
        ResponseContent::Body(body) if status.is_some_and(|status| status >= 400) => {
            if !body.is_empty() {
                let kept = std::str::from_utf8(body).ok().and_then(without_content);
                *body = kept.unwrap_or_else(|| WITHHELD.to_owned()).into();
            }
        }
        ResponseContent::Body(body) => {
            if let Some(kept) = std::str::from_utf8(body).ok().and_then(without_error) {
                *body = kept.into();
            }
        }
        ResponseContent::Events(events) => {
            for Moment(_, data, _) in events {
                if let Some(kept) = data.as_deref().and_then(without_error) {
                    *data = Some(kept);
                }
            }
        }
    }
}

/// Withholds texts of the error inside an event or a body; `None` if there is nothing to withhold.
fn without_error(text: &str) -> Option<String> {
    let whole: Value = text.contains("\"error\"").then(|| serde_json::from_str(text).ok())??;
    let mut clean = whole.clone();
    let is_error = whole.get("type").is_some_and(|kind| kind == "error");
    let own: &[(&str, &str)] = if is_error { &[("/message", "message"), ("/param", "param")] } else { &[] };
    for (place, name) in [("/error", "error"), ("/response/error", "error")].iter().chain(own) {
        clean.pointer_mut(place).into_iter().for_each(|part| *part = kept(part, name));
    }
    (clean != whole).then(|| clean.to_string())
}

/// Withholds texts of a body that may come from the client; a body without any stays byte for byte. `None` if
/// it is not JSON.
fn without_content(body: &str) -> Option<String> {
    let whole: Value = serde_json::from_str(body).ok()?;
    let kept = kept(&whole, "");
    if kept == whole { Some(body.to_owned()) } else { Some(kept.to_string()) }
}

fn kept(value: &Value, name: &str) -> Value {
    match value {
        Value::Object(fields) => {
            let known = fields.iter().filter(|(name, _)| NAMES.contains(&name.as_str()));
            known.map(|(name, value)| (name.clone(), kept(value, name))).collect::<Map<_, _>>().into()
        }
        Value::String(text) if is_harmless(text, name) => value.clone(),
        Value::String(_) | Value::Array(_) => WITHHELD.into(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// Returns true for text of the engine's own: a known message, or a word for a kind of error.
fn is_harmless(text: &str, name: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'-' | b' ');
    text.is_empty()
        || KNOWN_MESSAGES.contains(&text)
        || (name == "param" && PARAMS.contains(&text))
        || (matches!(name, "type" | "code" | "object" | "status") && text.len() <= 48 && text.bytes().all(is_word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(body: &str, keeps_content: bool) -> Option<String> {
        let mut refusal = Refusal::default();
        refusal.push(body.as_bytes());
        refusal.into_response(keeps_content).body
    }

    #[test]
    fn a_clients_content_is_recorded_only_if_content_is() {
        let echoing = r#"{"error":{"message":"no model named my-secret","type":"NotFoundError","param":"my-secret","code":404},"my-secret":1}"#;
        let without =
            r#"{"error":{"message":"(not recorded)","type":"NotFoundError","param":"(not recorded)","code":404}}"#;
        assert_eq!(recorded(echoing, false).as_deref(), Some(without));
        assert_eq!(recorded(echoing, true).as_deref(), Some(echoing));
        assert_eq!(recorded("<p>my-secret</p>", false), None);
        assert_eq!(recorded("<p>my-secret</p>", true).as_deref(), Some("<p>my-secret</p>"));
        assert_eq!(
            recorded(r#"{"detail":[{"input":"my-secret"}]}"#, false).as_deref(),
            Some(r#"{"detail":"(not recorded)"}"#)
        );
    }

    #[test]
    fn messages_of_the_engine_alone_are_recorded_as_they_are() {
        for body in [
            r#"{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}"#,
            r#"{"error": "Unauthorized"}"#,
            r#"{"error":{"message":"Service Unavailable","type":"x","param":"max_tokens","code":503}}"#,
            r#"{"detail":"Not Found"}"#,
        ] {
            assert_eq!(recorded(body, false).as_deref(), Some(body));
        }
    }

    #[test]
    fn errors_of_responses_that_are_recorded_themselves_are_treated_alike() {
        let body = |text: &str| ResponseContent::Body(text.into());
        let event = |text: &str| ResponseContent::Events(vec![Moment(1.0, Some(text.to_owned()), None)]);
        let answer = r#"{"data":[{"embedding":[0.10]}],"error":null,"usage":{"prompt_tokens":3}}"#;
        for (status, content, kept) in [
            (
                400,
                body(r#"{"error":{"message":"my words","code":400}}"#),
                body(r#"{"error":{"message":"(not recorded)","code":400}}"#),
            ),
            (400, body("my words"), body("(not recorded)")),
            (400, body(""), body("")),
            (200, body(answer), body(answer)),
            (200, body("my \"error\""), body("my \"error\"")),
            (200, event(r#"{"error": {"message": "my words"}}"#), event(r#"{"error":{"message":"(not recorded)"}}"#)),
            (
                200,
                event(r#"{"type":"error","sequence_number":3,"message":"my words","param":null}"#),
                event(r#"{"type":"error","sequence_number":3,"message":"(not recorded)","param":null}"#),
            ),
            (
                200,
                event(
                    r#"{"type":"response.failed","response":{"id":"r","error":{"code":"server_error","message":"my words"}}}"#,
                ),
                event(
                    r#"{"type":"response.failed","response":{"id":"r","error":{"code":"server_error","message":"(not recorded)"}}}"#,
                ),
            ),
            (
                200,
                event(r#"{"error": {"message": "Internal server error", "code": 500}}"#),
                event(r#"{"error": {"message": "Internal server error", "code": 500}}"#),
            ),
        ] {
            let mut response = Response { content, ..Response::default() };
            withhold_error(&mut response, Some(status));
            assert_eq!(response.content, kept);
        }
    }

    #[test]
    fn large_and_packed_bodies_are_not_kept() {
        assert_eq!(recorded(&format!("\"{}\"", "x".repeat(LARGEST)), true), None);
        let mut packed = Refusal::new(&HeaderMap::from_iter([(header::CONTENT_ENCODING, "gzip".parse().unwrap())]));
        packed.push(b"{}");
        assert_eq!(packed.into_response(true).body, None);
    }

    #[test]
    fn only_headers_that_a_client_acts_on_are_kept() {
        let headers: HeaderMap = [
            ("retry-after", "7"),
            ("x-ratelimit-remaining-tokens", "12"),
            ("content-type", "application/json"),
            ("set-cookie", "a=b"),
            ("x-request-id", "r"),
        ]
        .into_iter()
        .map(|(name, value)| (name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap()))
        .collect();
        let kept = Refusal::new(&headers).into_response(false).headers;
        assert_eq!(kept.keys().collect::<Vec<_>>(), ["content-type", "retry-after", "x-ratelimit-remaining-tokens"]);
    }
}
