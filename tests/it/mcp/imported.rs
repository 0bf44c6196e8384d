//! Logs of other tools: `cassette convert`.

use serde_json::json;

use super::{Server, Shelf, vcr};

const LOG: &str = r#"{"type":"header","cassetteVersion":1,"startedAt":"2026-08-15T09:00:00Z","transport":"stdio"}
{"type":"frame","t":0,"dir":"c2s","frame":{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"buy","arguments":{"what":"tea","api_key":"hunter2-Xy81Qz40pw"}}}}
{"type":"raw","t":1,"dir":"s2c","data":"noise"}
{"type":"frame","t":7,"dir":"s2c","frame":{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"bought"}]}}}
"#;

fn convert(name: &str, log: &str, flags: &[&str]) -> (Shelf, i32, String) {
    let shelf = Shelf::empty();
    let from = shelf.folder.path().join(name);
    std::fs::write(&from, log).unwrap();
    let output = vcr(&[&["cassette", "convert", from.to_str().unwrap(), shelf.name()], flags].concat());
    (shelf, output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_log_of_mcp_cassette_is_played() {
    let (shelf, code, notes) = convert("shop.jsonl", LOG, &[]);
    assert!(code == 0 && notes.contains("1 record\n  1 line left out: not a message"), "{notes}");
    let text = shelf.text();
    assert!(text.contains("at: tool:shop/buy") && !text.contains("hunter2"), "{text}");
    let mut play = Server::play(&shelf, &["--strict"]);
    let bought = play.call(json!(9), "buy", &json!({"what": "tea", "api_key": "hunter2-Xy81Qz40pw"}));
    assert_eq!(bought["result"]["content"][0]["text"], "bought");
    assert_eq!(play.end().1, 0);
}

#[test]
fn a_history_of_mcp_inspector_is_played() {
    let entry = json!({"id": "a", "timestamp": "2026-05-23T10:00:01.5Z", "direction": "request", "duration": 12,
        "message": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "buy", "arguments": {}}},
        "response": {"jsonrpc": "2.0", "id": 1, "result": {"content": []}}});
    let (shelf, code, notes) = convert("history.json", &json!([entry]).to_string(), &["--name", "shop"]);
    assert_eq!(code, 0, "{notes}");
    let mut play = Server::play(&shelf, &["--strict"]);
    assert_eq!(play.call(json!("x"), "buy", &json!({}))["result"]["content"], json!([]));
    assert_eq!(play.end().1, 0);
}

#[test]
fn what_cannot_be_converted_is_named_by_line_and_field() {
    let (shelf, code, notes) = convert("shop.jsonl", &LOG.replace("\"dir\":\"s2c\",\"frame\"", "\"frame\""), &[]);
    assert!(code == 3 && notes.contains("shop.jsonl, line 4: `dir` is missing"), "{notes}");
    assert!(!shelf.file.exists());
    let (shelf, code, notes) = convert("shop.jsonl", LOG.lines().next().unwrap(), &[]);
    assert!(code == 1 && notes.contains("shop.jsonl was converted") && !shelf.file.exists(), "{notes}");
}
