//! Bodies that are no plain JSON, and numbers that are too long.

use std::io::Write;

use serde_json::{Value, json};

use super::{CHAT, Running, Shelf, chat, engine, record, said, tape, vcr};
use crate::support::{
    client::{self, Answer, Request, post},
    peer::{End, Script, Upstream, answer},
};

fn packed(body: &Value) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(body.to_string().as_bytes()).unwrap();
    packer.finish().unwrap()
}

fn of_bytes<'a>(path: &'a str, headers: &[(&'a str, &'a str)], body: &[u8]) -> Request<'a> {
    Request { method: "POST", path, headers: headers.to_vec(), body: body.to_vec() }
}

async fn send(server: &Running, request: &Request<'_>) -> Answer {
    client::send(server.address, request).await
}

#[tokio::test]
async fn bodies_of_bytes_are_distinguished_and_kept() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    let (one, other, large) = (vec![0xff_u8, 1], vec![0xfe_u8, 1], [vec![0xff_u8; 5000], vec![1]].concat());
    for body in [&one, &other, &large] {
        send(&tap, &of_bytes("/custom", &[], body)).await;
    }
    tap.stop();
    let text = shelf.text();
    assert!(text.contains("body_base64: /wE=") && text.contains("body_base64: /gE="), "{text}");
    let blobs: Vec<_> = std::fs::read_dir(shelf.folder.path().join("tape.vcr/blobs")).unwrap().collect();
    assert_eq!(blobs.len(), 1);
    assert_eq!(std::fs::read(blobs[0].as_ref().unwrap().path()).unwrap(), large);
    for flags in [&["--strict"][..], &["--strict", "--match", "exact"]] {
        let play = shelf.play(flags);
        for (body, record) in [(&large, "tape.yaml#2"), (&other, "tape.yaml#1"), (&one, "tape.yaml#0")] {
            let played = send(&play, &of_bytes("/custom", &[], body)).await;
            assert_eq!(played.header("x-vcr-record"), Some(record), "{}", played.text());
        }
        let miss = send(&play, &of_bytes("/custom", &[], &[0xff, 2])).await;
        assert_eq!((miss.status, miss.json()["error"]["param"].clone()), (422, json!("sha256")), "{}", miss.text());
        assert!(!miss.text().contains("--ignore"), "nobody can follow such advice: {}", miss.text());
    }
    assert_eq!(vcr(&["cassette", "fmt", "--check", shelf.name()]).status.code(), Some(0));
}

#[tokio::test]
async fn a_packed_request_is_the_request_in_it() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    let headers = [("content-type", "application/json"), ("content-encoding", "gzip")];
    send(&tap, &of_bytes(CHAT, &headers, &packed(&chat(&["a"])))).await;
    tap.stop();
    assert!(shelf.text().contains("- {role: user, content: a}"), "{}", shelf.text());
    let play = shelf.play(&["--strict", "--on-exhausted", "last"]);
    assert_eq!(play.send(CHAT, &chat(&["a"])).await.status, 200);
    assert_eq!(send(&play, &of_bytes(CHAT, &headers, &packed(&chat(&["a"])))).await.status, 200);
    assert_eq!(send(&play, &of_bytes(CHAT, &headers, &packed(&chat(&["b"])))).await.status, 422);
}

#[tokio::test]
async fn a_form_matches_whatever_its_boundary_is() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let form = |boundary: &str, sound: &[u8]| {
        let head = format!("--{boundary}\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\n");
        [head.as_bytes(), sound, format!("\r\n--{boundary}--\r\n").as_bytes()].concat()
    };
    let path = "/v1/audio/transcriptions";
    let tap = shelf.tap(&upstream, &[]);
    let kind = "multipart/form-data; boundary=first";
    send(&tap, &of_bytes(path, &[("content-type", kind)], &form("first", b"RIFF\xff"))).await;
    tap.stop();
    let play = shelf.play(&["--on-exhausted", "last"]);
    let kind = "multipart/form-data; boundary=second";
    let played = send(&play, &of_bytes(path, &[("content-type", kind)], &form("second", b"RIFF\xff"))).await;
    assert_eq!(played.header("x-vcr-record"), Some("tape.yaml#0"));
    assert_eq!(send(&play, &of_bytes(path, &[("content-type", kind)], &form("second", b"RIFF\xfe"))).await.status, 422);
}

#[tokio::test]
async fn secrets_in_bytes_are_redacted_and_the_other_bytes_stay() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    let body = b"\xff\xfe key sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD \xff";
    send(&tap, &of_bytes("/custom", &[], body)).await;
    tap.stop();
    let line = shelf.text().lines().find_map(|line| line.trim().strip_prefix("body_base64: ").map(str::to_owned));
    let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, line.unwrap()).unwrap();
    assert!(bytes.starts_with(b"\xff\xfe key [REDACTED:") && bytes.ends_with(b"] \xff"), "{bytes:?}");
    let play = shelf.play(&[]);
    assert_eq!(send(&play, &of_bytes("/custom", &[], body)).await.header("x-vcr-record"), Some("tape.yaml#0"));
}

#[tokio::test]
async fn long_numbers_keep_their_digits() {
    const LONG: &str = "123456789012345678901234567890";
    let body = format!("{{\"big\": {LONG}, \"safe\": 9007199254740993, \"most\": 18446744073709551615}}");
    let said = body.clone();
    let upstream = Upstream::start(move |_| Script { pieces: answer("200 OK", &said), end: End::KeepAlive }).await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    let ask = |digits: &str| {
        of_bytes("/custom", &[("content-type", "application/json")], format!("{{\"seed\": {digits}}}").as_bytes())
    };
    send(&tap, &ask(LONG)).await;
    tap.stop();
    let text = shelf.text();
    assert!(
        text.contains(LONG) && text.contains("9007199254740993") && text.contains("18446744073709551615"),
        "{text}"
    );
    std::fs::remove_dir_all(shelf.folder.path().join("tape.vcr")).unwrap();
    let play = shelf.play(&["--on-exhausted", "last"]);
    let played = send(&play, &ask(LONG)).await;
    assert_eq!((played.text(), played.header("content-type")), (body, Some("application/json")));
    assert_eq!(send(&play, &ask(&LONG.replace('0', "1"))).await.status, 422, "every digit counts");
}

#[test]
fn a_request_has_one_body() {
    let two = record(&["a"], "A").replace("  answer:", "  body_base64: /w==\n  answer:");
    let shelf = Shelf::with(&tape(&[two]));
    let refused = vcr(&["cassette", "validate", shelf.name()]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(3) && said.contains(":3: the request has more than one body"), "{said}");
}

#[tokio::test]
async fn hand_written_numbers_keep_their_digits() {
    let text = format!(
        "vcr: 1\nrecords:\n- request: POST {CHAT}\n  body: {{model: m, seed: 123456789012345678901234567890, \
         messages: []}}\n  answer: {{message: {{content: A}}}}\n"
    );
    let play = Shelf::with(&text).play(&[]);
    let body = post(CHAT, &Value::Null);
    let exact = "{\"model\": \"m\", \"seed\": 123456789012345678901234567890, \"messages\": []}";
    let played = send(&play, &Request { body: exact.as_bytes().to_vec(), ..body }).await;
    assert_eq!(said(&played), "A");
}

#[tokio::test]
async fn what_describes_the_bytes_of_embeddings_is_kept() {
    let metadata = r#"{"data":[{"index":0,"embed_dtype":"float32","start":0,"end":8,"shape":[2]}]}"#;
    let said = format!("200 OK\r\ncontent-type: application/octet-stream\r\nmetadata: {metadata}");
    let upstream = Upstream::start(move |_| Script { pieces: answer(&said, "8 bytes."), end: End::KeepAlive }).await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    let request = post("/v1/embeddings", &json!({"model": "m", "input": "x", "encoding_format": "bytes"}));
    send(&tap, &request).await;
    tap.stop();
    let played = send(&shelf.play(&["--strict"]), &request).await;
    assert_eq!((played.header("metadata"), played.text().as_str()), (Some(metadata), "8 bytes."));
}
