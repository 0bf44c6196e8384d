//! MCP on the command line: `mcp-tap`, `mcp-play`, and the flags of `tap` and `play` about MCP servers.

pub(in crate::cli) mod play;
pub(in crate::cli) mod servers;
pub(in crate::cli) mod tap;
