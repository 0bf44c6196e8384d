//! Conversations of agents, an object each, as Weka and AgentX have them.
//!
//! A request has a time from the conversation's start (`t`, seconds), lengths (`in`, `out`), ids of its prompt's full blocks, and mostly the time that it
//! took (`api_time`). A request of type `subagent` has requests of its own, whose times count from the same start, or from the sub-agent's where one of them
//! is before it. Ids are local to the conversation: a sub-agent shares with its parent, two conversations never share.
//! What was recorded as one list although several agents sent it is taken apart ([`chains`](super::chains)).
//!
//! Deviations from the format's page, which public files have too: ids from 0 on, and an id for a last block that is not full, which is dropped. Objects
//! without `requests` are requests themselves, with the conversation's `id`.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use serde_json::value::RawValue;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    chains::{self, SessionLink},
    fields::{Fields, MOST_DEPTH, required},
    reading::{ObjectRefusal, Objects, Reading},
    record::{RowTimes, Tail, chained, record, set_agent, set_blocks, set_think},
};
use crate::trace::FinishReason;

/// Conversations whose names are remembered, to distinguish those with the same one.
const MOST_NAMES: usize = 1 << 22;

#[derive(Default)]
pub(super) struct WekaConversations {
    names: HashSet<u64>,
    /// The number that the next conversation of a name gets.
    further: HashMap<u64, u32>,
}

struct WekaRequest {
    /// From the conversation's start.
    at: Duration,
    times: RowTimes,
    think: Option<Duration>,
    prompt: u32,
    output: u32,
    ids: Vec<u64>,
    model: Option<String>,
    is_stream: bool,
    stop: Option<String>,
    /// The sub-agent that sent it.
    agent: Option<String>,
}

impl Objects for WekaConversations {
    fn object(&mut self, mut fields: Fields, reading: &mut Reading) -> Result<(), ObjectRefusal> {
        let id = fields.name(&["id"])?.unwrap_or_else(|| format!("conversation-{}", reading.objects));
        let block_size = fields.count(&["block_size"])?;
        let block_size = reading.block_size(block_size, "block_size")?;
        let is_global = fields.text(&["hash_id_scope"])?.is_some_and(|scope| scope == "global");
        let mut requests = Vec::new();
        let session = match fields.objects(&["requests"])? {
            Some(list) => {
                reading.losses.add("starts of conversations, which the file does not have: all begin at 0", 1);
                self.gather(&list, &mut requests, (Duration::ZERO, None, 0), reading)?;
                self.own_name(&id)
            }
            None => {
                requests.push(WekaRequest::read(&mut fields, reading)?);
                id
            }
        };
        fields.lose_rest(&mut reading.losses);
        requests.sort_by_key(|request| request.at);
        name_chains(&mut requests);
        let scope = if is_global { 0 } else { xxh3_64(session.as_bytes()) };
        let mut ends_are_known = true;
        for request in requests {
            // With all ends before it, the pause follows from the times.
            let think = request.think.filter(|_| !ends_are_known);
            ends_are_known &= request.times.e2e.is_some();
            request.emit((&session, scope, block_size), think, reading)?;
        }
        Ok(())
    }
}

impl WekaConversations {
    /// A name that no conversation before has.
    fn own_name(&mut self, id: &str) -> String {
        let mut name = id.to_owned();
        let next = self.further.entry(xxh3_64(id.as_bytes())).or_insert(2);
        for further in *next.. {
            *next = further;
            if self.names.len() >= MOST_NAMES || self.names.insert(xxh3_64(name.as_bytes())) {
                break;
            }
            name = format!("{id}#{further}");
        }
        name
    }

    fn gather(
        &self,
        list: &[&RawValue],
        requests: &mut Vec<WekaRequest>,
        (begin, agent, depth): (Duration, Option<&str>, usize),
        reading: &mut Reading,
    ) -> Result<(), String> {
        let mut entries = Vec::with_capacity(list.len());
        for (number, one) in list.iter().enumerate() {
            entries.push(WekaEntry::read(one, reading).map_err(|reason| format!("request {}: {reason}", number + 1))?);
        }
        // Times before the sub-agent's own begin count from there, and then all of them.
        let offset = if entries.iter().any(|entry| entry.at() < begin) { begin } else { Duration::ZERO };
        for (number, entry) in entries.into_iter().enumerate() {
            match entry {
                WekaEntry::Request(mut request) => {
                    request.at = request.at.saturating_add(offset);
                    request.agent = agent.map(str::to_owned);
                    requests.push(request);
                }
                WekaEntry::Agent { at, id, list } => {
                    let named = |reason: String| format!("request {}: {reason}", number + 1);
                    if depth >= MOST_DEPTH {
                        return Err(named(format!("sub-agents of more than {MOST_DEPTH} levels")));
                    }
                    let id = id.unwrap_or_else(|| format!("agent-{}", number + 1));
                    let id = agent.map_or_else(|| id.clone(), |parent| format!("{parent}/{id}"));
                    let begin = at.saturating_add(offset);
                    self.gather(&list, requests, (begin, Some(&id), depth + 1), reading).map_err(named)?;
                }
            }
        }
        Ok(())
    }
}

/// An entry of a list of requests.
enum WekaEntry<'a> {
    Request(WekaRequest),
    Agent { at: Duration, id: Option<String>, list: Vec<&'a RawValue> },
}

impl<'a> WekaEntry<'a> {
    fn read(text: &'a RawValue, reading: &mut Reading) -> Result<Self, String> {
        let mut fields = Fields::parse(text.get().as_bytes())?;
        let entry = match fields.objects(&["requests"])? {
            Some(list) => {
                let at = required(fields.time(&["t"], 1000.0)?, "t")?;
                let _type = fields.text(&["type"])?;
                Self::Agent { at, id: fields.name(&["agent_id"])?, list }
            }
            None => Self::Request(WekaRequest::read(&mut fields, reading)?),
        };
        fields.lose_rest(&mut reading.losses);
        Ok(entry)
    }

    fn at(&self) -> Duration {
        match self {
            Self::Request(request) => request.at,
            Self::Agent { at, .. } => *at,
        }
    }
}

impl WekaRequest {
    fn read(fields: &mut Fields, reading: &mut Reading) -> Result<Self, String> {
        let seconds = 1000.0;
        let kind = fields.text(&["type"])?.unwrap_or_default();
        let e2e = fields.time(&["api_time"], seconds)?.filter(|e2e| !e2e.is_zero());
        let request = Self {
            at: required(fields.time(&["t"], seconds)?, "t")?,
            times: RowTimes { ttft: fields.time(&["ttft"], seconds)?, e2e, itl_ms: None },
            think: fields.time(&["think_time"], seconds)?,
            prompt: required(fields.count(&["in"])?, "in")?,
            output: required(fields.count(&["out"])?, "out")?,
            ids: fields.ids(&["hash_ids"])?.unwrap_or_default(),
            model: fields.text(&["model"])?,
            is_stream: kind == "s",
            stop: fields.text(&["stop"])?,
            agent: None,
        };
        reading.losses.add("durations, which the file does not have", u64::from(e2e.is_none()));
        let is_body = !request.is_stream && !kind.is_empty();
        reading.losses.add("requests for no stream, which a replay asks for one", u64::from(is_body));
        let is_kept = request.stop.as_deref().is_none_or(|word| FinishReason::of_api(word).map_or("", stop) == word);
        reading.losses.add("words for an end other than end_turn and max_tokens", u64::from(!is_kept));
        Ok(request)
    }

    fn end(&self) -> Duration {
        self.at.saturating_add(self.times.e2e.unwrap_or_default())
    }

    fn emit(
        self,
        (session, scope, block_size): (&str, u64, u32),
        think: Option<Duration>,
        reading: &mut Reading,
    ) -> Result<(), ObjectRefusal> {
        let mut made = record(self.prompt, self.output, self.times)?;
        let blocks = chained(&self.ids, scope);
        let dropped = set_blocks(&mut made, blocks, block_size, (Tail::Dropped, "hash_ids"))?;
        reading.losses.add("ids of last blocks that are not full", u64::from(dropped));
        made.arrival = Some(self.at);
        made.session = Some(session.to_owned());
        made.model = self.model;
        made.stream = self.is_stream.then_some(true);
        made.finish_reason = self.stop.as_deref().and_then(FinishReason::of_api);
        if let Some(agent) = &self.agent {
            set_agent(&mut made, agent);
        }
        if let Some(think) = think {
            set_think(&mut made, think);
        }
        reading.emit(made)
    }
}

/// Names the sub-agents of a conversation that was recorded without any.
fn name_chains(requests: &mut [WekaRequest]) {
    if requests.iter().any(|request| request.agent.is_some()) {
        return;
    }
    let links: Vec<SessionLink> = requests
        .iter()
        .map(|request| SessionLink { start: request.at, end: request.end(), ids: &request.ids })
        .collect();
    let numbers = chains::split(&links);
    for (request, number) in requests.iter_mut().zip(numbers) {
        request.agent = (number > 0).then(|| format!("chain-{number}"));
    }
}

/// The word for an end.
pub(super) fn stop(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "end_turn",
        FinishReason::Length => "max_tokens",
        FinishReason::Abort | FinishReason::Error | FinishReason::Repetition => "",
    }
}
