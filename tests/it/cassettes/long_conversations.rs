//! Long conversations, each turn of which continues the one before.

use serde_json::{Value, json};

use super::{CHAT, Shelf, vcr};

const TURNS: usize = 300;

/// A conversation as it is written by hand, and the request of its last turn in full.
fn conversation() -> (String, Value) {
    let (mut records, mut messages) = (String::new(), Vec::new());
    for turn in 0..TURNS {
        let (asked, said) = (format!("question {turn}"), format!("answer {turn}"));
        let start = match turn {
            0 => format!(
                "  request: POST {CHAT}\n  body:\n    model: m\n    messages:\n    - {{role: user, content: {asked}}}\n"
            ),
            _ => format!("  like: {}\n  body:\n    messages+:\n    - {{role: user, content: {asked}}}\n", turn - 1),
        };
        records.push_str(&format!(
            "- id: {turn}\n  at: llm:m\n{start}  answer:\n    status: 200\n    message: {{role: assistant, content: {said}}}\n    finish_reason: stop\n"
        ));
        messages.push(json!({"role": "user", "content": asked}));
        if turn + 1 < TURNS {
            messages.push(json!({"role": "assistant", "content": said}));
        }
    }
    let top = "# vllm-vcr cassette. Edit answers freely; editing a request changes what it matches.\nvcr: 1\nkey: 1\nignore: []\nscrub: []\n";
    (format!("{top}records:\n{records}"), json!({"model": "m", "messages": messages}))
}

#[tokio::test]
async fn any_turn_is_found_and_the_tools_work() {
    let (text, last) = conversation();
    let shelf = Shelf::with(&text);
    let play = shelf.play(&["--match", "canonical,prefix"]);
    let answer = play.send(CHAT, &last).await;
    assert_eq!(answer.header("x-vcr-record"), Some("tape.yaml#299"), "{}", answer.text());
    let mut other = last.clone();
    other["messages"][400]["content"] = json!("something else");
    // The longest start that it shares: 400 messages are those before the 201st question.
    assert_eq!(play.send(CHAT, &other).await.header("x-vcr-record"), Some("tape.yaml#200"));
    assert!(vcr(&["cassette", "fmt", shelf.name()]).status.success());
    let text = shelf.text();
    for command in [&["validate"][..], &["fmt", "--check"], &["diff", shelf.name()], &["redact"]] {
        let ran = vcr(&[&["cassette"], command, &[shelf.name()]].concat());
        let told = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
        assert!(ran.status.success(), "{command:?}: {told}");
    }
    assert_eq!(shelf.text(), text);
}

#[test]
fn a_secret_is_taken_out_of_every_turn_that_repeats_it() {
    let (text, _) = conversation();
    let planted = text.replace("question 7}", "mail me at alice.smith@example.com}");
    let shelf = Shelf::with(&planted);
    let ran = vcr(&["cassette", "redact", shelf.name(), "--redact", "email"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let redacted = shelf.text();
    assert!(!redacted.contains("alice"), "{redacted}");
    assert_eq!(redacted.matches("[REDACTED:email:1]").count(), 1, "later turns continue the redacted one");
    assert!(redacted.contains("like: 298\n"));
    assert!(vcr(&["cassette", "validate", shelf.name()]).status.success());
}
