//! The messages between front end and engines, as requests and the outcome of them.
//!
//! A request begins with the front end's ADD and ends with the output that has a finish reason, with the front end's ABORT, or with the
//! connection of its engine. Whatever cannot be read passes, and is counted.
//!
//! Limits: of a message longer than [`MOST_BYTES`] nothing is observed, nor of one that does not fit into [`MOST_HELD`] beside those of other
//! connections; at most [`MOST_OPEN`] requests are observed at once, and [`MOST_PROMPT_BYTES`] of their prompts held: those beyond are
//! recorded without hashes.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use super::{
    decode::{AddedRequest, CoreMessages, EngineMessage, FrontEndMessage, RequestStep, StepKind},
    relay::EndedBy,
};
use crate::{
    Filter,
    capabilities::Capabilities,
    core_facts::CoreFacts,
    event::EngineUsage,
    exchange::OpenExchange,
    filter::Skipped,
    request::{MAX_NAME, RequestFacts},
    shared_state::SharedState,
};
use base::{lock::Lock, rate_limited_log::RateLimitedLog};
use engine_core::{
    layout::{KNOWN_VERSIONS, VersionFamily},
    request::{RequestType, client_request},
    zmtp::HeldBytes,
    zmtp_reader::{ZmtpReader, ZmtpUnit},
};
use recording::trace::{Endpoint, FinishReason, Outcome};

/// Bytes of a message that is observed.
const MOST_BYTES: u64 = 64 << 20;

/// Bytes of messages that have not ended, of all connections.
const MOST_HELD: u64 = 512 << 20;

/// Frames of a request that are read: its type and its fields. Others are arrays of media, which are not recorded.
const REQUEST_FRAMES: usize = 2;

/// Requests that are observed at once.
const MOST_OPEN: usize = 1 << 16;

/// Bytes of prompts of requests that are observed at once.
const MOST_PROMPT_BYTES: usize = 256 << 20;

#[derive(Debug)]
pub(super) struct CoreObserver {
    shared: Arc<SharedState>,
    capabilities: Arc<Capabilities>,
    filter: Filter,
    model: Option<String>,
    messages: CoreMessages,
    open: Lock<OpenRequests>,
    connections: AtomicU64,
    prompt_bytes: AtomicUsize,
    held: HeldBytes,
    unread: RateLimitedLog,
    /// The last one that the log names.
    unknown_version: Lock<Option<String>>,
}

#[derive(Debug, Default)]
struct OpenRequests {
    by_id: HashMap<String, OpenCoreRequest>,
    /// Number of requests in progress that the front end made of one, and the group's name.
    groups: HashMap<String, (usize, String)>,
}

#[derive(Debug)]
struct OpenCoreRequest {
    exchange: OpenExchange,
    facts: Box<CoreFacts>,
    choice: u32,
    /// The connection by which it went to its engine.
    connection: u64,
    has_stop_strings: bool,
    prompt_tokens: Option<u32>,
    cached_tokens: Option<u32>,
    output_tokens: u32,
    prompt_bytes: usize,
    group: Option<String>,
}

impl CoreObserver {
    pub(super) fn new(
        shared: Arc<SharedState>,
        capabilities: Arc<Capabilities>,
        filter: Filter,
        model: Option<String>,
    ) -> Self {
        Self {
            shared,
            capabilities,
            filter,
            model,
            messages: CoreMessages::default(),
            open: Lock::default(),
            connections: AtomicU64::new(0),
            prompt_bytes: AtomicUsize::new(0),
            held: HeldBytes::new(MOST_HELD),
            unread: RateLimitedLog::default(),
            unknown_version: Lock::default(),
        }
    }

    /// Returns the number of requests in progress.
    pub(super) fn in_progress(&self) -> usize {
        self.open.lock().by_id.len()
    }

    /// Ends all requests in progress as cut by the tap.
    pub(super) fn cut(&self) {
        self.end_where(|_| true, Outcome::Cut);
    }

    fn observe_front_end(&self, connection: u64, frames: &[Vec<u8>]) {
        match self.messages.read_of_front_end(frames) {
            Ok(FrontEndMessage::Add(request)) => self.add(connection, *request),
            Ok(FrontEndMessage::Abort(ids)) => {
                for id in ids {
                    self.abort(&id);
                }
            }
            Ok(FrontEndMessage::Other) => {}
            Err(error) if frames.first().and_then(|kind| RequestType::read(kind)) == Some(RequestType::Add) => {
                self.miss_request(&error);
            }
            Err(error) => self.is_unread(&error),
        }
    }

    /// Counts a request of which nothing is known.
    fn miss_request(&self, why: &dyn std::fmt::Display) {
        self.is_unread(why);
        self.shared.metrics.requests.fetch_add(1, Relaxed);
        self.shared.metrics.skip(Skipped::Incomplete);
    }

    fn add(&self, connection: u64, request: AddedRequest) {
        let metrics = &self.shared.metrics;
        metrics.requests.fetch_add(1, Relaxed);
        metrics.sent(0);
        let model = request.lora.clone().or_else(|| self.model.clone());
        let admitted = match self.filter.draw("") {
            Ok(()) if self.filter.admits_model(model.as_deref()) => Ok(()),
            Ok(()) => Err(Skipped::Model),
            Err(skipped) => Err(skipped),
        };
        if let Err(skipped) = admitted {
            return metrics.skip(skipped);
        }
        if self.in_progress() >= MOST_OPEN {
            return metrics.skip(Skipped::Incomplete);
        }
        let open = self.open(connection, request, model);
        let mut all = self.open.lock();
        let OpenRequests { by_id, groups } = &mut *all;
        let (id, mut open) = open;
        if let Some(key) = &open.group {
            let arrival = open.exchange.observed.arrival;
            let (count, name) =
                groups.entry(key.clone()).or_insert_with(|| (0, format!("{key}@{}", arrival.as_nanos())));
            *count += 1;
            open.facts.group = Some(name.clone());
        }
        if let Some(replaced) = by_id.insert(id, open) {
            // An id that is used again: the outcome of the first request is not known.
            all.leave_group(&replaced);
            drop(all);
            self.finish(replaced, Outcome::ClientGone);
        }
    }

    /// Begins the exchange of a request.
    fn open(&self, connection: u64, request: AddedRequest, model: Option<String>) -> (String, OpenCoreRequest) {
        let AddedRequest { id, external_id, mut prompt_ids, params, stream, has_stop_strings, top, named, .. } =
            request;
        let (index, name) = client_request(&id, external_id.as_deref());
        let endpoint = if request.is_pooling { Endpoint::Embeddings } else { endpoint_of(&name) };
        let prompt_tokens = prompt_ids.as_ref().map(|ids| u32::try_from(ids.len()).unwrap_or(u32::MAX));
        let bytes = prompt_ids.as_ref().map_or(0, |ids| ids.len() * size_of::<u32>());
        let mut prompt_bytes = bytes;
        if self.prompt_bytes.fetch_add(bytes, Relaxed) + bytes > MOST_PROMPT_BYTES {
            self.prompt_bytes.fetch_sub(std::mem::take(&mut prompt_bytes), Relaxed);
            prompt_ids = None;
            self.shared.metrics.recorder.hashes_skipped.fetch_add(1, Relaxed);
        }
        let facts = RequestFacts {
            endpoint: Some(endpoint),
            // Times of steps are known of every answer.
            stream: true,
            prompts: 1,
            choices_per_prompt: 1,
            model,
            client_id: Some(name.clone()).filter(|name| name.len() <= MAX_NAME),
            params,
            prompt_ids,
            ..RequestFacts::default()
        };
        let exchange = OpenExchange::begin(Arc::clone(&self.shared), Arc::clone(&self.capabilities), facts, None);
        let mut core = Box::new(CoreFacts { stream, ..CoreFacts::default() });
        (core.logprobs.top, core.logprobs.named) = (top, named);
        let open = OpenCoreRequest {
            exchange,
            facts: core,
            choice: index.unwrap_or(0),
            connection,
            has_stop_strings,
            prompt_tokens,
            cached_tokens: None,
            output_tokens: 0,
            prompt_bytes,
            group: index.map(|_| name),
        };
        (id, open)
    }

    /// Ends a request that its client or the front end gave up. A front end finds stop strings itself and then aborts too.
    fn abort(&self, id: &str) {
        let Some(mut open) = self.take(id) else { return };
        let is_stop = open.has_stop_strings && open.output_tokens > 0;
        if is_stop {
            open.facts.is_stop_assumed = true;
            open.observe_finish(FinishReason::Stop, None);
        }
        self.finish(open, if is_stop { Outcome::Finished } else { Outcome::ClientGone });
    }

    /// Observes a message of an engine to the front end.
    fn observe_engine(&self, frames: &[Vec<u8>]) {
        match self.messages.read_of_engine(frames) {
            Ok(EngineMessage::Step(step)) => {
                let keeps_logprobs = self.shared.keeps.logprobs;
                for mut output in step.outputs {
                    output.logprobs = output.logprobs.filter(|_| keeps_logprobs);
                    output.prompt_logprobs = output.prompt_logprobs.filter(|_| keeps_logprobs);
                    self.observe(step.engine, step.timestamp, output);
                }
            }
            Ok(EngineMessage::Dead) => {
                tracing::warn!("an engine core has died");
                self.end_where(|_| true, Outcome::UpstreamFailed);
            }
            Ok(EngineMessage::Other) => {}
            Err(error) => {
                self.is_unread(&error);
                self.mark_incomplete();
            }
        }
    }

    fn observe(&self, engine: u64, timestamp: Option<f64>, output: RequestStep) {
        let mut all = self.open.lock();
        let Some(open) = all.by_id.get_mut(&output.id) else { return };
        let (id, finish) = (output.id.clone(), output.finish);
        open.facts.engine = engine;
        open.observe(output, timestamp);
        drop(all);
        if let (Some(finish), Some(open)) = (finish, finish.and_then(|_| self.take(&id))) {
            self.finish(open, if finish == FinishReason::Error { Outcome::Error } else { Outcome::Finished });
        }
    }

    fn take(&self, id: &str) -> Option<OpenCoreRequest> {
        let mut all = self.open.lock();
        let open = all.by_id.remove(id)?;
        all.leave_group(&open);
        Some(open)
    }

    fn finish(&self, mut open: OpenCoreRequest, outcome: Outcome) {
        self.prompt_bytes.fetch_sub(open.prompt_bytes, Relaxed);
        let prompt = open.prompt_tokens.unwrap_or(0);
        let observed = &mut open.exchange.observed;
        observed.usage = Some(EngineUsage::of(prompt, open.output_tokens, open.cached_tokens));
        observed.done = true;
        observed.core = Some(open.facts);
        open.exchange.end(outcome);
    }

    fn end_where(&self, fits: impl Fn(&OpenCoreRequest) -> bool, outcome: Outcome) {
        let mut all = self.open.lock();
        let ended: Vec<OpenCoreRequest> = all.by_id.extract_if(|_, open| fits(open)).map(|(_, open)| open).collect();
        ended.iter().for_each(|open| all.leave_group(open));
        drop(all);
        ended.into_iter().for_each(|open| self.finish(open, outcome));
    }

    /// Notes that tokens of any request may have been missed.
    fn mark_incomplete(&self) {
        self.open.lock().by_id.values_mut().for_each(|open| open.facts.is_incomplete = true);
    }

    /// Says once of a version that is not known what becomes of its messages.
    fn warn_of(&self, version: &str) {
        let is_known = VersionFamily::of_version(version).is_some();
        if !is_known && self.unknown_version.lock().replace(version.to_owned()).as_deref() != Some(version) {
            tracing::warn!(
                "an engine is of vLLM {version}, whose messages are not known (known: {KNOWN_VERSIONS}): they pass; what has another form is \
                 not recorded"
            );
        }
    }

    fn is_unread(&self, error: &dyn std::fmt::Display) {
        if self.unread.due().is_some() {
            tracing::warn!(%error, "a message between front end and engine cannot be read: it passes, and is not recorded");
        }
    }
}

impl OpenRequests {
    fn leave_group(&mut self, open: &OpenCoreRequest) {
        let Some(key) = &open.group else { return };
        if let Some((count, _)) = self.groups.get_mut(key) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.groups.remove(key);
            }
        }
    }
}

impl OpenCoreRequest {
    /// Adds what a step gave it.
    fn observe(&mut self, output: RequestStep, timestamp: Option<f64>) {
        let at = self.exchange.elapsed();
        let facts = &mut self.facts;
        for event in &output.events {
            match event.kind {
                StepKind::Queued => facts.queued = facts.queued.or(Some(event.timestamp)),
                StepKind::Scheduled => facts.scheduled = facts.scheduled.or(Some(event.timestamp)),
                StepKind::Preempted => facts.preemptions = facts.preemptions.saturating_add(1),
            }
        }
        if let Some(prefill) = output.prefill {
            self.cached_tokens = Some(prefill.cached);
            self.prompt_tokens = self.prompt_tokens.or(Some(prefill.prompt));
        }
        if !output.token_ids.is_empty() {
            facts.first_token = facts.first_token.or(timestamp);
        }
        output.logprobs.into_iter().for_each(|logprobs| facts.logprobs.push(logprobs));
        output.prompt_logprobs.into_iter().for_each(|logprobs| facts.logprobs.push_prompt(logprobs));
        self.output_tokens =
            self.output_tokens.saturating_add(u32::try_from(output.token_ids.len()).unwrap_or(u32::MAX));
        let choice = self.choice;
        let observed = &mut self.exchange.observed;
        observed.first_event.get_or_insert(at);
        observed.choices.observe(choice, false, |choice| choice.observe_tokens(&output.token_ids, at));
        if let Some(finish) = output.finish {
            self.observe_finish(finish, output.stop_token);
        }
    }

    fn observe_finish(&mut self, finish: FinishReason, stop_token: Option<u32>) {
        self.exchange.observed.choices.observe(self.choice, false, |choice| {
            choice.finish_reason = Some(finish.name().to_owned());
            choice.stop_token = stop_token;
        });
    }
}

fn endpoint_of(name: &str) -> Endpoint {
    match name.split(['-', '_']).next() {
        Some("chatcmpl") => Endpoint::Chat,
        Some("resp") => Endpoint::Responses,
        Some("msg") => Endpoint::Messages,
        _ => Endpoint::Completions,
    }
}

/// Observer of the front end's side of an input connection.
pub(super) struct InputObserver {
    observer: Arc<CoreObserver>,
    connection: u64,
    reader: ZmtpReader,
}

/// Observer of the engine's side of an input connection.
pub(super) struct ReadyObserver {
    observer: Arc<CoreObserver>,
    reader: ZmtpReader,
}

pub(super) struct OutputObserver {
    observer: Arc<CoreObserver>,
    reader: ZmtpReader,
}

impl InputObserver {
    pub(super) fn new(observer: Arc<CoreObserver>) -> Self {
        let connection = observer.connections.fetch_add(1, Relaxed);
        let reader = ZmtpReader::new(MOST_BYTES, REQUEST_FRAMES).within(&observer.held);
        Self { observer, connection, reader }
    }

    /// Begins to observe the other side of this connection.
    pub(super) fn engine_side(&self) -> ReadyObserver {
        let reader = ZmtpReader::new(1 << 20, 1).within(&self.observer.held);
        ReadyObserver { observer: Arc::clone(&self.observer), reader }
    }

    pub(super) fn observe(&mut self, bytes: &[u8]) {
        let Self { observer, connection, reader } = self;
        reader.push(bytes, |unit| match unit {
            ZmtpUnit::Message(frames) => observer.observe_front_end(*connection, &frames),
            // Nothing but a request is so long.
            ZmtpUnit::TooLong => observer.miss_request(&"it is too long"),
            ZmtpUnit::Greeting(_) | ZmtpUnit::Command(_) => {}
        });
    }

    /// Ends the requests of the connection.
    pub(super) fn ended(&self, by: EndedBy) {
        let outcome = match by {
            EndedBy::Engine => Outcome::UpstreamFailed,
            EndedBy::FrontEnd => Outcome::ClientGone,
            EndedBy::Tap => Outcome::Cut,
        };
        self.observer.end_where(|open| open.connection == self.connection, outcome);
    }
}

impl ReadyObserver {
    pub(super) fn observe(&mut self, bytes: &[u8]) {
        let Self { observer, reader } = self;
        reader.push(bytes, |unit| {
            if let ZmtpUnit::Message(frames) = unit
                && let Some(mut settings) = frames.first().and_then(|frame| observer.messages.ready(frame))
            {
                observer.warn_of(&settings.version);
                settings.models.extend(observer.model.clone());
                observer.capabilities.set_facts(Some(settings));
            }
        });
    }
}

impl OutputObserver {
    pub(super) fn new(observer: Arc<CoreObserver>) -> Self {
        let reader = ZmtpReader::new(MOST_BYTES, usize::MAX).within(&observer.held);
        Self { observer, reader }
    }

    pub(super) fn observe(&mut self, bytes: &[u8]) {
        let Self { observer, reader } = self;
        reader.push(bytes, |unit| match unit {
            ZmtpUnit::Message(frames) => observer.observe_engine(&frames),
            ZmtpUnit::TooLong => {
                observer.is_unread(&"it is too long");
                observer.mark_incomplete();
            }
            ZmtpUnit::Greeting(_) | ZmtpUnit::Command(_) => {}
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_their_request() {
        for (id, external, expected) in [
            ("cmpl-ab12-0-deadbeef", Some("cmpl-ab12-0"), (None, "cmpl-ab12-0")),
            ("1_cmpl-ab12-0-deadbeef", Some("1_cmpl-ab12-0"), (Some(1), "cmpl-ab12-0")),
            ("chatcmpl-x", None, (None, "chatcmpl-x")),
            ("_x", None, (None, "_x")),
            ("99999999999_x", None, (None, "99999999999_x")),
        ] {
            assert_eq!(client_request(id, external), (expected.0, expected.1.to_owned()), "{id}");
        }
        assert_eq!(endpoint_of("resp_1"), Endpoint::Responses);
        assert_eq!(endpoint_of("chatcmpl-1"), Endpoint::Chat);
        assert_eq!(endpoint_of("7"), Endpoint::Completions);
    }
}
