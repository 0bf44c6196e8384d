//! Cassettes with MCP in them: tools, secrets, and the server of models beside it.

use serde_json::json;

use super::{SERVER, Server, Shelf, bytes::through, vcr};
use crate::support::{
    CHAT,
    cassettes::{chat, record, said, tape},
};

const SECRET: &str = "ghp_0123456789abcdefghijklmnopqrstuvwxyzAB";

fn ran(arguments: &[&str]) -> (i32, String) {
    let output = vcr(arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap(), text)
}

#[test]
fn the_tools_of_cassettes_take_records_of_mcp() {
    let shop = Shelf::with(SERVER);
    assert_eq!(ran(&["cassette", "fmt", shop.name()]).0, 0);
    let text = shop.text();
    assert!(text.contains("at: tool:shop/buy\n") && text.contains("at: mcp:shop\n"), "{text}");
    assert_eq!(ran(&["cassette", "fmt", "--check", shop.name()]).0, 0);
    let (code, report) = ran(&["cassette", "validate", shop.name()]);
    assert_eq!(code, 0, "{report}");
    let other = Shelf::with(&text.replace("text: bought", "text: sold out").replace("what: tea", "what: coffee"));
    let (code, diff) = ran(&["cassette", "diff", shop.name(), other.name()]);
    assert_eq!(code, 1);
    assert!(diff.contains(" shop tools/call buy {"), "{diff}");
    assert!(
        diff.contains(r#""bought" -> "sold out""#) && diff.contains(r#"$.params.arguments.what: "tea" -> "coffee""#),
        "{diff}"
    );
}

#[test]
fn an_answer_that_is_none_names_its_line() {
    let shop =
        Shelf::with(&SERVER.replace("json: {result: {tools: [{name: buy}, {name: sell}]}}", "json: {tools: []}"));
    let (_, code, notes) = Server::play(&shop, &[]).ended();
    assert_eq!(code, 3);
    assert!(notes.contains(&format!("{}:24: ", shop.name())) && notes.contains("`result`"), "{notes}");
}

#[test]
fn case_19_a_secret_in_arguments_reaches_neither_the_disk_nor_an_error() {
    let shelf = Shelf::empty();
    let call = |secret: &str| json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "login", "arguments": {"key": secret, "password": "correct horse"}}});
    let answer = json!({"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": format!("hello {SECRET}")}]}});
    let progress =
        json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": format!("key {SECRET}")}});
    let script = format!("head -n 1 >/dev/null; echo '{progress}'; echo '{answer}'");
    let output = through(&shelf, &script, format!("{}\n", call(SECRET)).as_bytes());
    assert!(String::from_utf8_lossy(&output.stdout).contains(SECRET), "the client has it as it was");
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(notes.contains("  2 values redacted: 1 github_token, 1 password\n"), "{notes}");
    for entry in walk(shelf.folder.path()) {
        let text = String::from_utf8_lossy(&std::fs::read(&entry).unwrap()).into_owned();
        assert!(!text.contains(SECRET) && !text.contains("correct horse"), "{}: {text}", entry.display());
    }
    assert!(shelf.text().contains("[REDACTED:"), "{}", shelf.text());
    let mut play = Server::play(&shelf, &["--strict"]);
    play.send(&call(SECRET));
    assert_eq!(play.next()["method"], "notifications/message", "a request with the secret finds its record");
    play.next();
    let mut other = call(SECRET);
    other["params"]["arguments"]["more"] = json!(1);
    play.send(&other);
    let miss = play.next().to_string();
    let notes = play.end().2;
    assert!(miss.contains("40400") && !miss.contains(SECRET) && !miss.contains("correct horse"), "{miss}");
    assert!(!notes.contains(SECRET) && !notes.contains("correct horse"), "{notes}");
    let (code, report) = ran(&["cassette", "validate", shelf.name()]);
    assert_eq!(code, 0, "{report}");
}

#[test]
fn a_cassette_with_secrets_is_not_played() {
    let leaking = Shelf::with(&SERVER.replace("text: bought", &format!("text: {SECRET}")));
    let (_, code, notes) = Server::play(&leaking, &[]).ended();
    assert!(code == 3 && !notes.contains(SECRET), "{notes}");
    let mut play = Server::play(&leaking, &["--allow-secrets"]);
    assert_eq!(play.ask(json!(1), "ping", &json!({}))["id"], 1);
    assert_eq!(ran(&["cassette", "redact", leaking.name()]).0, 0);
    assert!(!leaking.text().contains(SECRET), "{}", leaking.text());
}

#[tokio::test]
async fn models_and_tools_are_on_one_cassette() {
    let records = SERVER.split_once("records:\n").unwrap().1;
    let both = Shelf::with(&tape(&[record(&["hello"], "Hi"), records.to_owned()]));
    let play = both.play(&["--strict"]);
    assert_eq!(said(&play.send(CHAT, &chat(&["hello"])).await), "Hi");
    let (code, notes) = play.stop();
    assert_eq!(code, 0, "{notes}");
    assert!(notes.contains("1 of 1 record served"), "{notes}");
    let mut tools = Server::play(&both, &[]);
    assert_eq!(tools.ask(json!(1), "tools/list", &json!({}))["result"]["tools"][0]["name"], "buy");
    let notes = tools.end().2;
    assert!(notes.contains("1 of 5 records served"), "{notes}");
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}
