//! Tool calls and reasoning in answers, where no golden shows them.

use serde_json::{Value, json};
use vllm_vcr::{
    play::Config,
    recording::trace::FinishReason,
    replay::matching::MatchBy,
    text::parsers::{Formats, ReasoningFormat, ToolFormat},
    text::prompt::SpecialTokens,
};

use crate::support::{
    CHAT,
    client::{self, Answer},
    play_server::{self, Server},
    running::Running,
};

const CALLS: &str = "Wait.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"sea\"}}\n</tool_call>\n\
    <tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"sky\"}}\n</tool_call>";

const HERMES: Formats = Formats { reasoning: None, tools: Some(ToolFormat::Hermes) };
const QWEN3: Formats = Formats { reasoning: Some(ReasoningFormat::Qwen3), tools: None };

/// A server whose model says this.
async fn saying(text: &str, parsers: Formats) -> Server {
    let ids = play_server::tokenizer().encode(text, SpecialTokens::Skip).unwrap();
    let record = play_server::record(&ids, std::time::Duration::ZERO, FinishReason::Stop);
    play_server::start(Config { parsers, ..play_server::config(&[MatchBy::Next], vec![record]) }).await
}

async fn chat(server: &Server, mut body: Value) -> Answer {
    body["messages"] = json!([{"role": "user", "content": "Hi"}]);
    client::send(server.address, &client::post("/v1/chat/completions", &body)).await
}

fn with_tools(mut body: Value) -> Value {
    body["tools"] = json!([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]);
    body
}

/// The choices of a stream's events.
fn choices(answer: &Answer) -> Vec<Value> {
    let read = |event: &String| serde_json::from_str::<Value>(event.trim_start_matches("data: ")).ok();
    answer.events().iter().filter_map(read).filter_map(|mut event| Some(event["choices"].get_mut(0)?.take())).collect()
}

/// The arguments of each call, put together from a stream's deltas.
fn arguments(choices: &[Value]) -> Vec<String> {
    let mut calls: Vec<String> = Vec::new();
    for call in choices.iter().filter_map(|choice| choice["delta"]["tool_calls"].as_array()).flatten() {
        let index = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
        calls.resize(calls.len().max(index + 1), String::new());
        calls[index].push_str(call["function"]["arguments"].as_str().unwrap_or_default());
    }
    calls
}

#[tokio::test]
async fn one_call_is_returned_where_calls_must_not_be_parallel() {
    let server = saying(CALLS, HERMES).await;
    for (parallel, told) in [(true, vec![r#"{"at": "sea"}"#, r#"{"at": "sky"}"#]), (false, vec![r#"{"at": "sea"}"#])] {
        let streamed = chat(&server, with_tools(json!({"stream": true, "parallel_tool_calls": parallel}))).await;
        let choices = choices(&streamed);
        assert_eq!(arguments(&choices), told);
        assert_eq!(choices.last().unwrap()["finish_reason"], "tool_calls");
        let whole = chat(&server, with_tools(json!({"parallel_tool_calls": parallel}))).await.json();
        let message = &whole["choices"][0]["message"];
        let arguments = |call: &Value| call["function"]["arguments"].as_str().unwrap().to_owned();
        assert_eq!(message["tool_calls"].as_array().unwrap().iter().map(arguments).collect::<Vec<_>>(), told);
        assert_eq!(
            (&message["content"], &whole["choices"][0]["finish_reason"]),
            (&json!("Wait.\n"), &json!("tool_calls"))
        );
    }
}

#[tokio::test]
async fn calls_are_text_where_tools_are_not_to_be_used_and_refused_without_a_parser() {
    let server = saying(CALLS, HERMES).await;
    let answer = chat(&server, with_tools(json!({"tool_choice": "none"}))).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], CALLS);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let server = saying(CALLS, QWEN3).await;
    for (choice, asked) in [
        (json!("required"), "\"required\""),
        (json!({"type": "function", "function": {"name": "look"}}), "function \"look\""),
    ] {
        let refused = chat(&server, with_tools(json!({"tool_choice": choice}))).await;
        let message = format!("tool_choice={asked} requires --tool-call-parser to be set");
        assert_eq!((refused.status, refused.json()["error"]["message"].as_str()), (400, Some(message.as_str())));
    }
}

#[tokio::test]
async fn hidden_reasoning_hides_its_tokens_too() {
    let server = saying("A thought that never ends.", QWEN3).await;
    let asked = json!({"include_reasoning": false, "return_token_ids": true, "logprobs": true});
    let mut streaming = asked.clone();
    streaming["stream"] = json!(true);
    let choices = choices(&chat(&server, streaming).await);
    assert_eq!(choices.len(), 2, "the role and the end: {choices:?}");
    assert_eq!((&choices[1]["delta"], &choices[1]["token_ids"]), (&json!({}), &Value::Null));
    let whole = chat(&server, asked).await.json();
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["token_ids"], &choice["logprobs"], &choice["message"]["reasoning"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    assert!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0, "{whole}");
}

#[tokio::test]
async fn thinking_is_bounded_only_where_its_end_is_known() {
    let plain = saying("Hi.", Formats { reasoning: None, tools: None }).await;
    let refused = chat(&plain, json!({"thinking_token_budget": 5})).await;
    assert_eq!(
        (refused.status, refused.text().as_str()),
        (
            400,
            r#"{"error":{"message":"thinking_token_budget is set but reasoning_config is not configured. Please set --reasoning-parser and/or --reasoning-config to use thinking_token_budget.","type":"BadRequestError","param":null,"code":400}}"#
        )
    );
    assert_eq!(chat(&plain, json!({"thinking_token_budget": -1})).await.status, 200);
    assert_eq!(chat(&saying("Hi.", QWEN3).await, json!({"thinking_token_budget": 5})).await.status, 200);
}

/// Seen at vLLM's own front end: its messages endpoint leaves `tool_choice` null where no tools are offered, and null is a parser's "auto". A
/// whole message has the text without the calls then, and a stream has both.
#[tokio::test]
async fn calls_are_found_in_messages_that_offer_no_tools_and_not_in_chats() {
    let server = saying(CALLS, HERMES).await;
    let asked = |choice: Value| {
        let mut body = json!({"model": "m", "max_tokens": 90, "messages": [{"role": "user", "content": "Hi"}]});
        body.as_object_mut().unwrap().extend(choice.as_object().unwrap().clone());
        body
    };
    let kinds = |answer: Answer| {
        let content = answer.json()["content"].as_array().unwrap().clone();
        content.iter().map(|block| block["type"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let message = |body: Value| async move { client::send(server.address, &client::post("/v1/messages", &body)).await };
    let answer = message(asked(json!({}))).await;
    assert_eq!(answer.json()["stop_reason"], "end_turn");
    assert_eq!(kinds(answer), ["text"]);
    let server = saying(CALLS, HERMES).await;
    let message = |body: Value| async move { client::send(server.address, &client::post("/v1/messages", &body)).await };
    let stream = message(asked(json!({"stream": true}))).await;
    assert_eq!(stream.text().matches("\"type\":\"tool_use\"").count(), 2);
    let server = saying(CALLS, HERMES).await;
    let message = |body: Value| async move { client::send(server.address, &client::post("/v1/messages", &body)).await };
    assert_eq!(kinds(message(asked(json!({"tool_choice": {"type": "none"}}))).await), ["text"]);
    let server = saying(CALLS, HERMES).await;
    let answer = chat(&server, json!({"max_tokens": 90})).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], CALLS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_counts_the_reasoning_of_its_stream_also_where_no_token_ends_it() {
    for parser in ["qwen3", "deepseek_r1"] {
        let play = Running::start(&[
            "play",
            "--port",
            "0",
            "--instant",
            "--synthetic",
            "random",
            "--reasoning-parser",
            parser,
        ]);
        for more in [json!({}), json!({"max_tokens": 7}), json!({"n": 2}), json!({"seed": 5})] {
            let mut body = json!({"messages": [{"role": "user", "content": "hello"}], "seed": 3});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let whole = play.send(CHAT, &body).await.json()["usage"]["completion_tokens_details"].clone();
            body["stream"] = true.into();
            body["stream_options"] = json!({"include_usage": true});
            let streamed = play.send(CHAT, &body).await;
            let text = streamed.text();
            let events = text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok());
            let events: Vec<Value> = events.collect();
            let usage = &events.last().unwrap()["usage"];
            assert_eq!(whole, usage["completion_tokens_details"], "{parser} {more}");
            let count = whole["reasoning_tokens"].as_u64().unwrap();
            assert!(count > 0 && (more != json!({}) || count < 128), "{parser} {more}: {count}");
        }
    }
}
