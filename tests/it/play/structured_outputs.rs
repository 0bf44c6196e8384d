//! Made-up text that has to conform, as a client gets it: schemas, forced calls of tools, and beside a reasoning parser.

use serde_json::{Value, json};
use vllm_vcr::{
    play::{Config, Source, Synthetic, TokenizerSource},
    text::parsers::{Formats, ReasoningFormat, ToolFormat},
};

use crate::support::{
    client::{self, Answer},
    play_server::{self, Server},
    tokenizers::qwen3,
};

async fn server(parsers: Formats, tokenizer: TokenizerSource) -> Server {
    let source = Source::Synthetic(Synthetic::Random);
    play_server::start(Config { source, parsers, tokenizer, ..play_server::config(&[], Vec::new()) }).await
}

fn hermes() -> Formats {
    Formats { tools: Some(ToolFormat::Hermes), ..Formats::default() }
}

async fn chat(server: &Server, mut body: Value) -> Answer {
    body["messages"] = json!([{"role": "user", "content": "Hi"}]);
    let answer = client::send(server.address, &client::post("/v1/chat/completions", &body)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

/// The deltas of a stream's events.
fn deltas(answer: &Answer) -> Vec<Value> {
    let read = |event: &String| serde_json::from_str::<Value>(event.trim_start_matches("data: ")).ok();
    let delta = |mut event: Value| Some(event["choices"].get_mut(0)?["delta"].take());
    answer.events().iter().filter_map(read).filter_map(delta).collect()
}

/// A member of all deltas, put together.
fn joined(deltas: &[Value], pointer: &str) -> String {
    deltas.iter().filter_map(|delta| delta.pointer(pointer)?.as_str()).collect()
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "kind": {"enum": ["cat", "dog"]},
        },
        "required": ["name", "age", "kind"],
        "additionalProperties": false,
    })
}

fn with_schema(mut body: Value) -> Value {
    body["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "pet", "schema": schema()}});
    body
}

fn conforms(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    assert!(jsonschema::is_valid(&schema(), &value), "{text}");
}

#[tokio::test]
async fn an_answer_fits_its_schema() {
    let server = server(Formats::default(), TokenizerSource::BuiltIn).await;
    for seed in 0..3 {
        let whole = chat(&server, with_schema(json!({"seed": seed}))).await.json();
        conforms(whole["choices"][0]["message"]["content"].as_str().unwrap());
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
        let streamed = chat(&server, with_schema(json!({"seed": seed, "stream": true}))).await;
        conforms(&joined(&deltas(&streamed), "/content"));
    }
}

#[tokio::test]
async fn a_forced_call_is_one_that_can_be_made() {
    let server = server(hermes(), TokenizerSource::BuiltIn).await;
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let other = json!({"type": "object", "properties": {"at": {"enum": ["sea", "sky"]}}, "required": ["at"],
        "additionalProperties": false});
    let tools = json!([tool("adopt", schema()), tool("look", other.clone())]);
    let schema_of = |name: &str| if name == "adopt" { schema() } else { other.clone() };
    let named = json!({"type": "function", "function": {"name": "adopt"}});
    for choice in [json!("required"), named] {
        let body = json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": false});
        let whole = chat(&server, body.clone()).await.json();
        let call = &whole["choices"][0]["message"]["tool_calls"][0]["function"];
        let mut streaming = body;
        streaming["stream"] = true.into();
        let deltas = deltas(&chat(&server, streaming).await);
        let streamed = json!({
            "name": joined(&deltas, "/tool_calls/0/function/name"),
            "arguments": joined(&deltas, "/tool_calls/0/function/arguments"),
        });
        for call in [call, &streamed] {
            let name = call["name"].as_str().unwrap_or_else(|| panic!("{choice}: {whole}"));
            assert!(choice == "required" || name == "adopt", "{choice}: {name}");
            let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
            assert!(jsonschema::is_valid(&schema_of(name), &arguments), "{name}: {arguments}");
        }
    }
}

#[tokio::test]
async fn what_conforms_is_content_behind_the_reasoning() {
    let Some(tokenizer) = qwen3() else { return };
    let formats = Formats { reasoning: Some(ReasoningFormat::Qwen3), tools: None };
    let server = server(formats, TokenizerSource::Loaded(tokenizer)).await;
    let whole = chat(&server, with_schema(json!({"seed": 1}))).await.json();
    let message = &whole["choices"][0]["message"];
    conforms(message["content"].as_str().unwrap_or_else(|| panic!("{message}")));
    let reasoning = message["reasoning"].as_str().unwrap();
    assert!(!reasoning.is_empty() && !reasoning.contains('{'), "{message}");
    let deltas = deltas(&chat(&server, with_schema(json!({"seed": 1, "stream": true}))).await);
    conforms(&joined(&deltas, "/content"));
    assert_eq!(joined(&deltas, "/reasoning"), reasoning);
}

/// One request of many texts: the others are answered while it is worked on.
#[tokio::test]
async fn many_texts_of_one_request_hold_up_no_other() {
    let server = server(Formats::default(), TokenizerSource::BuiltIn).await;
    let send = async |mut body: Value, text: &str| {
        body["messages"] = json!([{"role": "user", "content": text}]);
        client::send(server.address, &client::post("/v1/chat/completions", &body)).await
    };
    let many = json!({"n": 400, "max_tokens": 2000, "structured_outputs": {"regex": "(?:a|b|c)*"}});
    let long_prompt = "hello world ".repeat(1500);
    let others = async {
        // The texts of the others are under way.
        send(json!({"structured_outputs": {"regex": "a"}}), "Hi").await;
        let long = send(json!({"max_tokens": 5}), &long_prompt).await;
        let short = send(with_schema(json!({"seed": 1})), "Hi").await;
        (long.status, short.json())
    };
    let all_of_many = futures_util::future::join_all((0..4).map(|_| send(many.clone(), "Hi")));
    tokio::select! {
        biased;
        _ = all_of_many => panic!("thousands of texts come before the one"),
        (long, short) = others => {
            assert_eq!(long, 200);
            conforms(short["choices"][0]["message"]["content"].as_str().unwrap());
        }
    }
}

/// vLLM stays with the library of its first constraint: one that only the other one takes is then compiled by it, or fails.
#[tokio::test]
async fn what_the_library_of_the_first_constraint_cannot_compile_fails() {
    let failing = [
        json!({"regex": r"\p{Lu}{3}"}),
        json!({"regex": "(?i)hello"}),
        json!({"json": {"type": "number", "exclusiveMinimum": true}}),
        json!({"json": {"type": "integer", "minimum": 1.5}}),
        json!({"json": {"type": "object", "properties": {"a": {"type": "string", "pattern": r"^\p{Lu}"}}}}),
        json!({"json": {"$ref": "#"}}),
        json!({"json": {"type": "string", "minLength": -1}}),
        json!({"grammar": "root ::= "}),
        json!({"grammar": "root ::= \"a\" |"}),
    ];
    let ask = async |server: &Server, constraint: &Value, stream: bool| {
        let body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 30, "stream": stream,
            "structured_outputs": constraint});
        client::send(server.address, &client::post("/v1/chat/completions", &body)).await
    };
    let usual = server(hermes(), TokenizerSource::BuiltIn).await;
    let other = server(hermes(), TokenizerSource::BuiltIn).await;
    assert_eq!(ask(&usual, &json!({"regex": r"\d{3}"}), false).await.status, 200);
    assert_eq!(ask(&usual, &json!({"json": {"type": "integer", "multipleOf": 3}}), false).await.status, 200);
    let error = json!({"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500});
    for constraint in failing {
        let answer = ask(&usual, &constraint, false).await;
        assert_eq!((answer.status, &answer.json()["error"]), (500, &error), "{constraint}");
        let events = ask(&usual, &constraint, true).await.events();
        let [failure, done] = &events[..] else { panic!("{constraint}: {events:?}") };
        assert_eq!(
            failure,
            &format!("data: {}", json!({"error": error})).replace("\":", "\": ").replace(",\"", ", \"")
        );
        assert_eq!(done, "data: [DONE]");
        assert_eq!(ask(&other, &constraint, false).await.status, 200, "{constraint}");
    }
}
