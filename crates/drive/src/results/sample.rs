//! One request of a run in figures, and whether it ended as it should.

use std::time::Duration;

use recording::trace::{Endpoint, Outcome, Record};
use replay::meter;

use crate::{check, workload::WorkloadRequest};

/// One request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// Its index in the workload.
    pub request: usize,
    /// Its target's place in [`Results::targets`](super::Results::targets).
    pub target: Option<usize>,
    /// Its number in the recording.
    pub number: usize,
    /// When it was to be sent, and when it was, from the start of the run.
    pub intended: Duration,
    /// When it was sent.
    pub sent: Duration,
    /// From sent to the first token.
    pub ttft: Option<Duration>,
    /// From sent to the first event of any kind.
    pub first_event: Option<Duration>,
    /// From sent to the last event with tokens, of all its choices as the counts below.
    pub last_token: Option<Duration>,
    /// From sent to the end.
    pub e2e: Duration,
    /// Tokens that came.
    pub output_tokens: u32,
    /// Events with tokens.
    pub chunks: u32,
    /// Tokens of the prompt: by the server's count, else as recorded.
    pub prompt_tokens: u32,
    /// It was a chat, whose stream begins with an event for the role.
    pub is_chat: bool,
    /// HTTP status of its response; 0 where there was none.
    pub status: u16,
    /// Prompt tokens by the server's count, less the recorded ones; `None` where it gave none, or none is recorded.
    pub prompt_drift: Option<i64>,
    /// Per output token after the first.
    pub tpot: Option<Duration>,
    /// It ended as it should.
    pub is_good: bool,
    /// It kept the limits.
    pub keeps_slo: bool,
}

/// Whether a request was refused when it was recorded, and is now with the same status.
pub(super) fn is_refused_again(recorded: &Record, record: &Record) -> bool {
    record.status.is_some_and(|status| status >= 400) && record.status == recorded.status
}

/// Whether a response ended as an answer should: one that its client left when it was recorded is left again. A page of a proxy, an empty body or a stream without a token is no answer of a model.
pub(super) fn is_answered(recorded: &Record, record: &Record) -> bool {
    let is_success = record.status.is_none_or(|status| (200..300).contains(&status));
    let generates = recorded.endpoint.is_none_or(|endpoint| endpoint.generates());
    let is_left = record.outcome == Some(Outcome::ClientGone) && recorded.outcome == record.outcome;
    let has_answer = !generates || is_left || record.output_tokens > 0 || record.finish_reason.is_some();
    (record.outcome == Some(Outcome::Finished) || is_left) && !record.is_error() && is_success && has_answer
}

impl Sample {
    /// Content of a record.
    pub(super) fn of(recorded: &WorkloadRequest, record: &Record) -> Self {
        let counted = check::prompt_tokens(record);
        let (ttft, planned) = (meter::ttft(record), recorded.record.prompt_tokens);
        Self {
            number: recorded.number,
            ttft,
            tpot: meter::tpot(record),
            first_event: meter::first_event(record),
            last_token: last_token(record),
            e2e: record.e2e.unwrap_or_default(),
            output_tokens: record.output_tokens,
            chunks: chunks(record),
            prompt_tokens: if counted > 0 { counted } else { planned },
            is_chat: record.endpoint == Some(Endpoint::Chat),
            status: record.status.unwrap_or_default(),
            prompt_drift: (counted > 0 && planned > 0).then(|| i64::from(counted) - i64::from(planned)),
            ..Self::default()
        }
    }
}

pub(super) fn last_token(record: &Record) -> Option<Duration> {
    meter::ttft(record).map(|ttft| meter::chunk_gaps(record).fold(ttft, Duration::saturating_add))
}

pub(super) fn chunks(record: &Record) -> u32 {
    u32::try_from(record.chunks.len()).unwrap_or(u32::MAX)
}
