//! MCP servers that answer from cassettes: over stdio, and over HTTP beside the models.

mod http;
mod opening;
mod origin;
mod stdio;
mod streams;
mod upstreams;

pub use self::stdio::{McpEnd, play_stdio};
pub(super) use self::{http::McpServers, streams::Streams, upstreams::Upstreams};
