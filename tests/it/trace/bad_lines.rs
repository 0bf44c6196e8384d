//! What each defect is called.

use std::sync::Arc;

use vllm_vcr::recording::trace::{self, CreateMode, Meta, TraceError, TraceWriter};

/// A line that must be refused, and its error after `name:line: `.
pub(crate) struct BadLine {
    pub(crate) line: &'static str,
    pub(crate) said: &'static str,
    /// Agreement between fields is more than a JSON Schema can ask for.
    pub(crate) is_beyond_schema: bool,
}

const fn bad(line: &'static str, said: &'static str) -> BadLine {
    BadLine { line, said, is_beyond_schema: false }
}

const fn disagreeing(line: &'static str, said: &'static str) -> BadLine {
    BadLine { line, said, is_beyond_schema: true }
}

pub(crate) const BAD_LINES: &[BadLine] = &[
    disagreeing(
        r#"{"prompt_tokens":3,"cached_tokens":4,"output_tokens":1,"ttft_ms":1}"#,
        "cached_tokens: is 4, but the prompt has 3 tokens",
    ),
    disagreeing(
        r#"{"prompt_tokens":3,"output_tokens":3,"ttft_ms":1,"itl_summary":{"mean_ms":1,"count":3}}"#,
        "itl_summary: counts 3 gaps, but 2 tokens came after the first",
    ),
    bad(
        r#"{"prompt_tokens":3,"output_tokens":4194305,"ttft_ms":1,"itl_ms":[]}"#,
        "output_tokens: is more than 4194304; no answer is that long",
    ),
    disagreeing(
        r#"{"prompt_tokens":3,"output_tokens":1,"ttft_ms":1e300}"#,
        "ttft_ms: 1e300 is not a time in milliseconds (0 or more)",
    ),
    disagreeing(
        r#"{"prompt_tokens":3,"output_tokens":2,"ttft_ms":1,"itl_ms":[1],"logprobs":{"top":0,"tokens":[["a",-1.5]]}}"#,
        "logprobs: are of 1 tokens, but output_tokens is 2; they must agree",
    ),
    bad(
        r#"{"prompt_tokens":3,"output_tokens":1,"ttft_ms":1,"logprobs":{"top":0,"tokens":[[7,-1.5]]}}"#,
        "logprobs: invalid type: integer `7`, expected a string",
    ),
    bad(r#"{"output_tokens":1,"ttft_ms":1}"#, "prompt_tokens: is missing; every record needs it"),
    bad(r#"{"prompt_tokens":1,"ttft_ms":1}"#, "output_tokens: is missing; every record needs it"),
    bad(r#"{"prompt_tokens":1,"output_tokens":1,"ttft_ms":null}"#, "ttft_ms: is missing; every record needs it"),
    bad(
        r#"{"prompt_tokens":1,"output_tokens":2,"ttft_ms":1}"#,
        "output_tokens: more than 1 output token needs itl_ms or itl_summary; add one (itl_ms may be [] if all came at once)",
    ),
    bad(
        r#"{"prompt_tokens":1,"output_tokens":1,"ttft_ms":-1}"#,
        "ttft_ms: -1 is not a time in milliseconds (0 or more)",
    ),
    bad(
        r#"{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1,"arrival_ms":-0.5}"#,
        "arrival_ms: -0.5 is not a time in milliseconds (0 or more)",
    ),
    bad(
        r#"{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1,"think_ms":-1}"#,
        "think_ms: -1 is not a time in milliseconds (0 or more)",
    ),
    disagreeing(
        r#"{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1,"queue_ms":1e300}"#,
        "queue_ms: 1e300 is not a time in milliseconds (0 or more)",
    ),
    bad(
        r#"{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1,"prefill_ms":"soon"}"#,
        "prefill_ms: \"soon\" is not a time in milliseconds (0 or more)",
    ),
    bad(
        r#"{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1,"intended_ms":-0.5}"#,
        "intended_ms: -0.5 is not a time in milliseconds (0 or more)",
    ),
    bad(
        r#"{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1,"preemptions":-1}"#,
        "preemptions: -1 is not a whole number (0 or more)",
    ),
    disagreeing(
        r#"{"prompt_tokens":10.0,"output_tokens":1,"ttft_ms":1}"#,
        "prompt_tokens: invalid type: floating point `10.0`, expected u32",
    ),
    bad(
        r#"{"prompt_tokens":1,"output_tokens":3,"ttft_ms":1,"itl_ms":[1,-2]}"#,
        "itl_ms: value 1 is -2, not a time in milliseconds (0 or more)",
    ),
    bad(
        r#"{"prompt_tokens":1,"output_tokens":5,"ttft_ms":1,"itl_ms":[1,2],"itl_tokens":[1,0]}"#,
        "itl_tokens: value 1 is 0; a chunk holds at least 1 token",
    ),
    disagreeing(
        r#"{"prompt_tokens":1,"output_tokens":5,"ttft_ms":1,"itl_ms":[1,2],"itl_tokens":[1]}"#,
        "itl_tokens: has 1 values, itl_ms has 2; they must be equally long",
    ),
    disagreeing(
        r#"{"prompt_tokens":1,"output_tokens":2,"ttft_ms":1,"itl_ms":[1],"itl_ctx":{"num_running":[],"prefill_tokens":[1]}}"#,
        "itl_ctx.num_running: has 0 values, itl_ms has 1; they must be equally long",
    ),
    disagreeing(
        r#"{"prompt_tokens":1,"output_tokens":3,"ttft_ms":1,"itl_ms":[1],"itl_tokens":[3]}"#,
        "itl_tokens: the chunks after the first hold 3 tokens, but output_tokens is 3; the first chunk would hold none",
    ),
    disagreeing(
        r#"{"prompt_tokens":1,"output_tokens":2,"ttft_ms":1,"itl_ms":[1,1]}"#,
        "itl_ms: the chunks after the first hold 2 tokens, but output_tokens is 2; the first chunk would hold none",
    ),
    disagreeing(
        r#"{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1,"output_token_ids":[]}"#,
        "output_token_ids: has 0 ids, but output_tokens is 1; they must agree",
    ),
    bad(
        r#"{"prompt_tokens":-1,"output_tokens":1,"ttft_ms":1}"#,
        "prompt_tokens: invalid value: integer `-1`, expected u32",
    ),
    bad(
        r#"{"prompt_tokens":4294967296,"output_tokens":1,"ttft_ms":1}"#,
        "prompt_tokens: invalid value: integer `4294967296`, expected u32",
    ),
    bad(
        r#"{"prompt_tokens":1,"output_tokens":1,"ttft_ms":"soon"}"#,
        "ttft_ms: invalid type: string \"soon\", expected f64",
    ),
    bad(
        r#"{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1,"finish_reason":"bored"}"#,
        "finish_reason: unknown variant `bored`, expected one of `stop`, `length`, `abort`, `error`, `repetition`",
    ),
    disagreeing(
        r#"{"prompt_tokens":1,"prompt_tokens":1,"output_tokens":1,"ttft_ms":1}"#,
        "duplicate field `prompt_tokens` at line 1 column 34",
    ),
    bad("[1]", "is not a JSON object; a trace has one object per line"),
    bad(r#"{"prompt_tokens":1,}"#, "is not valid JSON at column 20 (trailing comma); correct or delete the line"),
    bad(r#"{"end":{}}"#, "end: missing field `records` at line 1 column 9"),
];

const GOOD: &str = r#"{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1.0}"#;

fn refusal(bytes: &[u8]) -> String {
    trace::read_bytes("it.jsonl", bytes).unwrap_err().to_string()
}

#[test]
fn every_bad_line_is_named_with_its_field_and_the_rule() {
    for bad in BAD_LINES {
        let text = format!("{{\"meta\":{{}}}}\r\n\n{GOOD}\n{}\n{GOOD}\n", bad.line);
        assert_eq!(refusal(text.as_bytes()), format!("it.jsonl:4: {}", bad.said));
    }
}

#[test]
fn lines_in_the_wrong_place_are_named() {
    for (text, said) in [
        (format!("{GOOD}\n{{\"meta\":{{}}}}\n"), "it.jsonl:2: meta: must be the first line; move or delete it"),
        (
            format!("{{\"end\":{{\"records\":0}}}}\n{GOOD}\n"),
            "it.jsonl:2: comes after the end line; nothing may follow it",
        ),
        (format!("{GOOD}\n{{\"end\":{{\"records\":2}}}}\n"), "it.jsonl:2: end: records is 2, but 1 lines hold records"),
        (
            format!("{{\"meta\":{{\"block_size\":0}}}}\n{GOOD}\n"),
            "it.jsonl:1: block_size: is 0; a block holds at least 1 token",
        ),
    ] {
        assert_eq!(refusal(text.as_bytes()), said);
    }
}

#[test]
fn check_lists_every_defect() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("it.jsonl");
    let lines: Vec<&str> = BAD_LINES.iter().map(|bad| bad.line).filter(|line| !line.contains("end")).collect();
    let both = r#"{"output_tokens":2,"ttft_ms":-1}"#;
    std::fs::write(&path, format!("{{\"meta\":7}}\n{}\n{both}\n", lines.join("\n"))).unwrap();
    let findings = trace::check(&path).unwrap().findings;
    for (index, found) in findings.iter().enumerate().take(lines.len() + 1) {
        assert_eq!(found.line, index as u64 + 1);
    }
    let last: Vec<_> = findings.iter().filter(|found| found.line == lines.len() as u64 + 2).collect();
    assert_eq!(last.len(), 3, "{last:?}");
}

#[test]
fn byte_order_marks_and_blank_lines_are_passed_over() {
    let text = format!("\u{feff}{{\"meta\":{{\"model\":\"m\"}}}}\r\n\r\n{GOOD}\r\n  \n{GOOD}");
    let trace = trace::read_bytes("it", text.as_bytes()).unwrap();
    assert_eq!((trace.meta.model.as_deref(), trace.records.len()), (Some("m"), 2));
    assert_eq!(trace.warnings, []);
}

#[test]
fn names_and_contents_that_disagree_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let said = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        trace::read(&path).unwrap_err().to_string()
    };
    assert!(
        said("a.txt", b"").ends_with(
            "a.txt: the name of a trace ends in .jsonl, .json or .gz; rename the file, or pipe it in as `-`"
        )
    );
    assert!(said("a.jsonl.gz", b"{}").contains("the content is not gzip"));
    assert!(said("a.jsonl", b"\x1f\x8b").contains("the content is gzip, but the name does not show it"));
    let missing = trace::read(&folder.path().join("none.jsonl")).unwrap_err().to_string();
    assert!(missing.contains("none.jsonl: cannot open: "), "{missing}");
}

#[test]
fn a_file_that_exists_is_not_overwritten_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    TraceWriter::create(&path, &Meta::default(), CreateMode::New).unwrap();
    let again = TraceWriter::create(&path, &Meta::default(), CreateMode::New).err().unwrap();
    assert!(matches!(again, TraceError::Exists { .. }), "{again}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let other = Meta { block_size: Some(16), ..Meta::default() };
    let other = TraceWriter::create(&path, &other, CreateMode::Append).err().unwrap();
    assert!(other.to_string().contains("cannot append: its block_size differs"), "{other}");
}

#[test]
fn so_many_bad_lines_are_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    let sound = "{\"prompt_tokens\":1,\"output_tokens\":1,\"ttft_ms\":1}\n";
    std::fs::write(&path, sound.to_owned() + &"{\n".repeat(100_000)).unwrap();
    let store = trace::load(&path, &Arc::default()).unwrap();
    assert_eq!((store.files[0].bad_lines.count, store.files[0].bad_lines.first.len()), (100_000, 10));
    std::fs::write(&path, sound.to_owned() + &"{\n".repeat(100_001)).unwrap();
    let error = trace::load(&path, &Arc::default()).unwrap_err().to_string();
    assert!(error.contains("more than 100000 lines hold no sound record; the first is line 2:"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_pipe_is_not_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let error = trace::load(&path, &Arc::default()).unwrap_err();
    assert!(matches!(error, TraceError::NoFile { .. }), "{error}");
    let other = folder.path().join("b.jsonl");
    std::fs::write(&other, "").unwrap();
    let error = trace::Sources::gather(&[other, path]).unwrap_err();
    assert!(matches!(error, TraceError::NoFile { .. }), "{error}");
}
