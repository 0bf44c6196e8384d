//! Secrets of many kinds, planted wherever a request or an answer can hold them, reach no file, log, error or answer.

use serde_json::{Value, json};

use super::{CHAT, Running, Shelf, chat, engine, read};
use crate::support::client::{self, get, post};

/// A secret, and the part of it that must be nowhere.
pub(crate) type Planted = (String, String);

/// Letters and digits that no two secrets share: `at` is spelled in them.
fn core(at: usize, length: usize) -> String {
    let letters: Vec<char> = "QwErTyUiOpAsDfGhJkLzXcVbNm".chars().collect();
    (0..length)
        .map(|place| {
            if place % 4 == 3 {
                char::from_digit(u32::try_from((at + place) % 10).unwrap(), 10).unwrap()
            } else {
                letters[(at * 7 + place * 5) % 26]
            }
        })
        .collect()
}

fn hex(at: usize, length: usize) -> String {
    (0..length).map(|place| char::from(b"0123456789abcdef"[(at * 5 + place * 7 + place / 3) % 16])).collect()
}

/// A key over several lines.
fn pem(at: usize, kind: &str) -> String {
    let line = |number: usize| core(at * 31 + number, 64);
    format!("-----BEGIN {kind}-----\n{}\n{}\n{}\n-----END {kind}-----", line(1), line(2), line(3))
}

/// The secrets: those whose shape tells, each with its part.
pub(crate) fn planted() -> Vec<Planted> {
    let starts = [
        "sk-proj-",
        "sk-ant-api03-",
        "hf_",
        "ghp_",
        "gho_",
        "ghs_",
        "github_pat_",
        "glpat-",
        "npm_",
        "xoxb-1-",
        "xoxp-2-",
        "sk_live_",
        "rk_test_",
        "whsec_",
        "gsk_",
        "pypi-",
        "dckr_pat_",
        "nvapi-",
        "xai-",
        "lin_api_",
        "glsa_",
        "Bearer ",
        "https://hooks.slack.com/services/T01/B02/",
        "aws_secret_access_key=",
        "AccountKey=",
        "password=",
        "api_key=",
        "client_secret: x, client_secret=",
        "access_token=",
        "session_token=",
        "passphrase=",
    ];
    let mut planted: Vec<Planted> = Vec::new();
    for start in starts {
        let core = core(planted.len(), if start == "npm_" { 36 } else { 40 });
        planted.push((format!("{start}{core}"), core));
    }
    for (start, end) in [
        ("postgres://bob:", "@db.internal/x"),
        ("mongodb+srv://app:", "@cluster0.internal"),
        ("redis://:", "@cache:6379/0"),
        ("amqp://guest:", "@mq/vhost"),
    ] {
        let core = core(planted.len(), 20);
        planted.push((format!("{start}{core}{end}"), core));
    }
    for start in ["dapi", "dop_v1_", "shpat_"] {
        let core = hex(planted.len(), 32);
        planted.push((format!("{start}{core}"), core));
    }
    for kind in ["RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "EC PRIVATE KEY", "PGP PRIVATE KEY BLOCK"] {
        let at = planted.len();
        planted.push((pem(at, kind), core(at * 31 + 2, 64)));
    }
    planted.extend(shaped());
    planted
}

/// Secrets of a shape of their own.
fn shaped() -> Vec<Planted> {
    let mut planted: Vec<Planted> = Vec::new();
    let upper = |at| core(at, 16).to_uppercase();
    let whole = |text: String| (text.clone(), text);
    planted.push((format!("AKIA{}", upper(60)), upper(60)));
    planted.push((format!("ASIA{}", upper(61)), upper(61)));
    planted.push(whole(format!("AIza{}", core(62, 35))));
    planted.push((format!("eyJhbGciOiJIUzI1NiJ9.eyJ{}.{}", core(63, 20), core(64, 43)), core(64, 43)));
    planted.push((format!("SG.{}.{}", core(65, 22), core(66, 43)), core(66, 43)));
    planted.push((format!("Basic {}==", core(67, 30)), core(67, 30)));
    planted.push((format!("AGE-SECRET-KEY-1{}", core(68, 58).to_uppercase()), core(68, 58).to_uppercase()));
    planted.push((format!("123456789:AA{}", core(69, 33)), core(69, 33)));
    planted.push(whole("jane.doe@mail.example.org".to_owned()));
    planted.push(whole("j+inbox@example.co.uk".to_owned()));
    for card in ["4111 1111 1111 1111", "5500-0000-0000-0004", "378282246310005"] {
        planted.push(whole(card.to_owned()));
    }
    planted
}

/// Everything that a cassette and its sidecar say, as one text; JSON strings as what they stand for, without line breaks.
fn said_in(folder: &std::path::Path) -> String {
    let mut all = String::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.push_str(&said_in(&path));
        } else {
            all.push_str(&read(&path));
        }
    }
    all
}

/// The pieces of a stream's data put together, so that a secret over two of them is seen.
fn joined(sidecar: &str) -> String {
    fn texts(value: &Value, all: &mut String) {
        match value {
            Value::String(text) => match serde_json::from_str::<Value>(text) {
                Ok(inner) if inner.is_object() => texts(&inner, all),
                _ => all.push_str(text),
            },
            Value::Array(items) => items.iter().for_each(|item| texts(item, all)),
            Value::Object(map) => map
                .iter()
                .filter(|(name, _)| *name != "id" && *name != "model" && *name != "object")
                .for_each(|(_, value)| texts(value, all)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let mut all = String::new();
    sidecar.lines().for_each(|line| texts(&serde_json::from_str(line).unwrap_or_default(), &mut all));
    all
}

fn body(at: usize, secret: &str) -> Value {
    let words = format!("call {at} with {secret} please");
    let arguments = json!({"note": words, "nested": {"list": [words]}}).to_string();
    json!({"model": "m", "stream": at.is_multiple_of(2), "messages": [
        {"role": "system", "content": [{"type": "text", "text": words}]},
        {"role": "user", "content": words},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]},
        {"role": "tool", "tool_call_id": "c", "content": words}]})
}

async fn ask(server: &Running, at: usize, secret: &str, body: &Value) -> client::Answer {
    let path = format!("{CHAT}?note={}&api_key={at}{}", encoded(secret), core(at + 200, 24));
    let header = format!("Bearer {}", core(at + 300, 40));
    let mut request = post(&path, body);
    let line = secret.replace('\n', " ");
    request.headers.extend([
        ("authorization", header.as_str()),
        ("x-api-key", header.as_str()),
        ("x-tenant", line.as_str()),
        ("cookie", line.as_str()),
    ]);
    client::send(server.address, &request).await
}

fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_planted_secret_is_written_logged_or_returned() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let planted = planted();
    assert!(planted.len() >= 40, "{}", planted.len());
    let tap = shelf.tap(&upstream, &["--match-header", "x-tenant", "--redact", "all"]);
    for (at, (secret, _)) in planted.iter().enumerate() {
        let answer = ask(&tap, at, secret, &body(at, secret)).await;
        assert_eq!(answer.status, 200);
    }
    tap.send(CHAT, &json!({"model": "m", "messages": [{"role": "user", "content": "x"}], "password": core(400, 20), "vault": {"api_key": core(401, 20)}})).await;
    let mut shown = vec![tap.get("/vcr/report").await.to_string()];
    shown.push(tap.stop().1);
    let play = shelf.play(&["--match-header", "x-tenant"]);
    for (at, (secret, _)) in planted.iter().enumerate() {
        let answer = ask(&play, at, secret, &body(at, secret)).await;
        assert_eq!(answer.status, 200, "{secret} is found in its redacted form: {}", answer.text());
        // A client gets its own secrets back, and nothing else does: its answer is not among what is searched.
        let mut other = body(at, secret);
        other["messages"][1]["content"] = json!(format!("something else with {secret}"));
        let missed = ask(&play, at, secret, &other).await;
        assert_eq!(missed.status, 422);
        shown.push(missed.text());
        let wrong = client::send(play.address, &get(&format!("/vcr/records/{}", encoded(secret)))).await;
        shown.push(wrong.text());
    }
    for path in ["/vcr/misses", "/vcr/report", "/vcr/records", "/vcr/sessions", "/vcr/unconsumed"] {
        shown.push(play.get(path).await.to_string());
    }
    for at in 0..planted.len() {
        shown.push(play.get(&format!("/vcr/records/{at}")).await.to_string());
    }
    shown.push(play.stop().1);
    let files = said_in(shelf.folder.path());
    shown.push(joined(&read(&shelf.folder.path().join("tape.vcr/timing.jsonl"))));
    shown.push(files);
    let headers = (0..planted.len()).flat_map(|at| [core(at + 200, 24), core(at + 300, 40)]);
    let keys = [core(400, 20), core(401, 20)];
    for part in planted.iter().map(|(_, part)| part.clone()).chain(headers).chain(keys) {
        for text in &shown {
            if let Some(place) = text.find(&part) {
                let near: String = text[..place + part.len()].chars().rev().take(200).collect();
                panic!("{part} in …{}", near.chars().rev().collect::<String>());
            }
        }
    }
}

#[tokio::test]
async fn an_upstream_that_is_gone_makes_no_secret_known() {
    let shelf = Shelf::with("vcr: 1\nrecords: []\n");
    let play = shelf.play(&["--on-miss", "upstream", "--upstream", "http://127.0.0.1:1"]);
    let answer = play.send(CHAT, &chat(&["mail jane.doe@mail.example.org"])).await;
    assert_eq!(answer.status, 502);
    let text = answer.text() + &play.stop().1;
    assert!(!text.contains("jane.doe"), "{text}");
}

#[test]
fn a_rule_that_cannot_work_is_refused() {
    let shelf = Shelf::with("vcr: 1\nrecords: []\n");
    for (flags, part) in [
        (["--redact-pattern", "x=("], "regular expression"),
        (["--redact-pattern", "x"], "NAME=REGEX"),
        (["--redact", "a.b"], "place"),
    ] {
        let output = super::vcr(&["play", "--cassette", shelf.name(), flags[0], flags[1], "--", "true"]);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && log.contains(part), "{flags:?}: {log}");
    }
}
