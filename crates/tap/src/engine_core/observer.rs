//! The messages between front end and engines, as requests and the outcome of them.
//!
//! A request begins with the front end's ADD and ends with the output that has a finish reason, with the front end's ABORT, or with the
//! connection of its engine. Whatever cannot be read passes, and is counted.
//!
//! Limits: of a message longer than [`MOST_BYTES`](super::relay::MOST_BYTES) nothing is observed, nor of one that does not fit into [`MOST_HELD`]
//! beside those of other connections; at most [`MOST_OPEN`] requests are observed at once, and [`MOST_PROMPT_BYTES`] of their prompts held: those
//! beyond are recorded without hashes.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::{
    decode::{CoreMessages, core_facts, finish_reason, has_stop_strings, logprobs, params, prompt_logprobs},
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
use base::{
    held_bytes::{HeldBytes, HeldShare},
    lock::Lock,
    rate_limited_log::RateLimitedLog,
};
use engine_core::{
    handshake::ENGINE_CORE_DEAD,
    layout::{KNOWN_VERSIONS, VersionFamily},
    outputs::{WireFinish, WireOutput, WireOutputs},
    request::{EngineCoreRequest, RequestType, aborted, client_request},
};
use recording::trace::{Endpoint, FinishReason, Outcome};

/// Bytes of messages that have not ended, of all connections.
const MOST_HELD: u64 = 512 << 20;

/// Requests that are observed at once.
const MOST_OPEN: usize = 1 << 16;

/// Bytes of prompts of requests that are observed at once.
const MOST_PROMPT_BYTES: u64 = 256 << 20;

#[derive(Debug)]
pub(super) struct CoreObserver {
    shared: Arc<SharedState>,
    capabilities: Arc<Capabilities>,
    filter: Filter,
    model: Option<String>,
    messages: CoreMessages,
    open: Lock<OpenRequests>,
    connections: AtomicU64,
    prompts: HeldBytes,
    /// Of messages that have not ended.
    pub(super) held: HeldBytes,
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
    _prompt_bytes: HeldShare,
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
            prompts: HeldBytes::new(MOST_PROMPT_BYTES),
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

    /// Numbers a new connection.
    pub(super) fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Relaxed)
    }

    /// Ends the requests of a connection.
    pub(super) fn end_connection(&self, connection: u64, by: EndedBy) {
        let outcome = match by {
            EndedBy::Engine => Outcome::UpstreamFailed,
            EndedBy::FrontEnd => Outcome::ClientGone,
            EndedBy::Tap => Outcome::Cut,
        };
        self.end_where(|open| open.connection == connection, outcome);
    }

    pub(super) fn observe_front_end(&self, connection: u64, frames: &[Vec<u8>]) {
        let [kind, fields, ..] = frames else { return };
        match RequestType::read(kind) {
            Some(RequestType::Add) => match self.messages.added(fields) {
                Ok(request) => self.add(connection, request),
                Err(error) => self.miss_request(&error),
            },
            Some(RequestType::Abort) => match aborted(fields) {
                Ok(ids) => ids.iter().for_each(|id| self.abort(id)),
                Err(error) => self.is_unread(&error),
            },
            Some(RequestType::StartDpWave | RequestType::Utility) | None => {}
        }
    }

    /// Counts a request of which nothing is known.
    pub(super) fn miss_request(&self, why: &dyn std::fmt::Display) {
        self.is_unread(why);
        self.shared.metrics.requests.fetch_add(1, Relaxed);
        self.shared.metrics.skip(Skipped::Incomplete);
    }

    fn add(&self, connection: u64, request: EngineCoreRequest) {
        let metrics = &self.shared.metrics;
        metrics.requests.fetch_add(1, Relaxed);
        metrics.sent(0);
        let lora = request.lora_request.as_ref().map(|lora| lora.lora_name.clone());
        let model = lora.or_else(|| self.model.clone());
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
        let (id, mut open) = self.open(connection, request, model);
        let mut all = self.open.lock();
        let OpenRequests { by_id, groups } = &mut *all;
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
    fn open(&self, connection: u64, request: EngineCoreRequest, model: Option<String>) -> (String, OpenCoreRequest) {
        let (index, name) = client_request(&request.request_id, request.external_req_id.as_deref());
        let (mut prompt_ids, sampling) = (request.prompt_token_ids, request.sampling_params.as_ref());
        let endpoint = if request.is_pooling { Endpoint::Embeddings } else { endpoint_of(&name) };
        let prompt_tokens = prompt_ids.as_ref().map(|ids| u32::try_from(ids.len()).unwrap_or(u32::MAX));
        let mut held = self.prompts.share();
        if !held.add(prompt_ids.as_ref().map_or(0, |ids| (ids.len() * size_of::<u32>()) as u64)) {
            held.clear();
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
            params: sampling.map(params).unwrap_or_default(),
            prompt_ids,
            ..RequestFacts::default()
        };
        let exchange = OpenExchange::begin(Arc::clone(&self.shared), Arc::clone(&self.capabilities), facts, None);
        let open = OpenCoreRequest {
            exchange,
            facts: Box::new(sampling.map(core_facts).unwrap_or_default()),
            choice: index.unwrap_or(0),
            connection,
            has_stop_strings: sampling.is_some_and(has_stop_strings),
            prompt_tokens,
            cached_tokens: None,
            output_tokens: 0,
            _prompt_bytes: held,
            group: index.map(|_| name),
        };
        (request.request_id, open)
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
    pub(super) fn observe_engine(&self, frames: &[Vec<u8>]) {
        let Some((first, further)) = frames.split_first() else { return };
        if first == ENGINE_CORE_DEAD {
            tracing::warn!("an engine core has died");
            return self.end_where(|_| true, Outcome::UpstreamFailed);
        }
        match self.messages.outputs(first, further) {
            Ok(WireOutputs { engine_index, timestamp, outputs, .. }) => {
                let timestamp = Some(timestamp).filter(|timestamp| *timestamp > 0.0);
                outputs.iter().for_each(|output| self.observe(engine_index.into(), timestamp, output));
            }
            Err(error) => {
                self.is_unread(&error);
                self.mark_incomplete();
            }
        }
    }

    fn observe(&self, engine: u64, timestamp: Option<f64>, output: &WireOutput) {
        let mut all = self.open.lock();
        let Some(open) = all.by_id.get_mut(&output.request_id) else { return };
        open.facts.engine = engine;
        open.observe(output, timestamp, self.shared.keeps.logprobs);
        drop(all);
        if let Some(finish) = output.finish_reason
            && let Some(open) = self.take(&output.request_id)
        {
            self.finish(open, if finish == WireFinish::Error { Outcome::Error } else { Outcome::Finished });
        }
    }

    fn take(&self, id: &str) -> Option<OpenCoreRequest> {
        let mut all = self.open.lock();
        let open = all.by_id.remove(id)?;
        all.leave_group(&open);
        Some(open)
    }

    fn finish(&self, mut open: OpenCoreRequest, outcome: Outcome) {
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
    pub(super) fn mark_incomplete(&self) {
        self.open.lock().by_id.values_mut().for_each(|open| open.facts.is_incomplete = true);
    }

    /// Observes an engine's settings, which it reports when it is ready.
    pub(super) fn observe_ready(&self, frames: &[Vec<u8>]) {
        let Some(mut settings) = frames.first().and_then(|frame| self.messages.ready(frame)) else { return };
        self.warn_of(&settings.version);
        settings.models.extend(self.model.clone());
        self.capabilities.set_facts(Some(settings));
    }

    /// Warns once of an unknown version of vLLM.
    fn warn_of(&self, version: &str) {
        let is_known = VersionFamily::of_version(version).is_some();
        if !is_known && self.unknown_version.lock().replace(version.to_owned()).as_deref() != Some(version) {
            tracing::warn!(
                "an engine is of vLLM {version}, whose messages are not known (known: {KNOWN_VERSIONS}): they pass; what has another form is \
                 not recorded"
            );
        }
    }

    pub(super) fn is_unread(&self, error: &dyn std::fmt::Display) {
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
    fn observe(&mut self, output: &WireOutput, timestamp: Option<f64>, keeps_logprobs: bool) {
        let at = self.exchange.elapsed();
        let facts = &mut self.facts;
        for (kind, time) in &output.events {
            match kind {
                1 => facts.queued = facts.queued.or(Some(*time)),
                2 => facts.scheduled = facts.scheduled.or(Some(*time)),
                3 => facts.preemptions = facts.preemptions.saturating_add(1),
                _ => {}
            }
        }
        if let Some(prefill) = output.prefill_stats {
            self.cached_tokens = Some(prefill.cached.saturating_add(prefill.external));
            self.prompt_tokens = self.prompt_tokens.or(Some(prefill.prompt_tokens));
        }
        let tokens = output.new_token_ids.as_slice();
        if !tokens.is_empty() {
            facts.first_token = facts.first_token.or(timestamp);
        }
        if keeps_logprobs {
            let (of_step, of_prompt) = (&output.new_logprobs, &output.new_prompt_logprobs);
            of_step.iter().for_each(|tensors| facts.logprobs.push(logprobs(tensors)));
            of_prompt.iter().for_each(|tensors| facts.logprobs.push_prompt(prompt_logprobs(tensors)));
        }
        self.output_tokens = self.output_tokens.saturating_add(u32::try_from(tokens.len()).unwrap_or(u32::MAX));
        let choice = self.choice;
        let observed = &mut self.exchange.observed;
        observed.first_event.get_or_insert(at);
        observed.choices.observe(choice, false, |choice| choice.observe_tokens(tokens, tokens.len(), at));
        if let Some(reason) = output.finish_reason {
            self.observe_finish(finish_reason(reason), output.stop_reason);
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
