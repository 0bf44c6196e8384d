//! Messages of the engine core's protocol, as far as they are recorded.

use engine_core::{
    MessageError,
    layout::{FAMILIES, VersionFamily},
    msgpack::MsgpackValue,
    outputs::{LogprobsTensors, WireFinish, WireOutputs},
    request::{EngineCoreRequest, SamplingParams},
};
use serde_json::{Map, Number, Value, json};

use crate::{
    core_facts::CoreFacts,
    facts::{CACHE_SETTINGS, EngineSettings},
    request::RECORDED_PARAMS,
};
use base::lock::Lock;
use recording::trace::{FinishReason, PromptLogprobs, RankedLogprob, RankedLogprobs, SpelledToken, TokenLogprobs};

/// `RequestOutputKind.DELTA`: each output goes to the client, as in a stream.
const DELTA: u64 = 1;

/// Reader of messages, in the form of the version that the engines name, else of the requests' form.
#[derive(Debug, Default)]
pub(super) struct CoreMessages {
    family: Lock<Option<VersionFamily>>,
}

impl CoreMessages {
    /// Reads the fields of an ADD.
    pub(super) fn added(&self, fields: &[u8]) -> Result<EngineCoreRequest, MessageError> {
        let request = EngineCoreRequest::read(fields)?;
        self.family.lock().get_or_insert(request.family);
        Ok(request)
    }

    /// Reads what a step of an engine gave.
    pub(super) fn outputs(&self, first: &[u8], further: &[Vec<u8>]) -> Result<WireOutputs, MessageError> {
        let [newest, ..] = FAMILIES;
        let family = self.family.lock().unwrap_or(newest);
        WireOutputs::read(first, further, family)
    }

    /// Reads the settings that an engine reports when it is ready; `None` before vLLM 0.24, which names no version.
    pub(super) fn ready(&self, frame: &[u8]) -> Option<EngineSettings> {
        let settings = MsgpackValue::read(frame).ok()?;
        let number = |name: &str| settings.get(name).and_then(MsgpackValue::as_u64);
        let version = settings.get("vllm_version")?.as_str()?.to_owned();
        if let Some(family) = VersionFamily::of_version(&version) {
            *self.family.lock() = Some(family);
        }
        let cache = CACHE_SETTINGS.iter().filter_map(|name| Some(((*name).to_owned(), json!(number(name)?))));
        Some(EngineSettings {
            version,
            models: Vec::new(),
            max_model_len: number("max_model_len"),
            cache: cache.collect(),
        })
    }
}

/// Returns what a request's parameters say of its answer.
pub(super) fn core_facts(sampling: &SamplingParams) -> CoreFacts {
    let mut facts = CoreFacts { stream: sampling.number("output_kind", 0) == DELTA, ..CoreFacts::default() };
    facts.logprobs.top = sampling.logprobs("logprobs").and_then(|top| u32::try_from(top).ok()).unwrap_or(0);
    facts.logprobs.named = sampling.ids("logprob_token_ids");
    facts
}

pub(super) fn has_stop_strings(sampling: &SamplingParams) -> bool {
    match sampling.get("stop") {
        Some(MsgpackValue::Array(stops)) => !stops.is_empty(),
        stop => stop.is_some(),
    }
}

/// Reads the parameters that are recorded.
pub(super) fn params(sampling: &SamplingParams) -> Map<String, Value> {
    let value = |name: &str| match sampling.get(name)? {
        MsgpackValue::Bool(value) => Some(json!(value)),
        MsgpackValue::Uint(number) => Some(json!(number)),
        MsgpackValue::Int(number) => Some(json!(number)),
        MsgpackValue::Float(number) => Number::from_f64(as_written(*number)).map(Value::Number),
        _ => None,
    };
    RECORDED_PARAMS.iter().filter_map(|name| Some(((*name).to_owned(), value(name)?))).collect()
}

/// Returns a number of 32 bits with the digits that it was written with, not those that widening adds; any other as it is.
fn as_written(number: f64) -> f64 {
    #[allow(clippy::cast_possible_truncation)] // compared on the next line
    let short = number as f32;
    let digits = || short.to_string().parse().ok();
    if f64::from(short).to_bits() == number.to_bits() { digits().unwrap_or(number) } else { number }
}

pub(super) fn finish_reason(reason: WireFinish) -> FinishReason {
    match reason {
        WireFinish::Stop => FinishReason::Stop,
        WireFinish::Length => FinishReason::Length,
        WireFinish::Abort => FinishReason::Abort,
        WireFinish::Error => FinishReason::Error,
        WireFinish::Repetition => FinishReason::Repetition,
    }
}

/// Returns the ids and log probabilities of each token: its own, then those of the candidates by their rank.
fn rows(tensors: &LogprobsTensors) -> impl Iterator<Item = (&[u32], &[f32])> {
    let width = tensors.width.max(1);
    tensors.token_ids.chunks_exact(width).zip(tensors.logprobs.chunks_exact(width))
}

pub(super) fn logprobs(tensors: &LogprobsTensors) -> Vec<TokenLogprobs> {
    let token = |(ids, values): (&[u32], &[f32])| {
        let mut candidates = ids.iter().copied().zip(values.iter().map(|value| clamped(*value)));
        let own = candidates.next();
        let others = candidates.filter(|(id, _)| Some(*id) != own.map(|(id, _)| id));
        TokenLogprobs {
            text: None,
            logprob: own.map(|(_, value)| value),
            others: others.map(|(id, value)| (SpelledToken::Id(id), value)).collect(),
        }
    };
    rows(tensors).map(token).collect()
}

/// Returns a log probability as clients get it: nothing is less than -9999, and what is no number is that.
fn clamped(value: f32) -> f64 {
    f64::from(value.max(-9999.0))
}

/// Returns those of a prompt's tokens, of which the first has none.
pub(super) fn prompt_logprobs(tensors: &LogprobsTensors) -> PromptLogprobs {
    let token = |((ids, values), rank): ((&[u32], &[f32]), &u32)| {
        let own = ids.first().copied();
        let ranks = std::iter::once(*rank).chain(1..);
        let all = ids.iter().zip(values).zip(ranks).enumerate();
        let kept = all.filter(|(at, ((id, _), _))| *at == 0 || Some(**id) != own);
        let ranked =
            kept.map(|(_, ((id, value), rank))| RankedLogprob { id: *id, logprob: clamped(*value), rank, text: None });
        RankedLogprobs(ranked.collect())
    };
    let tokens =
        std::iter::once(RankedLogprobs::default()).chain(rows(tensors).zip(&tensors.ranks).map(token)).collect();
    PromptLogprobs { top: u32::try_from(tensors.width.saturating_sub(1)).unwrap_or(u32::MAX), tokens }
}
