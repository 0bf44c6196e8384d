//! Responses of the endpoints that generate text, each in its own shape.
//!
//! An [`Answer`] is a whole response. It is read from a body, accumulated from the events of a stream, and encoded as either.
//! Unknown fields are kept, and fields keep their order. [`ChoiceView`] and [`TokenCounts`] read the same things from every shape.
//!
//! Properties: accumulating the events of an answer gives the answer, and so does reading its body. Limits: what is null or
//! empty may be absent afterwards; embeddings and responses of other endpoints are no answers.

mod choices;
mod counts;
mod cut;
mod encoder;
mod fields;
mod from_chat;
mod logprobs;
pub(super) mod messages;
mod observe;
#[cfg(test)]
mod properties;
pub(super) mod responses;
mod view;
pub mod words;

use serde_json::{Map, Value};

pub(super) use self::fields::put;
use self::fields::{append, extend, list, with};
pub use self::{
    counts::{TokenCounts, usages},
    cut::{Cut, TimedEvent},
    encoder::{Encoder, ResponseForm},
    from_chat::{ChatStep, ChatStream, FromChat, RawText, WholeChat},
    observe::Observation,
    responses::completed,
    view::{CallView, ChoicePart, ChoiceView, added_text, added_text_without_names},
};
use super::{Api, Endpoint};

/// The response of an endpoint that generates text.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    endpoint: Endpoint,
    body: Map<String, Value>,
}

impl Answer {
    /// Reads a body; `None` where it is no answer of this endpoint, such as an error.
    #[must_use]
    pub fn read(endpoint: Endpoint, body: Value) -> Option<Self> {
        let Value::Object(body) = body else { return None };
        let list = |name: &str| body.get(name).and_then(Value::as_array);
        let is_answer = match endpoint {
            Endpoint::Chat | Endpoint::Completions => {
                list("choices").is_some_and(|choices| !choices.is_empty() && choices.iter().all(Value::is_object))
            }
            Endpoint::Messages => list("content").is_some(),
            Endpoint::Responses => list("output").is_some(),
            Endpoint::Embeddings | Endpoint::Other => false,
        };
        is_answer.then_some(Self { endpoint, body })
    }

    /// Reads the text of a body; `None` as for [`read`](Self::read).
    #[must_use]
    pub fn parse(endpoint: Endpoint, body: &str) -> Option<Self> {
        Self::read(endpoint, serde_json::from_str(body).ok()?)
    }

    /// Accumulates the data of a stream's events; `None` where they are no whole answer, such as one that ends in an error.
    #[must_use]
    pub fn accumulate(endpoint: Endpoint, events: &[Value]) -> Option<Self> {
        let body = match endpoint {
            Endpoint::Chat => choices::accumulate(events, Api::Chat)?,
            Endpoint::Completions => choices::accumulate(events, Api::Completions)?,
            Endpoint::Messages => messages::accumulate(events)?,
            Endpoint::Responses => responses::accumulate(events)?,
            Endpoint::Embeddings | Endpoint::Other => return None,
        };
        Some(Self { endpoint, body })
    }

    /// Makes up an answer that is a text.
    #[must_use]
    pub fn of_text(endpoint: Endpoint, text: &str, model: Option<&Value>) -> Option<Self> {
        let body = match endpoint {
            Endpoint::Chat => choices::of_text(text, Api::Chat),
            Endpoint::Completions => choices::of_text(text, Api::Completions),
            Endpoint::Messages => messages::of_text(text, model),
            Endpoint::Responses => responses::of_text(text, model),
            Endpoint::Embeddings | Endpoint::Other => return None,
        };
        Self::read(endpoint, body)
    }

    /// The body's fields.
    #[must_use]
    pub fn fields(&self) -> &Map<String, Value> {
        &self.body
    }

    /// A field of the body that is a text; empty where there is none.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        self.body.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// Replaces the token counts, in the endpoint's shape.
    pub fn set_usage(&mut self, usage: Value) {
        self.body.insert("usage".to_owned(), usage);
    }

    /// The body.
    #[must_use]
    pub fn into_body(self) -> Value {
        Value::Object(self.body)
    }

    /// Encodes it as the events of a stream.
    #[must_use]
    pub fn events(&self, cut: &Cut) -> Vec<TimedEvent> {
        match self.endpoint {
            Endpoint::Chat => choices::events(&self.body, Api::Chat, cut),
            Endpoint::Completions => choices::events(&self.body, Api::Completions, cut),
            Endpoint::Messages => cut.spread(|out| messages::events(&self.body, out)),
            Endpoint::Responses => cut.spread(|out| responses::events(&self.body, out)),
            Endpoint::Embeddings | Endpoint::Other => Vec::new(),
        }
    }

    /// Encodes the event with the token counts at the end of a stream of choices.
    #[must_use]
    pub fn usage_event(&self) -> Value {
        choices::usage_event(&self.body)
    }

    /// The choices; one where the endpoint has no others.
    #[must_use]
    pub fn choices(&self) -> Vec<ChoiceView<'_>> {
        ChoiceView::all(self.endpoint, &self.body)
    }

    /// The token counts.
    #[must_use]
    pub fn counts(&self) -> TokenCounts {
        self.body.get("usage").map(TokenCounts::read).unwrap_or_default()
    }
}
