//! What becomes of a Responses request: its prompt, what it repeats, and what a server that keeps nothing refuses.

use std::time::Duration;

use serde_json::{Value, json};
use vllm_vcr::{recording::trace::FinishReason, replay::matching::MatchBy};

use crate::support::{
    client::{self, Answer},
    play_server,
};

const PATH: &str = "/v1/responses";

async fn server() -> play_server::Server {
    let tokenizer = play_server::tokenizer();
    let ids = tokenizer.encode("Hello there.", vllm_vcr::text::prompt::SpecialTokens::Skip).unwrap();
    let record = play_server::record(&ids, Duration::ZERO, FinishReason::Stop);
    play_server::start(play_server::config(&[MatchBy::Next], vec![record])).await
}

async fn ask(body: &Value) -> Answer {
    client::send(server().await.address, &client::post(PATH, body)).await
}

/// Both families must come to the same prompt.
async fn same_prompt(body: Value, messages: Value) {
    let answer = ask(&body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let chat = json!({"messages": messages});
    let chat = client::send(server().await.address, &client::post("/v1/chat/completions", &chat)).await.json();
    assert_eq!(answer.json()["usage"]["input_tokens"], chat["usage"]["prompt_tokens"], "{body}");
}

#[tokio::test]
async fn items_come_to_the_chat_that_they_stand_for() {
    let user = json!({"role": "user", "content": "Hi"});
    same_prompt(
        json!({"input": "Hi", "instructions": "Be brief."}),
        json!([{"role": "system", "content": "Be brief."}, user]),
    )
    .await;
    same_prompt(
        json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]}, user]}),
        json!([user, {"role": "assistant", "content": "Hello."}, user]),
    )
    .await;
    same_prompt(
        json!({"input": [user, {"type": "function_call_output", "call_id": "c", "output": "sunny"}]}),
        json!([user, {"role": "tool", "tool_call_id": "c", "content": "sunny"}]),
    )
    .await;
}

#[tokio::test]
async fn a_response_repeats_its_request() {
    let function = json!({"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}});
    let body = json!({"input": "Hi", "tools": [function], "tool_choice": "none", "temperature": 0, "metadata": {"a": "b"},
        "reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "max_output_tokens": 9, "request_id": "mine"});
    let answer = ask(&body).await.json();
    assert_eq!(
        answer["tools"].to_string(),
        r#"[{"name":"f","parameters":{"type":"object"},"strict":null,"type":"function","allowed_callers":null,"async":null,"defer_loading":null,"description":"d","output_schema":null}]"#
    );
    let search = ask(&json!({"input": "Hi", "tools": [{"type": "web_search"}], "tool_choice": "none"})).await.json();
    assert_eq!(
        search["tools"].to_string(),
        r#"[{"type":"web_search","external_web_access":null,"filters":null,"search_context_size":null,"user_location":null}]"#
    );
    assert_eq!(
        answer["reasoning"].to_string(),
        r#"{"context":null,"effort":"low","generate_summary":null,"mode":null,"summary":null}"#
    );
    assert_eq!(answer["text"].to_string(), r#"{"format":null,"verbosity":"low"}"#);
    assert_eq!(answer["temperature"].to_string(), "0.0");
    assert_eq!((&answer["id"], &answer["max_output_tokens"]), (&json!("mine"), &json!(9)));
    assert_eq!(answer["metadata"], json!({"a": "b"}));
    assert_eq!(answer["status"], "completed");
}

#[tokio::test]
async fn nothing_is_kept() {
    let missing = |id: &str| {
        format!(
            r#"{{"error":{{"message":"Response with id '{id}' not found.","type":"invalid_request_error","param":"response_id","code":404}}}}"#
        )
    };
    let server = server().await;
    let got = client::send(server.address, &client::get("/v1/responses/resp_1")).await;
    assert_eq!((got.status, got.text()), (404, missing("resp_1")));
    let cancel = client::Request { method: "POST", ..client::get("/v1/responses/resp_2/cancel") };
    let got = client::send(server.address, &cancel).await;
    assert_eq!((got.status, got.text()), (404, missing("resp_2")));
    let wrong = client::Request { method: "DELETE", ..client::get("/v1/responses/resp_1") };
    assert_eq!(client::send(server.address, &wrong).await.status, 405);
    let follows = ask(&json!({"input": "Hi", "previous_response_id": "resp_3"})).await;
    assert_eq!((follows.status, follows.text()), (404, missing("resp_3")));
    let twice = ask(&json!({"input": "Hi", "previous_response_id": "resp_3", "previous_input_messages": [{}]})).await;
    assert_eq!(
        twice.json()["error"],
        json!({"message": "Only one of `previous_input_messages` and `previous_response_id` can be set.",
            "type": "invalid_request_error", "param": "previous_response_id", "code": 400})
    );
    let background = ask(&json!({"input": "Hi", "background": true})).await;
    assert_eq!(background.status, 400);
    assert_eq!(
        background.text(),
        r#"{"error":{"message":"This vLLM engine does not support `store=True` and therefore does not support the background mode. To enable these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server.","type":"invalid_request_error","param":"background","code":400}}"#
    );
}

#[tokio::test]
async fn what_is_refused_names_its_parameter() {
    let answer = ask(&json!({"input": [{"type": "item_reference", "id": "x"}]})).await;
    assert_eq!(
        answer.json()["error"]["message"],
        "Unsupported input item type: item_reference (parameter=input)",
        "{}",
        answer.text()
    );
    let answer = ask(&json!({"input": "Hi", "max_output_tokens": 100_000})).await.json();
    assert_eq!(answer["error"]["param"], "max_output_tokens", "{answer}");
    assert_eq!(ask(&json!({"input": "Hi", "model": "nope", "background": true})).await.status, 404);
}

#[tokio::test]
async fn a_stream_opens_before_its_first_token() {
    let tokenizer = play_server::tokenizer();
    let ids = tokenizer.encode("Hello there.", vllm_vcr::text::prompt::SpecialTokens::Skip).unwrap();
    let record = play_server::record(&ids, Duration::from_secs(3600), FinishReason::Stop);
    let config = vllm_vcr::play::Config {
        pacing: vllm_vcr::replay::timing::Pacing::Recorded { scale: vllm_vcr::base::units::TimeScale::REAL },
        ..play_server::config(&[MatchBy::Next], vec![record])
    };
    let server = play_server::start(config).await;
    let request = client::post(PATH, &json!({"input": "Hi", "stream": true}));
    let mut stream = client::open(server.address, &request).await;
    let mut got = String::new();
    while !got.contains("response.in_progress") {
        let mut bytes = [0; 4096];
        let count = tokio::io::AsyncReadExt::read(&mut stream, &mut bytes).await.unwrap();
        assert!(count > 0, "{got}");
        got.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
}
