//! The events of a stream as bytes, one after the other in the buffer of the write that they leave in. Everything that is
//! the same on each event is built once; per event only the text is escaped. Text goes out raw beyond ASCII, as the engine
//! sends it.

use bytes::{BufMut, BytesMut};

use super::{
    Api, UsageEvents,
    escape::{escaped, put_escaped, put_ids, put_number},
    usage::Usage,
};

/// The last event of every stream.
pub(super) const DONE: &[u8] = b"data: [DONE]\n\n";

/// What is constant over one answer.
#[derive(Debug, Clone)]
pub struct Head {
    api: Api,
    usage_events: UsageEvents,
    /// `{"id":…,"object":…,"created":…,"model":…,"choices":[`, as stream and as full body spell it.
    stream: String,
    full: String,
    fingerprint: Option<String>,
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

/// Why a choice stopped where the reason is more than a word.
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
pub struct Piece<'a> {
    /// Index of the choice.
    pub index: u32,
    /// New text; may be empty.
    pub text: &'a str,
    /// What a chat says instead of text as JSON, where the server parses it.
    pub delta: Option<&'a str>,
    /// New ids, where the client asked for them.
    pub ids: Option<&'a [u32]>,
    /// The prompt's ids, on the event that carries them.
    pub prompt_ids: Option<&'a [u32]>,
    /// Log probabilities of the new tokens as JSON, where the client asked for them.
    pub logprobs: Option<&'a str>,
    /// The finish reason with its stop reason, on the choice's last event.
    pub finish: Option<(&'a str, &'a StopReason)>,
    /// Counts up to here; written where the client asked for them on every event.
    pub usage: Usage,
}

impl Head {
    /// The head of an answer that was `created` that many seconds after 1970.
    #[must_use]
    pub fn new(api: Api, names: &AnswerNames<'_>, created: u64, usage_events: UsageEvents) -> Self {
        let (prefix, stream, full) = match api {
            Api::Chat => ("chatcmpl-", "chat.completion.chunk", "chat.completion"),
            Api::Completions => ("cmpl-", "text_completion", "text_completion"),
        };
        let AnswerNames { id, model, fingerprint } = names;
        let id = escaped(&format!("{prefix}{id}"));
        let model = escaped(model);
        let head = |object: &str| {
            format!("{{\"id\":{id},\"object\":\"{object}\",\"created\":{created},\"model\":{model},\"choices\":[")
        };
        Self {
            api,
            usage_events,
            stream: format!("data: {}", head(stream)),
            full: head(full),
            fingerprint: fingerprint.map(escaped),
        }
    }

    pub(super) fn full(&self) -> &str {
        &self.full
    }

    pub(super) fn fingerprint(&self) -> Option<&str> {
        self.fingerprint.as_deref()
    }

    pub(super) fn api(&self) -> Api {
        self.api
    }

    /// Bytes that an event with little to tell takes.
    #[must_use]
    pub fn event_size(&self) -> usize {
        self.stream.len() + 160
    }

    /// Appends the role event that opens each choice of a chat; nothing for completions, which have none.
    pub fn put_role(&self, out: &mut BytesMut, index: u32, prompt: (Option<&[u32]>, Option<&str>), usage: Usage) {
        if self.api == Api::Completions {
            return;
        }
        let (prompt_ids, prompt_text) = prompt;
        self.open(out, index);
        put(out, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]");
        self.put_usage(out, usage);
        put(out, ",\"prompt_token_ids\":");
        put_ids(out, prompt_ids);
        put(out, ",\"prompt_text\":");
        match prompt_text {
            Some(text) => put_escaped(out, text),
            None => put(out, "null"),
        }
        put(out, "}\n\n");
    }

    /// Appends an event that carries tokens.
    pub fn put_piece(&self, out: &mut BytesMut, piece: &Piece<'_>) {
        self.open(out, piece.index);
        match self.api {
            Api::Chat => put_chat(out, piece),
            Api::Completions => put_completion(out, piece),
        }
        self.put_usage(out, piece.usage);
        if piece.finish.is_some() && self.usage_events == UsageEvents::None {
            self.put_fingerprint(out);
        }
        put(out, "}\n\n");
    }

    /// Appends the event that closes a stream whose client asked for usage.
    pub fn put_closing(&self, out: &mut BytesMut, usage: &Usage) {
        put(out, &self.stream);
        put(out, "],\"usage\":");
        put(out, &usage.closing(self.api));
        self.put_fingerprint(out);
        put(out, &usage.closing_times());
        put(out, "}\n\n");
    }

    /// Appends `[DONE]`.
    pub fn put_done(out: &mut BytesMut) {
        out.put_slice(DONE);
    }

    fn open(&self, out: &mut BytesMut, index: u32) {
        put(out, &self.stream);
        put(out, "{\"index\":");
        put_number(out, index);
    }

    fn put_fingerprint(&self, out: &mut BytesMut) {
        if let Some(fingerprint) = &self.fingerprint {
            put(out, ",\"system_fingerprint\":");
            put(out, fingerprint);
        }
    }

    fn put_usage(&self, out: &mut BytesMut, usage: Usage) {
        if self.usage_events == UsageEvents::EveryEvent {
            put(out, ",\"usage\":");
            put(out, &usage.continuous(self.api));
        }
    }
}

fn put_chat(out: &mut BytesMut, piece: &Piece<'_>) {
    match piece.delta {
        Some(delta) => {
            put(out, ",\"delta\":");
            put(out, delta);
        }
        None => {
            put(out, ",\"delta\":{\"content\":");
            put_escaped(out, piece.text);
            put(out, "}");
        }
    }
    if piece.logprobs.is_none() && piece.finish.is_none() && piece.ids.is_none() {
        return put(out, ",\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]");
    }
    put(out, ",\"logprobs\":");
    put(out, piece.logprobs.unwrap_or("null"));
    put(out, ",\"finish_reason\":");
    match piece.finish {
        Some((finish, reason)) => {
            put_escaped(out, finish);
            put(out, ",\"stop_reason\":");
            put_reason(out, reason);
        }
        None => put(out, "null"),
    }
    put(out, ",\"token_ids\":");
    put_ids(out, piece.ids);
    put(out, "}]");
}

fn put_completion(out: &mut BytesMut, piece: &Piece<'_>) {
    put(out, ",\"text\":");
    put_escaped(out, piece.text);
    put(out, ",\"logprobs\":");
    put(out, piece.logprobs.unwrap_or("null"));
    put(out, ",\"finish_reason\":");
    match piece.finish {
        Some((finish, reason)) => {
            put_escaped(out, finish);
            put(out, ",\"stop_reason\":");
            put_reason(out, reason);
        }
        None => put(out, "null,\"stop_reason\":null"),
    }
    put(out, ",\"prompt_token_ids\":");
    put_ids(out, piece.prompt_ids);
    put(out, ",\"token_ids\":");
    put_ids(out, piece.ids);
    put(out, "}]");
}

fn put_reason(out: &mut BytesMut, reason: &StopReason) {
    match reason {
        StopReason::Unnamed => put(out, "null"),
        StopReason::Text(text) => put_escaped(out, text),
        StopReason::Token(id) => put_number(out, *id),
    }
}

pub(super) fn reason_json(reason: &StopReason) -> String {
    match reason {
        StopReason::Unnamed => "null".to_owned(),
        StopReason::Text(text) => escaped(text),
        StopReason::Token(id) => id.to_string(),
    }
}

fn put(out: &mut BytesMut, text: &str) {
    out.put_slice(text.as_bytes());
}
