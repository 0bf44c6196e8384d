//! The tap where its trace is emptied by another program, or is not written: it answers, counts and stays small.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

use vllm_vcr::recording::trace;

use crate::support::tap_program::{Program, ask, engine, until};

#[test]
fn a_trace_that_is_emptied_under_a_running_tap_begins_again_and_the_end_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let mut tap = Program::start(engine(), &path, &["--admin-listen", "127.0.0.1:0"]);
    let admin = tap.admin();
    assert!((0..50).all(|at| ask(tap.address, &format!("before{at}"))));
    until(admin, "vcr_records_written_total 50\n");
    std::fs::File::create(&path).unwrap();
    assert!(ask(tap.address, "after"));
    until(admin, "vcr_trace_emptied_total 1\n");
    assert!(ask(tap.address, "last"));
    let (code, rest) = tap.end();
    assert_eq!(code, Some(0), "{rest}");
    assert!(rest.contains("  1 time another program emptied the trace"), "{rest}");
    let trace = trace::read(&path).unwrap();
    let ids: Vec<&str> = trace.records.iter().filter_map(|record| record.request_id.as_deref()).collect();
    assert_eq!(ids, ["after", "last"]);
    assert!(!std::fs::read(&path).unwrap().contains(&0));
}

/// An engine that answers each request with this body.
fn engine_with(body: &str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    let answer = head + body;
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = answer.clone();
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(1..) = stream.read(&mut buffer) {
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[cfg(target_os = "linux")]
#[test]
fn a_trace_that_is_not_written_costs_no_more_memory_than_the_queue_may_hold() {
    const ANSWERS: usize = 600;
    let text = "words ".repeat(1 << 20);
    let body = format!(
        r#"{{"id":"x","choices":[{{"index":0,"message":{{"role":"assistant","content":"{}"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":1,"completion_tokens":2}}}}"#,
        text.get(..1 << 20).unwrap()
    );
    let length = body.len();
    let tap = Program::into_a_pipe(engine_with(&body), &["--record-text"]);
    for _ in 0..ANSWERS {
        let mut stream = TcpStream::connect(tap.address).unwrap();
        let request = r#"{"model":"m","messages":[]}"#;
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: 27\r\n\r\n";
        stream.write_all([head, request].concat().as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.len() > length);
    }
    // 600 MiB passed; 256 MiB may wait, in up to two forms each, and the record in hand.
    let most = tap.most_memory();
    assert!(most < 480 << 10, "{most} KiB");
}
