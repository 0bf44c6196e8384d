//! The MCP servers of a cassette that `tap` plays, with the real ones behind them.
//!
//! See docs/decisions/0117-a-tap-plays-mcp-servers.md.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt, join_all};
use http::Response;

use crate::{
    net::server::ResponseBody,
    play::{
        DEFAULT_BODY_LIMIT,
        mcp::{McpAccess, McpService},
    },
    recording::cassette::CassetteError,
    replay::player::{CassettePlayer, StartedServer},
    tap::{
        McpRecorded,
        mcp::{McpPlayback, McpRequest},
    },
};

#[derive(Debug)]
pub(super) struct McpPlayed {
    service: Arc<McpService>,
    started: Vec<Arc<dyn StartedServer>>,
}

impl McpPlayed {
    /// Serves the MCP servers of a player; what it has no record for goes to those that it names, and to the `started` ones.
    pub(super) fn start(
        player: &Arc<CassettePlayer>,
        started: Vec<Arc<dyn StartedServer>>,
    ) -> Result<Self, CassetteError> {
        let access = McpAccess { body_limit: DEFAULT_BODY_LIMIT, ..McpAccess::default() };
        Ok(Self { service: Arc::new(McpService::start(player, access)?), started })
    }
}

impl McpPlayback for McpPlayed {
    fn answer(&self, request: McpRequest) -> BoxFuture<'static, Response<ResponseBody>> {
        Arc::clone(&self.service).play(request)
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
