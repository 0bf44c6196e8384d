//! Bounds of an endpoint; what it answers is tested through the program.

use std::path::Path;

use serde_json::json;

use super::*;
use crate::{
    account::{DEFAULT_SESSION, Report},
    mcp::{OnUsedUp, ParamRules},
};
use recording::{cassette::parse, redaction::RedactionRules};

const CASSETTE: &str = r"vcr: 1
records:
- request: POST /mcp/s
  body: {method: tools/call, params: {name: ask}}
  answer:
    events:
    - data: {result: {content: []}}
    - data: {method: notifications/tools/list_changed, params: {text: TEXT}}
- request: POST /mcp/s
  body: {method: tools/list}
  answer: {json: {result: {tools: []}}}
";

fn endpoint(text: &str) -> McpEndpoint {
    let cassette = parse(Path::new("t.yaml"), text).unwrap();
    let mut index = RecordIndex::new("s", ParamRules::default(), RedactionRules::default());
    index.add((0, "t.yaml"), &cassette.records).unwrap();
    let policy =
        McpPolicy { on_used_up: OnUsedUp::Last, reply_within: Duration::from_secs(60), ..McpPolicy::default() };
    McpEndpoint::new(index, "s", policy)
}

fn head(session: &str) -> McpHeaders {
    McpHeaders { session: Some(session.to_owned()), ..McpHeaders::default() }
}

fn post(endpoint: &McpEndpoint, head: &McpHeaders, fresh: &str, method: &str) -> u16 {
    let params = if method == "tools/call" { json!({"name": "ask"}) } else { json!({}) };
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let sender = HttpSender { session: DEFAULT_SESSION, fresh, stream: 0, now: Duration::ZERO };
    match endpoint.post(head, body.as_bytes(), &sender).reply {
        EndpointReply::Whole { status, .. } => status,
        EndpointReply::Events { .. } | EndpointReply::Ended(_) | EndpointReply::Forward(_) => 200,
    }
}

fn report(endpoint: &McpEndpoint) -> Report {
    let mut report = Report::default();
    endpoint.sessions.lock().add_to(&mut report, None);
    report
}

#[test]
fn sessions_that_are_never_ended_take_bounded_memory_and_what_failed_in_them_is_kept() {
    let endpoint = endpoint(CASSETTE);
    let begin = |name: &str| post(&endpoint, &McpHeaders::default(), name, "initialize");
    begin("first");
    assert_eq!(post(&endpoint, &head("first"), "", "prompts/list"), 200);
    endpoint.sessions.lock().most = 1 << 20;
    for number in 0..3000 {
        begin(&number.to_string());
    }
    let count = endpoint.sessions.lock().len();
    assert!((100..600).contains(&count), "{count}");
    assert_eq!(post(&endpoint, &head("first"), "", "tools/list"), 404);
    assert_eq!(post(&endpoint, &head("2999"), "", "tools/list"), 200);
    let report = report(&endpoint);
    assert_eq!(report.earlier["mcp:s"].misses, [("no_match", 1)].into_iter().collect());
    assert_eq!(report.sessions["mcp:s/3001"].served, 1);
    assert_eq!(report.unused.len(), 1);
}

#[test]
fn messages_without_a_stream_take_bounded_memory() {
    let endpoint = endpoint(&CASSETTE.replace("TEXT", &"x".repeat(100_000)));
    post(&endpoint, &McpHeaders::default(), "a", "initialize");
    for _ in 0..100 {
        assert_eq!(post(&endpoint, &head("a"), "", "tools/call"), 200);
    }
    let (_, waiting, before) = endpoint.listen(&head("a"), DEFAULT_SESSION, 7).unwrap();
    assert!((2..=10).contains(&waiting.len()) && before.is_empty(), "{}", waiting.len());
    let (_, waiting, before) = endpoint.listen(&head("a"), DEFAULT_SESSION, 8).unwrap();
    assert_eq!((waiting.len(), before), (0, vec![StreamMessage::End(7)]));
    assert_eq!(endpoint.end(&head("a"), DEFAULT_SESSION).1, [StreamMessage::End(8)]);
}
