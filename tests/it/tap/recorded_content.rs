//! Content in a trace: none by default, only what is configured, and never a secret.

use serde_json::json;
use vllm_vcr::{
    inspect,
    recording::redaction::RedactionRules,
    text::prompt::{BlockHasher, HashKey, IdPermutation},
};

use crate::support::{
    CHAT,
    peer::{End, Script, Upstream, answer, event_stream, exchange, post},
    tapping::Tapping,
};

const SECRET: &str = "sk-proj-AbCdEfGhIjKlMnOpQrSt";

/// Says the secret in pieces, in text and in a tool call's arguments.
async fn indiscreet() -> Upstream {
    let delta = |delta: serde_json::Value, ids: &str, finish: &str| {
        format!(
            r#"{{"id":"chatcmpl-1","choices":[{{"index":0,"delta":{delta},"finish_reason":{finish},"token_ids":{ids}}}],"prompt_token_ids":[1,2,3]}}"#
        )
    };
    let arguments = |text: &str| json!({"tool_calls": [{"index": 0, "function": {"arguments": text}}]});
    let events = [
        delta(json!({"content": "the key is sk-pro"}), "[5]", "null"),
        delta(json!({"content": "j-AbCdEfGhIjKl"}), "[6]", "null"),
        delta(json!({"content": "MnOpQrSt, bye"}), "[7]", "null"),
        delta(arguments("{\"password\":\"open"), "[8]", "null"),
        delta(arguments("sesame\"}"), "[9]", "\"tool_calls\""),
        "[DONE]".to_owned(),
    ];
    Upstream::start(move |request| {
        if request.starts_with(b"GET ") {
            return Script { pieces: answer("200 OK", r#"{"version":"0.32.0"}"#), end: End::KeepAlive };
        }
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        Script { pieces: event_stream(&events), end: End::KeepAlive }
    })
    .await
}

fn request() -> Vec<u8> {
    let body = json!({"model": "m", "stream": true, "user": "jane@example.org", "messages": [
        {"role": "user", "content": format!("my key is {SECRET}, do not tell bob@example.org")}]});
    let mut request = String::from_utf8(post(CHAT, &body.to_string())).unwrap();
    request = request.replacen(
        "host: test\r\n",
        &format!("host: test\r\nauthorization: Bearer {SECRET}\r\nx-request-id: job-7\r\n"),
        1,
    );
    request.into_bytes()
}

fn file(tap: &Tapping) -> std::path::PathBuf {
    tap.folder.path().join("trace.jsonl")
}

#[tokio::test]
async fn by_default_a_trace_holds_no_word_and_no_id() {
    let upstream = indiscreet().await;
    let tap = Tapping::start(upstream.address, |setup| {
        setup.config.record_tokens = false;
        setup.config.trace_out.set_extension("");
    })
    .await;
    exchange(tap.address, &request()).await;
    tap.until("vcr_records_written_total", 1.0).await;
    let text = std::fs::read_to_string(file(&tap)).unwrap();
    for word in ["AbCdEf", "example.org", "sesame", "output_token_ids", "\"text\"", "\"request\"", "Bearer"] {
        assert!(!text.contains(word), "{word} in {text}");
    }
    assert!(text.contains("job-7") && text.contains("block_hashes"), "{text}");
    let audit = inspect::audit(&file(&tap), &RedactionRules::default()).unwrap();
    assert_eq!(audit.secrets_found, 0);
    assert!(!audit.reveals.iter().any(|revealed| revealed.what == "text" || revealed.what == "token ids"));
    tap.stop().await;
}

#[tokio::test]
async fn words_and_requests_are_recorded_without_their_secrets() {
    let upstream = indiscreet().await;
    let tap = Tapping::start(upstream.address, |setup| {
        setup.content.text = true;
        setup.content.requests = true;
        setup.content.rules = RedactionRules::all();
        setup.config.trace_out.set_extension("");
    })
    .await;
    let direct = exchange(upstream.address, &request()).await;
    let tapped = exchange(tap.address, &request()).await;
    assert!(tapped.body().contains("MnOpQrSt, bye") && direct.body().contains("MnOpQrSt, bye"));
    tap.until("vcr_records_written_total", 1.0).await;
    let text = std::fs::read_to_string(file(&tap)).unwrap();
    for word in ["AbCdEf", "MnOpQr", "example.org", "sesame", "Bearer"] {
        assert!(!text.contains(word), "{word} in {text}");
    }
    let audit = inspect::audit(&file(&tap), &RedactionRules::default()).unwrap();
    assert_eq!(audit.secrets, []);
    let (report, records) = tap.records().await;
    let record = &records[0];
    let pieces: Vec<&str> = record.text.as_ref().unwrap().iter().map(String::as_str).collect();
    assert_eq!(
        pieces,
        ["the key is [REDACTED:api_key:1]", "", ", bye", "{\"password\":\"[REDACTED:password:1]", "\"}"]
    );
    assert_eq!(record.chunks.len(), pieces.len());
    let asked = record.request.as_ref().unwrap();
    assert_eq!(asked["user"], "[REDACTED:email:1]");
    assert_eq!(asked["messages"][0]["content"], "my key is [REDACTED:api_key:1], do not tell [REDACTED:email:2]");
    // Ids and hashes would spell the secret.
    assert_eq!((&record.output_token_ids, &*record.block_hashes, record.prompt_hash), (&None, &vec![], None));
    assert_eq!(report.recorder.redacted, 1);
}

#[tokio::test]
async fn what_holds_no_secret_is_recorded_as_it_is() {
    let upstream = Upstream::start(|_| {
        let body = r#"{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"four"},"finish_reason":"stop","token_ids":[1,2]}],"prompt_token_ids":[1,2,3],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
        Script { pieces: answer("200 OK", body), end: End::KeepAlive }
    })
    .await;
    let tap = Tapping::start(upstream.address, |setup| {
        setup.content.text = true;
        setup.content.requests = true;
    })
    .await;
    let body = json!({"messages": [{"role": "user", "content": "two plus two"}]});
    exchange(tap.address, &post(CHAT, &body.to_string())).await;
    let (_, records) = tap.records().await;
    assert_eq!(
        (records[0].request.as_ref(), records[0].text.as_deref()),
        (Some(&body), Some(&["four".to_owned()][..]))
    );
    assert_eq!(records[0].output_token_ids.as_deref(), Some(&[1, 2][..]));
    assert!(records[0].prompt_hash.is_some());
}

#[tokio::test]
async fn keyed_hashes_and_permuted_ids_need_the_key() {
    let upstream = indiscreet().await;
    let key = HashKey::new(b"a key that is long enough");
    let tap = Tapping::start(upstream.address, |setup| {
        setup.hash_key = Some(key.clone());
        setup.permutation = Some(IdPermutation::new(key.clone(), 1000));
    })
    .await;
    exchange(tap.address, &request()).await;
    let (_, traces) = tap.stop().await;
    let (meta, record) = (&traces[0].meta, &traces[0].records[0]);
    assert_eq!(
        (meta.hash_key_id.as_deref(), meta.extra["ids_permuted"].as_bool()),
        (Some(key.id().as_str()), Some(true))
    );
    assert_eq!(*record.block_hashes, BlockHasher::keyed(key.clone(), 2).hash(&[1, 2, 3]).blocks);
    let permutation = IdPermutation::new(key, 1000);
    let expected: Vec<u32> = [5, 6, 7, 8, 9].map(|id| permutation.apply(id)).into();
    assert_eq!(record.output_token_ids.as_deref(), Some(&expected[..]));
    assert_ne!(expected, [5, 6, 7, 8, 9]);
}

#[test]
fn an_audit_lists_secrets_wherever_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let line = json!({"prompt_tokens": 1, "output_tokens": 1, "ttft_ms": 1.0, "request_id": "jane@example.org",
        "request": {"messages": [{"content": format!("key {SECRET}")}]}, "text": ["pass", "word=", "hunter2"],
        "events": ["{\"x\":\"a@b.example\"}"], "note": "ghp_abcdefghijklmnopqrstuvwxyz0123456789"});
    std::fs::write(&path, format!("{line}\n")).unwrap();
    let audit = inspect::audit(&path, &RedactionRules::all()).unwrap();
    let found: Vec<(&str, &str)> =
        audit.secrets.iter().map(|secret| (secret.place.as_str(), secret.kind.as_str())).collect();
    assert_eq!(
        found,
        [
            ("request.messages[0].content", "api_key"),
            ("text", "assigned"),
            ("events.x", "email"),
            ("request_id", "email"),
            (".note", "github_token"),
        ]
    );
    let shown = audit.to_string();
    assert!(shown.contains("5 secrets found") && !shown.contains("hunter2"), "{shown}");
}

#[tokio::test]
async fn messages_of_errors_are_recorded_with_texts_only_whatever_the_endpoint_is() {
    let upstream = Upstream::start(|request| {
        let error = r#"{"error":{"message":"no river named Leine","type":"BadRequestError","param":null,"code":400}}"#;
        let text = String::from_utf8_lossy(request);
        let pieces = match text.split(' ').nth(1).unwrap_or_default() {
            CHAT => event_stream(&[r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#, error]),
            "/plain" => answer("400 Bad Request\r\ncontent-type: text/plain", "no river named Leine"),
            _ => answer("400 Bad Request", error),
        };
        Script { pieces, end: End::KeepAlive }
    })
    .await;
    for keeps_text in [false, true] {
        let tap = Tapping::start(upstream.address, |setup| {
            setup.content.text = keeps_text;
            setup.config.trace_out.set_extension("");
        })
        .await;
        for path in [CHAT, "/v1/completions", "/v1/embeddings", "/plain"] {
            exchange(tap.address, &post(path, r#"{"stream":true,"prompt":"x"}"#)).await;
        }
        tap.until("vcr_records_written_total", 4.0).await;
        let text = std::fs::read_to_string(file(&tap)).unwrap();
        // The stream, whose error is recorded by itself too, the embeddings and the plain text twice each, and the completion.
        let (messages, withheld) = if keeps_text { (7, 0) } else { (0, 6) };
        assert_eq!(text.matches("Leine").count(), messages, "{text}");
        assert_eq!(text.matches("(not recorded)").count(), withheld, "{text}");
        tap.stop().await;
    }
}
