//! Case 16: messages and servers that are not as they should be.

use serde_json::{Value, json};

use super::{SERVER, Server, Shelf, bytes::through};

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}"#;
const ANSWER: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#;

#[test]
fn case_16_a_byte_order_mark_and_carriage_returns_are_no_matter() {
    let shelf = Shelf::empty();
    let script = format!("head -n 1 >/dev/null; printf '\\357\\273\\277{ANSWER}\\r\\n'");
    assert!(through(&shelf, &script, format!("\u{feff}{CALL}\r\n").as_bytes()).status.success());
    let mut play = Server::play(&shelf, &["--strict"]);
    play.write(format!("\u{feff}\n{CALL}\r\n").as_bytes());
    // A mark that is not at the beginning of the first line is no white space.
    assert_eq!(play.next()["result"], json!({"content": []}));
}

#[test]
fn case_16_a_server_that_ends_in_the_middle_ends_there_again() {
    let shelf = Shelf::empty();
    let script = "head -n 1 >/dev/null; echo '{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}'; exit 3";
    let mut tap = Server::start(&["mcp-tap", "--cassette", shelf.name(), "--", "sh", "-c", script]);
    tap.write(format!("{CALL}\n").as_bytes());
    // The client's side stays open.
    let (seen, code, _) = tap.ended();
    assert_eq!((seen[0]["method"].as_str(), code), (Some("notifications/message"), 3));
    assert!(shelf.text().contains("fault: reset"), "{}", shelf.text());
    let mut play = Server::play(&shelf, &["--strict"]);
    play.write(format!("{CALL}\n").as_bytes());
    let (seen, code, notes) = play.ended();
    assert_eq!((seen.len(), code), (1, 0), "{notes}");
    assert!(notes.contains("the recorded server ended here"), "{notes}");
}

#[test]
fn a_cancelled_call_is_recorded_without_an_answer() {
    let shelf = Shelf::empty();
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    through(&shelf, "cat >/dev/null", format!("{CALL}\n{cancel}\n").as_bytes());
    assert!(shelf.text().contains("aborted: 0") && !shelf.text().contains("notifications"), "{}", shelf.text());
    let mut play = Server::play(&shelf, &["--strict"]);
    play.write(format!("{CALL}\n{cancel}\n").as_bytes());
    assert_eq!(play.ask(json!(2), "ping", &json!({}))["id"], 2);
    assert_eq!(play.end().1, 0);
}

#[test]
fn case_16_lines_of_megabytes_pass_and_replay() {
    let shelf = Shelf::empty();
    let text = "x".repeat(3 << 20);
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "a", "arguments": {"text": text}}});
    let script = format!(
        "head -n 1 >/dev/null; printf '{}'; head -c 3145728 /dev/zero | tr '\\0' y; echo '\"}}]}}}}'",
        r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":""#
    );
    let passed = through(&shelf, &script, format!("{call}\n").as_bytes()).stdout;
    let mut play = Server::play(&shelf, &["--strict"]);
    play.send(&call);
    let answer = play.next();
    let live: Value = serde_json::from_slice(&passed).unwrap();
    assert!(answer == live && answer["result"]["content"][0]["text"].as_str().unwrap().len() == 3 << 20);
    assert_eq!(play.end().1, 0);
}

#[test]
fn what_is_no_message_is_answered_or_ignored_and_nothing_hangs() {
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let nested = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{}1{}}}",
        "{\"a\":".repeat(5000),
        "}".repeat(5000)
    );
    let hostile: [&[u8]; 9] = [
        b"{",
        deep.as_bytes(),
        nested.as_bytes(),
        &[0xff; 1000],
        b"null",
        b"\"x\"",
        b"{}",
        b"{\"id\":null,\"method\":\"x\"}",
        b"[1,[2]]",
    ];
    let shop = Shelf::with(SERVER);
    let mut play = Server::play(&shop, &[]);
    for line in hostile {
        play.write(&[line, b"\n"].concat());
    }
    // The one with a null id is a notification.
    for _ in 0..hostile.len() - 1 {
        assert!(play.next()["error"]["code"].is_number());
    }
    assert_eq!(play.ask(json!(1), "tools/list", &json!({}))["id"], 1);
    play.write(b"{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"ping\"}");
    let (rest, code, _) = play.end();
    assert_eq!((rest[0]["id"].as_u64(), code), (Some(2), 0), "a last line without its end counts");
    let shelf = Shelf::empty();
    let input = [&hostile.join(&b'\n'), b"\n".as_slice(), CALL.as_bytes(), b"\n{\"half\": "].concat();
    let output = through(&shelf, &format!("cat >/dev/null; echo '{ANSWER}'; echo '{{'"), &input);
    assert!(output.status.success());
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(notes.contains("lines not recorded: not a message"), "{notes}");
    let mut play = Server::play(&shelf, &[]);
    play.write(format!("{CALL}\n").as_bytes());
    assert_eq!(play.next()["result"], json!({"content": []}));
}

#[test]
fn a_line_that_is_too_long_is_refused_and_the_next_one_answered() {
    let shop = Shelf::with(SERVER);
    let mut play = Server::play(&shop, &[]);
    let part = vec![b'x'; 1 << 20];
    for _ in 0..66 {
        play.write(&part);
    }
    play.write(b"\n");
    assert_eq!(play.next()["error"]["code"], -32600);
    assert_eq!(play.ask(json!(1), "ping", &Value::Null)["id"], 1);
}

#[test]
fn a_server_that_cannot_be_started_is_named() {
    let shelf = Shelf::empty();
    let (_, code, notes) = Server::start(&["mcp-tap", "--cassette", shelf.name(), "--", "/nowhere/server"]).ended();
    assert_eq!(code, 4);
    assert!(notes.contains("cannot run /nowhere/server"), "{notes}");
    assert!(!std::path::Path::new(&format!("{}.partial", shelf.name())).exists());
}
