//! What becomes of a Messages request: its prompt, its stops, and errors in its own envelope.

use std::time::Duration;

use serde_json::{Value, json};
use vllm_vcr::{
    recording::trace::{FinishReason, Record},
    replay::matching::MatchBy,
};

use crate::support::{client, play_server};

const PATH: &str = "/v1/messages";

async fn server(records: Vec<Record>) -> play_server::Server {
    play_server::start(play_server::config(&[MatchBy::Next], records)).await
}

fn text_record(text: &str, finish: FinishReason) -> Record {
    let tokenizer = play_server::tokenizer();
    let ids = tokenizer.encode(text, vllm_vcr::text::prompt::SpecialTokens::Skip).unwrap();
    play_server::record(&ids, Duration::ZERO, finish)
}

async fn prompt_tokens(server: &play_server::Server, path: &str, body: &Value) -> u64 {
    let answer = client::send(server.address, &client::post(path, body)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let json = answer.json();
    json["input_tokens"].as_u64().or(json["usage"]["prompt_tokens"].as_u64()).unwrap()
}

/// Both families must come to the same prompt.
async fn same_prompt(messages: Value, chat: Value) {
    let server = server(vec![text_record("Hello.", FinishReason::Stop)]).await;
    let counted = prompt_tokens(&server, "/v1/messages/count_tokens", &messages).await;
    assert_eq!(counted, prompt_tokens(&server, "/v1/chat/completions", &chat).await, "{messages}");
}

#[tokio::test]
async fn blocks_come_to_the_chat_that_they_stand_for() {
    let user = |content: &str| json!({"role": "user", "content": content});
    same_prompt(
        json!({"model": "m", "system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": " Rhyme."}],
               "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello there"}]}]}),
        json!({"messages": [{"role": "system", "content": "Be brief. Rhyme."}, user("Hello there")]}),
    )
    .await;
    same_prompt(
        json!({"model": "m", "system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}],
               "messages": [user("Hello there")]}),
        json!({"messages": [user("Hello there")]}),
    )
    .await;
    same_prompt(
        json!({"model": "m", "messages": [user("Hi"), {"role": "assistant", "content": [
            {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "Hello."}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [
                {"type": "text", "text": "sunny"}, {"type": "text", "text": "warm"}]}]}]}),
        json!({"messages": [user("Hi"), {"role": "assistant", "content": "Hello."},
            {"role": "tool", "tool_call_id": "t", "content": "sunny\nwarm"}]}),
    )
    .await;
}

#[tokio::test]
async fn a_stop_sequence_is_named() {
    let server = server(vec![text_record("One two three four", FinishReason::Stop)]).await;
    let body = json!({"model": "m", "max_tokens": 50, "stop_sequences": [" three"],
                      "messages": [{"role": "user", "content": "count"}]});
    let answer = client::send(server.address, &client::post(PATH, &body)).await.json();
    assert_eq!(answer["stop_reason"], "stop_sequence", "{answer}");
    assert_eq!(answer["stop_sequence"], " three");
    assert_eq!(answer["content"], json!([{"type": "text", "text": "One two"}]));
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let events = client::send(server.address, &client::post(PATH, &streamed)).await.events();
    let delta = &events[events.len() - 2];
    assert!(delta.contains(r#""delta":{"stop_reason":"stop_sequence","stop_sequence":" three"}"#), "{delta}");
}

#[tokio::test]
async fn a_message_without_text_has_an_empty_block() {
    let eos = play_server::tokenizer().eos_ids()[0];
    let server = server(vec![play_server::record(&[eos], Duration::ZERO, FinishReason::Stop)]).await;
    let body = json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]});
    let answer = client::send(server.address, &client::post(PATH, &body)).await.json();
    assert_eq!(answer["content"], json!([{"type": "text", "text": ""}]), "{answer}");
}

#[tokio::test]
async fn what_the_handler_refuses_has_the_familys_envelope() {
    let server = server(vec![text_record("Hello.", FinishReason::Stop)]).await;
    let user = json!([{"role": "user", "content": "x"}]);
    for path in [PATH, "/v1/messages/count_tokens"] {
        let body = json!({"model": "nope", "max_tokens": 5, "messages": user});
        let answer = client::send(server.address, &client::post(path, &body)).await;
        assert_eq!(answer.status, 404);
        assert_eq!(
            answer.text(),
            r#"{"type":"error","error":{"type":"NotFoundError","message":"The model `nope` does not exist. Valid aliases: m."}}"#
        );
    }
    let body = json!({"model": "m", "max_tokens": 5, "temperature": 3.5, "messages": user});
    let answer = client::send(server.address, &client::post(PATH, &body)).await.json();
    assert_eq!(answer["type"], "error", "{answer}");
    assert_eq!(answer["error"]["type"], "BadRequestError");
    let change = json!([{"role": "system", "content": [
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}]}]);
    let body = json!({"model": "m", "max_tokens": 5, "messages": change});
    let answer = client::send(server.address, &client::post(PATH, &body)).await.json();
    let said = "tool_removal references tool 'f', which is not declared in tools";
    assert_eq!(answer["error"]["message"], said, "{answer}");
}

#[tokio::test]
async fn a_failure_in_the_middle_is_an_error_event_and_the_end() {
    let server = server(vec![text_record("Hello there", FinishReason::Error)]).await;
    let body = json!({"model": "m", "max_tokens": 50, "stream": true, "messages": [{"role": "user", "content": "x"}]});
    let events = client::send(server.address, &client::post(PATH, &body)).await.events();
    let last = events.last().unwrap();
    assert!(
        last.starts_with("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"internal_error\""),
        "{last}"
    );
    assert_eq!(events.iter().filter(|event| event.contains("message_stop")).count(), 0);
}

#[tokio::test]
async fn a_choice_among_no_tools_needs_a_parser_all_the_same() {
    let plain = server(vec![text_record("Hello.", FinishReason::Stop)]).await;
    let asked = async |server: &play_server::Server, more: Value| {
        let mut body = json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client::send(server.address, &client::post(PATH, &body)).await
    };
    let auto = r#""auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set"#;
    let required = r#"tool_choice="required" requires --tool-call-parser to be set"#;
    let named = r#"tool_choice=function "f" requires --tool-call-parser to be set"#;
    for (more, message) in [
        (json!({"tools": []}), auto),
        (json!({"tool_choice": {"type": "auto"}}), auto),
        (json!({"tool_choice": {"type": "any"}, "tools": []}), required),
        (json!({"tool_choice": {"type": "tool", "name": "f"}}), named),
    ] {
        let answer = asked(&plain, more.clone()).await;
        assert_eq!((answer.status, &answer.json()["error"]["message"]), (400, &json!(message)), "{more}");
    }
    let none = json!({"tool_choice": {"type": "none"}, "tools": []});
    assert_eq!(asked(&plain, none).await.status, 200);
    let config = play_server::config(&[MatchBy::Next], vec![text_record("Hello.", FinishReason::Stop)]);
    let hermes = vllm_vcr::text::parsers::ToolFormat::Hermes;
    let parsers = vllm_vcr::text::parsers::Formats { reasoning: None, tools: Some(hermes) };
    let parsing = play_server::start(vllm_vcr::play::Config { parsers, ..config }).await;
    assert_eq!(asked(&parsing, json!({"tools": []})).await.status, 200);
    let unknown = json!({"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "tool", "name": "g"}});
    let message = "The tool with name 'g' is not found in the tools list.";
    assert_eq!(asked(&parsing, unknown).await.json()["error"]["message"], message);
}
