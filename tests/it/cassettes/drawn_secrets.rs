//! Redaction of texts that are changed at random: in bounded time, to a bounded size, and a secret under a secret name is
//! nowhere in the result.

use serde_json::{Value, json};
use vllm_vcr::recording::redaction::{RedactionRules, Redactor};

use crate::support::drawn_bytes::{Run, cut};

/// A value of no shape, which only its name makes a secret.
const PLANTED: &str = "Zq7-planted-91x";

/// The longest placeholder of the rules, in bytes for each byte that it stands for.
const GROWTH: usize = 40;

fn is_bounded(before: usize, after: usize) {
    assert!(after <= before * GROWTH + 1024, "{before} bytes became {after}");
}

/// A record whose secret stands before its name, after it, and in pieces.
fn planted_around(text: &str) -> String {
    let before = format!("before {PLANTED}");
    let after = format!("{{\"nested\": \"{PLANTED}\"}}");
    let object = |key: &str, value: Value| format!("{}:{value}", Value::from(key));
    let entries = [
        object("before", before.into()),
        object("password", PLANTED.into()),
        object("drawn", text.into()),
        object("after", json!([after, { "deep": PLANTED }])),
    ];
    format!("{{{}}}", entries.join(","))
}

fn redacted(bytes: &[u8], cuts: &[Vec<u8>]) {
    let rules = RedactionRules::default();
    let text = String::from_utf8_lossy(bytes);

    let clean = Redactor::new(&rules).body(bytes);
    is_bounded(bytes.len(), clean.map_or(0, |clean| clean.len()));

    let record = planted_around(&text);
    let clean = Redactor::new(&rules).json_text(&record).expect("there is a secret");
    assert!(!clean.contains(PLANTED), "{record:?} became {clean:?}");
    assert!(serde_json::from_str::<Value>(&clean).is_ok(), "{record:?} became {clean:?}");
    is_bounded(record.len(), clean.len());

    let whole = Redactor::new(&rules).text(&text);
    let mut pieces: Vec<String> = cuts.iter().map(|piece| String::from_utf8_lossy(piece).into_owned()).collect();
    let (count, joined) = (pieces.len(), pieces.concat());
    let found = Redactor::new(&rules).pieces(&mut pieces);
    assert_eq!(pieces.len(), count);
    if joined == text {
        assert_eq!((pieces.concat(), found), (whole.clone().unwrap_or(joined), whole.is_some()), "{text:?}");
    }
}

fn secrets(run: Run) {
    run.each_input("secrets", |input, random| redacted(input, &cut(input, random)));
}

#[test]
fn drawn_texts_are_redacted_in_bounded_time_and_size() {
    secrets(Run::short_of(60));
}

#[test]
#[ignore = "runs for VCR_FUZZ_SECONDS"]
fn secrets_for_long() {
    secrets(Run::long());
}
