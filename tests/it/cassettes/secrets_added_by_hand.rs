//! Secrets that were put into a cassette by hand, anywhere in it and beside it.

use super::{CHAT, Shelf, chat, engine, read, record, tape, vcr};

const SECRET: &str = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD";

/// Its exit code and its output, which never has the secret.
fn run(arguments: &[&str]) -> (i32, String) {
    let output = vcr(arguments);
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!said.contains(SECRET), "{arguments:?}: {said}");
    (output.status.code().unwrap(), said)
}

#[test]
fn every_place_of_a_cassette_is_searched_and_cleaned() {
    let whole = tape(&[record(&["a"], "A")]);
    let coded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, format!("\u{ff} {SECRET}"));
    let with = |record: &str| format!("{whole}- request: POST /x\n{record}");
    for (text, line) in [
        (format!("# {SECRET}\n{whole}"), 1),
        (with(&format!("  tags: [{SECRET}]\n  answer: {{}}\n")), 6),
        (with(&format!("  answer: {{events: [{{event: {SECRET}, data: x}}]}}\n")), 6),
        (with(&format!("  answer: {{json: {{{SECRET}: 1}}}}\n")), 6),
        (with(&format!("  answer: {{{SECRET}: 1}}\n")), 7),
        (with(&format!("  {SECRET}: 1\n  answer: {{}}\n")), 7),
        (with(&format!("  body_base64: {coded}\n  answer: {{}}\n")), 6),
        (with(&format!("  answer: {{body_base64: {coded}}}\n")), 6),
        (whole.replace("records:", &format!("recorded: {{by: {SECRET}}}\nrecords:")), 2),
        (whole.replace("records:", "recorded:\n  api_key: dishwasher-42\nrecords:"), 2),
        (whole.replace("records:", &format!("scrub:\n- s/{SECRET}/x/\nrecords:")), 3),
        (format!("{whole}tools:\n  unused: {{description: {SECRET}}}\n"), 7),
    ] {
        let shelf = Shelf::with(&text);
        let (code, said) = run(&["cassette", "validate", shelf.name()]);
        assert_eq!(code, 3, "{text}: {said}");
        assert!(said.contains(&format!("secret: {}:{line}: ", shelf.name())), "{text}: {said}");
        let (code, said) = run(&["play", "--port", "0", "--cassette", shelf.name(), "--", "true"]);
        assert_eq!(code, 3, "{text}: {said}");
        let (code, said) = run(&["cassette", "redact", shelf.name()]);
        assert_eq!(code, 0, "{text}: {said}");
        assert!(!shelf.text().contains(SECRET) && !shelf.text().contains(&coded), "{}", shelf.text());
        let (code, said) = run(&["play", "--port", "0", "--cassette", shelf.name(), "--", "true"]);
        assert_eq!(code, 0, "{text}: {said}");
    }
}

#[tokio::test]
async fn what_was_taken_out_of_the_text_by_hand_is_found_beside_it() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &["--redact-env", "PATH"]);
    let mut body = chat(&["harmless words"]);
    body["stream"] = true.into();
    tap.send(CHAT, &body).await;
    tap.stop();
    let timing = shelf.folder.path().join("tape.vcr/timing.jsonl");
    // As if it had been recorded by somebody who did not know of such secrets: cut over many events.
    let pieces = ["You said ", "sk-proj-abcdefghijklm", "nopqrstuvwxyz0123456789ABCD", "."];
    let event = |text: &str| {
        let data = serde_json::json!({"choices": [{"index": 0, "delta": {"content": text}}]}).to_string();
        serde_json::json!([1.0, data])
    };
    let mut side: serde_json::Value = serde_json::from_str(read(&timing).trim()).unwrap();
    side["events"] = pieces.iter().map(|piece| event(piece)).collect();
    side["answer"] = "0000000000000000".into();
    std::fs::write(&timing, side.to_string() + "\n").unwrap();
    let (code, said) = run(&["cassette", "validate", shelf.name()]);
    assert!(code == 3 && said.contains("tape.vcr/timing.jsonl"), "{said}");
    assert_eq!(run(&["play", "--port", "0", "--cassette", shelf.name(), "--", "true"]).0, 3);
    assert_eq!(run(&["cassette", "redact", shelf.name()]).0, 0);
    let left = read(&timing);
    assert!(!left.contains("abcdefghijklm") && !left.contains("nopqrstuvwxyz"), "{left}");
    assert_eq!(run(&["cassette", "validate", shelf.name()]).0, 0);
}

#[test]
fn bodies_that_no_record_names_are_searched_and_removed() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let folder = shelf.folder.path().join("tape.vcr/blobs");
    std::fs::create_dir_all(&folder).unwrap();
    let blob = folder.join(format!("sha256-{}", "1".repeat(64)));
    std::fs::write(&blob, format!("\0 {SECRET}")).unwrap();
    let (code, said) = run(&["cassette", "validate", shelf.name()]);
    assert!(code == 3 && said.contains("blobs/sha256-1111"), "{said}");
    assert_eq!(run(&["cassette", "redact", shelf.name()]).0, 0);
    assert!(!blob.exists());
}

#[test]
fn a_line_break_before_a_word_makes_no_address() {
    let code = "def f():\n\n@app.route('/')\n\t@pytest.mark.slow";
    let nested = serde_json::json!({"code": code}).to_string();
    let shelf = Shelf::with(&tape(&[record(&[code, &nested, &serde_json::json!(nested).to_string()], code)]));
    let (code, said) = run(&["cassette", "validate", shelf.name()]);
    assert_eq!(code, 0, "{said}");
}

#[test]
fn a_rule_does_not_find_itself() {
    let top = "redact:\n  patterns: ['name=Jane']\n";
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]).replace("records:", &format!("{top}records:")));
    let (code, said) = run(&["cassette", "validate", shelf.name()]);
    assert_eq!(code, 0, "{said}");
}
