//! What the end of a recording says: what was redacted, and nothing of a cassette into which no request went.

use serde_json::json;

use super::{CHAT, Shelf, chat, engine};
use crate::support::client::{self, Request, post};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redacted_values_are_counted_by_kind() {
    let (upstream, shelf) = (engine().await, Shelf::empty());
    let tap = shelf.tap(&upstream, &["--redact", "email"]);
    let key = "ghp_abcdefghijklmnopqrstuvwxyz0123456789";
    for words in [format!("use {key} for jane@example.org"), format!("{key} again"), "mail bob@example.org".to_owned()]
    {
        assert_eq!(tap.send(CHAT, &chat(&[&words])).await.status, 200);
    }
    let (code, log) = tap.stop();
    assert!(code == 0 && log.contains("  3 values redacted: 2 email, 1 github_token\n"), "{log}");
    assert!(!log.contains("ghp_") && !log.contains("example.org"), "{log}");
    let tap = shelf.tap(&upstream, &["--mode", "all"]);
    tap.send(CHAT, &chat(&["nothing"])).await;
    let (_, log) = tap.stop();
    assert!(log.contains("recorded 1 interaction") && !log.contains("redacted"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_of_sessions_lacks_no_other_cassette() {
    let (upstream, place) = (engine().await, tempfile::tempdir().unwrap());
    let shelf = Shelf { file: place.path().to_owned(), folder: place };
    // The second time the session only plays.
    for recorded in [1, 0] {
        let tap = shelf.tap(&upstream, &["--mode", "once"]);
        let opened = post("/vcr/sessions", &json!({"name": "one", "cassette": "one.yaml", "mode": "once"}));
        assert_eq!(client::send(tap.address, &opened).await.status, 201);
        assert_eq!(
            tap.send(&format!("/vcr/s/one{CHAT}"), &chat(&["ghp_abcdefghijklmnopqrstuvwxyz0123456789"])).await.status,
            200
        );
        let ended = Request { method: "DELETE", path: "/vcr/sessions/one", headers: Vec::new(), body: Vec::new() };
        assert_eq!(client::send(tap.address, &ended).await.status, 200);
        let (code, log) = tap.stop();
        assert!(code == 0 && log.contains(&format!("recorded {recorded} interaction")), "{log}");
        assert!(!log.contains("nothing was recorded") && !log.contains("default.yaml is not written"), "{log}");
        assert_eq!(log.contains("1 value redacted: 1 github_token"), recorded == 1, "{log}");
    }
    assert!(!shelf.file.join("default.yaml").exists());
}
