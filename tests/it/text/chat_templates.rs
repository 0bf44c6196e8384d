//! Conversations as vLLM 0.32.0 and transformers turn them into ids, for three tokenizers (`templates.jsonl`).
//!
//! A tokenizer that is not at hand is ignored, which is a failure in CI: see `tokenizers`.

use serde_json::{Map, Value};
use vllm_vcr::text::prompt::{Conversation, SkipSpecial, SpecialTokens, Tokenizer};

use crate::support::{tokenizers, tree};

fn goldens() -> Vec<Value> {
    let text = tree::read("tests/goldens/vllm-0.32.0/templates.jsonl");
    text.split('\n').filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn ids(tokenizer: &Tokenizer, golden: &Value) -> Result<Vec<u32>, String> {
    let none = Map::new();
    let list = |name: &str| golden[name].as_array().map(Vec::as_slice);
    let conversation = Conversation {
        messages: list("messages").unwrap(),
        tools: list("tools"),
        documents: None,
        add_generation_prompt: golden["add_generation_prompt"].as_bool().unwrap_or(true),
        continue_final_message: golden["continue_final_message"].as_bool().unwrap_or(false),
        takes_media: false,
        kwargs: golden["chat_template_kwargs"].as_object().unwrap_or(&none),
    };
    let text = tokenizer.chat_template().unwrap().render(&conversation).map_err(|error| error.to_string())?;
    tokenizer.encode(&text, SpecialTokens::Skip).map_err(|error| error.to_string())
}

/// Compares every conversation; tells how many there are.
fn compare(name: &str, tokenizer: &Tokenizer) -> usize {
    let goldens = goldens();
    let mut differing = Vec::new();
    for golden in &goldens {
        let expected: Vec<u32> = serde_json::from_value(golden["ids"][name].clone()).unwrap();
        let shown = |ids: &[u32]| tokenizer.decode(ids, SkipSpecial::Keep).unwrap();
        match ids(tokenizer, golden) {
            Ok(found) if found == expected => {}
            Ok(found) => {
                differing.push(format!("{}:\n  {:?}\n  {:?}", golden["case"], shown(&found), shown(&expected)))
            }
            Err(error) => differing.push(format!("{}: {error}\n  {:?}", golden["case"], shown(&expected))),
        }
    }
    assert!(differing.is_empty(), "{name}, {} of {}:\n{}", differing.len(), goldens.len(), differing.join("\n"));
    goldens.len()
}

#[test]
fn conversations_have_the_engines_ids() {
    let mut compared = compare("smollm2", &vllm_vcr::play::Player::builtin_tokenizer().unwrap());
    let fetched = [("qwen3", tokenizers::qwen3()), ("llama3", tokenizers::llama3())];
    for (name, tokenizer) in fetched {
        compared += tokenizer.map_or(0, |tokenizer| compare(name, &tokenizer));
    }
    eprintln!("{compared} prompts have the engine's ids");
}

/// Ids that vLLM's `/tokenize` gave.
#[test]
fn parts_without_text_leave_no_empty_line() {
    let parts =
        serde_json::json!([{"type": "text", "text": "x"}, {"type": "text", "text": ""}, {"type": "text", "text": "y"}]);
    let asked = |content: Value| serde_json::json!({"messages": [{"role": "user", "content": content}]});
    let (of_parts, of_text) = (asked(parts), asked("x\ny".into()));
    let builtin = vllm_vcr::play::Player::builtin_tokenizer().unwrap();
    assert_eq!(ids(&builtin, &of_parts), ids(&builtin, &of_text));
    if let Some(qwen3) = tokenizers::qwen3() {
        let expected = vec![151644, 872, 198, 87, 198, 88, 151645, 198, 151644, 77091, 198];
        assert_eq!(ids(&qwen3, &of_parts), Ok(expected));
    }
}
