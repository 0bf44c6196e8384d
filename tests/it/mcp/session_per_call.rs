//! Agents that open an MCP session for each call.

use serde_json::json;

use super::{Shelf, served::Client};
use crate::support::running::Running;

const TICKETS: [&str; 3] = ["287", "220", "104"];

/// A recording of several sessions, each with one and the same call.
fn recorded() -> Shelf {
    let mut text = "vcr: 1\nrecords:\n".to_owned();
    for ticket in TICKETS {
        text += &format!(
            "- request: POST /mcp/shop\n  body: {{method: initialize, params: {{protocolVersion: 2025-06-18}}}}\n  answer:\n    \
             json: {{result: {{protocolVersion: 2025-06-18, capabilities: {{tools: {{}}}}, serverInfo: {{name: shop, version: '1'}}}}}}\n\
             - request: POST /mcp/shop\n  body: {{method: tools/call, params: {{name: ticket}}}}\n  answer:\n    \
             json: {{result: {{content: [{{type: text, text: '{ticket}'}}]}}}}\n"
        );
    }
    Shelf::with(&text)
}

async fn ticket(client: &Client<'_>) -> String {
    let answer = client.call(1, "ticket", &json!({})).await.json();
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// A call in a session of its own, below this path.
async fn once(play: &Running, path: &'static str) -> String {
    let client = Client { path, ..Client::new(play) }.begin("2025-06-18").await;
    let ticket = ticket(&client).await;
    assert_eq!(client.method("DELETE").await.status, 200);
    ticket
}

#[tokio::test]
async fn sessions_go_on_where_the_ones_before_them_ended() {
    let shelf = recorded();
    let play = shelf.play(&["--strict"]);
    for expected in TICKETS {
        assert_eq!(once(&play, "/mcp/shop").await, expected);
    }
    let (exit, notes) = play.stop();
    assert_eq!(exit, 0, "{notes}");

    // An agent that runs again, and one in a session of the account, start again; so does all after a reset.
    let play = shelf.play(&["--strict"]);
    for path in ["/mcp/shop", "/mcp/shop", "/vcr/s/a/mcp/shop"] {
        for expected in TICKETS {
            assert_eq!(once(&play, path).await, expected);
        }
    }
    assert_eq!(once(&play, "/mcp/shop").await, TICKETS[0]);
    play.send("/vcr/reset", &json!({})).await;
    assert_eq!(once(&play, "/mcp/shop").await, TICKETS[0]);
}

#[tokio::test]
async fn sessions_at_once_get_different_records() {
    let shelf = recorded();
    let play = shelf.play(&["--strict"]);
    let mut clients = Vec::new();
    for _ in TICKETS {
        clients.push(Client::begun(&play, "2025-06-18").await);
    }
    let mut tickets = futures_util::future::join_all(clients.iter().map(ticket)).await;
    tickets.sort_by_key(|ticket| TICKETS.iter().position(|known| known == ticket));
    assert_eq!(tickets, TICKETS);
    assert_eq!(play.stop().0, 0);
}
