//! What those in a hurry do: ask what is not recorded, name sessions as they like, run a command.

use serde_json::{Value, json};

use super::{CHAT, Shelf, chat, engine, record, said, tape, vcr};
use crate::support::{
    client::{self, get, post},
    peer::{End, Script, Upstream, answer},
};

#[tokio::test]
async fn what_is_asked_without_a_body_is_recorded_and_played() {
    let asked = std::sync::atomic::AtomicU64::new(1000);
    let upstream = Upstream::start(move |request| {
        let count = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let permission = json!({"id": format!("modelperm-{count}"), "created": count, "allow_view": true});
        let model = json!({"id": "m", "object": "model", "created": count, "permission": [permission]});
        let body = match request {
            request if request.starts_with(b"GET /v1/models?") => json!({"object": "list", "data": []}),
            request if request.starts_with(b"GET /v1/models") => json!({"object": "list", "data": [model]}),
            _ => json!({"status": "ok"}),
        };
        Script { pieces: answer("200 OK", &body.to_string()), end: End::KeepAlive }
    })
    .await;
    let mut texts = Vec::new();
    for _ in 0..2 {
        let shelf = Shelf::empty();
        let report = shelf.folder.path().join("report.json");
        let tap = shelf.tap(&upstream, &["--report", report.to_str().unwrap()]);
        let live = tap.get("/v1/models").await;
        tap.get("/v1/models?limit=0").await;
        for path in ["/health", "/metrics"] {
            client::send(tap.address, &get(path)).await;
        }
        let (_, log) = tap.stop();
        assert!(log.contains("recorded 2 interactions") && log.contains("2 other requests"), "{log}");
        let report: Value = serde_json::from_str(&super::read(&report)).unwrap();
        assert_eq!(report["passed"], 2);
        let play = shelf.play(&[]);
        assert_eq!(play.get("/v1/models?limit=0").await["data"], json!([]));
        for _ in 0..3 {
            assert_eq!(play.get("/v1/models").await, live, "as it was, as often as it is asked");
        }
        assert_eq!(client::send(play.address, &get("/health")).await.status, 200);
        texts.push(shelf.text());
    }
    assert_eq!(texts[0], texts[1], "recording it again changes no line");
}

#[tokio::test]
async fn names_of_sessions_are_checked_wherever_they_come_from() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let play = shelf.play(&[]);
    let secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD";
    let long = "a".repeat(101);
    for name in ["a b", "a%2Fb", "%00", "..%2f..", "..", "", &long, secret, "é"] {
        let path = format!("/vcr/s/{}{CHAT}", name.replace(' ', "%20").replace('é', "%C3%A9"));
        let refused = client::send(play.address, &post(&path, &chat(&["a"]))).await;
        assert_eq!(refused.status, 400, "{name}: {}", refused.text());
        let mut request = post(CHAT, &Value::Null);
        request.body = chat(&["a"]).to_string().into_bytes();
        request.headers.push(("x-vcr-session", name));
        let refused_too = client::send(play.address, &request).await;
        // Without a name there is no name; what is encoded in a path is not in a header.
        if !name.is_empty() {
            assert_eq!(refused_too.status, 400, "{name}");
        }
        let opened = client::send(play.address, &post("/vcr/sessions", &json!({"name": name}))).await;
        assert_eq!(opened.status, 400, "{name}");
        let unknown = client::send(play.address, &get(&format!("/vcr/report?session={secret}"))).await;
        for told in [refused, opened, unknown] {
            assert!(!told.text().contains(secret) && told.header("x-vcr-session").is_none(), "{}", told.text());
        }
    }
    assert_eq!(play.get("/vcr/sessions").await.as_array().unwrap().len(), 1, "only the one without a name was used");
    let (_, log) = play.stop();
    assert!(!log.contains(secret), "{log}");
}

#[tokio::test]
async fn every_answer_names_its_session() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let path = format!("/vcr/s/own{CHAT}");
    for flags in [&[][..], &["--on-miss", "stub"]] {
        let play = shelf.play(flags);
        for words in ["a", "z"] {
            let answer = play.send(&path, &chat(&[words])).await;
            assert_eq!(answer.header("x-vcr-session"), Some("own"), "{}", answer.text());
        }
    }
}

#[tokio::test]
async fn a_record_that_is_never_played_is_named_where_it_is_missed() {
    let left = record(&["a"], "A").replace("  answer:", "  aborted: 3\n  answer:");
    let shelf = Shelf::with(&tape(&[left, record(&["b", "c", "d"], "D")]));
    let play = shelf.play(&[]);
    let miss = play.send(CHAT, &chat(&["a"])).await.json();
    let message = miss["error"]["message"].as_str().unwrap();
    let place = format!("since its client left after 3 events: tape.yaml#0 ({}:3)", shelf.name());
    assert!(message.contains(&place), "{message}");
    assert_eq!(miss["error"]["vcr"]["unserved"], "tape.yaml#0");
    let hidden = shelf.play(&["--miss-detail", "none"]);
    let error = &hidden.send(CHAT, &chat(&["z"])).await.json()["error"];
    assert_eq!((&error["param"], &error["vcr"]), (&Value::Null, &Value::Null), "{error}");
}

#[tokio::test]
async fn advice_can_be_pasted_into_a_shell() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let play = shelf.play(&[]);
    let body =
        json!({"model": "m'; touch /tmp/owned; '", "messages": [{"role": "user", "content": "a"}], "a'b $(x)": 1});
    let miss = play.send(CHAT, &body).await.json();
    let message = miss["error"]["message"].as_str().unwrap();
    assert!(message.contains(r"--live 'llm:m'\''; touch /tmp/owned; '\''' --upstream"), "{message}");
    assert!(message.contains("--ignore '$.model'"), "{message}");
}

#[tokio::test]
async fn a_truncated_body_ends_in_its_middle() {
    let cut = record(&["a"], "A long answer that is cut")
        .replace("finish_reason: stop,", "finish_reason: stop, fault: truncate,");
    let shelf = Shelf::with(&tape(&[cut]));
    let play = shelf.play(&[]);
    let request = crate::support::peer::post(CHAT, &chat(&["a"]).to_string());
    let answer = crate::support::peer::exchange(play.address, &request).await;
    let promised: usize = answer
        .head
        .lines()
        .find_map(|line| {
            line.to_ascii_lowercase().strip_prefix("content-length: ").map(|size| size.trim().parse().unwrap())
        })
        .unwrap();
    assert_eq!((answer.status, answer.body().len()), (200, promised / 2), "{answer:?}");
}

#[test]
fn a_command_gets_the_key_and_a_port_of_its_own() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let asked = format!(
        "curl -s -H \"authorization: Bearer $OPENAI_API_KEY\" -H 'content-type: application/json' -d '{}' $OPENAI_BASE_URL/chat/completions",
        chat(&["a"])
    );
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_vllm-vcr"))
        .args(["play", "--cassette", shelf.name(), "--instant", "--api-key", "own-key", "--", "sh", "-c", &asked])
        .env("OPENAI_API_KEY", "another")
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"content\":\"A\""), "{output:?}");
    let taken = std::net::TcpListener::bind("127.0.0.1:8001");
    let new = shelf.folder.path().join("new.yaml");
    let fixed = ["tap", "--upstream", "http://127.0.0.1:9", "--cassette", new.to_str().unwrap()];
    let told = vcr(&[&fixed[..], &["--", "sh", "-c", "echo $OPENAI_BASE_URL"]].concat());
    let said = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(said.starts_with("http://127.0.0.1:") && !said.contains(":8001/"), "{told:?}");
    drop(taken);
    let socket = shelf.folder.path().join("socket");
    let refused = vcr(&["play", "--cassette", shelf.name(), "--uds", socket.to_str().unwrap(), "--", "true"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[tokio::test]
async fn one_answer_that_is_live_may_be_asked_without_a_body() {
    let upstream = engine().await;
    let url = format!("http://{}", upstream.address);
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let play = shelf.play(&["--live", "path:/v1/models", "--upstream", &url]);
    assert_eq!(client::send(play.address, &get("/v1/models")).await.status, 404, "the engine has no such page");
    assert_eq!(said(&play.send(CHAT, &chat(&["a"])).await), "A");
}

#[tokio::test]
async fn where_only_records_answer_nothing_is_posted_upstream() {
    let upstream = engine().await;
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let tap = shelf.tap(&upstream, &["--mode", "none"]);
    let requests = [post("/custom", &json!({})), post("/tokenize", &json!({"prompt": "a"})), get("/v1/models")];
    for request in &requests {
        let refused = client::send(tap.address, request).await;
        assert_eq!(refused.status, 404, "{}", refused.text());
        assert!(refused.text().contains("does not go upstream"), "{}", refused.text());
    }
    let sent = String::from_utf8_lossy(&upstream.requests.lock().unwrap().concat()).into_owned();
    assert!(!sent.contains("POST /custom") && !sent.contains("\r\n\r\n{\"prompt\":\"a\"}"), "{sent}");
    client::send(tap.address, &get("/health")).await;
    let sent = String::from_utf8_lossy(&upstream.requests.lock().unwrap().concat()).into_owned();
    assert!(sent.contains("GET /health"), "how the server does may be asked");
    let random = vcr(&[
        "tap",
        "--upstream",
        "http://127.0.0.1:9",
        "--cassette",
        shelf.name(),
        "--mode",
        "none",
        "--on-miss",
        "random",
    ]);
    assert_eq!(random.status.code(), Some(2), "{random:?}");
}

#[tokio::test]
async fn paths_match_however_they_are_written() {
    let upstream = Upstream::start(|_| Script { pieces: answer("200 OK", r#"{"a":1}"#), end: End::KeepAlive }).await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &["--redact", "email"]);
    let paths = ["/v1/caf%C3%A9", "/v1/things/%5Bx%5D", "/v1/a%20b", "/v1/users/jane@example.org"];
    for path in paths {
        assert_eq!(tap.send(path, &json!({})).await.status, 200, "{path}");
    }
    tap.stop();
    assert!(!shelf.text().contains("jane"), "{}", shelf.text());
    let play = shelf.play(&["--strict"]);
    for path in paths {
        assert_eq!(play.send(path, &json!({})).await.json()["a"], 1, "{path}");
    }
    let (_, log) = play.stop();
    assert!(!log.contains("unconsumed:"), "{log}");
}

#[tokio::test]
async fn a_request_without_a_possible_response_is_a_miss_without_a_record() {
    let record = "vcr: 1\nrecords:\n- request: POST /v1/threads/abc/runs\n  body: {}\n  answer: {json: {a: 1}}\n";
    let shelf = Shelf::with(record);
    let play = shelf.play(&[]);
    assert_eq!(play.send("/v1/threads/abc/runs", &json!({})).await.status, 200);
    let miss = play.send("/v1/threads/def/runs", &json!({})).await;
    assert_eq!(miss.status, 422, "{}", miss.text());
    assert_eq!(play.get("/vcr/misses").await.as_array().map(Vec::len), Some(1));
    // What the server itself answers is not the cassette's affair.
    assert_eq!(play.send("/v1/models", &json!({})).await.status, 405);
    assert_eq!(client::send(play.address, &get("/v1/nothing")).await.status, 404);
}

#[tokio::test]
async fn headers_that_frame_a_body_are_the_servers_own() {
    let record = "vcr: 1\nrecords:\n- request: GET /v1/x\n  answer: {headers: {Content-Length: '3', transfer-encoding: gzip, x-a: b}, json: {a: 1234567}}\n";
    let play = Shelf::with(record);
    let play = play.play(&[]);
    assert_eq!(play.get("/v1/x").await["a"], 1_234_567);
    let upgrade = Shelf::with(&record.replace("headers:", "status: 101, headers:"));
    let refused = vcr(&["cassette", "validate", upgrade.name()]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned() + &String::from_utf8_lossy(&refused.stdout);
    assert!(!refused.status.success() && told.contains(":4"), "{told}");
}

#[tokio::test]
async fn what_came_before_an_upstream_broke_arrives() {
    let events: Vec<u8> = (0..5).flat_map(|at| format!("9\r\ndata: {at}\n\n\r\n").into_bytes()).collect();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let pieces = vec![[head.as_bytes(), &events].concat()];
    let upstream = Upstream::start(move |_| Script { pieces: pieces.clone(), end: End::Close }).await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &["--record-errors", "all"]);
    for word in ["a", "b", "c", "d", "e", "f"] {
        let request = crate::support::peer::post(
            CHAT,
            &json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": word}]}).to_string(),
        );
        let broken = crate::support::peer::exchange(tap.address, &request).await;
        assert!(broken.body().contains("data: 4"), "{word}: {broken:?}");
    }
    tap.stop();
}

#[test]
fn a_recording_that_cannot_be_written_is_the_machines_fault() {
    let shelf = Shelf::with("a file, and no folder");
    let nowhere = shelf.file.join("c.yaml");
    let refused = vcr(&[
        "tap",
        "--upstream",
        "http://127.0.0.1:9",
        "--listen",
        "127.0.0.1:0",
        "--cassette",
        nowhere.to_str().unwrap(),
    ]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(4), "{told}");
    assert!(told.contains("tape.yaml/c.yaml: "), "{told}");
}
