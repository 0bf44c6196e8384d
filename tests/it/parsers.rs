//! The parsers against vLLM 0.32 (`tests/goldens/vllm-0.32.0/parser-deltas.jsonl`): each line is one answer in steps of text and
//! ids, with the delta that the engine gave for each, and what it made of the same tokens as a whole.
//!
//! Lines with an `origin` were recorded from a server; the others are what the engine's parser classes gave when they were
//! fed directly: whole, broken and cut calls, tags of ordinary tokens, one token or several per step.

use std::fs;

use serde::Deserialize;
use serde_json::{Value, json};
use vllm_vcr::parsers::{
    CallIds, Finished, Formats, Parsing, StreamParser, Thinking, ToolChoice, Vocabulary, count_reasoning_tokens, whole,
};

use crate::tree::root;

#[derive(Deserialize)]
struct Case {
    reasoning: Option<String>,
    tool: Option<String>,
    choice: String,
    thinking: bool,
    steps: Vec<(String, Vec<u32>)>,
    deltas: Vec<Value>,
    reasoning_tokens: usize,
    full: Value,
}

impl Case {
    fn parsing(&self) -> Parsing {
        let formats = Formats {
            reasoning: self.reasoning.as_ref().map(|name| name.parse().unwrap()),
            tools: self.tool.as_ref().map(|name| name.parse().unwrap()),
        };
        let choice = match self.choice.as_str() {
            "none" => ToolChoice::None,
            "auto" => ToolChoice::Auto,
            choice => ToolChoice::Named(choice.strip_prefix("named:").unwrap().to_owned()),
        };
        Parsing { formats, thinking: if self.thinking { Thinking::On } else { Thinking::Off }, choice }
    }

    fn text(&self) -> String {
        self.steps.iter().map(|(text, _)| text.as_str()).collect()
    }
}

fn cases() -> Vec<Case> {
    let lines = fs::read_to_string(root().join("tests/goldens/vllm-0.32.0/parser-deltas.jsonl")).unwrap();
    lines.split('\n').filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Qwen3's tokens, as its tokenizer has them.
fn vocabulary() -> Vocabulary {
    const SPECIAL: [&str; 14] = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|object_ref_start|>",
        "<|object_ref_end|>",
        "<|box_start|>",
        "<|box_end|>",
        "<|quad_start|>",
        "<|quad_end|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|vision_pad|>",
        "<|image_pad|>",
        "<|video_pad|>",
    ];
    let special: Vec<(u32, String)> = (151_643..).zip(SPECIAL).map(|(id, text)| (id, text.to_owned())).collect();
    let id_of = |token: &str| match token {
        "<tool_call>" => Some(151_657),
        "</tool_call>" => Some(151_658),
        "<think>" => Some(151_667),
        "</think>" => Some(151_668),
        other => special.iter().find(|(_, text)| text == other).map(|(id, _)| *id),
    };
    Vocabulary::new(id_of, &special)
}

fn masked(mut delta: Value) -> Value {
    for call in delta.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(id) = call.get_mut("id") {
            let tail = id.as_str().unwrap().strip_prefix("chatcmpl-tool-").unwrap();
            assert!(tail.len() == 16 && tail.chars().all(|c| c.is_ascii_hexdigit()), "{tail}");
            *id = json!("ID");
        }
    }
    delta
}

#[test]
fn streams_get_the_engines_deltas() {
    let vocabulary = vocabulary();
    let cases = cases();
    assert!(cases.len() > 590, "{}", cases.len());
    let mut wrong = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        let mut parser = StreamParser::new(case.parsing(), &vocabulary, &[151_644, 77_091, 198], CallIds::new(7));
        let last = case.steps.len() - 1;
        let mut found = Vec::new();
        for (step, (text, ids)) in case.steps.iter().enumerate() {
            let finished = if step == last { Finished::Yes } else { Finished::No };
            found.push(parser.push(text, ids, finished).map_or(Value::Null, |delta| masked(delta.json())));
        }
        let spelled = |deltas: &[Value]| deltas.iter().map(Value::to_string).collect::<Vec<_>>();
        let pairs = spelled(&found).into_iter().zip(spelled(&case.deltas));
        if let Some((step, pair)) = pairs.enumerate().find(|(_, (found, expected))| found != expected) {
            wrong.push(format!("line {} step {step} of {:?}: {pair:?}", at + 1, case.text()));
        } else if parser.reasoning_tokens() != case.reasoning_tokens {
            let (found, expected) = (parser.reasoning_tokens(), case.reasoning_tokens);
            wrong.push(format!("line {} {:?}: {found} reasoning tokens, not {expected}", at + 1, case.text()));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn whole_answers_are_taken_apart_as_the_engine_does() {
    let vocabulary = vocabulary();
    let mut wrong = Vec::new();
    for (at, case) in cases().iter().enumerate() {
        let message = whole(&case.parsing(), &vocabulary, &case.text());
        let ids: Vec<u32> = case.steps.iter().flat_map(|(_, ids)| ids.iter().copied()).collect();
        let calls: Vec<_> = message.calls.iter().map(|call| json!([call.name, call.arguments])).collect();
        let found = json!({
            "content": message.content,
            "reasoning": message.reasoning,
            "calls": calls,
            "tokens": count_reasoning_tokens(&case.parsing(), &vocabulary, &ids),
        });
        if found != case.full {
            wrong.push(format!("line {} {:?}: {found}, not {}", at + 1, case.text(), case.full));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let error = "pythonic".parse::<vllm_vcr::parsers::ToolFormat>().unwrap_err().to_string();
    assert_eq!(error, "no tool-call parser is called 'pythonic'; there is: hermes");
}
