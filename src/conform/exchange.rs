//! The recorded exchanges.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::header;
use serde::Deserialize;
use serde_json::Value;

use super::{
    events::{StreamedEvent, compare_events, events},
    shape::{ShapeDifferences, compare},
};
use crate::net::upstream::FetchedResponse;

const EXCHANGES: &str = include_str!("exchanges.jsonl");

/// Placeholder of the model's name.
const MODEL: &str = "MODEL";

/// An exchange with a real vLLM, shortened: of events that repeat one is kept.
#[derive(Debug, Clone, Deserialize)]
pub struct ConformExchange {
    /// Its name in the goldens.
    pub case: String,
    /// Its name for people.
    pub name: String,
    /// The method.
    pub method: String,
    /// The path.
    pub path: String,
    /// The request's body: JSON, or a text that is sent as it is.
    pub request: Value,
    /// The response's status.
    pub status: u16,
    /// Headers that clients look at.
    pub headers: BTreeMap<String, String>,
    /// The response's JSON; null where it has none.
    #[serde(default)]
    pub response: Value,
    /// The events of a stream.
    #[serde(default)]
    pub events: Vec<String>,
}

/// Lists the exchanges.
///
/// # Panics
/// Never: a test reads them.
#[must_use]
pub fn exchanges() -> Vec<ConformExchange> {
    let read = |line: &str| serde_json::from_str(line).ok();
    EXCHANGES.lines().filter_map(read).collect()
}

impl ConformExchange {
    /// The body to send; `None` where there is none.
    pub(crate) fn body(&self, model: &str) -> Option<String> {
        let mut request = self.request.clone();
        match &mut request {
            Value::Null => return None,
            Value::String(text) => return Some(text.clone()),
            body => {
                if let Some(name) = body.get_mut("model").filter(|name| **name == MODEL) {
                    *name = Value::from(model);
                }
            }
        }
        Some(request.to_string())
    }

    pub(crate) fn compare(&self, answer: &FetchedResponse) -> ShapeDifferences {
        let mut found = ShapeDifferences::default();
        if answer.status != self.status {
            let start: String = String::from_utf8_lossy(&answer.body).chars().take(120).collect();
            let status = answer.status.as_u16();
            found.add("status", format!("is {status}; {} was recorded ({})", self.status, start.trim()));
            return found;
        }
        for (name, recorded) in &self.headers {
            let received = answer.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
            let essence = |value: &str| value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            match received {
                None => found.add(name, format!("is missing; {recorded} was recorded")),
                Some(received) if name == header::CONTENT_TYPE.as_str() && essence(&received) == essence(recorded) => {}
                Some(received) if received == *recorded => {}
                Some(received) => found.add(name, format!("is {received}; {recorded} was recorded")),
            }
        }
        if !self.events.is_empty() {
            compare_events(&self.recorded_events(), &events(&answer.body), &mut found);
        } else if !self.response.is_null() {
            match serde_json::from_slice::<Value>(&answer.body) {
                Ok(received) => compare("$", &self.response, &received, &mut found),
                Err(error) => found.add("body", format!("is no JSON: {error}")),
            }
        }
        found
    }

    fn recorded_events(&self) -> Vec<StreamedEvent> {
        let text: String = self.events.iter().flat_map(|event| [event.as_str(), "\n\n"]).collect();
        events(&Bytes::from(text))
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn every_exchange_is_read_and_is_its_own_shape() {
        let all = exchanges();
        assert_eq!((all.len(), EXCHANGES.lines().count()), (34, 34));
        for exchange in all {
            let headers = exchange.headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            let body = if exchange.events.is_empty() {
                exchange.response.to_string()
            } else {
                exchange.events.iter().map(|event| format!("{event}\n\n")).collect()
            };
            let answer = FetchedResponse {
                status: exchange.status.try_into().unwrap(),
                headers: headers.collect(),
                body: Bytes::from(body.clone()),
                at: Instant::now(),
            };
            assert_eq!(exchange.compare(&answer), ShapeDifferences::default(), "{}", exchange.case);
            if exchange.case == "chat_stream" {
                let cut = Bytes::from(body.replace("data: [DONE]\n\n", ""));
                let found = exchange.compare(&FetchedResponse { body: cut, ..answer.clone() });
                assert!(found.differences[0].what.ends_with("role, text, finish, [DONE] was recorded"), "{found:?}");
            }
            let wrong = exchange.compare(&FetchedResponse { status: StatusCode::BAD_GATEWAY, ..answer });
            assert_eq!(wrong.differences.len(), 1, "{}", exchange.case);
        }
    }

    /// What vLLM 0.32 sends where tokens are parts of characters, of one token after the other.
    #[test]
    fn tokens_without_text_are_no_difference() {
        let exchange = exchanges().into_iter().find(|exchange| exchange.case == "chat_logprobs_stream").unwrap();
        let all = exchange.recorded_events();
        let found = |deltas: [Value; 2]| {
            let mut received = all.clone();
            let mut deltas = deltas.into_iter();
            for event in received.iter_mut().filter(|event| ["text", "finish"].contains(&event.role.as_str())) {
                event.data["choices"][0]["delta"] = deltas.next().unwrap();
                event.data["choices"][0]["logprobs"]["content"][0]["token"] = Value::from("");
                event.data["choices"][0]["logprobs"]["content"][0]["bytes"] = Value::Array(Vec::new());
            }
            let with_text = received[1].clone();
            received.insert(1, StreamedEvent { data: all[1].data.clone(), ..with_text });
            received[1].data["choices"][0]["delta"] = serde_json::json!({});
            let mut found = ShapeDifferences::default();
            compare_events(&all, &received, &mut found);
            found.differences
        };
        let (empty, text) = (serde_json::json!({}), serde_json::json!({"content": "x"}));
        assert_eq!(found([text.clone(), empty.clone()]), []);
        let none = found([empty.clone(), empty]);
        assert!(none.iter().all(|it| it.place == "text: $.choices[0].delta.content") && !none.is_empty(), "{none:?}");
        let other = found([serde_json::json!({"text": "x"}), text]);
        assert!(other.len() == 1 && other[0].place == "text: $.choices[0].delta.content", "{other:?}");
    }

    #[test]
    fn the_model_is_put_in() {
        let chat = exchanges().into_iter().find(|exchange| exchange.case == "chat_full").unwrap();
        assert!(chat.body("org/m").unwrap().contains("\"model\":\"org/m\""));
        let unknown = exchanges().into_iter().find(|exchange| exchange.case == "err_unknown_model").unwrap();
        assert!(unknown.body("org/m").unwrap().contains("\"model\":\"nope\""));
    }
}
