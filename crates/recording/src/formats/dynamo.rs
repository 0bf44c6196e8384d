//! Events of Dynamo's request trace (`dynamo.request.trace.v1`, `dynamo.agent.trace.v1`), wrapped in `event` or not.
//!
//! A `request_end` is a request: when it was received, its lengths and times, and hashes of its prompt's blocks, which stand for whole prefixes and of
//! which the last stands for a block that may not be full. A `request_payload` has the body of the request with the same id; it is found where it
//! comes before its `request_end` or less than 256 requests after it. Times are counted from the Unix epoch, as in the file.

use std::{
    collections::{HashMap, VecDeque},
    mem,
};

use serde_json::Value;

use api::Endpoint;

use super::{
    fields::{Fields, required},
    reading::{ObjectRefusal, Objects, Reading},
    record::{RowTimes, Tail, record, set_agent, set_blocks},
};
use crate::trace::{FinishReason, Record};

/// Records that wait for their bodies.
const WAITING: usize = 256;
/// Bytes of bodies that wait for their records.
const MOST_BODIES: usize = 64 << 20;
/// Sub-agents of which the session is known.
const MOST_AGENTS: usize = 1 << 20;

#[derive(Default)]
pub(super) struct Events {
    waiting: VecDeque<(String, Record)>,
    bodies: HashMap<String, (Endpoint, Value, usize)>,
    /// Their bytes.
    held: usize,
    /// Sessions of sub-agents, by the names of these.
    sessions: HashMap<String, String>,
}

impl Objects for Events {
    fn object(&mut self, mut fields: Fields, reading: &mut Reading) -> Result<(), ObjectRefusal> {
        let mut event = match fields.object(&["event"])? {
            Some(event) => event,
            None => mem::take(&mut fields),
        };
        if let Some(schema) = event.text(&["schema"])?
            && !matches!(schema.as_str(), "dynamo.request.trace.v1" | "dynamo.agent.trace.v1")
        {
            return Err(format!("`schema` {schema} is not known; dynamo.request.trace.v1 is").into());
        }
        match required(event.text(&["event_type"])?, "event_type")?.as_str() {
            "request_end" => self.request(event, reading),
            "request_payload" => Ok(self.payload(event, reading)?),
            _ => {
                reading.losses.add("events that are no requests (tools)", 1);
                Ok(())
            }
        }
    }

    fn end(&mut self, reading: &mut Reading) -> Result<(), ObjectRefusal> {
        reading.losses.add("request bodies without a request", self.bodies.len() as u64);
        mem::take(&mut self.waiting).into_iter().try_for_each(|(_, record)| reading.emit(record))
    }
}

impl Events {
    fn request(&mut self, mut event: Fields, reading: &mut Reading) -> Result<(), ObjectRefusal> {
        let ended = event.time(&["event_time_unix_ms"], 1.0)?;
        let mut request = required(event.object(&["request"])?, "request")?;
        let e2e = request.time(&["total_time_ms"], 1.0)?;
        let received = request.time(&["request_received_ms"], 1.0)?;
        let arrival = received.or(ended.map(|ended| ended.saturating_sub(e2e.unwrap_or_default())));
        let e2e = e2e.or(ended.zip(received).map(|(ended, received)| ended.saturating_sub(received)));
        let times = RowTimes {
            ttft: request.time(&["ttft_ms"], 1.0)?,
            e2e: e2e.filter(|e2e| !e2e.is_zero()),
            itl_ms: request.number(&["avg_itl_ms"])?,
        };
        let mut replay = request.object(&["replay"])?.unwrap_or_default();
        let input_tokens = request.count(&["input_tokens"])?;
        let prompt = replay.count(&["input_length"])?.or(input_tokens);
        let output = required(request.count(&["output_tokens"])?, "output_tokens")?;
        let mut made = record(required(prompt, "input_length")?, output, times)?;
        made.arrival = Some(required(arrival, "request_received_ms")?);
        made.cached_tokens = request.count(&["cached_tokens"])?.filter(|cached| *cached <= made.prompt_tokens);
        let block_size = replay.count(&["trace_block_size"])?;
        match replay.ids(&["input_sequence_hashes"])? {
            Some(hashes) => {
                let block_size = reading.block_size(block_size, "trace_block_size")?;
                set_blocks(&mut made, hashes, block_size, (Tail::Kept, "input_sequence_hashes"))?;
            }
            None => reading.losses.add("requests without hashes of their prompt", 1),
        }
        let id = request.name(&["request_id"])?;
        made.request_id = request.name(&["x_request_id"])?.or(id.clone());
        made.model = request.text(&["model"])?;
        if let Some(mut reason) = request.object(&["finish_reason_metadata"])? {
            made.finish_reason = reason.text(&["finish_reason"])?.as_deref().and_then(FinishReason::of_api);
        }
        if let Some(context) = event.object(&["agent_context"])? {
            self.set_session(&mut made, context, reading)?;
        }
        let _source = event.value(&["event_source"])?;
        [&replay, &request, &event].iter().for_each(|fields| fields.lose_rest(&mut reading.losses));
        let id = id.unwrap_or_default();
        if let Some((endpoint, body, bytes)) = self.bodies.remove(&id) {
            self.held -= bytes;
            (made.endpoint, made.request) = (Some(endpoint), Some(body));
        }
        self.waiting.push_back((id, made));
        if self.waiting.len() > WAITING
            && let Some((_, first)) = self.waiting.pop_front()
        {
            reading.emit(first)?;
        }
        Ok(())
    }

    /// The session is the run of the root agent; a sub-agent names its parent.
    fn set_session(&mut self, made: &mut Record, mut context: Fields, reading: &mut Reading) -> Result<(), String> {
        let session = context.name(&["session_id"])?;
        let chain = context.name(&["trajectory_id"])?;
        let parent = context.name(&["parent_session_id", "parent_trajectory_id"])?;
        let own = chain.clone().or(session.clone());
        let root = match (&chain, parent) {
            // Older files name the run beside the chain.
            (Some(_), parent) if session.is_some() && session != chain => {
                if parent.is_some() {
                    own.iter().for_each(|own| set_agent(made, own))
                }
                session
            }
            (_, Some(parent)) => {
                own.iter().for_each(|own| set_agent(made, own));
                let root = self.sessions.get(&parent).cloned().unwrap_or(parent);
                if let Some(own) = own.filter(|_| self.sessions.len() < MOST_AGENTS) {
                    self.sessions.entry(own).or_insert_with(|| root.clone());
                }
                Some(root)
            }
            (_, None) => own,
        };
        made.session = root;
        let _final = context.value(&["session_final", "trajectory_final"])?;
        context.lose_rest(&mut reading.losses);
        Ok(())
    }

    fn payload(&mut self, mut event: Fields, reading: &mut Reading) -> Result<(), String> {
        let mut payload = event.object(&["payload"])?.unwrap_or_default();
        let id = payload.name(&["request_id"])?.or(event.name(&["request_id"])?).unwrap_or_default();
        let endpoint = match payload.text(&["endpoint"])?.as_deref() {
            Some(name) if name.contains("chat") => Endpoint::Chat,
            Some(name) if name.contains("responses") => Endpoint::Responses,
            Some(name) if name.contains("completion") => Endpoint::Completions,
            _ => {
                reading.losses.add("request bodies of other endpoints", 1);
                return Ok(());
            }
        };
        let Some((bytes, body)) = payload.sized_value(&["request"])? else { return Ok(()) };
        if let Some((_, waiting)) = self.waiting.iter_mut().rev().find(|(own, _)| *own == id) {
            (waiting.endpoint, waiting.request) = (Some(endpoint), Some(body));
        } else if self.held + bytes > MOST_BODIES {
            reading.losses.add("request bodies", 1);
        } else if let Some((.., before)) = self.bodies.insert(id, (endpoint, body, bytes)) {
            self.held += bytes.saturating_sub(before);
        } else {
            self.held += bytes;
        }
        Ok(())
    }
}
