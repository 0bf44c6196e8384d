//! No secret reaches a file, a log, an error or an answer about the cassette_player.

use serde_json::{Value, json};

use super::{CHAT, Shelf, chat, engine, record, tape, vcr};
use crate::support::client::{self, post};

/// Secrets of the shapes that the rules know.
fn planted() -> Vec<String> {
    let tail = "abcdefghijklmnopqrstuvwxyz0123456789ABCD";
    let mut planted = Vec::new();
    for at in 0..10 {
        planted.push(format!("sk-proj-{at}{tail}"));
        planted.push(format!("ghp_{at}{}", &tail[..35]));
        planted.push(format!("person{at}@example.com"));
        planted.push(format!("AKIA{at}ABCDEFGHIJKLMN{at}"));
    }
    planted
}

#[tokio::test]
async fn planted_secrets_reach_nothing() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &["--redact", "all"]);
    let secrets = planted();
    for (at, secret) in secrets.iter().enumerate() {
        let words = format!("call {at} with {secret} please");
        let arguments = json!({"note": secret}).to_string();
        let body = json!({"model": "m", "stream": at % 2 == 0, "messages": [
            {"role": "user", "content": words},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": "c", "content": words}]});
        let mut request = post(CHAT, &body);
        request.headers.push(("authorization", "Bearer sk-header-abcdefghijklmnopqrstuvwxyz012345"));
        let answer = client::send(tap.address, &request).await;
        assert_eq!(answer.status, 200);
    }
    let (_, tapped) = tap.stop();
    let play = shelf.play(&["--on-exhausted", "last"]);
    let first = &secrets[0];
    let missed = play.send(CHAT, &chat(&[&format!("another {first}")])).await;
    assert_eq!(missed.status, 422);
    let mut shown = vec![tapped, shelf.text(), missed.text()];
    shown.push(super::read(&shelf.folder.path().join("tape.vcr/timing.jsonl")));
    for path in ["/vcr/misses", "/vcr/report", "/vcr/records", "/vcr/records/0"] {
        shown.push(play.get(path).await.to_string());
    }
    let body = json!({"model": "m", "messages": [
        {"role": "user", "content": format!("call 0 with {first} please")},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": json!({"note": first}).to_string()}}]},
        {"role": "tool", "tool_call_id": "c", "content": format!("call 0 with {first} please")}]});
    assert_eq!(play.send(CHAT, &body).await.status, 200, "redacted requests match");
    shown.push(play.stop().1);
    for secret in secrets.iter().map(String::as_str).chain(["sk-header"]) {
        for text in &shown {
            assert!(!text.contains(secret), "{secret} in {}", &text[..text.len().min(2000)]);
        }
    }
}

#[test]
fn cassettes_with_secrets_are_refused_and_can_be_cleaned() {
    let secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD";
    let shelf = Shelf::with(&tape(&[record(&["a"], "A"), record(&[&format!("key {secret}")], "B")]));
    let refused = vcr(&["play", "--port", "0", "--cassette", shelf.name(), "--", "true"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(3), "{said}");
    assert!(
        said.contains(&format!("{}:6: ", shelf.name())) && said.contains("cassette redact") && !said.contains(secret),
        "{said}"
    );
    assert_eq!(vcr(&["cassette", "validate", shelf.name()]).status.code(), Some(3));
    let allowed = vcr(&["play", "--port", "0", "--cassette", shelf.name(), "--allow-secrets", "--", "true"]);
    assert_eq!(allowed.status.code(), Some(0));
    assert_eq!(vcr(&["cassette", "redact", shelf.name()]).status.code(), Some(0));
    assert!(!shelf.text().contains(secret) && shelf.text().contains("[REDACTED:"), "{}", shelf.text());
    assert_eq!(vcr(&["cassette", "validate", shelf.name()]).status.code(), Some(0));
}

#[tokio::test]
async fn headers_of_clients_are_not_stored() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &["--redact-key", "tenant"]);
    let mut request = post(
        CHAT,
        &json!({"model": "m", "tenant": "acme-corporation", "messages": [{"role": "user", "content": "a"}]}),
    );
    request.headers.push(("x-secret", "hidden"));
    client::send(tap.address, &request).await;
    tap.stop();
    let side: Value =
        serde_json::from_str(super::read(&shelf.folder.path().join("tape.vcr/timing.jsonl")).trim()).unwrap();
    assert!(side["body"].is_null(), "copies of a redacted record are dropped: {side}");
    assert!(!shelf.text().contains("hidden") && !shelf.text().contains("acme"), "{}", shelf.text());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&shelf.file).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
