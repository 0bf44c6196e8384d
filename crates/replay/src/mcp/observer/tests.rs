//! Lines of both sides, and the records that they become.

use serde_json::json;

use super::*;

fn observed(lines: &[(Sender, Value)], left: Sender) -> (Vec<McpRecord>, Unrecorded) {
    let mut observer = Observer::new("s", OffsetDateTime::UNIX_EPOCH);
    let mut recorded = Vec::new();
    for (at, (sender, line)) in lines.iter().enumerate() {
        observer.line(passed(*sender, None, at as f64), line.to_string().as_bytes());
        recorded.extend(observer.take());
    }
    let unfinished = observer.unfinished().len();
    let rest = observer.finish(left);
    assert_eq!(unfinished, rest.len());
    recorded.extend(rest);
    let read = |made: FinishedExchange| McpRecord::read(&made.exchange.record).unwrap().unwrap();
    (recorded.into_iter().map(read).collect(), observer.unrecorded())
}

fn passed(sender: Sender, http_exchange: Option<u64>, at: f64) -> MessageOrigin {
    MessageOrigin { sender, http_exchange, at }
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
        ("tools/call", vec!["notifications/progress", "result"]),
        ("tools/call", vec!["error", "notifications/tools/list_changed"]),
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
fn announcements_belong_to_what_ended_and_not_to_what_began_before_it() {
    let call = |id: u64, name: &str| client(json!({"id": id, "method": "tools/call", "params": {"name": name}}));
    let answer = |id: u64| server(json!({"id": id, "result": {}}));
    let note = |method: &str| server(json!({"method": method, "params": {}}));
    let lines = [
        call(1, "slow"),
        note("notifications/resources/updated"),
        call(2, "start"),
        answer(2),
        note("notifications/resources/updated"),
        note("notifications/tasks/status"),
        note("notifications/message"),
        answer(1),
        note("notifications/resources/list_changed"),
    ];
    let (records, _) = observed(&lines, Sender::Client);
    assert_eq!(methods(&records[0]), ["notifications/resources/updated", "notifications/message", "result"]);
    let after =
        ["notifications/resources/updated", "notifications/tasks/status", "notifications/resources/list_changed"];
    assert_eq!(methods(&records[1]), [&["result"], &after[..]].concat());
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
        observer.line(passed(Sender::Client, None, 0.0), line);
    }
    observer.line(passed(Sender::Server, None, 0.0), br#"{"id": 9, "result": {}}"#);
    assert_eq!(observer.unrecorded(), Unrecorded { unreadable: 4, unmatched: 1, early: 0 });
    let mut silent = Observer::new("s", OffsetDateTime::UNIX_EPOCH);
    silent.line(passed(Sender::Server, None, 0.0), br#"{"method": "notifications/message"}"#);
    assert_eq!(silent.unrecorded().early, 1);
}

/// An observer of several HTTP exchanges, its lines with the exchanges that they were part of, and what it gave.
fn observed_on(lines: &[(Sender, Option<u64>, Value)]) -> (Observer, Vec<FinishedExchange>) {
    let mut observer = Observer::new("s", OffsetDateTime::UNIX_EPOCH);
    observer.is_ordered = false;
    let mut made = Vec::new();
    for (at, (sender, http_exchange, line)) in lines.iter().enumerate() {
        observer.line(passed(*sender, *http_exchange, at as f64), line.to_string().as_bytes());
        made.extend(observer.take());
    }
    (observer, made)
}

fn tool_call(name: &str) -> Value {
    json!({"id": 1, "method": "tools/call", "params": {"name": name, "_meta": {"progressToken": 7}}})
}

#[test]
fn messages_belong_to_the_http_exchange_that_they_came_in() {
    use Sender::{Client, Server};
    let progress = json!({"method": "notifications/progress", "params": {"progressToken": 7}});
    let note = json!({"method": "notifications/message"});
    let ask = json!({"id": 1, "method": "roots/list"});
    let answer = |text: &str| json!({"id": 1, "result": {"text": text}});
    let (mut observer, mut made) = observed_on(&[
        (Client, Some(1), tool_call("a")),
        (Client, Some(2), tool_call("b")),
        (Server, Some(1), progress),
        (Server, Some(1), note),
        (Server, Some(1), ask),
        (Server, Some(2), answer("B")),
        (Client, Some(3), json!({"id": 1, "result": {"roots": []}})),
        (Server, Some(1), answer("A")),
        (Server, None, json!({"method": "notifications/tools/list_changed"})),
    ]);
    assert_eq!(
        made.iter().map(|made| made.http_exchange).collect::<Vec<_>>(),
        [Some(1)],
        "the second waits for what follows"
    );
    made.extend(observer.finish(Client));
    let found: Vec<(Option<u64>, Vec<String>)> = made
        .iter()
        .map(|made| (made.http_exchange, methods(&McpRecord::read(&made.exchange.record).unwrap().unwrap())))
        .collect();
    let first = ["notifications/progress", "notifications/message", "roots/list?true", "result"];
    let second = ["result", "notifications/tools/list_changed"];
    assert_eq!(found[0], (Some(1), first.map(str::to_owned).to_vec()));
    assert_eq!(found[1], (Some(2), second.map(str::to_owned).to_vec()));
    assert_eq!(observer.unrecorded(), Unrecorded::default());
}

#[test]
fn an_answer_may_come_in_a_later_stream_of_its_session() {
    use Sender::{Client, Server};
    let (observer, _) = observed_on(&[
        (Client, Some(1), tool_call("a")),
        (Server, None, json!({"id": 1, "result": {}})),
        (Server, Some(2), json!({"id": 1, "result": {}})),
    ]);
    assert!(!observer.has_open(1));
    assert_eq!(observer.unrecorded().unmatched, 1, "the exchange of another request answers nothing");
}

#[test]
fn http_exchanges_that_end_early_are_marked_or_left_out() {
    use Sender::{Client, Server};
    let calls: Vec<_> =
        (1..=3).map(|http_exchange| (Client, Some(http_exchange), tool_call(&format!("t{http_exchange}")))).collect();
    let (mut observer, _) = observed_on(&calls);
    assert!(observer.has_open(1));
    observer.cut(1, Client);
    observer.cut(2, Server);
    observer.forget(3);
    let broken: Vec<_> =
        observer.take().iter().map(|made| McpRecord::read(&made.exchange.record).unwrap().unwrap().broken).collect();
    assert_eq!(broken, [Some(Broken::Cancelled), Some(Broken::ServerEnded)]);
    assert!(!observer.has_open(1) && observer.finish(Client).is_empty() && observer.waiting() == 0);
}

#[test]
fn what_follows_a_call_is_not_taken_by_the_stream_of_a_subscription() {
    use Sender::{Client, Server};
    let listen = json!({"id": 1, "method": "subscriptions/listen", "params": {"notifications": {}}});
    let (mut observer, _) = observed_on(&[
        (Client, Some(1), listen),
        (Server, Some(1), json!({"method": "notifications/subscriptions/acknowledged"})),
        (Client, Some(2), tool_call("a")),
        (Server, Some(2), json!({"id": 1, "result": {}})),
        (Server, Some(1), json!({"method": "notifications/tools/list_changed"})),
    ]);
    let rest = observer.finish(Client);
    let found: Vec<_> =
        rest.iter().map(|made| methods(&McpRecord::read(&made.exchange.record).unwrap().unwrap())).collect();
    assert_eq!(
        found,
        [
            vec!["notifications/subscriptions/acknowledged".to_owned()],
            vec!["result".to_owned(), "notifications/tools/list_changed".to_owned()]
        ]
    );
}
