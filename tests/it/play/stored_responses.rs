//! Responses that are kept: retrieved, cancelled, followed by others and made in the background.

use std::time::Duration;

use serde_json::{Value, json};
use vllm_vcr::{
    base::units::TimeScale,
    play::{Config, ServerOptions},
    recording::trace::FinishReason,
    replay::matching::MatchBy,
    replay::timing::Pacing,
    text::prompt::SpecialTokens,
};

use crate::support::{
    client::{self, Answer},
    play_server,
};

const PATH: &str = "/v1/responses";

/// A server that keeps responses; each says "Hello there." with this time between its tokens.
async fn server(gap: Duration) -> play_server::Server {
    let ids = play_server::tokenizer().encode("Hello there.", SpecialTokens::Skip).unwrap();
    let record = play_server::record(&ids, gap, FinishReason::Stop);
    let config = play_server::config(&[MatchBy::Next], vec![record]);
    let server = ServerOptions { responses_store: true, ..config.server };
    let pacing = Pacing::Recorded { scale: TimeScale::REAL };
    play_server::start(Config { server, pacing, ..config }).await
}

async fn ask(server: &play_server::Server, body: &Value) -> Answer {
    client::send(server.address, &client::post(PATH, body)).await
}

async fn retrieve(server: &play_server::Server, id: &str) -> Answer {
    client::send(server.address, &client::get(&format!("{PATH}/{id}"))).await
}

async fn cancel(server: &play_server::Server, id: &str) -> Answer {
    let path = format!("{PATH}/{id}/cancel");
    client::send(server.address, &client::Request { method: "POST", ..client::get(&path) }).await
}

#[tokio::test]
async fn a_response_is_retrieved_as_it_was_answered() {
    let server = server(Duration::ZERO).await;
    let told = ask(&server, &json!({"input": "Hi"})).await;
    let id = told.json()["id"].as_str().unwrap().to_owned();
    let got = retrieve(&server, &id).await;
    assert_eq!((got.status, got.text()), (200, told.text()));
    let refused = cancel(&server, &id).await;
    assert_eq!(
        (refused.status, refused.text().as_str()),
        (
            400,
            r#"{"error":{"message":"Cannot cancel a synchronous response.","type":"invalid_request_error","param":"response_id","code":400}}"#
        )
    );
    let streamed = ask(&server, &json!({"input": "Hi", "stream": true, "request_id": "s"})).await;
    let last: Value = serde_json::from_str(streamed.events().last().unwrap().split_once("data: ").unwrap().1).unwrap();
    assert_eq!(retrieve(&server, "s").await.json(), last["response"]);
    ask(&server, &json!({"input": "Hi", "store": false, "request_id": "u"})).await;
    let missing = retrieve(&server, "u").await;
    assert_eq!(
        (missing.status, missing.text().as_str()),
        (
            404,
            r#"{"error":{"message":"Response with id 'u' not found.","type":"invalid_request_error","param":"response_id","code":404}}"#
        )
    );
}

#[tokio::test]
async fn an_id_in_a_path_may_be_percent_encoded() {
    let server = server(Duration::ZERO).await;
    let answered = ask(&server, &json!({"input": "Hi"})).await;
    let id = answered.json()["id"].as_str().unwrap().to_owned();
    let encoded = id.replacen('_', "%5F", 1);
    assert_ne!(encoded, id);
    assert_eq!(retrieve(&server, &encoded).await.text(), answered.text());
    assert!(cancel(&server, &encoded).await.text().contains("Cannot cancel a synchronous response."));
    // A slash would end the id, and what is no URI path is compared as it was sent.
    ask(&server, &json!({"input": "Hi", "request_id": "a?b"})).await;
    assert_eq!(retrieve(&server, "a%3Fb").await.status, 200);
}

#[tokio::test]
async fn a_conversation_goes_on_after_a_response() {
    let server = server(Duration::ZERO).await;
    ask(&server, &json!({"input": "Hi", "instructions": "Be brief.", "request_id": "a"})).await;
    let follows = json!({"input": "And?", "instructions": "Be long.", "previous_response_id": "a", "request_id": "b"});
    let follows = ask(&server, &follows).await.json();
    assert_eq!(follows["previous_response_id"], "a");
    let (hi, hello) =
        (json!({"role": "user", "content": "Hi"}), json!({"role": "assistant", "content": "Hello there."}));
    let and = json!({"role": "user", "content": "And?"});
    let count = async |messages: Value| {
        let chat = client::post("/v1/chat/completions", &json!({"messages": messages}));
        client::send(server.address, &chat).await.json()["usage"]["prompt_tokens"].clone()
    };
    let expected = count(json!([{"role": "system", "content": "Be long."}, hi, hello, and])).await;
    assert_eq!(follows["usage"]["input_tokens"], expected);
    let third = ask(&server, &json!({"input": "So?", "previous_response_id": "b"})).await.json();
    let expected = count(json!([hi, hello, and, hello, {"role": "user", "content": "So?"}])).await;
    assert_eq!(third["usage"]["input_tokens"], expected);
    assert_eq!(ask(&server, &json!({"input": "So?", "previous_response_id": "c"})).await.status, 404);
}

#[tokio::test]
async fn a_response_in_the_background_is_made_without_a_waiting_client() {
    let server = server(Duration::ZERO).await;
    let queued = ask(&server, &json!({"input": "Hi", "background": true})).await.json();
    assert_eq!((&queued["status"], &queued["output"]), (&json!("queued"), &json!([])));
    assert_eq!((&queued["background"], &queued["usage"]), (&json!(true), &Value::Null));
    let id = queued["id"].as_str().unwrap();
    let done = loop {
        let got = retrieve(&server, id).await.json();
        if got["status"] != "queued" {
            break got;
        }
    };
    assert_eq!(done["status"], "completed");
    assert_eq!(done["output"][0]["content"][0]["text"], "Hello there.");
    assert_eq!((&done["id"], &done["created_at"]), (&queued["id"], &queued["created_at"]));
}

#[tokio::test]
async fn a_response_in_the_background_is_cancelled() {
    let server = server(Duration::from_secs(3600)).await;
    ask(&server, &json!({"input": "Hi", "background": true, "request_id": "a"})).await;
    assert_eq!(retrieve(&server, "a").await.json()["status"], "queued");
    let gone = cancel(&server, "a").await;
    assert_eq!((gone.status, &gone.json()["status"]), (200, &json!("cancelled")));
    assert_eq!(retrieve(&server, "a").await.text(), gone.text());
    assert_eq!(cancel(&server, "a").await.status, 400);
    // Its stream ends with it, instead of never.
    let body = json!({"input": "Hi", "background": true, "stream": true, "request_id": "b"});
    let request = client::post(PATH, &body);
    let stream = client::send(server.address, &request);
    let cancelling = async {
        while cancel(&server, "b").await.status != 200 {
            tokio::task::yield_now().await;
        }
    };
    let (stream, ()) = tokio::join!(stream, cancelling);
    assert!(!stream.text().contains("response.completed"), "{}", stream.text());
}

#[tokio::test]
async fn events_of_the_background_are_sent_again() {
    let server = server(Duration::ZERO).await;
    let body = json!({"input": "Hi", "background": true, "stream": true, "request_id": "a"});
    let told = ask(&server, &body).await.events();
    assert!(told.last().unwrap().starts_with("event: response.completed"), "{told:?}");
    let again = async |query: &str| retrieve(&server, &format!("a?{query}")).await;
    assert_eq!(again("stream=true").await.events(), told);
    assert_eq!(again("stream=true&starting_after=1").await.events(), told[2..]);
    assert_eq!(again("stream=false").await.json()["status"], "completed");
    let refused = again("stream=maybe&starting_after=x").await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("starting_after"), "{}", refused.text());
}
