//! Where questions about the cassette_player are answered.

use std::net::{SocketAddr, TcpListener};

use serde_json::json;

use super::{CHAT, Running, Shelf, chat, engine, record, said, tape, vcr};
use crate::support::client::{self, get, post};

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

async fn status(address: SocketAddr, path: &str) -> u16 {
    client::send(address, &get(path)).await.status
}

#[tokio::test]
async fn questions_move_to_a_listener_of_their_own() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let admin = free();
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
async fn others_cannot_ask_where_they_can_reach_the_server() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let reached = |flags: &[&str]| {
        let fixed = ["play", "--port", "0", "--host", "0.0.0.0", "--instant", "--cassette", shelf.name()];
        Running::start(&[&fixed[..], flags].concat())
    };
    let play = reached(&[]);
    assert_eq!(status(play.address, "/vcr/report").await, 404);
    let (_, log) = play.stop();
    assert!(log.contains("questions at http://127.0.0.1:"), "{log}");
    let allowed = reached(&["--admin"]);
    assert_eq!(status(allowed.address, "/vcr/report").await, 200);
    let nobody = reached(&["--no-admin"]);
    assert_eq!(status(nobody.address, "/vcr/report").await, 404);
    let (_, log) = nobody.stop();
    assert!(!log.contains("questions at"), "{log}");
    let both = vcr(&["play", "--cassette", shelf.name(), "--no-admin", "--admin-listen", "127.0.0.1:0"]);
    assert_eq!(both.status.code(), Some(2));
}

#[tokio::test]
async fn tap_has_such_a_listener_too() {
    let upstream = engine().await;
    let (shelf, admin) = (Shelf::empty(), free());
    let tap = shelf.tap(&upstream, &["--admin-listen", &admin.to_string()]);
    assert_eq!(said(&tap.send(CHAT, &chat(&["a"])).await), "You said a.");
    assert_eq!(status(admin, "/vcr/report").await, 200);
    assert_eq!(status(tap.address, "/vcr/report").await, 404);
}
