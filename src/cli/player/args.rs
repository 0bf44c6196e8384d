//! Arguments of `play` and `tap` about cassettes.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use crate::{
    cli::{
        player::matching::{Way, WayParser},
        values::{Secret, one_of, with_unit},
    },
    recording::{
        canonical::{FieldPath, Normalisation, Scrub},
        cassette::{Times, TokenIds},
    },
    replay::{
        account::Concern,
        matching::requests::{OnExhausted, Retries},
        player::{Ids, MissDetail, OnMiss, RecordErrors, Selector},
    },
};

/// The cassette in a folder of sessions that other requests go into.
pub(in crate::cli) const DEFAULT_FILE: &str = "default.yaml";

/// The folder of cassettes that `tap` records into, and that `play` plays by default if it exists.
pub(in crate::cli) const DEFAULT_FOLDER: &str = "cassettes/";

/// How a cassette is played and recorded.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cassettes")]
pub(in crate::cli) struct CassetteArgs {
    /// What is played and what is recorded. Default: play only plays (none); tap records a new cassette (once), and needs a mode for an
    /// existing one.
    #[arg(long, group = "@mode", value_name = "MODE")]
    pub(in crate::cli) mode: Option<ModeArg>,
    /// Ways to find the record of a request, tried in order. Default: auto. If a cassette and a trace are played together, each takes the
    /// ways that it has.
    #[arg(long = "match", help_heading = "Matching", group = "@ways", value_name = "WAYS", value_delimiter = ',', value_parser = WayParser)]
    pub(in crate::cli) matching: Vec<Way>,
    /// A field of requests to ignore: $.a.b, $.list[*].c, or **.name at any depth.
    #[arg(long, help_heading = "Matching", group = "@comparison", value_name = "PLACE")]
    pub(in crate::cli) ignore: Vec<FieldPath>,
    /// A query parameter to ignore.
    #[arg(long, help_heading = "Matching", group = "@comparison", value_name = "NAME")]
    pub(in crate::cli) ignore_query: Vec<String>,
    /// Also compares fields that matching normally ignores, such as `stream` and `user`.
    #[arg(long, help_heading = "Matching", group = "@comparison")]
    pub(in crate::cli) no_default_ignores: bool,
    /// How bodies are compared: in canonical form (even), which ignores nulls, default values and how arguments are written, or field by
    /// field (strict).
    #[arg(long, help_heading = "Matching", group = "@comparison", value_name = "FORM", default_value = "even", value_parser = one_of::<Normalisation>())]
    pub(in crate::cli) canonical: Normalisation,
    /// An edit of every text before comparison: s/PATTERN/REPLACEMENT/.
    #[arg(long, help_heading = "Matching", group = "@comparison", value_name = "EDIT")]
    pub(in crate::cli) scrub: Vec<Scrub>,
    /// A header to compare.
    #[arg(long, help_heading = "Matching", group = "@comparison", value_name = "NAME")]
    pub(in crate::cli) match_header: Vec<String>,
    /// Lets a recorded chat answer requests to /v1/messages and /v1/responses too, in their own format. The limit of output tokens is then
    /// ignored.
    #[arg(long, help_heading = "Matching", group = "@apis")]
    pub(in crate::cli) cross_api: bool,
    /// Response to a request without a record. Default: for a cassette an error, or what --replay-tokens has; for a trace random tokens, or
    /// an error under --strict.
    #[arg(long, help_heading = "Matching", group = "@misses", value_name = "WHAT", value_parser = one_of::<OnMiss>())]
    pub(in crate::cli) on_miss: Option<OnMiss>,
    /// Response when all matching records were served. Default: an error, but the last record after a prefix match, and the first one again
    /// for a trace served in order; under --strict always an error.
    #[arg(long, help_heading = "Matching", group = "@records", value_name = "WHAT", value_parser = one_of::<OnExhausted>())]
    pub(in crate::cli) on_exhausted: Option<OnExhausted>,
    /// Tries a looser way of --match when all records of a stricter one were served.
    #[arg(long, help_heading = "Matching", group = "@records")]
    pub(in crate::cli) loose_after_exhausted: bool,
    /// Response to a retry of a request: the same record, or the next one if the client received the whole of a failure (reserve); or
    /// always the next one (consume).
    #[arg(long, help_heading = "Matching", group = "@tries", value_name = "WHAT", default_value = "reserve", value_parser = one_of::<Retries>())]
    pub(in crate::cli) retries: Retries,
    /// Ids in responses: the recorded ones, or new ones that no other response has.
    #[arg(long, group = "@new_ids", value_name = "WHICH", default_value = "recorded", value_parser = one_of::<Ids>())]
    pub(in crate::cli) ids: Ids,
    /// The HTTP status of a miss.
    #[arg(long, help_heading = "Matching", group = "@records", value_name = "STATUS", default_value = "422", value_parser = clap::value_parser!(u16).range(400..600))]
    pub(in crate::cli) miss_status: u16,
    /// How much detail the error of a miss has; client libraries print all of it.
    #[arg(long, help_heading = "Matching", group = "@records", value_name = "HOW", default_value = "brief", value_parser = one_of::<MissDetail>())]
    pub(in crate::cli) miss_detail: MissDetail,
    /// Requests that are forwarded upstream while all others are played: llm, llm:MODEL, path:/v1/embeddings or *.
    #[arg(long, group = "@upstreams", value_name = "REQUESTS", conflicts_with = "frozen")]
    pub(in crate::cli) live: Vec<Selector>,
    /// Requests that are played whatever the mode.
    #[arg(long, group = "@upstreams", value_name = "REQUESTS")]
    pub(in crate::cli) frozen: Vec<Selector>,
    /// Which failed responses are recorded: lasting leaves out 5xx, 401, 403, 408, 409, 425 and 429.
    #[arg(long, help_heading = "Recording", group = "@recording", value_name = "WHICH", default_value = "lasting", value_parser = one_of::<RecordErrors>())]
    pub(in crate::cli) record_errors: RecordErrors,
    /// How long the rest of a response is received after its client has left, to make the record complete; at most 16 MiB, 0 for nothing.
    /// Default: 30s.
    #[arg(long, help_heading = "Recording", group = "@recording", value_name = "DURATION", value_parser = with_unit)]
    pub(in crate::cli) complete_within: Option<Duration>,
    /// Where recorded times are kept: in the sidecar, in the records, or nowhere. Only the sidecar also has generated ids and the events of
    /// streams.
    #[arg(long, help_heading = "Recording", group = "@recording", value_name = "WHERE", value_parser = one_of::<Times>())]
    pub(in crate::cli) timing: Option<Times>,
    /// Where the token ids of recorded answers are kept: in the sidecar, or nowhere.
    #[arg(long, help_heading = "Recording", group = "@recording", value_name = "WHERE", value_parser = one_of::<TokenIds>())]
    pub(in crate::cli) tokens: Option<TokenIds>,
    /// A tag of the recording, at the top of the cassette: NAME or KEY=VALUE, which replaces another value of KEY.
    #[arg(long, help_heading = "Recording", group = "@recording", value_name = "TAG", value_parser = tag)]
    pub(in crate::cli) tag: Vec<String>,
    /// Values of placeholders that no request contains, one per line: email:1 = jane@example.org. They replace the placeholders in what is
    /// played.
    #[arg(long, group = "@placeholders", value_name = "FILE")]
    pub(in crate::cli) secrets: Option<PathBuf>,
    /// Plays a cassette even if it holds secrets.
    #[arg(long, group = "@search")]
    pub(in crate::cli) allow_secrets: bool,
    /// What makes the exit code 1: miss, no_cassette (a miss in a session whose cassette does not exist), unconsumed (of sessions and groups that have begun), unconsumed=all (records that no session was
    /// served), exhausted, loose, drift (of the engine, of tools, and under --mode compare of the structure of responses), text (under
    /// --mode compare), blocked (calls that --block-network refused), placeholder (a response with a placeholder whose value was not
    /// known).
    #[arg(long, group = "@concerns", value_name = "WHAT", value_delimiter = ',')]
    pub(in crate::cli) fail_on: Vec<Concern>,
    /// Writes the report also as JSON to this file.
    #[arg(long, group = "@account", value_name = "FILE")]
    pub(in crate::cli) report: Option<PathBuf>,
    /// Does not serve /vcr/... .
    #[arg(long, help_heading = "Admin", group = "@questions", conflicts_with = "admin")]
    pub(in crate::cli) no_admin: bool,
    /// Serves /vcr/... on the same port, to every client that can reach it.
    #[arg(long, help_heading = "Admin", group = "@questions")]
    pub(in crate::cli) admin: bool,
    /// The token that callers of /vcr/... must send, as `Authorization: Bearer TOKEN`. Default: VLLM_VCR_ADMIN_TOKEN. Without a token,
    /// calls from web pages and under unknown host names are refused. Required by --admin-listen on an address that other machines reach.
    /// Other users can see arguments: prefer the variable.
    #[arg(long, help_heading = "Admin", group = "@questions", value_name = "TOKEN", hide_default_value = true)]
    pub(in crate::cli) admin_token: Option<Secret>,
    /// Lets a session opened at /vcr/sessions record over an existing cassette.
    #[arg(long, help_heading = "Admin", group = "@mode")]
    pub(in crate::cli) admin_overwrite: bool,
    /// Plays and records only in sessions that are opened with their own cassette: no cassette of the folder is read at the start, and
    /// other requests have only the records of default.yaml.
    #[arg(long, group = "@mode", conflicts_with = "mode")]
    pub(in crate::cli) sessions_only: bool,
    /// A host that the command may call despite --block-network, such as localhost:5432; it is put into NO_PROXY.
    #[arg(long, help_heading = "Command", group = "@network", value_name = "HOST", requires = "block_network")]
    pub(in crate::cli) allow_host: Vec<String>,
    /// Blocks the command's HTTP calls to other servers: HTTP_PROXY, HTTPS_PROXY and ALL_PROXY name this server, which answers such calls
    /// with 403 and counts them. Programs that ignore these variables are not blocked.
    #[arg(long, help_heading = "Command", group = "@network", requires = "command")]
    pub(in crate::cli) block_network: bool,
    /// Runs a command with OPENAI_BASE_URL and the like set to this server, and exits with its exit code.
    #[arg(last = true, group = "@any", value_name = "COMMAND")]
    pub(in crate::cli) command: Vec<String>,
}

base::named! {
    /// What is played and what is recorded.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
    pub(in crate::cli) enum ModeArg {
        /// Plays and records nothing.
        None = "none",
        /// Plays a cassette that exists, records one that does not.
        Once = "once",
        /// Plays what was recorded and adds the rest.
        #[value(alias = "new_episodes")]
        NewEpisodes = "new-episodes",
        /// Records everything again.
        #[value(alias = "record")]
        All = "all",
        /// Forwards everything.
        #[value(alias = "passthrough")]
        Live = "live",
        /// Forwards everything and compares the responses with the recorded ones.
        Compare = "compare",
    }
}

fn tag(typed: &str) -> Result<String, String> {
    let is_plain = !typed.is_empty() && !typed.starts_with('=') && !typed.chars().any(char::is_control);
    if is_plain { Ok(typed.to_owned()) } else { Err("a tag is NAME or KEY=VALUE in one line".to_owned()) }
}
