//! Uses the shop with rmcp and prints what it sees, a line of JSON each: `shop-client legacy|modern URL|COMMAND [ARGUMENT...]`.

// The revisions with sessions have roots.
#![allow(deprecated)]

use std::sync::{Arc, Mutex};

use rmcp::{
    ClientHandler, ErrorData, RoleClient,
    model::{
        CallToolRequestParams, ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
        GetPromptRequestParams, Implementation, ListRootsResult, ProgressNotificationParam, ProtocolVersion,
        ReadResourceRequestParams, Root,
    },
    service::{ClientLifecycleMode, ClientServiceExt, NotificationContext, RequestContext, RunningService},
    transport::{StreamableHttpClientTransport, TokioChildProcess},
};
use serde::Serialize;
use serde_json::{Value, json};

type Client = RunningService<RoleClient, Shop>;

/// What the server reported and announced.
#[derive(Clone, Default)]
struct Shop {
    progress: Arc<Mutex<Vec<Value>>>,
    notes: Arc<Mutex<Vec<&'static str>>>,
}

fn show(what: &str, seen: impl Serialize) {
    println!("{}", json!([what, seen]));
}

fn value(seen: impl Serialize) -> Value {
    serde_json::to_value(seen).unwrap()
}

impl ClientHandler for Shop {
    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_roots().enable_elicitation().build();
        ClientConfig::new(capabilities, Implementation::new("rmcp", "1"))
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        Ok(ListRootsResult::new(vec![Root::new("file:///a")]))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        show("elicitation", value(&request)["message"].clone());
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({"sure": true})))
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let mut seen = value(params);
        // Each run has tokens of its own.
        seen.as_object_mut().unwrap().remove("progressToken");
        self.progress.lock().unwrap().push(seen);
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.notes.lock().unwrap().push("tools/list_changed");
    }
}

fn call(name: &'static str, arguments: Value) -> CallToolRequestParams {
    CallToolRequestParams::new(name).with_arguments(arguments.as_object().cloned().unwrap())
}

async fn show_call(client: &Client, name: &'static str, arguments: Value) {
    match client.call_tool(call(name, arguments)).await {
        Ok(result) => show(name, result),
        Err(error) => show("error", json!([name, error.to_string()])),
    }
}

async fn read(client: &Client, uri: &str) -> Value {
    value(client.read_resource(ReadResourceRequestParams::new(uri)).await.unwrap())
}

async fn use_shop(client: &Client, is_modern: bool) {
    show("opened", client.peer_info());
    show("tools", client.list_all_tools().await.unwrap());
    if !is_modern {
        show_call(client, "buy", json!({"what": "tea", "many": 2})).await;
        show_call(client, "roots", json!({})).await;
    }
    show_call(client, "count", json!({"to": 3})).await;
    show_call(client, "fail", json!({})).await;
    show_call(client, "nothing", json!({})).await;
    show("resources", client.list_all_resources().await.unwrap());
    show("templates", client.list_all_resource_templates().await.unwrap());
    show("read", [read(client, "shop://list").await, read(client, "shop://item/tea").await]);
    show("prompts", client.list_all_prompts().await.unwrap());
    let topic = json!({"topic": "tea"}).as_object().cloned().unwrap();
    show("prompt", client.get_prompt(GetPromptRequestParams::new("ask").with_arguments(topic)).await.unwrap());
    let (one, other, two) = tokio::join!(
        client.call_tool(call("count", json!({"to": 1}))),
        client.read_resource(ReadResourceRequestParams::new("shop://item/milk")),
        client.call_tool(call("count", json!({"to": 2}))),
    );
    show("together", json!([one.unwrap(), other.unwrap(), two.unwrap()]));
    // Each report is handled on its own, perhaps after the answer.
    let reports = if is_modern { 6 } else { 9 };
    for _ in 0..100 {
        let has_notes = is_modern || !client.service().notes.lock().unwrap().is_empty();
        if has_notes && client.service().progress.lock().unwrap().len() == reports {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    show("notes", client.service().notes.lock().unwrap().clone());
    // Reports of calls that ran together come in any order.
    let mut progress: Vec<String> = client.service().progress.lock().unwrap().iter().map(Value::to_string).collect();
    progress.sort();
    show("progress", progress);
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let (era, target) = (arguments.next().unwrap(), arguments.next().unwrap());
    let is_modern = era == "modern";
    let lifecycle = if is_modern {
        ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::LATEST] }
    } else {
        ClientLifecycleMode::Initialize
    };
    let shop = Shop::default();
    let client = if target.starts_with("http") {
        shop.serve_with_lifecycle(StreamableHttpClientTransport::from_uri(target), lifecycle).await.unwrap()
    } else {
        let mut command = tokio::process::Command::new(target);
        command.args(arguments);
        shop.serve_with_lifecycle(TokioChildProcess::new(command).unwrap(), lifecycle).await.unwrap()
    };
    use_shop(&client, is_modern).await;
    client.cancel().await.unwrap();
}
