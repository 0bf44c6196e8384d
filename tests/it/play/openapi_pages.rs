//! The pages about the API.

use std::time::Duration;

use serde_json::{Map, Value};
use vllm_vcr::{
    play::{Config, ServerOptions},
    recording::trace::FinishReason,
    replay::matching::MatchBy,
};

use crate::support::{
    client::{self, Answer, Request},
    goldens,
    play_server::{config, record, start},
};

fn served(options: ServerOptions) -> Config {
    let played = config(&[MatchBy::Next], vec![record(&[20], Duration::ZERO, FinishReason::Stop)]);
    Config { server: options, ..played }
}

async fn ask(address: std::net::SocketAddr, method: &str, path: &str) -> Answer {
    client::send(address, &Request { method, path, headers: Vec::new(), body: Vec::new() }).await
}

/// A schema without its descriptions; those of responses are HTTP's own phrases.
fn without_prose(value: &Value, names: bool) -> Value {
    let map = match value {
        Value::Array(items) => return items.iter().map(|item| without_prose(item, false)).collect(),
        Value::Object(map) => map,
        other => return other.clone(),
    };
    let told = |response: &Value| -> Value {
        let parts = response.as_object().unwrap().iter();
        let kept = |(key, item): (&String, &Value)| match key.as_str() {
            "description" => (key.clone(), item.clone()),
            _ => (key.clone(), without_prose(item, false)),
        };
        parts.map(kept).collect::<Map<_, _>>().into()
    };
    let kept = map.iter().filter(|(key, item)| names || *key != "description" || !item.is_string());
    let kept = kept.map(|(key, item)| {
        let item = match key.as_str() {
            "responses" if !names => {
                item.as_object().unwrap().iter().map(|(status, item)| (status.clone(), told(item))).collect()
            }
            "properties" | "schemas" | "paths" | "patternProperties" if !names => without_prose(item, true),
            _ => without_prose(item, false),
        };
        (key.clone(), item)
    });
    kept.collect::<Map<_, _>>().into()
}

#[tokio::test]
async fn the_schema_is_the_engines_without_its_prose() {
    let goldens = goldens::suite("plain");
    let (_, golden) = goldens.iter().find(|(name, _)| name == "get_openapi_json").unwrap();
    let mut expected = without_prose(&golden["json"], false);
    // The recorded server returned its tokenizer.
    expected["paths"].as_object_mut().unwrap().shift_remove("/tokenizer_info").unwrap();
    let server = start(served(ServerOptions::default())).await;
    let answer = ask(server.address, "GET", "/openapi.json").await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.text(), expected.to_string());
}

#[tokio::test]
async fn pages_tell_the_path_under_which_a_proxy_shows_them() {
    let root_path = "/api/".to_owned();
    let server = start(served(ServerOptions { root_path, ..ServerOptions::default() })).await;
    let schema = ask(server.address, "GET", "/openapi.json").await.text();
    let start =
        r#"{"openapi":"3.1.0","info":{"title":"FastAPI","version":"0.1.0"},"servers":[{"url":"/api"}],"paths":{"#;
    assert!(schema.starts_with(start), "{schema:.200}");
    let docs = ask(server.address, "GET", "/docs").await;
    assert_eq!(docs.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(docs.text().contains("url: '/api/openapi.json',") && docs.text().contains("'/api/docs/oauth2-redirect'"));
    assert_eq!(docs.body.len(), 1014);
    let redoc = ask(server.address, "GET", "/redoc").await.text();
    assert!(redoc.contains(r#"spec-url="/api/openapi.json""#) && redoc.len() == 892);
    assert_eq!(ask(server.address, "GET", "/docs/oauth2-redirect").await.body.len(), 3012);
}

#[tokio::test]
async fn pages_take_head_and_redirect() {
    let server = start(served(ServerOptions::default())).await;
    for path in ["/openapi.json", "/docs", "/redoc", "/docs/oauth2-redirect"] {
        let whole = ask(server.address, "GET", path).await;
        let head = ask(server.address, "HEAD", path).await;
        assert_eq!((head.status, head.header("content-length")), (200, whole.header("content-length")), "{path}");
        assert!(head.body.is_empty());
        let refused = ask(server.address, "POST", path).await;
        assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD")), "{path}");
    }
    assert_eq!(ask(server.address, "GET", "/docs/").await.status, 307);
    let server = start(served(ServerOptions { no_docs: true, ..ServerOptions::default() })).await;
    for path in ["/openapi.json", "/docs", "/redoc", "/docs/oauth2-redirect"] {
        assert_eq!(ask(server.address, "GET", path).await.status, 404, "{path}");
    }
}
