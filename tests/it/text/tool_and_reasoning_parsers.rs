//! The parsers against vLLM 0.32 (`tests/goldens/vllm-0.32.0/parser-deltas.jsonl`): each line is one answer in steps of text and
//! ids, with the delta that the engine gave for each, and what it made of the same tokens as a whole.
//!
//! Lines with an `origin` were recorded from a server; the others are what the engine's parser classes gave when they were
//! fed directly: whole, broken and cut calls, tags of ordinary tokens, one token or several per step.
//!
//! The files `parser-*.jsonl` beside it hold other formats, made by `tests/goldens/record-parsers`.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::{Value, json};
use vllm_vcr::text::parsers::{
    CallIds, Formats, Function, Parsing, ReasoningFormat, StreamParser, ToolChoice, ToolFormat, Vocabulary,
    count_reasoning_tokens, whole,
};

use crate::support::tree::root;

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
    /// The prompt's ids, where they are not those of all answers.
    prompt: Option<Vec<u32>>,
    /// Steps after which the answer was cut, its last delta then, and the whole of it.
    #[serde(default)]
    cuts: Vec<(usize, Value, Value)>,
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
            "required" => ToolChoice::Required,
            choice => ToolChoice::Named(choice.strip_prefix("named:").unwrap().to_owned()),
        };
        Parsing { formats, thinks: self.thinking, choice, ..Parsing::default() }
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
    let texts = fs::read_to_string(root().join("tests/goldens/vllm-0.32.0/parser-deltas-texts.json")).unwrap();
    spelled(Vocabulary::new(id_of, &special), &serde_json::from_str(&texts).unwrap())
}

/// With the texts of tokens, whose bytes are letters of Latin 1.
fn spelled(vocabulary: Vocabulary, texts: &HashMap<u32, String>) -> Vocabulary {
    let bytes = |text: &String| text.chars().map(|letter| u8::try_from(u32::from(letter)).unwrap()).collect();
    let texts: HashMap<u32, Vec<u8>> = texts.iter().map(|(id, text)| (*id, bytes(text))).collect();
    let text = move |ids: &[u32]| ids.iter().flat_map(|id| texts[id].clone()).collect::<Vec<u8>>();
    vocabulary.with_texts(move |ids| String::from_utf8_lossy(&text(ids)).into_owned())
}

fn masked(mut delta: Value) -> Value {
    for call in delta.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(id) = call.get_mut("id") {
            let id_text = id.as_str().unwrap();
            let is_long = id_text.strip_prefix("chatcmpl-tool-").is_some_and(|tail| tail.len() == 16);
            let is_short = id_text.len() == 9 && id_text.chars().all(|c| c.is_ascii_alphanumeric());
            assert!(is_long || is_short, "{id_text}");
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
            let finished = step == last;
            found.push(parser.push(text, ids, finished).map_or(Value::Null, |delta| masked(json!(delta))));
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

#[derive(Deserialize)]
struct Head {
    tokens: HashMap<String, u32>,
    special: Vec<(u32, String)>,
    prompt: Vec<u32>,
    functions: Vec<Offered>,
    /// The bytes of each token, as letters of Latin 1.
    texts: HashMap<u32, String>,
}

#[derive(Deserialize)]
struct Offered {
    name: String,
    parameters: Value,
}

/// What a stream's deltas are, one by one.
fn streamed(case: &Case, head: &Head, vocabulary: &Vocabulary, steps: usize) -> (Vec<Value>, usize) {
    let mut parser = StreamParser::new(
        head.parsing(case),
        vocabulary,
        case.prompt.as_ref().unwrap_or(&head.prompt),
        CallIds::new(7),
    );
    let mut found = Vec::new();
    for (at, (text, ids)) in case.steps.iter().take(steps).enumerate() {
        let finished = at + 1 == steps;
        found.push(parser.push(text, ids, finished).map_or(Value::Null, |delta| masked(json!(delta))));
    }
    (found, parser.reasoning_tokens())
}

impl Head {
    fn vocabulary(&self) -> Vocabulary {
        spelled(Vocabulary::new(|token| self.tokens.get(token).copied(), &self.special), &self.texts)
    }

    fn parsing(&self, case: &Case) -> Parsing {
        let function =
            |offered: &Offered| Function { name: offered.name.clone(), parameters: offered.parameters.clone() };
        Parsing { functions: self.functions.iter().map(function).collect(), ..case.parsing() }
    }

    fn whole(&self, case: &Case, vocabulary: &Vocabulary, steps: usize) -> Value {
        let steps = || case.steps.iter().take(steps);
        let parsing = self.parsing(case);
        let text: String = steps().map(|(text, _)| text.as_str()).collect();
        let ids: Vec<u32> = steps().flat_map(|(_, ids)| ids.iter().copied()).collect();
        let message = whole(&parsing, vocabulary, &text);
        let calls: Vec<_> = message.calls.iter().map(|call| json!([call.name, call.arguments])).collect();
        json!({
            "content": message.content,
            "reasoning": message.reasoning,
            "calls": calls,
            "tokens": count_reasoning_tokens(&parsing, vocabulary, &ids),
        })
    }

    /// What differs from the engine.
    fn differences(&self, case: &Case) -> Vec<String> {
        let vocabulary = self.vocabulary();
        let about = format!("{:?} {:?} {} {}", case.reasoning, case.tool, case.choice, case.thinking);
        let mut wrong = Vec::new();
        let (found, tokens) = streamed(case, self, &vocabulary, case.steps.len());
        let pairs = found.iter().map(Value::to_string).zip(case.deltas.iter().map(Value::to_string));
        if let Some((step, (found, expected))) = pairs.enumerate().find(|(_, (found, expected))| found != expected) {
            wrong.push(format!("{about} step {step} of {:?}:\n  {found}\n  {expected}", case.text()));
        } else if tokens != case.reasoning_tokens {
            wrong.push(format!("{about} {:?}: {tokens} reasoning tokens, not {}", case.text(), case.reasoning_tokens));
        }
        let full = self.whole(case, &vocabulary, case.steps.len());
        if full != case.full {
            wrong.push(format!("{about} whole {:?}:\n  {full}\n  {}", case.text(), case.full));
        }
        for (steps, delta, full) in &case.cuts {
            let found = streamed(case, self, &vocabulary, *steps).0.pop().unwrap();
            let spelled = (found.to_string(), delta.to_string());
            if spelled.0 != spelled.1 {
                wrong.push(format!("{about} cut at {steps} of {:?}:\n  {found}\n  {delta}", case.text()));
            }
            let found = self.whole(case, &vocabulary, *steps);
            if found != *full {
                wrong.push(format!("{about} whole cut at {steps} of {:?}:\n  {found}\n  {full}", case.text()));
            }
        }
        wrong
    }
}

/// Every case of a family's file, at least so many.
fn family_is_equal(name: &str, least: usize) {
    file_is_equal(&root().join(format!("tests/goldens/vllm-0.32.0/parser-{name}.jsonl")), least);
}

fn file_is_equal(file: &Path, least: usize) {
    let text = fs::read_to_string(file).unwrap();
    let mut lines = text.split('\n').filter(|line| !line.is_empty());
    let head: Head = serde_json::from_str(lines.next().unwrap()).unwrap();
    let cases: Vec<Case> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(cases.len() >= least, "{}", cases.len());
    let wrong: Vec<String> = cases.iter().flat_map(|case| head.differences(case)).collect();
    let shown = wrong.iter().take(12).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} differences in {} cases:\n{shown}", wrong.len(), cases.len());
}

#[test]
fn forced_hermes_calls_are_read_as_any_others() {
    family_is_equal("forced", 110);
}

#[test]
fn qwen3_coder_is_the_engines() {
    family_is_equal("qwen3-coder", 290);
}

#[test]
fn kin_of_qwen3_are_the_engines() {
    family_is_equal("qwen3-kin", 200);
}

#[test]
fn seed_oss_is_the_engines() {
    family_is_equal("seed-oss", 270);
}

#[test]
fn llama3_json_is_the_engines() {
    family_is_equal("llama3-json", 290);
}

#[test]
fn deepseek_is_the_engines() {
    family_is_equal("deepseek-v3", 210);
    family_is_equal("deepseek-v31", 310);
    family_is_equal("deepseek-r1", 130);
}

#[test]
fn mistral_is_the_engines() {
    family_is_equal("mistral", 390);
    family_is_equal("mistral-plain", 100);
}

#[test]
fn granite_is_the_engines() {
    family_is_equal("granite", 90);
}

/// Drawn by `record-parsers`: those that once differed, or all in the directory that `DRAWN_PARSERS` names.
#[test]
fn drawn_answers_are_parsed_as_the_engine_does() {
    let goldens = root().join("tests/goldens/vllm-0.32.0");
    let directory = std::env::var_os("DRAWN_PARSERS").map_or(goldens, PathBuf::from);
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let drawn: Vec<PathBuf> = files.filter(|file| file.to_string_lossy().ends_with("-drawn.jsonl")).collect();
    assert!(!drawn.is_empty());
    drawn.iter().for_each(|file| file_is_equal(file, 1));
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let error = |name: &str| name.parse::<ToolFormat>().unwrap_err().to_string();
    let known = "there are: deepseek_v3, deepseek_v31, hermes, llama3_json, llama4_json, mimo, mistral, qwen3_coder, \
                 qwen3_json, qwen3_xml, seed_oss, step3p5";
    assert_eq!(error("nonesuch"), format!("no tool-call parser is called 'nonesuch'; {known}"));
    assert_eq!(error("pythonic"), format!("vLLM's tool-call parser 'pythonic' is not supported; {known}"));
    let error = "step3".parse::<ReasoningFormat>().unwrap_err().to_string();
    assert!(error.starts_with("vLLM's reasoning parser 'step3' is not supported; there are: deepseek_r1, "), "{error}");
    let mut names = known.trim_start_matches("there are: ").split(", ");
    assert!(names.all(|name| name.parse::<ToolFormat>().is_ok()));
    assert!(ReasoningFormat::ALL.into_iter().all(|format| format.name().parse() == Ok(format)));
}
