//! Cassettes have all that the tap's proxy has: several upstreams, samples, token ids, time limits, other protocols.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{CHAT, Shelf, chat, engine, read, said};
use crate::support::{
    client::{get, open, post},
    peer::{End, Script, Upstream, answer, event_stream},
};

const LAST_EVENTS: [(&str, &str); 4] = [
    (
        "/v1/responses",
        r#"{"type":"response.completed","response":{"id":"r","object":"response","status":"completed","output":[]}}"#,
    ),
    (
        "/v1/responses",
        r#"{"type":"response.incomplete","response":{"id":"r","object":"response","status":"incomplete","output":[]}}"#,
    ),
    (
        "/v1/responses",
        r#"{"type":"response.failed","response":{"id":"r","object":"response","status":"failed","output":[]}}"#,
    ),
    (CHAT, "[DONE]"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_after_the_last_event_leaves_a_whole_record() {
    for (path, last) in LAST_EVENTS {
        let chunk = r#"{"id":"c","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"a"}}]}"#;
        let first = if path == CHAT { chunk } else { r#"{"type":"response.created","response":{"id":"r"}}"# };
        let mut pieces = event_stream(&[first, last]);
        pieces.pop();
        let upstream = Upstream::start(move |request| match request.starts_with(b"POST") {
            true => Script { pieces: pieces.clone(), end: End::Silence },
            false => Script { pieces: answer("404 Not Found", "{}"), end: End::KeepAlive },
        })
        .await;
        let shelf = Shelf::empty();
        let tap = shelf.tap(&upstream, &[]);
        let mut client = open(tap.address, &post(path, &json!({"model": "m", "stream": true}))).await;
        let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
        while !String::from_utf8_lossy(&received).contains(last) {
            let count = client.read(&mut buffer).await.unwrap();
            assert!(count > 0, "{last}: {}", String::from_utf8_lossy(&received));
            received.extend_from_slice(&buffer[..count]);
        }
        drop(client);
        let (_, log) = tap.stop();
        assert!(log.contains("recorded 1 interaction"), "{log}");
        let text = shelf.text();
        assert!(!text.contains("aborted") && !text.contains("fault"), "{last}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_upstreams_are_recorded_in_one_cassette() {
    let (main, other) = (
        engine().await,
        Upstream::start(|_| Script { pieces: answer("200 OK", r#"{"by":"other"}"#), end: End::KeepAlive }).await,
    );
    let route = format!("/v1/rerank=http://{}", other.address);
    let shelf = Shelf::empty();
    let tap = shelf.tap(&main, &["--upstream", &route]);
    assert_eq!(said(&tap.send(CHAT, &chat(&["a"])).await), "You said a.");
    assert_eq!(tap.send("/v1/rerank", &json!({"query": "q"})).await.json()["by"], "other");
    let (_, log) = tap.stop();
    assert!(log.contains("recorded 2 interactions"), "{log}");
    let play = shelf.play(&["--strict"]);
    assert_eq!(play.send("/v1/rerank", &json!({"query": "q"})).await.json()["by"], "other");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_selection_is_recorded_and_everything_is_forwarded() {
    let upstream = engine().await;
    for (flags, recorded) in [
        (&["--sample", "0"][..], 0),
        (&["--sample", "1"], 2),
        (&["--only-path", CHAT], 1),
        (&["--only-model", "n*"], 0),
    ] {
        let shelf = Shelf::empty();
        let tap = shelf.tap(&upstream, flags);
        assert_eq!(said(&tap.send(CHAT, &chat(&["a"])).await), "You said a.");
        assert_eq!(tap.send("/v1/embeddings", &json!({"model": "m", "input": "a"})).await.status, 200);
        let (_, log) = tap.stop();
        assert!(log.contains(&format!("recorded {recorded} interaction")), "{flags:?}: {log}");
    }
}

/// An engine that names ids where it is asked for them.
async fn naming_engine() -> Upstream {
    Upstream::start(|request| {
        let text = String::from_utf8_lossy(request);
        let body: Value = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap_or_default();
        if !text.starts_with("POST") {
            return Script { pieces: answer("404 Not Found", "{}"), end: End::KeepAlive };
        }
        let message = json!({"role": "assistant", "content": "Hi there"});
        let mut choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
        let mut whole = json!({"id": "c", "object": "chat.completion", "created": 1, "model": "m",
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}});
        if body["return_token_ids"] == true {
            choice["token_ids"] = json!([7, 8]);
            whole["prompt_token_ids"] = json!([1, 2, 3]);
        }
        whole["choices"] = json!([choice]);
        Script { pieces: answer("200 OK", &whole.to_string()), end: End::KeepAlive }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_ids_are_asked_for_and_stand_in_the_sidecar_only() {
    let upstream = naming_engine().await;
    let (plain, with_ids) = (Shelf::empty(), Shelf::empty());
    let mut answers = Vec::new();
    for (shelf, flags) in [(&plain, &[][..]), (&with_ids, &["--record-tokens"])] {
        let tap = shelf.tap(&upstream, flags);
        answers.push(tap.send(CHAT, &chat(&["a"])).await.json());
        tap.stop();
    }
    assert_eq!(plain.text(), with_ids.text(), "no line of the cassette differs");
    let is_named = |value: &Value| value.as_array().is_some();
    assert!(answers.iter().all(|answer| !is_named(&answer["choices"][0]["token_ids"])), "{answers:?}");
    let ids = |shelf: &Shelf| shelf.folder.path().join("tape.vcr/tokens.jsonl");
    assert!(!ids(&plain).exists());
    let line: Value = serde_json::from_str(&read(&ids(&with_ids))).unwrap();
    assert_eq!((&line["id"], &line["output"]), (&json!(0), &json!([[7, 8]])));
    let asked = upstream.bodies();
    assert_eq!(asked.iter().filter(|body| body.contains("return_token_ids")).count(), 1, "{asked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_pauses_for_too_long_is_cut_and_recorded_as_broken() {
    let mut pieces = event_stream(&[r#"{"id":"c","choices":[{"index":0,"delta":{"content":"a"}}]}"#]);
    pieces.pop();
    let upstream = Upstream::start(move |request| match request.starts_with(b"POST") {
        true => Script { pieces: pieces.clone(), end: End::Silence },
        false => Script { pieces: answer("404 Not Found", "{}"), end: End::KeepAlive },
    })
    .await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &["--idle-timeout", "1s"]);
    let request = crate::support::peer::post(CHAT, &json!({"model": "m", "stream": true, "messages": []}).to_string());
    let cut = crate::support::peer::exchange(tap.address, &request).await;
    assert!(cut.body().contains("\"a\""), "{cut:?}");
    tap.stop();
    assert!(shelf.text().contains("fault: reset"), "{}", shelf.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_protocol_is_tunnelled_unless_only_records_answer() {
    let switched = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\nhello".to_vec();
    let upstream = Upstream::start(move |request| match String::from_utf8_lossy(request).contains("upgrade: echo") {
        true => Script { pieces: vec![switched.clone()], end: End::Silence },
        false => Script { pieces: answer("404 Not Found", "{}"), end: End::KeepAlive },
    })
    .await;
    for (flags, start) in [(&[][..], "HTTP/1.1 101"), (&["--mode", "none"], "HTTP/1.1 404")] {
        let shelf = if flags.is_empty() { Shelf::empty() } else { Shelf::with("vcr: 1\nrecords: []\n") };
        let tap = shelf.tap(&upstream, flags);
        let mut stream = tokio::net::TcpStream::connect(tap.address).await.unwrap();
        let asked = "GET /v1/realtime HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
        stream.write_all(asked.as_bytes()).await.unwrap();
        let mut received = vec![0; 12];
        stream.read_exact(&mut received).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&received), start);
        assert_eq!(crate::support::client::send(tap.address, &get("/health")).await.status, 404, "it goes on");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_other_form_has_the_ids_that_were_recorded() {
    let upstream = Upstream::start(|request| {
        let call = json!({"id": "chatcmpl-tool-8f3a", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        let chat = json!({"id": "c", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]});
        let text = json!({"type": "output_text", "text": "Hi", "annotations": []});
        let item = json!({"id": "msg_be72cf82", "type": "message", "role": "assistant", "status": "completed", "content": [text]});
        let response = json!({"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"}, "output": [item]});
        let whole = if request.starts_with(b"POST /v1/responses") { response } else { chat };
        Script { pieces: answer("200 OK", &whole.to_string()), end: End::KeepAlive }
    })
    .await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    let (asked, mut streamed) = (json!({"model": "m", "input": "a"}), json!({"model": "m", "input": "a"}));
    streamed["stream"] = true.into();
    tap.send(CHAT, &chat(&["a"])).await;
    tap.send("/v1/responses", &asked).await;
    tap.stop();
    assert!(shelf.text().contains("call_1"), "{}", shelf.text());
    let play = shelf.play(&["--strict"]);
    let mut as_stream = chat(&["a"]);
    as_stream["stream"] = true.into();
    let events = play.send(CHAT, &as_stream).await.text();
    assert!(events.contains("chatcmpl-tool-8f3a") && !events.contains("call_1"), "{events}");
    let events = play.send("/v1/responses", &streamed).await.text();
    assert!(events.contains("msg_be72cf82") && !events.contains("call_1"), "{events}");
    let created =
        events.lines().find(|line| line.contains("\"response.created\"") && line.starts_with("data")).unwrap();
    assert!(created.contains("\"incomplete_details\":null"), "{created}");
}
