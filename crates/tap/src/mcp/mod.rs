//! Taps of MCP servers. Over HTTP they are behind the address of the tap; over stdio a program stands in their place, and
//! starts them ([`StdioTap`], and [`McpCommand`] for clients over HTTP) or calls them over HTTP ([`UrlTap`]).

mod bridge;
mod http;
mod spawned;
mod stdio;

use std::io;

pub(super) use self::http::McpServers;
pub use self::{bridge::UrlTap, spawned::McpCommand, stdio::StdioTap};
use recording::cassette::CassetteError;
pub use replay::mcp_traffic::{McpRecorded, RecordingTarget};

/// Bytes that are read at once.
const AT_ONCE: usize = 64 << 10;

/// Reason for which a server cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum McpTapError {
    /// The cassette cannot be written.
    #[error(transparent)]
    Cassette(#[from] CassetteError),
    /// The server cannot be started.
    #[error("cannot run {command}")]
    Command {
        /// The program.
        command: String,
        /// Why.
        source: io::Error,
    },
}

/// What a tap came to.
#[derive(Debug)]
pub struct McpTapEnd {
    /// The server's exit code, as a shell shows it.
    pub code: u8,
    /// What was recorded.
    pub recorded: Result<McpRecorded, CassetteError>,
}
