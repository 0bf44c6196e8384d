//! The MCP servers of a cassette that `tap` plays, with the real ones behind them.

use std::{ops::ControlFlow, sync::Arc};

use axum::body::Body;
use futures_util::future::{BoxFuture, FutureExt, join_all};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::{
    net::server::{BodyError, ResponseBody},
    play::{DEFAULT_BODY_LIMIT, mcp::McpAccess, mcp::McpService},
    recording::cassette::CassetteError,
    replay::{account::http::plain, mcp_traffic::StartedServer, player::CassettePlayer},
    tap::{McpRecorded, mcp::McpPlayback},
};

#[derive(Debug)]
pub(super) struct McpPlayed {
    service: Arc<McpService>,
    started: Vec<Arc<dyn StartedServer>>,
}

impl McpPlayed {
    /// Serves the MCP servers of a player; what it has no record for goes to those that it names, and to the `started` ones.
    ///
    /// # Errors
    /// When the recorder of what goes there cannot be started.
    pub(super) fn start(
        player: &Arc<CassettePlayer>,
        started: Vec<Arc<dyn StartedServer>>,
    ) -> Result<Self, CassetteError> {
        let access = McpAccess { body_limit: DEFAULT_BODY_LIMIT, ..McpAccess::default() };
        Ok(Self { service: Arc::new(McpService::start(player, access)?), started })
    }
}

impl McpPlayback for McpPlayed {
    fn answer(&self, request: Request<Incoming>) -> BoxFuture<'static, Response<ResponseBody>> {
        let service = Arc::clone(&self.service);
        let answer = async move {
            match service.answer(request.map(Body::new)).await {
                ControlFlow::Break(response) => response.map(|body| body.map_err(BodyError::broken).boxed_unsync()),
                ControlFlow::Continue(_) => plain(StatusCode::NOT_FOUND, "no MCP server was recorded"),
            }
        };
        answer.boxed()
    }

    fn end_streams(&self) {
        self.service.end_streams();
    }

    fn end(&self) -> BoxFuture<'_, ()> {
        join_all(self.started.iter().map(|server| server.end())).map(drop).boxed()
    }

    fn finish(&self) -> Option<McpRecorded> {
        self.service.finish()
    }
}
