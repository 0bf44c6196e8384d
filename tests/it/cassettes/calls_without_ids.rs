//! Tool calls that people write without ids.

use serde_json::{Value, json};

use super::{CHAT, Running, Shelf, chat, said, tape, vcr};

const CALLS: &str = "- request: POST /v1/chat/completions
  body: {model: m, messages: [{role: user, content: weather}]}
  answer:
    message:
      role: assistant
      content: null
      tool_calls:
      - {name: weather, arguments: {city: London}}
      - {id: call_7, name: weather, arguments: {city: Paris}}
      - {name: weather, arguments: {city: Rome}}
- like: 0
  body:
    messages+:
    - {role: tool, content: rain}
    - {role: tool, tool_call_id: call_7, content: sun}
    - {role: tool, content: fog}
  answer: {message: {role: assistant, tool_calls: [{name: again, arguments: {}}]}}
";

const MESSAGES: &str = "- request: POST /v1/messages
  body: {model: m, max_tokens: 9, messages: [{role: user, content: weather}]}
  answer:
    json:
      id: msg_a
      type: message
      role: assistant
      model: m
      content: [{type: tool_use, name: weather, input: {city: London}}, {type: tool_use, name: weather, input: {city: Rome}}]
      stop_reason: tool_use
      usage: {input_tokens: 1, output_tokens: 1}
- like: 0
  body:
    messages+:
    - {role: user, content: [{type: tool_result, content: rain}, {type: tool_result, content: fog}]}
  answer:
    json:
      id: msg_b
      type: message
      role: assistant
      model: m
      content: [{type: tool_use, name: again, input: {}}]
      stop_reason: tool_use
      usage: {input_tokens: 1, output_tokens: 1}
";

const RESPONSES: &str = "- request: POST /v1/responses
  body: {model: m, input: weather}
  answer:
    json:
      id: resp_a
      object: response
      status: completed
      model: m
      output: [{type: function_call, name: weather, arguments: '{\"city\": \"London\"}'}, {type: function_call, name: weather, arguments: '{}'}]
- like: 0
  body:
    input+:
    - {type: function_call_output, output: rain}
    - {type: function_call_output, output: fog}
  answer:
    json: {id: resp_b, object: response, status: completed, model: m, output: [{type: function_call, name: again, arguments: '{}'}]}
- request: POST /v1/responses
  body: {model: m, previous_response_id: resp_b, input: [{type: function_call_output, call_id: call_3, output: ok}]}
  answer:
    json: {id: resp_c, object: response, status: completed, model: m, output: [{type: function_call, name: last, arguments: '{}'}]}
";

fn ids<'a>(calls: &'a Value, key: &str) -> Vec<&'a str> {
    calls.as_array().unwrap().iter().map(|call| call[key].as_str().unwrap_or("none")).collect()
}

/// Asks for a body and then for a stream of it, in sessions of their own: both have these texts.
async fn has_in_both_forms(play: &Running, path: &str, body: &Value, texts: &[&str]) {
    for stream in [false, true] {
        let mut body = body.clone();
        body["stream"] = stream.into();
        let answer = play.send(&format!("/vcr/s/stream-{stream}{path}"), &body).await;
        assert!(answer.status == 200 && texts.iter().all(|text| answer.text().contains(text)), "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_have_ids_that_the_next_turn_repeats() {
    let other = format!(
        "- request: POST {CHAT}\n  body: {}\n  answer: {{message: {{role: assistant, content: B}}}}\n",
        chat(&["b"])
    );
    for records in [vec![CALLS.to_owned()], vec![CALLS.to_owned(), other.clone()]] {
        let shelf = Shelf::with(&tape(&records));
        let play = shelf.play(&["--strict"]);
        let first = play.send(CHAT, &chat(&["weather"])).await.json()["choices"][0]["message"].clone();
        assert_eq!(ids(&first["tool_calls"], "id"), ["call_8", "call_7", "call_9"], "{first}");
        let results = ids(&first["tool_calls"], "id").into_iter().zip(["rain", "sun", "fog"]);
        let mut messages = vec![json!({"role": "user", "content": "weather"}), first.clone()];
        messages.extend(results.map(|(id, text)| json!({"role": "tool", "tool_call_id": id, "content": text})));
        let mut body = json!({"model": "m", "messages": messages, "stream": true});
        let streamed = play.send(CHAT, &body).await;
        assert!(streamed.status == 200 && streamed.text().contains("\"id\":\"call_10\""), "{}", streamed.text());
        if records.len() > 1 {
            assert_eq!(said(&play.send(CHAT, &chat(&["b"])).await), "B");
        }
        assert_eq!(play.stop().0, 0);
        // The results belong to their calls: in another order they are another request.
        let play = shelf.play(&[]);
        play.send(CHAT, &chat(&["weather"])).await;
        body["messages"][2]["tool_call_id"] = "call_9".into();
        body["messages"][4]["tool_call_id"] = "call_8".into();
        assert_eq!(play.send(CHAT, &body).await.status, 422);
        assert!(vcr(&["cassette", "validate", shelf.name()]).status.success());
        assert!(vcr(&["cassette", "fmt", shelf.name()]).status.success());
        assert!(shelf.text().contains("id: call_9, name: weather"), "{}", shelf.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_have_them_too() {
    let shelf = Shelf::with(&tape(&[MESSAGES.to_owned()]));
    let play = shelf.play(&["--strict"]);
    let mut body = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "weather"}]});
    has_in_both_forms(&play, "/v1/messages", &body, &["\"id\":\"call_1\"", "\"id\":\"call_2\""]).await;
    let first = play.send("/vcr/s/other/v1/messages", &body).await.json();
    let results = ids(&first["content"], "id").into_iter().zip(["rain", "fog"]);
    let results = results.map(|(id, text)| json!({"type": "tool_result", "tool_use_id": id, "content": text}));
    let results: Vec<Value> = results.collect();
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": first["content"]}));
    messages.push(json!({"role": "user", "content": results}));
    has_in_both_forms(&play, "/v1/messages", &body, &["\"id\":\"call_3\""]).await;
    assert_eq!(play.send("/vcr/s/other/v1/messages", &body).await.status, 200);
    assert_eq!(play.stop().0, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_have_them_too() {
    let shelf = Shelf::with(&tape(&[RESPONSES.to_owned()]));
    let play = shelf.play(&["--strict"]);
    let body = json!({"model": "m", "input": "weather"});
    has_in_both_forms(&play, "/v1/responses", &body, &["\"call_id\":\"call_1\"", "\"call_id\":\"call_2\""]).await;
    let first = play.send("/vcr/s/other/v1/responses", &body).await.json();
    let mut input = vec![json!({"role": "user", "content": "weather"})];
    input.extend(first["output"].as_array().unwrap().iter().cloned());
    let results = ids(&first["output"], "call_id").into_iter().zip(["rain", "fog"]);
    input.extend(results.map(|(id, text)| json!({"type": "function_call_output", "call_id": id, "output": text})));
    let body = json!({"model": "m", "input": input});
    has_in_both_forms(&play, "/v1/responses", &body, &["\"call_id\":\"call_3\""]).await;
    assert_eq!(play.send("/vcr/s/other/v1/responses", &body).await.status, 200);
    // A response that is continued by its id counts on.
    let result = json!({"type": "function_call_output", "call_id": "call_3", "output": "ok"});
    let body = json!({"model": "m", "previous_response_id": "resp_b", "input": [result]});
    has_in_both_forms(&play, "/v1/responses", &body, &["\"call_id\":\"call_4\""]).await;
    assert_eq!(play.send("/vcr/s/other/v1/responses", &body).await.status, 200);
    assert_eq!(play.stop().0, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_written_records_of_a_family_have_others_each_time() {
    let (_, answer) = MESSAGES.split_once("  answer:\n").unwrap();
    let (answer, _) = answer.split_once("- like").unwrap();
    let shelf = Shelf::with(&tape(&[format!("- match: any\n  answer:\n{answer}")]));
    let play = shelf.play(&["--strict"]);
    let body = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "weather"}]});
    for number in 1..3 {
        let answer = play.send("/v1/messages", &body).await.json();
        assert_eq!(ids(&answer["content"], "id"), [format!("call_{number}_1"), format!("call_{number}_2")], "{answer}");
    }
}
