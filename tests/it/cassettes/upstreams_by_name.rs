//! Several upstreams in one cassette: named in the URL, told apart in the recording and when it is played.

use serde_json::{Value, json};

use super::{CHAT, Running, Shelf, chat, record, said, tape, vcr};
use crate::support::{
    client::{self, Answer, get},
    peer::{End, Script, Upstream, answer},
};

/// An upstream that says who it is, and with which path and headers it was asked.
async fn named(name: &'static str) -> Upstream {
    Upstream::start(move |request| {
        let text = String::from_utf8_lossy(request).into_owned();
        let path = text.split([' ', '?']).nth(1).unwrap().to_owned();
        let leaks = text.to_ascii_lowercase().contains("x-vcr-upstream");
        let message = json!({"role": "assistant", "content": format!("{name} {path} {leaks}")});
        let body = match path.as_str() {
            "/v1/models" => json!({"object": "list", "data": [{"id": name, "object": "model"}]}),
            _ => json!({"id": "x", "object": "chat.completion", "created": 1, "model": "m",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}),
        };
        Script { pieces: answer("200 OK", &body.to_string()), end: End::KeepAlive }
    })
    .await
}

/// The same two requests to three upstreams, in every way that names one; what each answered.
async fn asked(server: &Running) -> Vec<String> {
    let mut seen = Vec::new();
    for prefix in ["", "/vcr/u/two", "/vcr/u/three", "/vcr/s/worker/vcr/u/two", "/vcr/u/three/vcr/s/worker"] {
        let is_worker = prefix.contains("worker");
        let answer = server.send(&format!("{prefix}{CHAT}"), &chat(&[if is_worker { "w" } else { "a" }])).await;
        assert_eq!(answer.status, 200, "{prefix}: {}", answer.text());
        seen.push(format!("{} {}", said(&answer), answer.header("x-vcr-session").unwrap()));
        if is_worker {
            continue;
        }
        let models: Value = server.get(&format!("{prefix}/v1/models")).await;
        seen.push(models["data"][0]["id"].as_str().unwrap_or("none").to_owned());
    }
    seen.push(said(&with_header(server, "two", &chat(&["h"])).await));
    seen
}

async fn with_header(server: &Running, name: &str, body: &Value) -> Answer {
    let mut request = client::post(CHAT, body);
    request.headers.push(("x-vcr-upstream", name));
    client::send(server.address, &request).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_requests_to_several_upstreams_are_recorded_and_played_apart() {
    let (one, two, three) = (named("one").await, named("two").await, named("three").await);
    let shelf = Shelf::empty();
    let routes = [format!("two=http://{}", two.address), format!("three=http://{}/base", three.address)];
    let tap = shelf.tap(&one, &["--upstream", &routes[0], "--upstream", &routes[1]]);
    let live = asked(&tap).await;
    let chats = |name: &str, base: &str, session: &str| format!("{name} {base}{CHAT} false {session}");
    assert_eq!(
        live,
        [
            chats("one", "", "default"),
            "one".to_owned(),
            chats("two", "", "default"),
            "two".to_owned(),
            chats("three", "/base", "default"),
            "none".to_owned(),
            chats("two", "", "worker"),
            chats("three", "/base", "worker"),
            format!("two {CHAT} false"),
        ]
    );
    let nowhere = tap.send(&format!("/vcr/u/four{CHAT}"), &chat(&["a"])).await;
    assert!(nowhere.status == 404 && nowhere.text().contains("two, three"), "{}", nowhere.text());
    let (code, log) = tap.stop();
    assert!(code == 0 && log.contains("recorded 9 interactions"), "{log}");
    let text = shelf.text();
    for part in [
        "at: llm:m\n",
        "at: llm:m @two\n",
        "at: llm:m @three\n",
        "at: http:GET /v1/models @two\n",
        "x-vcr-upstream: two",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(vcr(&["cassette", "fmt", "--check", shelf.name()]).status.success());
    for flags in [&["--strict"][..], &["--match", "ordered", "--fail-on", "miss"], &["--match", "exact", "--strict"]] {
        let play = shelf.play(flags);
        assert_eq!(asked(&play).await, live, "{flags:?}");
        let (code, log) = play.stop();
        assert_eq!(code, 0, "{flags:?}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_to_another_upstream_is_a_miss_and_never_leaves() {
    let main = named("one").await;
    let two = record(&["a"], "A").replace("  body:", "  headers: {x-vcr-upstream: two}\n  body:");
    let shelf = Shelf::with(&tape(&[two]));
    let play = shelf.play(&["--upstream", &format!("http://{}", main.address), "--on-miss", "upstream"]);
    assert_eq!(said(&play.send(&format!("/vcr/u/two{CHAT}"), &chat(&["a"])).await), "A");
    let missed = play.send(&format!("/vcr/u/three{CHAT}"), &chat(&["a"])).await;
    assert!(missed.status == 502 && missed.text().contains("--upstream three=URL"), "{}", missed.text());
    let bad = play.send(&format!("/vcr/u/%20x{CHAT}"), &chat(&["a"])).await;
    assert_eq!(bad.status, 400, "{}", bad.text());
    assert!(main.bodies().is_empty());
    drop(play);
    let play = shelf.play(&[]);
    let missed = play.send(CHAT, &chat(&["a"])).await;
    assert_eq!(missed.status, 422);
    assert_eq!(missed.json()["error"]["code"], "no_records_for_boundary", "{}", missed.text());
    let models = client::send(play.address, &get("/v1/models")).await.json();
    assert_eq!(models["data"].as_array().unwrap().len(), 1, "{models}");
    assert_eq!(models["data"][0]["id"], "m", "{models}");
    for upstream in ["two", "nope"] {
        let models = client::send(play.address, &get(&format!("/vcr/u/{upstream}/v1/models"))).await;
        assert_eq!(models.status, 404, "the list of another upstream: {}", models.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn selectors_name_upstreams_and_commands_have_their_urls() {
    let (one, two) = (named("one").await, named("two").await);
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let route = format!("anthropic=http://{}", two.address);
    let tap = shelf.tap(&one, &["--upstream", &route, "--mode", "none", "--live", "upstream:anthropic"]);
    assert_eq!(said(&tap.send(CHAT, &chat(&["a"])).await), "A");
    let live = tap.send(&format!("/vcr/u/anthropic{CHAT}"), &chat(&["a"])).await;
    assert!(said(&live).starts_with("two "), "{}", live.text());
    assert_eq!(tap.stop().0, 0);
    let derived = shelf.folder.path().join("tape.derived.yaml");
    let script = "test $ANTHROPIC_BASE_URL = $VLLM_VCR_URL/vcr/u/anthropic && test $OPENAI_BASE_URL = $VLLM_VCR_URL/v1 && \
                  test $VLLM_VCR_URL_ANTHROPIC = $ANTHROPIC_BASE_URL && echo $VLLM_VCR_MODE";
    let output = vcr(&["play", "--cassette", derived.to_str().unwrap(), "--", "sh", "-c", script]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "none\n", "{output:?}");
    let trace = shelf.folder.path().join("day.jsonl");
    let refused =
        vcr(&["tap", "--upstream", "http://127.0.0.1:9", "--upstream", &route, "--trace-out", trace.to_str().unwrap()]);
    let log = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && log.contains("--cassette"), "{log}");
}
