//! Files of texts: AIPerf's `single_turn` and `multi_turn`, ShareGPT. Their texts become the bodies of chat requests.
//!
//! Limits: a body has at most 16 MiB of history, and the bodies of one conversation 256 MiB: further turns are left out and counted, for they
//! grow with the square of a conversation's length. Images, sounds and videos are left out.

use std::time::Duration;

use serde_json::{Map, Value, json};

use api::{Endpoint, template_kwargs};
use text::prompt::{BlockHashAlgorithm, BlockHasher, SpecialTokens, Tokenizer};

use super::{
    fields::{Fields, required},
    reading::{ObjectRefusal, Objects, Reading, limits},
    record::{RowTimes, record, set_think},
};
use crate::trace::{Record, TokenizerId};

/// Bytes of the messages of one body, and of all bodies of a conversation.
const MOST_HISTORY: (usize, usize) = (16 << 20, 256 << 20);
/// Names of what is not text.
const MEDIA: [&str; 6] = ["image", "images", "audio", "audios", "video", "videos"];

/// Messages of a conversation so far.
#[derive(Default)]
struct ChatHistory {
    messages: Vec<Value>,
    has_user: bool,
    bytes: usize,
    /// Bytes of all bodies.
    written: usize,
}

impl ChatHistory {
    fn push(&mut self, role: &str, content: &str) {
        self.has_user |= role == "user";
        self.bytes += role.len() + content.len() + 32;
        self.messages.push(json!({"role": role, "content": content}));
    }

    /// The body that has all messages so far; `None` where it would be too long.
    fn body(&mut self) -> Option<Map<String, Value>> {
        self.written = self.written.saturating_add(self.bytes);
        let fits = self.bytes <= MOST_HISTORY.0 && self.written <= MOST_HISTORY.1;
        fits.then(|| Map::from_iter([("messages".to_owned(), Value::Array(self.messages.clone()))]))
    }
}

/// Counts and hashes the prompt of a body, where there is a tokenizer.
pub(super) fn count_prompt(made: &mut Record, reading: &mut Reading) {
    let (Some(tokenizer), Some(body)) = (reading.tokenizer(), made.request.as_ref().and_then(Value::as_object)) else {
        reading.losses.add("lengths of texts (--tokenizer counts them)", 1);
        return;
    };
    let ids = match made.endpoint {
        Some(Endpoint::Chat) => tokenizer.ids_of_chat(body, &template_kwargs(body)),
        Some(Endpoint::Completions) => body.get("prompt").and_then(|prompt| tokenizer.ids_of_completion(prompt)),
        _ => None,
    };
    let Some(ids) = ids else {
        reading.losses.add("hashes of texts that the tokenizer's chat template does not render", 1);
        made.prompt_tokens = u32::try_from(counted_apart(body, tokenizer)).unwrap_or(u32::MAX);
        return;
    };
    made.prompt_tokens = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    // Hashes of texts and ids of the file do not mix.
    let meta = reading.meta();
    let has_own = meta.block_size.is_some() && meta.block_hash.is_none();
    if !has_own {
        let size = *meta.block_size.get_or_insert(16);
        meta.block_hash = Some(BlockHashAlgorithm::Xxh3_64);
        let (name, fingerprint) = (tokenizer.name().to_owned(), tokenizer.fingerprint().to_owned());
        meta.tokenizer = Some(TokenizerId { name, fingerprint });
        let hashes = BlockHasher::new(BlockHashAlgorithm::Xxh3_64, size).hash(&ids);
        (made.block_hashes, made.prompt_hash) = (hashes.blocks.into(), hashes.whole);
    }
}

/// Tokens of the messages' texts, without what a template puts around them.
fn counted_apart(body: &Map<String, Value>, tokenizer: &Tokenizer) -> usize {
    let messages = body.get("messages").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let texts = messages.iter().filter_map(|message| message.get("content")?.as_str());
    texts.filter_map(|text| tokenizer.encode(text, SpecialTokens::Skip).ok()).map(|ids| ids.len()).sum()
}

fn chat(mut body: Map<String, Value>, output: Option<u32>, reading: &mut Reading) -> Result<Record, String> {
    limits(&mut body, output);
    let mut made = record(0, output.unwrap_or(0), RowTimes::default())?;
    (made.endpoint, made.request) = (Some(Endpoint::Chat), Some(Value::Object(body)));
    count_prompt(&mut made, reading);
    Ok(made)
}

/// A turn of AIPerf's files.
struct AiperfTurn {
    role: String,
    text: String,
    at: Option<Duration>,
    delay: Option<Duration>,
    output: Option<u32>,
    extra: Map<String, Value>,
}

impl AiperfTurn {
    fn read(fields: &mut Fields, reading: &mut Reading) -> Result<Self, String> {
        let media: u64 =
            MEDIA.iter().map(|name| u64::from(fields.value(&[*name]).is_ok_and(|value| value.is_some()))).sum();
        reading.losses.add("images, sounds and videos", media);
        let text = match (fields.text(&["text"])?, fields.value(&["texts"])?) {
            (Some(text), _) => text,
            (None, Some(texts)) => texts_of(&texts).join("\n"),
            (None, None) if media > 0 => String::new(),
            (None, None) => return required(None, "text"),
        };
        let extra = match fields.value(&["extra"])? {
            Some(Value::Object(extra)) => extra,
            Some(_) => return Err("`extra` is no object".to_owned()),
            None => Map::new(),
        };
        let turn = Self {
            role: fields.text(&["role"])?.unwrap_or_else(|| "user".to_owned()),
            text,
            at: fields.time(&["timestamp"], 1.0)?,
            delay: fields.time(&["delay"], 1.0)?,
            output: fields.count(&["output_length", "max_tokens"])?,
            extra,
        };
        fields.lose_rest(&mut reading.losses);
        Ok(turn)
    }
}

/// The texts of a list of texts, or of objects with `contents`.
fn texts_of(texts: &Value) -> Vec<&str> {
    let mut found = Vec::new();
    for value in texts.as_array().into_iter().flatten() {
        match value.get("contents").and_then(Value::as_array) {
            Some(contents) => found.extend(contents.iter().filter_map(Value::as_str)),
            None => found.extend(value.as_str()),
        }
    }
    found
}

/// Reader of `single_turn`.
pub(super) struct SingleTurns;

impl Objects for SingleTurns {
    fn object(&mut self, mut fields: Fields, reading: &mut Reading) -> Result<(), ObjectRefusal> {
        let turn = AiperfTurn::read(&mut fields, reading)?;
        reading.losses.add("`delay`", u64::from(turn.delay.is_some()));
        let mut history = ChatHistory::default();
        history.push(&turn.role, &turn.text);
        let Some(mut body) = history.body() else { return Err("its text is longer than 16 MiB".to_owned().into()) };
        body.extend(turn.extra);
        let mut made = chat(body, turn.output, reading)?;
        made.arrival = turn.at;
        reading.emit(made)
    }
}

/// Reader of `multi_turn`. A body has the users' messages before it: the answers are not in the file.
pub(super) struct MultiTurns;

impl Objects for MultiTurns {
    fn object(&mut self, mut fields: Fields, reading: &mut Reading) -> Result<(), ObjectRefusal> {
        let session = fields.name(&["session_id"])?.unwrap_or_else(|| format!("conversation-{}", reading.objects));
        let turns = required(fields.objects(&["turns"])?, "turns")?;
        fields.lose_rest(&mut reading.losses);
        let (mut history, mut before): (ChatHistory, Option<Option<Duration>>) = (ChatHistory::default(), None);
        for (number, turn) in turns.into_iter().enumerate() {
            let in_turn = |reason: String| format!("turn {}: {reason}", number + 1);
            let mut fields = Fields::parse(turn.get().as_bytes()).map_err(in_turn)?;
            let turn = AiperfTurn::read(&mut fields, reading).map_err(in_turn)?;
            history.push(&turn.role, &turn.text);
            let Some(mut body) = history.body() else {
                reading.losses.add("turns with more than 16 MiB of history", 1);
                continue;
            };
            body.extend(turn.extra);
            let mut made = chat(body, turn.output, reading)?;
            reading.losses.add("answers before a turn, which the file does not have", u64::from(before.is_some()));
            let delay = turn.delay.unwrap_or_default();
            made.arrival = turn.at.or(before.flatten().map(|before| before.saturating_add(delay)));
            if turn.at.is_none() && before.is_some() {
                set_think(&mut made, delay);
            }
            before = Some(made.arrival);
            made.session = Some(session.clone());
            reading.emit(made)?;
        }
        Ok(())
    }
}

/// Reader of ShareGPT: each answer makes a request of the messages before it. There are no times: a turn follows the one before at once.
pub(super) struct ChatConversations;

impl Objects for ChatConversations {
    fn object(&mut self, mut fields: Fields, reading: &mut Reading) -> Result<(), ObjectRefusal> {
        let session = fields.name(&["id"])?.unwrap_or_else(|| format!("conversation-{}", reading.objects));
        let messages = required(fields.objects(&["conversations", "messages"])?, "conversations")?;
        fields.lose_rest(&mut reading.losses);
        let (mut history, mut turns) = (ChatHistory::default(), 0);
        for (number, message) in messages.into_iter().enumerate() {
            let in_message = |reason: String| format!("message {}: {reason}", number + 1);
            let mut fields = Fields::parse(message.get().as_bytes()).map_err(in_message)?;
            let from = fields.text(&["from", "role"]).map_err(in_message)?.unwrap_or_default();
            let Some(text) = fields.text(&["value", "content", "text"]).map_err(in_message)? else {
                reading.losses.add("messages without text", 1);
                continue;
            };
            fields.lose_rest(&mut reading.losses);
            match from.as_str() {
                "human" | "user" => history.push("user", &text),
                "system" => history.push("system", &text),
                "gpt" | "assistant" | "chatgpt" | "bing" | "bard" | "model" => {
                    if history.has_user {
                        answered(&mut history, &text, (&session, turns), reading)?;
                        turns += 1;
                    }
                    history.push("assistant", &text);
                }
                _ => reading.losses.add("messages of neither side", 1),
            }
        }
        reading.losses.add("conversations without an answer to a user", u64::from(turns == 0));
        Ok(())
    }
}

/// Makes the request that a text answered.
fn answered(
    history: &mut ChatHistory,
    answer: &str,
    (session, turn): (&str, u64),
    reading: &mut Reading,
) -> Result<(), ObjectRefusal> {
    let Some(body) = history.body() else {
        reading.losses.add("turns with more than 16 MiB of history", 1);
        return Ok(());
    };
    let ids = reading.tokenizer().and_then(|tokenizer| tokenizer.encode(answer, SpecialTokens::Skip).ok());
    let count = ids.as_ref().and_then(|ids| u32::try_from(ids.len()).ok());
    let mut made = chat(body, count, reading)?;
    made.session = Some(session.to_owned());
    match count {
        Some(1..) => {
            made.text = Some(vec![answer.to_owned()]);
            made.output_token_ids = ids;
        }
        Some(0) => {}
        None => reading.losses.add("texts of answers (--tokenizer keeps them)", 1),
    }
    if turn > 0 {
        set_think(&mut made, Duration::ZERO);
    }
    reading.emit(made)
}
