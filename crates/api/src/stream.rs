//! The events of a stream as bytes, one after the other in the buffer of the write that they leave in. Everything that is
//! the same on each event is built once; per event only the text is escaped. Text goes out raw beyond ASCII, as the engine
//! sends it.

use std::sync::OnceLock;

use bytes::BytesMut;

use super::{
    Api, UsageEvents,
    escape::{EscapeOutput, escaped, put_escaped, put_escaped_or_null, put_ids, put_json, put_number},
    usage::Usage,
};
use text::parsers::Delta;

/// The last event of every stream.
pub(super) const DONE: &[u8] = b"data: [DONE]\n\n";

/// Fields that are constant over one answer.
#[derive(Debug, Clone)]
pub struct AnswerHead {
    pub(super) api: Api,
    pub(super) usage_events: UsageEvents,
    pub(super) id: String,
    pub(super) model: String,
    pub(super) created: u64,
    /// All that comes before an event's choices, once a stream has begun.
    stream: OnceLock<String>,
    /// As JSON.
    pub(super) fingerprint: Option<String>,
}

/// The names in an answer.
#[derive(Debug, Clone, Copy)]
pub struct AnswerNames<'a> {
    /// The answer's id without its prefix.
    pub id: &'a str,
    /// The model, as it is served.
    pub model: &'a str,
    /// `system_fingerprint`, where there is one.
    pub fingerprint: Option<&'a str>,
}

/// Reason for the end of a choice, where it is more than a word.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StopReason {
    /// Nothing to name: end of sequence or length.
    #[default]
    Unnamed,
    /// A stop string, or the engine's word for it.
    Text(String),
    /// A stop token's id.
    Token(u32),
}

/// One event's worth of one choice.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChoiceChunk<'a> {
    /// Index of the choice.
    pub index: u32,
    /// New text; may be empty.
    pub text: &'a str,
    /// Parts of a chat's text instead of it, where the server parses it.
    pub delta: Option<&'a Delta>,
    /// New ids, if the client requested them.
    pub ids: Option<&'a [u32]>,
    /// The prompt's ids, on the event that carries them.
    pub prompt_ids: Option<&'a [u32]>,
    /// Log probabilities of the new tokens as JSON, if the client requested them.
    pub logprobs: Option<&'a str>,
    /// The finish reason with its stop reason, on the choice's last event.
    pub finish: Option<(&'a str, &'a StopReason)>,
    /// Counts up to here; written if the client requested them on every event.
    pub usage: Usage,
}

/// The role event of a chat's choice.
#[derive(Debug, Clone, Copy, Default)]
pub struct Opening<'a> {
    /// Role of the speaker; `None` for the assistant.
    pub role: Option<&'a str>,
    /// The prompt's ids, if the client requested them.
    pub prompt_ids: Option<&'a [u32]>,
    /// The rendered prompt, if the client requested it.
    pub prompt_text: Option<&'a str>,
    /// Counts before the first token.
    pub usage: Usage,
}

impl AnswerHead {
    /// The head of an answer that was `created` that many seconds after 1970.
    #[must_use]
    pub fn new(api: Api, names: &AnswerNames<'_>, created: u64, usage_events: UsageEvents) -> Self {
        let AnswerNames { id, model, fingerprint } = names;
        let prefix = match api {
            Api::Chat => "chatcmpl-",
            Api::Completions => "cmpl-",
        };
        Self {
            api,
            usage_events,
            id: [prefix, id].concat(),
            model: (*model).to_owned(),
            created,
            stream: OnceLock::new(),
            fingerprint: fingerprint.map(escaped),
        }
    }

    /// All that comes before an event's choices.
    fn stream(&self) -> &str {
        self.stream.get_or_init(|| {
            let object = match self.api {
                Api::Chat => "chat.completion.chunk",
                Api::Completions => "text_completion",
            };
            let mut stream = String::with_capacity(self.event_size());
            stream.put("data: ");
            self.put_start(&mut stream, object);
            stream
        })
    }

    fn put_start(&self, out: &mut impl EscapeOutput, object: &str) {
        out.put("{\"id\":");
        put_escaped(out, &self.id);
        out.put(",\"object\":\"");
        out.put(object);
        out.put("\",\"created\":");
        out.put(itoa::Buffer::new().format(self.created));
        out.put(",\"model\":");
        put_escaped(out, &self.model);
        out.put(",\"choices\":[");
    }

    /// Appends all that comes before a body's choices.
    pub(super) fn put_full(&self, out: &mut impl EscapeOutput) {
        let object = match self.api {
            Api::Chat => "chat.completion",
            Api::Completions => "text_completion",
        };
        self.put_start(out, object);
    }

    /// Bytes of an event with little content.
    pub(crate) fn event_size(&self) -> usize {
        self.id.len() + self.model.len() + 280
    }

    /// Appends the role event that opens each choice of a chat; nothing for completions, which have none.
    pub fn put_role(&self, out: &mut BytesMut, index: u32, opening: &Opening<'_>) {
        if self.api == Api::Completions {
            return;
        }
        self.open(out, index);
        out.put(",\"delta\":{\"role\":");
        put_escaped(out, opening.role.unwrap_or("assistant"));
        out.put(",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]");
        self.put_usage(out, opening.usage);
        out.put(",\"prompt_token_ids\":");
        put_ids(out, opening.prompt_ids);
        out.put(",\"prompt_text\":");
        put_escaped_or_null(out, opening.prompt_text);
        out.put("}\n\n");
    }

    /// Appends the event by which a chat repeats its last message.
    pub(crate) fn put_echo(&self, out: &mut BytesMut, index: u32, content: &str, usage: Usage) {
        self.open(out, index);
        out.put(",\"delta\":{\"content\":");
        put_escaped(out, content);
        out.put("},\"logprobs\":null,\"finish_reason\":null}]");
        self.put_usage(out, usage);
        out.put("}\n\n");
    }

    /// Appends an event that carries tokens.
    pub fn put_piece(&self, out: &mut BytesMut, piece: &ChoiceChunk<'_>) {
        self.open(out, piece.index);
        match self.api {
            Api::Chat => put_chat(out, piece),
            Api::Completions => put_completion(out, piece),
        }
        self.put_usage(out, piece.usage);
        if piece.finish.is_some() && self.usage_events == UsageEvents::None {
            self.put_fingerprint(out);
        }
        out.put("}\n\n");
    }

    /// Appends the event that closes a stream whose client asked for usage.
    pub(crate) fn put_closing(&self, out: &mut BytesMut, usage: &Usage) {
        out.put(self.stream());
        out.put("],\"usage\":");
        usage.put_closing(out, self.api);
        self.put_fingerprint(out);
        usage.put_closing_times(out);
        out.put("}\n\n");
    }

    /// Appends the event by which the engine reports its failure.
    pub(super) fn put_failure(out: &mut BytesMut, payload: &str) {
        for line in payload.lines() {
            out.put("data: ");
            out.put(line);
            out.put("\n");
        }
        out.put("\n");
    }

    /// Appends `[DONE]`.
    pub(crate) fn put_done(out: &mut BytesMut) {
        out.extend_from_slice(DONE);
    }

    fn open(&self, out: &mut BytesMut, index: u32) {
        out.put(self.stream());
        out.put("{\"index\":");
        put_number(out, index);
    }

    fn put_fingerprint(&self, out: &mut BytesMut) {
        if let Some(fingerprint) = &self.fingerprint {
            out.put(",\"system_fingerprint\":");
            out.put(fingerprint);
        }
    }

    fn put_usage(&self, out: &mut BytesMut, usage: Usage) {
        if self.usage_events == UsageEvents::EveryEvent {
            out.put(",\"usage\":");
            usage.put_continuous(out, self.api);
        }
    }
}

fn put_chat(out: &mut BytesMut, piece: &ChoiceChunk<'_>) {
    match piece.delta {
        Some(delta) => {
            out.put(",\"delta\":");
            put_json(out, delta);
        }
        None => {
            out.put(",\"delta\":{\"content\":");
            put_escaped(out, piece.text);
            out.put("}");
        }
    }
    if piece.logprobs.is_none() && piece.finish.is_none() && piece.ids.is_none() {
        return out.put(",\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]");
    }
    put_finish(out, piece, "null");
    out.put(",\"token_ids\":");
    put_ids(out, piece.ids);
    out.put("}]");
}

fn put_completion(out: &mut BytesMut, piece: &ChoiceChunk<'_>) {
    out.put(",\"text\":");
    put_escaped(out, piece.text);
    put_finish(out, piece, "null,\"stop_reason\":null");
    out.put(",\"prompt_token_ids\":");
    put_ids(out, piece.prompt_ids);
    out.put(",\"token_ids\":");
    put_ids(out, piece.ids);
    out.put("}]");
}

/// Writes log probabilities and the end of a choice; `unfinished` where it goes on.
fn put_finish(out: &mut BytesMut, piece: &ChoiceChunk<'_>, unfinished: &str) {
    out.put(",\"logprobs\":");
    out.put(piece.logprobs.unwrap_or("null"));
    out.put(",\"finish_reason\":");
    match piece.finish {
        Some((finish, reason)) => {
            put_escaped(out, finish);
            out.put(",\"stop_reason\":");
            put_reason(out, reason);
        }
        None => out.put(unfinished),
    }
}

pub(super) fn put_reason(out: &mut impl EscapeOutput, reason: &StopReason) {
    match reason {
        StopReason::Unnamed => out.put("null"),
        StopReason::Text(text) => put_escaped(out, text),
        StopReason::Token(id) => put_number(out, *id),
    }
}
