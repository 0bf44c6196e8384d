//! The response of an exchange as the client got it, for answers that no token ids stand for.
//!
//! In a file it is `{"headers": [[name, value], …], "events": [[ms, data, name?], …]}` for a stream, with `body` (text) or
//! `body_base64` instead of `events` for any other. An event is what a cassette's sidecar has of one ([`Moment`]): comments
//! and fields besides `data` and `event` are left out.
//!
//! See docs/decisions/0025-four-forms-of-content.md.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::SerializeMap};

use crate::cassette::Moment;

/// Headers that a client acts on: what the content is, and where, how and when to send the request again.
const ACTED_ON: [&str; 7] =
    ["allow", "content-type", "location", "retry-after", "retry-after-ms", "www-authenticate", "x-should-retry"];
const LIMITS: [&str; 3] = ["ratelimit", "x-ratelimit-", "anthropic-ratelimit-"];

/// Returns true for the name of a response header that a client acts on, in small letters.
#[must_use]
pub fn is_acted_on(name: &str) -> bool {
    ACTED_ON.contains(&name) || is_limit(name)
}

fn is_limit(name: &str) -> bool {
    LIMITS.iter().any(|start| name.starts_with(start))
}

/// Returns true for the name of a kept header that has another value in each response.
pub(crate) fn varies(name: &str) -> bool {
    is_limit(name) || name == "openai-processing-ms"
}

/// Source of a record's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentSource {
    /// Token ids that the engine named.
    Engine,
    /// Token ids that a tokenizer made of the text, and that give back exactly the text and its cuts.
    Tokenizer,
    /// The events of the response.
    Events,
    /// The body of the response.
    Body,
}

/// A recorded response, its secrets redacted. Its status is the record's.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Response {
    /// Headers about its content, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body or events.
    pub content: ResponseContent,
}

/// Content of a response.
#[derive(Debug, Clone, PartialEq)]
pub enum ResponseContent {
    /// A stream: each event with its time in milliseconds since the request.
    Events(Vec<Moment>),
    /// Any other, byte for byte.
    Body(Vec<u8>),
}

impl Default for ResponseContent {
    fn default() -> Self {
        Self::Body(Vec::new())
    }
}

impl Response {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns true if it is read as it is written.
    pub(super) fn is_sound(&self) -> bool {
        match &self.content {
            ResponseContent::Events(events) => {
                events.iter().all(|Moment(ms, data, _)| *ms >= 0.0 && ms.is_finite() && data.is_some())
            }
            ResponseContent::Body(_) => true,
        }
    }

    /// The record's value for the source of its content.
    #[must_use]
    pub fn source(&self) -> ContentSource {
        match self.content {
            ResponseContent::Events(_) => ContentSource::Events,
            ResponseContent::Body(_) => ContentSource::Body,
        }
    }
}

impl Serialize for Response {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.headers.is_empty() {
            map.serialize_entry("headers", &self.headers)?;
        }
        match &self.content {
            ResponseContent::Events(events) => map.serialize_entry("events", events)?,
            ResponseContent::Body(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => map.serialize_entry("body", text)?,
                Err(_) => map.serialize_entry("body_base64", &STANDARD.encode(bytes))?,
            },
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Response {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct ResponseFields {
            #[serde(default)]
            headers: Vec<(String, String)>,
            events: Option<Vec<Moment>>,
            body: Option<String>,
            body_base64: Option<String>,
        }
        let ResponseFields { headers, events, body, body_base64 } = ResponseFields::deserialize(deserializer)?;
        let content = match (events, body, body_base64) {
            (Some(events), None, None) => ResponseContent::Events(events),
            (None, Some(text), None) => ResponseContent::Body(text.into_bytes()),
            (None, None, Some(digits)) => {
                let bytes = STANDARD.decode(digits).map_err(|_| D::Error::custom("`body_base64` is no base64"))?;
                ResponseContent::Body(bytes)
            }
            _ => return Err(D::Error::custom("a response has one of `events`, `body` and `body_base64`")),
        };
        if let ResponseContent::Events(events) = &content
            && let Some(at) = events.iter().position(|Moment(ms, data, _)| *ms < 0.0 || data.is_none())
        {
            return Err(D::Error::custom(format_args!("event {at} is no [ms, data, name]")));
        }
        Ok(Self { headers, content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_read_as_they_are_written() {
        for text in [
            r#"{"headers":[["content-type","text/event-stream"]],"events":[[1.5,"{}","message_stop"],[2.0,"[DONE]"]]}"#,
            r#"{"body":"{\"data\": []}"}"#,
            r#"{"headers":[["content-type","x/y"]],"body_base64":"AP8="}"#,
        ] {
            let read: Response = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
        }
        for text in [
            "{}",
            r#"{"body":"","events":[]}"#,
            r#"{"events":[[1.0]]}"#,
            r#"{"events":[[-1.0,"x"]]}"#,
            r#"{"body_base64":"-"}"#,
        ] {
            assert!(serde_json::from_str::<Response>(text).is_err(), "{text}");
        }
    }
}
