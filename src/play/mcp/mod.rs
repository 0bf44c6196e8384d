//! MCP servers that answer from cassettes: over stdio, and over HTTP beside the models.

mod opening;
mod origin;
mod servers;
mod stdio;
mod streams;
mod upstreams;

pub use self::stdio::{McpEnd, play_stdio};
pub(super) use self::{servers::McpServers, streams::Streams, upstreams::Upstreams};
