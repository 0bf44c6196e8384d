//! What vLLM's own front end makes of scripted tokens (`tests/goldens/vllm-0.32.0/front_end.jsonl`, by `tests/goldens/record-front-end`), and this server of the same.

use std::{sync::Arc, time::Duration};

use regex::Regex;
use serde_json::Value;
use vllm_vcr::{
    play::{Config, Source, TokenizerSource},
    recording::trace::{Chunk, FinishReason, Record, Trace},
    replay::matching::MatchBy,
    text::parsers::{Formats, ReasoningFormat, ToolFormat},
};

use crate::support::{
    client::{self, Request},
    play_server::{self, config},
    tokenizers, tree,
};

/// Without what no two answers share: generated ids, times, what was cached, and the fingerprint.
fn masked(answer: &str) -> String {
    let patterns = [
        (
            r#""(resp_|rs_|msg_|fc_|call_|chatcmpl-|chatcmpl-tool-|generate-tokens-)?(replay-\d+|[0-9a-f]{8,40})""#,
            "\"ID\"",
        ),
        (r#"("(?:created|created_at|cached_tokens|cache_write_tokens|created_cache_tokens)": ?)[\d.]+"#, "${1}0"),
        (r#"("system_fingerprint": ?)"[^"]*""#, "${1}null"),
    ];
    patterns.iter().fold(answer.to_owned(), |answer, (pattern, to)| {
        Regex::new(pattern).unwrap().replace_all(&answer, *to).into_owned()
    })
}

fn record(golden: &Value) -> Record {
    let ids: Vec<u32> = serde_json::from_value(golden["record"]["output_token_ids"].clone()).unwrap();
    Record {
        prompt_tokens: 3,
        output_tokens: u32::try_from(ids.len()).unwrap(),
        chunks: ids.iter().map(|_| Chunk { gap: Duration::from_millis(1), tokens: 1, step: None }).collect(),
        output_token_ids: Some(ids),
        finish_reason: Some(FinishReason::Stop),
        ..Record::default()
    }
}

#[tokio::test]
async fn answers_are_those_of_the_front_end() {
    let Some(tokenizer) = tokenizers::qwen3() else { return };
    let text = tree::read("tests/goldens/vllm-0.32.0/front_end.jsonl");
    let mut wrong = Vec::new();
    for line in text.split('\n').filter(|line| !line.is_empty()) {
        let golden: Value = serde_json::from_str(line).unwrap();
        // A batch has the same record for each of its conversations.
        let trace = Trace { records: vec![record(&golden), record(&golden)], ..Trace::default() };
        let server = play_server::start(Config {
            source: Source::Trace { name: "golden".to_owned(), trace: Arc::new(trace) },
            tokenizer: TokenizerSource::Loaded(tokenizer.clone()),
            served_model_names: vec!["tiny-qwen3".to_owned()],
            parsers: Formats { reasoning: Some(ReasoningFormat::Qwen3), tools: Some(ToolFormat::Hermes) },
            prompt_tokens_details: true,
            scale_out: true,
            vocabulary: Some(151_936),
            ..config(&[MatchBy::Next], Vec::new())
        })
        .await;
        let (path, body) = (golden["path"].as_str().unwrap(), golden["body"].to_string().into_bytes());
        let headers = vec![("content-type", "application/json")];
        let answer = client::send(server.address, &Request { method: "POST", path, headers, body }).await;
        let expected = golden["answer"].as_str().unwrap();
        if golden["status"] != answer.status || masked(expected) != masked(&answer.text()) {
            wrong.push(format!(
                "{}\n  front end {}\n  play      {}",
                golden["case"],
                masked(expected),
                masked(&answer.text())
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
