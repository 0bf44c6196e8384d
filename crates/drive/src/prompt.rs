//! Bodies of requests.
//!
//! A recorded body is sent as it was, with the model's name mapped. Where a recording has none, the prompt is a list of token ids of
//! `/v1/completions`: equal block hashes become equal ids and different ones different ids, so that the server's prefix cache sees the recorded
//! sharing, and the rest of the prompt is ids of its own up to the recorded length. Or, for servers that take no ids, it is [text](crate::text) of
//! the recorded endpoint.
//!
//! Limits: the text of the ids is noise, and the output is as long as it was because `ignore_eos` and `max_tokens` make it so.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, header};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Value, json};

use recording::trace::{Endpoint, Outcome, Record};

use crate::{
    history::DrivenConversation,
    text::{PromptTexts, body_of, endpoint_of},
    workload::{Workload, WorkloadRequest},
};

/// Ids that made-up prompts are drawn from: small enough for any vocabulary, and without special tokens, which come first or last.
const IDS: std::ops::Range<u32> = 1000..30000;

/// Tokens that a request which is left asks for beyond those after which it is.
const LEFT_AHEAD: u32 = 256;

/// Prefix of the ids of requests; the record's number follows, by which `play` finds it.
pub const REQUEST_ID: &str = "replay-";

/// Makes requests.
#[derive(Debug, Clone, Default)]
pub struct Prompts {
    /// Names of models, as recorded and as the server has them; an empty recorded name stands for all others.
    pub models: Vec<(String, String)>,
    /// Goes into `cache_salt`, so that no run finds what another left in the cache.
    pub cache_salt: Option<String>,
    /// Headers of every request; `{session}`, `{turn}` and `{index}` stand for those of the request.
    pub headers: Vec<(HeaderName, String)>,
    /// Makes prompts of text where no request is recorded; `None` for token ids.
    pub texts: Option<PromptTexts>,
}

/// Which request of a run one is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) index: usize,
    /// Its session's place in the plan.
    pub(crate) chain: usize,
    pub(crate) turn: usize,
}

/// A body with other values of some fields. A long conversation is written once, and not copied before.
struct WithFields<'a> {
    body: &'a Value,
    over: [(&'a str, Option<&'a str>); 2],
}

impl Serialize for WithFields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let of = |name: &str| self.over.iter().find(|(own, _)| *own == name).and_then(|(_, value)| *value);
        for (name, value) in self.body.as_object().into_iter().flatten() {
            match of(name) {
                Some(value) => map.serialize_entry(name, value)?,
                None => map.serialize_entry(name, value)?,
            }
        }
        for (name, value) in self.over {
            if let Some(value) = value.filter(|_| self.body.get(name).is_none()) {
                map.serialize_entry(name, value)?;
            }
        }
        map.end()
    }
}

impl Prompts {
    /// The same, of a conversation that goes on with what was answered in this run.
    pub(crate) fn request_in(
        &self,
        Place { index, chain, turn }: Place,
        workload: &Workload,
        conversation: Option<&DrivenConversation<'_>>,
    ) -> Request<Bytes> {
        let Some(WorkloadRequest { record, number, .. }) = workload.requests.get(index) else {
            return Request::default();
        };
        let recorded = record.request.as_ref().filter(|request| request.is_object());
        let path_of_record = record.path().unwrap_or("/v1/chat/completions");
        let (path, body) = match (recorded, conversation) {
            (Some(request), None) => (path_of_record, Cow::Borrowed(request)),
            (Some(request), Some(conversation)) => {
                let mut request = request.clone();
                conversation.continued(&mut request);
                (path_of_record, Cow::Owned(request))
            }
            (None, _) => {
                let (path, body) = self.rebuilt(index, record, workload.block_size);
                (path, Cow::Owned(body))
            }
        };
        let model = self.model(record.model.as_deref());
        let over = [("model", model), ("cache_salt", self.cache_salt.as_deref())];
        let body = serde_json::to_vec(&WithFields { body: &body, over }).unwrap_or_default();
        let mut request = Request::new(Bytes::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = path.parse().unwrap_or_default();
        let session = record.session.clone().unwrap_or_else(|| chain.to_string());
        let filled = |text: &str| {
            let text = text.replace("{session}", &session).replace("{turn}", &turn.to_string());
            HeaderValue::from_str(&text.replace("{index}", &number.to_string())).ok()
        };
        let own =
            [(header::CONTENT_TYPE, "application/json"), (HeaderName::from_static("x-request-id"), "replay-{index}")];
        let typed = self.headers.iter().map(|(name, text)| (name.clone(), text.as_str()));
        for (name, text) in own.into_iter().chain(typed) {
            request.headers_mut().extend(filled(text).map(|value| (name, value)));
        }
        request
    }

    pub(crate) fn model<'a>(&'a self, recorded: Option<&'a str>) -> Option<&'a str> {
        let named = |name: &str| self.models.iter().find(|(from, _)| from == name).map(|(_, to)| to.as_str());
        recorded.and_then(named).or_else(|| named("")).or(recorded)
    }

    /// Makes the path and the body of a request that was not recorded.
    fn rebuilt(&self, index: usize, record: &Record, block_size: u32) -> (&'static str, Value) {
        // One that is left was to be longer.
        let further = if record.outcome == Some(Outcome::ClientGone) { LEFT_AHEAD } else { 0 };
        let output = record.output_tokens.max(1).saturating_add(further);
        let stream = record.stream != Some(false);
        let (endpoint, mut fields) = match &self.texts {
            Some(texts) => {
                let endpoint = endpoint_of(record);
                let model = self.model(record.model.as_deref()).unwrap_or_default();
                let own = u64::try_from(index).unwrap_or(u64::MAX);
                let text = texts.prompt(record, block_size, model, own);
                (endpoint, body_of(endpoint, &text, output, stream))
            }
            None => {
                let mut fields = body_of(Endpoint::Completions, "", output, stream);
                fields.insert("prompt".to_owned(), json!(prompt_ids(index, record, block_size)));
                (Endpoint::Completions, fields)
            }
        };
        let kept = record.params.iter().filter(|(name, _)| is_taken(name, endpoint));
        fields.extend(kept.map(|(name, value)| (name.clone(), value.clone())));
        (endpoint.path().unwrap_or_default(), Value::Object(fields))
    }
}

/// Ids of a prompt: each full block by its hash, the rest by the whole prompt's hash, else by the request's index.
fn prompt_ids(index: usize, record: &Record, block_size: u32) -> Vec<u32> {
    let length = usize::try_from(record.prompt_tokens).unwrap_or(usize::MAX).max(1);
    let block = usize::try_from(block_size).unwrap_or(usize::MAX).max(1);
    let mut ids = Vec::with_capacity(length);
    let mut draw = |seed: u64, count: usize| {
        let mut random = StdRng::seed_from_u64(seed);
        ids.extend((0..count).map(|_| random.random_range(IDS)));
    };
    let full = record.block_hashes.len().min(length / block);
    record.block_hashes.iter().take(full).for_each(|hash| draw(*hash, block));
    draw(record.prompt_hash.unwrap_or(u64::try_from(index).unwrap_or(u64::MAX)), length - full * block);
    ids
}

/// Parameters of any request that a rebuilt one takes too.
fn is_taken(name: &str, endpoint: Endpoint) -> bool {
    match name {
        "temperature" | "top_p" | "top_k" => true,
        "n" | "presence_penalty" | "frequency_penalty" | "seed" => endpoint.has_choices(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_left_asks_for_more_than_came() {
        for (outcome, requested) in [(Outcome::Finished, 9), (Outcome::ClientGone, 9 + LEFT_AHEAD)] {
            let record = Record { prompt_tokens: 4, output_tokens: 9, outcome: Some(outcome), ..Record::default() };
            assert_eq!(Prompts::default().rebuilt(0, &record, 16).1["max_tokens"], requested);
        }
    }

    #[test]
    fn other_fields_take_the_place_of_recorded_ones_or_follow() {
        let body = json!({"model": "recorded", "messages": [1.5, "é", null], "stream": true});
        let over = [("model", Some("served")), ("cache_salt", Some("s"))];
        let text = serde_json::to_string(&WithFields { body: &body, over }).unwrap();
        assert_eq!(text, r#"{"model":"served","messages":[1.5,"é",null],"stream":true,"cache_salt":"s"}"#);
        let over = [("model", None), ("cache_salt", None)];
        assert_eq!(serde_json::to_string(&WithFields { body: &body, over }).unwrap(), body.to_string());
    }
}
