//! Faults in what the model says: every kind, on every wire that can say it.

use serde_json::{Value, json};
use vllm_vcr::faults::{CATALOGUE, FaultStage};

use crate::support::{
    client::{self, post},
    running::Running,
};

fn chat() -> Value {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    json!({"messages": [{"role": "user", "content": "hi"}],
           "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]})
}

async fn faulted(play: &Running, path: &str, kind: &str, body: &Value) -> client::Answer {
    let mut request = post(path, body);
    request.headers.push(("x-vcr-fault", kind));
    client::send(play.address, &request).await
}

#[tokio::test]
async fn every_kind_is_an_answer_in_a_valid_form() {
    let play = Running::start(&["play", "--port", "0", "--instant", "--fault-headers"]);
    let kinds: Vec<&str> = CATALOGUE.iter().filter(|row| row.stage == FaultStage::Reply).map(|row| row.name).collect();
    assert_eq!(kinds.len(), 13);
    for kind in kinds {
        let answer = faulted(&play, "/v1/chat/completions", kind, &chat()).await;
        let whole = answer.json();
        assert_eq!(answer.status, 200, "{kind}: {whole}");
        assert!(whole["model"].is_string() && whole["choices"][0]["finish_reason"].is_string(), "{kind}: {whole}");
        let mut streamed = chat();
        streamed["stream"] = true.into();
        let events = faulted(&play, "/v1/chat/completions", kind, &streamed).await.events();
        assert_eq!(events.last().unwrap(), "data: [DONE]", "{kind}");
        for event in events.iter().filter(|event| *event != "data: [DONE]") {
            let data: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
            assert!(data["choices"].is_array(), "{kind}: {event}");
        }
    }
}

#[tokio::test]
async fn calls_are_wrong_in_the_named_way() {
    let play = Running::start(&["play", "--port", "0", "--instant", "--fault-headers"]);
    let calls = async |kind: &str| {
        let answer = faulted(&play, "/v1/chat/completions", kind, &chat()).await.json();
        answer["choices"][0]["message"]["tool_calls"].as_array().cloned().unwrap_or_default()
    };
    let arguments = |call: &Value| serde_json::from_str::<Value>(call["function"]["arguments"].as_str().unwrap());
    assert!(arguments(&calls("bad-arguments").await[0]).is_err());
    assert!(!arguments(&calls("schema-violation").await[0]).unwrap()["a"].is_i64());
    assert_ne!(calls("unknown-tool").await[0]["function"]["name"], "f");
    let twice = calls("duplicate-call").await;
    assert_eq!(twice[0]["id"], twice[1]["id"]);
}

#[tokio::test]
async fn what_a_wire_cannot_say_is_refused_with_the_reason() {
    let play = Running::start(&["play", "--port", "0", "--instant", "--fault-headers"]);
    let refused = faulted(&play, "/v1/completions", "unknown-tool", &json!({"prompt": "a"})).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("a completion has no tool calls"), "{}", refused.text());
    let without = faulted(
        &play,
        "/v1/chat/completions",
        "bad-arguments",
        &json!({"messages": [{"role": "user", "content": "a"}]}),
    )
    .await;
    assert_eq!(without.status, 400, "{}", without.text());
    assert_eq!(play.get("/vcr/faults").await["hits"], json!([]));
}

#[tokio::test]
async fn a_reply_can_have_faults_in_its_stream_too() {
    let faults = ["--fault", "refusal where prompt=hi", "--fault", "no-done"];
    let play = Running::start(&[&["play", "--port", "0", "--instant"][..], &faults].concat());
    let mut streamed = chat();
    streamed["stream"] = true.into();
    let text = play.send("/v1/chat/completions", &streamed).await.text();
    assert!(text.contains("data: {") && !text.contains("[DONE]"), "{text}");
}
