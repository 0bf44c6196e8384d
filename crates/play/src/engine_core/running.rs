//! A request of a front end on its way: what the engine's steps give it, as outputs.

use engine_core::{
    msgpack::MsgpackValue,
    outputs::{PrefillStats, WireFinish, WireOutput},
    request::{EngineCoreRequest, SamplingParams},
};
use tokio::time::Instant;

use super::logprobs;
use crate::{
    answer::{AnswerStream, tokens::TokenStep},
    engine::Scheduled,
};
use api::{LogprobsOptions, Position, StopReason};

/// Kinds of a request's events.
const QUEUED: u8 = 1;
const SCHEDULED: u8 = 2;
const PREEMPTED: u8 = 3;

/// Tokens that end an output, and its length.
#[derive(Debug, Clone, Default)]
pub(super) struct OutputEnds {
    /// The end of a text; `None` where that is ignored.
    eos: Option<u32>,
    stop_token_ids: Vec<u32>,
    max_tokens: usize,
}

#[derive(Debug)]
pub(super) struct RunningRequest {
    id: String,
    arrived: Instant,
    answer: AnswerStream,
    ends: OutputEnds,
    requested: LogprobsOptions,
    produced: usize,
    preemptions: u32,
}

#[derive(Debug)]
pub(super) struct RequestOutput {
    pub(super) output: WireOutput,
    /// End of the last of the steps.
    pub(super) at: Instant,
}

/// Reads times as the engine's clock shows them.
#[derive(Debug, Clone, Copy)]
pub(super) struct EngineClock {
    instant: Instant,
    seconds: f64,
}

impl EngineClock {
    pub(super) fn now() -> Self {
        Self { instant: Instant::now(), seconds: engine_core::outputs::monotonic_seconds() }
    }

    pub(super) fn seconds(self, at: Instant) -> f64 {
        let later = at.saturating_duration_since(self.instant).as_secs_f64();
        self.seconds + later - self.instant.saturating_duration_since(at).as_secs_f64()
    }
}

impl OutputEnds {
    pub(super) fn of(sampling: &SamplingParams) -> Self {
        let (eos, stop_token_ids) = (sampling.eos_token_id(), sampling.ids("stop_token_ids"));
        Self { eos, stop_token_ids, max_tokens: sampling.max_tokens() }
    }

    /// The end of an output of these tokens as an engine has it, so many in all. A text that was ended by what only its client knew, such as a stop
    /// string, ends with a token for it: a front end takes the last token of a text that stopped for its end, and does not show it.
    fn wire(
        &self,
        (reason, stop): (&str, &StopReason),
        ids: &mut Vec<u32>,
        (produced, ends_by_last): (usize, bool),
    ) -> (WireFinish, Option<u32>) {
        match reason {
            "length" => return (WireFinish::Length, None),
            "abort" => return (WireFinish::Abort, None),
            "error" => return (WireFinish::Error, None),
            "repetition" => return (WireFinish::Repetition, None),
            _ => {}
        }
        let last = ids.last().copied();
        if let (StopReason::Token(id), true) = (stop, last.is_some()) {
            return (WireFinish::Stop, Some(*id));
        }
        if last.is_some() && last == self.eos {
            return (WireFinish::Stop, None);
        }
        if let Some(last) = last.filter(|last| self.stop_token_ids.contains(last)) {
            return (WireFinish::Stop, Some(last));
        }
        if ends_by_last {
            return (WireFinish::Stop, None);
        }
        if produced >= self.max_tokens {
            return (WireFinish::Length, None);
        }
        match (self.eos, self.stop_token_ids.first()) {
            (Some(eos), _) => {
                ids.push(eos);
                (WireFinish::Stop, None)
            }
            (None, Some(stop)) => {
                ids.push(*stop);
                (WireFinish::Stop, Some(*stop))
            }
            (None, None) => (WireFinish::Length, None),
        }
    }
}

impl RunningRequest {
    pub(super) fn new(
        request: &EngineCoreRequest,
        arrived: Instant,
        answer: AnswerStream,
        (ends, requested): (OutputEnds, LogprobsOptions),
    ) -> Self {
        Self { id: request.request_id.clone(), arrived, answer, ends, requested, produced: 0, preemptions: 0 }
    }

    /// Waits for the engine, and gives what it has given; `None` once nothing more comes.
    pub(super) async fn next(&mut self, clock: EngineClock) -> Option<RequestOutput> {
        let steps = self.answer.next_tokens().await;
        let at = steps.last()?.at;
        let mut output = WireOutput { request_id: self.id.clone(), ..WireOutput::default() };
        let is_first = self.produced == 0;
        let (mut positions, mut finish, mut by_last) = (Vec::new(), None, false);
        for TokenStep { ids, positions: scored, finish: end, ends_by_last, .. } in steps {
            by_last |= ends_by_last;
            output.new_token_ids.extend(ids);
            positions.extend(scored.into_iter().flatten());
            finish = finish.or(end);
        }
        self.produced += output.new_token_ids.len();
        if let Some((reason, stop)) = finish {
            let (finish, stop_reason) =
                self.ends.wire((reason, &stop), &mut output.new_token_ids, (self.produced, by_last));
            (output.finish_reason, output.stop_reason) = (Some(finish), stop_reason);
            output.kv_transfer_params = self.answer.kept().and_then(|params| kept_as_value(&params));
        }
        if self.requested.sample.is_some() {
            self.score(&mut output, positions);
        }
        if let Some(scheduled) = self.answer.scheduled() {
            self.put_events(&mut output, scheduled, at, (clock, is_first && self.produced > 0));
        }
        Some(RequestOutput { output, at })
    }

    /// Adds the log probabilities of the new tokens; those of a token that was added for the end are those before it.
    fn score(&self, output: &mut WireOutput, mut positions: Vec<Position>) {
        while let (Some(id), Some(last)) = (output.new_token_ids.get(positions.len()), positions.last()) {
            positions.push(Position { id: *id, ..last.clone() });
        }
        let is_named = !self.requested.token_ids.is_empty();
        let named = self.requested.token_ids.len();
        let alternatives = if is_named { named } else { self.requested.sample.unwrap_or(0) };
        output.new_logprobs = (!positions.is_empty()).then(|| logprobs::tensors(&positions, alternatives, is_named));
    }

    /// Adds what the scheduler did with the request, and with its first token the figures of its prompt.
    fn put_events(
        &mut self,
        output: &mut WireOutput,
        scheduled: Scheduled,
        at: Instant,
        (clock, is_first): (EngineClock, bool),
    ) {
        let Scheduled { queued, prefill, cached, external, preemptions } = scheduled;
        if is_first {
            let began = at.checked_sub(prefill).unwrap_or(at);
            let arrived = began.checked_sub(queued).unwrap_or(self.arrived);
            output.events = vec![(QUEUED, clock.seconds(arrived)), (SCHEDULED, clock.seconds(began))];
            let prompt_tokens = self.answer.prompt_tokens();
            let created = self.answer.created(0, cached);
            output.prefill_stats =
                Some(PrefillStats { prompt_tokens, cached: cached.saturating_sub(external), external, created });
            let rows = self.answer.prompt_positions().zip(self.requested.prompt);
            // The first token has none.
            output.new_prompt_logprobs = rows
                .map(|(rows, alternatives)| logprobs::tensors(rows.get(1..).unwrap_or_default(), alternatives, false));
        }
        for _ in self.preemptions..preemptions {
            output.events.push((PREEMPTED, clock.seconds(at)));
        }
        self.preemptions = preemptions;
    }
}

/// Where blocks are kept, in an engine's form.
fn kept_as_value(params: &str) -> Option<MsgpackValue> {
    fn value(json: &serde_json::Value) -> MsgpackValue {
        match json {
            serde_json::Value::Null => MsgpackValue::Nil,
            serde_json::Value::Bool(value) => (*value).into(),
            serde_json::Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => number.into(),
                (None, Some(number)) => MsgpackValue::Int(number),
                (None, None) => number.as_f64().unwrap_or_default().into(),
            },
            serde_json::Value::String(text) => text.as_str().into(),
            serde_json::Value::Array(items) => MsgpackValue::Array(items.iter().map(value).collect()),
            serde_json::Value::Object(fields) => {
                MsgpackValue::map(fields.iter().map(|(name, field)| (name.as_str(), value(field))))
            }
        }
    }
    serde_json::from_str(params).ok().as_ref().map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_that_stopped_ends_with_a_token_that_stops() {
        let ends = OutputEnds { eos: Some(2), stop_token_ids: vec![5, 6], max_tokens: 10 };
        let end = |ends: &OutputEnds, reason, stop, ids: &[u32], produced| {
            let mut ids = ids.to_vec();
            let (finish, stop_reason) = ends.wire((reason, &stop), &mut ids, (produced, false));
            (finish, stop_reason, ids)
        };
        let unnamed = StopReason::Unnamed;
        assert_eq!(end(&ends, "stop", unnamed.clone(), &[9, 2], 2), (WireFinish::Stop, None, vec![9, 2]));
        assert_eq!(end(&ends, "stop", unnamed.clone(), &[9, 6], 2), (WireFinish::Stop, Some(6), vec![9, 6]));
        assert_eq!(end(&ends, "stop", StopReason::Token(8), &[9, 8], 2), (WireFinish::Stop, Some(8), vec![9, 8]));
        assert_eq!(end(&ends, "stop", StopReason::Text("x".into()), &[9], 1), (WireFinish::Stop, None, vec![9, 2]));
        assert_eq!(end(&ends, "tool_calls", unnamed.clone(), &[], 3), (WireFinish::Stop, None, vec![2]));
        assert_eq!(end(&ends, "stop", unnamed.clone(), &[9], 10), (WireFinish::Length, None, vec![9]));
        let ignoring = OutputEnds { eos: None, stop_token_ids: Vec::new(), max_tokens: 10 };
        assert_eq!(end(&ignoring, "stop", unnamed.clone(), &[9], 1), (WireFinish::Length, None, vec![9]));
        assert_eq!(end(&ends, "length", unnamed, &[9], 1), (WireFinish::Length, None, vec![9]));
    }

    #[test]
    fn times_are_those_of_the_engines_clock() {
        let clock = EngineClock::now();
        let later = clock.instant + std::time::Duration::from_millis(1500);
        assert!((clock.seconds(later) - clock.seconds - 1.5).abs() < 1e-9);
        let earlier = EngineClock { instant: later, seconds: 10.0 };
        assert!((earlier.seconds(clock.instant) - 8.5).abs() < 1e-9);
    }
}
