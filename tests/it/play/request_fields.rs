//! Request fields that shape an answer, where no golden shows them.

use std::num::NonZeroU32;

use serde_json::{Value, json};
use vllm_vcr::{
    api::RequestTemplates,
    play::{Config, VllmVersion},
    recording::trace::{FinishReason, Record},
    replay::matching::MatchBy,
    text::prompt::SpecialTokens,
};

use crate::support::{
    client::{self, Answer},
    play_server::{self, Server},
};

const TEXT: &str = "The river runs to the sea and the sea does not mind.";

fn saying() -> Record {
    let ids = play_server::tokenizer().encode(TEXT, SpecialTokens::Skip).unwrap();
    play_server::record(&ids, std::time::Duration::ZERO, FinishReason::Length)
}

async fn server() -> Server {
    play_server::start(play_server::config(&[MatchBy::Next], vec![saying()])).await
}

async fn post(server: &Server, path: &str, body: Value) -> Answer {
    client::send(server.address, &client::post(path, &body)).await
}

async fn complete(server: &Server, body: Value) -> Answer {
    post(server, "/v1/completions", body).await
}

async fn chat(server: &Server, mut body: Value) -> Answer {
    body["messages"] = json!([{"role": "user", "content": "Hi"}]);
    post(server, "/v1/chat/completions", body).await
}

/// The choices of a stream's events.
fn choices(answer: &Answer) -> Vec<Value> {
    let read = |event: &String| serde_json::from_str::<Value>(event.trim_start_matches("data: ")).ok();
    answer.events().iter().filter_map(read).filter_map(|mut event| Some(event["choices"].get_mut(0)?.take())).collect()
}

#[tokio::test]
async fn a_prompt_is_cut_from_the_side_that_was_named() {
    let server = server().await;
    for (cut, kept) in [
        (json!({"truncate_prompt_tokens": 2}), vec![13, 14]),
        (json!({"truncate_prompt_tokens": 3, "truncation_side": "right"}), vec![11, 12, 13]),
        (json!({"truncate_prompt_tokens": -1}), vec![11, 12, 13, 14]),
    ] {
        let mut body = cut;
        body["prompt"] = json!([11, 12, 13, 14]);
        body["return_token_ids"] = json!(true);
        let answer = complete(&server, body).await.json();
        assert_eq!(answer["choices"][0]["prompt_token_ids"], json!(kept));
        assert_eq!(answer["usage"]["prompt_tokens"], json!(kept.len()));
    }
    let long = "sea ".repeat(9000);
    let body = json!({"prompt": long, "truncate_prompt_tokens": -1, "max_tokens": 5, "return_token_ids": true});
    let answer = complete(&server, body).await.json();
    assert_eq!(answer["usage"]["prompt_tokens"], 4095, "room for one token is left: {answer}");
    let refused = complete(&server, json!({"prompt": "x", "truncate_prompt_tokens": 4097})).await;
    assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some("truncate_prompt_tokens")));
}

#[tokio::test]
async fn the_highest_id_that_the_vocabulary_lacks_is_named() {
    let server = server().await;
    let answer = complete(&server, json!({"prompt": [7, 900_001, 900_003, 900_002]})).await;
    let message = answer.json()["error"]["message"].clone();
    assert_eq!((answer.status, message), (400, json!("Token id 900003 is out of vocabulary")));
}

#[tokio::test]
async fn a_template_in_a_request_is_used_where_requests_are_trusted() {
    let template = "{% for message in messages %}<{{ message.content }}>{% endfor %}";
    let refused = chat(&server().await, json!({"chat_template": template})).await;
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(refused.status, 400);
    assert!(
        message.starts_with("Chat template is passed with request, but --trust-request-chat-template"),
        "{message}"
    );
    let kwargs = json!({"chat_template_kwargs": {"chat_template": template}});
    assert_eq!(chat(&server().await, kwargs.clone()).await.json()["error"]["message"], message);

    let config = play_server::config(&[MatchBy::Next], vec![saying()]);
    let trusting = play_server::start(Config { request_templates: RequestTemplates::Trusted, ..config }).await;
    for mut body in [json!({"chat_template": template}), kwargs] {
        body["return_prompt_text"] = json!(true);
        assert_eq!(chat(&trusting, body).await.json()["prompt_text"], "<Hi>");
    }
    let config = play_server::config(&[MatchBy::Next], vec![saying()]);
    let own = play_server::start(Config { chat_template: Some(template.to_owned()), ..config }).await;
    assert_eq!(chat(&own, json!({"return_prompt_text": true})).await.json()["prompt_text"], "<Hi>", "the server's own");
    let broken = chat(&trusting, json!({"chat_template": "{% for"})).await;
    assert_eq!(broken.status, 400, "{}", broken.text());
}

#[tokio::test]
async fn events_wait_for_the_interval_but_the_first_and_the_last_do_not() {
    let lengths = |answer: &Answer| -> Vec<usize> {
        choices(answer).iter().filter_map(|choice| Some(choice["token_ids"].as_array()?.len())).collect()
    };
    let body = |interval: u32| json!({"prompt": "x", "max_tokens": 9, "stream": true, "return_token_ids": true, "stream_interval": interval});
    let server = server().await;
    let text = |answer: &Answer| {
        choices(answer).iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect::<String>()
    };
    let (single, fours) = (complete(&server, body(1)).await, complete(&server, body(4)).await);
    assert_eq!((lengths(&single), lengths(&fours)), (vec![1; 9], vec![1, 4, 4]));
    assert_eq!(text(&single), text(&fours));
    let config = play_server::config(&[MatchBy::Next], vec![saying()]);
    let threes = play_server::start(Config { stream_interval: NonZeroU32::new(3).unwrap(), ..config }).await;
    assert_eq!(lengths(&complete(&threes, body(1)).await), [1, 3, 3, 2], "a request cannot go below the server's");
}

#[tokio::test]
async fn an_echoed_prompt_has_log_probabilities_too() {
    let server = server().await;
    let body = json!({"prompt": "A sea", "max_tokens": 3, "echo": true, "logprobs": 2});
    let answer = complete(&server, body.clone()).await.json();
    let choice = &answer["choices"][0];
    let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let told = &choice["logprobs"];
    let tokens: Vec<&str> = told["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(tokens.concat(), choice["text"].as_str().unwrap());
    assert_eq!(tokens.len() as u64, prompt + 3);
    assert_eq!((&told["token_logprobs"][0], &told["top_logprobs"][0]), (&Value::Null, &Value::Null));
    assert_eq!(told["text_offset"][1].as_u64().unwrap(), tokens[0].chars().count() as u64);
    assert_eq!(choice["prompt_logprobs"].as_array().unwrap().len() as u64, prompt);

    let mut streamed = body;
    streamed["stream"] = json!(true);
    let events = choices(&complete(&server, streamed).await);
    let gathered = |key: &str| -> Vec<Value> {
        events.iter().flat_map(|choice| choice["logprobs"][key].as_array().cloned().unwrap_or_default()).collect()
    };
    for key in ["text_offset", "token_logprobs", "tokens", "top_logprobs"] {
        assert_eq!(json!(gathered(key)), told[key], "{key}: streamed as in one body");
    }
}

#[tokio::test]
async fn an_older_vllm_tells_other_fields() {
    let config = play_server::config(&[MatchBy::Next], vec![saying()]);
    let old = play_server::start(Config { vllm_version: VllmVersion::V0_19, ..config }).await;
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    let answer = chat(&old, json!({"max_tokens": 2})).await.json();
    assert_eq!(
        keys(&answer),
        "id object created model choices service_tier system_fingerprint usage prompt_logprobs prompt_token_ids \
         kv_transfer_params"
    );
    assert_eq!(keys(&answer["choices"][0]), "index message logprobs finish_reason stop_reason token_ids");
    assert_eq!(
        keys(&answer["choices"][0]["message"]),
        "role content refusal annotations audio function_call tool_calls reasoning"
    );
    assert_eq!(keys(&answer["usage"]), "prompt_tokens total_tokens completion_tokens prompt_tokens_details");
    let answer = complete(&old, json!({"prompt": "x", "max_tokens": 2})).await.json();
    assert_eq!(
        keys(&answer),
        "id object created model choices service_tier system_fingerprint usage kv_transfer_params"
    );
    assert_eq!(
        keys(&answer["choices"][0]),
        "index text logprobs finish_reason stop_reason token_ids prompt_logprobs prompt_token_ids"
    );
    let stream = complete(&old, json!({"prompt": "x", "max_tokens": 2, "stream": true})).await;
    let first: Value = serde_json::from_str(stream.events()[0].trim_start_matches("data: ")).unwrap();
    assert_eq!(keys(&first), "id object created model choices usage");
    assert_eq!(keys(&first["choices"][0]), "index text logprobs finish_reason stop_reason prompt_token_ids token_ids");
    let refused = complete(&old, json!({"prompt": "x", "model": "nope"})).await;
    assert!(refused.text().contains("does not exist.\""), "{}", refused.text());
    let version = client::send(old.address, &client::get("/version")).await;
    assert_eq!(version.text(), r#"{"version":"0.19.1"}"#);
    assert_eq!(client::send(old.address, &client::get("/kv_event_sources")).await.status, 404);
}
