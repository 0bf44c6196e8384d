//! MCP servers over HTTP: clients of the era without sessions, and each era's clients on the other's recordings.

use serde_json::{Value, json};

use super::{
    SERVER, Shelf,
    served::{Client, code, silent},
};
use crate::support::{client::Answer, running::Running};

const NOW: &str = "2026-07-28";

/// A server of the era without sessions.
const MODERN: &str = r"vcr: 1
records:
- request: POST /mcp/shop
  body: {method: server/discover}
  answer: {json: {result: {resultType: complete, supportedVersions: [2026-07-28], capabilities: {tools: {listChanged: true}}, ttlMs: 7, cacheScope: public, _meta: {io.modelcontextprotocol/serverInfo: {name: shop}}}}}
- request: POST /mcp/shop
  body: {method: subscriptions/listen, params: {notifications: {toolsListChanged: true}}}
  aborted: 1
  answer:
    events:
    - data: {method: notifications/subscriptions/acknowledged, params: {notifications: {toolsListChanged: true}, _meta: {io.modelcontextprotocol/subscriptionId: 7}}}
- request: POST /mcp/shop
  body: {method: tools/list}
  answer: {json: {result: {resultType: complete, ttlMs: 5, cacheScope: public, tools: [{name: buy}]}}}
- request: POST /mcp/shop
  body: {method: tools/call, params: {name: buy, arguments: {what: tea}}}
  answer: {json: {result: {resultType: input_required, requestState: s1, inputRequests: {sure: {method: elicitation/create, params: {message: Sure?}}}}}}
- request: POST /mcp/shop
  body: {method: tools/call, params: {name: buy, arguments: {what: tea}, requestState: s1, inputResponses: {sure: {action: accept}}}}
  answer:
    events:
    - data: {result: {resultType: complete, content: [{type: text, text: bought}]}}
    - data: {method: notifications/tools/list_changed, params: {_meta: {io.modelcontextprotocol/subscriptionId: 7}}}
";

fn message(id: impl Into<Value>, method: &str, mut params: Value) -> Value {
    params["_meta"] =
        json!({"io.modelcontextprotocol/protocolVersion": NOW, "io.modelcontextprotocol/clientCapabilities": {}});
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params})
}

/// A client that sends these headers.
fn client<'a>(server: &'a Running, version: &'a str, method: &'a str, name: Option<&'a str>) -> Client<'a> {
    let mut client = Client::new(server);
    client.headers.extend([("mcp-protocol-version", version), ("mcp-method", method)]);
    client.headers.extend(name.map(|name| ("mcp-name", name)));
    client
}

async fn ask(server: &Running, id: impl Into<Value>, method: &str, params: Value) -> Answer {
    let name = params["name"].as_str().map(str::to_owned);
    let sent = message(id, method, params);
    client(server, NOW, method, name.as_deref()).post(&sent).await
}

#[tokio::test]
async fn case_11_headers_and_body_agree() {
    let shop = Shelf::with(&silent().replace("name: sell, arguments", "name: é, arguments"));
    let play = shop.play(&[]);
    let call = || json!({"name": "é", "arguments": {"what": "tea"}});
    let packed = Some("=?base64?w6k=?=");
    let of = |version: &str, method: &str, params: Value| {
        let mut sent = message(1, method, params);
        sent["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(version);
        sent
    };
    let mut bare = of(NOW, "tools/list", json!({}));
    bare["params"]["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": NOW});
    for (head, body, status, expected) in [
        (client(&play, NOW, "tools/list", None), of(NOW, "tools/list", json!({})), 200, 0),
        (client(&play, NOW, "tools/call", packed), of(NOW, "tools/call", call()), 200, -32602),
        (client(&play, NOW, "prompts/list", None), of(NOW, "tools/list", json!({})), 400, -32020),
        (client(&play, NOW, "tools/call", None), of(NOW, "tools/call", call()), 400, -32020),
        (client(&play, NOW, "tools/call", Some("e")), of(NOW, "tools/call", call()), 400, -32020),
        (client(&play, "2025-11-25", "tools/list", None), of(NOW, "tools/list", json!({})), 400, -32020),
        (Client::new(&play), of(NOW, "tools/list", json!({})), 400, -32020),
        (client(&play, "2099-01-01", "tools/list", None), of("2099-01-01", "tools/list", json!({})), 400, -32022),
        (client(&play, NOW, "no/method", None), of(NOW, "no/method", json!({})), 404, -32601),
        (
            client(&play, NOW, "tools/list", None),
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
            400,
            -32602,
        ),
        (client(&play, NOW, "tools/list", None), bare, 400, -32602),
    ] {
        let answer = head.post(&body).await;
        let code = answer.json()["error"]["code"].as_i64().unwrap_or(0);
        assert_eq!((answer.status, code, &answer.json()["id"]), (status, expected, &json!(1)), "{body}");
    }
    let unsupported = client(&play, "2099-01-01", "ping", None).post(&of("2099-01-01", "ping", json!({}))).await.json();
    assert_eq!(unsupported["error"]["data"], json!({"supported": [NOW], "requested": "2099-01-01"}));
    for method in ["GET", "DELETE"] {
        let refused = client(&play, NOW, "x", None).method(method).await;
        assert_eq!((refused.status, refused.header("allow")), (405, Some("POST")), "{method}");
    }
}

#[tokio::test]
async fn arguments_that_a_schema_marks_are_repeated_in_headers() {
    let schema = "inputSchema: {type: object, properties: {what: {type: string, x-mcp-header: What}, many: {type: integer, x-mcp-header: Many}}}";
    let shop = Shelf::with(
        &silent().replace("{name: buy}, {name: sell}", &format!("{{name: buy, {schema}}}, {{name: sell}}")),
    );
    let play = shop.play(&[]);
    let call = message(1, "tools/call", json!({"name": "buy", "arguments": {"what": "tea", "many": 2}}));
    for (headers, status) in [
        (vec![("mcp-param-what", "tea"), ("mcp-param-many", "2")], 200),
        (vec![("Mcp-Param-What", "=?base64?dGVh?="), ("mcp-param-many", "2.0")], 200),
        (vec![("mcp-param-what", "tea")], 400),
        (vec![("mcp-param-what", "coffee"), ("mcp-param-many", "2")], 400),
        (vec![("mcp-param-what", "=?base64?d?="), ("mcp-param-many", "2")], 400),
    ] {
        let mut sender = client(&play, NOW, "tools/call", Some("buy"));
        sender.headers.extend(headers.clone());
        let answer = sender.post(&call).await;
        assert_eq!(answer.status, status, "{headers:?} {}", answer.text());
        assert_eq!(answer.json()["error"]["code"].as_i64(), (status == 400).then_some(-32020));
    }
}

#[tokio::test]
async fn case_12_each_era_is_answered_from_the_other() {
    let (old, new) = (Shelf::with(&silent()), Shelf::with(MODERN));
    let play = old.play(&[]);
    let found = ask(&play, 1, "server/discover", json!({})).await;
    assert_eq!(found.header("mcp-session-id"), None, "there are no sessions");
    let found = found.json()["result"].clone();
    assert_eq!((&found["resultType"], &found["ttlMs"]), (&json!("complete"), &json!(0)));
    assert_eq!(
        (&found["supportedVersions"], &found["capabilities"]["tools"]),
        (&json!([NOW]), &json!({"listChanged": true}))
    );
    let listed = ask(&play, 2, "tools/list", json!({})).await.json();
    assert_eq!(
        (&listed["result"]["resultType"], &listed["result"]["cacheScope"]),
        (&json!("complete"), &json!("private"))
    );
    // What the server asked, a client of this era cannot be asked.
    let asking = Shelf::with(SERVER);
    let play = asking.play(&[]);
    let refused = ask(&play, 1, "tools/call", json!({"name": "buy", "arguments": {"what": "tea", "many": 2}})).await;
    assert_eq!((refused.status, &refused.json()["error"]["data"]["vcr"]["reason"]), (200, &json!("era")));

    let play = new.play(&[]);
    let legacy = Client::begun(&play, "2025-11-25").await;
    let listed = legacy.ask(json!(1), "tools/list", &json!({})).await.json();
    assert_eq!(listed["result"], json!({"tools": [{"name": "buy"}]}));
    let refused = legacy.call(2, "buy", &json!({"what": "tea"})).await;
    assert_eq!((refused.status, code(&refused)), (200, 40400));
    // Both at once at one address.
    assert_eq!(ask(&play, 3, "tools/list", json!({})).await.json()["result"]["ttlMs"], 5);
}

#[tokio::test]
async fn case_13_14_a_subscription_and_a_call_that_asks_for_input() {
    let shop = Shelf::with(MODERN);
    let play = shop.play(&["--strict"]);
    let listen = message("mine", "subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    let subscriber = client(&play, NOW, "subscriptions/listen", None);
    let mut events = subscriber.stream(Some(&listen)).await;
    let name = "io.modelcontextprotocol/subscriptionId";
    let acknowledged = events.next().await.unwrap();
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(acknowledged["params"]["_meta"][name], "mine");
    let asked = ask(&play, 1, "tools/call", json!({"name": "buy", "arguments": {"what": "tea"}})).await.json();
    assert_eq!(
        (&asked["result"]["resultType"], &asked["result"]["requestState"]),
        (&json!("input_required"), &json!("s1"))
    );
    let again = json!({"name": "buy", "arguments": {"what": "tea"}, "requestState": "s1", "inputResponses": {"sure": {"action": "accept"}}});
    let bought = ask(&play, "2", "tools/call", again).await;
    assert_eq!(bought.header("content-type"), Some("application/json"), "{}", bought.text());
    assert_eq!((&bought.json()["id"], &bought.json()["result"]["content"][0]["text"]), (&json!("2"), &json!("bought")));
    let changed = events.next().await.unwrap();
    assert_eq!(
        (&changed["method"], &changed["params"]["_meta"][name]),
        (&json!("notifications/tools/list_changed"), &json!("mine"))
    );
    ask(&play, 3, "tools/list", json!({})).await;
    let (exit, notes) = play.stop();
    assert_eq!(exit, 0, "{notes}");
    assert!(events.ended_well().await);
}

#[tokio::test]
async fn a_recording_without_subscriptions_announces_to_those_of_its_client() {
    let text = silent().replace(
        "    - data: {result: {content: [{type: text, text: bought}], isError: false}}\n",
        "    - data: {result: {content: [{type: text, text: bought}], isError: false}}\n    - data: {method: notifications/tools/list_changed}\n",
    );
    let shop = Shelf::with(&text);
    let play = shop.play(&[]);
    let listen = message(9, "subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    let mut events = client(&play, NOW, "subscriptions/listen", None).stream(Some(&listen)).await;
    let acknowledged = events.next().await.unwrap();
    assert_eq!(acknowledged["params"]["notifications"], json!({"toolsListChanged": true}));
    ask(&play, 1, "tools/call", json!({"name": "buy", "arguments": {"what": "tea", "many": 2}})).await;
    let changed = events.next().await.unwrap();
    assert_eq!(changed["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 9);
}
