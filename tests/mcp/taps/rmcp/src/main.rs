//! An MCP server on rmcp: `rmcp-server stdio`, or `rmcp-server PORT` for streamable HTTP.

use std::sync::Arc;

use rmcp::{
    Peer, RoleServer, ServerHandler, ServiceExt,
    handler::server::{router::tool::ToolRouter, wrapper::Parameters},
    model::{ProgressNotificationParam, RequestMetaObject, ServerCapabilities, ServerConfig},
    schemars, tool, tool_handler, tool_router,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
pub struct Add {
    one: i64,
    other: i64,
}

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
pub struct Slow {
    steps: u32,
}

#[derive(Clone)]
pub struct Shop {
    #[allow(dead_code)]
    tool_router: ToolRouter<Self>,
}

#[tool_router]
impl Shop {
    fn new() -> Self {
        Self { tool_router: Self::tool_router() }
    }

    #[tool(description = "Adds.")]
    fn add(&self, Parameters(Add { one, other }): Parameters<Add>) -> String {
        (one + other).to_string()
    }

    #[tool(description = "Reports progress.")]
    async fn slow(
        &self,
        meta: RequestMetaObject,
        client: Peer<RoleServer>,
        Parameters(Slow { steps }): Parameters<Slow>,
    ) -> String {
        if let Some(token) = meta.get_progress_token() {
            for step in 1..=steps {
                let note = ProgressNotificationParam::new(token.clone(), f64::from(step)).with_total(f64::from(steps));
                let _ = client.notify_progress(note).await;
            }
        }
        "done é".to_owned()
    }

    #[tool(description = "Fails.")]
    fn fail(&self) -> Result<String, rmcp::ErrorData> {
        Err(rmcp::ErrorData::invalid_params("no such thing", None))
    }
}

#[tool_handler]
impl ServerHandler for Shop {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }
}

#[tokio::main]
async fn main() {
    let at = std::env::args().nth(1).unwrap();
    if at == "stdio" {
        let service = Shop::new().serve(rmcp::transport::stdio()).await.unwrap();
        service.waiting().await.unwrap();
        return;
    }
    let service = StreamableHttpService::new(
        || Ok(Shop::new()),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default(),
    );
    let router = axum::Router::new().nest_service("/mcp", service);
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{at}")).await.unwrap();
    axum::serve(listener, router).await.unwrap();
}
