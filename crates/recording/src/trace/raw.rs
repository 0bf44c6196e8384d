//! A record as its line spells it: typed fields, parallel arrays, nothing checked yet.
//!
//! One table names every key and its type. From it come the struct, the one-pass visitor (`#[serde(flatten)]` would
//! buffer every line), and the slow second look that finds which field of a refused line is wrong.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::error::Defect;
use super::scan::scan;
use super::{
    ContentSource, Endpoint, ErrorResponse, FinishReason, ItlSummary, Logprobs, Outcome, PromptLogprobs, Response,
};

/// `itl_ctx` of the public schema.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RawContext {
    pub(super) num_running: Vec<u32>,
    pub(super) prefill_tokens: Vec<u32>,
}

macro_rules! raw_record {
    ($($field:ident : $type:ty),+ $(,)?) => {
        /// Every known key, `None` where the line lacks it or has null; the rest in `extra`.
        #[derive(Debug, Default)]
        pub(super) struct RawRecord {
            $(pub(super) $field: Option<$type>,)+
            pub(super) extra: Map<String, Value>,
        }

        /// Every known key.
        pub(super) const KEYS: &[&str] = &[$(stringify!($field)),+];

        impl RawRecord {
            fn read_field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
                match key {
                    $(stringify!($field) => {
                        if self.$field.is_some() {
                            return Err(A::Error::duplicate_field(stringify!($field)));
                        }
                        self.$field = map.next_value()?;
                    })+
                    unknown => {
                        let value = map.next_value()?;
                        if self.extra.insert(unknown.to_owned(), value).is_some() {
                            return Err(A::Error::custom(format_args!("duplicate field `{unknown}`")));
                        }
                    }
                }
                Ok(())
            }
        }

        /// Every field of a JSON object that does not hold what its key calls for.
        fn wrong_types(object: &Map<String, Value>) -> Vec<Defect> {
            let mut defects = Vec::new();
            $(if let Some(value) = object.get(stringify!($field))
                && let Err(error) = Option::<$type>::deserialize(value)
            {
                defects.push(Defect::field(stringify!($field), error.to_string()));
            })+
            defects
        }
    };
}

raw_record! {
    prompt_tokens: u32,
    cached_tokens: u32,
    output_tokens: u32,
    ttft_ms: f64,
    itl_ms: Vec<f64>,
    itl_tokens: Vec<u32>,
    itl_summary: ItlSummary,
    concurrency: u32,
    arrival_ms: f64,
    itl_ctx: RawContext,
    block_hashes: Vec<u64>,
    mm_hashes: Vec<String>,
    output_token_ids: Vec<u32>,
    finish_reason: FinishReason,
    prompt_hash: u64,
    prompt_of: u32,
    stop_token: u32,
    request_id: String,
    group: String,
    choice: u32,
    endpoint: Endpoint,
    model: String,
    stream: bool,
    status: u16,
    outcome: Outcome,
    error: ErrorResponse,
    request_key: String,
    params: Map<String, Value>,
    e2e_ms: f64,
    first_event_ms: f64,
    session: String,
    request: Value,
    text: Vec<String>,
    events: Vec<String>,
    logprobs: Logprobs,
    prompt_logprobs: PromptLogprobs,
    response: Response,
    content_source: ContentSource,
}

impl<'de> Deserialize<'de> for RawRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = RawRecord;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a record: a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawRecord, A::Error> {
                let mut raw = RawRecord::default();
                while let Some(Key(key)) = map.next_key::<Key<'de>>()? {
                    raw.read_field(&key, &mut map)?;
                }
                Ok(raw)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// A key, borrowed from the line where it holds no escape.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// Reads one line.
///
/// # Errors
/// Every field of a wrong type; or the JSON error, with its column.
pub(super) fn parse(line: &[u8]) -> Result<RawRecord, Vec<Defect>> {
    match scan(line) {
        Some(raw) => Ok(raw),
        None => parse_at_length(line),
    }
}

/// As [`parse`], without the short way.
///
/// # Errors
/// As [`parse`].
pub(super) fn parse_at_length(line: &[u8]) -> Result<RawRecord, Vec<Defect>> {
    serde_json::from_slice(line).map_err(|error| match serde_json::from_slice::<Value>(line) {
        Err(broken) => vec![not_json(&broken)],
        Ok(Value::Object(object)) => {
            let mut defects = wrong_types(&object);
            if defects.is_empty() {
                defects.push(Defect::line(error.to_string()));
            }
            defects
        }
        Ok(_) => vec![Defect::line("is not a JSON object; a trace has one object per line")],
    })
}

/// The defect of a line that is not JSON.
pub(super) fn not_json(error: &serde_json::Error) -> Defect {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    Defect::line(format!("is not valid JSON at column {} ({what}); correct or delete the line", error.column()))
}
