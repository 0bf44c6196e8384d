//! The events of a stream as bytes. Everything that is the same on each event is built once; per event only the text is
//! escaped. Text goes out raw beyond ASCII, as the engine sends it.

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;

use super::{Api, UsageEvents, usage::Usage};

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

    /// The role event that opens each choice of a chat; `None` for completions, which have none.
    #[must_use]
    pub fn role(
        &self,
        index: u32,
        prompt_ids: Option<&[u32]>,
        prompt_text: Option<&str>,
        usage: Usage,
    ) -> Option<Bytes> {
        if self.api == Api::Completions {
            return None;
        }
        let mut out = self.event();
        put(&mut out, "{\"index\":");
        put(&mut out, &index.to_string());
        put(
            &mut out,
            ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]",
        );
        self.put_usage(&mut out, usage);
        put(&mut out, ",\"prompt_token_ids\":");
        put_json(&mut out, &prompt_ids);
        put(&mut out, ",\"prompt_text\":");
        put_json(&mut out, &prompt_text);
        put(&mut out, "}\n\n");
        Some(out.freeze())
    }

    /// An event that carries tokens.
    #[must_use]
    pub fn piece(&self, piece: &Piece<'_>) -> Bytes {
        let mut out = self.event();
        put(&mut out, "{\"index\":");
        put(&mut out, &piece.index.to_string());
        match self.api {
            Api::Chat => put_chat(&mut out, piece),
            Api::Completions => put_completion(&mut out, piece),
        }
        put(&mut out, "}]");
        self.put_usage(&mut out, piece.usage);
        if piece.finish.is_some() && self.usage_events == UsageEvents::None {
            self.put_fingerprint(&mut out);
        }
        put(&mut out, "}\n\n");
        out.freeze()
    }

    /// The event that closes a stream whose client asked for usage.
    #[must_use]
    pub fn usage(&self, usage: &Usage) -> Bytes {
        let mut out = self.event();
        put(&mut out, "],\"usage\":");
        put(&mut out, &usage.closing(self.api));
        self.put_fingerprint(&mut out);
        put(&mut out, &usage.closing_times());
        put(&mut out, "}\n\n");
        out.freeze()
    }

    /// `[DONE]`.
    #[must_use]
    pub fn done() -> Bytes {
        Bytes::from_static(DONE)
    }

    fn event(&self) -> BytesMut {
        let mut out = BytesMut::with_capacity(self.stream.len() + 256);
        put(&mut out, &self.stream);
        out
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
    put(out, ",\"delta\":");
    match piece.delta {
        Some(delta) => put(out, delta),
        None => {
            put(out, "{\"content\":");
            put_json(out, &piece.text);
            put(out, "}");
        }
    }
    put(out, ",\"logprobs\":");
    put(out, piece.logprobs.unwrap_or("null"));
    put(out, ",\"finish_reason\":");
    match piece.finish {
        Some((finish, reason)) => {
            put_json(out, &finish);
            put(out, ",\"stop_reason\":");
            put_reason(out, reason);
        }
        None => put(out, "null"),
    }
    put(out, ",\"token_ids\":");
    put_json(out, &piece.ids);
}

fn put_completion(out: &mut BytesMut, piece: &Piece<'_>) {
    put(out, ",\"text\":");
    put_json(out, &piece.text);
    put(out, ",\"logprobs\":");
    put(out, piece.logprobs.unwrap_or("null"));
    put(out, ",\"finish_reason\":");
    put_json(out, &piece.finish.map(|(finish, _)| finish));
    put(out, ",\"stop_reason\":");
    put_reason(out, piece.finish.map_or(&StopReason::Unnamed, |(_, reason)| reason));
    put(out, ",\"prompt_token_ids\":");
    put_json(out, &piece.prompt_ids);
    put(out, ",\"token_ids\":");
    put_json(out, &piece.ids);
}

fn put_reason(out: &mut BytesMut, reason: &StopReason) {
    put(out, &reason_json(reason));
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

fn put_json<T: Serialize>(out: &mut BytesMut, value: &T) {
    // Numbers, texts and lists of them always serialise, and a buffer takes every write.
    let _ = serde_json::to_writer(out.writer(), value);
}

pub(super) fn escaped(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
