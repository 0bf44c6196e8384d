//! Conversations in the Messages and Responses families are kept as chats are: as turns, of which an edit reaches the next.

use serde_json::{Value, json};

use super::{Running, Shelf};
use crate::support::{
    client::Answer,
    peer::{End, Script, Upstream, answer, event_stream},
};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// An engine that calls a tool for each text and then says what the tool said. Its responses repeat the request's settings.
async fn engine() -> Upstream {
    let count = std::sync::atomic::AtomicU64::new(0);
    Upstream::start(move |request| {
        let text = String::from_utf8_lossy(request).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        let count = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let whole = match head.split([' ', '?']).nth(1).unwrap() {
            MESSAGES => message(&body, count),
            RESPONSES => response(&body, count),
            _ => return Script { pieces: answer("404 Not Found", "{}"), end: End::KeepAlive },
        };
        if body["stream"] != true {
            return Script { pieces: answer("200 OK", &whole.to_string()), end: End::KeepAlive };
        }
        let events: Vec<String> = stream(&whole).iter().map(Value::to_string).collect();
        let pieces = event_stream(&events.iter().map(String::as_str).collect::<Vec<_>>());
        Script { pieces, end: End::KeepAlive }
    })
    .await
}

fn message(body: &Value, count: u64) -> Value {
    let last = body["messages"].as_array().unwrap().last().unwrap();
    let content = match last["content"].as_str() {
        Some(city) => json!([{"type": "thinking", "thinking": "Look it up.", "signature": "s"},
            {"type": "tool_use", "id": format!("toolu_{count:08x}"), "name": "weather", "input": {"city": city}}]),
        None => {
            json!([{"type": "text", "text": format!("It is {} there.", last["content"][0]["content"].as_str().unwrap())}])
        }
    };
    json!({"id": format!("msg_{count:08x}"), "type": "message", "role": "assistant", "model": "m", "content": content,
        "stop_reason": "end_turn", "stop_sequence": null, "usage": {"input_tokens": 9, "output_tokens": 4}})
}

fn response(body: &Value, count: u64) -> Value {
    let list = body["input"].as_array().cloned();
    let last = list.as_ref().and_then(|list| list.last()).cloned().unwrap_or_else(|| json!({"content": body["input"]}));
    let output = match last["output"].as_str() {
        None => json!([{"type": "reasoning", "id": format!("rs_{count:08x}"), "summary": [],
                "content": [{"type": "reasoning_text", "text": "Look it up."}]},
            {"type": "function_call", "id": format!("fc_{count:08x}"), "call_id": format!("call_{count:08x}"), "status": "completed",
                "name": "weather", "arguments": json!({"city": last["content"]}).to_string()}]),
        Some(output) => {
            json!([{"type": "message", "id": format!("msg_{count:08x}"), "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": format!("It is {output} there."), "annotations": []}]}])
        }
    };
    json!({"id": format!("resp_{count:08x}"), "object": "response", "created_at": count, "status": "completed", "model": "m",
        "instructions": body["instructions"], "tools": body["tools"], "temperature": 1.0, "error": null, "output": output,
        "metadata": null, "usage": {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13}})
}

/// The events of a whole answer, its texts in two pieces.
fn stream(whole: &Value) -> Vec<Value> {
    if whole["object"] == "response" {
        return vec![
            json!({"type": "response.created", "response": {"id": whole["id"]}}),
            json!({"type": "response.completed", "response": whole}),
        ];
    }
    let mut begun = whole.clone();
    begun["content"] = json!([]);
    let mut events = vec![json!({"type": "message_start", "message": begun})];
    for (index, block) in whole["content"].as_array().unwrap().iter().enumerate() {
        let mut empty = block.clone();
        let deltas = match block["type"].as_str().unwrap() {
            "text" => {
                empty["text"] = json!("");
                let (one, two) = block["text"].as_str().unwrap().split_at(5);
                [one, two].map(|text| json!({"type": "text_delta", "text": text})).to_vec()
            }
            "tool_use" => {
                empty["input"] = json!({});
                vec![json!({"type": "input_json_delta", "partial_json": block["input"].to_string()})]
            }
            _ => Vec::new(),
        };
        events.push(json!({"type": "content_block_start", "index": index, "content_block": empty}));
        events
            .extend(deltas.iter().map(|delta| json!({"type": "content_block_delta", "index": index, "delta": delta})));
        events.push(json!({"type": "content_block_stop", "index": index}));
    }
    events.push(json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 4}}));
    events.push(json!({"type": "message_stop"}));
    events
}

/// Form in which a client repeats a response.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Repeats {
    Whole,
    WithoutReasoning,
    /// Items without ids and states, messages as one text.
    Bare,
}

/// Asks for the weather in so many cities, each with a call of the tool; what the client saw.
async fn talk(server: &Running, path: &str, turns: usize, repeats: Repeats) -> Result<Vec<Value>, Answer> {
    let (mut messages, mut seen) = (Vec::new(), Vec::new());
    let schema =
        json!({"type": "object", "properties": {"city": {"type": "string", "description": "A city of any size."}}});
    let tool = match path {
        MESSAGES => json!({"name": "weather", "description": "Tells the weather", "input_schema": schema}),
        _ => json!({"type": "function", "name": "weather", "description": "Tells the weather", "parameters": schema}),
    };
    for turn in 0..turns {
        if turn % 2 == 0 {
            messages.push(json!({"role": "user", "content": format!("City {turn}")}));
        }
        let body = match path {
            MESSAGES => {
                json!({"model": "m", "max_tokens": 99, "system": "A weather bot.", "messages": messages, "tools": [tool]})
            }
            // The first turn is a text.
            _ if turn == 0 => {
                json!({"model": "m", "instructions": "A weather bot.", "input": "City 0", "tools": [tool]})
            }
            _ => json!({"model": "m", "instructions": "A weather bot.", "input": messages, "tools": [tool]}),
        };
        let answer = server.send(path, &body).await;
        if answer.status != 200 {
            return Err(answer);
        }
        let whole = answer.json();
        assert!(whole["id"].is_string(), "{whole}");
        let is_kept = |part: &&Value| {
            repeats == Repeats::Whole || !["thinking", "reasoning"].contains(&part["type"].as_str().unwrap())
        };
        if path == MESSAGES {
            let blocks: Vec<Value> = whole["content"].as_array().unwrap().iter().filter(is_kept).cloned().collect();
            let call = blocks.iter().find(|block| block["type"] == "tool_use").cloned();
            seen.push(json!(blocks));
            let is_text = repeats == Repeats::Bare && call.is_none();
            let content = if is_text { blocks[0]["text"].clone() } else { json!(blocks) };
            messages.push(json!({"role": "assistant", "content": content}));
            messages.extend(call.map(|call| {
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "warm"}]})
            }));
        } else {
            let items: Vec<Value> = whole["output"].as_array().unwrap().iter().filter(is_kept).cloned().collect();
            let call = items.iter().find(|item| item["type"] == "function_call").cloned();
            seen.push(json!(items));
            messages.extend(items.iter().map(|item| match (repeats, &call) {
                (Repeats::Bare, Some(call)) => {
                    json!({"type": "function_call", "call_id": call["call_id"], "name": call["name"],
                    "arguments": call["arguments"]})
                }
                (Repeats::Bare, None) => json!({"role": "assistant", "content": item["content"][0]["text"]}),
                _ => item.clone(),
            }));
            messages.extend(
                call.map(|call| json!({"type": "function_call_output", "call_id": call["call_id"], "output": "warm"})),
            );
        }
    }
    Ok(seen)
}

/// What a client saw, without ids.
fn without_ids(seen: &[Value]) -> String {
    let mut text = json!(seen).to_string();
    for prefix in ["toolu_", "msg_", "fc_", "call_", "rs_"] {
        while let Some(at) = text.find(&format!("\"{prefix}")) {
            let end = at + 1 + text[at + 1..].find('"').unwrap();
            text.replace_range(at..=end, "0");
        }
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_turns_are_written_as_turns_and_the_same_again() {
    let upstream = engine().await;
    for path in [MESSAGES, RESPONSES] {
        for repeats in [Repeats::Whole, Repeats::WithoutReasoning, Repeats::Bare] {
            let shelf = Shelf::empty();
            let mut texts = Vec::new();
            for _ in 0..2 {
                let tap = shelf.tap(&upstream, &["--mode", "all"]);
                let live = talk(&tap, path, 20, repeats).await.unwrap();
                assert_eq!(tap.stop().0, 0);
                texts.push((shelf.text(), without_ids(&live)));
            }
            let (text, live) = &texts[0];
            assert_eq!(texts[1], texts[0], "{path} {repeats:?}");
            assert_eq!(text.matches("  like: ").count(), 19, "{path} {repeats:?}: {text}");
            assert!(text.len() < 13 * 1024, "{path} {repeats:?}: {} bytes: {text}", text.len());
            let play = shelf.play(&["--strict"]);
            assert_eq!(without_ids(&talk(&play, path, 20, repeats).await.unwrap()), *live, "{path} {repeats:?}");
            let (code, log) = play.stop();
            assert_eq!(code, 0, "{log}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edit_by_hand_is_what_the_next_turn_repeats() {
    let upstream = engine().await;
    for path in [MESSAGES, RESPONSES] {
        let shelf = Shelf::empty();
        let tap = shelf.tap(&upstream, &[]);
        talk(&tap, path, 4, Repeats::Whole).await.unwrap();
        tap.stop();
        let text = shelf.text();
        let edited = text
            .replacen("City 0", "Cities", 9)
            .replacen("Cities", "City 0", 1)
            .replace("It is warm there.", "It snows.");
        assert_eq!(edited.matches("Cities").count(), 1, "only the call is edited: {edited}");
        std::fs::write(&shelf.file, edited).unwrap();
        let play = shelf.play(&["--strict"]);
        let seen = talk(&play, path, 4, Repeats::Whole).await.unwrap_or_else(|miss| panic!("{path}: {}", miss.text()));
        let seen = json!(seen).to_string();
        assert!(seen.contains("Cities") && seen.contains("It snows.") && !seen.contains("warm there"), "{seen}");
        assert_eq!(play.stop().0, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_are_there_whatever_is_kept_of_times() {
    let upstream = engine().await;
    for path in [MESSAGES, RESPONSES] {
        for timing in ["none", "inline", "sidecar"] {
            let shelf = Shelf::empty();
            let tap = shelf.tap(&upstream, &["--timing", timing]);
            talk(&tap, path, 4, Repeats::Whole).await.unwrap();
            tap.stop();
            for flags in [&["--strict"][..], &["--strict", "--ids", "fresh"]] {
                let play = shelf.play(flags);
                talk(&play, path, 4, Repeats::Whole).await.unwrap_or_else(|miss| panic!("{timing}: {}", miss.text()));
                let (code, log) = play.stop();
                assert_eq!(code, 0, "{path} {timing}: {log}");
            }
            let play = shelf.play(&["--on-exhausted", "last", "--ids", "fresh"]);
            let mut ids = Vec::new();
            for _ in 0..2 {
                let seen = json!(talk(&play, path, 1, Repeats::Whole).await.unwrap()).to_string();
                assert!(!ids.contains(&seen), "{path} {timing}: a call that is played again has another id: {seen}");
                ids.push(seen);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edited_answer_is_streamed_as_its_family_streams() {
    let upstream = engine().await;
    for (path, list, last) in [(MESSAGES, "messages", "message_stop"), (RESPONSES, "input", "response.completed")] {
        for timing in ["sidecar", "none"] {
            let shelf = Shelf::empty();
            let tap = shelf.tap(&upstream, &["--timing", timing]);
            let result = match path {
                MESSAGES => {
                    json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "warm"}]})
                }
                _ => json!({"type": "function_call_output", "call_id": "t", "output": "warm"}),
            };
            let body = json!({"model": "m", "stream": true, "max_tokens": 99, list: [result]});
            tap.send(path, &body).await;
            tap.stop();
            std::fs::write(&shelf.file, shelf.text().replace("It is warm there.", "It is not warm there at all."))
                .unwrap();
            let play = shelf.play(&["--strict"]);
            let events: Vec<Value> = play
                .send(path, &body)
                .await
                .events()
                .iter()
                .map(|event| serde_json::from_str(event.split_once("data: ").unwrap().1).unwrap())
                .collect();
            let deltas: Vec<&str> =
                events.iter().filter_map(|event| event["delta"]["text"].as_str().or(event["delta"].as_str())).collect();
            assert!(
                deltas.len() > 2 && deltas.concat() == "It is not warm there at all.",
                "{path} {timing}: {events:?}"
            );
            assert_eq!(events.last().unwrap()["type"], last, "{events:?}");
            let first = if path == MESSAGES { &events[0]["message"] } else { &events[0]["response"] };
            assert!(first["id"].is_string() && first["model"] == "m", "{path} {timing}: {first}");
        }
    }
}

#[tokio::test]
async fn turns_that_repeat_the_answer_themselves_are_read_as_they_were() {
    let text = "vcr: 1\nrecords:\n- request: POST /v1/messages\n  body: {model: m, max_tokens: 9, messages: [{role: user, content: a}]}\n  \
        answer: {json: {role: assistant, content: [{type: text, text: A}]}}\n- like: 0\n  body:\n    messages+:\n    - {role: assistant, \
        content: other}\n    - {role: user, content: b}\n  answer: {json: {role: assistant, content: [{type: text, text: B}]}}\n";
    let shelf = Shelf::with(text);
    let play = shelf.play(&["--strict"]);
    let messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "other"}, {"role": "user", "content": "b"}]);
    let answer = play.send(MESSAGES, &json!({"model": "m", "max_tokens": 9, "messages": messages})).await;
    assert_eq!(answer.header("x-vcr-record"), Some("tape.yaml#1"), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn marks_of_caches_that_move_leave_turns_short() {
    let (upstream, shelf) = (engine().await, Shelf::empty());
    let mark = json!({"type": "ephemeral"});
    let result = |turn: usize| {
        let text = format!("result {turn}");
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": text}]})
    };
    // The last two of its messages are marked, in every turn.
    let bodies: Vec<Value> = (0..8)
        .map(|turn| {
            let mut messages = Vec::new();
            for earlier in 0..=turn {
                let mut own = result(earlier);
                if earlier + 1 >= turn {
                    own["content"][0]["cache_control"] = mark.clone();
                }
                messages.push(own);
                if earlier < turn {
                    let text = format!("It is result {earlier} there.");
                    messages.push(json!({"role": "assistant", "content": [{"type": "text", "text": text}]}));
                }
            }
            json!({"model": "m", "max_tokens": 9, "messages": messages})
        })
        .collect();
    let tap = shelf.tap(&upstream, &[]);
    for body in &bodies {
        assert_eq!(tap.send(MESSAGES, body).await.status, 200);
    }
    tap.stop();
    let text = shelf.text();
    assert_eq!(text.matches("  like: ").count(), 7, "{text}");
    assert!(text.contains("cached: [2]") && text.matches("result 0").count() == 2, "{text}");
    let play = shelf.play(&["--strict"]);
    for (body, turn) in bodies.iter().zip(0..) {
        let answer = play.send(MESSAGES, body).await;
        assert_eq!(answer.header("x-vcr-record"), Some(&*format!("tape.yaml#{turn}")), "{}", answer.text());
    }
    let mut other = bodies[7].clone();
    other["messages"][0]["content"][0]["cache_control"] = mark;
    assert_eq!(play.send(MESSAGES, &other).await.status, 422, "marks count when requests are compared");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_only_names_a_response_has_the_ids_of_its_conversation() {
    let (upstream, shelf) = (engine().await, Shelf::empty());
    let tap = shelf.tap(&upstream, &[]);
    for city in ["City a", "City b"] {
        let first = tap.send(RESPONSES, &json!({"model": "m", "input": city})).await.json();
        let call = first["output"][1]["call_id"].clone();
        let output = json!([{"type": "function_call_output", "call_id": call, "output": city}]);
        tap.send(RESPONSES, &json!({"model": "m", "previous_response_id": first["id"], "input": output})).await;
    }
    tap.stop();
    let text = shelf.text();
    assert_eq!(text.matches("call_id: call_3").count(), 4, "two answers and two requests: {text}");
    assert_eq!(text.matches("previous_response_id: call_4").count(), 2, "{text}");
}
