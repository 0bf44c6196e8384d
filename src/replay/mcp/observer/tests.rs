//! Lines of both sides, and the records that they become.

use serde_json::json;

use super::*;

fn observed(lines: &[(Sender, Value)], left: Sender) -> (Vec<McpRecord>, Unrecorded) {
    let mut observer = Observer::new("s", OffsetDateTime::UNIX_EPOCH);
    let mut recorded = Vec::new();
    for (at, (sender, line)) in lines.iter().enumerate() {
        observer.line(*sender, line.to_string().as_bytes(), at as f64);
        recorded.extend(observer.take());
    }
    let unfinished = observer.unfinished().len();
    let rest = observer.finish(left);
    assert_eq!(unfinished, rest.len());
    recorded.extend(rest);
    let read = |exchange: RecordedExchange| McpRecord::read(&exchange.record).unwrap().unwrap();
    (recorded.into_iter().map(read).collect(), observer.unrecorded())
}

fn client(value: Value) -> (Sender, Value) {
    (Sender::Client, value)
}

fn server(value: Value) -> (Sender, Value) {
    (Sender::Server, value)
}

fn methods(record: &McpRecord) -> Vec<String> {
    let name = |event: &McpEvent| match event {
        McpEvent::Notify { method, .. } => method.clone(),
        McpEvent::Ask { method, reply, .. } => format!("{method}?{}", reply.is_some()),
        McpEvent::Answer(answer) => answer.keys().next().unwrap().clone(),
    };
    record.events.iter().map(name).collect()
}

#[test]
fn messages_belong_to_what_they_follow_from() {
    use Sender::Client;
    let (records, unrecorded) = observed(
        &[
            client(json!({"id": 0, "method": "initialize", "params": {}})),
            server(json!({"id": 0, "result": {}})),
            client(json!({"method": "notifications/initialized"})),
            server(json!({"id": 0, "method": "roots/list"})),
            client(json!({"id": 0, "result": {"roots": []}})),
            client(json!({"id": 1, "method": "tools/call", "params": {"name": "a", "_meta": {"progressToken": "t"}}})),
            client(json!({"id": "1", "method": "tools/call", "params": {"name": "b"}})),
            server(json!({"method": "notifications/progress", "params": {"progressToken": "t", "progress": 1}})),
            server(json!({"id": "1", "error": {"code": 1, "message": "x"}})),
            server(json!({"id": 1, "result": {}})),
            server(json!({"method": "notifications/tools/list_changed"})),
            client(json!({"id": 2, "method": "tools/list"})),
            server(json!({"id": 2, "result": {"tools": []}})),
        ],
        Client,
    );
    let found: Vec<(String, Vec<String>)> =
        records.iter().map(|record| (record.method.clone(), methods(record))).collect();
    let expected = [
        ("initialize", vec!["result"]),
        ("notifications/initialized", vec!["roots/list?true"]),
        ("tools/call", vec!["notifications/progress", "result", "notifications/tools/list_changed"]),
        ("tools/call", vec!["error"]),
        ("tools/list", vec!["result"]),
    ];
    let expected: Vec<(String, Vec<String>)> = expected
        .into_iter()
        .map(|(method, events)| (method.to_owned(), events.into_iter().map(str::to_owned).collect()))
        .collect();
    assert_eq!(found, expected);
    assert_eq!(unrecorded, Unrecorded::default());
}

#[test]
fn requests_without_an_answer_say_why() {
    let lines = [
        client(json!({"id": 1, "method": "tools/call", "params": {"name": "slow"}})),
        client(json!({"method": "notifications/cancelled", "params": {"requestId": 1}})),
        client(json!({"id": 2, "method": "tools/call", "params": {"name": "crash"}})),
    ];
    let broken = |left| observed(&lines, left).0.iter().map(|record| record.broken).collect::<Vec<_>>();
    assert_eq!(broken(Sender::Server), [Some(Broken::Cancelled), Some(Broken::ServerEnded)]);
    assert_eq!(broken(Sender::Client), [Some(Broken::Cancelled), Some(Broken::Cancelled)]);
}

#[test]
fn ids_that_are_used_twice_at_a_time_are_answered_in_order() {
    let request = |name: &str| client(json!({"id": 1, "method": "tools/call", "params": {"name": name}}));
    let answer = |text: &str| server(json!({"id": 1, "result": {"text": text}}));
    let lines = [request("a"), request("b"), answer("A"), answer("B"), answer("C")];
    let (records, unrecorded) = observed(&lines, Sender::Client);
    let texts: Vec<&Value> = records.iter().map(|record| &record.answer().unwrap()["result"]["text"]).collect();
    assert_eq!(texts, ["A", "B"]);
    assert_eq!(unrecorded.unmatched, 1);
}

#[test]
fn a_subscription_takes_only_what_follows_from_it() {
    let listen =
        json!({"id": "s", "method": "subscriptions/listen", "params": {"notifications": {"toolsListChanged": true}}});
    let note = |method: &str| server(json!({"method": method, "params": {}}));
    let lines = [
        client(listen),
        note("notifications/subscriptions/acknowledged"),
        client(json!({"id": 1, "method": "tools/call", "params": {"name": "a"}})),
        note("notifications/message"),
        server(json!({"id": 1, "result": {}})),
        note("notifications/tools/list_changed"),
    ];
    let (records, _) = observed(&lines, Sender::Client);
    assert_eq!(methods(&records[0]), ["notifications/subscriptions/acknowledged"]);
    assert_eq!(methods(&records[1]), ["notifications/message", "result", "notifications/tools/list_changed"]);
    assert_eq!(records[0].broken, Some(Broken::Cancelled));
}

#[test]
fn what_is_no_message_is_counted() {
    let mut observer = Observer::new("s", OffsetDateTime::UNIX_EPOCH);
    for line in [&b"hello"[..], &[0xff], b"[1, {\"method\": \"x\"}]", b"{}"] {
        observer.line(Sender::Client, line, 0.0);
    }
    observer.line(Sender::Server, br#"{"id": 9, "result": {}}"#, 0.0);
    assert_eq!(observer.unrecorded(), Unrecorded { unreadable: 4, unmatched: 1, early: 0 });
    let mut silent = Observer::new("s", OffsetDateTime::UNIX_EPOCH);
    silent.line(Sender::Server, br#"{"method": "notifications/message"}"#, 0.0);
    assert_eq!(silent.unrecorded().early, 1);
}
