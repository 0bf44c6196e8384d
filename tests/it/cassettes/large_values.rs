//! Large values stand beside the cassette, once each.

use std::{fs, path::PathBuf, process::Command};

use serde_json::{Value, json};

use super::{CHAT, Shelf, engine, read, said, vcr};

/// A message with an image and a long text.
fn message(image: &str, text: &str) -> Value {
    json!({"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{image}")}}, {"type": "text", "text": text}]})
}

fn blobs(shelf: &Shelf) -> Vec<PathBuf> {
    let entries = fs::read_dir(shelf.folder.path().join("tape.vcr/blobs")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn images_and_long_texts_are_files_and_come_back() {
    let (upstream, shelf) = (engine().await, Shelf::empty());
    let (image, prompt) = ("iVBORw0KGgo".repeat(2000), "You are a bot. ".repeat(400));
    let first = message(&image, "What is this?");
    let body = |more: &[Value]| {
        let start = [json!({"role": "system", "content": prompt}), first.clone()];
        json!({"model": "m", "messages": start.iter().chain(more).cloned().collect::<Vec<_>>()})
    };
    let mut texts = Vec::new();
    for _ in 0..2 {
        let tap = shelf.tap(&upstream, &["--mode", "all"]);
        let text = said(&tap.send(CHAT, &body(&[])).await);
        let next = [json!({"role": "assistant", "content": text}), json!({"role": "user", "content": "b"})];
        assert_eq!(said(&tap.send(CHAT, &body(&next)).await), "You said b.");
        let mut other = body(&[]);
        other["temperature"] = json!(0.5);
        other["messages"][1]["content"][1]["text"] = json!("And this?");
        tap.send(CHAT, &other).await;
        tap.stop();
        texts.push(shelf.text());
    }
    assert_eq!(texts[0], texts[1]);
    let text = &texts[0];
    assert!(text.len() < 4096 && text.contains("$blob: sha256-") && !text.contains("iVBOR"), "{text}");
    assert_eq!(blobs(&shelf).len(), 2, "each is there once");
    let play = shelf.play(&["--strict"]);
    let text = said(&play.send(CHAT, &body(&[])).await);
    let next = [json!({"role": "assistant", "content": text}), json!({"role": "user", "content": "b"})];
    assert_eq!(said(&play.send(CHAT, &body(&next)).await), "You said b.");
    let other = message(&"iVBORw0KGgp".repeat(2000), "What is this?");
    assert_eq!(play.send(CHAT, &json!({"model": "m", "messages": [other]})).await.status, 422);
    drop(play);
    for command in [&["fmt", "--check"][..], &["validate"]] {
        let ran = vcr(&[&["cassette"], command, &[shelf.name()]].concat());
        assert!(ran.status.success(), "{command:?}: {}", String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()));
    }
    // In full, everything stands in the file, and stays there when it is written or recorded again.
    assert!(vcr(&["cassette", "fmt", "--expand", shelf.name()]).status.success());
    fs::remove_dir_all(shelf.folder.path().join("tape.vcr/blobs")).unwrap();
    let full = shelf.text();
    assert!(full.contains(&image) && !full.contains("$blob"));
    assert!(vcr(&["cassette", "fmt", "--check", shelf.name()]).status.success());
    let tap = shelf.tap(&upstream, &["--mode", "all"]);
    tap.send(CHAT, &body(&[])).await;
    tap.stop();
    assert!(shelf.text().contains(&image));
}

#[tokio::test]
async fn a_text_that_is_gone_or_damaged_is_an_error_with_its_line() {
    let (upstream, shelf) = (engine().await, Shelf::empty());
    let tap = shelf.tap(&upstream, &[]);
    tap.send(CHAT, &json!({"model": "m", "messages": [message(&"A".repeat(5000), "x")]})).await;
    tap.stop();
    let blob = blobs(&shelf).pop().unwrap();
    let line = shelf.text().lines().position(|line| line.contains("$blob")).unwrap() + 1;
    for damage in [Some("other"), None] {
        match damage {
            Some(text) => fs::write(&blob, text).unwrap(),
            None => fs::remove_file(&blob).unwrap(),
        }
        let ran = vcr(&["cassette", "validate", shelf.name()]);
        let shown = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(!ran.status.success() && shown.contains(&format!("tape.yaml:{line}")), "{line}: {shown}");
    }
}

#[tokio::test]
async fn a_recording_that_was_not_finished_is_found_with_its_texts() {
    let (upstream, shelf) = (engine().await, Shelf::empty());
    let tap = shelf.tap(&upstream, &[]);
    tap.send(CHAT, &json!({"model": "m", "messages": [message(&"A".repeat(5000), "x")]})).await;
    let partial = shelf.folder.path().join("tape.yaml.partial");
    while !fs::read_to_string(&partial).is_ok_and(|text| text.contains("$blob")) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    drop(tap);
    let url = format!("http://{}", upstream.address);
    let fixed = ["tap", "--upstream", &url, "--listen", "127.0.0.1:0", "--cassette", shelf.name(), "--", "true"];
    let ran = vcr(&fixed);
    let shown = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(!ran.status.success() && shown.contains("1 record"), "{shown}");
    assert!(partial.exists() && !shelf.folder.path().join("tape.yaml.partial.1").exists());
}

#[tokio::test]
async fn a_map_that_looks_like_a_name_stays_a_map() {
    let (upstream, shelf) = (engine().await, Shelf::empty());
    let name = format!("sha256-{}", "0".repeat(64));
    let odd =
        json!({"model": "m", "messages": [{"role": "user", "content": "a"}], "a": {"$blob": name}, "b": {"$$blob": 1}});
    let tap = shelf.tap(&upstream, &[]);
    assert_eq!(said(&tap.send(CHAT, &odd).await), "You said a.");
    tap.stop();
    let play = shelf.play(&["--strict"]);
    assert_eq!(said(&play.send(CHAT, &odd).await), "You said a.", "{}", shelf.text());
    assert!(vcr(&["cassette", "fmt", "--check", shelf.name()]).status.success());
}

#[test]
fn the_advice_for_git_reaches_every_folder() {
    let page = read(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/src/guides/kept-cassettes.md"));
    let advice = page.split("```gitattributes\n").nth(1).unwrap().split("```").next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(".gitattributes"), advice).unwrap();
    let git = |arguments: &[&str]| Command::new("git").current_dir(folder.path()).args(arguments).output().unwrap();
    assert!(git(&["init", "-q"]).status.success());
    for (path, diff) in [
        ("a.vcr/timing.jsonl", "unset"),
        ("tests/deep/a.vcr/timing.jsonl", "unset"),
        ("tests/deep/a.vcr/blobs/sha256-0", "unspecified"),
        ("tests/deep/a.yaml", "unspecified"),
    ] {
        let shown = String::from_utf8(git(&["check-attr", "diff", "--", path]).stdout).unwrap();
        assert_eq!(shown.trim_end(), format!("{path}: diff: {diff}"));
        let shown = String::from_utf8(git(&["check-attr", "linguist-generated", "--", path]).stdout).unwrap();
        assert_eq!(shown.contains(": set"), path.contains(".vcr/"), "{shown}");
    }
}
