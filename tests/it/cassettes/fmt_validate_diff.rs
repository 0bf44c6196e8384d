//! `vllm-vcr cassette`.

use super::{Shelf, record, tape, vcr};

fn ran(arguments: &[&str]) -> (i32, String) {
    let output = vcr(arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap(), text)
}

#[test]
fn fmt_writes_what_the_recorder_would() {
    let shelf = Shelf::with(&format!("# comment\n{}", tape(&[record(&["a"], "One\ntwo")])));
    let name = shelf.name();
    assert_eq!(ran(&["cassette", "fmt", "--check", name]), (1, format!("{name} would change\n")));
    assert_eq!(ran(&["cassette", "fmt", name]).0, 0);
    assert!(shelf.text().contains("content: |-\n        One\n        two\n"), "{}", shelf.text());
    assert_eq!(ran(&["cassette", "fmt", "--check", name]).0, 0);
    let before = shelf.text();
    let continued = format!(
        "{before}- like: 0\n  body: {{messages+: [{{role: user, content: more}}]}}\n  answer: {{message: {{role: assistant, content: B}}}}\n"
    );
    std::fs::write(&shelf.file, continued).unwrap();
    assert_eq!(ran(&["cassette", "fmt", "--expand", name]).0, 0);
    let expanded = shelf.text();
    assert!(!expanded.contains("like:") && expanded.matches("One\n").count() == 2, "{expanded}");
}

#[test]
fn validate_goes_on_after_a_file_that_cannot_be_read() {
    let shelf = Shelf::with("vcr: 1\nrecords: [\n");
    std::fs::write(shelf.folder.path().join("after.yaml"), tape(&[record(&["a"], "A")])).unwrap();
    std::fs::write(shelf.folder.path().join("zebra.yaml"), tape(&[record(&["a"], "A")])).unwrap();
    let (code, said) = ran(&["cassette", "validate", shelf.folder.path().to_str().unwrap()]);
    assert_eq!(code, 3, "{said}");
    for part in ["tape.yaml:", "after.yaml: 1 record", "zebra.yaml: 1 record"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn validate_finds_what_has_no_effect() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    assert_eq!(ran(&["cassette", "validate", shelf.name()]).0, 0);
    std::fs::write(&shelf.file, shelf.text().replace("  answer:", "  bodi: 1\n  answer:")).unwrap();
    let (code, text) = ran(&["cassette", "validate", shelf.name()]);
    assert_eq!(code, 1);
    assert!(text.contains(&format!("{}:5: `bodi`", shelf.name())), "{text}");
    std::fs::write(&shelf.file, "vcr: 1\nrecords: [\n").unwrap();
    let (code, text) = ran(&["cassette", "validate", shelf.name()]);
    assert_eq!(code, 3);
    assert!(text.contains(&format!("{}:", shelf.name())), "{text}");
}

#[test]
fn diff_pairs_equal_requests_and_tells_what_changed() {
    let old = Shelf::with(&tape(&[record(&["a"], "A"), record(&["b"], "B"), record(&["c"], "C")]));
    let new = Shelf::with(&tape(&[record(&["b"], "B2"), record(&["a"], "A"), record(&["c2"], "C")]));
    let diff = |flags: &[&str]| ran(&[&["cassette", "diff", old.name(), new.name()], flags].concat());
    assert_eq!(ran(&["cassette", "diff", old.name(), old.name()]), (0, String::new()));
    let (code, text) = diff(&[]);
    assert_eq!(code, 1);
    assert!(text.contains(r#"answer $.message.content: "B" -> "B2""#), "{text}");
    assert!(text.contains(r#"request $.messages[0].content: "c" -> "c2""#), "{text}");
    let (_, outputs) = diff(&["--type", "output"]);
    assert!(outputs.contains("B2") && !outputs.contains("request"), "{outputs}");
    assert_eq!(diff(&["--type", "tools"]).0, 0);
}

#[test]
fn diff_pairs_what_the_user_says_where_all_prompts_changed() {
    let asked = |system: &str, city: &str| {
        let messages = serde_json::json!([{"role": "system", "content": system}, {"role": "user", "content": city}]);
        let body = serde_json::json!({"model": "m", "messages": messages});
        format!(
            "- request: POST /v1/chat/completions\n  body: {body}\n  answer: {{message: {{role: assistant, content: {city}}}}}\n"
        )
    };
    let old = Shelf::with(&tape(&["Rome", "Oslo"].map(|city| asked("Be kind.", city))));
    let new = Shelf::with(&tape(&["Oslo", "Rome"].map(|city| asked("Be brief.", city))));
    let (code, text) = ran(&["cassette", "diff", old.name(), new.name()]);
    assert!(code == 1 && text.contains("Be brief.") && !text.contains("answer"), "{text}");
}

#[test]
fn a_folder_stands_for_the_cassettes_below_it_too() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let folder = shelf.folder.path();
    let of_test = folder.join("test_agent");
    std::fs::create_dir_all(of_test.join("deep")).unwrap();
    let key = record(&["the key sk-proj-Zm9vYmFyYmF6cXV4cXV1eGNvcmdlZ3JhdWx0 is secret"], "A");
    std::fs::write(of_test.join("deep/test_key.yaml"), tape(&[key])).unwrap();
    std::fs::write(of_test.join("settings.yaml"), "other: 1\n").unwrap();
    let (code, said) = ran(&["cassette", "validate", folder.to_str().unwrap()]);
    assert!(code == 3 && said.contains("tape.yaml: 1 record") && said.contains("deep/test_key.yaml:3"), "{said}");
    assert!(!said.contains("settings.yaml"), "{said}");
}

#[test]
fn recorded_line_feeds_begin_no_line_of_what_is_printed() {
    let forging = |word: &str| {
        let body = serde_json::json!({"model": "m", "messages": [], "a\nforged: 1": word, "b\rforged: 2": word});
        format!(
            "- request: POST /v1/chat/completions\n  body: {body}\n  answer: {{message: {{role: assistant, content: {word}}}}}\n"
        )
    };
    let (old, new) = (Shelf::with(&tape(&[forging("one")])), Shelf::with(&tape(&[forging("two")])));
    let (code, text) = ran(&["cassette", "diff", old.name(), new.name()]);
    assert!(code == 1 && text.contains(r"a\nforged: 1"), "{text}");
    assert!(!text.split(['\n', '\r']).any(|line| line.starts_with("forged")), "{text}");
}

#[test]
fn a_folder_stands_for_its_cassettes() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let folder = shelf.folder.path();
    let other = folder.join("other.yaml");
    std::fs::write(&other, tape(&[record(&["the key sk-proj-Zm9vYmFyYmF6cXV4cXV1eGNvcmdlZ3JhdWx0 is secret"], "A")]))
        .unwrap();
    std::fs::write(folder.join("bad.yaml"), "vcr: 1\nrecords: 7\n").unwrap();
    let tool = |arguments: &[&str]| ran(&[&["cassette"][..], arguments, &[folder.to_str().unwrap()]].concat());
    let (code, said) = tool(&["validate"]);
    assert!(code == 3 && said.contains("tape.yaml: 1 record"), "{said}");
    assert!(said.lines().any(|line| line.starts_with("secret: ") && line.contains("other.yaml:3")), "{said}");
    let (code, said) = tool(&["redact"]);
    assert!(
        code == 3 && said.contains("other.yaml: secrets in 1 of 1 record") && said.contains("bad.yaml:2"),
        "{said}"
    );
    let (code, said) = tool(&["fmt", "--check"]);
    assert!(code == 3 && said.contains("tape.yaml would change") && said.contains("bad.yaml:2"), "{said}");
    std::fs::remove_file(folder.join("bad.yaml")).unwrap();
    assert_eq!(tool(&["validate"]).0, 0);
    assert_eq!(tool(&["fmt", "--check"]).0, 1);
    std::fs::remove_file(&other).unwrap();
    std::fs::remove_file(shelf.name()).unwrap();
    let (code, said) = tool(&["validate"]);
    assert!(code == 3 && said.contains("has no cassettes (*.yaml)"), "{said}");
}

#[test]
fn merge_puts_cassettes_together() {
    let one = Shelf::with(&format!("ignore: [$.user]\n{}", tape(&[record(&["a"], "A"), record(&["b"], "B")])));
    let continued = "- like: 0\n  body: {messages+: [{role: user, content: more}]}\n  answer: {message: {role: assistant, content: D}}\n";
    let two = Shelf::with(&format!("scrub: ['s/1/2/']\n{}{continued}", tape(&[record(&["c"], "C")])));
    let to = one.folder.path().join("sub/whole.yaml");
    let merge = |to: &str, other: &str| ran(&["cassette", "merge", one.name(), other, "-o", to]);
    let to = to.to_str().unwrap();
    assert_eq!(merge(to, two.name()), (0, format!("{to}: 4 records of 2 cassettes\n")));
    let text = std::fs::read_to_string(to).unwrap();
    assert!(text.contains("ignore: [$.user]") && text.contains("scrub: [s/1/2/]"), "{text}");
    assert!(text.contains("- id: 3\n") && text.contains("like: 2\n") && !text.contains("- id: 4\n"), "{text}");
    assert_eq!(ran(&["cassette", "validate", to]).0, 0);
    let (code, text) = merge(to, two.name());
    assert!(code == 2 && text.contains("exists"), "{text}");
    let off = Shelf::with(&format!("redact: {{level: off}}\n{}", tape(&[record(&["d"], "D")])));
    for (at, (first, second)) in [(&one, &off), (&off, &one)].into_iter().enumerate() {
        let both = one.folder.path().join(format!("off{at}.yaml"));
        assert_eq!(ran(&["cassette", "merge", first.name(), second.name(), "-o", both.to_str().unwrap()]).0, 0);
        assert!(std::fs::read_to_string(both).unwrap().contains("level: \"off\""), "{at}");
    }
    let other = one.folder.path().join("other.yaml");
    let (code, text) = merge(other.to_str().unwrap(), one.name());
    assert!(code == 2 && text.contains("is named twice"), "{text}");
    let tokens = two.file.with_extension("vcr").join("tokens.jsonl");
    std::fs::create_dir_all(&tokens).unwrap();
    let (code, text) = merge(other.to_str().unwrap(), two.name());
    assert!(code != 0 && text.starts_with(&format!("error: {}: ", tokens.display())) && !other.exists(), "{text}");
    let strict = Shelf::with(&format!("match: [exact]\n{}", tape(&[record(&["c"], "C")])));
    let (code, text) = merge(other.to_str().unwrap(), strict.name());
    assert!(code == 3 && text.contains("`match` at its top differs") && !other.exists(), "{text}");
}
