//! What an engine sends: `EngineCoreOutputs`, written for and read from every family of versions.

use std::borrow::Cow;

use rustix::time::{ClockId, clock_gettime};

use crate::{MessageError, layout::VersionFamily, msgpack::MsgpackValue};

/// Name of the struct in vLLM.
const OUTPUTS: &str = "EngineCoreOutputs";

/// Type of the extension that holds the bytes of a tensor.
const RAW: i8 = 3;

/// Seconds of the machine's monotonic clock, which Python's `time.monotonic` shows too. A front end subtracts the engine's times only
/// from each other.
#[must_use]
pub fn monotonic_seconds() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Why an output ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireFinish {
    /// A stop token or string.
    Stop = 0,
    /// Its length.
    Length = 1,
    /// It was aborted.
    Abort = 2,
    /// The engine cannot serve it.
    Error = 3,
    /// It repeats itself.
    Repetition = 4,
}

impl WireFinish {
    fn read(value: &MsgpackValue) -> Option<Self> {
        let all = [Self::Stop, Self::Length, Self::Abort, Self::Error, Self::Repetition];
        all.get(usize::try_from(value.as_u64()?).ok()?).copied()
    }
}

/// `EngineCoreOutput`: new tokens of a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WireOutput {
    /// The request.
    pub request_id: String,
    /// Its new tokens.
    pub new_token_ids: Vec<u32>,
    /// Log probabilities of these.
    pub new_logprobs: Option<LogprobsTensors>,
    /// Those of the prompt.
    pub new_prompt_logprobs: Option<LogprobsTensors>,
    /// Why it ends, where it does.
    pub finish_reason: Option<WireFinish>,
    /// The stop token; `None` for the end-of-text token.
    pub stop_reason: Option<u32>,
    /// What happened to it, and when: queued 1, scheduled 2, preempted 3; monotonic seconds.
    pub events: Vec<(u8, f64)>,
    /// Where its blocks are kept.
    pub kv_transfer_params: Option<MsgpackValue>,
    /// Figures of its prompt, with its first token.
    pub prefill_stats: Option<PrefillStats>,
    /// `RequestError`, why it ends with an error; since 0.33.
    pub error: Option<RequestError>,
}

/// `RequestError`: why a request ends with an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestError {
    /// Its kind, in vLLM's words.
    pub code: Cow<'static, str>,
    /// For people.
    pub message: Cow<'static, str>,
    /// Whether it may succeed later.
    pub retryable: bool,
}

impl RequestError {
    /// A paused engine's.
    pub const PAUSED: Self = Self {
        code: Cow::Borrowed("engine_paused"),
        message: Cow::Borrowed("Generation is paused. Please retry after it resumes."),
        retryable: true,
    };

    /// That of an engine that has too many requests.
    pub const OVERLOADED: Self = Self {
        code: Cow::Borrowed("engine_overloaded"),
        message: Cow::Borrowed("Too many requests are in progress. Please retry later."),
        retryable: true,
    };

    /// That of a request that the engine cannot serve: front ends pass the reason on, as they do for what they refuse themselves.
    #[must_use]
    pub fn failed(reason: &str) -> Self {
        Self { code: "validation_error".into(), message: reason.to_owned().into(), retryable: false }
    }

    fn value(&self) -> MsgpackValue {
        MsgpackValue::map([
            ("code", self.code.as_ref().into()),
            ("message", self.message.as_ref().into()),
            ("retryable", self.retryable.into()),
        ])
    }

    fn read(value: &MsgpackValue) -> Option<Self> {
        let text = |name| value.get(name).and_then(MsgpackValue::as_str).map(|text| text.to_owned().into());
        let retryable = value.get("retryable").and_then(MsgpackValue::as_bool).unwrap_or(false);
        Some(Self { code: text("code")?, message: text("message")?, retryable })
    }
}

/// Tokens of a prompt, by where they come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefillStats {
    /// All of them.
    pub prompt_tokens: u32,
    /// Those that were found in the cache of this engine.
    pub cached: u32,
    /// Those that were transferred.
    pub external: u32,
    /// Those that were computed and are in the cache now.
    pub created: u32,
}

impl PrefillStats {
    fn value(self) -> MsgpackValue {
        let cached = self.cached.saturating_add(self.external);
        MsgpackValue::map([
            ("num_prompt_tokens", self.prompt_tokens.into()),
            ("num_computed_tokens", self.prompt_tokens.saturating_sub(cached).into()),
            ("num_cached_tokens", cached.into()),
            ("num_local_cached_tokens", self.cached.into()),
            ("num_external_cached_tokens", self.external.into()),
            ("num_cache_creation_tokens", self.created.into()),
        ])
    }

    fn read(value: &MsgpackValue) -> Self {
        let number =
            |name| value.get(name).and_then(MsgpackValue::as_u64).and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
        Self {
            prompt_tokens: number("num_prompt_tokens"),
            cached: number("num_local_cached_tokens"),
            external: number("num_external_cached_tokens"),
            created: number("num_cache_creation_tokens"),
        }
    }
}

/// Log probabilities: a row for each token, the token itself first, then its alternatives.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LogprobsTensors {
    /// Tokens and alternatives in each row.
    pub width: usize,
    /// Token ids, row after row.
    pub token_ids: Vec<u32>,
    /// Their log probabilities.
    pub logprobs: Vec<f32>,
    /// Rank of the token of each row, from 1.
    pub ranks: Vec<u32>,
}

impl LogprobsTensors {
    /// As numpy arrays, which outputs have, with one more field (`LogprobsLists`); in 0.10 as lists of numbers.
    fn lists(&self, family: VersionFamily) -> MsgpackValue {
        if family.has_plain_logprobs() {
            let rows = |values: Vec<MsgpackValue>| {
                MsgpackValue::Array(
                    values.chunks(self.width.max(1)).map(|row| MsgpackValue::Array(row.to_vec())).collect(),
                )
            };
            let ids = rows(self.token_ids.iter().map(|id| (*id).into()).collect());
            let logprobs = rows(self.logprobs.iter().map(|value| f64::from(*value).into()).collect());
            return MsgpackValue::Array(vec![ids, logprobs, self.ranks.clone().into()]);
        }
        MsgpackValue::Array([self.tensors(["<i4", "<f4", "<i8"]), vec![MsgpackValue::Nil]].concat())
    }

    /// As torch tensors, which prompts have, with further fields (`LogprobsTensors`).
    fn prompt_tensors(&self, family: VersionFamily) -> MsgpackValue {
        let mut fields = self.tensors(["int32", "float32", "int64"]);
        fields.resize(family.prompt_logprobs_fields(), MsgpackValue::Nil);
        MsgpackValue::Array(fields)
    }

    fn tensors(&self, [ids, logprobs, ranks]: [&str; 3]) -> Vec<MsgpackValue> {
        let rows = self.ranks.len();
        let tensor = |dtype: &str, shape: Vec<usize>, bytes| {
            MsgpackValue::Array(vec![dtype.into(), shape.into(), MsgpackValue::Ext(RAW, bytes)])
        };
        let shape = vec![rows, self.width];
        vec![
            tensor(ids, shape.clone(), self.token_ids.iter().flat_map(|id| id.to_le_bytes()).collect()),
            tensor(logprobs, shape, self.logprobs.iter().flat_map(|value| value.to_le_bytes()).collect()),
            tensor(ranks, vec![rows], self.ranks.iter().flat_map(|rank| u64::from(*rank).to_le_bytes()).collect()),
        ]
    }

    /// Reads lists of numbers.
    fn read_plain([ids, logprobs, ranks]: [&[MsgpackValue]; 3]) -> Option<Self> {
        let width = ids.first().and_then(MsgpackValue::as_array).map_or(0, <[_]>::len);
        let cells = |rows: &[MsgpackValue]| -> Option<Vec<MsgpackValue>> {
            let rows = rows.iter().map(|row| row.as_array().filter(|row| width > 0 && row.len() == width));
            Some(rows.collect::<Option<Vec<_>>>()?.concat())
        };
        let number = |value: &MsgpackValue| u32::try_from(value.as_u64()?).ok();
        #[allow(clippy::cast_possible_truncation)] // it was one of 32 bits
        let logprob = |value: &MsgpackValue| value.as_f64().map(|value| value as f32);
        let read = Self {
            width,
            token_ids: cells(ids)?.iter().map(number).collect::<Option<_>>()?,
            logprobs: cells(logprobs)?.iter().map(logprob).collect::<Option<_>>()?,
            ranks: ranks.iter().map(number).collect::<Option<_>>()?,
        };
        (ids.len() == ranks.len() && logprobs.len() == ranks.len()).then_some(read)
    }

    /// Reads them; `None` where they have another form. Tensors may be in the frames after the message.
    fn read(value: &MsgpackValue, frames: &[Vec<u8>]) -> Option<Self> {
        let [ids, logprobs, ranks, ..] = value.as_array()? else { return None };
        if ids.as_array()?.first().is_none_or(|first| first.as_array().is_some()) {
            return Self::read_plain([ids.as_array()?, logprobs.as_array()?, ranks.as_array()?]);
        }
        let (shape, ids) = tensor(ids, frames)?;
        let (_, logprobs) = tensor(logprobs, frames)?;
        let (_, ranks) = tensor(ranks, frames)?;
        let rows = usize::try_from(*shape.first()?).ok()?;
        let width = usize::try_from(shape.get(1).copied().unwrap_or(1)).ok()?;
        let wide = |bytes: &[u8], count: usize| bytes.len().checked_div(count).filter(|width| matches!(width, 4 | 8));
        let integers = |bytes: &[u8], count: usize| -> Option<Vec<u32>> {
            let size = wide(bytes, count)?;
            Some(
                bytes
                    .chunks_exact(size)
                    .filter_map(|item| item.first_chunk().copied().map(u32::from_le_bytes))
                    .collect(),
            )
        };
        let cells = rows.checked_mul(width)?;
        if cells == 0 {
            return Some(Self { width, ..Self::default() });
        }
        let logprobs = logprobs.chunks_exact(4).filter_map(|item| item.first_chunk().copied().map(f32::from_le_bytes));
        let read = Self {
            width,
            token_ids: integers(ids, cells)?,
            logprobs: logprobs.collect(),
            ranks: integers(ranks, rows)?,
        };
        (read.token_ids.len() == cells && read.logprobs.len() == cells).then_some(read)
    }
}

/// Shape and bytes of a tensor, here or in a frame of its own.
fn tensor<'a>(value: &'a MsgpackValue, frames: &'a [Vec<u8>]) -> Option<(Vec<u64>, &'a [u8])> {
    let [_, shape, data] = value.as_array()? else { return None };
    let shape = shape.as_array()?.iter().map(MsgpackValue::as_u64).collect::<Option<_>>()?;
    let bytes = match data {
        MsgpackValue::Ext(RAW, bytes) | MsgpackValue::Bytes(bytes) => bytes.as_slice(),
        MsgpackValue::Uint(at) => frames.get(usize::try_from(at.checked_sub(1)?).ok()?)?,
        _ => return None,
    };
    Some((shape, bytes))
}

impl WireOutput {
    fn value(&self, family: VersionFamily) -> MsgpackValue {
        MsgpackValue::Array(family.output_fields().map(|name| self.field(name, family)).collect())
    }

    fn field(&self, name: &str, family: VersionFamily) -> MsgpackValue {
        let event = |(kind, timestamp): &(u8, f64)| {
            MsgpackValue::map([("type", u32::from(*kind).into()), ("timestamp", (*timestamp).into())])
        };
        let cached = self.prefill_stats;
        match name {
            "request_id" => self.request_id.as_str().into(),
            "new_token_ids" => self.new_token_ids.clone().into(),
            "new_logprobs" => self.new_logprobs.as_ref().map(|rows| rows.lists(family)).into(),
            "new_prompt_logprobs_tensors" => {
                self.new_prompt_logprobs.as_ref().map(|rows| rows.prompt_tensors(family)).into()
            }
            "finish_reason" => self.finish_reason.map(|reason| reason as u32).into(),
            "stop_reason" if self.finish_reason == Some(WireFinish::Repetition) => "repetition_detected".into(),
            "stop_reason" => self.stop_reason.into(),
            "events" if !self.events.is_empty() => MsgpackValue::Array(self.events.iter().map(event).collect()),
            "kv_transfer_params" => self.kv_transfer_params.clone().into(),
            "prefill_stats" => cached.map(PrefillStats::value).into(),
            "num_cached_tokens" => cached.map_or(0, |stats| stats.cached + stats.external).into(),
            "num_external_computed_tokens" => cached.map_or(0, |stats| stats.external).into(),
            "num_nans_in_logits" => 0_u32.into(),
            "error" => self.error.as_ref().map(RequestError::value).into(),
            _ => MsgpackValue::Nil,
        }
    }

    fn read(value: &MsgpackValue, family: VersionFamily, frames: &[Vec<u8>]) -> Result<Self, MessageError> {
        let wrong = |field, wanted| MessageError::Field { message: "EngineCoreOutput", field, wanted };
        let items = value.as_array().ok_or(wrong("fields", "a list"))?;
        let get = |name: &str| {
            let at = family.output_fields().position(|field| field == name)?;
            items.get(at).filter(|value| !value.is_nil())
        };
        let ids = get("new_token_ids").and_then(MsgpackValue::as_array).unwrap_or_default();
        let ids: Option<Vec<u32>> = ids.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect();
        let tensors = |name| get(name).and_then(|value| LogprobsTensors::read(value, frames));
        let events = get("events").and_then(MsgpackValue::as_array).unwrap_or_default();
        let event = |event: &MsgpackValue| {
            let kind = u8::try_from(event.get("type")?.as_u64()?).ok()?;
            Some((kind, event.get("timestamp")?.as_f64()?))
        };
        Ok(Self {
            request_id: get("request_id")
                .and_then(MsgpackValue::as_str)
                .ok_or(wrong("request_id", "a text"))?
                .to_owned(),
            new_token_ids: ids.ok_or(wrong("new_token_ids", "a list of token ids"))?,
            new_logprobs: tensors("new_logprobs"),
            new_prompt_logprobs: tensors("new_prompt_logprobs_tensors"),
            finish_reason: get("finish_reason").and_then(WireFinish::read),
            stop_reason: get("stop_reason").and_then(MsgpackValue::as_u64).and_then(|id| u32::try_from(id).ok()),
            events: events.iter().filter_map(event).collect(),
            kv_transfer_params: get("kv_transfer_params").cloned(),
            prefill_stats: get("prefill_stats").map(PrefillStats::read),
            error: get("error").and_then(RequestError::read),
        })
    }
}

/// `EngineCoreOutputs`: what a step gives to one client, or the answer to a call.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WireOutputs {
    /// The engine's rank.
    pub engine_index: u32,
    /// New tokens.
    pub outputs: Vec<WireOutput>,
    /// `SchedulerStats`, a map.
    pub scheduler_stats: Option<MsgpackValue>,
    /// Monotonic seconds.
    pub timestamp: f64,
    /// Answer to a call.
    pub utility_output: Option<MsgpackValue>,
    /// Requests that have ended, where there are several ranks.
    pub finished_requests: Option<Vec<String>>,
    /// Name of the weights, `default` in a running engine; since 0.32.
    pub weight_version: Option<String>,
}

impl WireOutputs {
    /// Its bytes for a front end of those versions: one frame.
    #[must_use]
    pub fn to_bytes(&self, family: VersionFamily) -> Vec<u8> {
        let finished = self.finished_requests.as_ref();
        let finished = finished.map(|ids| ids.iter().map(String::as_str).collect::<Vec<_>>());
        let mut fields = vec![
            self.engine_index.into(),
            MsgpackValue::Array(self.outputs.iter().map(|output| output.value(family)).collect()),
            self.scheduler_stats.clone().into(),
            self.timestamp.into(),
            self.utility_output.clone().into(),
            finished.into(),
            MsgpackValue::Nil,
            MsgpackValue::Nil,
        ];
        if family.has_weight_version() {
            fields.push(self.weight_version.as_deref().into());
        }
        MsgpackValue::Array(fields).to_bytes()
    }

    /// Reads a message and the frames after it.
    ///
    /// # Errors
    /// Where it is no such message.
    pub fn read(bytes: &[u8], frames: &[Vec<u8>], family: VersionFamily) -> Result<Self, MessageError> {
        let value = MsgpackValue::read(bytes).map_err(|source| MessageError::Msgpack(OUTPUTS, source))?;
        let wrong = |field, wanted| MessageError::Field { message: OUTPUTS, field, wanted };
        let items = value.as_array().ok_or(wrong("fields", "a list"))?;
        let get = |at: usize| items.get(at).filter(|value| !value.is_nil());
        let outputs = get(1).and_then(MsgpackValue::as_array).ok_or(wrong("outputs", "a list"))?;
        let finished = get(5).and_then(MsgpackValue::as_array);
        let weight_version = get(8).and_then(MsgpackValue::as_str).map(str::to_owned);
        let index = get(0).and_then(MsgpackValue::as_u64).and_then(|index| u32::try_from(index).ok());
        Ok(Self {
            engine_index: index.ok_or(wrong("engine_index", "a whole number"))?,
            outputs: outputs.iter().map(|output| WireOutput::read(output, family, frames)).collect::<Result<_, _>>()?,
            scheduler_stats: get(2).cloned(),
            timestamp: get(3).and_then(MsgpackValue::as_f64).unwrap_or_default(),
            utility_output: get(4).cloned(),
            weight_version,
            finished_requests: finished.map(|ids| ids.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect()),
        })
    }
}

#[cfg(test)]
mod tests;
