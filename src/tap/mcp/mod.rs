//! Taps of MCP servers. Over HTTP they are behind the address of the tap; over stdio a program stands in their place, and
//! starts them ([`StdioTap`], and [`McpCommand`] for clients over HTTP) or calls them over HTTP ([`UrlTap`]).

mod bridge;
mod events;
mod http;
mod lane;
mod recording;
mod sink;
mod spawned;
mod stdio;
mod traffic;
mod traffic_sink;
mod url;

use std::io;

pub use self::{bridge::UrlTap, http::McpServer, recording::Tape, spawned::McpCommand, stdio::StdioTap, url::McpUrl};
pub(super) use self::{http::McpServers, traffic::Copies as McpCopies};
use crate::{recording::cassette::CassetteError, replay::mcp::Unrecorded};

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

/// Counts of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct McpRecorded {
    /// Messages of the client that became records.
    pub records: u64,
    /// Exchanges that took too much work to search them for secrets.
    pub unsearched: u64,
    /// Stretches of bytes that did not fit into the recorder's queue, and messages that were too large.
    pub gaps: u64,
    /// Messages that the server refused or did not receive, by HTTP.
    pub refused: u64,
    /// What could not be recorded for other reasons.
    pub unrecorded: Unrecorded,
}
