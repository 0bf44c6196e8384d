//! What the tap records.

use serde_json::{Value, json};

use super::{SERVER, Server, Shelf, open, shopping, vcr};
use crate::support::read;

fn ids(first: u64) -> [Value; 5] {
    std::array::from_fn(|at| json!(first + at as u64))
}

#[test]
fn case_2_what_is_recorded_replays_as_it_was() {
    let (shop, tape) = (Shelf::with(SERVER), Shelf::empty());
    let mut tap = Server::tap(&tape, &shop, &[]);
    let live = shopping(&mut tap, ids(1), &json!(1));
    let (rest, code, notes) = tap.end();
    assert_eq!((rest.len(), code), (0, 0), "{notes}");
    assert!(notes.contains("recorded 7 messages of the client\n"), "{notes}");
    let mut play = Server::play(&tape, &["--strict"]);
    assert_eq!(shopping(&mut play, ids(1), &json!(1)), live);
    let (rest, code, notes) = play.end();
    assert_eq!((rest.len(), code), (0, 0), "{notes}");
    assert!(notes.contains("5 requests, 5 of 5 records served"), "{notes}");
}

#[test]
fn a_recording_is_read_as_it_is_written_by_hand() {
    let (shop, tape) = (Shelf::with(SERVER), Shelf::empty());
    let mut tap = Server::tap(&tape, &shop, &[]);
    shopping(&mut tap, ids(1), &json!(1));
    tap.end();
    let text = tape.text();
    for part in [
        "at: tool:shop/buy\n  request: POST /mcp/shop\n  body:\n    method: tools/call\n",
        "at: mcp:shop\n",
        "what: tea",
        "- data:\n        method: elicitation/create\n",
        "reply:\n",
        "error: {code: -32602, message: Nothing to sell}",
        "blob: AAECAw==",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("jsonrpc"), "{text}");
    // Only the client's own words differ from those that were written by hand.
    let diff = vcr(&["cassette", "diff", shop.name(), tape.name()]);
    let diff = String::from_utf8(diff.stdout).unwrap();
    assert_eq!(diff.lines().filter(|line| line.contains("answer ")).collect::<Vec<_>>(), Vec::<&str>::new(), "{diff}");
    let again = Shelf::empty();
    let mut tap = Server::tap(&again, &shop, &[]);
    shopping(&mut tap, ids(1), &json!(1));
    tap.end();
    assert_eq!(again.text(), text, "a second recording differs");
}

#[test]
fn times_are_beside_the_cassette() {
    let (shop, tape) = (Shelf::with(SERVER), Shelf::empty());
    let mut tap = Server::tap(&tape, &shop, &[]);
    shopping(&mut tap, ids(1), &json!(1));
    tap.end();
    let timing = read(&tape.file.with_extension("vcr").join("timing.jsonl"));
    let lines: Vec<Value> = timing.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 7);
    let events: Vec<f64> =
        lines[3]["events"].as_array().unwrap().iter().map(|event| event[0].as_f64().unwrap()).collect();
    assert!(events.len() == 4 && events.is_sorted() && events[2] == lines[3]["ms"].as_f64().unwrap(), "{timing}");
    assert!(lines.iter().all(|line| line["recorded_at"].is_string()), "{timing}");
}

#[test]
fn a_cassette_that_exists_is_not_written_without_a_word() {
    let (shop, tape) = (Shelf::with(SERVER), Shelf::with(SERVER));
    let (_, code, notes) = Server::tap(&tape, &shop, &[]).ended();
    assert_eq!((code, tape.text().as_str()), (2, SERVER));
    assert!(notes.contains("--mode all"), "{notes}");
    let mut tap = Server::tap(&tape, &shop, &["--mode", "new-episodes"]);
    // The first one is there; the second one is new.
    for id in 1..3 {
        tap.ask(json!(id), "resources/read", &json!({"uri": "shop://é/list"}));
    }
    assert_eq!(tap.end().1, 0);
    assert!(tape.text().starts_with(SERVER) && tape.text().matches("resources/read").count() == 2, "{}", tape.text());
    let mut tap = Server::tap(&tape, &shop, &["--mode", "all"]);
    open(&mut tap, "2025-06-18", "agent");
    tap.end();
    assert!(!tape.text().contains("tools/call"), "{}", tape.text());
}

#[test]
fn an_unchanged_client_adds_nothing_to_a_cassette() {
    let (shop, tape) = (Shelf::with(SERVER), Shelf::with(SERVER));
    let mut tap = Server::tap(&tape, &shop, &["--mode", "new-episodes"]);
    shopping(&mut tap, ids(1), &json!(1));
    let (_, code, notes) = tap.end();
    assert_eq!((code, tape.text().as_str()), (0, SERVER), "{notes}");
}

#[test]
fn a_known_call_that_takes_long_adds_nothing_either() {
    let (shop, tape) = (Shelf::with(SERVER), Shelf::with(SERVER));
    let mut tap = Server::tap(&tape, &shop, &["--mode", "new-episodes"]);
    open(&mut tap, "2025-06-18", "agent");
    let roots = tap.next();
    tap.send(&json!({"jsonrpc": "2.0", "id": roots["id"], "result": {"roots": [{"uri": "file:///a"}]}}));
    let params = json!({"name": "buy", "arguments": {"many": 2, "what": "tea"}, "_meta": {"progressToken": 1}});
    assert_eq!(tap.ask(json!(1), "tools/call", &params)["method"], "notifications/progress");
    let ask = tap.next();
    // What has not ended is in the partial file, so that a kill loses nothing.
    let partial = tape.folder.path().join("tape.yaml.partial");
    while !std::fs::read_to_string(&partial).is_ok_and(|text| text.matches("elicitation/create").count() == 2) {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    tap.send(&json!({"jsonrpc": "2.0", "id": ask["id"], "result": {"action": "accept", "content": {"sure": true}}}));
    assert_eq!(tap.next()["id"], 1);
    let (_, code, notes) = tap.end();
    assert_eq!((code, tape.text().as_str()), (0, SERVER), "{notes}");
}

#[test]
fn what_a_killed_tap_had_is_on_the_disk() {
    let (shop, tape) = (Shelf::with(SERVER), Shelf::empty());
    let mut tap = Server::tap(&tape, &shop, &[]);
    let live = shopping(&mut tap, ids(1), &json!(1));
    let partial = tape.folder.path().join("tape.yaml.partial");
    let has_all = || std::fs::read_to_string(&partial).is_ok_and(|text| text.matches("resources/read").count() == 1);
    for _ in 0..1200 {
        if has_all() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    tap.signal("-KILL");
    tap.ended();
    let left = Shelf::with(&read(&partial));
    let mut play = Server::play(&left, &["--strict"]);
    assert_eq!(shopping(&mut play, ids(1), &json!(1)), live);
    assert_eq!(play.end().1, 0);
}

#[test]
fn a_signal_ends_the_server_and_the_cassette_is_whole() {
    let (shop, tape) = (Shelf::with(SERVER), Shelf::empty());
    let mut tap = Server::tap(&tape, &shop, &[]);
    shopping(&mut tap, ids(1), &json!(1));
    tap.signal("-TERM");
    let (_, code, notes) = tap.ended();
    // The player ends by itself when it is asked to.
    assert_eq!(code, 0, "{notes}");
    assert!(tape.text().contains("resources/read"), "{}", tape.text());
}
