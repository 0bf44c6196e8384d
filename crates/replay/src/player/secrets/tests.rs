use proptest::{prelude::*, test_runner::FileFailurePersistence};
use serde_json::json;

use super::*;
use crate::player::record::assemble;
use recording::cassette::{CassetteWriter, Header, RecordedAnswer, RecordedExchange, SseEvent, WriteMode};

/// Secrets, and the part of each that must be nowhere.
const SECRETS: [(&str, &str); 16] = [
    ("sk-proj-AbCdEfGhIjKlMnOpQrSt1234", "AbCdEfGhIjKlMnOpQrSt1234"),
    ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "abcdefghijklmnopqrstuvwxyz0123456789"),
    ("xoxb-1234567890-abcdefghij", "1234567890-abcdefghij"),
    ("AKIAIOSFODNN7EXAMPLE", "IOSFODNN7EXAMPLE"),
    ("AIzaSyA1234567890abcdefghijklmnopqrstuv", "SyA1234567890abcdefghijklmnopqrstuv"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.c2lnbmF0dXJlLXNpZ25hdHVyZQ", "c2lnbmF0dXJlLXNpZ25hdHVyZQ"),
    (
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEAtnVrxYTBsPMz\nq83vQ2hXn1cJ4kT7Lw0sYbRf\n-----END RSA PRIVATE KEY-----",
        "q83vQ2hXn1cJ4kT7Lw0sYbRf",
    ),
    ("Bearer abcdef0123456789", "abcdef0123456789"),
    ("Basic dXNlcjpwYXNzd29yZDEyMzQ1", "dXNlcjpwYXNzd29yZDEyMzQ1"),
    ("postgres://bob:hunter2hunter2@db.internal/x", "hunter2hunter2"),
    ("password=hunter2hunter2", "hunter2hunter2"),
    ("AccountKey=Zm9vYmFyMTIzNDU2Nzg5MA", "Zm9vYmFyMTIzNDU2Nzg5MA"),
    ("jane.doe@mail.example.org", "jane.doe@mail"),
    ("4111 1111 1111 1111", "4111 1111 1111 1111"),
    ("123456789:AAbCdEfGhIjKlMnOpQrStUvWxYz0123456", "bCdEfGhIjKlMnOpQrStUvWxYz0123456"),
    ("SG.abcdefghij0123456789.ABCDEFGHIJKLMNOPQRST0123456789", "ABCDEFGHIJKLMNOPQRST0123456789"),
];

/// The ways in which text comes in pieces: the path, and the event of a piece.
type Way = (&'static str, fn(&str) -> Value);

const WAYS: [Way; 14] = [
    ("/v1/chat/completions", |text| json!({"choices": [{"index": 0, "delta": {"content": text}}]})),
    ("/v1/chat/completions", |text| json!({"choices": [{"index": 1, "delta": {"reasoning": text}}]})),
    (
        "/v1/chat/completions",
        |text| json!({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}}]}),
    ),
    (
        "/v1/chat/completions",
        |text| json!({"choices": [{"index": 0, "delta": {"function_call": {"arguments": text}}}]}),
    ),
    (
        "/v1/chat/completions",
        |text| json!({"choices": [{"index": 0, "delta": {"audio": {"id": "a", "transcript": text}}}]}),
    ),
    (
        "/v1/chat/completions",
        |text| json!({"choices": [{"index": 0, "delta": {"annotations": [{"type": "url", "text": text}]}}]}),
    ),
    (
        "/v1/chat/completions",
        |text| json!({"choices": [{"index": 0, "delta": {"reasoning_details": [{"text": text, "index": 0}]}}]}),
    ),
    (
        "/v1/chat/completions",
        |text| json!({"choices": [{"index": 0, "delta": {"content": [{"type": "text", "text": text}]}}]}),
    ),
    ("/v1/completions", |text| json!({"choices": [{"index": 0, "text": text}]})),
    (
        "/v1/messages",
        |text| json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}),
    ),
    (
        "/v1/messages",
        |text| json!({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": text}}),
    ),
    ("/v1/responses", |text| json!({"type": "response.output_text.delta", "output_index": 0, "delta": text})),
    ("/v1/unknown", |text| json!({"a": {"b": [{"say": text}]}, "kind": "x"})),
    ("/v1/unknown", |text| Value::from(text)),
];

fn pieces(text: &str, cuts: &[prop::sample::Index]) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(chars.len() + 1)).chain([0, chars.len()]).collect();
    places.sort_unstable();
    places.windows(2).map(|pair| chars[pair[0]..pair[1]].iter().collect()).collect()
}

/// Every text of a value, those of JSON in texts too, as one.
fn texts(value: &Value) -> String {
    match value {
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(inner @ (Value::Object(_) | Value::Array(_))) => texts(&inner),
            _ => text.clone(),
        },
        Value::Array(items) => items.iter().map(texts).collect(),
        Value::Object(map) => map.iter().filter(|(name, _)| *name != "type").map(|(_, value)| texts(value)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => String::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/regressions/secrets.txt"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_secret_is_written_wherever_a_stream_is_cut(
        secret in prop::sample::select(SECRETS.to_vec()),
        (path, event) in prop::sample::select(WAYS.to_vec()),
        before in "[a-z .,é]{0,12}",
        after in "[a-z .,]{0,12}",
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        end in prop::option::of(Just(json!({"error": {"message": "broke off"}}))),
    ) {
        let (secret, part) = secret;
        let note = format!("{before} {secret} {after}");
        let quoted = json!({"note": note}).to_string();
        let is_json = event("x").to_string().contains("arguments") || event("x").to_string().contains("partial_json");
        let parts = pieces(if is_json { &quoted } else { &note }, &cuts);
        let data = parts.iter().map(|piece| event(piece)).chain(end);
        let plain = |data: Value| data.as_str().map_or_else(|| data.to_string(), str::to_owned);
        let events: Vec<Moment> = data.enumerate().map(|(at, data)| Moment(at as f64, Some(plain(data)), None)).collect();
        let assembled = assemble::events(path, &events);
        let answer = RecordedAnswer { status: 200, content: assembled.content, ..RecordedAnswer::default() };
        let mut record = CassetteRecord { method: "POST".into(), path: path.into(), answer, ..CassetteRecord::default() };
        let mut side = Sidecar { head: assembled.head, events: events.into(), ..Sidecar::default() };
        prop_assert!(redact(&RedactionRules::all(), &mut record, &mut side).had_any, "nothing found");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yaml");
        let mut writer = CassetteWriter::create(&file, &Header::default(), WriteMode::Replace).unwrap();
        writer.add(RecordedExchange { record: record.clone(), side, is_retry: false });
        writer.finish().unwrap();
        let written = std::fs::read_to_string(&file).unwrap();
        let timing = std::fs::read_to_string(folder.path().join("a.vcr/timing.jsonl")).unwrap();
        prop_assert!(!written.contains(part) && !timing.contains(part), "{written}\n{timing}");
        let whole = texts(&record.answer.shown());
        prop_assert!(!whole.contains(part), "{whole}");
        prop_assert!(secrets(&RedactionRules::all(), &recording::cassette::load(&file).unwrap()).is_empty(), "{written}");
    }
}

#[cfg(unix)]
#[test]
fn a_sidecar_behind_a_link_is_not_searched() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.yaml");
    let answer = RecordedAnswer { status: 200, ..RecordedAnswer::default() };
    let record = CassetteRecord { method: "GET".into(), path: "/x".into(), answer, ..CassetteRecord::default() };
    let mut writer = CassetteWriter::create(&file, &Header::default(), WriteMode::Replace).unwrap();
    writer.add(RecordedExchange { record, side: Sidecar::default(), is_retry: false });
    writer.finish().unwrap();
    let cassette = recording::cassette::load(&file).unwrap();
    let (timing, away) = (folder.path().join("a.vcr/timing.jsonl"), folder.path().join("elsewhere"));
    std::fs::write(&away, "to jane.doe@example.org\n").unwrap();
    std::fs::create_dir_all(timing.parent().unwrap()).unwrap();
    std::fs::write(&timing, "to jane.doe@example.org\n").unwrap();
    assert_eq!(secrets(&RedactionRules::all(), &cassette).len(), 1);
    std::fs::remove_file(&timing).unwrap();
    std::os::unix::fs::symlink(&away, &timing).unwrap();
    assert!(secrets(&RedactionRules::all(), &cassette).is_empty());
}

/// The texts of events at one place after redaction.
fn redacted(field: &str, texts: &[&str]) -> Vec<String> {
    let mut events: Vec<SseEvent> =
        texts.iter().map(|text| SseEvent { name: None, data: json!({ field: text }) }).collect();
    redact_events(&mut Redactor::new(&RedactionRules::default()), &mut events);
    events.iter().map(|event| event.data[field].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_events_repeat_is_redacted_in_each_and_so_are_lines() {
    let key = "ghp_abcdefghijklmnopqrstuvwxyz0123456789";
    let placeholder = "[REDACTED:github_token:1]";
    assert_eq!(redacted("id", &[key, key, key]), [placeholder; 3]);
    assert_eq!(redacted("id", &[key, " x", key, " y"]), [placeholder, " x", placeholder, " y"]);
    // Each may be the rest of a longer one.
    assert_eq!(redacted("id", &[key, "x", key, "y"]), [placeholder, "", "[REDACTED:github_token:2]", ""]);
    let password = redacted("instructions", &["password: Zx81kqPw55"; 4]);
    assert_eq!(password, ["password: [REDACTED:assigned:1]"; 4]);
    let lines = [
        "export GITHUB_TOKEN=abcd1234efgh5678",
        "Finished",
        "Authorization: Bearer AbCdEf0123456789xyz",
        "Next step: commit",
    ];
    // The beginning of a line may be the rest of a secret before it.
    let clean = [
        "export GITHUB_TOKEN=[REDACTED:assigned:1]",
        "",
        "[REDACTED:assigned:2]: Bearer [REDACTED:bearer:1]",
        " step: commit",
    ];
    assert_eq!(redacted("log", &lines), clean);
    let cut = ["the key is sk-proj-AbCdEfGhIjKlMnOpQr", "St1234abcdefgh of us"];
    assert_eq!(redacted("log", &cut), ["the key is [REDACTED:api_key:1]", " of us"]);
    let key_in_lines =
        ["-----BEGIN RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA", "q83v", "-----END RSA PRIVATE KEY-----", "Read"];
    assert_eq!(redacted("log", &key_in_lines), ["[REDACTED:private_key:1]", "", "", "", "Read"]);
    for pieces in [
        ["the key ", "ghp_abcdefghijklmnopqr", "stuvwxyz0123456789"],
        ["a", "the key ghp_abcdefghijklmnopqr", "stuvwxyz0123456789"],
    ] {
        assert_eq!(
            redacted("log", &pieces).concat(),
            format!("{}{placeholder}", pieces.concat().split("ghp_").next().unwrap())
        );
    }
}

#[test]
fn a_tag_that_ends_as_a_secret_begins_is_not_cut() {
    let body = json!({"prompt": "the key ghp_abcdefghijklmnopqrstuvwxyz0123456789"});
    let cut = "ghp_abcdefghijklmnopqr";
    let answer = RecordedAnswer { content: AnswerContent::Text(cut.to_owned()), ..RecordedAnswer::default() };
    let mut record =
        CassetteRecord { body: body.into(), tags: vec![cut.to_owned()], answer, ..CassetteRecord::default() };
    assert!(redact(&RedactionRules::default(), &mut record, &mut Sidecar::default()).had_any);
    assert_eq!(record.answer.content, AnswerContent::Text("[REDACTED:github_token:1]".to_owned()));
    assert_eq!(record.tags, [cut]);
}

#[test]
fn a_secret_over_lines_of_json_is_found() {
    let line = |text: &str| format!("{}\n", json!({"message": {"role": "assistant", "content": text}, "done": false}));
    let rest = line(" fine");
    let body = [line("it is ghp_abcdefghijklm"), line("nopqrstuvwxyz0123456789 yes"), rest.clone()].concat();
    let answer = RecordedAnswer { status: 200, content: AnswerContent::Text(body), ..RecordedAnswer::default() };
    let mut record =
        CassetteRecord { method: "POST".into(), path: "/api/chat".into(), answer, ..CassetteRecord::default() };
    assert!(redact(&RedactionRules::default(), &mut record, &mut Sidecar::default()).had_any);
    let clean = [line("it is [REDACTED:github_token:1]"), line(" yes"), rest].concat();
    assert_eq!(record.answer.content, AnswerContent::Text(clean));
}

#[test]
fn a_partial_record_keeps_its_events_without_their_secrets() {
    let event = |text: &str| json!({"choices": [{"index": 0, "delta": {"content": text}}]}).to_string();
    let data = ["is ghp_abcdefghijklm", "nopqrstuvwxyz0123456789", " ok"].map(event);
    let events: Vec<Moment> = data.into_iter().map(|data| Moment(1.0, Some(data), None)).collect();
    let content = assemble::events("/v1/chat/completions", &events).content;
    let answer = RecordedAnswer { status: 200, content, ..RecordedAnswer::default() };
    let mut record = CassetteRecord { answer, aborted: Some(3), ..CassetteRecord::default() };
    let mut side = Sidecar { events: events.into(), ..Sidecar::default() };
    assert!(redact(&RedactionRules::default(), &mut record, &mut side).had_any);
    let data: Vec<&str> = side.events.iter().filter_map(|Moment(_, data, _)| data.as_deref()).collect();
    assert_eq!(data, [event("is [REDACTED:github_token:1]"), event(""), event(" ok")]);
}
