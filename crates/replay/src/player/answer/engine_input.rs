//! A request and its recorded response as a simulated engine computes them: token ids of prompts and outputs.
//!
//! With the model's tokenizer a prompt is rendered and tokenized as the engine does. Without one, or where its template refuses a
//! request, each id stands for four bytes of text, message by message, and there are as many as were recorded: prompts that
//! begin with the same messages share their blocks.
//!
//! Limits: without a tokenizer a conversation shares as many tokens as its text has groups of four bytes, and its answer's blocks
//! with the next turn only where the recorded number is that of the text. A response that goes on with a stored one is computed
//! without it.
//!
//! See docs/decisions/0104-recorded-responses-pass-through-the-engine.md.

use serde_json::Value;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::player::{
    answer::generated::{BYTES_PER_TOKEN, texts_of},
    decide::cross::chat_of,
    record::assemble,
};
use api::{Endpoint, EventOptions, template_kwargs};
use recording::trace::Response;
use text::prompt::{SpecialTokens, Tokenizer};

/// Ids of a message's role and borders.
const AROUND_MESSAGE: u64 = 4;

/// Ids are below this, as those of today's vocabularies.
const VOCABULARY: u64 = 1 << 17;

/// Fields of a conversation, in the order in which a template has them.
const CONVERSATION: [&str; 5] = ["system", "instructions", "tools", "messages", "input"];

/// A request as a simulated engine computes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EngineInput {
    /// Ids of each prompt; none is empty.
    pub prompts: Vec<Vec<u32>>,
    /// Ids of each choice's output, the choices of the first prompt first, as many of each prompt.
    pub outputs: Vec<Vec<u32>>,
    /// Its priority; lower is sooner.
    pub priority: i64,
    /// Text that keeps its blocks apart.
    pub cache_salt: Option<String>,
    /// Its session, for KV events.
    pub session_id: Option<String>,
    /// Whether blocks that it finds cached are events.
    pub reports_cached_blocks: bool,
}

/// An exchange that an engine is to compute.
#[derive(Debug, Clone)]
pub struct EngineExchange<'a> {
    /// The request's path.
    pub path: &'a str,
    /// Its body as it came; empty for one that was made here.
    pub bytes: &'a [u8],
    /// Its body.
    pub body: &'a Value,
    /// Its header `x-session-id`.
    pub session: Option<&'a str>,
    /// Tokens of the prompt, as recorded; 0 where that is unknown.
    pub prompt_tokens: u32,
    /// Tokens and text of each choice.
    pub outputs: Vec<(u32, String)>,
}

impl EngineInput {
    /// Makes ids; `None` where a prompt with its output is longer than `most` tokens.
    #[must_use]
    pub fn of(exchange: &EngineExchange<'_>, tokenizer: Option<&Tokenizer>, most: u32) -> Option<Self> {
        let is_short = |tokens: u32| tokens <= most;
        if !is_short(exchange.prompt_tokens) || !exchange.outputs.iter().all(|(tokens, _)| is_short(*tokens)) {
            return None;
        }
        let output = |(tokens, text): &(u32, String)| {
            let exact = tokenizer.and_then(|tokenizer| tokenizer.encode(text, SpecialTokens::Skip).ok());
            fitted(exact.unwrap_or_else(|| text_ids(text)), *tokens)
        };
        let body = exchange.body;
        let options = body.as_object().map(EventOptions::of_body).unwrap_or_default();
        let input = Self {
            prompts: exchange.prompts(tokenizer),
            outputs: exchange.outputs.iter().map(output).collect(),
            priority: body.get("priority").and_then(Value::as_i64).unwrap_or(0),
            cache_salt: body.get("cache_salt").and_then(Value::as_str).map(str::to_owned),
            session_id: options.session_id(exchange.session),
            reports_cached_blocks: options.reports_cached_blocks,
        };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        // A prompt leaves room for a token.
        let fits = |(prompt, output): (&[u32], &[u32])| prompt.len() + output.len().max(1) <= most;
        let is_computed = input.choices().all(fits);
        is_computed.then_some(input)
    }

    /// The prompt and the output of each choice.
    pub fn choices(&self) -> impl Iterator<Item = (&[u32], &[u32])> {
        let of_each = self.outputs.len().div_ceil(self.prompts.len().max(1)).max(1);
        let prompt = move |at: usize| self.prompts.get(at / of_each).map(Vec::as_slice).unwrap_or_default();
        self.outputs.iter().enumerate().map(move |(at, output)| (prompt(at), output.as_slice()))
    }
}

impl EngineExchange<'_> {
    fn prompts(&self, tokenizer: Option<&Tokenizer>) -> Vec<Vec<u32>> {
        let endpoint = Endpoint::of_path(self.path);
        let prompts: Vec<Vec<u32>> = match self.body.get("prompt").filter(|_| endpoint == Endpoint::Completions) {
            Some(Value::Array(many)) if many.first().is_some_and(|first| !first.is_number()) => {
                many.iter().map(|prompt| completion_ids(tokenizer, prompt, 0)).collect()
            }
            Some(prompt) => vec![completion_ids(tokenizer, prompt, self.prompt_tokens)],
            None => {
                let exact = tokenizer.and_then(|tokenizer| self.chat_ids(endpoint, tokenizer));
                vec![exact.unwrap_or_else(|| fitted_prompt(conversation_ids(self.body), self.prompt_tokens))]
            }
        };
        let nothing_is_one = |ids: Vec<u32>| if ids.is_empty() { vec![0] } else { ids };
        prompts.into_iter().map(nothing_is_one).collect()
    }

    /// Ids of a conversation as the tokenizer's template renders it; `None` where it cannot.
    fn chat_ids(&self, endpoint: Endpoint, tokenizer: &Tokenizer) -> Option<Vec<u32>> {
        let of_family = matches!(endpoint, Endpoint::Messages | Endpoint::Responses);
        let made = if of_family { Some(chat_of(endpoint, self.bytes)?.0) } else { None };
        let chat = made.as_ref().or(self.body.as_object())?;
        tokenizer.ids_of_chat(chat, &template_kwargs(chat))
    }
}

/// Ids of a completion's prompt, which may be ids already.
fn completion_ids(tokenizer: Option<&Tokenizer>, prompt: &Value, recorded: u32) -> Vec<u32> {
    match prompt {
        Value::String(text) => {
            let exact = tokenizer.and_then(|tokenizer| tokenizer.encode(text, SpecialTokens::Add).ok());
            exact.unwrap_or_else(|| fitted_prompt(text_ids(text), recorded))
        }
        given => serde_json::from_value(given.clone()).unwrap_or_else(|_| fitted_prompt(Vec::new(), recorded)),
    }
}

/// Ids of a conversation by its text, and the beginning of the answer.
fn conversation_ids(body: &Value) -> Vec<u32> {
    let mut ids = Vec::new();
    for part in CONVERSATION.iter().filter_map(|name| body.get(*name)) {
        match part {
            Value::Array(messages) => messages.iter().for_each(|message| {
                let role = message.get("role").or_else(|| message.get("type")).and_then(Value::as_str);
                ids.extend(border_ids(role.unwrap_or("user")));
                ids.extend(text_ids(&texts_of(message)));
            }),
            text => {
                ids.extend(border_ids("system"));
                ids.extend(text_ids(&texts_of(text)));
            }
        }
    }
    ids.extend(border_ids("assistant"));
    ids
}

fn border_ids(role: &str) -> impl Iterator<Item = u32> {
    (1..=AROUND_MESSAGE).map(move |at| id_of(xxh3_64_with_seed(role.as_bytes(), at)))
}

fn text_ids(text: &str) -> Vec<u32> {
    text.as_bytes().chunks(BYTES_PER_TOKEN).map(|bytes| id_of(xxh3_64(bytes))).collect()
}

fn id_of(hash: u64) -> u32 {
    u32::try_from(hash % VOCABULARY).unwrap_or_default()
}

/// As many ids as were recorded, where that is known.
fn fitted_prompt(ids: Vec<u32>, recorded: u32) -> Vec<u32> {
    if recorded == 0 { ids } else { fitted(ids, recorded) }
}

/// So many ids: the last one stands for those that are too many, further ones are made of all.
fn fitted(mut ids: Vec<u32>, wanted: u32) -> Vec<u32> {
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
    if ids.len() == wanted {
        return ids;
    }
    let kept = ids.len().min(wanted.saturating_sub(1));
    let rest: Vec<u8> =
        ids.iter().skip(if wanted > ids.len() { 0 } else { kept }).flat_map(|id| id.to_le_bytes()).collect();
    ids.truncate(kept.min(wanted));
    let missing = (ids.len()..wanted).zip(0_u64..);
    ids.extend(missing.map(|(_, seed)| id_of(xxh3_64_with_seed(&rest, seed))));
    ids
}

/// Texts of the choices of a recorded response; none where it cannot be read.
#[must_use]
pub fn response_texts(path: &str, response: &Response) -> Vec<String> {
    let answer = assemble::answer(Endpoint::of_path(path), &response.content);
    answer.map(|answer| answer.choices().iter().map(|choice| choice.text()).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn input(path: &str, body: &Value, prompt_tokens: u32, outputs: &[(u32, &str)]) -> Option<EngineInput> {
        let bytes = body.to_string();
        let outputs = outputs.iter().map(|(tokens, text)| (*tokens, (*text).to_owned())).collect();
        let exchange = EngineExchange { path, bytes: bytes.as_bytes(), body, session: None, prompt_tokens, outputs };
        EngineInput::of(&exchange, None, 1000)
    }

    fn chat(messages: &[(&str, &str)]) -> Value {
        let messages: Vec<Value> = messages.iter().map(|(role, text)| json!({"role": role, "content": text})).collect();
        json!({"messages": messages})
    }

    fn prompt(body: &Value, tokens: u32) -> Vec<u32> {
        input("/v1/chat/completions", body, tokens, &[(1, "x")]).unwrap().prompts.remove(0)
    }

    fn shared(one: &[u32], other: &[u32]) -> usize {
        one.iter().zip(other).take_while(|(one, other)| one == other).count()
    }

    #[test]
    fn a_turn_begins_as_the_one_before_whatever_their_recorded_tokens() {
        let words = "One sentence after the other, all of them of the same kind. ".repeat(5);
        let first = chat(&[("system", &words), ("user", "Hello there.")]);
        let second = chat(&[("system", &words), ("user", "Hello there."), ("assistant", "Hi."), ("user", "Again!")]);
        for (one, other) in [(0, 0), (80, 96), (60, 96), (200, 300)] {
            let (a, b) = (prompt(&first, one), prompt(&second, other));
            let shared = shared(&a, &b);
            let all = a.len().min(4 + 75 + 4 + 3 + 4);
            assert!(shared >= all - 1, "{shared} of {all} with {one} and {other}");
            assert!(one == 0 || a.len() == usize::try_from(one).unwrap());
        }
        let another = chat(&[("system", &words), ("user", "Hello where?")]);
        assert_eq!(shared(&prompt(&first, 60), &prompt(&another, 60)), 59, "what was cut off distinguishes them");
        assert_eq!(shared(&prompt(&first, 100), &prompt(&another, 100)), 4 + 75 + 4 + 1);
    }

    #[test]
    fn an_answer_is_in_the_next_turn_where_the_recorded_number_is_that_of_the_text() {
        let first = input("/v1/chat/completions", &chat(&[("user", "12345678")]), 0, &[(3, "abcdefghijkl")]).unwrap();
        let second = prompt(&chat(&[("user", "12345678"), ("assistant", "abcdefghijkl"), ("user", "9")]), 0);
        let whole = [first.prompts[0].as_slice(), &first.outputs[0]].concat();
        assert_eq!(whole, second[..whole.len()]);
    }

    #[test]
    fn each_prompt_of_a_completion_has_its_choices_and_ids_stay() {
        let body = json!({"prompt": ["abcdefgh", [7, 8, 9]], "priority": 3, "cache_salt": "s", "session_id": "me"});
        let made = input("/v1/completions", &body, 50, &[(2, "a"), (1, "b"), (1, "c"), (2, "d")]).unwrap();
        let choices: Vec<(usize, usize)> =
            made.choices().map(|(prompt, output)| (prompt.len(), output.len())).collect();
        assert_eq!(choices, [(2, 2), (2, 1), (3, 1), (3, 2)]);
        assert_eq!((made.prompts[1].as_slice(), made.priority), (&[7, 8, 9][..], 3));
        assert_eq!((made.cache_salt.as_deref(), made.session_id.as_deref()), (Some("s"), Some("me")));
        let one = input("/v1/completions", &json!({"prompt": [1, 2]}), 50, &[(1, "")]).unwrap();
        assert_eq!(one.prompts, [[1, 2]]);
        assert_eq!(input("/v1/completions", &json!({}), 0, &[(1, "")]).unwrap().prompts[0].len(), 4);
    }

    #[test]
    fn what_is_too_long_is_no_input() {
        let body = chat(&[("user", "a")]);
        assert!(input("/v1/chat/completions", &body, 990, &[(10, "x")]).is_some());
        for (prompt, output) in [(990, 11), (1000, 0), (u32::MAX, 1), (1, u32::MAX)] {
            assert!(input("/v1/chat/completions", &body, prompt, &[(output, "x")]).is_none(), "{prompt} {output}");
        }
    }
}
