//! A session that plays a recording, line by line.

use std::{path::Path, sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{McpPolicy, McpSession, OnNovel, OnUsedUp, ParamRules, RecordIndex, SessionStep};
use crate::account::Concern;
use recording::{cassette::parse, redaction::RedactionRules};

pub(super) const STRICT: McpPolicy = McpPolicy {
    on_novel: OnNovel::Error,
    on_used_up: OnUsedUp::Error,
    repeats_lists: false,
    reply_within: Duration::from_secs(60),
    counts_forwarded: true,
    over_http: false,
};

const CASSETTE: &str = r"vcr: 1
records:
- request: POST /mcp/s
  body: {method: initialize, params: {protocolVersion: 2025-06-18, clientInfo: {name: a}}}
  answer: {json: {result: {protocolVersion: 2025-06-18, capabilities: {tools: {}}, serverInfo: {name: real}}}}
- request: POST /mcp/s
  body: {method: notifications/initialized}
  answer:
    status: 202
    events:
    - data: {method: roots/list, reply: {result: {roots: []}}}
- request: POST /mcp/s
  body: {method: tools/call, params: {name: search, arguments: {q: a}, _meta: {progressToken: 7}}}
  answer:
    events:
    - data: {method: notifications/progress, params: {progressToken: 7, progress: 1}}
    - data: {method: elicitation/create, params: {message: sure?}, reply: {result: {action: accept}}}
    - data: {result: {content: [{type: text, text: first}]}}
    - data: {method: notifications/tools/list_changed}
- request: POST /mcp/s
  body: {method: tools/call, params: {name: search, arguments: {q: a}}}
  answer: {json: {result: {content: [{type: text, text: second}]}}}
- request: POST /mcp/s
  body: {method: tools/call, params: {name: crash}}
  answer: {fault: reset}
- request: POST /mcp/other
  body: {method: tools/list}
  answer: {json: {result: {tools: []}}}
";

pub(super) fn session(policy: McpPolicy) -> McpSession {
    session_of(CASSETTE, policy)
}

pub(super) fn session_of(text: &str, policy: McpPolicy) -> McpSession {
    let cassette = parse(Path::new("t.yaml"), text).unwrap();
    let mut index = RecordIndex::new("s", ParamRules::default(), RedactionRules::default());
    index.add((0, "t.yaml"), &cassette.records).unwrap();
    McpSession::new(Arc::new(index), "s", policy)
}

/// Sends a line at the beginning of time; returns what comes back.
pub(super) fn send(session: &mut McpSession, line: &Value) -> Vec<Value> {
    sent(session.line(line.to_string().as_bytes(), Duration::ZERO))
}

fn sent(steps: Vec<SessionStep>) -> Vec<Value> {
    let value = |step| match step {
        SessionStep::Send(sent) => Some(sent.message),
        SessionStep::Done(_) => None,
        SessionStep::Forward(_) => Some(json!("forward")),
        SessionStep::End => Some(json!("end")),
    };
    steps.into_iter().filter_map(value).collect()
}

fn search(id: impl Into<Value>, q: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": "tools/call", "params": {"name": "search", "arguments": {"q": q}}})
}

pub(super) fn text(message: &Value) -> &str {
    message["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{message}"))
}

/// Asks for the first record and replies to its question.
pub(super) fn first(session: &mut McpSession, id: &Value) -> Vec<Value> {
    let asked = send(session, &search(id.clone(), "a"));
    let ask = asked.last().unwrap()["id"].clone();
    send(session, &json!({"jsonrpc": "2.0", "id": ask, "result": {"action": "accept"}}))
}

#[test]
fn a_handshake_is_answered_for_any_client() {
    let mut session = session(STRICT);
    let initialize = |version: &str| json!({"id": "x", "method": "initialize", "params": {"protocolVersion": version, "clientInfo": {"name": "b"}}});
    for (asked, got) in [("2025-11-25", "2025-11-25"), ("1999-01-01", "2025-06-18")] {
        let answer = send(&mut session, &initialize(asked));
        assert_eq!(answer[0]["id"], "x");
        assert_eq!(answer[0]["result"]["protocolVersion"], got);
        assert_eq!(answer[0]["result"]["serverInfo"]["name"], "real");
    }
    assert_eq!(
        send(&mut session, &json!({"id": 2, "method": "ping"})),
        [json!({"jsonrpc": "2.0", "id": 2, "result": {}})]
    );
    assert_eq!(
        send(&mut session, &json!({"id": 3, "method": "logging/setLevel", "params": {"level": "info"}}))[0]["result"],
        json!({})
    );
    for method in ["server/discover", "nonsense/method"] {
        assert_eq!(send(&mut session, &json!({"id": 4, "method": method}))[0]["error"]["code"], -32601);
    }
    assert_eq!(session.report().sessions["default"].requests, 0);
}

#[test]
fn messages_of_the_server_are_sent_where_they_were() {
    let mut session = session(STRICT);
    let roots = send(&mut session, &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    assert_eq!(roots, [json!({"jsonrpc": "2.0", "id": 0, "method": "roots/list"})]);
    assert_eq!(send(&mut session, &json!({"id": 0, "result": {"roots": []}})), Vec::<Value>::new());
    let mut call = search(json!(0), "a");
    call["params"]["_meta"] = json!({"progressToken": "mine"});
    let asked = send(&mut session, &call);
    assert_eq!(asked[0]["params"], json!({"progressToken": "mine", "progress": 1}));
    assert_eq!((asked.len(), &asked[1]["id"], &asked[1]["method"]), (2, &json!(1), &json!("elicitation/create")));
    let rest = send(&mut session, &json!({"id": 1, "result": {"action": "decline"}}));
    assert_eq!((rest[0]["id"].clone(), text(&rest[0])), (json!(0), "first"));
    assert_eq!(rest[1], json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}));
    let report = session.report();
    assert_eq!(report.failing(&[Concern::Drift]), [Concern::Drift]);
    assert!(
        report
            .text()
            .contains(r#"elicitation/create: recorded with the client's reply {"result":{"action":"accept"}}"#),
        "{}",
        report.text()
    );
    // Without a token there is no progress.
    let asked = send(&mut super::tests::session(STRICT), &search(json!(1), "a"));
    assert_eq!(asked[0]["method"], "elicitation/create");
}

#[test]
fn a_reply_with_secrets_has_other_numbers_than_its_record_and_is_no_drift() {
    let recorded =
        "{action: accept, content: {password: '[REDACTED:password:2]', note: 'use [REDACTED:github_token:5]'}}";
    let cassette = CASSETTE.replace("{action: accept}", recorded);
    for (note, drifts) in [("use ghp_abcdefghijklmnopqrstuvwxyz0123456789", false), ("use none", true)] {
        let mut session = session_of(&cassette, STRICT);
        send(&mut session, &search(json!(0), "a"));
        let content = json!({"password": "a pass phrase", "note": note});
        send(&mut session, &json!({"id": 0, "result": {"action": "accept", "content": content}}));
        assert_eq!(!session.report().failing(&[Concern::Drift]).is_empty(), drifts, "{}", session.report().text());
    }
}

#[test]
fn replies_are_not_waited_for_for_ever() {
    let mut session = session(STRICT);
    send(&mut session, &search(json!(1), "a"));
    assert_eq!(session.next_deadline(), Some(Duration::from_secs(60)));
    assert_eq!(sent(session.expire(Duration::from_secs(59))), Vec::<Value>::new());
    assert_eq!(text(&sent(session.expire(Duration::from_secs(60)))[0]), "first");
    assert_eq!((session.next_deadline(), session.report().environment[0].now.as_str()), (None, "none"));
}

#[test]
fn a_cancelled_request_is_not_answered() {
    let mut session = session(STRICT);
    send(&mut session, &search(json!("1"), "a"));
    assert_eq!(send(&mut session, &json!({"method": "notifications/cancelled", "params": {"requestId": 1}})).len(), 0);
    assert!(session.next_deadline().is_some(), "1 is not \"1\"");
    send(&mut session, &json!({"method": "notifications/cancelled", "params": {"requestId": "1"}}));
    assert_eq!(send(&mut session, &json!({"id": 0, "result": {}})).len(), 0);
}

#[test]
fn equal_requests_get_their_records_in_order() {
    for (policy, third) in [(STRICT, None), (McpPolicy { on_used_up: OnUsedUp::Last, ..STRICT }, Some("second"))] {
        let mut session = session(policy);
        assert_eq!(text(&first(&mut session, &json!(5))[0]), "first");
        assert_eq!(text(&send(&mut session, &search(json!("6"), "a"))[0]), "second");
        let last = &send(&mut session, &search(json!(7), "a"))[0];
        match third {
            Some(third) => assert_eq!(text(last), third),
            None => {
                assert_eq!(last["error"]["code"], 41000);
                assert_eq!(last["error"]["data"]["vcr"]["records"][1]["served_to"], json!([2]));
            }
        }
        let report = session.report();
        let failing = report.failing(&[Concern::Miss, Concern::Exhausted]);
        assert_eq!(failing, [if third.is_some() { Concern::Exhausted } else { Concern::Miss }]);
    }
}

#[test]
fn equal_ids_at_one_time_are_two_requests() {
    let mut session = session(STRICT);
    send(&mut session, &search(json!(1), "a"));
    assert_eq!(text(&send(&mut session, &search(json!(1), "a"))[0]), "second");
    let first = send(&mut session, &json!({"id": 0, "result": {}}));
    assert_eq!((text(&first[0]), &first[0]["id"]), ("first", &json!(1)));
}

#[test]
fn what_was_not_recorded_names_the_closest_record() {
    let mut session = session(STRICT);
    let answer = &send(&mut session, &search(json!(1), "b"))[0];
    assert_eq!(answer["error"]["code"], 40400);
    let vcr = &answer["error"]["data"]["vcr"];
    assert_eq!((&vcr["closest"]["record"], &vcr["closest"]["line"]), (&json!(2), &json!(12)));
    assert_eq!(
        vcr["diffs"],
        json!([{"path": "$.params.arguments.q", "op": "replace", "recorded": "a", "received": "b", "at": 0}])
    );
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("No recorded interaction matched: params.arguments.q is 'b', recorded 'a' (t.yaml#2). ")
            && message.contains("#2 (t.yaml:12), 1 difference"),
        "{message}"
    );
    let record = "If intended, record it: vllm-vcr mcp-tap --mode new-episodes --cassette t.yaml --name s -- COMMAND.";
    assert!(message.contains(record), "{message}");
    let other = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "find"}});
    let other = send(&mut super::tests::session(STRICT), &other)[0]["error"]["message"].to_string();
    assert!(other.contains("none is of this tool") && other.contains(record), "{other}");
    let report = session.report_json(&[Concern::Miss]);
    assert_eq!((&report["failing"], &report["novel"][0]["closest"]["record"]), (&json!(["miss"]), &json!(2)));
    assert_eq!(report["sessions"]["default"]["misses"], json!({"no_match": 1}));
}

#[test]
fn the_closest_call_is_about_the_same() {
    let call = |tool: &str, arguments: &str| {
        format!(
            "- request: POST /mcp/s\n  body: {{method: tools/call, params: {{name: {tool}, arguments: {arguments}}}}}\n  answer: {{json: {{result: {{content: []}}}}}}\n"
        )
    };
    let recorded = ["{q: p0}", "{q: p1}", "{q: phase}", "{q: bar}", "{q: barking dogs}", "{id: 7}", "{id: 4711}"];
    let mut records: Vec<String> = recorded.iter().map(|arguments| call("search", arguments)).collect();
    records.push(call("other", "{q: barr}"));
    // More records of the tool than are compared field by field.
    records.splice(0..0, (0..100).map(|at| call("search", &format!("{{q: filler{at}}}"))));
    let text = format!("vcr: 1\nrecords:\n{}", records.concat());
    for (arguments, expected) in [
        (json!({"q": "barr"}), 103),
        (json!({"q": "Bar"}), 103),
        (json!({"q": "barking cats"}), 104),
        (json!({"q": "phases"}), 102),
        (json!({"id": 4712}), 106),
        (json!({"q": "filler77x"}), 77),
    ] {
        let mut session = session_of(&text, STRICT);
        let mut asked = search(json!(1), "");
        asked["params"]["arguments"] = arguments.clone();
        let answer = &send(&mut session, &asked)[0];
        assert_eq!(answer["error"]["data"]["vcr"]["closest"]["record"], expected, "{arguments}: {answer}");
    }
}

#[test]
fn novel_calls_can_have_a_null_result() {
    let mut session = session(McpPolicy { on_novel: OnNovel::Null, ..STRICT });
    let answer = &send(&mut session, &search(json!(1), "b"))[0];
    assert_eq!(*answer, json!({"jsonrpc": "2.0", "id": 1, "result": null}));
    assert_eq!(send(&mut session, &json!({"id": 2, "method": "prompts/list"}))[0]["error"]["code"], 40400);
    let report = session.report_json(&[Concern::Loose]);
    assert_eq!((&report["failing"], &report["novel"][0]["reason"]), (&json!(["loose"]), &json!("no_match")));
    assert_eq!(session.report().sessions["default"].loose, [("null", 1)].into_iter().collect());
}

#[test]
fn novel_calls_can_have_made_up_or_similar_answers() {
    let mut stubbed = session(McpPolicy { on_novel: OnNovel::Stub, ..STRICT });
    let answer = &send(&mut stubbed, &search(json!(1), "b"))[0];
    assert!(text(answer).starts_with("<novel: search#"), "{answer}");
    let listed = &send(&mut stubbed, &json!({"id": 2, "method": "prompts/list"}))[0];
    assert_eq!(listed["error"]["code"], 40400);
    let mut similar = session(McpPolicy { on_novel: OnNovel::Closest, ..STRICT });
    let asked = send(&mut similar, &search(json!(1), "b"));
    assert_eq!(asked[0]["method"], "elicitation/create");
    let mut other = search(json!(2), "b");
    other["params"]["arguments"] = json!({"x": 1, "y": 2, "q": 3});
    assert_eq!(send(&mut similar, &other)[0]["error"]["code"], 40400);
    assert_eq!(similar.report().sessions["default"].loose, [("closest", 1)].into_iter().collect());
}

#[test]
fn calls_that_were_skipped_are_reported() {
    let mut session = session(STRICT);
    assert_eq!(session.report().failing(&[Concern::Unconsumed]), []);
    first(&mut session, &json!(1));
    let report = session.report();
    assert_eq!(report.failing(&[Concern::Unconsumed]), [Concern::Unconsumed]);
    let left = &report.sessions["default"].unconsumed;
    assert_eq!(
        left,
        &[r#"t.yaml#3 (t.yaml:20) s tools/call search {"q":"a"}"#, "t.yaml#4 (t.yaml:23) s tools/call crash"]
    );
    assert_eq!(report.unused.len(), 2);
}

#[test]
fn a_server_that_ended_ends_again() {
    let ended = send(&mut session(STRICT), &json!({"id": 1, "method": "tools/call", "params": {"name": "crash"}}));
    assert_eq!(ended, [json!("end")]);
}

#[test]
fn a_server_that_ended_ends_after_the_last_call_that_it_left() {
    let call = |tool: &str| {
        let body = format!("{{method: tools/call, params: {{name: {tool}}}}}");
        format!("- request: POST /mcp/s\n  body: {body}\n  answer: {{fault: reset}}\n")
    };
    let opened = "- request: POST /mcp/s\n  body: {method: initialize}\n  answer: {json: {result: {}}}\n";
    let records = [opened, &call("slow"), &call("die"), opened, &call("later")].concat();
    let text = format!("vcr: 1\nrecords:\n{records}");
    let ask = |name: &str| json!({"id": 1, "method": "tools/call", "params": {"name": name}});
    for order in [["slow", "die"], ["die", "slow"]] {
        let mut session = session_of(&text, STRICT);
        assert_eq!(send(&mut session, &ask(order[0])), Vec::<Value>::new());
        assert_eq!(send(&mut session, &json!({"id": 2, "method": "ping"})).len(), 1);
        assert_eq!(send(&mut session, &ask(order[1])), [json!("end")]);
    }
    // A client that does not send it is not left without an end.
    let mut session = session_of(&text, STRICT);
    send(&mut session, &ask("slow"));
    let deadline = session.next_deadline().unwrap();
    assert_eq!(sent(session.expire(deadline)), [json!("end")]);
    assert_eq!(session.next_deadline(), None);
}

#[test]
fn batches_are_of_one_version() {
    let mut session = session(STRICT);
    let batch = json!([{"id": 1, "method": "ping"}, {"method": "notifications/x"}, {"id": 2, "method": "ping"}, 7]);
    assert_eq!(send(&mut session, &batch)[0]["error"]["code"], -32600);
    send(&mut session, &json!({"id": 0, "method": "initialize", "params": {"protocolVersion": "2025-03-26"}}));
    let answers = send(&mut session, &batch);
    assert_eq!(answers.len(), 1);
    let ids: Vec<&Value> = answers[0].as_array().unwrap().iter().map(|answer| &answer["id"]).collect();
    assert_eq!(ids, [&json!(1), &json!(2), &Value::Null]);
}

#[test]
fn secrets_are_neither_compared_nor_shown() {
    let mut session = session(STRICT);
    let secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH";
    let answer = send(&mut session, &search(json!(1), secret))[0].to_string();
    let report = session.report_json(&[]).to_string() + &session.report().text();
    assert!(!answer.contains(secret) && answer.contains("[REDACTED:"), "{answer}");
    assert!(!report.contains(secret), "{report}");
}

#[test]
fn a_placeholder_in_a_request_is_named_by_the_record_that_served_it() {
    let call = |tool: &str, given: &str, said: &str| {
        let body = format!("{{method: tools/call, params: {{name: {tool}, arguments: {{q: '{given}'}}}}}}");
        let answer = format!("{{json: {{result: {{content: [{{type: text, text: '{said}'}}]}}}}}}");
        format!("- request: POST /mcp/s\n  body: {body}\n  answer: {answer}\n")
    };
    let token = "[REDACTED:token:1]";
    let records =
        [call("login", "", token), call("show", token, token), call("use", "token=[REDACTED:assigned:1]", "")];
    let mut session = session_of(&format!("vcr: 1\nrecords:\n{}", records.concat()), STRICT);
    let mut ask = |tool: &str, given: &str| {
        let params = json!({"name": tool, "arguments": {"q": given}});
        send(&mut session, &json!({"id": 1, "method": "tools/call", "params": params}))[0].clone()
    };
    let token = text(&ask("login", "")).to_owned();
    assert_eq!(text(&ask("show", &token)), token);
    let message = ask("use", &format!("token={token}"))["error"]["message"].to_string();
    assert!(message.contains("--secrets FILE with t.yaml#0 token:1 = VALUE"), "{message}");
}

#[test]
fn lines_that_hold_no_message_are_answered_and_nothing_else_changes() {
    let mut session = session(STRICT);
    for line in [&b"{"[..], b"\xff\xfe", b"7", b"{\"id\":{},\"method\":\"x\"}", &[b'['; 100_000]] {
        let answer = sent(session.line(line, Duration::ZERO));
        assert!(answer[0]["error"]["code"].is_number(), "{answer:?}");
    }
    assert_eq!(sent(session.lost())[0]["error"]["code"], -32600);
    assert_eq!(send(&mut session, &json!({"id": 9, "result": {}})).len(), 0);
    assert_eq!(text(&first(&mut session, &json!(1))[0]), "first");
}
