//! Messages of misses: short enough for client libraries that print all of an error, with the difference first and what helps.

use serde_json::{Value, json};

use super::{CHAT, Running, Shelf, chat, record, tape, vcr};
use crate::support::client::{self, post};

/// The message and the body of the miss that a request gets.
async fn missed(play: &Running, body: &Value) -> (String, Value) {
    let answer = play.send(CHAT, body).await;
    assert_eq!(answer.status, 422, "{}", answer.text());
    (answer.json()["error"]["message"].as_str().unwrap().to_owned(), answer.json())
}

/// A record of any chat request.
fn recorded(body: &Value) -> String {
    format!("- request: POST {CHAT}\n  body: {body}\n  answer: {{message: {{role: assistant, content: A}}}}\n")
}

#[tokio::test]
async fn a_message_is_short_and_its_page_has_both_conversations() {
    let words = |last: &str| {
        let mut texts: Vec<String> =
            (0..40).map(|at| format!("turn {at} \"quoted\"\n{}", "long ".repeat(200))).collect();
        texts.push(format!(
            "{}\nWhat is the weather in {last} today?\n{}",
            "before ".repeat(300),
            "after ".repeat(300)
        ));
        texts
    };
    let of = |last: &str| chat(&words(last).iter().map(String::as_str).collect::<Vec<_>>());
    let shelf = Shelf::with(&tape(&[recorded(&of("London"))]));
    let play = shelf.play(&[]);
    let (message, body) = missed(&play, &of("Paris")).await;
    assert!(Value::from(message.as_str()).to_string().len() <= 620, "{message}");
    let first = message.lines().next().unwrap();
    assert!(first.contains("messages[40].content") && first.contains("London") && first.contains("Paris"), "{first}");
    assert!(first.contains("tap --mode new-episodes"), "{first}");
    assert!(body.to_string().len() < 2000, "a client library prints all of it: {body}");
    let address = message.lines().last().unwrap().strip_prefix("Details: ").unwrap();
    assert_eq!(address, format!("http://{}/vcr/misses/1", play.address));
    let page = play.get("/vcr/misses/1").await;
    assert_eq!(page["error"]["message"], message);
    assert_eq!(page["error"]["vcr"]["received"]["messages"].as_array().unwrap().len(), 41);
    assert_eq!(page["error"]["vcr"]["closest"]["request"]["messages"].as_array().unwrap().len(), 41);
    assert_eq!(play.get("/vcr/misses").await[0], body);
    assert_eq!(play.get("/vcr/misses/2").await, json!({"error": "no such miss"}));
    let session = play.send(&format!("/vcr/s/other{CHAT}"), &of("Rome")).await.json();
    assert_eq!(session["error"]["vcr"]["miss"], 2);
    assert_eq!(play.get("/vcr/misses/2").await["error"]["vcr"]["session"], "other");
    let full = shelf.play(&["--miss-detail", "full", "--no-admin"]);
    let (message, body) = missed(&full, &of("Paris")).await;
    assert!(!message.contains("Details:"), "there is no page: {message}");
    assert_eq!(body["error"]["vcr"]["received"]["messages"].as_array().unwrap().len(), 41);
}

#[tokio::test]
async fn the_closest_record_is_about_the_same() {
    let system = "You are a helpful assistant of a shop and you answer every question in a friendly way.";
    let turn = |text: &str| json!({"model": "m", "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}]});
    let shelf = Shelf::with(&tape(&[
        recorded(&turn("Write a haiku about the sea and the moon.")),
        recorded(&turn("How long does it take until I get the refund for my returned shoes?")),
        recorded(&turn("Translate `good morning` into French, please.")),
    ]));
    let play = shelf.play(&[]);
    let (message, body) = missed(&play, &turn("I sent my shoes back. When do I get a refund?")).await;
    assert_eq!(body["error"]["vcr"]["closest"]["record"], 1, "{message}");
    let (message, _) = missed(&play, &turn("Solve 3x + 7 = 22 step by step")).await;
    assert!(message.lines().next().unwrap().contains("none is about the same"), "{message}");
}

#[tokio::test]
async fn each_difference_has_its_own_line_and_its_own_remedy() {
    let of = |date: &str, word: &str, temperature: f64| {
        let system = format!("Today is {date} .\nYou are a weather bot of few words who is {word} to all users.");
        json!({"model": "m", "temperature": temperature, "messages": [{"role": "system", "content": system},
            {"role": "user", "content": "Weather in London?"}]})
    };
    let shelf = Shelf::with(&tape(&[recorded(&of("2026-06-17", "kind", 0.2))]));
    let play = shelf.play(&[]);
    let (message, body) = missed(&play, &of("2026-06-18", "kind", 0.2)).await;
    let scrub = r"--scrub 's/\d{4}-\d{2}-\d{2}/DATE/'";
    assert!(message.lines().next().unwrap().contains(scrub), "{message}");
    assert_eq!(body["error"]["vcr"]["hints"], json!(["scrub", "rerecord"]));
    let scrubbed = shelf.play(&["--strict", "--scrub", r"s/\d{4}-\d{2}-\d{2}/DATE/"]);
    assert_eq!(scrubbed.send(CHAT, &of("2026-06-18", "kind", 0.2)).await.status, 200);
    assert_eq!(scrubbed.stop().0, 0, "the advice satisfies --strict");

    let (message, body) = missed(&play, &of("2026-06-17", "kind", 0.7)).await;
    assert!(message.lines().next().unwrap().contains("temperature is 0.7, recorded 0.2"), "{message}");
    assert!(message.contains("--ignore '$.temperature'") && !message.contains("scrub"), "{message}");
    assert_eq!(body["error"]["vcr"]["hints"], json!(["rerecord", "ignore", "prune"]));

    let mut added = of("2026-06-17", "kind", 0.2);
    added["reasoning_effort"] = json!("high");
    let (message, _) = missed(&play, &added).await;
    let first = message.lines().next().unwrap();
    assert!(
        first.contains("reasoning_effort was not recorded") && first.contains("--ignore '$.reasoning_effort'"),
        "{message}"
    );

    let (message, _) = missed(&play, &of("2026-06-18", "rude", 0.7)).await;
    let lines: Vec<&str> = message.lines().filter(|line| line.starts_with("  - ")).collect();
    assert_eq!(lines.len(), 3, "{message}");
    assert!(message.contains("3 differences") && message.contains(scrub), "{message}");
    assert!(
        lines[0].contains("2026-06-18") && lines[1].contains("rude") && lines[2].contains("temperature"),
        "{message}"
    );
}

#[tokio::test]
async fn an_exact_match_names_what_made_the_difference() {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "a"}], "user": "u1", "stream": false});
    let query = recorded(&body).replace(CHAT, &format!("{CHAT}?version=1"));
    let shelf = Shelf::with(&tape(&[recorded(&body), query]));
    let play = shelf.play(&["--match", "exact"]);
    let mut other = body.clone();
    other["user"] = json!("u2");
    let (message, _) = missed(&play, &other).await;
    assert!(message.contains("user is 'u2', recorded 'u1'") && message.contains("--match canonical"), "{message}");
    let canonical = shelf.play(&["--strict", "--match", "canonical"]);
    assert_eq!(canonical.send(CHAT, &other).await.status, 200);
    let order = json!({"stream": false, "user": "u1", "model": "m", "messages": body["messages"]});
    let (message, _) = missed(&play, &order).await;
    assert!(message.contains("the order of fields differs"), "{message}");
    let answer = play.send(&format!("{CHAT}?version=2"), &body).await.json();
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("query version") && message.contains("--ignore-query version"), "{message}");
}

#[tokio::test]
async fn a_header_that_counts_is_named() {
    let with = record(&["a"], "A").replace("  body:", "  headers: {x-tenant: one}\n  body:");
    let shelf = Shelf::with(&tape(&[with]));
    let play = shelf.play(&["--match-header", "x-tenant"]);
    let mut request = post(CHAT, &chat(&["a"]));
    request.headers.push(("x-tenant", "two"));
    let answer = client::send(play.address, &request).await.json();
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("header x-tenant is 'two', recorded 'one'"), "{message}");
    let (message, _) = missed(&play, &chat(&["a"])).await;
    assert!(message.contains("header x-tenant is missing (recorded 'one')"), "{message}");
}

#[tokio::test]
async fn an_inserted_message_hides_no_edit_behind_it() {
    let shelf = Shelf::with(&tape(&[record(&["a question", "an answer", "the last one"], "A")]));
    let play = shelf.play(&[]);
    let mut body = chat(&["a question", "an answer", "the very last one"]);
    body["messages"].as_array_mut().unwrap().insert(0, json!({"role": "system", "content": "New rules."}));
    let (message, error) = missed(&play, &body).await;
    assert_eq!(error["error"]["vcr"]["diffs_total"], 2, "{message}");
    assert!(message.contains("messages[0]: not recorded") && message.contains("messages[2].content"), "{message}");
}

#[test]
fn what_has_no_effect_is_refused() {
    let matched = record(&["a"], "A").replace("  answer:", "  match: {any: true}\n  answer:");
    let shelf = Shelf::with(&tape(&[matched]));
    let output = vcr(&["cassette", "validate", shelf.name()]);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(3) && log.contains(":5: a record has no `match` of its own"), "{log}");
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    for selector in ["tool:x", "mcp:github", "http:nothing"] {
        let output = vcr(&[
            "play",
            "--cassette",
            shelf.name(),
            "--upstream",
            "http://127.0.0.1:1",
            "--live",
            selector,
            "--",
            "true",
        ]);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && log.contains("selects no requests"), "{selector}: {log}");
    }
}

#[tokio::test]
async fn a_recorded_edit_and_a_prune_satisfy_strict() {
    let upstream = super::engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    for words in ["Weather in London?", "Weather in Rome?"] {
        tap.send(CHAT, &chat(&[words])).await;
    }
    tap.send(CHAT, &chat(&["Weather in London?", "Fine.", "And tomorrow?"])).await;
    tap.stop();
    let run = ["Weather in Paris?", "Weather in Rome?"];
    let report = shelf.folder.path().join("report.json");
    let report = report.to_str().unwrap();
    let tap = shelf.tap(&upstream, &["--mode", "new-episodes", "--report", report]);
    for words in run {
        assert_eq!(tap.send(CHAT, &chat(&[words])).await.status, 200);
    }
    tap.stop();
    let strict = async || {
        let play = shelf.play(&["--strict"]);
        for words in run {
            assert_eq!(play.send(CHAT, &chat(&[words])).await.status, 200, "{words}");
        }
        play.stop().0
    };
    assert_eq!(strict().await, 1, "two old records are unconsumed");
    let before = shelf.text();
    let prune = |flags: &[&str]| {
        let output = vcr(&[&["cassette", "prune", shelf.name(), "--unused", report], flags].concat());
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), said)
    };
    let (code, said) = prune(&["--check"]);
    assert!(code == Some(1) && said.contains("2 of 4 records would be removed"), "{said}");
    assert_eq!(shelf.text(), before);
    let (code, said) = prune(&[]);
    assert!(code == Some(0) && said.contains("2 of 4 records removed") && said.contains("London"), "{said}");
    assert!(!shelf.text().contains("London") && shelf.text().contains("Rome") && shelf.text().contains("Paris"));
    assert_eq!(strict().await, 0);
    let side = super::read(&shelf.folder.path().join("tape.vcr/timing.jsonl"));
    assert_eq!(side.lines().count(), 2, "{side}");
    let (code, said) = prune(&[]);
    assert!(code == Some(3) && said.contains("has changed since that run"), "{said}");
}

#[tokio::test]
async fn what_a_session_that_ended_used_is_used() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A"), record(&["b"], "B")]));
    let own = shelf.folder.path().join("own.yaml");
    std::fs::write(&own, tape(&[record(&["c"], "C"), record(&["d"], "D")])).unwrap();
    let play = shelf.play(&[]);
    for (session, word) in [(json!({"name": "one"}), "a"), (json!({"name": "two", "cassette": "own.yaml"}), "d")] {
        assert_eq!(play.send("/vcr/sessions", &session).await.status, 201);
        let name = session["name"].as_str().unwrap();
        assert_eq!(play.send(&format!("/vcr/s/{name}{CHAT}"), &chat(&[word])).await.status, 200);
        let path = format!("/vcr/sessions/{name}");
        let ended = client::Request { method: "DELETE", ..client::get(&path) };
        assert_eq!(client::send(play.address, &ended).await.status, 200);
    }
    let report = play.get("/vcr/report").await;
    let unused: Vec<(&str, u64)> = report["unused"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["request"].as_str().unwrap(), it["record"].as_u64().unwrap()))
        .collect();
    assert_eq!(unused, [("POST /v1/chat/completions c", 0), ("POST /v1/chat/completions b", 1)]);
    let file = shelf.folder.path().join("report.json");
    let none = json!({"unused": [report["unused"][0], {"cassette": own, "record": 1, "line": 6, "request": "POST /v1/chat/completions d"}]});
    std::fs::write(&file, none.to_string()).unwrap();
    let output = vcr(&["cassette", "prune", own.to_str().unwrap(), "--unused", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(3) && said.contains("no record was used in that run (0 of 2)"), "{said}");
    // A copy at another path is none that the run played.
    let copy = shelf.folder.path().join("copy.yaml");
    std::fs::copy(&own, &copy).unwrap();
    let output = vcr(&["cassette", "prune", copy.to_str().unwrap(), "--unused", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("copy.yaml: 0 of 2 records removed"), "{said}");
    assert!(said.contains(&format!("no unused records of this file, only of {}: ", own.display())), "{said}");
}

#[test]
fn a_command_prints_no_request_to_try_and_no_lateness() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let body = chat(&["a"]).to_string();
    let sends = format!("curl -sS --json '{body}' $OPENAI_BASE_URL/chat/completions");
    let output = vcr(&["play", "--strict", "--cassette", shelf.name(), "--", "sh", "-c", &sends]);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(0) && log.contains("serving 1 record of cassettes"), "{log}");
    assert!(log.contains("1 of 1 record served"), "{log}");
    assert!(!["curl -N", "Ctrl-C", "left late"].iter().any(|noise| log.contains(noise)), "{log}");
}

#[test]
fn a_miss_beside_a_command_is_a_line_and_what_comes_after_it_another() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A"), record(&["b"], "B"), record(&["c"], "C")]));
    let sends = format!("curl -sS --json '{}' $OPENAI_BASE_URL/chat/completions", chat(&["z"]));
    let output = vcr(&["play", "--strict", "--cassette", shelf.name(), "--", "sh", "-c", &sends]);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), log.matches("No recorded interaction").count()), (Some(1), 1), "{log}");
    assert!(!log.contains("Closest recorded request") && !log.contains("unconsumed: "), "{log}");
    assert!(log.contains("  unconsumed beside the misses: 3, listed by --report\n"), "{log}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("Closest recorded request"), "the client has all of it");
}

#[test]
fn a_turn_is_named_by_its_question() {
    let turn = json!({"model": "m", "messages": [
        {"role": "user", "content": "What is the weather in London?"},
        {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "{\"temp\": 15}"}]});
    let shelf = Shelf::with(&tape(&[recorded(&turn), record(&["a"], "A")]));
    let sends = format!("curl -sS --json '{}' $OPENAI_BASE_URL/chat/completions", chat(&["a"]));
    let output = vcr(&["play", "--strict", "--cassette", shelf.name(), "--", "sh", "-c", &sends]);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let named = "POST /v1/chat/completions What is the weather in London?, then {\"temp\": 15}\n";
    assert!(log.contains(named), "{log}");
}

#[tokio::test]
async fn a_long_place_keeps_the_name_at_its_end() {
    let of = |properties: Value, strict: bool| {
        let parameters = json!({"type": "object", "properties": properties});
        let tool = json!({"name": "weather", "parameters": parameters, "strict": strict});
        json!({"model": "m", "messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function", "function": tool}]})
    };
    let city = json!({"type": "string"});
    let shelf = Shelf::with(&tape(&[recorded(&of(json!({"city": city}), true))]));
    let play = shelf.play(&[]);
    let (message, _) = missed(&play, &of(json!({"city": city, "unit": city}), false)).await;
    let lines: Vec<&str> = message.lines().collect();
    assert!(lines[0].contains("tools[0]….parameters.properties.unit, tools[0].function.strict differ"), "{message}");
    assert!(lines[2].starts_with("  - tools[0]….parameters.properties.unit: not recorded"), "{message}");
    let deep =
        (0..40).fold(city.clone(), |inner, at| json!({"type": "object", "properties": {format!("level{at}"): inner}}));
    let (message, _) = missed(&play, &of(json!({"city": deep}), true)).await;
    assert!(message.contains("tools[0]") && message.len() <= 620, "{message}");
}

#[tokio::test]
async fn tools_in_another_order_are_one_difference() {
    let of = |names: [&str; 3], temperature: f64| {
        let tool =
            |name: &&str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
        let tools: Vec<Value> = names.iter().map(tool).collect();
        json!({"model": "m", "temperature": temperature, "messages": [{"role": "user", "content": "Weather?"}], "tools": tools})
    };
    let shelf = Shelf::with(&tape(&[recorded(&of(["a", "b", "c"], 0.0))]));
    let play = shelf.play(&[]);
    let (message, _) = missed(&play, &of(["c", "a", "b"], 0.0)).await;
    assert!(
        message.starts_with("No recorded interaction matched: only the order of tools differs (tape.yaml#0)"),
        "{message}"
    );
    assert!(message.contains("recorded 'a, b, c' received 'c, a, b'"), "{message}");
    let (message, _) = missed(&play, &of(["c", "a", "b"], 0.5)).await;
    assert!(message.contains("temperature") && message.contains("the order of tools"), "{message}");
    assert!(!message.contains("only the order") && !message.contains("tools[0]"), "{message}");
}

#[tokio::test]
async fn a_result_of_a_tool_that_missed_is_named_as_the_cause() {
    let of = |result: &str| {
        let call = json!({"id": "call_1", "type": "function", "function": {"name": "forecast", "arguments": "{}"}});
        json!({"model": "m", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Oslo?"},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": result}]})
    };
    let shelf = Shelf::with(&tape(&[recorded(&of("Oslo: sunny for 3 days"))]));
    let play = shelf.play(&[]);
    let error = "error: MCPError No recorded interaction matched: params.arguments.city is 'Rome', recorded 'Oslo' (agent.yaml#8).";
    let (message, body) = missed(&play, &of(error)).await;
    let first = message.lines().next().unwrap();
    assert!(
        first.contains("messages[3].content is 'error: MCPError")
            && first.contains("It follows from the call of a tool that missed before"),
        "{first}"
    );
    assert_eq!(body["error"]["vcr"]["hints"][0], "earlier_miss");
    // Any other result is about the same too.
    let (message, _) = missed(&play, &of("quota exceeded")).await;
    assert!(
        message.starts_with("No recorded interaction matched: messages[3].content is 'quota exceeded'"),
        "{message}"
    );
}
