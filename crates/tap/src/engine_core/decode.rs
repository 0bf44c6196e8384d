//! Messages of the engine core's protocol, as far as they are recorded: the classes of `vllm/v1/engine/__init__.py`, as vLLM 0.10 to 0.33 sends
//! them. Fields are told by their places, which are the same in all these versions for what is read, or by their form.

use serde_json::{Map, Value};

use super::{
    msgpack::MsgpackCursor,
    tensors::{logprobs, prompt_logprobs},
};
use crate::facts::EngineSettings;
use recording::trace::{FinishReason, PromptLogprobs, TokenLogprobs};

/// A request that the front end gives to an engine.
#[derive(Debug, Default)]
pub(super) struct AddedRequest {
    pub(super) id: String,
    /// The front end's own name of it.
    pub(super) external_id: Option<String>,
    pub(super) prompt_ids: Option<Vec<u32>>,
    /// It is for an embedding or a score.
    pub(super) is_pooling: bool,
    /// Parameters that are recorded.
    pub(super) params: Map<String, Value>,
    /// Its outputs go out one by one.
    pub(super) stream: bool,
    pub(super) has_stop_strings: bool,
    /// Candidates whose log probabilities are given at each token.
    pub(super) top: u32,
    /// Name of its adapter.
    pub(super) lora: Option<String>,
    /// Hashes of its images, audio and video.
    pub(super) media: Vec<String>,
}

/// A message of a front end.
#[derive(Debug)]
pub(super) enum FrontEndMessage {
    Add(Box<AddedRequest>),
    /// The ids of requests that are given up.
    Abort(Vec<String>),
    /// One that has no part in a record.
    Other,
}

/// A message of an engine.
#[derive(Debug)]
pub(super) enum EngineMessage {
    Step(EngineStep),
    /// The engine is dead.
    Dead,
    /// One that has no part in a record.
    Other,
}

/// The outputs of one step of an engine.
#[derive(Debug, Default)]
pub(super) struct EngineStep {
    /// The engine's rank.
    pub(super) engine: u64,
    /// Seconds of the engine's own clock.
    pub(super) timestamp: Option<f64>,
    pub(super) outputs: Vec<RequestStep>,
}

/// What a step gave a request.
#[derive(Debug, Default)]
pub(super) struct RequestStep {
    pub(super) id: String,
    pub(super) token_ids: Vec<u32>,
    pub(super) logprobs: Option<Vec<TokenLogprobs>>,
    pub(super) prompt_logprobs: Option<PromptLogprobs>,
    pub(super) finish: Option<FinishReason>,
    pub(super) stop_token: Option<u32>,
    pub(super) events: Vec<RequestEvent>,
    pub(super) prefill: Option<PrefillCounts>,
}

/// Something that happened to a request in the scheduler.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestEvent {
    pub(super) kind: StepKind,
    /// Seconds of the engine's own clock.
    pub(super) timestamp: f64,
}

/// Kind of such an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepKind {
    Queued,
    Scheduled,
    Preempted,
}

/// Counts of a prompt's tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct PrefillCounts {
    pub(super) prompt: u32,
    pub(super) cached: u32,
}

/// A message that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct CoreMessageError(&'static str);

/// Types of a front end's messages.
const ADD: u8 = 0;
const ABORT: u8 = 1;

/// The only frame of the last message of an engine that died.
const DEAD: &[u8] = b"ENGINE_CORE_DEAD";

/// Sampling parameters that are recorded: numbers and switches, never content.
const PARAMS: [&str; 12] = [
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "ignore_eos",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logprobs",
];

/// `RequestOutputKind.DELTA`: each output goes to the client, as in a stream.
const DELTA: u64 = 1;

/// Reads a message of a front end.
///
/// # Errors
/// When it is a request or an abort of another form.
pub(super) fn from_front(frames: &[Vec<u8>]) -> Result<FrontEndMessage, CoreMessageError> {
    let [kind, fields, ..] = frames else { return Ok(FrontEndMessage::Other) };
    match kind.as_slice() {
        [ADD] => added(fields)
            .map(|request| FrontEndMessage::Add(Box::new(request)))
            .ok_or(CoreMessageError("it is a request of an unknown form")),
        [ABORT] => {
            aborted(fields).map(FrontEndMessage::Abort).ok_or(CoreMessageError("it is an abort of an unknown form"))
        }
        _ => Ok(FrontEndMessage::Other),
    }
}

fn aborted(bytes: &[u8]) -> Option<Vec<String>> {
    let mut cursor = MsgpackCursor::new(bytes);
    (0..cursor.array()?).map(|_| cursor.text().map(str::to_owned)).collect()
}

/// Reads a request: an array whose length tells its version. The first four fields are those of all; the tail has moved.
fn added(bytes: &[u8]) -> Option<AddedRequest> {
    let mut cursor = MsgpackCursor::new(bytes);
    let length = cursor.array()?;
    let id = cursor.text()?.to_owned();
    let mut request = AddedRequest {
        id,
        prompt_ids: cursor.optional(MsgpackCursor::ids)?,
        is_pooling: true,
        ..AddedRequest::default()
    };
    request.media = cursor.optional(media)?.unwrap_or_default();
    if cursor.nil().is_none() {
        request.is_pooling = false;
        read_sampling(&mut cursor, &mut request)?;
    }
    // vLLM before 0.19 has the end-of-sequence token's id before the time of arrival.
    let (lora_at, external_at) = match length {
        18 => (7, None),
        20.. => (6, Some(16)),
        _ => (6, None),
    };
    for place in 4..length {
        match place {
            _ if place == lora_at => request.lora = cursor.optional(adapter)?,
            _ if Some(place) == external_at => {
                let mut at = cursor;
                request.external_id = at.text().map(str::to_owned);
                cursor.skip()?;
            }
            _ => cursor.skip()?,
        }
    }
    Some(request)
}

/// Reads the name of an adapter, the first field of an array, and skips the rest; `None` within for another form.
fn adapter(cursor: &mut MsgpackCursor<'_>) -> Option<String> {
    let mut at = *cursor;
    cursor.skip()?;
    at.array()?;
    at.text().map(str::to_owned)
}

/// Reads the identifiers of media; each is a map.
fn media(cursor: &mut MsgpackCursor<'_>) -> Option<Vec<String>> {
    let mut found = Vec::new();
    for _ in 0..cursor.array()? {
        let mut at = *cursor;
        cursor.skip()?;
        for _ in 0..at.map().unwrap_or(0) {
            match at.text()? {
                "identifier" => found.extend(at.text().map(str::to_owned)),
                _ => at.skip()?,
            }
        }
    }
    Some(found)
}

fn read_sampling(cursor: &mut MsgpackCursor<'_>, request: &mut AddedRequest) -> Option<()> {
    for _ in 0..cursor.map()? {
        match cursor.text()? {
            "output_kind" => request.stream = cursor.uint()? == DELTA,
            "stop" => {
                let mut at = *cursor;
                request.has_stop_strings = at.array().is_some_and(|count| count > 0) || at.text().is_some();
                cursor.skip()?;
            }
            name if PARAMS.contains(&name) => {
                let value = cursor.json()?;
                if name == "logprobs" {
                    request.top = value.as_u64().and_then(|top| u32::try_from(top).ok()).unwrap_or(0);
                }
                if value.is_number() || value.is_boolean() {
                    request.params.insert(name.to_owned(), value);
                }
            }
            _ => cursor.skip()?,
        }
    }
    Some(())
}

/// Reads a message of an engine.
///
/// # Errors
/// When it is of another form.
pub(super) fn from_engine(frames: &[Vec<u8>]) -> Result<EngineMessage, CoreMessageError> {
    let Some((first, further)) = frames.split_first() else { return Ok(EngineMessage::Other) };
    if first == DEAD {
        return Ok(EngineMessage::Dead);
    }
    step(first, further).map(EngineMessage::Step).ok_or(CoreMessageError("an engine's outputs are of an unknown form"))
}

fn step<'a>(bytes: &'a [u8], further: &'a [Vec<u8>]) -> Option<EngineStep> {
    let mut cursor = MsgpackCursor::new(bytes);
    let length = cursor.array()?;
    let mut step = EngineStep { engine: cursor.uint()?, ..EngineStep::default() };
    for _ in 0..cursor.array()? {
        step.outputs.push(output(&mut cursor, further)?);
    }
    if length > 3 {
        cursor.skip()?;
        step.timestamp = cursor.float();
    }
    Some(step)
}

/// Reads what a step gave one request: an array that began with the same eight fields in all versions.
fn output<'a>(cursor: &mut MsgpackCursor<'a>, further: &'a [Vec<u8>]) -> Option<RequestStep> {
    let length = cursor.array()?;
    let id = cursor.text()?.to_owned();
    let mut step = RequestStep { id, token_ids: cursor.ids()?, ..RequestStep::default() };
    for place in 2..length {
        match place {
            2 => step.logprobs = read_or_skip(cursor, |cursor| logprobs(cursor, further)),
            3 => step.prompt_logprobs = read_or_skip(cursor, |cursor| prompt_logprobs(cursor, further)),
            5 => step.finish = cursor.optional(MsgpackCursor::uint)?.and_then(finish_reason),
            6 => {
                step.stop_token = cursor.clone().uint().and_then(|id| u32::try_from(id).ok());
                cursor.skip()?;
            }
            7 => step.events = cursor.optional(events)?.unwrap_or_default(),
            // Its place has moved, its form is its own.
            10 | 11 => step.prefill = step.prefill.or(read_or_skip(cursor, prefill)),
            _ => cursor.skip()?,
        }
    }
    Some(step)
}

/// Reads one value with `read`, which may not know its form, and goes on behind it.
fn read_or_skip<'a, T>(
    cursor: &mut MsgpackCursor<'a>,
    read: impl FnOnce(&mut MsgpackCursor<'a>) -> Option<T>,
) -> Option<T> {
    let mut at = *cursor;
    cursor.skip()?;
    read(&mut at)
}

fn finish_reason(number: u64) -> Option<FinishReason> {
    Some(match number {
        0 => FinishReason::Stop,
        1 => FinishReason::Length,
        2 => FinishReason::Abort,
        4 => FinishReason::Repetition,
        _ => FinishReason::Error,
    })
}

fn events(cursor: &mut MsgpackCursor<'_>) -> Option<Vec<RequestEvent>> {
    let mut found = Vec::new();
    for _ in 0..cursor.array()? {
        let (mut kind, mut timestamp) = (None, None);
        for _ in 0..cursor.map()? {
            match cursor.text()? {
                "type" => kind = cursor.uint(),
                "timestamp" => timestamp = cursor.float(),
                _ => cursor.skip()?,
            }
        }
        let kind = match kind {
            Some(1) => StepKind::Queued,
            Some(2) => StepKind::Scheduled,
            Some(3) => StepKind::Preempted,
            _ => continue,
        };
        found.push(RequestEvent { kind, timestamp: timestamp? });
    }
    Some(found)
}

fn prefill(cursor: &mut MsgpackCursor<'_>) -> Option<PrefillCounts> {
    let mut counts = PrefillCounts { prompt: 0, cached: 0 };
    for _ in 0..cursor.map()? {
        let name = cursor.text()?;
        let count = u32::try_from(cursor.uint()?).ok()?;
        match name {
            "num_prompt_tokens" => counts.prompt = count,
            "num_cached_tokens" => counts.cached = count,
            _ => {}
        }
    }
    Some(counts)
}

/// Reads the settings that an engine reports when it is ready; `None` before vLLM 0.24, which names no version.
pub(super) fn ready(frame: &[u8]) -> Option<EngineSettings> {
    let settings = MsgpackCursor::new(frame).json()?;
    let mut cache = Map::new();
    for (name, key) in [
        ("block_size", "block_size"),
        ("kv_cache_size_tokens", "kv_cache_size_tokens"),
        ("num_gpu_blocks", "num_gpu_blocks"),
    ] {
        cache.extend(settings.get(key).filter(|value| value.is_number()).map(|value| (name.to_owned(), value.clone())));
    }
    Some(EngineSettings {
        version: settings.get("vllm_version")?.as_str()?.to_owned(),
        models: Vec::new(),
        max_model_len: settings.get("max_model_len").and_then(Value::as_u64),
        cache,
    })
}
