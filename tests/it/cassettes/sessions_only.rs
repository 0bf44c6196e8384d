//! `--sessions-only`, and what a session may have of its own: the server of a test framework's plugin.

use serde_json::{Value, json};

use super::{CHAT, Running, chat, engine, vcr};
use crate::support::client::{self, Answer, Request, post};

async fn open(server: &Running, body: &Value) -> Answer {
    client::send(server.address, &post("/vcr/sessions", body)).await
}

async fn end(server: &Running, name: &str) {
    let path = format!("/vcr/sessions/{name}");
    let request = Request { method: "DELETE", path: &path, headers: Vec::new(), body: Vec::new() };
    assert_eq!(client::send(server.address, &request).await.status, 200);
}

fn folder(place: &tempfile::TempDir) -> String {
    format!("{}/cassettes/", place.path().display())
}

fn play(folder: &str, flags: &[&str]) -> Running {
    Running::start(&[&["play", "--port", "0", "--instant", "--sessions-only", "--cassette", folder], flags].concat())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_sessions_are_recorded_and_played() {
    let (upstream, place) = (engine().await, tempfile::tempdir().unwrap());
    let (folder, url) = (folder(&place), format!("http://{}", upstream.address));
    let named = format!("anthropic={url}");
    let fixed = ["tap", "--sessions-only", "--upstream", &url, "--upstream", &named, "--listen", "127.0.0.1:0"];
    let recording = Running::start(&[&fixed[..], &["--cassette", &folder]].concat());
    let one = json!({"name": "one", "cassette": "module/one.yaml", "mode": "once"});
    let opened = open(&recording, &one).await;
    assert_eq!(opened.status, 201, "{}", opened.text());
    let paths = json!({"OPENAI_BASE_URL": "/vcr/s/one/v1", "OPENAI_API_BASE": "/vcr/s/one/v1", "VLLM_VCR_URL": "/vcr/s/one",
        "ANTHROPIC_BASE_URL": "/vcr/s/one/vcr/u/anthropic", "VLLM_VCR_URL_ANTHROPIC": "/vcr/s/one/vcr/u/anthropic"});
    assert_eq!(opened.json()["env"], paths);
    assert_eq!(recording.send(&format!("/vcr/s/one{CHAT}"), &chat(&["a"])).await.status, 200);
    assert_eq!(recording.send(&format!("/vcr/s/one/vcr/u/anthropic{CHAT}"), &chat(&["b"])).await.status, 200);
    let refused = recording.send(CHAT, &chat(&["a"])).await;
    assert!(refused.status == 422 && refused.text().contains("Open a session with a cassette"), "{}", refused.text());
    end(&recording, "one").await;
    let (_, log) = recording.stop();
    assert!(log.contains("recorded 2 interactions"), "{log}");
    assert!(!place.path().join("cassettes/default.yaml").exists());

    let playing = play(&folder, &[]);
    let opened = open(&playing, &json!({"name": "two", "cassette": "module/one.yaml"})).await;
    assert_eq!(opened.json()["env"]["ANTHROPIC_BASE_URL"], "/vcr/s/two/vcr/u/anthropic", "{}", opened.text());
    for path in ["", "/vcr/u/anthropic"] {
        let words = if path.is_empty() { "a" } else { "b" };
        assert_eq!(playing.send(&format!("/vcr/s/two{path}{CHAT}"), &chat(&[words])).await.status, 200);
    }
    for path in [CHAT.to_owned(), format!("/vcr/s/three{CHAT}")] {
        let refused = playing.send(&path, &chat(&["a"])).await;
        assert!(refused.status == 422 && refused.text().contains("Open a session"), "{}", refused.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_is_not_there_and_the_command_that_records() {
    let place = tempfile::tempdir().unwrap();
    let playing = play(&folder(&place), &[]);
    let refused = open(&playing, &json!({"name": "a", "cassette": "m/a.yaml", "record_with": "pytest --x 'm'"})).await;
    let said = "m/a.yaml does not exist; record it: pytest --x 'm'";
    assert!(refused.status == 400 && refused.json()["error"] == said, "{}", refused.text());
    for (body, said) in [
        (json!({"name": "a", "record_with": "a\nb"}), "`record_with` has to be one line"),
        (json!({"name": "a", "on_miss": "guess"}), "`on_miss` has to be error, stub, upstream or record, not `guess`"),
        (json!({"name": "a", "on_miss": "upstream"}), "on_miss upstream goes upstream, but there is no upstream"),
        (json!({"name": "a", "cassette": "../a.yaml"}), "no .."),
    ] {
        let refused = open(&playing, &body).await;
        assert!(refused.status == 400 && refused.text().contains(said), "{}", refused.text());
    }
    assert!(!place.path().join("cassettes").exists(), "playing creates nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_has_its_own_way_with_misses() {
    let (upstream, place) = (engine().await, tempfile::tempdir().unwrap());
    let (folder, url) = (folder(&place), format!("http://{}", upstream.address));
    std::fs::create_dir(place.path().join("cassettes")).unwrap();
    std::fs::write(place.path().join("cassettes/a.yaml"), "vcr: 1\nrecords: []\n").unwrap();
    let playing = play(&folder, &["--upstream", &url]);
    for (on_miss, asked) in [("stub", 0), ("upstream", 1), ("record", 2)] {
        let body = json!({"name": on_miss, "cassette": "a.yaml", "on_miss": on_miss});
        assert_eq!(open(&playing, &body).await.status, 201);
        assert_eq!(playing.send(&format!("/vcr/s/{on_miss}{CHAT}"), &chat(&["a"])).await.status, 200);
        assert_eq!(upstream.bodies().len(), asked);
        end(&playing, on_miss).await;
        let text = std::fs::read_to_string(place.path().join("cassettes/a.yaml")).unwrap();
        assert_eq!(text.contains("chat/completions"), on_miss == "record", "{text}");
    }
    let command = json!({"name": "b", "cassette": "a.yaml", "record_with": "make record"});
    assert_eq!(open(&playing, &command).await.status, 201);
    let missed = playing.send(&format!("/vcr/s/b{CHAT}"), &chat(&["other words"])).await;
    assert!(missed.text().contains("delete a.yaml and run make record"), "{}", missed.text());
}

#[test]
fn what_is_played_is_one_folder() {
    for (line, said) in [
        (&["play", "--sessions-only", "--cassette", "a.yaml"][..], "--sessions-only needs one folder"),
        (&["play", "--sessions-only", "--mode", "all", "--cassette", "a/"], "cannot be used with"),
    ] {
        let refused = vcr(line);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && text.contains(said), "{text}");
    }
}
