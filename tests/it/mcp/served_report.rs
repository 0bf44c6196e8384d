//! One account for models and tools: exit codes, sessions of the account, cassettes of their own.

use serde_json::{Value, json};

use super::{
    SERVER, Shelf,
    served::{Client, silent},
};
use crate::support::{
    CHAT,
    cassettes::{chat, record, said, tape},
    client,
    engine::engine,
};

/// A cassette with a model and the shop.
fn both() -> Shelf {
    let silent = silent();
    Shelf::with(&tape(&[record(&["hello"], "Hi"), silent.split_once("records:\n").unwrap().1.to_owned()]))
}

/// Everything that the shop was asked for when it was recorded; `buys` is false for an agent that skips a call.
async fn shopping(client: &Client<'_>, buys: bool) {
    client.ask(json!(1), "tools/list", &json!({})).await;
    if buys {
        client.call(2, "buy", &json!({"what": "tea", "many": 2})).await;
    }
    client.ask(json!(3), "tools/list", &json!({})).await;
    client.call(4, "sell", &json!({"what": "tea"})).await;
    client.ask(json!(5), "resources/read", &json!({"uri": "shop://é/list"})).await;
}

#[tokio::test]
async fn case_17_a_skipped_call_fails_the_run_beside_the_models() {
    let both = both();
    for (buys, expected) in [(true, 0), (false, 1)] {
        let play = both.play(&["--fail-on", "miss,unconsumed"]);
        assert_eq!(said(&play.send(CHAT, &chat(&["hello"])).await), "Hi");
        let agent = Client::begun(&play, "2025-06-18").await;
        shopping(&agent, buys).await;
        assert_eq!(agent.method("DELETE").await.status, 200);
        let verified = play.send("/vcr/verify", &json!({})).await.status;
        assert_eq!(verified, if buys { 200 } else { 409 });
        let (exit, notes) = play.stop();
        assert_eq!(exit, expected, "{notes}");
        assert_eq!(notes.contains("unconsumed: ") && notes.contains("shop tools/call buy"), !buys, "{notes}");
        assert!(notes.contains("session default: 1 request, 1 of 1 record served"), "{notes}");
    }
}

#[tokio::test]
async fn what_is_not_asked_for_after_a_miss_is_no_failure_in_the_clients_other_sessions() {
    let both = both();
    for (session, fails) in [("/mcp/shop", false), ("/vcr/s/other/mcp/shop", true)] {
        let report = both.folder.path().join("report.json");
        let play = both.play(&["--fail-on", "miss,unconsumed", "--report", report.to_str().unwrap()]);
        let agent = Client { path: session, ..Client::new(&play) }.begin("2025-06-18").await;
        shopping(&agent, false).await;
        let missed = play.send(CHAT, &chat(&["hello?"])).await;
        assert_eq!(missed.status, 422);
        let (exit, notes) = play.stop();
        assert!(exit == 1 && notes.contains("failed: miss"), "{notes}");
        assert_eq!(notes.contains("failed: unconsumed"), fails, "{notes}");
        assert_eq!(notes.contains("  unconsumed: "), fails, "{notes}");
        let report: Value = serde_json::from_str(&crate::support::read(&report)).unwrap();
        assert_eq!(report["failing"], if fails { json!(["miss", "unconsumed"]) } else { json!(["miss"]) });
        let novel = &report["sessions"]["default"]["novel"][0];
        assert_eq!((&novel["reason"], &novel["closest"]["record"]), (&json!("no_match"), &json!(0)), "{report}");
        assert!(novel["message"].as_str().unwrap().starts_with("No recorded interaction"), "{novel}");
        assert_eq!((&novel["diffs_total"], &novel["received"]), (&json!(1), &Value::Null), "{novel}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_served_beside_a_live_model_can_be_played() {
    let (both, engine) = (both(), engine().await);
    let url = format!("http://{}", engine.address);
    let play = both.play(&["--live", "llm", "--upstream", &url]);
    let agent = Client::begun(&play, "2025-06-18").await;
    shopping(&agent, true).await;
    let live = said(&play.send(CHAT, &chat(&["hello"])).await);
    let (_, notes) = play.stop();
    assert!(notes.contains("session default: 1 request, 0 of 1 record served\n  forwarded: 1\n"), "{notes}");

    let derived = Shelf::with(&crate::support::read(&both.folder.path().join("tape.derived.yaml")));
    let play = derived.play(&["--strict"]);
    let agent = Client::begun(&play, "2025-06-18").await;
    shopping(&agent, true).await;
    assert_eq!(said(&play.send(CHAT, &chat(&["hello"])).await), live);
    let (exit, notes) = play.stop();
    assert_eq!(exit, 0, "{notes}{}", derived.text());
}

#[tokio::test]
async fn a_call_that_another_session_made_is_not_skipped() {
    let shop = Shelf::with(&silent());
    let play = shop.play(&["--fail-on", "unconsumed,unconsumed=all"]);
    let (first, second) = (Client::begun(&play, "2025-06-18").await, Client::begun(&play, "2025-06-18").await);
    shopping(&first, false).await;
    second.call(1, "buy", &json!({"what": "tea", "many": 2})).await;
    let report = play.get("/vcr/report").await;
    assert_eq!(report["sessions"]["mcp:shop"]["unconsumed"].as_array().unwrap().len(), 1);
    let (exit, notes) = play.stop();
    assert_eq!(exit, 0, "{notes}");
}

#[tokio::test]
async fn sessions_of_the_account_have_mcp_sessions_of_their_own() {
    let both = both();
    let play = both.play(&[]);
    let reach = |path: &'static str| Client { path, ..Client::new(&play) };
    let (a, b) = ("/vcr/s/a/mcp/shop", "/vcr/s/b/mcp/shop");
    let agent = reach(a).begin("2025-06-18").await;
    shopping(&agent, true).await;
    let stranger = Client { session: agent.session.clone(), ..reach(b) };
    assert_eq!(stranger.ask(json!(1), "ping", &json!({})).await.status, 404, "it is a session of another one");
    let other = reach(b).begin("2025-06-18").await;
    assert_eq!(other.call(1, "steal", &json!({})).await.json()["error"]["code"], 40400);
    let of = async |session: &str| play.get(&format!("/vcr/report?session={session}")).await["sessions"].clone();
    assert_eq!((&of("a").await["a/mcp:shop"]["served"], of("b").await.get("a/mcp:shop")), (&json!(5), None));
    assert_eq!(play.get("/vcr/misses?session=b").await.as_array().unwrap().len(), 1);

    play.send("/vcr/reset", &json!({"session": "a"})).await;
    assert_eq!(agent.ask(json!(9), "tools/list", &json!({})).await.json()["result"]["tools"][1], Value::Null);
    let ended = client::Request { method: "DELETE", ..client::get("/vcr/sessions/b") };
    assert_eq!(client::send(play.address, &ended).await.status, 200);
    assert_eq!(other.ask(json!(2), "ping", &json!({})).await.status, 404);
    let report = play.get("/vcr/report").await;
    assert_eq!(report["earlier"]["b/mcp:shop"]["misses"], json!({"no_match": 1}));
}

#[tokio::test]
async fn a_session_with_a_cassette_of_its_own_has_the_servers_of_that() {
    let both = both();
    let own = silent().replace("text: bought", "text: sold out");
    std::fs::write(both.folder.path().join("own.yaml"), own).unwrap();
    let play = both.play(&[]);
    let opened = play.send("/vcr/sessions", &json!({"name": "t", "cassette": "own.yaml"})).await;
    assert_eq!(opened.status, 201, "{}", opened.text());
    let agent = Client { path: "/vcr/s/t/mcp/shop", ..Client::new(&play) }.begin("2025-06-18").await;
    let bought = agent.call(1, "buy", &json!({"what": "tea", "many": 2})).await.text();
    assert!(bought.contains("sold out"), "{bought}");
    let report = play.get("/vcr/report?session=t").await;
    assert_eq!(report["sessions"]["t/mcp:shop"]["served"], 1);
}

#[tokio::test]
async fn secrets_are_refused_and_not_shown() {
    let secret = "ghp_0123456789abcdefghijklmnopqrstuvwxyzAB";
    let leaking = Shelf::with(&SERVER.replace("text: bought", &format!("text: {secret}")));
    let refused = super::vcr(&["play", "--port", "0", "--cassette", leaking.name()]);
    let notes = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(3) && notes.contains("secrets (1)") && !notes.contains(secret), "{notes}");

    let shop = Shelf::with(&silent());
    let play = shop.play(&[]);
    let agent = Client::begun(&play, "2025-06-18").await;
    let missed = agent.call(1, "sell", &json!({"what": secret})).await.text();
    assert!(missed.contains("40400") && !missed.contains(secret), "{missed}");
    let report = play.get("/vcr/report").await.to_string() + &play.get("/vcr/misses").await.to_string();
    let (_, notes) = play.stop();
    assert!(!report.contains(secret) && !notes.contains(secret));
}

#[tokio::test]
async fn an_answer_that_is_none_names_its_line() {
    let shop =
        Shelf::with(&silent().replace("json: {result: {tools: [{name: buy}, {name: sell}]}}", "json: {tools: []}"));
    let refused = super::vcr(&["play", "--port", "0", "--cassette", shop.name()]);
    let notes = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(3) && notes.contains("`result`"), "{notes}");
}
