//! The prompt module against responses of vLLM 0.32 (`tests/goldens/vllm-0.32.0/prompt.jsonl`), with the Qwen3 tokenizer.
//!
//! Without that tokenizer these tests are skipped, and fail in CI: see `tokenizers`.

use std::fs;

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value};
use vllm_vcr::text::prompt::{Conversation, SkipSpecial, SpecialTokens, Tokenizer};

use crate::support::{tokenizers::qwen3, tree::root};

/// One line of the golden file.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Golden {
    /// A chat request's body and its ids.
    Chat { case: String, body: Body, ids: Vec<u32>, token_strs: Option<Vec<String>> },
    /// A completion's prompt and its ids.
    Prompt { case: String, prompt: String, ids: Vec<u32>, token_strs: Option<Vec<String>> },
    /// The events of a stream: the ids and the text of each.
    Deltas { case: String, prompt_ids: Vec<u32>, events: Vec<(Vec<u32>, String)>, stop_token: Option<u32> },
    /// A stream of known text whose ids were not recorded: its events' texts.
    Script {
        case: String,
        script: String,
        events: Vec<String>,
        finish: String,
        body: Option<Body>,
        prompt: Option<String>,
        max_tokens: Option<usize>,
        stop_token: Option<u32>,
    },
}

#[derive(Deserialize)]
struct Body {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    #[serde(default)]
    chat_template_kwargs: Map<String, Value>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
}

fn goldens() -> Vec<Golden> {
    let lines = fs::read_to_string(root().join("tests/goldens/vllm-0.32.0/prompt.jsonl")).unwrap();
    lines.split('\n').filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn chat_ids(tokenizer: &Tokenizer, body: &Body) -> Vec<u32> {
    let conversation = Conversation {
        messages: &body.messages,
        tools: body.tools.as_deref(),
        documents: None,
        add_generation_prompt: body.add_generation_prompt.unwrap_or(true),
        continue_final_message: body.continue_final_message.unwrap_or(false),
        takes_media: false,
        kwargs: &body.chat_template_kwargs,
    };
    let text = tokenizer.chat_template().unwrap().render(&conversation).unwrap();
    tokenizer.encode(&text, SpecialTokens::Skip).unwrap()
}

fn check_ids(tokenizer: &Tokenizer, case: &str, actual: &[u32], expected: &[u32], strings: Option<&Vec<String>>) {
    let shown = |ids| tokenizer.decode(ids, SkipSpecial::Keep).unwrap();
    assert_eq!(actual, expected, "{case}: {:?} is not {:?}", shown(actual), shown(expected));
    if let Some(strings) = strings {
        let actual: Vec<_> = actual.iter().map(|id| tokenizer.token_str(*id).unwrap()).collect();
        assert_eq!(&actual, strings, "{case}");
    }
}

#[test]
fn prompts_have_vllms_ids() {
    let Some(tokenizer) = qwen3() else { return };
    let mut compared = 0;
    for golden in goldens() {
        match golden {
            Golden::Chat { case, body, ids, token_strs } => {
                check_ids(&tokenizer, &case, &chat_ids(&tokenizer, &body), &ids, token_strs.as_ref());
            }
            Golden::Prompt { case, prompt, ids, token_strs } => {
                let actual = tokenizer.encode(&prompt, SpecialTokens::Add).unwrap();
                check_ids(&tokenizer, &case, &actual, &ids, token_strs.as_ref());
            }
            Golden::Deltas { .. } | Golden::Script { .. } => continue,
        }
        compared += 1;
    }
    assert!(compared >= 20, "only {compared} cases");
}

#[test]
fn deltas_are_vllms_event_by_event() {
    let Some(tokenizer) = qwen3() else { return };
    let mut compared = 0;
    for golden in goldens() {
        let Golden::Deltas { case, prompt_ids, events, stop_token } = golden else { continue };
        let mut detokenizer = tokenizer.detokenizer(&prompt_ids, SkipSpecial::Skip);
        for (number, (ids, expected)) in events.iter().enumerate() {
            let shown = ids.iter().filter(|id| Some(**id) != stop_token);
            let text: String = shown.map(|id| detokenizer.push(*id).unwrap()).collect();
            assert_eq!(&text, expected, "{case}, event {number}");
            compared += 1;
        }
    }
    assert!(compared >= 350, "only {compared} events");
}

/// Several tokens may share an event here, so each event must be the join of the next few deltas.
#[test]
fn split_characters_wait_for_their_last_token() {
    let Some(tokenizer) = qwen3() else { return };
    for golden in goldens() {
        let Golden::Script { case, script, events, finish, body, prompt, max_tokens, stop_token } = golden else {
            continue;
        };
        let prompt_ids = match (&body, &prompt) {
            (Some(body), _) => chat_ids(&tokenizer, body),
            (_, prompt) => tokenizer.encode(prompt.as_deref().unwrap(), SpecialTokens::Add).unwrap(),
        };
        let mut ids = tokenizer.encode(&script, SpecialTokens::Skip).unwrap();
        ids.truncate(max_tokens.unwrap_or(usize::MAX));
        if let Some(at) = ids.iter().position(|id| Some(*id) == stop_token) {
            ids.truncate(at);
        }
        let mut detokenizer = tokenizer.detokenizer(&prompt_ids, SkipSpecial::Skip);
        let mut deltas: Vec<String> = ids.iter().map(|id| detokenizer.push(*id).unwrap()).collect();
        assert!(deltas.iter().all(|delta| !delta.contains('\u{fffd}')), "{case}: {deltas:?}");
        if finish == "stop" {
            deltas.push(String::new());
        }
        let mut rest = deltas.iter();
        for (number, event) in events.iter().enumerate() {
            let mut text = rest.next().unwrap_or_else(|| panic!("{case}: no token for event {number}")).clone();
            while text.len() < event.len() {
                text += rest.next().unwrap_or_else(|| panic!("{case}: no token for event {number}"));
            }
            assert_eq!(&text, event, "{case}, event {number} of {deltas:?}");
        }
        assert!(rest.all(String::is_empty), "{case}: text left over");
    }
}

#[test]
fn a_tokenizer_tells_its_special_ids() {
    let Some(tokenizer) = qwen3() else { return };
    assert_eq!(tokenizer.eos_ids(), [151_645, 151_643]);
    assert_eq!(tokenizer.vocab_size(), 151_669);
    assert_eq!(tokenizer.token_id("<|im_end|>"), Some(151_645));
    let ordinary = tokenizer.ordinary_ids();
    assert!(ordinary.len() > 100_000 && ordinary.iter().all(|id| *id < 151_643));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// A prompt that ends in U+FFFD is left out: upstream repeats such a prompt with the first delta, and so do we.
    #[test]
    fn deltas_join_to_the_text(text in "\\PC{0,40}|(?s:.{0,40})", prompt in "\\PC{0,20}") {
        thread_local! { static TOKENIZER: Option<Tokenizer> = qwen3(); }
        TOKENIZER.with(|tokenizer| {
            let Some(tokenizer) = tokenizer else { return Ok(()) };
            prop_assume!(!prompt.ends_with('\u{fffd}'));
            let ids = tokenizer.encode(&text, SpecialTokens::Skip).unwrap();
            let mut detokenizer = tokenizer.detokenizer(&tokenizer.encode(&prompt, SpecialTokens::Add).unwrap(), SkipSpecial::Keep);
            let joined: String = ids.iter().map(|id| detokenizer.push(*id).unwrap()).collect();
            let whole = tokenizer.decode(&ids, SkipSpecial::Keep).unwrap();
            prop_assert!(whole.starts_with(&joined), "{joined:?} of {whole:?}");
            prop_assert!(whole == joined || text.ends_with('\u{fffd}'), "{joined:?} of {whole:?}");
            Ok(())
        })?;
    }
}
