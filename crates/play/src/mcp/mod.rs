//! MCP servers that answer from cassettes: over stdio, and over HTTP beside the models.

mod opening;
mod origin;
mod servers;
mod stdio;
mod streams;
mod upstreams;

pub(super) use self::servers::{ROOT, RecordedMcpServers};
pub use self::{
    servers::{McpAccess, McpService},
    stdio::{McpEnd, StdioError, play_stdio},
};
