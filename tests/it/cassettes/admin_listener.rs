//! Where questions about the cassette_player are answered.

use std::net::SocketAddr;

use serde_json::json;

use super::{CHAT, Running, Shelf, chat, engine, record, said, tape, vcr};
use crate::support::{
    client::{self, get, post},
    free_address,
};

async fn status(address: SocketAddr, path: &str) -> u16 {
    client::send(address, &get(path)).await.status
}

#[tokio::test]
async fn questions_move_to_a_listener_of_their_own() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let admin = free_address();
    let play = shelf.play(&["--admin-listen", &admin.to_string()]);
    assert_eq!(said(&play.send(CHAT, &chat(&["a"])).await), "A");
    assert_eq!(status(play.address, "/vcr/report").await, 404, "not where clients come to");
    assert_eq!(said(&play.send(&format!("/vcr/s/x{CHAT}"), &chat(&["a"])).await), "A", "sessions stay");
    let report = client::send(admin, &get("/vcr/report?session=default")).await.json();
    assert_eq!(report["sessions"]["default"]["served"], 1, "{report}");
    for path in [CHAT, "/v1/models", "/", "/vcr/s/x/v1/models"] {
        assert_eq!(status(admin, path).await, 404, "{path}: nothing else is answered there");
    }
    assert_eq!(client::send(admin, &post("/vcr/verify", &json!({"session": "x"}))).await.status, 200);
    for (path, body, status) in [
        ("/vcr/verify", json!({"session": "nobody", "fail_on": ["miss"]}), 404),
        ("/vcr/verify", json!("x"), 400),
        ("/vcr/reset", json!({"sesion": "x"}), 400),
    ] {
        assert_eq!(client::send(admin, &post(path, &body)).await.status, status, "{path} {body}");
    }
    assert_eq!(play.stop().0, 0);
}

#[tokio::test]
async fn the_engine_is_asked_there_too() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let [recorded, made_up] = [free_address(), free_address()];
    let flags = ["--engine", "--admin-listen", &recorded.to_string()];
    let play = Running::start(&[&["play", "--port", "0", "--cassette", shelf.name()][..], &flags].concat());
    let flags = ["--synthetic", "random", "--engine", "--admin-listen", &made_up.to_string()];
    let engine = Running::start(&[&["play", "--port", "0"][..], &flags].concat());
    for (server, admin, report) in [(&play, recorded, 200), (&engine, made_up, 404)] {
        assert_eq!(status(server.address, "/vcr/engine").await, 404, "not where clients come to");
        let snapshot = client::send(admin, &get("/vcr/engine")).await.json();
        assert_eq!(snapshot["differences"], json!([]), "{snapshot}");
        assert_eq!([status(server.address, "/vcr/metrics").await, status(admin, "/vcr/metrics").await], [404, 200]);
        assert_eq!(status(admin, "/vcr/report").await, report);
        let mut foreign = get("/vcr/engine");
        foreign.headers.push(("host", "evil.example"));
        assert_eq!(client::send(admin, &foreign).await.status, 403);
    }
    let (_, log) = engine.stop();
    assert!(log.contains(&format!("admin pages at http://{made_up}/vcr/faults")), "{log}");
}

#[tokio::test]
async fn others_cannot_ask_where_they_can_reach_the_server() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let reached = |flags: &[&str]| {
        let fixed = ["play", "--port", "0", "--host", "0.0.0.0", "--instant", "--cassette", shelf.name()];
        Running::start(&[&fixed[..], flags].concat())
    };
    let play = reached(&[]);
    assert_eq!(status(play.address, "/vcr/report").await, 404);
    let (_, log) = play.stop();
    assert!(log.contains("admin pages at http://127.0.0.1:"), "{log}");
    let allowed = reached(&["--admin"]);
    assert_eq!(status(allowed.address, "/vcr/report").await, 200);
    let nobody = reached(&["--no-admin"]);
    assert_eq!(status(nobody.address, "/vcr/report").await, 404);
    let (_, log) = nobody.stop();
    assert!(!log.contains("admin pages at"), "{log}");
    let both = vcr(&["play", "--cassette", shelf.name(), "--no-admin", "--admin-listen", "127.0.0.1:0"]);
    assert_eq!(both.status.code(), Some(2));
}

#[tokio::test]
async fn tap_has_such_a_listener_too() {
    let upstream = engine().await;
    let (shelf, admin) = (Shelf::empty(), free_address());
    let tap = shelf.tap(&upstream, &["--admin-listen", &admin.to_string()]);
    assert_eq!(said(&tap.send(CHAT, &chat(&["a"])).await), "You said a.");
    assert_eq!(status(admin, "/vcr/report").await, 200);
    assert_eq!(status(tap.address, "/vcr/report").await, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_page_can_neither_open_nor_reset_sessions() {
    let upstream = engine().await;
    let url = format!("http://{}", upstream.address);
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let before = std::fs::read(shelf.name()).unwrap();
    let admin = free_address();
    let apart = shelf.play(&["--upstream", &url, "--admin-listen", &admin.to_string()]);
    let beside = shelf.play(&["--upstream", &url]);
    let tap_shelf = Shelf::empty();
    let tap = tap_shelf.tap(&upstream, &["--mode", "once"]);
    let open = json!({"name": "x", "cassette": "tape.yaml", "mode": "all"});
    for address in [admin, beside.address, tap.address] {
        let asked = async |path: &'static str, headers: Vec<(&'static str, &'static str)>| {
            let body = if path == "/vcr/reset" { Vec::new() } else { open.to_string().into_bytes() };
            let request = client::Request { method: "POST", path, headers, body };
            client::send(address, &request).await.status
        };
        let json = ("content-type", "application/json");
        for (path, headers, status) in [
            ("/vcr/sessions", vec![("content-type", "text/plain")], 415),
            ("/vcr/sessions", vec![("content-type", "application/x-www-form-urlencoded")], 415),
            ("/vcr/sessions", vec![], 415),
            ("/vcr/sessions", vec![json, ("origin", "http://evil.example")], 403),
            ("/vcr/sessions", vec![json, ("origin", "null")], 403),
            ("/vcr/sessions", vec![json, ("host", "evil.example")], 403),
            ("/vcr/reset", vec![("origin", "http://evil.example")], 403),
        ] {
            assert_eq!(asked(path, headers.clone()).await, status, "{address} {path} {headers:?}");
        }
    }
    let rebound = client::Request {
        method: "GET",
        path: "/vcr/records/0",
        headers: vec![("host", "evil.example")],
        body: Vec::new(),
    };
    assert_eq!(client::send(beside.address, &rebound).await.status, 403);
    assert_eq!(beside.get("/vcr/sessions").await, json!([]));
    drop((apart, beside, tap));
    assert_eq!(std::fs::read(shelf.name()).unwrap(), before);
}

#[tokio::test]
async fn a_listener_that_others_reach_asks_for_a_token() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    for command in [
        &["play", "--port", "0", "--cassette", shelf.name(), "--admin-listen", "0.0.0.0:0"][..],
        &["tap", "--upstream", "http://127.0.0.1:9", "--cassette", "new.yaml", "--admin-listen", "0.0.0.0:0"],
    ] {
        let refused = vcr(command);
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("--admin-token"), "{stderr}");
    }
    let tap = ["tap", "--upstream", "http://127.0.0.1:9", "--cassette", "new.yaml", "--listen", "127.0.0.1:0"];
    let remote = vcr(&[&tap[..], &["--admin-listen", "0.0.0.0:0", "--admin-token", "t0ken"]].concat());
    let stderr = String::from_utf8_lossy(&remote.stderr);
    assert!(remote.status.code() == Some(2) && stderr.contains("--allow-remote-record"), "{stderr}");
    let admin = free_address();
    let _play = shelf.play(&["--admin-listen", &format!("0.0.0.0:{}", admin.port()), "--admin-token", "t0ken"]);
    assert_eq!(status(admin, "/vcr/report").await, 401);
    let headers = vec![("authorization", "Bearer t0ken"), ("host", "vcr.example")];
    let report = client::Request { method: "GET", path: "/vcr/report", headers, body: Vec::new() };
    let answer = client::send(admin, &report).await;
    assert_eq!(answer.status, 200, "under any name: {}", answer.text());
}
