//! Writes conversations: the requests of a session as one object, those of each sub-agent within it.

use std::{collections::HashMap, mem, time::Duration};

use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::{
    FormatError, Losses, TraceFormat,
    regroup::regroup,
    sorted::SortKey,
    weka::stop,
    write::{BlockCallback, lose_unknown, number, ttft},
};
use crate::trace::{JsonWriter, Record};

/// Bytes of a line that its own readers take.
const MOST_BYTES: usize = 256 << 20;

/// Conversations that are written.
#[derive(Default)]
pub(super) struct WekaWriter {
    sizes: (u32, u32),
    session: Option<(u64, String)>,
    requests: Vec<Value>,
    /// Places of the sub-agents among the requests.
    agents: HashMap<String, usize>,
    models: Vec<String>,
    /// Numbers of this conversation's blocks.
    numbers: HashMap<u64, u64>,
    /// Arrival of the first request, and the end of the last one that ended.
    begin: Duration,
    bytes: usize,
    count: u64,
    pub(super) losses: Losses,
}

impl WekaWriter {
    pub(super) fn new(sizes: (u32, u32)) -> Self {
        Self { sizes, ..Self::default() }
    }

    /// Sorts the requests of a session together, in the order of their arrival. A request without a session is one by itself.
    pub(super) fn key(record: &Record, count: u64) -> SortKey {
        let session = record.session.as_ref().map(|session| xxh3_64(session.as_bytes()));
        let at = record.arrival.map_or(0, |at| u64::try_from(at.as_nanos()).unwrap_or(u64::MAX));
        (session.unwrap_or_else(|| xxh3_64_with_seed(&count.to_le_bytes(), 1)), at)
    }

    pub(super) fn push(
        &mut self,
        record: &Record,
        writer: &mut JsonWriter,
        seen: BlockCallback,
    ) -> Result<(), FormatError> {
        self.count += 1;
        let own = record.session.clone();
        let is_same = self.session.as_ref().is_some_and(|(_, name)| own.as_ref() == Some(name));
        if !is_same {
            self.end(writer)?;
            self.losses.add("requests without a session, each a conversation of its own", u64::from(own.is_none()));
            self.losses.add("starts of conversations", u64::from(record.arrival.is_some()));
            let name = own.unwrap_or_else(|| format!("request-{}", self.count));
            self.session = Some((xxh3_64(name.as_bytes()), name));
            self.begin = record.arrival.unwrap_or_default();
        }
        let request = self.request(record, seen);
        self.bytes += request.to_string().len();
        if self.bytes > MOST_BYTES {
            let session = self.session.take().map(|(_, name)| name).unwrap_or_default();
            return Err(FormatError::LongSession { session, kind: TraceFormat::Weka });
        }
        self.place(record, request);
        Ok(())
    }

    /// Puts a request into the list of its agent.
    fn place(&mut self, record: &Record, request: Value) {
        if let Some(model) =
            record.model.as_ref().filter(|model| !self.models.contains(model) && self.models.len() < 64)
        {
            self.models.push(model.clone());
        }
        let Some(agent) = record.agent() else { return self.requests.push(request) };
        let own = self.agents.get(agent).and_then(|place| self.requests.get_mut(*place)?.get_mut("requests"));
        if let Some(requests) = own.and_then(Value::as_array_mut) {
            return requests.push(request);
        }
        self.agents.insert(agent.to_owned(), self.requests.len());
        self.requests.push(json!({
            "t": request.get("t"), "type": "subagent", "agent_id": agent, "subagent_type": "", "status": "completed",
            "models": record.model.iter().collect::<Vec<_>>(), "tool_tokens": 0, "system_tokens": 0,
            "requests": [request],
        }));
    }

    fn request(&mut self, record: &Record, seen: BlockCallback) -> Value {
        let made = regroup(record, self.sizes.0, self.sizes.1, false, self.count);
        lose_unknown(&mut self.losses, &made);
        // What is local to a conversation is shared in it only.
        let scope = self.session.as_ref().map_or(0, |(scope, _)| *scope);
        let local: Vec<u64> = made.blocks.iter().map(|block| xxh3_64_with_seed(&block.to_le_bytes(), scope)).collect();
        seen(&local);
        let mut number_of = |block: &u64| {
            let next = self.numbers.len() as u64 + 1;
            *self.numbers.entry(*block).or_insert(next)
        };
        let ids: Vec<u64> = made.blocks.iter().map(&mut number_of).collect();
        let at = record.arrival.unwrap_or_default().saturating_sub(self.begin);
        let mut request = Map::new();
        request.insert("t".to_owned(), number(at.as_secs_f64()));
        request.insert("type".to_owned(), json!(if record.stream == Some(false) { "n" } else { "s" }));
        request.insert("model".to_owned(), json!(record.model.as_deref().unwrap_or("")));
        request.insert("in".to_owned(), json!(record.prompt_tokens));
        request.insert("out".to_owned(), json!(record.output_tokens));
        request.insert("hash_ids".to_owned(), json!(ids));
        request.insert("input_types".to_owned(), json!(["text"]));
        request.insert("output_types".to_owned(), json!(["text"]));
        request.insert("stop".to_owned(), json!(record.finish_reason.map_or("", stop)));
        let seconds = |time: Duration| number(time.as_secs_f64());
        request.extend(record.e2e.map(|e2e| ("api_time".to_owned(), seconds(e2e))));
        request.extend(ttft(record).map(|ttft| ("ttft".to_owned(), seconds(ttft))));
        request.extend(record.think().map(|think| ("think_time".to_owned(), seconds(think))));
        self.losses.add("types that are not known: s (a stream)", u64::from(record.stream.is_none()));
        self.losses.add("cached tokens", u64::from(record.cached_tokens.is_some()));
        self.losses.add("ids of requests", u64::from(record.request_id.is_some()));
        self.losses
            .add("last blocks that are not full", u64::from(!record.prompt_tokens.is_multiple_of(self.sizes.1.max(1))));
        Value::Object(request)
    }

    /// Writes the conversation that was collected.
    pub(super) fn end(&mut self, writer: &mut JsonWriter) -> Result<(), FormatError> {
        let Some((_, id)) = self.session.take() else { return Ok(()) };
        let conversation = json!({
            "id": id,
            "models": mem::take(&mut self.models),
            "block_size": self.sizes.1,
            "hash_id_scope": "local",
            "tool_tokens": 0,
            "system_tokens": 0,
            "requests": mem::take(&mut self.requests),
        });
        self.agents.clear();
        self.numbers.clear();
        self.bytes = 0;
        Ok(writer.append(conversation.to_string().as_bytes())?)
    }
}
