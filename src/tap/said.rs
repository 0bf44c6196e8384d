//! What answers of other APIs say, read by their shape: Anthropic's messages, OpenAI's responses, embeddings, and the
//! engines' own (`/generate` of TGI and SGLang, `/completion` of llama.cpp).
//!
//! Limits: enough for shapes and times, and for ids where the answer names them. One choice each; of SGLang's cumulative
//! text the last event counts.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::event::{Usage, ids, is_object, says};

/// What one event, or a whole answer, says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) id: Option<String>,
    /// The new words, as JSON text; `None` where there are none.
    pub(super) words: Option<String>,
    /// The new tokens, where it names them.
    pub(super) ids: Option<Vec<u32>>,
    pub(super) finish: Option<String>,
    pub(super) usage: Option<Usage>,
    /// The answer is complete.
    pub(super) done: bool,
    pub(super) error: bool,
}

/// All shapes in one: what an API does not have is absent.
#[derive(Debug, Default, Deserialize)]
struct Shape<'a> {
    #[serde(default, borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    object: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    id: Option<&'a RawValue>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
    #[serde(default, borrow)]
    usage: Option<&'a RawValue>,
    // Anthropic
    #[serde(default, borrow)]
    message: Option<&'a RawValue>,
    #[serde(default, borrow)]
    delta: Option<&'a RawValue>,
    #[serde(default, borrow)]
    stop_reason: Option<Cow<'a, str>>,
    // OpenAI's responses
    #[serde(default, borrow)]
    response: Option<&'a RawValue>,
    #[serde(default, borrow)]
    status: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    output: Option<&'a RawValue>,
    // TGI
    #[serde(default, borrow)]
    token: Option<&'a RawValue>,
    #[serde(default, borrow)]
    details: Option<&'a RawValue>,
    #[serde(default, borrow)]
    generated_text: Option<&'a RawValue>,
    // llama.cpp
    #[serde(default, borrow)]
    content: Option<&'a RawValue>,
    #[serde(default, borrow)]
    stop: Option<&'a RawValue>,
    #[serde(default, borrow)]
    stop_type: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    tokens: Option<&'a RawValue>,
    #[serde(default)]
    tokens_predicted: Option<u32>,
    #[serde(default)]
    tokens_evaluated: Option<u32>,
    // SGLang
    #[serde(default, borrow)]
    meta_info: Option<&'a RawValue>,
    #[serde(default, borrow)]
    text: Option<&'a RawValue>,
}

impl Said {
    /// Reads a payload; `None` where it is no JSON object, or one that contradicts every shape.
    pub(super) fn read(payload: &[u8]) -> Option<Self> {
        let shape: Shape<'_> = is_object(payload).then(|| serde_json::from_slice(payload).ok()).flatten()?;
        let kind = shape.kind.as_deref().unwrap_or_default();
        let mut said = Self { usage: shape.usage.and_then(usage), ..Self::default() };
        said.error = shape.error.is_some_and(|error| says(Some(error))) || kind == "error";
        said.id = shape.id.and_then(text);
        if kind.starts_with("response.") || shape.object.as_deref() == Some("response") {
            said.of_responses(&shape, kind);
        } else if shape.token.is_some() || shape.generated_text.is_some() {
            said.of_tgi(&shape);
        } else if shape.meta_info.is_some() {
            said.of_sglang(&shape);
        } else if shape.stop.is_some() {
            said.of_llama_cpp(&shape);
        } else {
            said.of_messages(&shape, kind);
        }
        Some(said)
    }

    fn of_messages(&mut self, shape: &Shape<'_>, kind: &str) {
        #[derive(Default, Deserialize)]
        struct Delta<'a> {
            #[serde(default, borrow)]
            text: Option<&'a RawValue>,
            #[serde(default, borrow)]
            thinking: Option<&'a RawValue>,
            #[serde(default, borrow)]
            partial_json: Option<&'a RawValue>,
            #[serde(default, borrow)]
            stop_reason: Option<Cow<'a, str>>,
        }
        #[derive(Deserialize)]
        struct Message<'a> {
            #[serde(borrow)]
            id: &'a RawValue,
            #[serde(default, borrow)]
            usage: Option<&'a RawValue>,
        }
        match kind {
            "message_start" => {
                let message = shape.message.and_then(|message| serde_json::from_str::<Message<'_>>(message.get()).ok());
                self.id = message.as_ref().and_then(|message| text(message.id));
                self.usage = message.and_then(|message| message.usage).and_then(usage);
            }
            "message_stop" => self.done = true,
            "message" => {
                self.done = true;
                self.words = spoken(shape.content);
                self.finish = shape.stop_reason.as_deref().map(str::to_owned);
            }
            _ => {
                let delta: Delta<'_> =
                    shape.delta.and_then(|delta| serde_json::from_str(delta.get()).ok()).unwrap_or_default();
                self.words = [delta.text, delta.thinking, delta.partial_json].into_iter().find_map(spoken);
                self.finish = delta.stop_reason.map(Cow::into_owned);
            }
        }
    }

    fn of_responses(&mut self, shape: &Shape<'_>, kind: &str) {
        if kind.ends_with(".delta") {
            self.words = spoken(shape.delta);
            return;
        }
        let inner = shape.response.and_then(|response| serde_json::from_str::<Shape<'_>>(response.get()).ok());
        let whole = inner.as_ref().unwrap_or(shape);
        self.id = whole.id.and_then(text);
        self.usage = whole.usage.and_then(usage);
        let status = whole.status.as_deref().unwrap_or_default();
        let is_end =
            kind.is_empty() || matches!(kind, "response.completed" | "response.incomplete" | "response.failed");
        if is_end && matches!(status, "completed" | "incomplete" | "failed" | "cancelled") {
            self.done = true;
            self.error |= status == "failed";
            self.finish = Some(status.to_owned());
        }
        if kind.is_empty() {
            self.words = spoken(whole.output);
        }
    }

    fn of_tgi(&mut self, shape: &Shape<'_>) {
        #[derive(Deserialize)]
        struct Token<'a> {
            id: u32,
            #[serde(default, borrow)]
            text: Option<&'a RawValue>,
        }
        #[derive(Deserialize)]
        struct Details<'a> {
            #[serde(default, borrow)]
            finish_reason: Option<Cow<'a, str>>,
            #[serde(default)]
            generated_tokens: u32,
            #[serde(default, borrow)]
            tokens: Vec<Token<'a>>,
            #[serde(default)]
            input_length: Option<u32>,
        }
        let details = shape.details.and_then(|details| serde_json::from_str::<Details<'_>>(details.get()).ok());
        match shape.token.and_then(|token| serde_json::from_str::<Token<'_>>(token.get()).ok()) {
            Some(token) => {
                self.ids = Some(vec![token.id]);
                self.words = spoken(token.text);
            }
            None => {
                self.words = spoken(shape.generated_text);
                let named = details.as_ref().map(|details| details.tokens.iter().map(|token| token.id).collect());
                self.ids = named.filter(|ids: &Vec<u32>| !ids.is_empty());
            }
        }
        self.done = says(shape.generated_text);
        if let Some(details) = details {
            self.finish = details.finish_reason.map(Cow::into_owned);
            self.usage = Some(Usage::of(details.input_length.unwrap_or(0), details.generated_tokens, None));
        }
    }

    fn of_sglang(&mut self, shape: &Shape<'_>) {
        #[derive(Deserialize)]
        struct Reason<'a> {
            #[serde(borrow, rename = "type")]
            kind: Cow<'a, str>,
        }
        #[derive(Deserialize)]
        struct Info<'a> {
            #[serde(default, borrow)]
            id: Option<Cow<'a, str>>,
            #[serde(default)]
            prompt_tokens: u32,
            #[serde(default)]
            completion_tokens: u32,
            #[serde(default)]
            cached_tokens: Option<u32>,
            #[serde(default, borrow)]
            finish_reason: Option<Reason<'a>>,
        }
        let Some(info) = shape.meta_info.and_then(|info| serde_json::from_str::<Info<'_>>(info.get()).ok()) else {
            return;
        };
        self.id = info.id.map(Cow::into_owned);
        self.words = spoken(shape.text);
        self.usage = Some(Usage::of(info.prompt_tokens, info.completion_tokens, info.cached_tokens));
        self.finish = info.finish_reason.map(|reason| reason.kind.into_owned());
        self.done = self.finish.is_some();
    }

    fn of_llama_cpp(&mut self, shape: &Shape<'_>) {
        self.words = spoken(shape.content);
        self.ids = ids(shape.tokens).filter(|ids| !ids.is_empty());
        self.done = shape.stop.is_some_and(|stop| stop.get() == "true");
        if self.done {
            self.finish = shape.stop_type.as_deref().map(str::to_owned);
            let (prompt, output) = (shape.tokens_evaluated.unwrap_or(0), shape.tokens_predicted);
            self.usage = output.map(|output| Usage::of(prompt, output, None));
        }
    }
}

fn spoken(words: Option<&RawValue>) -> Option<String> {
    words.filter(|words| says(Some(words))).map(|words| words.get().to_owned())
}

/// A string's text; a number's digits.
fn text(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

/// A count of tokens under either API's names.
fn usage(raw: &RawValue) -> Option<Usage> {
    #[derive(Deserialize)]
    struct Details {
        #[serde(default)]
        cached_tokens: Option<u32>,
    }
    #[derive(Deserialize)]
    struct Counts {
        #[serde(default)]
        input_tokens: Option<u32>,
        #[serde(default)]
        prompt_tokens: Option<u32>,
        #[serde(default)]
        output_tokens: Option<u32>,
        #[serde(default)]
        completion_tokens: Option<u32>,
        #[serde(default)]
        cache_read_input_tokens: Option<u32>,
        #[serde(default)]
        cache_creation_input_tokens: Option<u32>,
        #[serde(default)]
        input_tokens_details: Option<Details>,
    }
    let counts: Counts = serde_json::from_str(raw.get()).ok()?;
    let cached = counts.input_tokens_details.and_then(|details| details.cached_tokens);
    // The Messages API counts cached tokens beside `input_tokens`, the others count them among the prompt's.
    let beside = [counts.cache_read_input_tokens, counts.cache_creation_input_tokens];
    let prompt = counts.input_tokens.or(counts.prompt_tokens).unwrap_or(0);
    Some(Usage::of(
        beside.into_iter().flatten().fold(prompt, u32::saturating_add),
        counts.output_tokens.or(counts.completion_tokens).unwrap_or(0),
        cached.or(counts.cache_read_input_tokens),
    ))
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
