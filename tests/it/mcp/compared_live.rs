//! The answers of real MCP servers beside the recorded ones (`--mode compare`), and what the account shows of MCP.

use serde_json::{Value, json};

use super::{
    Shelf,
    served::{Client, silent},
    wire::{engine, posted, server, shop, whole},
};
use crate::support::{peer::Upstream, running::Running};

/// The shop as it is now: another tool, another text, another error.
async fn changed_shop() -> Upstream {
    server(|request| {
        let message = posted(request);
        let answer = |result: Value| {
            whole("200 OK", "", &json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string())
        };
        match message["method"].as_str().unwrap_or_default() {
            "tools/list" => {
                answer(json!({"tools": [{"name": "buy", "inputSchema": {"type": "object", "required": ["what"]}}]}))
            }
            "tools/call" if message["params"]["name"] == "sell" => {
                answer(json!({"content": [{"type": "text", "text": "sold"}]}))
            }
            "resources/read" => answer(json!({"contents": [{"uri": "shop://é/list", "blob": "AAECAw=="}]})),
            _ => shop(request),
        }
    })
    .await
}

async fn use_shop(client: &Client<'_>) {
    assert_eq!(client.ask(json!(1), "tools/list", &json!({})).await.status, 200);
    let sold = client.call(2, "sell", &json!({"what": "tea"})).await;
    assert_eq!(sold.json()["result"]["content"][0]["text"], "sold", "the real answer: {}", sold.text());
    assert_eq!(client.ask(json!(3), "resources/read", &json!({"uri": "shop://é/list"})).await.status, 200);
    assert_eq!(client.call(4, "steal", &json!({})).await.status, 200);
    assert_eq!(client.method("DELETE").await.status, 200);
}

fn check(session: &Value, notes: &str) {
    assert_eq!(session["misses"], json!({"no_match": 1}), "{session}");
    let compared = &session["compared"];
    assert_eq!((&compared["answers"], &compared["structure"]), (&json!(4), &json!(3)), "{session}");
    let changes = compared["changes"].to_string();
    assert!(changes.contains("#5") && changes.contains("$.error") && changes.contains("listChanged"), "{changes}");
    assert!(session["tools"]["buy"]["changes"].to_string().contains("changed: inputSchema"), "{session}");
    assert!(notes.contains("failed: drift") && notes.contains("compared: 4 answers"), "{notes}");
}

fn report(shelf: &Shelf) -> (std::path::PathBuf, String) {
    let path = shelf.folder.path().join("report.json");
    let name = path.display().to_string();
    (path, name)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tap_compares_what_servers_answer_with_the_records() {
    let (real, llm) = (changed_shop().await, engine().await);
    let shelf = Shelf::with(&silent());
    let (path, name) = report(&shelf);
    let url = format!("shop=http://{}/mcp", real.address);
    let flags = ["--mode", "compare", "--mcp", &url, "--report", &name, "--fail-on", "drift"];
    let tap = shelf.tap(&llm, &flags);
    let client = Client::begun(&tap, "2025-06-18").await;
    use_shop(&client).await;
    let (exit, notes) = tap.stop();
    assert_eq!(exit, 1, "{notes}");
    assert!(!notes.contains("messages to MCP servers"), "nothing is recorded: {notes}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    check(&report["sessions"]["mcp:shop"], &notes);
    assert_eq!(shelf.text(), silent());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_player_compares_them_too() {
    let real = changed_shop().await;
    let shelf = Shelf::with(&silent());
    let (path, name) = report(&shelf);
    let url = format!("shop=http://{}/mcp", real.address);
    let play = shelf.play(&["--mode", "compare", "--mcp-upstream", &url, "--report", &name, "--fail-on", "drift"]);
    let client = Client::begun(&play, "2025-06-18").await;
    assert_eq!(client.session.as_deref(), Some("s-1"), "everything passes");
    use_shop(&client).await;
    let (exit, notes) = play.stop();
    assert_eq!(exit, 1, "{notes}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    check(&report["sessions"]["mcp:shop"], &notes);
}

async fn list(play: &Running, path: &str) -> Vec<Value> {
    let found = play.get(path).await;
    found.as_array().unwrap_or_else(|| panic!("{found}")).clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_and_records_of_mcp_are_in_the_account() {
    let shelf = Shelf::with(&silent());
    let play = shelf.play(&[]);
    let client = Client::begun(&play, "2025-06-18").await;
    assert_eq!(client.ask(json!(1), "tools/list", &json!({})).await.status, 200);
    assert_eq!(client.call(2, "sell", &json!({"what": "tea"})).await.status, 200);
    assert_eq!(
        client.call(3, "steal", &json!({"key": "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"})).await.status,
        200
    );
    let requests = list(&play, "/vcr/requests").await;
    let shown: Vec<(&str, &str)> =
        requests.iter().map(|it| (it["at"].as_str().unwrap(), it["outcome"].as_str().unwrap())).collect();
    let expected = [
        ("mcp:shop", "replayed"),
        ("mcp:shop", "replayed"),
        ("tool:shop/sell", "replayed"),
        ("tool:shop/steal", "missed"),
    ];
    assert_eq!(shown, expected);
    assert_eq!((&requests[2]["request"], &requests[3]["reason"]), (&json!("POST /mcp/shop"), &json!("no_match")));
    assert!(requests[2]["record"].as_str().unwrap().ends_with("tape.yaml#5"), "{}", requests[2]);
    assert_eq!(requests[2]["body"]["params"]["arguments"], json!({"what": "tea"}));
    assert!(!requests[3].to_string().contains("abcdefghijklmnop"), "{}", requests[3]);

    let records = list(&play, "/vcr/records").await;
    assert_eq!(records.len(), 7);
    assert_eq!((&records[5]["at"], &records[5]["served"]), (&json!("tool:shop/sell"), &json!(1)));
    assert_eq!((&records[2]["served"], &records[4]["served"]), (&json!(1), &json!(0)));
    let one = play.get("/vcr/records/5").await;
    assert_eq!(
        (&one["body"]["params"]["name"], &one["answer"]["error"]["code"]),
        (&json!("sell"), &json!(-32602)),
        "{one}"
    );
}
