//! Arguments of `play` about the MCP servers of its cassettes.

use std::time::Duration;

use clap::Args;

use super::values::one_of;
use super::{mcp_tapped::named_url, server::Secret};
use crate::{
    base::units::parse_duration,
    net::upstream::{EndpointUrl, NamedEndpoint},
    replay::matching::requests::OnExhausted,
    replay::mcp::{OnNovel, OnUsedUp, Policy},
    replay::player::Config,
};

/// How the MCP servers of cassettes are played, at /mcp/NAME.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "MCP servers")]
pub(in crate::cli) struct McpServersArgs {
    /// What a request to an MCP server gets that was not recorded.
    #[arg(long, value_name = "WHAT", default_value = "error", value_parser = one_of::<OnNovel>())]
    pub(in crate::cli) mcp_on_miss: OnNovel,
    /// The real MCP server of a name, over streamable HTTP, for --mcp-on-miss upstream and record and for the modes that go upstream. Such as
    /// time=http://localhost:9000/mcp.
    #[arg(long, value_name = "NAME=URL", value_parser = named_url)]
    pub(in crate::cli) mcp_upstream: Vec<(String, EndpointUrl)>,
    /// A header of every request to the real MCP servers, in place of the client's: 'Authorization: Bearer TOKEN'. With NAME= before it, to one
    /// of them. It is not recorded. Other users can read arguments: prefer VLLM_VCR_UPSTREAM_HEADER.
    #[arg(long, value_name = "HEADER", hide_default_value = true)]
    pub(in crate::cli) upstream_header: Vec<Secret>,
    /// Counts entries of _meta too, but those of the protocol, of progress and of traces.
    #[arg(long)]
    pub(in crate::cli) mcp_match_meta: bool,
    /// How long the client's reply to a request of an MCP server is waited for.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    pub(in crate::cli) mcp_reply_within: Duration,
    /// A name with a dot under which clients reach the MCP servers, or * for any. Other names than addresses and names without a
    /// dot are refused: they may be those of web pages.
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) mcp_host: Vec<String>,
}

impl McpServersArgs {
    /// Puts them into the configuration of a player; requests that are sent more often than recorded get what others get, and without
    /// a flag the last record again, or an error where it is strict.
    pub(in crate::cli) fn configure(
        &self,
        config: &mut Config,
        upstreams: Vec<NamedEndpoint>,
        on_exhausted: Option<OnExhausted>,
    ) {
        let on_used_up = match on_exhausted {
            Some(OnExhausted::Error) => OnUsedUp::Error,
            Some(OnExhausted::Last | OnExhausted::Cycle) => OnUsedUp::Last,
            // A further request is a new one, where the real server can answer it.
            None if !self.mcp_upstream.is_empty() => OnUsedUp::Error,
            None => OnUsedUp::Last,
        };
        let (on_novel, reply_within) = (self.mcp_on_miss, self.mcp_reply_within);
        config.mcp = Policy { on_novel, on_used_up, reply_within, counts_forwarded: true, over_http: true };
        config.mcp_match_meta = self.mcp_match_meta;
        config.mcp_names = upstreams.iter().map(|upstream| upstream.name.clone()).collect();
        config.mcp_upstreams = upstreams;
    }
}
