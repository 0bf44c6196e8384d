//! Bodies of requests.
//!
//! A recorded body is sent as it was, with the model's name mapped. Where a recording has none, the prompt is a list of token ids of
//! `/v1/completions`: equal block hashes become equal ids and different ones different ids, so that the server's prefix cache sees the recorded
//! sharing, and the rest of the prompt is ids of its own up to the recorded length.
//!
//! Limits: what the ids say is noise, and the output is as long as it was because `ignore_eos` and `max_tokens` make it so.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, header};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Map, Value, json};

use recording::trace::Record;

use crate::workload::{Workload, WorkloadRequest};

/// The path that takes prompts of token ids.
const COMPLETIONS: &str = "/v1/completions";

/// Ids that made-up prompts are drawn from: small enough for any vocabulary, and without special tokens, which come first or last.
const IDS: std::ops::Range<u32> = 1000..30000;

/// What the ids of requests begin with; the record's number follows, by which `play` finds it.
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
}

impl Prompts {
    /// Makes the request with this index: turn `turn` of a chain.
    #[must_use]
    pub fn request(&self, index: usize, chain: usize, turn: usize, workload: &Workload) -> Request<Bytes> {
        let Some(WorkloadRequest { record, number, .. }) = workload.requests.get(index) else {
            return Request::default();
        };
        let recorded = record.request.as_ref().filter(|request| request.is_object());
        let (path, mut body) = match recorded {
            Some(request) => (record.path().unwrap_or("/v1/chat/completions"), request.clone()),
            None => (COMPLETIONS, rebuilt(index, record, workload.block_size)),
        };
        if let Value::Object(fields) = &mut body {
            if let Some(model) = self.model(record.model.as_deref()) {
                fields.insert("model".to_owned(), json!(model));
            }
            if let Some(salt) = &self.cache_salt {
                fields.insert("cache_salt".to_owned(), json!(salt));
            }
        }
        let mut request = Request::new(Bytes::from(body.to_string()));
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

    fn model<'a>(&'a self, recorded: Option<&'a str>) -> Option<&'a str> {
        let named = |name: &str| self.models.iter().find(|(from, _)| from == name).map(|(_, to)| to.as_str());
        recorded.and_then(named).or_else(|| named("")).or(recorded)
    }
}

fn rebuilt(index: usize, record: &Record, block_size: u32) -> Value {
    let mut fields = Map::new();
    fields.insert("prompt".to_owned(), json!(prompt_ids(index, record, block_size)));
    let kept = record.params.iter().filter(|(name, _)| is_of_completions(name));
    fields.extend(kept.map(|(name, value)| (name.clone(), value.clone())));
    fields.insert("max_tokens".to_owned(), json!(record.output_tokens.max(1)));
    fields.insert("ignore_eos".to_owned(), json!(true));
    fields.insert("stream".to_owned(), json!(record.stream != Some(false)));
    Value::Object(fields)
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

/// Parameters of any request that a completion takes too.
fn is_of_completions(name: &str) -> bool {
    matches!(name, "temperature" | "top_p" | "top_k" | "n" | "presence_penalty" | "frequency_penalty" | "seed")
}
