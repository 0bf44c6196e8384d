//! What is redacted: keys and tokens, personal data where that is asked for, and what rules name.

use serde_json::{Value, json};

use super::{CHAT, Shelf, chat, engine, said, vcr};

const EMAIL: &str = "jane.doe@example.org";
const KEY: &str = "ghp_abcdefghijklmnopqrstuvwxyz0123456789";
const AWS: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzLmQ3rTyVw";
const PHONE: &str = "+49 30 901820";
const SSN: &str = "078-05-1120";

/// Records a chat with one of each kind; the cassette's text.
async fn recorded(flags: &[&str]) -> Shelf {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, flags);
    let answer = tap.send(CHAT, &all_kinds()).await;
    assert!(said(&answer).contains(EMAIL), "{}", answer.text());
    tap.stop();
    shelf
}

fn all_kinds() -> Value {
    let words = format!("mail {EMAIL} with {KEY}, my AWS secret access key is {AWS}, call {PHONE}, SSN {SSN}.");
    let mut body = chat(&[&words]);
    (body["bearer"], body["acme_id"]) = (json!("a-bearer-value"), json!("an-acme-value"));
    body
}

/// Which of the values a text holds.
fn holds(text: &str) -> Vec<&'static str> {
    let all = [EMAIL, KEY, AWS, PHONE, SSN, "a-bearer-value", "an-acme-value"];
    all.into_iter().filter(|value| text.contains(value)).collect()
}

#[tokio::test]
async fn by_default_keys_and_tokens_are_redacted_and_personal_data_is_not() {
    for flags in [&[][..], &["--redact", "secrets"]] {
        let shelf = recorded(flags).await;
        assert_eq!(holds(&shelf.text()), [EMAIL, PHONE, SSN, "an-acme-value"], "{}", shelf.text());
        assert!(!shelf.text().contains("shapes:"), "{}", shelf.text());
        let answer = said(&shelf.play(&[]).send(CHAT, &all_kinds()).await);
        assert_eq!(holds(&answer), [EMAIL, KEY, AWS, PHONE, SSN], "{answer}");
    }
}

#[tokio::test]
async fn personal_data_is_redacted_where_that_is_asked_for() {
    let shelf = recorded(&["--redact", "all"]).await;
    assert_eq!(holds(&shelf.text()), ["an-acme-value"], "{}", shelf.text());
    assert!(shelf.text().contains("shapes: [all]"), "{}", shelf.text());
    let answer = said(&shelf.play(&[]).send(CHAT, &all_kinds()).await);
    assert_eq!(holds(&answer), [EMAIL, KEY, AWS, PHONE, SSN], "the header has what was asked for: {answer}");
    let shelf = recorded(&["--redact", "phone", "--redact", "$.acme_id"]).await;
    assert_eq!(holds(&shelf.text()), [EMAIL, SSN], "{}", shelf.text());
    assert!(shelf.text().contains("shapes: [phone]"), "{}", shelf.text());
    assert_eq!(shelf.play(&[]).send(CHAT, &all_kinds()).await.status, 200);
}

#[tokio::test]
async fn off_redacts_what_rules_name_and_nothing_else() {
    let shelf = recorded(&["--redact", "off", "--redact-key", "bearer"]).await;
    assert_eq!(holds(&shelf.text()), [EMAIL, KEY, AWS, PHONE, SSN, "an-acme-value"], "{}", shelf.text());
    assert_eq!(vcr(&["cassette", "validate", shelf.name()]).status.code(), Some(3), "it holds secrets still");
    assert!(shelf.text().contains("redact: {level: \"off\", keys: [bearer]}\n"), "{}", shelf.text());
    let answer = said(&shelf.play(&[]).send(CHAT, &all_kinds()).await);
    assert_eq!(holds(&answer), [EMAIL, KEY, AWS, PHONE, SSN], "the choice at the top counts: {answer}");
}

#[tokio::test]
async fn the_end_of_an_unredacted_recording_says_what_to_do_and_that_helps() {
    let (upstream, shelf) = (engine().await, Shelf::empty());
    let record = async |flags: &[&str]| {
        let tap = shelf.tap(&upstream, flags);
        tap.send(CHAT, &all_kinds()).await;
        tap.stop().1
    };
    let advice = format!("{} holds secrets (--redact off): keep it private.", shelf.name());
    assert!(record(&["--redact", "off"]).await.contains(&advice));
    let play = || vcr(&["play", "--port", "0", "--cassette", shelf.name(), "--", "true"]);
    assert_eq!(play().status.code(), Some(0));
    assert_eq!(vcr(&["cassette", "redact", shelf.name()]).status.code(), Some(0));
    assert!(!shelf.text().contains("level:") && !holds(&shelf.text()).contains(&KEY), "{}", shelf.text());
    assert_eq!(vcr(&["cassette", "validate", shelf.name()]).status.code(), Some(0));

    // A file without the choice is refused as before, whoever wrote it; one that is recorded again is redacted.
    assert!(record(&["--redact", "off", "--mode", "all"]).await.contains(&advice));
    let chosen = shelf.text();
    std::fs::write(&shelf.file, chosen.replace("level: \"off\"", "level: secrets")).unwrap();
    assert_eq!(play().status.code(), Some(3));
    std::fs::write(&shelf.file, chosen).unwrap();
    assert!(!record(&["--mode", "all"]).await.contains("holds secrets (--redact off)"));
    assert!(!shelf.text().contains("level:") && !holds(&shelf.text()).contains(&KEY), "{}", shelf.text());
    for (level, why) in [("of", "`level` is off or secrets, not `of`"), ("[off]", "`level` has to be text")] {
        std::fs::write(&shelf.file, format!("vcr: 1\nredact:\n  level: {level}\nrecords: []\n")).unwrap();
        let said = String::from_utf8(play().stderr).unwrap();
        assert!(said.contains(":3: ") && said.contains(why), "{said}");
    }
}

#[test]
fn a_server_that_was_recorded_without_redaction_is_played() {
    let record = |key: &str| {
        format!(
            "vcr: 1\n{key}records:\n- request: POST /mcp/s\n  body: {{method: tools/list}}\n  answer: {{json: {{result: {{tools: [{{name: {KEY}}}]}}}}}}\n"
        )
    };
    for (key, code) in [("redact: {level: off}\n", 0), ("redact: {level: secrets}\n", 3), ("", 3)] {
        let shelf = Shelf::with(&record(key));
        assert_eq!(vcr(&["mcp-play", "--cassette", shelf.name()]).status.code(), Some(code), "{key}");
        assert_eq!(vcr(&["play", "--port", "0", "--cassette", shelf.name(), "--", "true"]).status.code(), Some(code));
    }
}

#[tokio::test]
async fn an_expression_finds_names_and_stands_in_the_header() {
    let shelf = recorded(&["--redact-key", "/^acme_/"]).await;
    assert_eq!(holds(&shelf.text()), [EMAIL, PHONE, SSN], "{}", shelf.text());
    assert!(shelf.text().contains("/^acme_/"), "{}", shelf.text());
    let mut other = all_kinds();
    other["acme_id"] = json!("another value");
    assert_eq!(shelf.play(&[]).send(CHAT, &other).await.status, 200, "names that are secrets do not count");
}

#[test]
fn what_is_no_level_no_shape_and_no_place_is_refused() {
    for (flags, why) in [
        (&["--redact", "everything"][..], "--redact `everything` is not one of off, secrets, all, email, phone, ssn"),
        (&["--redact", "jwt"], "--redact `jwt` is not one of"),
        (&["--redact", "off", "--redact", "all"], "--redact takes one of off, secrets and all, not off and all"),
        (&["--redact-key", "/(/"], "`/(/` is not a regular expression"),
    ] {
        let ran = vcr(&[&["cassette", "validate", "none.yaml"], flags].concat());
        let said = String::from_utf8(ran.stderr).unwrap();
        assert!(ran.status.code() == Some(2) && said.contains(why), "{said}");
    }
    let shelf = Shelf::with("vcr: 1\nredact:\n  shapes: [email, fax]\nrecords: []\n");
    let ran = vcr(&["cassette", "validate", shelf.name()]);
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(ran.status.code() == Some(3) && said.contains(":3: `fax` is no personal data"), "{said}");
}
