//! Servers that do something wrong, between the load client and `play`: each is named.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::support::{
    running::{Running, vcr},
    traces::{Trace, json_lines},
};

/// A proxy of whole connections that changes what the server sends, per connection.
fn proxy(server: SocketAddr, damage: impl Fn(usize, Vec<u8>) -> Vec<u8> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let damage = std::sync::Arc::new(damage);
    thread::spawn(move || {
        for (number, client) in listener.incoming().map_while(Result::ok).enumerate() {
            let damage = std::sync::Arc::clone(&damage);
            thread::spawn(move || pass(number, client, server, &*damage));
        }
    });
    address
}

/// Passes one request and, damaged, its whole response.
fn pass(number: usize, mut client: TcpStream, server: SocketAddr, damage: &dyn Fn(usize, Vec<u8>) -> Vec<u8>) {
    let mut server = TcpStream::connect(server).unwrap();
    let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    thread::spawn(move || std::io::copy(&mut from, &mut to));
    let mut response = Vec::new();
    let mut buffer = [0; 65536];
    // The response is whole with its last chunk, or as long as it says.
    while !is_whole(&response) {
        match server.read(&mut buffer) {
            Ok(count) if count > 0 => response.extend_from_slice(&buffer[..count]),
            _ => break,
        }
    }
    // A client that kept the connection could send the next request just as it closes.
    let damaged = String::from_utf8(damage(number, response)).unwrap().replacen("\r\n", "\r\nconnection: close\r\n", 1);
    let _left = client.write_all(damaged.as_bytes());
    // The other thread has the connections too.
    let _closed = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
}

fn is_whole(response: &[u8]) -> bool {
    let text = String::from_utf8_lossy(response);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    match head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned)) {
        Some(length) => body.len() >= length.parse().unwrap(),
        None => body.ends_with("0\r\n\r\n"),
    }
}

/// The events of a chunked response, and a chunked response of events.
fn events(response: &[u8]) -> (String, Vec<String>) {
    let text = String::from_utf8(response.to_vec()).unwrap();
    let (head, mut rest) = text.split_once("\r\n\r\n").unwrap();
    let mut body = String::new();
    while let Some((length, after)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        body.push_str(&after[..length]);
        rest = &after[length + 2..];
        if length == 0 {
            break;
        }
    }
    (head.to_owned(), body.split_inclusive("\n\n").map(str::to_owned).collect())
}

fn response(head: &str, events: &[String]) -> Vec<u8> {
    let chunks = events.iter().map(|event| format!("{:x}\r\n{event}\r\n", event.len()));
    format!("{head}\r\n\r\n{}0\r\n\r\n", chunks.collect::<String>()).into_bytes()
}

/// Records of completions with these token ids, one token each 2 ms.
fn trace(outputs: &[&[u32]]) -> Trace {
    let line = |(number, ids): (usize, &&[u32])| {
        json!({"prompt_tokens": 4 + number, "output_tokens": ids.len(), "ttft_ms": 2.0, "itl_ms": vec![2.0; ids.len() - 1],
            "arrival_ms": number, "output_token_ids": ids, "finish_reason": "length", "status": 200, "outcome": "finished",
            "endpoint": "completions", "stream": true})
    };
    Trace::of(&outputs.iter().enumerate().map(line).collect::<Vec<_>>())
}

fn drive(trace: &Trace, target: SocketAddr, flags: &[&str]) -> Value {
    let target = format!("http://{target}");
    let path = &trace.file;
    let mut arguments = vec!["replay", path.to_str().unwrap(), "--target", &target, "--json", "--timeout", "20s"];
    arguments.extend(flags);
    let output = vcr(&arguments);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

fn play(trace: &Trace) -> Running {
    trace.play(&[])
}

#[test]
fn damage_of_a_stream_is_named_with_its_request_and_place() {
    let trace = trace(&[&[11, 12, 13, 14, 15], &[21, 22, 23, 24]]);
    let server = play(&trace);
    let clean = drive(&trace, server.address, &["--check"]);
    assert_eq!(clean["results"]["check"], json!({"compared": 2, "differ": 0, "differences": []}));
    let dropping = proxy(server.address, |_, whole| {
        let (head, mut events) = events(&whole);
        events.retain(|event| !event.contains("[13]"));
        response(&head, &events)
    });
    let lost = drive(&trace, dropping, &["--check", "--concurrency", "1"]);
    assert_eq!(lost["verdict"]["valid"], false);
    assert_eq!(
        lost["results"]["check"]["differences"],
        json!([{"request": 0, "difference": "tokens_lost", "at": 2, "count": 1}])
    );
    let altering = proxy(server.address, |_, whole| {
        let (head, events) = events(&whole);
        response(&head, &events.iter().map(|event| event.replace("[22]", "[99]")).collect::<Vec<_>>())
    });
    let altered = drive(&trace, altering, &["--check", "--concurrency", "1"]);
    let named = json!([{"request": 1, "difference": "tokens_altered", "at": 1, "recorded": 22, "came": 99}]);
    assert_eq!(altered["results"]["check"]["differences"], named);
    let counting = proxy(server.address, |_, whole| {
        let (head, events) = events(&whole);
        let altered = events.iter().map(|event| event.replace("\"completion_tokens\":4", "\"completion_tokens\":5"));
        response(&head, &altered.collect::<Vec<_>>())
    });
    let counted = drive(&trace, counting, &["--check", "--concurrency", "1"]);
    let named = json!([{"request": 1, "difference": "usage", "recorded": [5, 4], "came": [5, 5]}]);
    assert_eq!(counted["results"]["check"]["differences"], named);
    // The ids of the prompt are named too, and are as many as before.
    let counting = proxy(server.address, |_, whole| {
        let (head, events) = events(&whole);
        let altered = events.iter().map(|event| event.replace("\"prompt_tokens\":4", "\"prompt_tokens\":9"));
        response(&head, &altered.collect::<Vec<_>>())
    });
    let counted = drive(&trace, counting, &["--check", "--concurrency", "1"]);
    let named = json!([{"request": 0, "difference": "usage", "recorded": [4, 5], "came": [9, 5]}]);
    assert_eq!(counted["results"]["check"]["differences"], named);
    assert_eq!(counted["results"]["drifted_prompts"], 1);
}

#[test]
fn a_server_that_slows_down_is_not_stationary() {
    let outputs: Vec<Vec<u32>> = (0..120).map(|number| vec![number, number + 1]).collect();
    let trace = trace(&outputs.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let server = play(&trace);
    let started = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let slowing = proxy(server.address, move |_, whole| {
        let number = started.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        thread::sleep(Duration::from_millis(if number < 60 { 10 } else { 120 }));
        whole
    });
    let printed = drive(&trace, slowing, &["--concurrency", "1"]);
    let changed = printed["verdict"]["reasons"].as_array().unwrap();
    assert!(changed.iter().any(|reason| reason["reason"] == "not_stationary"), "{printed:#}");
    assert!(printed["results"]["steady"]["requests"].as_u64().unwrap() >= 55, "{printed:#}");
}

#[test]
fn a_response_that_was_left_unanswered_is_left_again_and_its_session_stays() {
    let line = |tokens: usize, ttft: f64, more: Value| {
        let mut line = json!({"prompt_tokens": 4, "output_tokens": tokens, "ttft_ms": ttft, "itl_ms": [], "arrival_ms": 0,
            "endpoint": "completions", "stream": false});
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Trace::of(&[line])
    };
    let slow = line(1, 60_000.0, json!({"output_token_ids": [9], "finish_reason": "length", "status": 200}));
    let left = line(0, 0.0, json!({"outcome": "client_gone", "e2e_ms": 50.0, "session": "s", "agent": "a"}));
    // At its recorded pace, it would answer after a minute.
    let server = Running::start(&["play", "--port", "0", "--replay-tokens", slow.file.to_str().unwrap()]);
    let out = left.file.with_extension("run.jsonl");
    let printed = drive(&left, server.address, &["--check", "--out", out.to_str().unwrap()]);
    let results = &printed["results"];
    assert_eq!(
        [&results["check"]["compared"], &results["check"]["differ"], &results["failed"]],
        [1, 0, 0],
        "{printed:#}"
    );
    assert_eq!(results["by_outcome"], json!({"client_gone": 1}));
    let records = json_lines(&out);
    let record = records.iter().find(|line| line.get("ttft_ms").is_some()).unwrap();
    assert_eq!([&record["session"], &record["agent"]], ["s", "a"]);
}
