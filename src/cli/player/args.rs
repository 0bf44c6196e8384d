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
    /// What is played and what is recorded. play plays (none); tap records a cassette that is not there yet, and asks for a
    /// mode where it is.
    #[arg(long, group = "@mode", value_name = "MODE")]
    pub(in crate::cli) mode: Option<ModeArg>,
    /// How a request finds its record: ways, tried in order. Without it auto. Of a cassette and a trace that are played together, each
    /// takes the ways that it has.
    #[arg(long = "match", help_heading = "Matching", group = "@ways", value_name = "WAYS", value_delimiter = ',', value_parser = WayParser)]
    pub(in crate::cli) matching: Vec<Way>,
    /// A field of requests that does not count: $.a.b, $.list[*].c, or **.name at any depth.
    #[arg(long, help_heading = "Matching", group = "@comparison", value_name = "PLACE")]
    pub(in crate::cli) ignore: Vec<FieldPath>,
    /// A parameter of the query that does not count.
    #[arg(long, help_heading = "Matching", group = "@comparison", value_name = "NAME")]
    pub(in crate::cli) ignore_query: Vec<String>,
    /// Counts also what no two runs share, such as stream and user.
    #[arg(long, help_heading = "Matching", group = "@comparison")]
    pub(in crate::cli) no_default_ignores: bool,
    /// Compares bodies field by field as they are, without evening out nulls, neutral values and arguments.
    #[arg(long, help_heading = "Matching", group = "@comparison", value_name = "FORM", default_value = "even", value_parser = one_of::<Normalisation>())]
    pub(in crate::cli) canonical: Normalisation,
    /// An edit of every text before it is compared: s/PATTERN/REPLACEMENT/.
    #[arg(long, help_heading = "Matching", group = "@comparison", value_name = "EDIT")]
    pub(in crate::cli) scrub: Vec<Scrub>,
    /// A header that counts.
    #[arg(long, help_heading = "Matching", group = "@comparison", value_name = "NAME")]
    pub(in crate::cli) match_header: Vec<String>,
    /// Lets a recorded chat answer requests to /v1/messages and /v1/responses too, in their own words. How many tokens there may be
    /// does not count then.
    #[arg(long, help_heading = "Matching", group = "@apis")]
    pub(in crate::cli) cross_api: bool,
    /// What a request without a record gets. Without it an error from a cassette, or what --replay-tokens has for it; from a trace random
    /// tokens, and an error under --strict.
    #[arg(long, help_heading = "Matching", group = "@misses", value_name = "WHAT", value_parser = one_of::<OnMiss>())]
    pub(in crate::cli) on_miss: Option<OnMiss>,
    /// What a request gets whose records were all served. Without it an error, but the last one where prefix found it, and from the
    /// first one again where a trace is served in order; under --strict always an error.
    #[arg(long, help_heading = "Matching", group = "@records", value_name = "WHAT", value_parser = one_of::<OnExhausted>())]
    pub(in crate::cli) on_exhausted: Option<OnExhausted>,
    /// Lets a looser way of --match take over where all records of a stricter one were served.
    #[arg(long, help_heading = "Matching", group = "@records")]
    pub(in crate::cli) loose_after_exhausted: bool,
    /// What another try of a request gets: the record that was served before, or the next one after a failure that its client got
    /// whole; or always the next one.
    #[arg(long, help_heading = "Matching", group = "@tries", value_name = "WHAT", default_value = "reserve", value_parser = one_of::<Retries>())]
    pub(in crate::cli) retries: Retries,
    /// Which ids answers have: those that were recorded, or counted ones that no other answer has.
    #[arg(long, group = "@new_ids", value_name = "WHICH", default_value = "recorded", value_parser = one_of::<Ids>())]
    pub(in crate::cli) ids: Ids,
    /// The status of a miss.
    #[arg(long, help_heading = "Matching", group = "@records", value_name = "STATUS", default_value = "422", value_parser = clap::value_parser!(u16).range(400..600))]
    pub(in crate::cli) miss_status: u16,
    /// How much detail a miss gives its client: client libraries print all of it.
    #[arg(long, help_heading = "Matching", group = "@records", value_name = "HOW", default_value = "brief", value_parser = one_of::<MissDetail>())]
    pub(in crate::cli) miss_detail: MissDetail,
    /// Requests that go upstream while all others are played: llm, llm:MODEL, path:/v1/embeddings or *.
    #[arg(long, group = "@upstreams", value_name = "REQUESTS", conflicts_with = "frozen")]
    pub(in crate::cli) live: Vec<Selector>,
    /// Requests that are played, whatever the mode.
    #[arg(long, group = "@upstreams", value_name = "REQUESTS")]
    pub(in crate::cli) frozen: Vec<Selector>,
    /// Which failed answers are recorded: lasting leaves out 5xx, 401, 403, 408, 409, 425 and 429.
    #[arg(long, help_heading = "Recording", group = "@recording", value_name = "WHICH", default_value = "lasting", value_parser = one_of::<RecordErrors>())]
    pub(in crate::cli) record_errors: RecordErrors,
    /// How long the rest of an answer is received after its client has left, so that its record is whole; at most 16 MiB of it, and 0
    /// for nothing. Without it 30s.
    #[arg(long, help_heading = "Recording", group = "@recording", value_name = "DURATION", value_parser = with_unit)]
    pub(in crate::cli) complete_within: Option<Duration>,
    /// Where the times of what is recorded are kept: beside the cassette, in its records, or nowhere. Only the sidecar also has
    /// generated ids and the events of streams.
    #[arg(long, help_heading = "Recording", group = "@recording", value_name = "WHERE", value_parser = one_of::<Times>())]
    pub(in crate::cli) timing: Option<Times>,
    /// Where the token ids of recorded answers are kept: as the engine sent them, or nowhere.
    #[arg(long, help_heading = "Recording", group = "@recording", value_name = "WHERE", value_parser = one_of::<TokenIds>())]
    pub(in crate::cli) tokens: Option<TokenIds>,
    /// A word for the top of what is recorded (tags): NAME or KEY=VALUE, which takes the place of another value of this key.
    #[arg(long, help_heading = "Recording", group = "@recording", value_name = "TAG", value_parser = tag)]
    pub(in crate::cli) tag: Vec<String>,
    /// Values of placeholders that no request has, a line for each: email:1 = jane@example.org. They are put into what is played.
    #[arg(long, group = "@placeholders", value_name = "FILE")]
    pub(in crate::cli) secrets: Option<PathBuf>,
    /// Plays a cassette that holds secrets.
    #[arg(long, group = "@search")]
    pub(in crate::cli) allow_secrets: bool,
    /// What ends the program with 1: miss, no_cassette (a miss of a session whose cassette does not exist), unconsumed (of sessions and groups that have begun), unconsumed=all (records that no session
    /// was served), exhausted, loose, drift (of the engine, of tools, and under --mode compare of the structure of answers), text (under
    /// --mode compare), blocked (calls that --block-network refused),
    /// placeholder (an answer with one, since no value was known).
    #[arg(long, group = "@concerns", value_name = "WHAT", value_delimiter = ',')]
    pub(in crate::cli) fail_on: Vec<Concern>,
    /// Writes the report here too, as JSON.
    #[arg(long, group = "@account", value_name = "FILE")]
    pub(in crate::cli) report: Option<PathBuf>,
    /// Does not answer /vcr/... .
    #[arg(long, help_heading = "Admin", group = "@questions", conflicts_with = "admin")]
    pub(in crate::cli) no_admin: bool,
    /// Answers /vcr/... on the same port, for every client that can reach it.
    #[arg(long, help_heading = "Admin", group = "@questions")]
    pub(in crate::cli) admin: bool,
    /// What callers of /vcr/... have to send, as `Authorization: Bearer TOKEN`. Without it, VLLM_VCR_ADMIN_TOKEN; without either,
    /// calls under a name or from a web page that could be a stranger's are refused. Required by --admin-listen on an address that
    /// other machines reach. Other users can read arguments: prefer the variable.
    #[arg(long, help_heading = "Admin", group = "@questions", value_name = "TOKEN", hide_default_value = true)]
    pub(in crate::cli) admin_token: Option<Secret>,
    /// Lets a session that is opened at /vcr/sessions record over a cassette that exists.
    #[arg(long, help_heading = "Admin", group = "@mode")]
    pub(in crate::cli) admin_overwrite: bool,
    /// Plays and records only in sessions that are opened with a cassette of their own: none of the folder is read before, and no
    /// other request has a record, but for those of default.yaml.
    #[arg(long, group = "@mode", conflicts_with = "mode")]
    pub(in crate::cli) sessions_only: bool,
    /// A host that the command may call all the same, such as localhost:5432; it is put into NO_PROXY.
    #[arg(long, help_heading = "Command", group = "@network", value_name = "HOST", requires = "block_network")]
    pub(in crate::cli) allow_host: Vec<String>,
    /// Refuses the command's HTTP calls to other servers: HTTP_PROXY, HTTPS_PROXY and ALL_PROXY name this server, which answers such calls
    /// with 403 and counts them. What ignores these variables is not refused.
    #[arg(long, help_heading = "Command", group = "@network", requires = "command")]
    pub(in crate::cli) block_network: bool,
    /// Runs a command with OPENAI_BASE_URL and the like set to this server, and ends with its exit code.
    #[arg(last = true, group = "@any", value_name = "COMMAND")]
    pub(in crate::cli) command: Vec<String>,
}

base::named! {
    /// What is played and what is recorded.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
    pub(in crate::cli) enum ModeArg {
        /// Plays; records nothing.
        None = "none",
        /// Plays a cassette that is there, records one that is not.
        Once = "once",
        /// Plays what was recorded, adds the rest.
        #[value(alias = "new_episodes")]
        NewEpisodes = "new-episodes",
        /// Records everything again.
        #[value(alias = "record")]
        All = "all",
        /// Passes everything on.
        #[value(alias = "passthrough")]
        Live = "live",
        /// Passes everything on, and compares the answers with the recorded ones.
        Compare = "compare",
    }
}

fn tag(typed: &str) -> Result<String, String> {
    let is_plain = !typed.is_empty() && !typed.starts_with('=') && !typed.chars().any(char::is_control);
    if is_plain { Ok(typed.to_owned()) } else { Err("a tag is NAME or KEY=VALUE in one line".to_owned()) }
}
