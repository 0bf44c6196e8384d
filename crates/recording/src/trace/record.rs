//! One choice of one request: what came out and when.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{ContentSource, Endpoint, Logprobs, PromptLogprobs, Response, SpelledToken};

/// One recorded choice of one request. A request with `n > 1` or several prompts makes several records that share a
/// [`group`](Record::group).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Record {
    /// Prompt length in tokens.
    pub prompt_tokens: u32,
    /// Prompt tokens that the engine found in its prefix cache; `None` when the engine did not report it.
    pub cached_tokens: Option<u32>,
    /// Tokens that came out, the end-of-sequence token included.
    pub output_tokens: u32,
    /// The token-bearing chunks in order; the first chunk's gap is the TTFT. With an [`itl_summary`](Record::itl_summary)
    /// only the first chunk is here. Empty when no token came.
    pub chunks: Vec<Chunk>,
    /// Stands for the gaps after the first chunk where they were not recorded one by one.
    pub itl_summary: Option<ItlSummary>,
    /// TTFT of a record without chunks (nothing came, yet the file has a `ttft_ms`); zero otherwise unused.
    pub ttft_without_tokens: Duration,
    /// Requests that were in flight when this one arrived, itself included.
    pub concurrency: Option<u32>,
    /// Arrival, from the capture's zero. `None` in public files without a schedule.
    pub arrival: Option<Duration>,
    /// Chained hashes of the prompt's full blocks, see [`text::prompt::BlockHasher`].
    /// Choices of one request share them.
    pub block_hashes: Arc<Vec<u64>>,
    /// Chained hash of the whole prompt, the last partial block included; distinguishes prompts that share all full blocks.
    pub prompt_hash: Option<u64>,
    /// Hashes of multimodal inputs, as the public schema has them; shared likewise.
    pub mm_hashes: Arc<Vec<String>>,
    /// The ids that came out, `output_tokens` of them; `None` when they were not recorded.
    pub output_token_ids: Option<Vec<u32>>,
    /// Reason why generation ended; `None` if the engine never reported one.
    pub finish_reason: Option<FinishReason>,
    /// The stop token that ended the output, where the engine named one (`stop_reason`).
    pub stop_token: Option<u32>,
    /// The request id that the client sent or the engine gave.
    pub request_id: Option<String>,
    /// Shared by the choices of one request.
    pub group: Option<String>,
    /// The choice's index in its request.
    pub choice: Option<u32>,
    /// The endpoint that was called.
    pub endpoint: Option<Endpoint>,
    /// The model name that the request asked for.
    pub model: Option<String>,
    /// The client asked for a stream. The gaps of a record that was not streamed are unknown: all of its
    /// tokens are due at its end.
    pub stream: Option<bool>,
    /// HTTP status of the answer.
    pub status: Option<u16>,
    /// Outcome of the exchange.
    pub outcome: Option<Outcome>,
    /// Error response, or the error event that ended the stream.
    pub error: Option<RecordedErrorResponse>,
    /// Canonical key of the request; holds no content.
    pub request_key: Option<String>,
    /// Parameters of the request that shape an answer (`max_tokens`, `temperature`, …); no content.
    pub params: Map<String, Value>,
    /// Request sent to last byte of the answer.
    pub e2e: Option<Duration>,
    /// Request sent to first event of any kind (in chat streams the role event).
    pub first_event: Option<Duration>,
    /// Session that the request belonged to.
    pub session: Option<String>,
    /// The request body; on opt-in only.
    pub request: Option<Value>,
    /// Text of each chunk; on opt-in only.
    pub text: Option<Vec<String>>,
    /// Verbatim SSE payloads; on opt-in only.
    pub events: Option<Vec<String>>,
    /// Log probabilities of the output; on opt-in only, if the client requested them.
    pub logprobs: Option<Logprobs>,
    /// Log probabilities of the prompt; likewise.
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// The response as the client got it, where no token ids stand for it; on opt-in only. Of the choices of one request the
    /// first one has it.
    pub response: Option<Arc<Response>>,
    /// Source of the ids or of the response.
    pub content_source: Option<ContentSource>,
    /// Every key that this version does not know, in file order; kept on rewrite.
    pub extra: Map<String, Value>,
}

/// Tokens that left the engine together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chunk {
    /// Time since the previous chunk; for the first one since the request was sent (the TTFT).
    pub gap: Duration,
    /// Number of tokens; at least 1.
    pub tokens: u32,
    /// The engine step that produced it, where the capture has the scheduler's steps.
    pub step: Option<StepContext>,
}

/// Work of one engine step besides this request (`itl_ctx` of the public schema).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepContext {
    /// Requests running in the step.
    pub num_running: u32,
    /// Prompt tokens prefilled in the step.
    pub prefill_tokens: u32,
}

/// Gaps that were recorded as a mean only.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ItlSummary {
    /// Mean gap in milliseconds.
    pub mean_ms: f64,
    /// Number of gaps.
    pub count: u32,
}

base::named! {
    /// Reason why generation ended, in the public schema's words.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum FinishReason {
        /// End of sequence, a stop token or a stop string (and the API's `tool_calls`).
        Stop = "stop",
        /// `max_tokens` or the model's length was reached.
        Length = "length",
        /// The request was aborted, as by a client that left.
        Abort = "abort",
        /// The engine failed.
        Error = "error",
        /// The engine's repetition detector stopped it.
        Repetition = "repetition",
    }
}

impl FinishReason {
    /// Reads the word of any API. A tool call is an end that the model chose.
    #[must_use]
    pub fn of_api(word: &str) -> Option<Self> {
        Some(match word {
            "stop" | "tool_calls" | "function_call" | "end_turn" | "stop_sequence" | "tool_use" | "completed"
            | "eos_token" | "eos" | "word" => Self::Stop,
            "length" | "max_tokens" | "incomplete" | "limit" => Self::Length,
            "abort" | "cancelled" => Self::Abort,
            "error" | "failed" => Self::Error,
            "repetition" => Self::Repetition,
            _ => return None,
        })
    }
}

base::named! {
    /// Outcome of one exchange, as seen by the side that recorded it. Exactly one per record.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Outcome {
        /// The answer was complete.
        Finished = "finished",
        /// The engine answered with an error, before or in the middle of a stream.
        Error = "error",
        /// The client left before the end.
        ClientGone = "client_gone",
        /// The upstream could not be reached, or its connection broke.
        UpstreamFailed = "upstream_failed",
        /// A time limit ended it.
        TimedOut = "timed_out",
        /// The recorder was stopped while it ran.
        Cut = "cut",
    }
}

impl Outcome {
    /// Returns true if the connection to the engine broke in the middle of the answer.
    #[must_use]
    pub fn breaks_off(self) -> bool {
        matches!(self, Self::UpstreamFailed | Self::TimedOut)
    }
}

/// Key of [`Record::think`].
pub const THINK_MS: &str = "think_ms";
/// Key of the time at which a load client was to send the request, on the clock of the arrivals.
pub const INTENDED_MS: &str = "intended_ms";
/// Key of [`Record::agent`].
pub const AGENT: &str = "agent";

/// The key under which a record has the prompt tokens that `usage` counts, where as many ids were not named.
pub const USAGE_PROMPT_TOKENS: &str = "usage_prompt_tokens";

/// The same of the output, in results of a run that is compared with its recording.
pub const USAGE_OUTPUT_TOKENS: &str = "usage_output_tokens";

/// The key under which the first record of a request has the number of events that could not be read, as those that are no JSON.
pub const UNREAD_EVENTS: &str = "unread_events";

/// Stands for a text of an error's body that was left out.
pub const WITHHELD: &str = "(not recorded)";

/// An error as its client got it, as far as it was recorded. Its status is the record's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedErrorResponse {
    /// Headers that a client acts on, such as `retry-after`; names in small letters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The body, or the payload of the event that ended a stream; `None` where it was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}

/// Returns true if a response of this status and outcome was an error, or its stream ended in one.
pub(super) fn is_error(status: Option<u16>, outcome: Option<Outcome>) -> bool {
    status.is_some_and(|status| status >= 400) || outcome == Some(Outcome::Error)
}

impl Record {
    /// Returns true if the response was an error, or its stream ended in one.
    #[must_use]
    pub fn is_error(&self) -> bool {
        is_error(self.status, self.outcome)
    }

    /// Short texts that clients or engines choose, with the names of their fields. Every field stands here: a new one with text is one of
    /// these, or is searched for secrets where a tap redacts records and where they are audited.
    pub fn names_mut(&mut self) -> [(&'static str, &mut Option<String>); 4] {
        let Self {
            request_id,
            group,
            session,
            model,
            // Text that is searched there.
            request: _,
            text: _,
            events: _,
            error: _,
            logprobs: _,
            prompt_logprobs: _,
            response: _,
            extra: _,
            // What could spell a secret is left out with it.
            output_token_ids: _,
            block_hashes: _,
            prompt_hash: _,
            mm_hashes: _,
            request_key: _,
            // Numbers, times, switches and words of this program.
            prompt_tokens: _,
            cached_tokens: _,
            output_tokens: _,
            chunks: _,
            itl_summary: _,
            ttft_without_tokens: _,
            concurrency: _,
            arrival: _,
            finish_reason: _,
            stop_token: _,
            choice: _,
            endpoint: _,
            stream: _,
            status: _,
            outcome: _,
            params: _,
            e2e: _,
            first_event: _,
            content_source: _,
        } = self;
        [("request_id", request_id), ("group", group), ("session", session), ("model", model)]
    }

    /// The path of the request, without its query.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        let other = self.extra.get("path").and_then(Value::as_str);
        other.or_else(|| self.endpoint?.path())
    }

    /// Time between the end of the turns before it and its arrival, where the recording has this and not when those ended.
    #[must_use]
    pub fn think(&self) -> Option<Duration> {
        base::units::Millis(self.extra.get(THINK_MS)?.as_f64()?).duration()
    }

    /// Name of the sub-agent of its session that sent it; `None` for the agent that the session is of.
    #[must_use]
    pub fn agent(&self) -> Option<&str> {
        self.extra.get(AGENT)?.as_str()
    }

    /// Texts of the tokens that have log probabilities, of the output and of the prompt: the tokens one after the other, and then those
    /// of each rank of the candidates.
    #[must_use]
    pub fn token_texts(&self) -> Vec<Vec<String>> {
        let mut output: Vec<Vec<String>> = Vec::new();
        for token in self.logprobs.iter().flat_map(|logprobs| logprobs.prompt.iter().chain(&logprobs.tokens)) {
            let others = token.others.iter().map(|(other, _)| match other {
                SpelledToken::Text(text) => Some(text),
                SpelledToken::Id(_) => None,
            });
            push_ranks(&mut output, std::iter::once(token.text.as_ref()).chain(others));
        }
        let mut prompt: Vec<Vec<String>> = Vec::new();
        for place in self.prompt_logprobs.iter().flat_map(|logprobs| &logprobs.tokens) {
            push_ranks(&mut prompt, place.0.iter().map(|token| token.text.as_ref()));
        }
        output.append(&mut prompt);
        output
    }

    /// Time from the request to its first token; `None` when no token came.
    #[must_use]
    pub fn ttft(&self) -> Option<Duration> {
        self.chunks.first().map(|chunk| chunk.gap)
    }

    /// Every token-bearing chunk in order, with summarised gaps spelled out as single tokens at their mean.
    pub fn emissions(&self) -> impl Iterator<Item = Chunk> + '_ {
        let summarised = self.itl_summary.map_or(0, |_| {
            let listed: u32 = self.chunks.iter().map(|chunk| chunk.tokens).sum();
            self.output_tokens.saturating_sub(listed)
        });
        let mean = self.itl_summary.map_or(0.0, |summary| summary.mean_ms);
        let gap = base::units::Millis(mean).duration().unwrap_or_default();
        let rest = (0..summarised).map(move |_| Chunk { gap, tokens: 1, step: None });
        self.chunks.iter().copied().chain(rest)
    }
}

/// Returns the key by which records are sorted, stably, into the order of their replay.
#[must_use]
pub fn replay_key(arrival: Option<Duration>) -> impl Ord {
    (arrival.is_none(), arrival)
}

/// Indices of `records` (in file order) by arrival; equal arrivals keep their file order, and records without an
/// arrival come last in file order. A record's place in this order is its index for both the recording and the
/// replaying side.
#[must_use]
pub fn replay_order(records: &[Record]) -> Vec<usize> {
    let mut order: Vec<(usize, &Record)> = records.iter().enumerate().collect();
    order.sort_by_key(|(_, record)| replay_key(record.arrival));
    order.into_iter().map(|(index, _)| index).collect()
}

/// Adds the texts of one place to those of their ranks.
fn push_ranks<'t>(ranks: &mut Vec<Vec<String>>, texts: impl Iterator<Item = Option<&'t String>>) {
    for (rank, text) in texts.enumerate() {
        if ranks.len() == rank {
            ranks.push(Vec::new());
        }
        if let (Some(texts), Some(text)) = (ranks.get_mut(rank), text) {
            texts.push(text.clone());
        }
    }
}
