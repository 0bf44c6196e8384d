//! What was recorded is what is played.

use serde_json::{Value, json};

use super::{CHAT, Shelf, agent, chat, engine, record, said, streamed, tape};

#[tokio::test]
async fn an_agent_is_recorded_once_and_replays_offline() {
    let upstream = engine().await;
    for stream in [json!(false), json!(true)] {
        let shelf = Shelf::empty();
        let tap = shelf.tap(&upstream, &[]);
        let live = agent(&tap, "Weather\nin London?", stream.clone()).await.ok().unwrap();
        let (code, said) = tap.stop();
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("recorded 2 interactions"), "{said}");
        let text = shelf.text();
        assert!(
            text.contains("like: 0") && text.contains("arguments: {city: London}") && !text.contains("tool-"),
            "{text}"
        );
        // The other form too: a record serves both.
        for asked in [stream.clone(), json!(stream == json!(false))] {
            let play = shelf.play(&["--strict"]);
            assert_eq!(agent(&play, "Weather\nin London?", asked).await.ok().unwrap(), live);
            let (code, said) = play.stop();
            assert_eq!(code, 0, "{said}");
            assert!(said.contains("2 of 2 records served"), "{said}");
        }
        let again = Shelf::empty();
        let tap = again.tap(&upstream, &[]);
        agent(&tap, "Weather\nin London?", stream).await.ok().unwrap();
        tap.stop();
        assert_eq!(again.text(), text, "an unchanged conversation changes no line");
    }
}

#[tokio::test]
async fn a_stream_is_played_event_by_event() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "one"}], "stream": true});
    let live = tap.send(CHAT, &body).await;
    tap.stop();
    let play = shelf.play(&["--on-exhausted", "last"]);
    let played = play.send(CHAT, &body).await;
    assert_eq!(played.events(), live.events());
    assert_eq!(played.header("content-type"), live.header("content-type"));
    assert_eq!(played.header("x-vcr-record"), Some("tape.yaml#0"));
    assert_eq!(played.header("x-vcr-match"), Some("canonical"));
    assert_eq!(played.header("x-vcr-session"), Some("default"));
    let counts = Shelf::empty();
    let tap = counts.tap(&upstream, &[]);
    let mut counted = body.clone();
    counted["stream_options"] = json!({"include_usage": true});
    let live_counts = tap.send(CHAT, &counted).await;
    assert_eq!(live_counts.events().len(), live.events().len() + 1);
    tap.stop();
    let play = counts.play(&["--on-exhausted", "last"]);
    let events = live_counts.events();
    let last: Value = serde_json::from_str(events[events.len() - 2].strip_prefix("data: ").unwrap()).unwrap();
    let mut whole = body.clone();
    whole["stream"] = json!("false");
    let whole = play.send(CHAT, &whole).await.json();
    assert_eq!(whole["usage"], last["usage"], "details are not in the file, but beside it");
    assert_eq!(
        play.send(CHAT, &body).await.events().len(),
        live.events().len(),
        "token counts only where they are asked for"
    );
    assert_eq!(play.send(CHAT, &counted).await.events().len(), live.events().len() + 1);
}

#[tokio::test]
async fn the_error_of_a_stream_is_a_body_for_a_client_that_asked_for_none() {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "one"}], "stream": true});
    let error = json!({"message": "no such token", "type": "BadRequestError", "param": null, "code": 400});
    let record = format!(
        "- request: POST {CHAT}\n  body: {body}\n  answer:\n    status: 200\n    events:\n    - data: {{error: {error}}}\n    - data: \"[DONE]\"\n"
    );
    let shelf = Shelf::with(&tape(&[record]));
    let play = shelf.play(&["--on-exhausted", "last"]);
    let streamed = play.send(CHAT, &body).await;
    assert_eq!((streamed.status, streamed.events().len()), (200, 2), "{}", streamed.text());
    let mut whole = body;
    whole["stream"] = json!(false);
    let refused = play.send(CHAT, &whole).await;
    assert_eq!((refused.status, refused.header("content-type")), (400, Some("application/json")), "{}", refused.text());
    assert_eq!(refused.json(), json!({"error": error}));
}

#[tokio::test]
async fn an_edited_answer_is_served_as_edited_in_the_recorded_rhythm() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "one"}], "stream": true});
    let events = tap.send(CHAT, &body).await.events().len();
    tap.stop();
    std::fs::write(&shelf.file, shelf.text().replace("You said one.", "Something else is said here.")).unwrap();
    let play = shelf.play(&["--on-exhausted", "last"]);
    let (text, told) = streamed(&play.send(CHAT, &body).await);
    assert_eq!((text.as_str(), told), ("Something else is said here.", events - 1));
    assert_eq!(said(&play.send(CHAT, &chat(&["one"])).await), "Something else is said here.");
    let (_, log) = play.stop();
    assert!(log.contains("record 0 was edited"), "{log}");
}

#[tokio::test]
async fn hand_written_records_need_no_sidecar() {
    let text = tape(&[record(&["Hi"], "Hello to you")]);
    let shelf = Shelf::with(&text);
    let play = shelf.play(&["--on-exhausted", "last"]);
    let whole = play.send(CHAT, &chat(&["Hi"])).await;
    assert_eq!(said(&whole), "Hello to you");
    assert_eq!(whole.json()["usage"]["total_tokens"], 5);
    let mut body = chat(&["Hi"]);
    body["stream"] = json!(true);
    assert_eq!(streamed(&play.send(CHAT, &body).await), ("Hello to you".to_owned(), 5));
    assert_eq!(play.get("/v1/models").await["data"][0]["id"], "m");
}

#[tokio::test]
async fn any_json_endpoint_is_played_as_it_was() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let body = json!({"model": "m", "input": "text"});
    let tap = shelf.tap(&upstream, &[]);
    let live = tap.send("/v1/embeddings", &body).await;
    let missing = tap.send("/custom/route", &json!({"a": 1})).await;
    tap.stop();
    let play = shelf.play(&[]);
    let played = play.send("/v1/embeddings", &body).await;
    assert_eq!((played.status, played.text()), (200, live.text()));
    let played = play.send("/custom/route", &json!({"a": 1})).await;
    assert_eq!((played.status, played.text()), (404, missing.text()));
}

#[tokio::test]
async fn the_other_families_are_streamed_from_one_body() {
    let shelf = Shelf::with(
        r#"vcr: 1
records:
- request: POST /v1/messages
  body: {model: m, max_tokens: 9, messages: [{role: user, content: Hi}]}
  answer: {json: {id: msg_1, type: message, role: assistant, model: m, content: [{type: text, text: Hello there}], stop_reason: end_turn, stop_sequence: null, usage: {input_tokens: 1, output_tokens: 2}}}
- request: POST /v1/responses
  body: {model: m, input: Hi}
  answer: {json: {id: resp_1, object: response, status: completed, model: m, output: [{type: message, id: i, role: assistant, status: completed, content: [{type: output_text, text: Hello there, annotations: []}]}]}}
"#,
    );
    let play = shelf.play(&["--on-exhausted", "last"]);
    let ask = async |path: &str, mut body: Value| {
        let whole = play.send(path, &body).await;
        body["stream"] = json!(true);
        (whole, play.send(path, &body).await.text())
    };
    let message = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]});
    let (whole, stream) = ask("/v1/messages", message).await;
    assert_eq!(whole.json()["content"][0]["text"], "Hello there");
    assert!(stream.starts_with("event: message_start\n") && stream.contains("\"text\":\"Hello \""), "{stream}");
    assert!(stream.trim_end().ends_with("{\"type\":\"message_stop\"}"), "{stream}");
    let (whole, stream) = ask("/v1/responses", json!({"model": "m", "input": "Hi"})).await;
    assert_eq!(whole.json()["output"][0]["content"][0]["text"], "Hello there");
    assert!(
        stream.contains("event: response.output_text.delta") && stream.contains("event: response.completed"),
        "{stream}"
    );
}

#[tokio::test]
async fn errors_and_faults_are_records() {
    let fault = |name: &str, fault: &str| {
        format!(
            "- request: POST {CHAT}\n  body: {}\n  answer: {{message: {{role: assistant, content: One two three}}, \
             finish_reason: stop, fault: {fault}, after_events: 2}}\n",
            chat(&[name])
        )
    };
    let limit = format!(
        "- request: POST {CHAT}\n  body: {}\n  answer: {{status: 429, headers: {{retry-after: \"2\"}}, error: {{message: slow down}}}}\n",
        chat(&["limit"])
    );
    let whole = fault("whole", "reset");
    let shelf = Shelf::with(&tape(&[limit, fault("reset", "reset"), fault("truncate", "truncate"), whole]));
    let play = shelf.play(&[]);
    let limited = play.send(CHAT, &chat(&["limit"])).await;
    assert_eq!((limited.status, limited.header("retry-after")), (429, Some("2")));
    assert_eq!(limited.json(), json!({"error": {"message": "slow down"}}));
    for name in ["reset", "truncate"] {
        let mut body = chat(&[name]);
        body["stream"] = json!(true);
        let request = crate::support::peer::post(CHAT, &body.to_string());
        let answer = crate::support::peer::exchange(play.address, &request).await;
        assert_eq!((answer.complete, answer.pieces.len()), (name == "truncate", 2), "{name}: {answer:?}");
        assert!(!answer.body().contains("[DONE]"));
    }
    // No client takes it for an answer, whichever form it asks for.
    let request = crate::support::peer::post(CHAT, &chat(&["whole"]).to_string());
    let answer = crate::support::peer::exchange(play.address, &request).await;
    assert!(answer.body().is_empty() && !answer.head.contains("content-length: 0"), "{answer:?}");
}

#[tokio::test]
async fn times_are_those_of_the_record() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    tap.send(CHAT, &chat(&["one"])).await;
    tap.stop();
    let timing = shelf.folder.path().join("tape.vcr/timing.jsonl");
    let mut side: Value = serde_json::from_str(super::read(&timing).trim()).unwrap();
    side["ms"] = json!(300.0);
    std::fs::write(&timing, side.to_string() + "\n").unwrap();
    for (flags, waits) in [(["--time-scale", "1"], true), (["--time-scale", "1000"], false)] {
        let fixed = ["play", "--port", "0", "--cassette", shelf.name()];
        let play = super::Running::start(&[&fixed[..], &flags].concat());
        let begun = std::time::SystemTime::now();
        play.send(CHAT, &chat(&["one"])).await;
        let took = begun.elapsed().unwrap();
        assert!(!waits || took.as_millis() >= 300, "{took:?}");
    }
}

#[tokio::test]
async fn an_answer_written_by_hand_without_a_reason_ends_with_the_usual_one() {
    let shelf = Shelf::with(
        r#"vcr: 1
records:
- request: POST /v1/chat/completions
  body: {messages: [{role: user, content: hi}]}
  answer: {message: {role: assistant, content: Hello there}}
- request: POST /v1/chat/completions
  body: {messages: [{role: user, content: call}]}
  answer: {message: {role: assistant, content: null, tool_calls: [{id: c1, name: f, arguments: {a: 1}}]}}
"#,
    );
    for (content, reason) in [("hi", "stop"), ("call", "tool_calls")] {
        let server = shelf.play(&[]);
        let request = |stream: bool| json!({"messages": [{"role": "user", "content": content}], "stream": stream});
        let whole = server.send(CHAT, &request(false)).await.json();
        assert_eq!(whole["choices"][0]["finish_reason"], reason, "{whole}");
        let server = shelf.play(&[]);
        let streamed = server.send(CHAT, &request(true)).await;
        let last = streamed.events().iter().rev().nth(1).cloned().unwrap();
        assert!(last.contains(&format!(r#""finish_reason":"{reason}""#)), "{last}");
    }
}
