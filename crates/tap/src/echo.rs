//! Text of a request that its response repeats (`echo`), as opposed to generated text.
//!
//! A completion begins with its prompt, unless ids are requested: then the engine leaves it out and the tap puts it
//! back. A chat begins with its last message, if that is the assistant's; ids or not, it is an event
//! of its own, or the beginning of the content.
//!
//! Limits: a prompt of ids is repeated as text, which only a tokenizer knows, so such a request is not amended.
//!
//! See docs/decisions/0028-echo-is-amended-too.md.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::request::RequestFields;

/// The prompts that a completion repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EchoedPrompts {
    /// Each as JSON text without its quotes, escaped as the engine escapes it.
    prompts: Vec<String>,
    choices_per_prompt: u32,
}

impl EchoedPrompts {
    /// Reads the prompts of a completion; `None` if they are not text, or if it is not certain that they are repeated.
    pub(super) fn of(requested: &RequestFields<'_>) -> Option<Self> {
        let prompt =
            requested.get("prompt").filter(|_| requested.get("echo").is_some_and(|echo| echo.get() == "true"))?.get();
        let texts: Vec<String> = match serde_json::from_str::<String>(prompt) {
            Ok(text) => vec![text],
            Err(_) => serde_json::from_str(prompt).ok()?,
        };
        let spelled = texts.iter().map(|text| {
            let quoted = serde_json::to_string(text).ok()?;
            Some(quoted.strip_prefix('"')?.strip_suffix('"')?.to_owned())
        });
        let prompts = spelled.collect::<Option<Vec<String>>>()?;
        Some(Self { prompts, choices_per_prompt: requested.choices_per_prompt() })
    }

    pub(super) fn of_choice(&self, index: u32) -> Option<&str> {
        let prompt = usize::try_from(index / self.choices_per_prompt).ok()?;
        self.prompts.get(prompt).map(String::as_str)
    }
}

/// Returns true if a chat's response begins with its last message.
pub(super) fn repeats_last_message(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Chat<'a> {
        #[serde(borrow, default)]
        messages: Vec<EchoMessage<'a>>,
        add_generation_prompt: Option<bool>,
    }
    #[derive(Deserialize)]
    struct EchoMessage<'a> {
        #[serde(default)]
        role: String,
        #[serde(borrow, default)]
        content: Option<&'a RawValue>,
    }
    let Ok(chat) = serde_json::from_slice::<Chat<'_>>(body) else { return false };
    let opens_turn = chat.add_generation_prompt.unwrap_or(true);
    chat.messages.last().is_some_and(|last| {
        let has_content = last.content.is_some_and(|content| !matches!(content.get(), "null" | "\"\"" | "[]"));
        has_content && (!opens_turn || last.role == "assistant")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_escaped_as_the_engine_escapes_them() {
        let body = r#"{"prompt":["a\n\"q\u0001\u2028é\/","b"],"n":2,"echo":true}"#;
        let echoed = EchoedPrompts::of(&RequestFields::read(body.as_bytes()).unwrap()).unwrap();
        assert_eq!(echoed.of_choice(1), Some("a\\n\\\"q\\u0001\u{2028}é/"));
        assert_eq!((echoed.of_choice(2), echoed.of_choice(4)), (Some("b"), None));
        for other in [
            r#"{"prompt":[1,2],"echo":true}"#,
            r#"{"prompt":[[1]],"echo":true}"#,
            r#"{"prompt":"a","echo":1}"#,
            r#"{"prompt":"\ud800","echo":true}"#,
            r#"{"prompt":"a"}"#,
        ] {
            assert_eq!(EchoedPrompts::of(&RequestFields::read(other.as_bytes()).unwrap()), None, "{other}");
        }
    }

    #[test]
    fn a_chat_repeats_a_last_message_of_the_assistant() {
        let repeats = |rest: &str, role: &str, content: &str| {
            let body = format!(r#"{{"messages":[{{"role":"{role}","content":{content}}}]{rest}}}"#);
            repeats_last_message(body.as_bytes())
        };
        assert!(repeats("", "assistant", "\"x\""));
        assert!(repeats(r#","add_generation_prompt":false"#, "user", r#"[{"type":"text","text":"x"}]"#));
        assert!(
            !repeats("", "user", "\"x\"") && !repeats("", "assistant", "\"\"") && !repeats("", "assistant", "null")
        );
        assert!(!repeats_last_message(b"{}") && !repeats_last_message(b"["));
    }
}
