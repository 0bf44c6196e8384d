//! What the player answers.

use serde_json::{Value, json};

use super::{SERVER, Server, Shelf, open, shopping};
use crate::support::read;

fn code(message: &Value) -> i64 {
    message["error"]["code"].as_i64().unwrap_or_else(|| panic!("{message}"))
}

#[test]
fn case_3_4_ids_and_tokens_are_the_callers() {
    let shop = Shelf::with(SERVER);
    let mut play = Server::play(&shop, &["--strict"]);
    let ids = [json!("a"), json!(-7), json!("1"), json!(1), json!(9_007_199_254_740_993_u64)];
    let seen = shopping(&mut play, ids.clone(), &json!("token"));
    assert_eq!(seen[3]["params"]["progressToken"], "token");
    let answered: Vec<&Value> = [2, 5, 7, 8, 9].iter().map(|at| &seen[*at]["id"]).collect();
    assert_eq!(answered, ids.iter().collect::<Vec<_>>());
    assert_eq!(play.end().1, 0);
}

#[test]
fn case_4_two_requests_of_one_id_at_one_time_are_both_answered() {
    let shop = Shelf::with(SERVER);
    let mut play = Server::play(&shop, &[]);
    let call = |name: &str, what: Value| json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": name, "arguments": what}});
    play.write(
        format!("{}\n{}\n", call("buy", json!({"what": "tea", "many": 2})), call("sell", json!({"what": "tea"})))
            .as_bytes(),
    );
    let (ask, sold) = (play.next(), play.next());
    assert_eq!((&sold["id"], code(&sold)), (&json!(5), -32602));
    play.send(&json!({"jsonrpc": "2.0", "id": ask["id"], "result": {"action": "accept", "content": {"sure": true}}}));
    let bought = play.next();
    assert_eq!((&bought["id"], &bought["result"]["content"][0]["text"]), (&json!(5), &json!("bought")));
}

#[test]
fn case_5_equal_requests_are_answered_in_order_and_then_by_policy() {
    let again = "served again: 1 exhausted";
    for (flags, third, expected) in [
        (&[][..], None, again),
        // Libraries of clients ask for lists by themselves.
        (&["--strict"], None, "misses: 1 exhausted"),
        (&["--on-exhausted", "error"], Some(41000), "misses: 2 exhausted"),
        (&["--strict", "--on-exhausted", "last"], None, again),
    ] {
        let shop = Shelf::with(SERVER);
        let mut play = Server::play(&shop, flags);
        let mut tools = |id: u64| play.ask(json!(id), "tools/list", &json!({}));
        let counts: Vec<usize> = (0..2).map(|id| tools(id)["result"]["tools"].as_array().unwrap().len()).collect();
        assert_eq!(counts, [1, 2]);
        let last = tools(2);
        match third {
            None => assert_eq!(last["result"]["tools"].as_array().unwrap().len(), 2),
            Some(expected) => assert_eq!(code(&last), expected),
        }
        // Other requests follow the policy.
        if expected != again {
            let mut read = || play.ask(json!(3), "resources/read", &json!({"uri": "shop://é/list"}));
            assert_eq!((read()["result"].is_object(), code(&read())), (true, 41000));
        }
        let notes = play.end().2;
        assert!(notes.contains(expected), "{notes}");
    }
}

#[test]
fn a_list_that_is_asked_for_less_or_more_often_than_recorded_is_no_failure() {
    for times in [1, 2, 5] {
        let shop = Shelf::with(SERVER);
        let mut play = Server::play(&shop, &["--strict", "--fail-on", "miss,unconsumed,exhausted,loose"]);
        for id in 0..times {
            assert!(play.ask(json!(id), "tools/list", &json!({}))["result"].is_object());
        }
        play.call(json!(7), "sell", &json!({"what": "tea"}));
        play.ask(json!(8), "resources/read", &json!({"uri": "shop://é/list"}));
        assert_eq!(play.call(json!(9), "buy", &json!({"what": "tea", "many": 2}))["method"], "elicitation/create");
        let (_, exit, notes) = play.end();
        assert_eq!(exit, 0, "{notes}");
    }
}

#[test]
fn case_6_a_miss_names_the_closest_record_and_the_difference() {
    let shop = Shelf::with(SERVER);
    let report = shop.folder.path().join("report.json");
    let mut play = Server::play(&shop, &["--strict", "--report", report.to_str().unwrap()]);
    let answer = play.call(json!(1), "sell", &json!({"what": "coffee"}));
    assert_eq!(code(&answer), 40400);
    let vcr = &answer["error"]["data"]["vcr"];
    assert_eq!((&vcr["reason"], &vcr["closest"]["record"]), (&json!("no_match"), &json!(5)));
    assert_eq!(vcr["diffs"][0]["path"], "$.params.arguments.what");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("is 'coffee', recorded 'tea' (tape.yaml#5). If intended, record it: "), "{message}");
    let (_, code, notes) = play.end();
    assert_eq!(code, 1);
    assert!(notes.contains("failed: miss") && notes.contains("misses: 1 no_match"), "{notes}");
    let report: Value = serde_json::from_str(&read(&report)).unwrap();
    assert_eq!((&report["failing"], &report["server"]), (&json!(["miss"]), &json!("shop")));
    assert_eq!(report["novel"][0]["diffs"], vcr["diffs"]);
}

#[test]
fn novel_calls_get_what_the_policy_says() {
    let shop = Shelf::with(SERVER);
    let mut stub = Server::play(&shop, &["--on-miss", "stub"]);
    let answer = stub.call(json!(1), "sell", &json!({"what": "coffee"}));
    assert!(answer["result"]["content"][0]["text"].as_str().unwrap().starts_with("<novel: sell#"), "{answer}");
    assert_eq!(answer["result"].get("structuredContent"), None, "{answer}");
    // Clients refuse a result that is not as the tool's list promises.
    let schema =
        "{name: sell, outputSchema: {type: object, required: [left], properties: {left: {type: integer, minimum: 3}}}}";
    let promising = Shelf::with(&SERVER.replace("{name: sell}]", &format!("{schema}]")));
    let mut stub = Server::play(&promising, &["--on-miss", "stub"]);
    let answer = stub.call(json!(1), "sell", &json!({"what": "coffee"}));
    assert!(answer["result"]["structuredContent"]["left"].as_i64().unwrap() >= 3, "{answer}");
    assert!(answer["result"]["content"][0]["text"].as_str().unwrap().starts_with("<novel: sell#"), "{answer}");
    let mut closest = Server::play(&shop, &["--on-miss", "closest", "--fail-on", "loose"]);
    assert_eq!(code(&closest.call(json!(1), "sell", &json!({"what": "coffee"}))), -32602);
    assert_eq!(code(&closest.call(json!(2), "steal", &json!({"what": "tea"}))), 40400);
    let (_, exit, notes) = closest.end();
    assert_eq!(exit, 1, "{notes}");
    assert!(notes.contains("loose matches: 1 closest"), "{notes}");
}

#[test]
fn case_7_a_reply_that_differs_is_reported() {
    let shop = Shelf::with(SERVER);
    let mut play = Server::play(&shop, &["--fail-on", "drift"]);
    let ask = play.call(json!(1), "buy", &json!({"what": "tea", "many": 2}));
    assert_eq!((&ask["method"], &ask["params"]), (&json!("elicitation/create"), &json!({"message": "Sure?"})));
    play.send(&json!({"jsonrpc": "2.0", "id": ask["id"], "result": {"action": "decline"}}));
    assert_eq!(play.next()["result"]["content"][0]["text"], "bought");
    let (_, exit, notes) = play.end();
    assert_eq!(exit, 1);
    assert!(notes.contains("elicitation/create") && notes.contains("decline"), "{notes}");
}

#[test]
fn a_client_that_does_not_reply_gets_its_answer_all_the_same() {
    let shop = Shelf::with(SERVER);
    let mut play = Server::play(&shop, &["--reply-within", "1ms"]);
    assert_eq!(play.call(json!(1), "buy", &json!({"what": "tea", "many": 2}))["method"], "elicitation/create");
    assert_eq!(play.next()["result"]["content"][0]["text"], "bought");
}

#[test]
fn case_8_a_changed_list_is_announced_after_the_call_that_changed_it() {
    let shop = Shelf::with(SERVER);
    let mut play = Server::play(&shop, &[]);
    let seen = shopping(&mut play, std::array::from_fn(|at| json!(at)), &json!(3));
    let methods: Vec<&Value> = seen[3..8].iter().map(|message| &message["method"]).collect();
    assert_eq!(methods[..2], ["notifications/progress", "elicitation/create"]);
    assert_eq!(
        (&seen[5]["result"]["isError"], methods[3]),
        (&json!(false), &json!("notifications/tools/list_changed"))
    );
    assert_eq!(seen[7]["result"]["tools"].as_array().unwrap().len(), 2);
}

#[test]
fn case_9_any_client_and_version_can_open_it() {
    let shop = Shelf::with(SERVER);
    for (wanted, expected) in [("2024-11-05", "2024-11-05"), ("2025-11-25", "2025-11-25"), ("2019-01-01", "2025-06-18")]
    {
        let mut play = Server::play(&shop, &["--strict"]);
        let answer = open(&mut play, wanted, "somebody else");
        assert_eq!(
            (&answer["result"]["protocolVersion"], &answer["result"]["serverInfo"]["name"]),
            (&json!(expected), &json!("shop"))
        );
        play.next();
        assert_eq!(play.ask(json!(1), "ping", &json!({}))["result"], json!({}));
        assert_eq!(play.end().1, 0);
    }
    let no_handshake = Shelf::with(
        "vcr: 1\nrecords:\n- request: POST /mcp/s\n  body: {method: tools/list}\n  answer: {json: {result: {tools: []}}}\n",
    );
    let mut play = Server::play(&no_handshake, &[]);
    let answer = open(&mut play, "2025-11-25", "agent");
    assert_eq!(answer["result"]["capabilities"], json!({"tools": {}}));
}

#[test]
fn case_14_a_call_that_asks_for_input_is_two_records() {
    let call = |more: &str, answer: &str| {
        format!(
            "- request: POST /mcp/s\n  body: {{method: tools/call, params: {{name: book{more}}}}}\n  answer: {{json: {{result: {answer}}}}}\n"
        )
    };
    let asks = "{resultType: input_required, inputRequests: {a: {method: elicitation/create}}, requestState: opaque}";
    let given = ", requestState: opaque, inputResponses: {a: {action: accept}}";
    let text = format!("vcr: 1\nrecords:\n{}{}", call("", asks), call(given, "{resultType: complete, content: []}"));
    let shelf = Shelf::with(&text);
    let mut play = Server::play(&shelf, &["--strict"]);
    let first = play.ask(json!(1), "tools/call", &modern(json!({"name": "book"})));
    let state = first["result"]["requestState"].clone();
    assert_eq!(state, "opaque");
    let mut again = |id: u64, action: &str| {
        let answers = json!({"a": {"action": action}});
        play.ask(
            json!(id),
            "tools/call",
            &modern(json!({"name": "book", "inputResponses": answers, "requestState": state})),
        )
    };
    assert_eq!(again(2, "accept")["result"]["resultType"], "complete");
    assert_eq!(code(&again(3, "decline")), 40400);
}

/// Parameters of a client of the modern era.
fn modern(mut params: Value) -> Value {
    let capabilities = "io.modelcontextprotocol/clientCapabilities";
    params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", capabilities: {}});
    params
}

#[test]
fn case_11_12_clients_of_both_eras_are_answered_from_both_tapes() {
    let records = |meta: &str, extra: &str| {
        format!(
            "- request: POST /mcp/s\n  body: {{method: tools/list, params: {{{meta}}}}}\n  answer: {{json: {{result: {{tools: []{extra}}}}}}}\n"
        )
    };
    let legacy = "- request: POST /mcp/s\n  body: {method: initialize}\n  answer: {json: {result: {protocolVersion: 2025-06-18, capabilities: {tools: {}}, serverInfo: {name: real}}}}\n";
    let old = Shelf::with(&format!("vcr: 1\nrecords:\n{legacy}{}", records("", "")));
    let version = "_meta: {io.modelcontextprotocol/protocolVersion: 2026-07-28}";
    let new = Shelf::with(&format!(
        "vcr: 1\nrecords:\n{}",
        records(version, ", resultType: complete, ttlMs: 5, cacheScope: public")
    ));
    for (tape, ttl) in [(&old, 0), (&new, 5)] {
        let mut play = Server::play(tape, &["--strict"]);
        let found = play.ask(json!(1), "server/discover", &modern(json!({})));
        assert_eq!(found["result"]["supportedVersions"], json!(["2026-07-28"]));
        let listed = play.ask(json!(2), "tools/list", &modern(json!({})));
        assert_eq!((&listed["result"]["resultType"], &listed["result"]["ttlMs"]), (&json!("complete"), &json!(ttl)));
        assert_eq!(play.end().1, 0);
        let mut play = Server::play(tape, &["--strict"]);
        assert_eq!(open(&mut play, "2025-03-26", "agent")["result"]["protocolVersion"], "2025-03-26");
        assert_eq!(play.ask(json!(1), "tools/list", &json!({}))["result"], json!({"tools": []}));
        assert_eq!(play.end().1, 0);
    }
    let mut play = Server::play(&old, &[]);
    let mut unknown = modern(json!({}));
    unknown["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2099-01-01");
    let refused = play.ask(json!(1), "tools/list", &unknown);
    assert_eq!((code(&refused), &refused["error"]["data"]["supported"]), (-32022, &json!(["2026-07-28"])));
}

#[test]
fn case_13_messages_of_a_subscription_name_the_callers_request() {
    let note = |method: &str| {
        format!(
            "    - data: {{method: notifications/{method}, params: {{_meta: {{io.modelcontextprotocol/subscriptionId: 7}}}}}}\n"
        )
    };
    let text = format!(
        "vcr: 1\nrecords:\n- request: POST /mcp/s\n  body: {{method: subscriptions/listen, params: {{notifications: {{toolsListChanged: true}}}}}}\n  aborted: 1\n  answer:\n    events:\n{}- request: POST /mcp/s\n  body: {{method: tools/call, params: {{name: a}}}}\n  answer:\n    events:\n    - data: {{result: {{content: []}}}}\n{}",
        note("subscriptions/acknowledged"),
        note("tools/list_changed")
    );
    let shelf = Shelf::with(&text);
    let mut play = Server::play(&shelf, &["--strict"]);
    let first =
        play.ask(json!("mine"), "subscriptions/listen", &modern(json!({"notifications": {"toolsListChanged": true}})));
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(play.ask(json!(2), "tools/call", &modern(json!({"name": "a"})))["id"], 2);
    let changed = play.next();
    for message in [&first, &changed] {
        assert_eq!(message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "mine");
    }
    assert_eq!(play.end().1, 0);
}

#[test]
fn case_15_batches_are_of_version_2025_03_26_only() {
    let shop = Shelf::with(SERVER);
    let batch =
        json!([{"jsonrpc": "2.0", "id": 1, "method": "ping"}, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}]);
    for (version, is_answered) in [("2025-03-26", true), ("2025-06-18", false)] {
        let mut play = Server::play(&shop, &[]);
        open(&mut play, version, "agent");
        play.next();
        play.send(&batch);
        let answer = play.next();
        if is_answered {
            assert_eq!(answer[1]["result"]["tools"][0]["name"], "buy", "{answer}");
        } else {
            assert_eq!(code(&answer), -32600);
        }
    }
}

#[test]
fn case_17_a_call_that_was_skipped_is_reported() {
    let shop = Shelf::with(SERVER);
    let play = |flags: &[&str]| {
        let mut play = Server::play(&shop, flags);
        play.ask(json!(1), "tools/list", &Value::Null);
        play.end()
    };
    let (_, code, notes) = play(&["--fail-on", "unconsumed"]);
    assert_eq!(code, 1);
    assert!(notes.contains(r#"unconsumed: "#) && notes.contains(r#"shop tools/call sell {"what":"tea"}"#), "{notes}");
    assert!(!notes.contains("initialize"), "{notes}");
    assert_eq!(play(&[]).1, 0);
}

#[test]
fn case_18_two_sessions_at_once_are_independent() {
    let shop = Shelf::with(SERVER);
    let (mut one, mut other) = (Server::play(&shop, &["--strict"]), Server::play(&shop, &["--strict"]));
    let count = |server: &mut Server, id: u64| {
        server.ask(json!(id), "tools/list", &json!({}))["result"]["tools"].as_array().unwrap().len()
    };
    assert_eq!([count(&mut one, 1), count(&mut other, 1), count(&mut other, 2), count(&mut one, 2)], [1, 1, 2, 2]);
}

#[test]
fn what_does_not_count_can_be_said() {
    let text = format!("{}ignore: ['$.params.arguments.many']\n", SERVER);
    let shop = Shelf::with(&text);
    let mut play = Server::play(&shop, &["--strict", "--scrub", "s/coffee|tea/drink/"]);
    assert_eq!(play.call(json!(1), "buy", &json!({"what": "coffee", "many": 99}))["method"], "elicitation/create");
}

#[test]
fn one_of_several_servers_is_chosen() {
    let two = Shelf::with(&format!(
        "{SERVER}- request: POST /mcp/bank\n  body: {{method: tools/list}}\n  answer: {{json: {{result: {{tools: []}}}}}}\n"
    ));
    let (_, code, notes) = Server::play(&two, &[]).ended();
    assert!(code == 2 && notes.contains("--server bank, shop"), "{notes}");
    let (_, code, notes) = Server::play(&two, &["--server", "post"]).ended();
    assert!(code == 3 && notes.contains("recorded: bank, shop"), "{notes}");
    let mut play = Server::play(&two, &["--server", "bank", "--strict"]);
    assert_eq!(play.ask(json!(1), "tools/list", &Value::Null)["result"]["tools"], json!([]));
    assert_eq!(play.end().1, 0);
}

#[test]
fn answers_that_cannot_be_written_are_a_failure() {
    let shop = Shelf::with(SERVER);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_vllm-vcr"));
    let command = command.args(["mcp-play", "--cassette", shop.name()]).stdout(full);
    let mut play = command.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let initialize = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}});
    std::io::Write::write_all(play.stdin.as_mut().unwrap(), format!("{initialize}\n").as_bytes()).unwrap();
    let output = play.wait_with_output().unwrap();
    let notes = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{notes}");
    assert!(notes.contains("cannot write stdout: No space left on device"), "{notes}");
}
