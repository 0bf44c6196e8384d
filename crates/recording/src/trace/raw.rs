//! A record as its line spells it: typed fields, parallel arrays, nothing checked yet.
//!
//! One table names every key, its type and the field of a [`Record`] that it stands for. From it come the struct, the
//! one-pass visitor (`#[serde(flatten)]` would buffer every line), the record and the line that is written of it, and the
//! slow second look that finds which field of a refused line is wrong.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use serde::{
    Deserialize, Serialize,
    de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor},
    ser::{SerializeMap, Serializer},
};
use serde_json::{Map, Value};

use super::{
    Chunk, ContentSource, Endpoint, FinishReason, ItlSummary, Logprobs, Outcome, PromptLogprobs, Record,
    RecordedErrorResponse, Response, StepContext, error::Defect, scan::scan,
};
use base::units::Millis;

#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct RawContext {
    pub(super) num_running: Vec<u32>,
    pub(super) prefill_tokens: Vec<u32>,
}

macro_rules! lines {
    ($($key:ident: $type:ty $(=> $field:ident)? $(= $shown:ident)?,)+) => {
        /// Every known key, `None` where the line lacks it or has null; the rest in `extra`.
        #[derive(Debug, Default)]
        pub(super) struct RawRecord {
            $(pub(super) $key: Option<$type>,)+
            pub(super) extra: Map<String, Value>,
        }

        pub(super) const KEYS: &[&str] = &[$(stringify!($key)),+];

        impl RawRecord {
            fn read_field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
                match key {
                    $(stringify!($key) => {
                        if self.$key.is_some() {
                            return Err(A::Error::duplicate_field(stringify!($key)));
                        }
                        self.$key = map.next_value()?;
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

            /// The record with these chunks, which are not read from the arrays here.
            pub(super) fn with_chunks(self, chunks: Vec<Chunk>, ttft_without_tokens: Duration) -> Record {
                Record {
                    $($($field: RecordField::<$type>::read(self.$key),)?)+
                    chunks,
                    ttft_without_tokens,
                    extra: self.extra,
                }
            }
        }

        impl Serialize for SpelledRecord<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut map = serializer.serialize_map(None)?;
                $(
                    $(if self.shows(stringify!($key))
                        && let Some(value) = RecordField::<$type>::shown(&self.record.$field)
                    {
                        map.serialize_entry(stringify!($key), &value)?;
                    })?
                    $(if self.shows(stringify!($key))
                        && let Some(value) = self.$shown()
                    {
                        map.serialize_entry(stringify!($key), &value)?;
                    })?
                )+
                if self.part != Part::BeforeResponse {
                    self.record.extra.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                }
                map.end()
            }
        }

        /// Every field of a JSON object that does not hold what its key calls for.
        fn wrong_types(object: &Map<String, Value>) -> Vec<Defect> {
            let mut defects = Vec::new();
            $(if let Some(value) = object.get(stringify!($key))
                && let Err(error) = Option::<$type>::deserialize(value)
            {
                defects.push(Defect::field(stringify!($key), error.to_string()));
            })+
            defects
        }
    };
}

// Public keys in the public order, then ours: `key: type => field`, or what makes a key of the chunks.
lines! {
    prompt_tokens: u32 => prompt_tokens,
    cached_tokens: u32 => cached_tokens,
    output_tokens: u32 => output_tokens,
    ttft_ms: f64 = ttft,
    itl_ms: Vec<f64> = gaps,
    itl_tokens: Vec<u32> = chunk_sizes,
    itl_summary: ItlSummary => itl_summary,
    concurrency: u32 => concurrency,
    arrival_ms: f64 => arrival,
    itl_ctx: RawContext = steps,
    block_hashes: Vec<u64> => block_hashes,
    mm_hashes: Vec<String> => mm_hashes,
    output_token_ids: Vec<u32> => output_token_ids,
    finish_reason: FinishReason => finish_reason,
    prompt_hash: u64 => prompt_hash,
    prompt_of: u32 = prompt_of,
    stop_token: u32 => stop_token,
    request_id: String => request_id,
    group: String => group,
    choice: u32 => choice,
    endpoint: Endpoint => endpoint,
    model: String => model,
    stream: bool => stream,
    status: u16 => status,
    outcome: Outcome => outcome,
    error: RecordedErrorResponse => error,
    request_key: String => request_key,
    params: Map<String, Value> => params,
    e2e_ms: f64 => e2e,
    first_event_ms: f64 => first_event,
    session: String => session,
    request: Value => request,
    text: Vec<String> => text,
    events: Vec<String> => events,
    logprobs: Logprobs => logprobs,
    prompt_logprobs: PromptLogprobs => prompt_logprobs,
    response: Response => response,
    content_source: ContentSource => content_source,
}

/// A field of a record, of what a line has under its key.
trait RecordField<L> {
    fn read(line: Option<L>) -> Self;

    /// `None` is not written.
    fn shown(&self) -> Option<impl Serialize>;
}

/// Every line has it.
impl RecordField<Self> for u32 {
    fn read(line: Option<Self>) -> Self {
        line.unwrap_or_default()
    }

    fn shown(&self) -> Option<impl Serialize> {
        Some(*self)
    }
}

impl<T: Serialize> RecordField<T> for Option<T> {
    fn read(line: Self) -> Self {
        line
    }

    fn shown(&self) -> Option<impl Serialize> {
        self.as_ref()
    }
}

/// Milliseconds.
impl RecordField<f64> for Option<Duration> {
    fn read(line: Option<f64>) -> Self {
        line.map(|ms| duration(Some(ms)))
    }

    fn shown(&self) -> Option<impl Serialize> {
        self.map(|time| Millis::from(time).0)
    }
}

impl<T: Serialize> RecordField<Vec<T>> for Arc<Vec<T>> {
    fn read(line: Option<Vec<T>>) -> Self {
        line.unwrap_or_default().into()
    }

    fn shown(&self) -> Option<impl Serialize> {
        Some(&**self).filter(|list| !list.is_empty())
    }
}

impl RecordField<Self> for Map<String, Value> {
    fn read(line: Option<Self>) -> Self {
        line.unwrap_or_default()
    }

    fn shown(&self) -> Option<impl Serialize> {
        Some(self).filter(|fields| !fields.is_empty())
    }
}

impl<T: Serialize> RecordField<T> for Option<Arc<T>> {
    fn read(line: Option<T>) -> Self {
        line.map(Arc::new)
    }

    fn shown(&self) -> Option<impl Serialize> {
        self.as_deref()
    }
}

/// Returns the time of milliseconds that keep the rules; zero of none.
pub(super) fn duration(ms: Option<f64>) -> Duration {
    ms.and_then(|ms| Millis(ms).duration()).unwrap_or_default()
}

/// A record in the file's spelling.
pub(super) struct SpelledRecord<'a> {
    pub(super) record: &'a Record,
    /// The choice that was written with the hashes of its prompt.
    pub(super) prompt_of: Option<u32>,
    pub(super) part: Part,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    /// The keys before the response.
    BeforeResponse,
    /// Those after it.
    AfterResponse,
}

/// A sequence that is written as it is walked.
struct Each<I>(I);

impl<I: Iterator<Item: Serialize> + Clone> Serialize for Each<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone())
    }
}

/// What is written of the chunks: the step of the first one has no place in the public schema.
impl SpelledRecord<'_> {
    /// Returns true for a key of this part that no other choice was written with.
    fn shows(&self, key: &str) -> bool {
        let is_of_part = match self.part {
            Part::Whole => true,
            Part::BeforeResponse => !["response", "content_source"].contains(&key),
            Part::AfterResponse => key == "content_source",
        };
        is_of_part && (self.prompt_of.is_none() || !["block_hashes", "mm_hashes", "prompt_hash"].contains(&key))
    }

    fn later(&self) -> &[Chunk] {
        self.record.chunks.get(1..).unwrap_or_default()
    }

    fn ttft(&self) -> Option<f64> {
        Some(Millis::from(self.record.ttft().unwrap_or(self.record.ttft_without_tokens)).0)
    }

    fn gaps(&self) -> Option<impl Serialize> {
        let later = self.later();
        let summarised = self.record.itl_summary.is_some() && later.is_empty();
        let is_shown = !summarised && (self.record.output_tokens > 1 || !later.is_empty());
        is_shown.then(|| Each(later.iter().map(|chunk| Millis::from(chunk.gap).0)))
    }

    fn chunk_sizes(&self) -> Option<impl Serialize> {
        let sizes = self.later().iter().map(|chunk| chunk.tokens);
        sizes.clone().any(|tokens| tokens != 1).then_some(Each(sizes))
    }

    fn steps(&self) -> Option<RawContext> {
        let steps: Vec<StepContext> = self.later().iter().map(|chunk| chunk.step).collect::<Option<_>>()?;
        (!steps.is_empty()).then(|| RawContext {
            num_running: steps.iter().map(|step| step.num_running).collect(),
            prefill_tokens: steps.iter().map(|step| step.prefill_tokens).collect(),
        })
    }

    fn prompt_of(&self) -> Option<u32> {
        self.prompt_of
    }
}

impl<'de> Deserialize<'de> for RawRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LineVisitor;
        impl<'de> Visitor<'de> for LineVisitor {
            type Value = RawRecord;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a record: a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawRecord, A::Error> {
                let mut raw = RawRecord::default();
                while let Some(LineKey(key)) = map.next_key::<LineKey<'de>>()? {
                    raw.read_field(&key, &mut map)?;
                }
                Ok(raw)
            }
        }
        deserializer.deserialize_map(LineVisitor)
    }
}

/// A key, borrowed from the line where it holds no escape.
#[derive(Deserialize)]
struct LineKey<'a>(#[serde(borrow)] Cow<'a, str>);

/// Reads one line; else finds every field of a wrong type, or the JSON error with its column.
pub(super) fn parse(line: &[u8]) -> Result<RawRecord, Vec<Defect>> {
    match scan(line) {
        Some(raw) => Ok(raw),
        None => parse_at_length(line),
    }
}

/// As [`parse`], without the short way.
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

pub(super) fn not_json(error: &serde_json::Error) -> Defect {
    let (column, reason) = (error.column(), reason(error));
    Defect::line(format!("is not valid JSON at column {column} ({reason}); correct or delete the line"))
}

/// The message of an error without its position.
pub(crate) fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().map_or_else(String::new, str::to_owned)
}

/// Returns true if a last line without a newline is the beginning of an object.
pub(super) fn is_incomplete(line: &[u8]) -> bool {
    line.starts_with(b"{") && serde_json::from_slice::<IgnoredAny>(line).is_err()
}
