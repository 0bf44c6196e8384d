//! Clients that close their stream before its end, recorded and played.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};

use super::{CHAT, Running, Shelf, streamed};
use crate::support::{
    client::{self, post},
    peer::event_stream,
};

fn asked() -> Value {
    json!({"model": "m", "stream": true, "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "say two"}]})
}

/// The events of an answer: three words, the reason why it ended, token counts.
fn events() -> Vec<String> {
    let head = json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"});
    let with = |choices: Value, usage: Value| {
        let mut event = head.clone();
        event["choices"] = choices;
        if !usage.is_null() {
            event["usage"] = usage;
        }
        event.to_string()
    };
    let word = |text: &str| with(json!([{"index": 0, "delta": {"content": text}, "finish_reason": null}]), Value::Null);
    let end = with(json!([{"index": 0, "delta": {}, "finish_reason": "stop"}]), Value::Null);
    let usage = json!({"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4});
    vec![word("one "), word("two "), word("three"), end, with(json!([]), usage), "[DONE]".to_owned()]
}

/// An engine that answers one chat: so many events at once, the others when it is let go; and only as many as it is to send.
async fn engine(at_once: usize, all: usize) -> (SocketAddr, oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (go, gone) = oneshot::channel();
    tokio::spawn(async move {
        let mut gone = Some(gone);
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            if !request[..read].starts_with(b"POST") {
                let _ =
                    stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
                continue;
            }
            let gone = gone.take().unwrap();
            tokio::spawn(async move {
                let events = events();
                let pieces = event_stream(&events.iter().map(String::as_str).collect::<Vec<_>>());
                // The head comes first, and the end of the chunks last.
                stream.write_all(&pieces[..=at_once].concat()).await.unwrap();
                let _left = gone.await;
                let rest = if all == events.len() { &pieces[at_once + 1..] } else { &pieces[at_once + 1..=all] };
                let _ = stream.write_all(&rest.concat()).await;
                let _closed = stream.read(&mut request).await;
            });
        }
    });
    (address, go)
}

/// A client that leaves after so many events.
async fn leaves_after(address: SocketAddr, events: usize) -> String {
    let mut stream: TcpStream = client::open(address, &post(CHAT, &asked())).await;
    let (mut received, mut buffer) = (String::new(), [0; 4096]);
    while received.matches("data: ").count() < events {
        let read = stream.read(&mut buffer).await.unwrap();
        assert!(read > 0, "{received}");
        received.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    received
}

fn tap(upstream: SocketAddr, shelf: &Shelf, flags: &[&str]) -> Running {
    let url = format!("http://{upstream}");
    let fixed = ["tap", "--upstream", &url, "--listen", "127.0.0.1:0", "--cassette", shelf.name()];
    Running::start(&[&fixed[..], flags].concat())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_after_the_client_left_is_recorded_and_the_record_is_whole() {
    for (record_by_play, leaves_at) in [(false, 4), (false, 1), (true, 4)] {
        let (upstream, go) = engine(leaves_at, events().len()).await;
        let shelf = Shelf::with("vcr: 1\nrecords: []\n");
        let url = format!("http://{upstream}");
        let recorder = match record_by_play {
            true => shelf.play(&["--on-miss", "record", "--upstream", &url]),
            false => tap(upstream, &shelf, &["--mode", "all"]),
        };
        leaves_after(recorder.address, leaves_at).await;
        // Long enough that the server has noticed; it is right in both cases.
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        go.send(()).unwrap();
        let (code, log) = recorder.stop();
        assert!(code == 0 && log.contains("recorded 1 interaction") && !log.contains("partial"), "{log}");
        assert!(!shelf.text().contains("aborted") && shelf.text().contains("one two three"), "{}", shelf.text());
        let play = shelf.play(&["--strict"]);
        let answer = play.send(CHAT, &asked()).await;
        assert_eq!(streamed(&answer), ("one two three".to_owned(), 5));
        assert_eq!(answer.events().last().map(String::as_str), Some("data: [DONE]"));
        assert_eq!(play.stop().0, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_come_in_time_is_a_partial_record_that_is_played_up_to_there() {
    for within in ["0", "50ms"] {
        let (upstream, go) = engine(2, 2).await;
        let shelf = Shelf::empty();
        // Something in it is redacted, in the second round in the request alone.
        let secret = if within == "0" { "is=two" } else { "is=say" };
        let tap = tap(upstream, &shelf, &["--complete-within", within, "--redact-pattern", secret]);
        leaves_after(tap.address, 2).await;
        let (code, log) = tap.stop();
        assert!(code == 0 && log.contains("1 partial record"), "{log}");
        assert!(shelf.text().contains("aborted: 2"), "{}", shelf.text());
        drop(go);
        let play = shelf.play(&["--strict"]);
        let received = leaves_after(play.address, 2).await;
        assert!(received.contains("one ") && received.contains("two "), "{received}");
        let (code, log) = play.stop();
        assert_eq!(code, 0, "{log}");
        // One that waits for more than there was gets no end that looks like one.
        let play = shelf.play(&["--on-exhausted", "last"]);
        let request = crate::support::peer::post(CHAT, &asked().to_string());
        let broken = crate::support::peer::exchange(play.address, &request).await;
        assert!(!broken.complete && broken.body().contains("two ") && !broken.body().contains("[DONE]"), "{broken:?}");
        let output = super::vcr(&["cassette", "validate", shelf.name()]);
        let notes = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(notes.contains("record 0 is partial"), "{notes}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aborted_request_of_a_trace_stays_aborted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("day.jsonl");
    let (upstream, go) = engine(2, events().len()).await;
    let url = format!("http://{upstream}");
    let fixed = ["tap", "--upstream", &url, "--listen", "127.0.0.1:0", "--trace-out", file.to_str().unwrap()];
    let tap = Running::start(&fixed);
    leaves_after(tap.address, 2).await;
    let (code, log) = tap.stop();
    assert_eq!(code, 0, "{log}");
    let trace = super::read(&file);
    assert!(trace.contains("client_gone"), "{trace}");
    drop(go);
    let refused = super::vcr(&[&fixed[..], &["--overwrite", "--complete-within", "1s"]].concat());
    let log = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && log.contains("--complete-within has no effect on a trace"), "{log}");
}
