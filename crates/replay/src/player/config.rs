//! Configuration of a cassette player.

pub(crate) mod forwarding;
pub(crate) mod header_rules;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Response, request::Parts};

use super::{AnswerRules, Ids, MatchCommand, Mode, ModeExceptions, OnMiss, SuppliedSecrets};
use crate::{
    account::{Admin, NetworkBlock, SessionRecording},
    matching::requests::MatchPolicy,
    mcp,
    timing::{ChangedPacing, Pacing},
};
use net::{
    server::ResponseBody,
    upstream::{NamedEndpoint, UpstreamOptions, UpstreamUrl},
};
use recording::{
    canonical::CanonicalRules,
    cassette::{Cassette, Header, Keep, WriteMode},
    redaction,
};

/// How long the rest of a response is received after its client has left, where nothing else is chosen.
pub const COMPLETE_WITHIN: Duration = Duration::from_secs(30);

/// How long the client's reply to a request of an MCP server is waited for, where nothing else is chosen.
pub const REPLY_WITHIN: Duration = Duration::from_secs(60);

base::with_defaults! {
    /// Configuration of a cassette player.
    ///
    /// By default it has no cassettes: canonical matching, an error for each miss, the recorded pace, nothing recorded, no upstream.
    #[derive(Debug, Clone)]
    pub struct PlayerConfig {
        /// The cassettes whose records are played, in order.
        pub cassettes: Vec<Cassette>,
        /// How requests are matched.
        pub matching: MatchPolicy,
        /// The command of [`RequestMatch::Exec`](crate::matching::requests::RequestMatch::Exec).
        pub match_command: Option<Arc<MatchCommand>>,
        /// How requests are compared.
        pub rules: CanonicalRules,
        /// What is played and what is recorded.
        pub mode: Mode = Mode::Replay,
        /// Which requests are an exception to that.
        pub selection: ModeExceptions = ModeExceptions::None,
        /// What a request without a record gets.
        pub on_miss: OnMiss = OnMiss::Error,
        /// The status of a miss.
        pub miss_status: u16 = 422,
        /// How much detail a miss shows its client.
        pub miss_detail: MissDetail,
        /// The upstream, where requests may leave.
        pub upstream: Option<UpstreamUrl>,
        /// How it is reached.
        pub reach: UpstreamOptions,
        /// Where new records go.
        pub output: Option<CassetteOutput>,
        /// What is kept of times and token ids.
        pub keep: Keep,
        /// Which failures are recorded.
        pub record_errors: RecordErrors,
        /// Tags of the cassettes that sessions record.
        pub tags: Vec<String>,
        /// How long the rest of a response is received after its client has left; zero for not at all.
        pub complete_within: Duration = COMPLETE_WITHIN,
        /// When the events of an answer are due.
        pub pacing: Pacing,
        /// What takes its place while the player runs.
        pub changed_pacing: Arc<ChangedPacing>,
        /// The model that answers name to requests that name none, once it is known.
        pub served_model: Arc<OnceLock<String>>,
        /// Which ids answers have.
        pub ids: Ids,
        /// What is a secret: it is neither recorded, compared nor shown.
        pub secrets: redaction::RedactionRules,
        /// Values of placeholders that no request has.
        pub supplied: SuppliedSecrets,
        /// Whether cassettes that hold secrets are played.
        pub allows_secrets: bool,
        /// Whether `/vcr/…` is answered.
        pub admin: Admin = Admin::Off,
        /// Whether a session that is opened there may record over a cassette that exists.
        pub sessions_overwrite: bool,
        /// The folder of sessions' cassettes, where this is the player of a session with a cassette of its own.
        pub session_folder: Option<PathBuf>,
        /// The folder that was named as the place of cassettes, where one was: those of sessions are in it too.
        pub folder: Option<PathBuf>,
        /// The folder of sessions' cassettes, where only sessions with cassettes of their own are played and recorded.
        pub sessions_only: Option<PathBuf>,
        /// What becomes of a recording that is not ended: of a session that is opened again, or open when the server ends.
        pub if_unended: SessionRecording = SessionRecording::Keep,
        /// Whether this session may lack its cassette: it may need none.
        pub opens_missing: bool,
        /// That the cassette of this session does not exist, and what records it: every request is a miss that says so.
        pub missing_cassette: Option<String>,
        /// What records a session's cassette, for people: a command.
        pub record_with: Option<String>,
        /// Upstreams that requests can name, beside those that were recorded.
        pub named_upstreams: Vec<String>,
        /// Bytes of a request body that are accepted.
        pub body_limit: usize = 64 * 1024 * 1024,
        /// Whether records of chats answer requests to `/v1/messages` and `/v1/responses`.
        pub cross_api: bool,
        /// Names of MCP servers that are there beside those that were recorded.
        pub mcp_names: Vec<String>,
        /// The real MCP servers, where requests to them may leave.
        pub mcp_upstreams: Vec<NamedEndpoint>,
        /// The same, which are started for each session of a client.
        pub mcp_started: Vec<Arc<dyn StartedServer>>,
        /// What requests to MCP servers get that have no record, or none left.
        pub mcp: mcp::McpPolicy = mcp::McpPolicy {
            on_used_up: mcp::OnUsedUp::Last,
            repeats_lists: true,
            reply_within: REPLY_WITHIN,
            ..mcp::McpPolicy::default()
        },
        /// Whether entries of `_meta` that are not the protocol's count in them.
        pub mcp_match_meta: bool,
        /// The refusal of a wrapped command's calls to other servers, where they are refused.
        pub network_block: Option<Arc<NetworkBlock>>,
        /// Rules that are tried before every record.
        pub answers: Option<Arc<AnswerRules>>,
        /// The log has the first line of a miss only: who reads it sees what clients print too.
        pub brief_misses: bool,
    }
}

impl PlayerConfig {
    /// Whether secrets in a cassette are a reason not to play it: its header may mark them as intended.
    pub(super) fn refuses_secrets_of(&self, cassette: &Cassette) -> bool {
        !self.allows_secrets && !cassette.header.redact.is_off
    }

    /// The path of the cassette at this place.
    pub(super) fn cassette(&self, at: usize) -> &Path {
        self.cassettes.get(at).map_or(Path::new(""), |cassette| &cassette.path)
    }
}

/// An MCP server that something in this process stands for: it is called without a connection.
pub trait StartedServer: fmt::Debug + Send + Sync {
    /// Its name: its place is `/mcp/NAME`.
    fn name(&self) -> &str;

    /// Answers a request over HTTP.
    fn answer<'a>(&'a self, parts: &'a Parts, body: Bytes) -> BoxFuture<'a, Response<ResponseBody>>;

    /// Ends the processes of all its sessions.
    fn end(&self) -> BoxFuture<'_, ()>;
}

/// A cassette that is written.
#[derive(Debug, Clone)]
pub struct CassetteOutput {
    /// The file.
    pub path: PathBuf,
    /// Its top, where it is new.
    pub header: Header,
    /// Outcome of one that is there.
    pub mode: WriteMode,
    /// Whether what was played is written too.
    pub is_full: bool,
}

/// Detail of a miss for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissDetail {
    /// The message and the first differences. Both requests are at `/vcr/misses/N`, since client libraries print all of the error.
    #[default]
    Brief,
    /// The closest record, the differences, both requests.
    Full,
    /// The message only.
    Summary,
    /// That there was none.
    None,
}

/// Failed responses that are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RecordErrors {
    /// Those that would be the same the next time: 4xx, but no refused key, no time limit, no conflict and no busy server.
    #[default]
    Lasting,
    /// All of them.
    All,
}

impl RecordErrors {
    pub(crate) fn includes(self, status: u16) -> bool {
        let is_passing = [401, 403, 408, 409, 425, 429].contains(&status) || status >= 500;
        self == Self::All || !is_passing
    }
}
