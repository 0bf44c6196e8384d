//! Files that are damaged, or say what cannot be: the right file and the right line are named.

use super::{CHAT, Shelf, chat, engine, read, record, said, tape, vcr};

/// Runs a tool; returns its exit code and its output.
fn run(arguments: &[&str]) -> (i32, String) {
    let output = vcr(arguments);
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8_lossy(&said).into_owned())
}

#[tokio::test]
async fn a_recording_that_cannot_be_read_is_put_aside() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let partial = shelf.folder.path().join("tape.yaml.partial");
    let torn = format!("{}- request: POST {CHAT}\n  body: {{mod", tape(&[record(&["a"], "A")]));
    std::fs::write(&partial, &torn).unwrap();
    let tap = shelf.tap(&upstream, &[]);
    tap.send(CHAT, &chat(&["b"])).await;
    let (code, log) = tap.stop();
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("tape.yaml.partial.1") && log.contains("tape.yaml.partial:"), "{log}");
    assert_eq!(read(&shelf.folder.path().join("tape.yaml.partial.1")), torn);
    assert!(shelf.text().contains("You said b.") && !partial.exists());
}

#[test]
fn what_play_refuses_validate_refuses_too_and_both_name_the_line() {
    for (top, line) in [
        ("match:\n- canonical\n- psychic\n", 4),
        ("match: psychic\n", 2),
        ("ignore: ['$.a', 'no path']\n", 2),
        ("ignore:\n- $.a\n- no path\n", 4),
        ("scrub:\n- s/a/b/\n- s/(/b/\n", 4),
        ("scrub: [hello]\n", 2),
        ("match_headers:\n- x-ok\n- 'not a name'\n", 4),
        ("redact:\n  keys: [a]\n  patterns:\n  - a=b\n  - c=(\n", 6),
        ("redact:\n  places:\n  - nowhere\n", 4),
    ] {
        let shelf = Shelf::with(&format!("vcr: 1\n{top}records:\n{}", record(&["a"], "A")));
        let place = format!("{}:{line}: ", shelf.name());
        for arguments in [
            &["cassette", "validate", shelf.name()][..],
            &["play", "--port", "0", "--cassette", shelf.name(), "--", "true"],
        ] {
            let (code, said) = run(arguments);
            assert_eq!(code, 3, "{top}: {said}");
            assert!(said.contains(&place), "{arguments:?} {top}: {said}");
        }
    }
}

#[tokio::test]
async fn damage_of_a_sidecar_is_reported_and_costs_the_times_only() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    for word in ["a", "b", "c"] {
        tap.send(CHAT, &chat(&[word])).await;
    }
    tap.stop();
    let timing = shelf.folder.path().join("tape.vcr/timing.jsonl");
    let lines: Vec<String> = read(&timing).lines().map(str::to_owned).collect();
    let damaged = [lines[0].as_bytes(), b"\n{\"id\": 1, \"answ\xff\n", lines[2].as_bytes(), b"\n", lines[2].as_bytes()];
    std::fs::write(&timing, damaged.concat()).unwrap();
    let (code, said_of_it) = run(&["cassette", "validate", shelf.name()]);
    assert_eq!(code, 1, "{said_of_it}");
    for part in ["tape.vcr/timing.jsonl:2: this line is damaged", "tape.vcr/timing.jsonl:4: record 2 is there twice"] {
        assert!(said_of_it.contains(part), "{said_of_it}");
    }
    let play = shelf.play(&["--strict"]);
    for word in ["a", "b", "c"] {
        assert_eq!(said(&play.send(CHAT, &chat(&[word])).await), format!("You said {word}."));
    }
    let (code, log) = play.stop();
    assert!(code == 0 && log.contains("timing.jsonl:2"), "{log}");
}

#[test]
fn files_that_are_no_text_are_named_with_their_line() {
    let shelf = Shelf::with("");
    let mut text = tape(&[record(&["a"], "A")]).into_bytes();
    text.extend_from_slice(b"# \xff\n");
    std::fs::write(&shelf.file, text).unwrap();
    for tool in ["validate", "fmt", "redact"] {
        let (code, said) = run(&["cassette", tool, shelf.name()]);
        assert!(code == 3 && said.contains(&format!("{}:6: this is no UTF-8", shelf.name())), "{said}");
    }
}

#[test]
fn a_body_that_is_not_the_one_of_its_name_is_refused() {
    let name = format!("sha256-{}", "0".repeat(64));
    let text = format!("vcr: 1\nrecords:\n- request: POST /x\n  answer:\n    body_blob: {name}\n");
    let shelf = Shelf::with(&text);
    let folder = shelf.folder.path().join("tape.vcr/blobs");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(&name), b"other bytes").unwrap();
    let (code, said) = run(&["cassette", "validate", shelf.name()]);
    assert!(code == 3 && said.contains(&format!("{}:5: ", shelf.name())) && said.contains("damaged"), "{said}");
}

#[test]
fn the_mistakes_of_all_records_are_named_at_once() {
    let broken = "- id: x\n  match: any\n  times: 0\n  answer: x\n- request: POST /x\n- request: POST /x\n  like: 77\n  body: {}\n  \
                  answer: x\n- request: POST /x\n  like: 0\n  body: {}\n  answer: x\n";
    let shelf = Shelf::with(&format!("vcr: 1\nwrong: 1\nrecords:\n{broken}"));
    for arguments in [&["cassette", "validate", shelf.name()][..], &["play", "--port", "0", "--cassette", shelf.name()]]
    {
        let (code, said) = run(arguments);
        assert_eq!(code, 3, "{said}");
        for (line, part) in [
            (2, "`wrong` is no key of a cassette"),
            (4, "`id` has to be a number"),
            (6, "`times` has to be"),
            (8, "the record has no `answer`"),
            (9, "`like: 77` names no record before this one"),
        ] {
            assert!(said.contains(&format!("{}:{line}: {part}", shelf.name())), "{line} {part}: {said}");
        }
        assert_eq!(said.matches(shelf.name()).count(), 5, "what a broken record would give is no mistake: {said}");
    }
}

#[test]
fn what_cannot_be_written_at_the_end_is_an_error_at_the_start() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let nowhere = shelf.folder.path().join("no/folder/report.json");
    let mark = shelf.folder.path().join("ran");
    let script = format!("touch {}", mark.display());
    let fixed = ["play", "--port", "0", "--cassette", shelf.name()];
    let ran = ["--report", nowhere.to_str().unwrap(), "--", "sh", "-c", &script];
    let (code, said) = run(&[&fixed[..], &ran].concat());
    assert!(code == 4 && said.contains("report.json") && !mark.exists(), "{said}");
    let report = shelf.folder.path().join("report.json");
    std::fs::write(&report, "old").unwrap();
    let (code, said) = run(&["play", "--port", "0", "--cassette", "/no.yaml", "--report", report.to_str().unwrap()]);
    assert!(code == 3 && read(&report) == "old", "{said}");
}

#[test]
fn a_cassette_is_played_once() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let folder = shelf.folder.path().to_str().unwrap().to_owned();
    let (code, said) = run(&["play", "--port", "0", "--cassette", shelf.name(), "--cassette", &folder, "--", "true"]);
    assert!(code == 2 && said.contains("is named twice"), "{said}");
}

#[test]
fn ids_that_are_short_already_stay_when_a_cassette_comes_back_from_a_trace() {
    let text = format!(
        "vcr: 1\nrecords:\n- request: POST {CHAT}\n  body: {}\n  answer: {{message: {{role: assistant, content: null, \
         tool_calls: [{{id: msg_1, name: f, arguments: {{}}}}]}}, finish_reason: tool_calls, usage: {{prompt_tokens: 3, completion_tokens: 2}}}}\n",
        chat(&["a"])
    );
    let shelf = Shelf::with(&text);
    let file = |name: &str| shelf.folder.path().join(name).to_str().unwrap().to_owned();
    for (from, to) in [(shelf.name().to_owned(), file("t.jsonl")), (file("t.jsonl"), file("back.yaml"))] {
        let (code, said) = run(&["cassette", "convert", &from, &to]);
        assert_eq!(code, 0, "{said}");
    }
    let back = read(file("back.yaml").as_ref());
    assert!(back.contains("id: msg_1"), "{back}");
}
