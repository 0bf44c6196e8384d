//! MCP servers that answer from cassettes: over stdio, and over HTTP beside the models.

mod http;
mod origin;
mod stdio;
mod streams;

pub use self::stdio::{McpEnd, play_stdio};
pub(super) use self::{http::McpServers, streams::Streams};
