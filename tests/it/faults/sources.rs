//! Everything that is served fails alike: traces (everywhere else here), made-up tokens, an engine, cassettes and MCP servers.

use std::time::Duration;

use serde_json::json;
use vllm_vcr::{
    play::Config,
    recording::trace::{FinishReason, Outcome, Record},
    replay::matching::{MatchBy, OnExhausted},
    text::prompt::SpecialTokens,
};

use super::{COMPLETIONS, Ending, TEXT, ask, faults, request};
use crate::{
    mcp::SERVER,
    support::{
        CHAT,
        cassettes::{self, Shelf, tape},
        client,
        play_server::{config, record, start, tokenizer},
        running::{Running, vcr},
        simulated::{behind, engine, until},
    },
};

/// Faults, the whole answer's events being more.
const LINES: &[&str] = &["429 where first=1", "reset at event 2"];

#[tokio::test]
async fn made_up_tokens_and_an_engine_fail_and_leave_no_block() {
    let made_up = Config {
        source: vllm_vcr::play::Source::Synthetic(vllm_vcr::play::Synthetic::Random),
        ..config(&[MatchBy::Next], Vec::new())
    };
    for (config, has_engine) in [(made_up, false), (behind(engine(Duration::ZERO)), true)] {
        let server = start(Config { faults: faults(LINES, 0), ..config }).await;
        let body = json!({"prompt": "x", "stream": true, "max_tokens": 20});
        let refused = ask(server.address, &request(COMPLETIONS, &body), None).await;
        assert!(refused.head.starts_with("http/1.1 429 "), "{}", refused.head);
        let cut = ask(server.address, &request(COMPLETIONS, &body), None).await;
        assert_eq!((cut.chunks.len(), cut.ending), (2, Ending::Reset));
        if has_engine {
            until(&server, &[("vllm:kv_cache_usage_perc", 0.0), ("vllm:num_requests_running", 0.0)]).await;
        }
    }
}

#[tokio::test]
async fn cassettes_fail() {
    let shelf = Shelf::with(&tape(&[cassettes::record(&["hello"], "one two three four")]));
    let flags: Vec<&str> = LINES.iter().flat_map(|line| ["--fault", line]).collect();
    let server: Running = shelf.play(&flags);
    let mut body = cassettes::chat(&["hello"]);
    body["stream"] = json!(true);
    assert!(ask(server.address, &request(CHAT, &body), None).await.head.starts_with("http/1.1 429 "));
    let cut = ask(server.address, &request(CHAT, &body), None).await;
    assert_eq!((cut.chunks.len(), cut.ending), (2, Ending::Reset));
    let (_, said) = server.stop();
    assert!(said.contains("fault: --fault 'reset at event 2 where request="), "{said}");
}

#[tokio::test]
async fn a_fault_before_the_answer_consumes_no_record() {
    let tape = tape(&[cassettes::record(&["hello"], "one"), cassettes::record(&["hello"], "two")]);
    for line in ["429 where nth=1", "429 where record=tape.yaml#0 nth=1", "reset where record=tape.yaml#0 nth=1"] {
        for flags in [&[][..], &["--match", "ordered"]] {
            let shelf = Shelf::with(&tape);
            let server = shelf.play(&[&["--fault", line], flags].concat());
            let asked = request(CHAT, &cassettes::chat(&["hello"]));
            let failed = ask(server.address, &asked, None).await;
            assert!(failed.head.starts_with("http/1.1 429 ") || failed.ending == Ending::Reset, "{}", failed.head);
            for said in ["one", "two"] {
                let body = ask(server.address, &asked, None).await.body();
                assert!(String::from_utf8_lossy(&body).contains(said), "{line} {flags:?}");
            }
            let missed = ask(server.address, &asked, None).await;
            assert!(missed.head.starts_with("http/1.1 422 "), "{line} {flags:?}: {}", missed.head);
        }
    }
}

#[tokio::test]
async fn a_fault_before_the_answer_consumes_no_rule() {
    let shelf = Shelf::with(
        "vcr: 1\nrecords:\n- match: {contains: hello, nth: 1}\n  answer: one\n- match: any\n  times: 1\n  answer: two\n",
    );
    for (line, said) in
        [("500 where record=tape.yaml#0 nth=1 per=all", "one"), ("500 where record=tape.yaml#1 nth=1 per=all", "two")]
    {
        let server = shelf.play(&["--fault", line]);
        if said == "two" {
            assert!(server.send(CHAT, &cassettes::chat(&["hello"])).await.text().contains("one"));
        }
        assert_eq!(server.send(CHAT, &cassettes::chat(&["hello"])).await.status, 500, "{line}");
        assert!(server.send(CHAT, &cassettes::chat(&["hello"])).await.text().contains(said), "{line}");
    }
}

#[tokio::test]
async fn only_requests_that_the_record_answers_are_counted() {
    let lines = ["429 where record=tape.yaml#1", "empty where record=tape.yaml#1", "no-done where record=tape.yaml#1"];
    let tape = tape(&[cassettes::record(&["hello"], "one"), cassettes::record(&["bye"], "two")]);
    let of_rules = "vcr: 1\nrecords:\n- match: {contains: hello}\n  answer: one\n- match: any\n  answer: two\n";
    let of_record = |line: &str| {
        let fault = line.split(' ').next().unwrap();
        let records = [
            "- match: {contains: hello}\n  answer: one",
            &format!("- match: any\n  answer: {{content: two, fault: '{fault} where first=1 per=all'}}"),
        ];
        format!("vcr: 1\nrecords:\n{}\n", records.join("\n"))
    };
    let is_faulted = |body: &str| !(body.contains("two") && body.contains("[DONE]"));
    for line in lines {
        for conditions in ["first=1 per=all", "nth=1 per=model", "first=1"] {
            let by_flag = format!("{line} {conditions}");
            let cases = [(tape.as_str(), Some(&by_flag)), (of_rules, Some(&by_flag)), (&of_record(line), None)];
            for (cassette, flag) in cases {
                let shelf = Shelf::with(cassette);
                let flags = flag.map(|line| vec!["--fault", line, "--on-exhausted", "last"]);
                let server = shelf.play(&flags.unwrap_or_default());
                let said = async |text: &str| {
                    let mut body = cassettes::chat(&[text]);
                    body["stream"] = json!(true);
                    server.send(CHAT, &body).await.text()
                };
                for _ in 0..2 {
                    assert!(said("hello").await.contains("one"), "{by_flag}: {cassette}");
                }
                assert!(is_faulted(&said("bye").await), "{by_flag}: {cassette}");
                assert!(!is_faulted(&said("bye").await), "{by_flag}: {cassette}");
                assert_eq!(super::hits(server.address).await.len(), 1, "{by_flag}: {cassette}");
            }
        }
    }
}

#[tokio::test]
async fn a_record_is_named_by_its_file_and_number_with_or_without_folders() {
    let tape = tape(&[cassettes::record(&["hello"], "one"), cassettes::record(&["bye"], "two")]);
    let shelf = Shelf::with(&tape);
    let in_folder = format!("{}#1", shelf.name());
    for (named, statuses) in [
        ("tape.yaml#1", [200, 503]),
        (in_folder.as_str(), [200, 503]),
        ("tape.yaml", [503, 503]),
        ("ape.yaml#1", [200, 200]),
    ] {
        let server = shelf.play(&["--fault", &format!("503 where record={named}")]);
        let asked = async |text: &str| server.send(CHAT, &cassettes::chat(&[text])).await.status;
        assert_eq!([asked("hello").await, asked("bye").await], statuses, "{named}");
    }
    let ids = tokenizer().encode(TEXT, SpecialTokens::Skip).unwrap();
    let records = vec![record(&ids, Duration::ZERO, FinishReason::Stop); 3];
    let server =
        start(Config { faults: faults(&["503 where record=1"], 0), ..config(&[MatchBy::Next], records) }).await;
    let both = json!({"prompt": ["x", "y"]});
    assert!(ask(server.address, &request(COMPLETIONS, &both), None).await.head.starts_with("http/1.1 503 "));
    let third = ask(server.address, &request(COMPLETIONS, &json!({"prompt": "z"})), None).await;
    assert!(third.head.starts_with("http/1.1 200 "), "{}", third.head);
}

#[tokio::test]
async fn streams_that_broke_off_do_so_again() {
    let ids = tokenizer().encode(TEXT, SpecialTokens::Skip).unwrap();
    let whole = record(&ids, Duration::ZERO, FinishReason::Stop);
    for outcome in [Outcome::UpstreamFailed, Outcome::TimedOut] {
        let broken = Record { finish_reason: None, outcome: Some(outcome), ..whole.clone() };
        let server =
            start(Config { on_exhausted: Some(OnExhausted::Last), ..config(&[MatchBy::Next], vec![broken]) }).await;
        for path in [COMPLETIONS, CHAT, "/v1/messages", "/v1/responses"] {
            let mut body = json!({"model": "m", "stream": true});
            let words = json!([{"role": "user", "content": "x"}]);
            match path {
                COMPLETIONS => body["prompt"] = json!("x"),
                "/v1/responses" => body["input"] = json!("x"),
                _ => body["messages"] = words,
            }
            let limit = if path == "/v1/responses" { "max_output_tokens" } else { "max_tokens" };
            body[limit] = json!(500);
            let cut = ask(server.address, &request(path, &body), None).await;
            let text = String::from_utf8(cut.body()).unwrap();
            assert_eq!(cut.ending, Ending::Cut, "{path} {outcome:?}: {text}");
            assert!(text.contains("seven") && text.ends_with("\n\n"), "{path}: {text}");
            let ends = ["[DONE]", "\"abort\"", "message_stop", "response.completed", "response.incomplete"];
            assert!(!ends.iter().any(|end| text.contains(end)), "{path}: {text}");
            body["stream"] = json!(false);
            let nothing = ask(server.address, &request(path, &body), None).await;
            assert_eq!((nothing.head.as_str(), nothing.ending), ("", Ending::Cut), "{path} {outcome:?}");
            body[limit] = json!(2);
            let part = ask(server.address, &request(path, &body), None).await;
            assert!(part.head.starts_with("http/1.1 200 ") && part.ending == Ending::Whole, "{path}: {}", part.head);
        }
    }
}

#[tokio::test]
async fn a_choice_that_had_ended_is_whole_for_a_client_that_left_and_not_for_a_dead_upstream() {
    let ids = tokenizer().encode(TEXT, SpecialTokens::Skip).unwrap();
    for (outcome, ending) in [(Outcome::ClientGone, Ending::Whole), (Outcome::UpstreamFailed, Ending::Cut)] {
        let ended = Record { outcome: Some(outcome), ..record(&ids, Duration::ZERO, FinishReason::Stop) };
        let server = start(config(&[MatchBy::Next], vec![ended])).await;
        let body = json!({"prompt": "x", "stream": true, "max_tokens": 500});
        let heard = ask(server.address, &request(COMPLETIONS, &body), None).await;
        let text = String::from_utf8(heard.body()).unwrap();
        assert_eq!((heard.ending, text.contains("[DONE]")), (ending, ending == Ending::Whole), "{text}");
        assert!(text.contains("\"finish_reason\":\"stop\""), "{text}");
    }
}

#[tokio::test]
async fn a_rule_can_be_any_fault() {
    let shelf = Shelf::with(
        "vcr: 1\nrecords:\n- match: {contains: busy}\n  times: 2\n  answer: {fault: '429:retry-after=2s'}\n- match: {contains: cut}\n  \
         answer: {content: one two three four, fault: 'reset at event 2'}\n- match: any\n  answer: fine\n",
    );
    for flags in [vec!["--cassette", shelf.name()], vec!["--answers", shelf.name()]] {
        let server = Running::start(&[&["play", "--port", "0", "--instant"][..], &flags].concat());
        let busy = request(CHAT, &cassettes::chat(&["busy"]));
        for _ in 0..2 {
            let refused = ask(server.address, &busy, None).await;
            assert!(refused.head.starts_with("http/1.1 429 ") && refused.head.contains("retry-after: 2"));
        }
        assert!(String::from_utf8_lossy(&ask(server.address, &busy, None).await.body()).contains("fine"));
        let mut streamed = cassettes::chat(&["cut"]);
        streamed["stream"] = json!(true);
        let cut = ask(server.address, &request(CHAT, &streamed), None).await;
        assert_eq!((cut.chunks.len(), cut.ending), (2, Ending::Reset));
        let lines = super::hits(server.address).await;
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[2].starts_with("reset at event 2 where request="), "{lines:?}");
    }
}

#[tokio::test]
async fn wrong_faults_of_rules_are_named_with_their_lines() {
    let shelf = Shelf::with("records:\n- match: any\n  answer:\n    content: x\n    fault: explode\n");
    for words in [&["answers", "check"][..], &["play", "--port", "0", "--answers"]] {
        let output = vcr(&[words, &[shelf.name()]].concat());
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(said.contains("tape.yaml:5: `answer.fault`: `explode` is no kind of fault"), "{said}");
        assert!(!output.status.success());
    }
    std::fs::write(&shelf.file, "records:\n- match: any\n  answer: {content: x, fault: '503'}\n").unwrap();
    let server = Running::start(&["play", "--port", "0", "--answers", shelf.name()]);
    std::fs::write(&shelf.file, "records:\n- match: any\n  answer: {content: x, fault: 'quota:requests=1'}\n").unwrap();
    let reload = json!({"answers": "reload"});
    let put = client::Request { method: "PUT", ..client::post("/vcr/config", &reload) };
    let refused = client::send(server.address, &put).await;
    assert!(refused.status == 400 && refused.text().contains("is no fault of an answer"), "{}", refused.text());
    assert_eq!(server.send(CHAT, &cassettes::chat(&["x"])).await.status, 503);
}

#[tokio::test]
async fn records_of_a_sessions_own_cassette_fail_as_they_say() {
    let shelf = Shelf::with(&tape(&[cassettes::record(&["hello"], "one")]));
    let own = "vcr: 1\nrecords:\n- match: {contains: busy}\n  answer: {content: served, fault: '429 where first=1 per=all'}\n- match: \
               {contains: cut}\n  answer: {content: one two three four, fault: 'reset at event 2'}\n- match: {contains: call}\n  answer: \
               {content: none, fault: unknown-tool}\n- match: {contains: void}\n  answer: {content: none, fault: empty}\n- match: any\n  \
               answer: fine\n";
    std::fs::write(shelf.folder.path().join("own.yaml"), own).unwrap();
    let server = shelf.play(&[]);
    let open = async |name: &str, cassette: &str| {
        let session = json!({"name": name, "cassette": cassette});
        client::send(server.address, &client::post("/vcr/sessions", &session)).await
    };
    let path = |session: &str| format!("/vcr/s/{session}{CHAT}");
    let ask_for = async |session: &str, words: &str| server.send(&path(session), &cassettes::chat(&[words])).await;
    for session in ["a", "b", "default"] {
        assert_eq!(open(session, "own.yaml").await.status, 201);
    }
    for session in ["a", "b", "default"] {
        assert_eq!(ask_for(session, "busy").await.status, 429, "{session}");
        assert!(ask_for(session, "busy").await.text().contains("served"), "{session}");
        assert!(ask_for(session, "other").await.text().contains("fine"), "{session}");
        let void = ask_for(session, "void").await;
        assert_eq!(void.json()["choices"][0]["message"]["content"], "", "{session}: {}", void.text());
        let mut streamed = cassettes::chat(&["cut"]);
        streamed["stream"] = json!(true);
        let cut = ask(server.address, &request(&path(session), &streamed), None).await;
        assert_eq!((cut.chunks.len(), cut.ending), (2, Ending::Reset), "{session}");
        // It was not the client that asked for what cannot be said.
        assert!(ask_for(session, "call").await.text().contains("none"), "{session}");
    }
    let shown = server.get("/vcr/faults?hits=100").await;
    assert_eq!(
        (shown["hits"].as_array().unwrap().len(), shown["not_said"].as_array().unwrap().len()),
        (9, 3),
        "{shown}"
    );
    // Opened again, it starts again, and the others go on.
    assert_eq!(open("a", "own.yaml").await.status, 201);
    assert_eq!([ask_for("a", "busy").await.status, ask_for("b", "busy").await.status], [429, 200]);
    // A session that ended has no faults, nor has one that is opened without a cassette of its own.
    let end = client::Request { method: "DELETE", path: "/vcr/sessions/b", headers: Vec::new(), body: Vec::new() };
    assert_eq!(client::send(server.address, &end).await.status, 200);
    let again = json!({"name": "a", "on_miss": "error"});
    assert_eq!(client::send(server.address, &client::post("/vcr/sessions", &again)).await.status, 201);
    assert_eq!([ask_for("a", "busy").await.status, ask_for("b", "busy").await.status], [422, 422]);
    for (fault, part) in [("explode", "is no kind of fault"), ("quota:requests=1", "is no fault of an answer")] {
        let wrong = format!("vcr: 1\nrecords:\n- match: any\n  answer: {{content: x, fault: '{fault}'}}\n");
        std::fs::write(shelf.folder.path().join("wrong.yaml"), wrong).unwrap();
        let refused = open("default", "wrong.yaml").await;
        assert!(refused.status == 400 && refused.text().contains("wrong.yaml:4"), "{}", refused.text());
        assert!(refused.text().contains(part), "{}", refused.text());
    }
    assert!(ask_for("default", "other").await.text().contains("fine"), "what was open stays");
}

#[tokio::test]
async fn mcp_servers_fail() {
    let shelf = Shelf::with(SERVER);
    let server = shelf.play(&["--fault", "503 where first=1 path=/mcp*", "--fault", "close at byte 5 where nth=2"]);
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
        {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}});
    let mut asked = request("/mcp/shop", &body);
    let accept = b"accept: application/json, text/event-stream\r\n";
    let at = asked.windows(2).position(|window| window == b"\r\n").unwrap() + 2;
    asked.splice(at..at, accept.iter().copied());
    assert!(ask(server.address, &asked, None).await.head.starts_with("http/1.1 503 "));
    let cut = ask(server.address, &asked, None).await;
    assert_eq!((cut.body().len(), cut.ending), (5, Ending::Cut));
    assert_eq!(ask(server.address, &asked, None).await.ending, Ending::Whole);
}
