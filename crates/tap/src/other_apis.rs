//! Events and responses of APIs other than chats and completions, recognised by their shape: Anthropic's messages, OpenAI's
//! responses, embeddings, and the engines' own (`/generate` of TGI and SGLang, `/completion` of llama.cpp).
//!
//! Limits: only text, token ids, usage and the end are read, of one choice; of SGLang's cumulative
//! text the last event counts.

use serde_json::value::RawValue;
use xxhash_rust::xxh3::xxh3_64;

use super::event::{EngineUsage, ids, is_nonempty};
use api::{
    answers::{
        TokenCounts,
        words::{DELTA, ELSEWHERE},
    },
    ends_response, is_last_event_type,
};
use net::wire::RawObject;

/// Content of one event, or of a whole response.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ApiEvent {
    pub(super) id: Option<String>,
    /// New text as JSON; `None` if the event has none.
    pub(super) text: Option<String>,
    /// Channel of the text: each kind of each block is one.
    pub(super) channel: u64,
    /// Ids of the new tokens; `None` if the event has none.
    pub(super) token_ids: Option<Vec<u32>>,
    pub(super) finish_reason: Option<String>,
    pub(super) usage: Option<EngineUsage>,
    /// The response is complete.
    pub(super) done: bool,
    pub(super) error: bool,
}

impl ApiEvent {
    /// Reads a payload; `None` if it is not a JSON object.
    pub(super) fn read(payload: &[u8]) -> Option<Self> {
        let fields = &RawObject::read(payload)?;
        let kind: String = fields.value("type").unwrap_or_default();
        let mut event = Self { id: fields.value("id"), usage: usage(fields), ..Self::default() };
        event.error = is_nonempty(fields.get("error")) || kind == "error";
        if kind.starts_with("response.") || fields.value::<String>("object").as_deref() == Some("response") {
            event.of_responses(fields, &kind);
        } else if fields.get("token").or(fields.get("generated_text")).is_some() {
            event.of_tgi(fields);
        } else if let Some(info) = fields.get("meta_info") {
            event.text = text_json(fields.get("text"));
            event.of_sglang(info);
        } else if fields.get("stop").is_some() {
            event.of_llama_cpp(fields);
        } else {
            event.of_messages(fields, &kind);
        }
        Some(event)
    }

    fn of_messages(&mut self, fields: &RawObject<'_>, kind: &str) {
        match kind {
            "message_start" => {
                let message = fields.object("message").unwrap_or_default();
                self.id = message.value("id");
                self.usage = usage(&message);
            }
            _ if is_last_event_type(kind) => self.done = true,
            "message" => {
                self.done = true;
                self.text = text_json(fields.get("content"));
                self.finish_reason = fields.value("stop_reason");
            }
            _ => {
                let delta = fields.object(DELTA).unwrap_or_default();
                let mut texts =
                    ELSEWHERE.iter().zip(0..).filter_map(|((name, _), at)| Some((text_json(delta.get(name))?, at)));
                if let Some((text, kind)) = texts.next() {
                    self.text = Some(text);
                    self.channel = channel(fields, kind);
                }
                self.finish_reason = delta.value("stop_reason");
            }
        }
    }

    fn of_responses(&mut self, fields: &RawObject<'_>, kind: &str) {
        if kind.ends_with(".delta") {
            self.text = text_json(fields.get(DELTA));
            self.channel = channel(fields, xxh3_64(kind.as_bytes()));
            return;
        }
        let inner = fields.object("response");
        let whole = inner.as_ref().unwrap_or(fields);
        self.id = whole.value("id");
        self.usage = usage(whole);
        let status: String = whole.value("status").unwrap_or_default();
        let is_end = kind.is_empty() || ends_response(kind);
        if is_end && matches!(&*status, "completed" | "incomplete" | "failed" | "cancelled") {
            self.done = true;
            self.error |= status == "failed";
            self.finish_reason = Some(status);
        }
        if kind.is_empty() {
            self.text = text_json(whole.get("output"));
        }
    }

    fn of_tgi(&mut self, fields: &RawObject<'_>) {
        let details = fields.object("details");
        match fields.object("token") {
            Some(token) => {
                self.token_ids = token.value("id").map(|id| vec![id]);
                self.text = text_json(token.get("text"));
            }
            None => {
                self.text = text_json(fields.get("generated_text"));
                let tokens: Vec<RawObject<'_>> =
                    details.as_ref().and_then(|details| details.value("tokens")).unwrap_or_default();
                let named = tokens.iter().map(|token| token.value("id")).collect::<Option<Vec<u32>>>();
                self.token_ids = named.filter(|token_ids| !token_ids.is_empty());
            }
        }
        self.done = is_nonempty(fields.get("generated_text"));
        if let Some(details) = details {
            self.finish_reason = details.value("finish_reason");
            let count = |name: &str| details.value(name).unwrap_or(0);
            self.usage = Some(EngineUsage::of(count("input_length"), count("generated_tokens"), None));
        }
    }

    fn of_sglang(&mut self, info: &RawValue) {
        let Some(info) = RawObject::read(info.get().as_bytes()) else { return };
        self.id = info.value("id");
        let count = |name: &str| info.value(name).unwrap_or(0);
        self.usage =
            Some(EngineUsage::of(count("prompt_tokens"), count("completion_tokens"), info.value("cached_tokens")));
        self.finish_reason = info.object("finish_reason").and_then(|reason| reason.value("type"));
        self.done = self.finish_reason.is_some();
    }

    fn of_llama_cpp(&mut self, fields: &RawObject<'_>) {
        self.text = text_json(fields.get("content"));
        self.token_ids = ids(fields.get("tokens")).filter(|token_ids| !token_ids.is_empty());
        self.done = fields.value("stop") == Some(true);
        if self.done {
            self.finish_reason = fields.value("stop_type");
            let (prompt, output) = (fields.value("tokens_evaluated").unwrap_or(0), fields.value("tokens_predicted"));
            self.usage = output.map(|output| EngineUsage::of(prompt, output, None));
        }
    }
}

/// Returns the channel of a text of this kind, by the indices beside it.
fn channel(fields: &RawObject<'_>, kind: u64) -> u64 {
    let indices = ["index", "output_index", "content_index"].map(|name| fields.value::<u64>(name).unwrap_or(0));
    indices.into_iter().fold(kind, |channel, index| channel.wrapping_mul(0x1_0000_01b3).wrapping_add(index))
}

/// Returns the JSON of a text that is present and not empty.
fn text_json(text: Option<&RawValue>) -> Option<String> {
    text.filter(|text| is_nonempty(Some(text))).map(|text| text.get().to_owned())
}

/// Token counts under either API's names.
fn usage(fields: &RawObject<'_>) -> Option<EngineUsage> {
    let TokenCounts { prompt, cached, completion, .. } = fields.value("usage")?;
    Some(EngineUsage::of(prompt.unwrap_or(0), completion.unwrap_or(0), cached))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(payload: &str) -> ApiEvent {
        ApiEvent::read(payload.as_bytes()).unwrap()
    }

    #[test]
    fn messages_are_read() {
        let start = event(
            r#"{"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":9,"cache_read_input_tokens":4,"output_tokens":1}}}"#,
        );
        assert_eq!((start.id.as_deref(), start.usage), (Some("msg_1"), Some(EngineUsage::of(13, 1, Some(4)))));
        let delta = event(r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}"#);
        assert_eq!((delta.text.as_deref(), delta.done), (Some("\"Hi\""), false));
        let end = event(r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}}"#);
        assert_eq!(
            (end.finish_reason.as_deref(), end.usage.map(|usage| usage.completion_tokens)),
            (Some("end_turn"), Some(7))
        );
        assert!(event(r#"{"type":"message_stop"}"#).done);
        assert!(event(r#"{"type":"error","error":{"type":"overloaded_error"}}"#).error);
        let whole = event(
            r#"{"type":"message","id":"m","content":[{"type":"text","text":"x"}],"stop_reason":"max_tokens","usage":{"input_tokens":1,"output_tokens":2}}"#,
        );
        assert!(whole.done && whole.text.is_some());
    }

    #[test]
    fn responses_are_read() {
        let delta = event(r#"{"type":"response.output_text.delta","delta":"Hi"}"#);
        assert_eq!(delta.text.as_deref(), Some("\"Hi\""));
        let created =
            event(r#"{"type":"response.created","response":{"id":"resp_1","status":"in_progress","usage":null}}"#);
        assert_eq!((created.id.as_deref(), created.done, created.text), (Some("resp_1"), false, None));
        let end = event(
            r#"{"type":"response.completed","response":{"id":"resp_1","status":"completed","usage":{"input_tokens":3,"output_tokens":5,"input_tokens_details":{"cached_tokens":2}}}}"#,
        );
        assert_eq!((end.done, end.usage), (true, Some(EngineUsage::of(3, 5, Some(2)))));
        let whole = event(
            r#"{"object":"response","id":"r","status":"incomplete","output":[{"type":"message"}],"usage":{"input_tokens":1,"output_tokens":2}}"#,
        );
        assert_eq!((whole.done, whole.finish_reason.as_deref()), (true, Some("incomplete")));
    }

    #[test]
    fn engine_specific_responses_are_read() {
        let tgi = event(
            r#"{"index":1,"token":{"id":42,"text":" a","logprob":-0.1,"special":false},"generated_text":null,"details":null}"#,
        );
        assert_eq!((tgi.token_ids, tgi.text.as_deref(), tgi.done), (Some(vec![42]), Some("\" a\""), false));
        let last = event(
            r#"{"index":2,"token":{"id":2,"text":"</s>","special":true},"generated_text":" a","details":{"finish_reason":"eos_token","generated_tokens":2,"input_length":5}}"#,
        );
        assert_eq!(
            (last.done, last.finish_reason.as_deref(), last.usage),
            (true, Some("eos_token"), Some(EngineUsage::of(5, 2, None)))
        );
        let llama = event(r#"{"content":" a","stop":false,"id_slot":0,"tokens":[7],"tokens_predicted":1}"#);
        assert_eq!((llama.token_ids, llama.done), (Some(vec![7]), false));
        let end = event(r#"{"content":"","stop":true,"stop_type":"limit","tokens_predicted":8,"tokens_evaluated":3}"#);
        assert_eq!((end.done, end.usage), (true, Some(EngineUsage::of(3, 8, None))));
        let sglang = event(
            r#"{"text":"ab","meta_info":{"id":"x","prompt_tokens":4,"completion_tokens":2,"cached_tokens":1,"finish_reason":{"type":"stop","matched":2}}}"#,
        );
        assert_eq!((sglang.done, sglang.usage), (true, Some(EngineUsage::of(4, 2, Some(1)))));
    }

    #[test]
    fn other_json_has_no_content() {
        assert_eq!(ApiEvent::read(b"[1]"), None);
        assert_eq!(event(r#"{"data":[],"usage":{"prompt_tokens":8}}"#).usage, Some(EngineUsage::of(8, 0, None)));
        assert_eq!(event(r#"{"type":"ping"}"#), ApiEvent::default());
    }
}
