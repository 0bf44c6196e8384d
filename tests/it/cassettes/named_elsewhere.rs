//! A value that one request names as a secret is one in the whole recording: in requests before it, beside the file, at replay.

use std::fs;

use serde_json::{Value, json};

use super::{CHAT, Running, Shelf, chat, engine, read, record, said, tape, vcr};

/// One that JSON escapes, another one of the same user, and one that is named in a request of its own.
const PASSWORDS: [&str; 2] = ["Tr0ub4dor\"and\\3", "c0rrect-h0rse\"9"];
const PIN: &str = "pin-4711-0815";

/// The requests of an agent: a prompt with two secrets, a turn that names one, one that names the other before both.
fn requests(password: &str, pin: &str) -> Vec<Value> {
    let prompt = format!("Log in as ann with pw {password} , then with {pin} .");
    let call = |name: &str, value: &str| {
        let arguments = json!({name: value}).to_string();
        json!({"role": "assistant", "content": null,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "login", "arguments": arguments}}]})
    };
    let result = json!({"role": "tool", "tool_call_id": "c1", "content": "ok"});
    let first = chat(&[&prompt]);
    let with = |more: &[Value]| {
        let mut body = first.clone();
        body["messages"].as_array_mut().unwrap().extend_from_slice(more);
        body
    };
    let twice = with(&[call("password", password), result.clone(), call("user_password", pin), result.clone()]);
    vec![first.clone(), with(&[call("user_password", pin), result]), twice, chat(&[&format!("and {pin} alone")])]
}

async fn ask(server: &Running, password: &str, pin: &str) {
    for body in requests(password, pin) {
        let answer = server.send(CHAT, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

/// Everything that is in the folder of a cassette.
fn everything(shelf: &Shelf) -> String {
    let mut all = String::new();
    let mut folders = vec![shelf.folder.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                all.push_str(&String::from_utf8_lossy(&fs::read(path).unwrap()));
            }
        }
    }
    all
}

fn assert_clean(shelf: &Shelf) {
    let all = everything(shelf);
    for part in ["Tr0ub4dor", "4711-0815"] {
        assert!(!all.contains(part), "{part}: {all}");
    }
    let validated = vcr(&["cassette", "validate", shelf.name()]);
    assert_eq!(validated.status.code(), Some(0), "{}", String::from_utf8_lossy(&validated.stdout));
}

#[tokio::test]
async fn a_recording_has_no_secret_that_a_later_request_names() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    ask(&tap, PASSWORDS[0], PIN).await;
    assert_eq!(tap.stop().0, 0);
    assert_clean(&shelf);
    for (password, pin) in [(PASSWORDS[0], PIN), (PASSWORDS[1], "pin-1234-5678")] {
        let play = shelf.play(&["--strict"]);
        ask(&play, password, pin).await;
        let (code, notes) = play.stop();
        assert!(code == 0 && !notes.contains(pin), "{notes}");
    }
}

#[tokio::test]
async fn what_is_recorded_again_and_added_to_is_searched_as_a_whole() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    ask(&tap, PASSWORDS[0], PIN).await;
    tap.stop();
    let before = shelf.text();
    let again = shelf.tap(&upstream, &["--mode", "all"]);
    ask(&again, PASSWORDS[0], PIN).await;
    again.stop();
    assert_eq!(shelf.text(), before);
    assert_clean(&shelf);
    // The file has a word that a request names as a secret only later.
    fs::write(&shelf.file, before.replace("alone", "al0ne-in-the-file")).unwrap();
    let url = format!("http://{}", upstream.address);
    let play = shelf.play(&["--mode", "new-episodes", "--upstream", &url]);
    let named = json!({"model": "m", "messages": [{"role": "user", "content": "x"}], "api_key": "al0ne-in-the-file"});
    assert_eq!(play.send(CHAT, &named).await.status, 200);
    play.stop();
    assert!(!everything(&shelf).contains("al0ne"), "{}", everything(&shelf));
    assert_clean(&shelf);
}

#[tokio::test]
async fn the_tools_search_a_whole_file() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &["--redact", "off"]);
    ask(&tap, PASSWORDS[0], PIN).await;
    tap.stop();
    let text = shelf.text();
    assert!(text.contains("Tr0ub4dor") && text.contains(PIN), "{text}");
    let validated = vcr(&["cassette", "validate", shelf.name()]);
    let leaks = String::from_utf8_lossy(&validated.stdout).into_owned();
    let line = 1 + text.lines().position(|line| line.contains("- id: 0")).unwrap();
    assert!(leaks.contains(&format!("tape.yaml:{line}: password")), "{leaks}");
    assert_eq!(vcr(&["cassette", "redact", shelf.name()]).status.code(), Some(0));
    assert_clean(&shelf);
    let play = shelf.play(&["--strict"]);
    ask(&play, PASSWORDS[1], "pin-1234-5678").await;
    assert_eq!(play.stop().0, 0);
}

#[tokio::test]
async fn the_name_of_a_tool_makes_no_secret_of_its_schema() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let names = ["reset_password", "get_token", "create_token", "get_api_key", "list_secrets", "set_cookie"];
    let tool = |name: &str, default: &str| {
        let login = json!({"type": "object", "description": "How to log in", "required": ["password"],
            "properties": {"password": {"type": "string", "title": "The Password", "default": default}},
            "dependentRequired": {"password": ["user_of_it"]}});
        json!({"type": "function", "function": {"name": name, "description": "Something useful", "parameters": login}})
    };
    let tap = shelf.tap(&upstream, &[]);
    let mut body = chat(&["hello"]);
    body["tools"] = names.map(|name| tool(name, "")).into_iter().collect();
    assert_eq!(tap.send(CHAT, &body).await.status, 200);
    tap.stop();
    let text = shelf.text();
    assert!(!text.contains("REDACTED") && text.contains("\n  reset_password:\n"), "{text}");
    assert_eq!(vcr(&["cassette", "validate", shelf.name()]).status.code(), Some(0));
    let play = shelf.play(&["--strict"]);
    assert_eq!(play.send(CHAT, &body).await.status, 200);
    assert_eq!(play.stop().0, 0);
    fs::write(&shelf.file, text.replace("default: \"\"", "default: hunter2-xyz")).unwrap();
    assert_eq!(vcr(&["cassette", "validate", shelf.name()]).status.code(), Some(3), "{}", shelf.text());
    assert_eq!(vcr(&["cassette", "redact", shelf.name()]).status.code(), Some(0));
    let text = read(&shelf.file);
    assert!(!text.contains("hunter2") && text.contains("Something useful") && text.contains("The Password"), "{text}");
}

#[tokio::test]
async fn a_pattern_that_ends_at_a_space_leaves_a_cassette_that_can_be_played() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let pattern = ["--redact-pattern", r"pw=pw (\S+)"];
    let tap = shelf.tap(&upstream, &pattern);
    let quoted = json!({"say": "pw Tr0ub4dor", "more": [1, 2]}).to_string();
    let bodies = [chat(&["Log in with pw Tr0ub4dor."]), chat(&[&quoted, "pw Tr0ub4dor", "{pw Tr0ub4dor}"])];
    for body in &bodies {
        tap.send(CHAT, body).await;
    }
    tap.stop();
    let play = shelf.play(&[&pattern[..], &["--strict"]].concat());
    for body in &bodies {
        let answer = play.send(CHAT, body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let (code, notes) = play.stop();
    assert_eq!(code, 0, "{notes}\n{}", shelf.text());
    let validated = vcr(&["cassette", "validate", shelf.name(), pattern[0], pattern[1]]);
    assert_eq!(validated.status.code(), Some(0), "{}", String::from_utf8_lossy(&validated.stdout));
}

#[tokio::test]
async fn a_supplied_value_is_found_under_every_kind_that_records_have_for_it() {
    let key = "sk-live-9f8e7d6c5b4a39281706f5e4d3c2b1a0";
    let fetch = |key: &str| format!("fetch https://a-host-with-a-name.x.example/?api_key={key}");
    let shelf = Shelf::with(&tape(&[
        record(&["make one"], &json!({ "api_key": key }).to_string()),
        record(&[&fetch(key)], "fetched"),
    ]));
    assert_eq!(vcr(&["cassette", "redact", shelf.name()]).status.code(), Some(0));
    let text = shelf.text();
    assert!(text.contains("[REDACTED:apikey:1]") && text.contains("[REDACTED:api_key:1]"), "{text}");
    let supplied = shelf.folder.path().join("values");
    fs::write(&supplied, format!("apikey:1 = {key}\n")).unwrap();
    let play = shelf.play(&["--secrets", supplied.to_str().unwrap()]);
    assert_eq!(said(&play.send(CHAT, &chat(&["make one"])).await), json!({ "api_key": key }).to_string());
    let answer = play.send(CHAT, &chat(&[&fetch(key)])).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    // One that is too short to be looked for: both texts are shown where they differ, and how to say that it is the same.
    let missed = play.send(CHAT, &chat(&[&fetch("short")])).await.text();
    for part in ["y=[REDACTED:assigned:1]", "y=[REDACTED:api_key:1]", "--secrets FILE", "#1 api_key:1 = VALUE"] {
        assert!(missed.contains(part), "{part}: {missed}");
    }
    play.stop();
}
