//! A row for each request, as Mooncake, AIPerf (`mooncake_trace`), Dynamo's replay and vLLM's benchmark have them.
//!
//! `timestamp`, `input_length`, `output_length` and `hash_ids`, of which the last stands for a block that may not be full. Ids are
//! folded with those before them, so that they name whole prefixes in files whose numbers do not. Optional: `session_id` with `delay` (the
//! client's pause after the turn before), a text, messages or a whole body instead of lengths.

use std::{collections::HashMap, time::Duration};

use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_64;

use api::Endpoint;

use super::{
    chats,
    fields::{Fields, required},
    reading::{ObjectRefusal, Objects, Reading, limits},
    record::{RowTimes, Tail, chained, record, set_blocks, set_think},
};

/// Sessions of which the last arrival is kept, for turns that follow by a delay.
const MOST_SESSIONS: usize = 1 << 22;

pub(super) struct RowReader {
    /// Milliseconds of a unit of time.
    unit: f64,
    /// The last arrival of each session.
    sessions: HashMap<u64, Duration>,
}

impl RowReader {
    pub(super) fn of(unit: f64) -> Self {
        Self { unit, sessions: HashMap::new() }
    }

    /// When a row arrives, and how long its client waited after the turn before, where the row has that.
    fn arrival(
        &mut self,
        session: Option<&str>,
        at: Option<Duration>,
        delay: Option<Duration>,
    ) -> Result<(Option<Duration>, Option<Duration>), String> {
        let Some(session) = session else { return Ok((at, None)) };
        let key = xxh3_64(session.as_bytes());
        let before = self.sessions.get(&key).copied();
        let think = delay.filter(|_| at.is_none() && before.is_some());
        let arrival = at.or(before.map(|before| before.saturating_add(delay.unwrap_or_default())));
        if before.is_none() && self.sessions.len() >= MOST_SESSIONS {
            return Err(format!("more than {MOST_SESSIONS} sessions"));
        }
        self.sessions.insert(key, arrival.unwrap_or_default());
        Ok((arrival, think))
    }
}

impl Objects for RowReader {
    fn object(&mut self, mut fields: Fields, reading: &mut Reading) -> Result<(), ObjectRefusal> {
        let at = fields.time(&["timestamp", "created_time"], self.unit)?;
        let delay = fields.time(&["delay", "delay_ms"], 1.0)?;
        let session = fields.name(&["session_id"])?;
        let input = fields.count(&["input_length", "input_tokens"])?;
        let output = fields.count(&["output_length", "output_tokens"])?;
        let ids = fields.ids(&["hash_ids"])?.unwrap_or_default();
        let (request_id, model) = (fields.name(&["request_id"])?, fields.text(&["model"])?);
        let sampled = fields.token_ids(&["output_token_ids"])?;
        let body = body(&mut fields, output)?;
        if body.is_none() {
            required(at.or(delay), "timestamp")?;
            required(input, "input_length")?;
            required(output, "output_length")?;
        }
        let (arrival, think) = self.arrival(session.as_deref(), at, delay)?;
        let mut made = record(input.unwrap_or(0), output.unwrap_or(0), RowTimes::default())?;
        (made.arrival, made.session, made.request_id, made.model) = (arrival, session, request_id, model);
        let block_size = reading.block_size(None, "hash_ids")?;
        set_blocks(&mut made, chained(&ids, 0), block_size, (Tail::Kept, "hash_ids"))?;
        let is_whole = |ids: &Vec<u32>| !ids.is_empty() && u32::try_from(ids.len()) == Ok(made.output_tokens);
        made.output_token_ids = sampled.filter(is_whole);
        if let Some(think) = think {
            set_think(&mut made, think);
        }
        if let Some((endpoint, body)) = body {
            made.endpoint = Some(endpoint);
            made.request = Some(Value::Object(body));
            if input.is_none() {
                chats::count_prompt(&mut made, reading);
            }
        }
        fields.lose_rest(&mut reading.losses);
        reading.emit(made)
    }
}

type EndpointBody = (Endpoint, Map<String, Value>);

/// The body of a row that has more than lengths.
fn body(fields: &mut Fields, output: Option<u32>) -> Result<Option<EndpointBody>, String> {
    if let Some(payload) = fields.value(&["payload"])? {
        let Value::Object(body) = payload else { return Err("`payload` is no object".to_owned()) };
        let endpoint = if body.contains_key("messages") {
            Endpoint::Chat
        } else if body.contains_key("prompt") {
            Endpoint::Completions
        } else {
            Endpoint::Responses
        };
        return Ok(Some((endpoint, body)));
    }
    let messages = match fields.value(&["messages"])? {
        Some(messages) if messages.is_array() => messages,
        Some(_) => return Err("`messages` is no list".to_owned()),
        None => match fields.text(&["text_input", "text"])? {
            Some(text) => json!([{"role": "user", "content": text}]),
            None => return Ok(None),
        },
    };
    let mut body = Map::new();
    body.insert("messages".to_owned(), messages);
    if let Some(tools) = fields.value(&["tools"])? {
        body.insert("tools".to_owned(), tools);
    }
    if let Some(Value::Object(extra)) = fields.value(&["extra"])? {
        body.extend(extra);
    }
    limits(&mut body, output);
    Ok(Some((Endpoint::Chat, body)))
}
