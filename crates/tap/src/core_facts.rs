//! What is observed of a request at the engine core beside what every exchange has, and its place in the record.

use serde_json::{Map, Value, json};

use recording::trace::{Logprobs, PromptLogprobs, Record, TokenLogprobs};

/// Record field: time in the engine's queue, in milliseconds.
const QUEUE_MS: &str = "queue_ms";

/// Record field: time from being scheduled first to the end of the step that gave the first token, in milliseconds.
const PREFILL_MS: &str = "prefill_ms";

/// Record field: number of times that the request was preempted.
const PREEMPTIONS: &str = "preemptions";

/// Record field: rank of the engine among those of data parallelism, where it is not the first.
const ENGINE: &str = "engine";

/// Record field: the front end aborted a request with stop strings; that it had found one is assumed.
const STOP_ASSUMED: &str = "stop_assumed";

/// Record field: tokens of a step were not seen, so that the record has no ids.
const INCOMPLETE: &str = "tokens_missed";

/// Maximum number of log probabilities of one request that are recorded.
const MAX_LOGPROBS: usize = 1 << 20;

/// Facts of a request that only its engine core knows.
#[derive(Debug, Default)]
pub(super) struct CoreFacts {
    /// Shared by the requests that the front end made of one.
    pub(super) group: Option<String>,
    /// The client asked for a stream.
    pub(super) stream: bool,
    /// Times of the engine's own clock, in seconds.
    pub(super) queued: Option<f64>,
    pub(super) scheduled: Option<f64>,
    pub(super) first_token: Option<f64>,
    pub(super) preemptions: u32,
    pub(super) engine: u64,
    pub(super) is_stop_assumed: bool,
    /// A message that may have had tokens of it could not be read.
    pub(super) is_incomplete: bool,
    pub(super) logprobs: CoreLogprobs,
}

/// Log probabilities of a request's output and prompt.
#[derive(Debug, Default)]
pub(super) struct CoreLogprobs {
    pub(super) output: Vec<TokenLogprobs>,
    pub(super) prompt: PromptLogprobs,
    /// Number of candidates that were requested at each token.
    pub(super) top: u32,
    /// Ids that are given instead of the likeliest ones.
    pub(super) named: Vec<u32>,
    held: usize,
    is_over: bool,
}

impl CoreLogprobs {
    /// Appends those of output tokens.
    pub(super) fn push(&mut self, tokens: Vec<TokenLogprobs>) {
        if self.take(tokens.iter().map(|token| 1 + token.others.len()).sum()) {
            self.output.extend(tokens);
        }
    }

    /// Appends those of prompt tokens.
    pub(super) fn push_prompt(&mut self, prompt: PromptLogprobs) {
        if self.take(prompt.tokens.iter().map(|token| token.0.len()).sum()) {
            self.prompt.top = prompt.top;
            self.prompt.tokens.extend(prompt.tokens);
        }
    }

    /// Counts so many; false, and all are dropped, where they are too many.
    fn take(&mut self, count: usize) -> bool {
        self.held = self.held.saturating_add(count);
        if self.held > MAX_LOGPROBS {
            self.is_over = true;
            (self.output, self.prompt.tokens) = (Vec::new(), Vec::new());
        }
        !self.is_over
    }
}

impl CoreFacts {
    /// Returns the bytes that they hold beside their own size, about.
    pub(super) fn heap(&self) -> usize {
        self.logprobs.held * 2 * size_of::<f64>() + self.group.as_ref().map_or(0, String::capacity)
    }

    /// Completes the record of a request, of which the output had this number of tokens.
    pub(super) fn complete(self, record: &mut Record, choice: u32, request: Option<Value>) {
        // The gaps of an answer that goes out whole are known here too.
        record.stream = self.stream.then_some(true);
        record.choice = self.group.is_some().then_some(choice);
        record.group = self.group;
        record.request = request;
        let between = |from: Option<f64>, to: Option<f64>| Some((to? - from?) * 1000.0).filter(|ms| *ms >= 0.0);
        let queue = between(self.queued, self.scheduled);
        let prefill = between(self.scheduled, self.first_token);
        let flag = |is_set: bool| is_set.then(|| json!(true));
        for (name, value) in [
            (QUEUE_MS, queue.map(rounded)),
            (PREFILL_MS, prefill.map(rounded)),
            (PREEMPTIONS, (self.preemptions > 0).then(|| json!(self.preemptions))),
            (ENGINE, (self.engine > 0).then(|| json!(self.engine))),
            (STOP_ASSUMED, flag(self.is_stop_assumed)),
            (INCOMPLETE, flag(self.is_incomplete)),
        ] {
            record.extra.extend(value.map(|value| (name.to_owned(), value)));
        }
        self.logprobs.complete(record);
    }
}

impl CoreLogprobs {
    fn complete(self, record: &mut Record) {
        let Self { output, prompt, top, named, is_over, .. } = self;
        let is_whole = u32::try_from(output.len()) == Ok(record.output_tokens);
        let is_dropped = is_over || (!output.is_empty() && !is_whole);
        if !output.is_empty() && is_whole {
            record.logprobs = Some(Logprobs { top, named, tokens: output, ..Logprobs::default() });
        }
        if !prompt.tokens.is_empty() && u32::try_from(prompt.tokens.len()) == Ok(record.prompt_tokens) {
            record.prompt_logprobs = Some(prompt);
        }
        if is_dropped {
            record.extra.insert("logprobs_dropped".to_owned(), json!(true));
        }
    }
}

/// Milliseconds with three digits: the engine's clock has no more that mean anything.
fn rounded(ms: f64) -> Value {
    json!((ms * 1000.0).round() / 1000.0)
}

/// Returns the body of `/v1/completions` that would ask for the same: the prompt's ids and the parameters.
pub(super) fn as_completion(ids: &[u32], model: Option<&str>, params: &Map<String, Value>) -> Value {
    let mut body = Map::new();
    body.extend(model.map(|model| ("model".to_owned(), json!(model))));
    body.insert("prompt".to_owned(), json!(ids));
    body.extend(params.clone());
    Value::Object(body)
}
