//! Sessions with cassettes of their own.

use serde_json::json;

use super::{CHAT, Shelf, chat, engine, read, record, said, tape};
use crate::support::client::{self, Answer, Request, post};

fn path(session: &str) -> String {
    format!("/vcr/s/{session}{CHAT}")
}

async fn open(play: &super::Running, body: serde_json::Value) -> Answer {
    client::send(play.address, &post("/vcr/sessions", &body)).await
}

async fn close(play: &super::Running, name: &str) -> Answer {
    let path = format!("/vcr/sessions/{name}");
    let request = Request { method: "DELETE", path: &path, headers: Vec::new(), body: Vec::new() };
    client::send(play.address, &request).await
}

#[tokio::test]
async fn a_session_plays_its_own_cassette() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    std::fs::create_dir(shelf.folder.path().join("more")).unwrap();
    let other = format!("vcr: 1\nmatch: [ordered]\nrecords:\n{}", record(&["b"], "B"));
    std::fs::write(shelf.folder.path().join("more/b.yaml"), other).unwrap();
    let play = shelf.play(&[]);
    let opened = open(&play, json!({"name": "own", "cassette": "more/b.yaml"})).await;
    assert_eq!((opened.status, opened.json()["base_url"].as_str()), (201, Some("/vcr/s/own/v1")), "{}", opened.text());
    assert_eq!(said(&play.send(CHAT, &chat(&["a"])).await), "A");
    let answer = play.send(&path("own"), &chat(&["anything"])).await;
    assert_eq!((said(&answer).as_str(), answer.header("x-vcr-match")), ("B", Some("ordered")), "its own ways too");
    assert_eq!(answer.header("x-vcr-record"), Some("b.yaml#0"));
    assert_eq!(play.send(&path("own"), &chat(&["a"])).await.status, 422, "and nothing of the others");
    assert_eq!(play.get("/vcr/misses?session=own").await.as_array().unwrap().len(), 1);
    let report = play.get("/vcr/report").await;
    assert_eq!(report["sessions"]["own"]["served"], 1, "{report}");
    assert_eq!(report["sessions"]["default"]["misses"], json!({}), "{report}");
    client::send(play.address, &post("/vcr/reset", &json!({"session": "own"}))).await;
    assert_eq!(said(&play.send(&path("own"), &chat(&["again"])).await), "B");
    let closed = close(&play, "own").await;
    assert_eq!((closed.status, closed.json()["sessions"]["own"]["served"].as_u64()), (200, Some(1)));
    assert_eq!(close(&play, "own").await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_matches_and_records_as_it_was_asked_to() {
    let upstream = engine().await;
    let url = format!("http://{}", upstream.address);
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let play = shelf.play(&["--upstream", &url]);
    assert_eq!(open(&play, json!({"name": "loose", "match": ["canonical", "ordered"]})).await.status, 201);
    assert_eq!(said(&play.send(&path("loose"), &chat(&["z"])).await), "A");
    assert_eq!(play.send(CHAT, &chat(&["z"])).await.status, 422, "the others are as strict as before");
    let opened = open(&play, json!({"name": "new", "cassette": "new.yaml", "mode": "new_episodes"})).await;
    assert_eq!(opened.status, 201, "{}", opened.text());
    assert_eq!(said(&play.send(&path("new"), &chat(&["n"])).await), "You said n.");
    assert_eq!(open(&play, json!({"name": "live", "mode": "live"})).await.status, 201);
    assert_eq!(said(&play.send(&path("live"), &chat(&["a"])).await), "You said a.");
    assert_eq!(close(&play, "new").await.status, 200);
    let new = read(&shelf.folder.path().join("new.yaml"));
    assert!(new.contains("You said n."), "{new}");
    assert_eq!(open(&play, json!({"name": "end", "cassette": "end.yaml", "mode": "all"})).await.status, 201);
    play.send(&path("end"), &chat(&["e"])).await;
    assert_eq!(play.stop().0, 0);
    assert!(
        read(&shelf.folder.path().join("end.yaml")).contains("You said e."),
        "the end of the program closes it too"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_replaces_no_file_and_leaves_the_folder_by_no_link() {
    let upstream = engine().await;
    let url = format!("http://{}", upstream.address);
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let (outside, folder) = (tempfile::tempdir().unwrap(), shelf.folder.path());
    let other = outside.path().join("other.yaml");
    std::fs::write(&other, tape(&[record(&["b"], "B")])).unwrap();
    std::os::unix::fs::symlink(outside.path(), folder.join("out")).unwrap();
    std::os::unix::fs::symlink(&other, folder.join("link.yaml")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("none.yaml"), folder.join("none.yaml")).unwrap();
    let play = shelf.play(&["--upstream", &url]);
    for (cassette, mode, part) in [
        ("tape.yaml", "all", "--admin-overwrite"),
        ("tape.yaml", "record", "--admin-overwrite"),
        ("./tape.yaml", "all", "--admin-overwrite"),
        ("out/new.yaml", "all", "beside"),
        ("out/other.yaml", "new-episodes", "beside"),
        ("out/other.yaml", "none", "beside"),
        ("link.yaml", "none", "beside"),
        ("link.yaml", "new-episodes", "beside"),
        ("none.yaml", "all", "beside"),
    ] {
        let refused = open(&play, json!({"name": "x", "cassette": cassette, "mode": mode})).await;
        assert_eq!(refused.status, 400, "{cassette} {mode}: {}", refused.text());
        assert!(refused.json()["error"].as_str().unwrap().contains(part), "{cassette} {mode}: {}", refused.text());
    }
    assert_eq!(play.stop().0, 0);
    assert_eq!(read(shelf.name().as_ref()), tape(&[record(&["a"], "A")]));
    let play = shelf.play(&["--upstream", &url, "--admin-overwrite"]);
    assert_eq!(open(&play, json!({"name": "x", "cassette": "tape.yaml", "mode": "all"})).await.status, 201);
    play.send(&path("x"), &chat(&["new"])).await;
    assert_eq!(play.stop().0, 0);
    assert!(read(shelf.name().as_ref()).contains("You said new."));
}

#[tokio::test]
async fn what_no_session_can_be_is_refused() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let play = shelf.play(&[]);
    for (body, part) in [
        (json!({}), "name"),
        (json!({"name": "a/b"}), "name"),
        (json!({"name": "x", "cassette": "/etc/passwd"}), "beside"),
        (json!({"name": "x", "cassette": "../tape.yaml"}), "beside"),
        (json!({"name": "x", "cassette": "tape.jsonl"}), "beside"),
        (json!({"name": "x", "cassette": "gone.yaml"}), "gone.yaml"),
        (json!({"name": "x", "cassette": 7}), "text"),
        (json!({"name": "x", "mode": "sing"}), "sing"),
        (json!({"name": "x", "mode": "all"}), "of its own"),
        (json!({"name": "x", "cassette": "n.yaml", "mode": "all"}), "upstream"),
        (json!({"name": "x", "match": "psychic"}), "psychic"),
        (json!({"name": "x", "casette": "tape.yaml"}), "`casette` is not known"),
    ] {
        let refused = open(&play, body.clone()).await;
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.json()["error"].as_str().unwrap().contains(part), "{body}: {}", refused.text());
    }
    assert!(!shelf.folder.path().join("n.yaml.partial").exists());
}
