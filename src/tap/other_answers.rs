//! Events and responses of other APIs than chats and completions, read by their shape: Anthropic's messages, OpenAI's
//! responses, embeddings, and the engines' own (`/generate` of TGI and SGLang, `/completion` of llama.cpp).
//!
//! Limits: enough for shapes and times, and for ids where the response names them. One choice each; of SGLang's cumulative
//! text the last event counts.

use serde_json::value::RawValue;

use super::event::{Usage, ids, says};
use crate::{
    api::answers::{
        Counts,
        words::{DELTA, ELSEWHERE},
    },
    api::{ends_response, is_last_event_type},
    net::wire::RawObject,
};

/// What one event, or a whole response, adds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) id: Option<String>,
    /// The new text, as JSON; `None` where there is none.
    pub(super) words: Option<String>,
    /// The new tokens, where it names them.
    pub(super) ids: Option<Vec<u32>>,
    pub(super) finish: Option<String>,
    pub(super) usage: Option<Usage>,
    /// The response is complete.
    pub(super) done: bool,
    pub(super) error: bool,
}

impl Said {
    /// Reads a payload; `None` where it is no JSON object.
    pub(super) fn read(payload: &[u8]) -> Option<Self> {
        let fields = &RawObject::read(payload)?;
        let kind: String = fields.value("type").unwrap_or_default();
        let mut said = Self { id: fields.value("id"), usage: usage(fields), ..Self::default() };
        said.error = says(fields.get("error")) || kind == "error";
        if kind.starts_with("response.") || fields.value::<String>("object").as_deref() == Some("response") {
            said.of_responses(fields, &kind);
        } else if fields.get("token").or(fields.get("generated_text")).is_some() {
            said.of_tgi(fields);
        } else if let Some(info) = fields.get("meta_info") {
            said.words = spoken(fields.get("text"));
            said.of_sglang(info);
        } else if fields.get("stop").is_some() {
            said.of_llama_cpp(fields);
        } else {
            said.of_messages(fields, &kind);
        }
        Some(said)
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
                self.words = spoken(fields.get("content"));
                self.finish = fields.value("stop_reason");
            }
            _ => {
                let delta = fields.object(DELTA).unwrap_or_default();
                self.words = ELSEWHERE.iter().find_map(|(name, _)| spoken(delta.get(name)));
                self.finish = delta.value("stop_reason");
            }
        }
    }

    fn of_responses(&mut self, fields: &RawObject<'_>, kind: &str) {
        if kind.ends_with(".delta") {
            self.words = spoken(fields.get(DELTA));
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
            self.finish = Some(status);
        }
        if kind.is_empty() {
            self.words = spoken(whole.get("output"));
        }
    }

    fn of_tgi(&mut self, fields: &RawObject<'_>) {
        let details = fields.object("details");
        match fields.object("token") {
            Some(token) => {
                self.ids = token.value("id").map(|id| vec![id]);
                self.words = spoken(token.get("text"));
            }
            None => {
                self.words = spoken(fields.get("generated_text"));
                let tokens: Vec<RawObject<'_>> =
                    details.as_ref().and_then(|details| details.value("tokens")).unwrap_or_default();
                let named = tokens.iter().map(|token| token.value("id")).collect::<Option<Vec<u32>>>();
                self.ids = named.filter(|ids| !ids.is_empty());
            }
        }
        self.done = says(fields.get("generated_text"));
        if let Some(details) = details {
            self.finish = details.value("finish_reason");
            let count = |name: &str| details.value(name).unwrap_or(0);
            self.usage = Some(Usage::of(count("input_length"), count("generated_tokens"), None));
        }
    }

    fn of_sglang(&mut self, info: &RawValue) {
        let Some(info) = RawObject::read(info.get().as_bytes()) else { return };
        self.id = info.value("id");
        let count = |name: &str| info.value(name).unwrap_or(0);
        self.usage = Some(Usage::of(count("prompt_tokens"), count("completion_tokens"), info.value("cached_tokens")));
        self.finish = info.object("finish_reason").and_then(|reason| reason.value("type"));
        self.done = self.finish.is_some();
    }

    fn of_llama_cpp(&mut self, fields: &RawObject<'_>) {
        self.words = spoken(fields.get("content"));
        self.ids = ids(fields.get("tokens")).filter(|ids| !ids.is_empty());
        self.done = fields.value("stop") == Some(true);
        if self.done {
            self.finish = fields.value("stop_type");
            let (prompt, output) = (fields.value("tokens_evaluated").unwrap_or(0), fields.value("tokens_predicted"));
            self.usage = output.map(|output| Usage::of(prompt, output, None));
        }
    }
}

fn spoken(words: Option<&RawValue>) -> Option<String> {
    words.filter(|words| says(Some(words))).map(|words| words.get().to_owned())
}

/// Token counts under either API's names.
fn usage(fields: &RawObject<'_>) -> Option<Usage> {
    let Counts { prompt, cached, completion } = fields.value("usage")?;
    Some(Usage::of(prompt.unwrap_or(0), completion.unwrap_or(0), cached))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(payload: &str) -> Said {
        Said::read(payload.as_bytes()).unwrap()
    }

    #[test]
    fn messages_are_read() {
        let start = said(
            r#"{"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":9,"cache_read_input_tokens":4,"output_tokens":1}}}"#,
        );
        assert_eq!((start.id.as_deref(), start.usage), (Some("msg_1"), Some(Usage::of(13, 1, Some(4)))));
        let delta = said(r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}"#);
        assert_eq!((delta.words.as_deref(), delta.done), (Some("\"Hi\""), false));
        let end = said(r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}}"#);
        assert_eq!(
            (end.finish.as_deref(), end.usage.map(|usage| usage.completion_tokens)),
            (Some("end_turn"), Some(7))
        );
        assert!(said(r#"{"type":"message_stop"}"#).done);
        assert!(said(r#"{"type":"error","error":{"type":"overloaded_error"}}"#).error);
        let whole = said(
            r#"{"type":"message","id":"m","content":[{"type":"text","text":"x"}],"stop_reason":"max_tokens","usage":{"input_tokens":1,"output_tokens":2}}"#,
        );
        assert!(whole.done && whole.words.is_some());
    }

    #[test]
    fn responses_are_read() {
        let delta = said(r#"{"type":"response.output_text.delta","delta":"Hi"}"#);
        assert_eq!(delta.words.as_deref(), Some("\"Hi\""));
        let created =
            said(r#"{"type":"response.created","response":{"id":"resp_1","status":"in_progress","usage":null}}"#);
        assert_eq!((created.id.as_deref(), created.done, created.words), (Some("resp_1"), false, None));
        let end = said(
            r#"{"type":"response.completed","response":{"id":"resp_1","status":"completed","usage":{"input_tokens":3,"output_tokens":5,"input_tokens_details":{"cached_tokens":2}}}}"#,
        );
        assert_eq!((end.done, end.usage), (true, Some(Usage::of(3, 5, Some(2)))));
        let whole = said(
            r#"{"object":"response","id":"r","status":"incomplete","output":[{"type":"message"}],"usage":{"input_tokens":1,"output_tokens":2}}"#,
        );
        assert_eq!((whole.done, whole.finish.as_deref()), (true, Some("incomplete")));
    }

    #[test]
    fn engines_own_answers_are_read() {
        let tgi = said(
            r#"{"index":1,"token":{"id":42,"text":" a","logprob":-0.1,"special":false},"generated_text":null,"details":null}"#,
        );
        assert_eq!((tgi.ids, tgi.words.as_deref(), tgi.done), (Some(vec![42]), Some("\" a\""), false));
        let last = said(
            r#"{"index":2,"token":{"id":2,"text":"</s>","special":true},"generated_text":" a","details":{"finish_reason":"eos_token","generated_tokens":2,"input_length":5}}"#,
        );
        assert_eq!(
            (last.done, last.finish.as_deref(), last.usage),
            (true, Some("eos_token"), Some(Usage::of(5, 2, None)))
        );
        let llama = said(r#"{"content":" a","stop":false,"id_slot":0,"tokens":[7],"tokens_predicted":1}"#);
        assert_eq!((llama.ids, llama.done), (Some(vec![7]), false));
        let end = said(r#"{"content":"","stop":true,"stop_type":"limit","tokens_predicted":8,"tokens_evaluated":3}"#);
        assert_eq!((end.done, end.usage), (true, Some(Usage::of(3, 8, None))));
        let sglang = said(
            r#"{"text":"ab","meta_info":{"id":"x","prompt_tokens":4,"completion_tokens":2,"cached_tokens":1,"finish_reason":{"type":"stop","matched":2}}}"#,
        );
        assert_eq!((sglang.done, sglang.usage), (true, Some(Usage::of(4, 2, Some(1)))));
    }

    #[test]
    fn other_json_is_no_harm() {
        assert_eq!(Said::read(b"[1]"), None);
        assert_eq!(said(r#"{"data":[],"usage":{"prompt_tokens":8}}"#).usage, Some(Usage::of(8, 0, None)));
        assert_eq!(said(r#"{"type":"ping"}"#), Said::default());
    }
}
