//! The flags of `replay`.

use std::{
    num::NonZeroUsize,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{find_max, inputs, outputs::OutputArgs, server_side};
use crate::{
    cli::values::{Secret, one_of, share, some_time, with_unit, within},
    drive::History,
    net::upstream::UpstreamUrl,
    replay::meter::Slo,
};

/// Send recorded requests to a server at their recorded times and measure the responses.
///
/// Sends the recorded requests; if a trace has none, prompts of token ids with the recorded lengths and shared blocks. Prints the figures
/// and whether the run is valid: exit code 1 if it is not.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  vllm-vcr replay day.jsonl.gz --target http://localhost:8000\n  \
                             vllm-vcr replay day.jsonl.gz --target http://localhost:8000 --arrivals poisson --rate 20\n  \
                             vllm-vcr replay day.jsonl.gz --target http://localhost:8000 --concurrency 64 --json | jq .verdict")]
pub(in crate::cli) struct ReplayArgs {
    /// The traces: files, directories of traces, or the first file of a rotated capture; - is stdin. Or cassettes and folders of cassettes.
    /// Default: the built-in trace, as `play` serves it.
    #[arg(value_name = "PATH")]
    pub(in crate::cli) paths: Vec<PathBuf>,
    /// Values of placeholders in cassettes, one per line: email:1 = jane@example.org. They replace the placeholders in requests.
    #[arg(long, help_heading = "Requests", value_name = "FILE")]
    pub(in crate::cli) secrets: Option<PathBuf>,
    /// The server to drive: http://HOST, https://HOST, h2c://HOST (HTTP/2 without TLS) or unix:SOCKET; with several, sessions are spread
    /// over them in turn.
    #[arg(long, help_heading = "Server", value_name = "URL", required = true)]
    pub(in crate::cli) target: Vec<UpstreamUrl>,
    /// CA certificate of https targets, or a target's own certificate, a PEM file. Default: the CAs that browsers trust.
    #[arg(long, help_heading = "Server", value_name = "FILE")]
    pub(in crate::cli) target_ca: Option<PathBuf>,
    /// How sessions, and requests outside of sessions, arrive.
    #[arg(
        long,
        help_heading = "Load",
        value_name = "KIND",
        default_value = "recorded",
        conflicts_with = "concurrency"
    )]
    pub(in crate::cli) arrivals: ArrivalsArg,
    /// Arrivals per second, of sessions and of requests outside of sessions.
    #[arg(long, help_heading = "Load", value_name = "N", required_if_eq_any([("arrivals", "constant"), ("arrivals", "poisson"), ("arrivals", "gamma")]), conflicts_with = "concurrency", value_parser = positive)]
    pub(in crate::cli) rate: Option<f64>,
    /// Shape of the gamma distribution: 1 is Poisson, less is burstier. Default: 0.5.
    #[arg(long, help_heading = "Load", value_name = "X", conflicts_with = "concurrency", value_parser = positive)]
    pub(in crate::cli) burstiness: Option<f64>,
    /// How many times faster they arrive than recorded, or than --rate.
    #[arg(long, help_heading = "Load", value_name = "X", default_value = "1", conflicts_with = "concurrency", value_parser = positive)]
    pub(in crate::cli) speed: f64,
    /// Keeps this many sessions in flight (closed loop); a request outside of sessions counts as one.
    #[arg(long, help_heading = "Load", value_name = "N")]
    pub(in crate::cli) concurrency: Option<NonZeroUsize>,
    /// Longest pause between the end of a turn and the next one.
    #[arg(long, help_heading = "Load", value_name = "DURATION", value_parser = with_unit)]
    pub(in crate::cli) max_think: Option<Duration>,
    /// Sends only the first N requests.
    #[arg(long, help_heading = "Load", value_name = "N")]
    pub(in crate::cli) limit: Option<NonZeroUsize>,
    /// Sends only this share of the sessions: 0.1, or 10%.
    #[arg(long, help_heading = "Load", value_name = "SHARE", default_value = "1", value_parser = some_share)]
    pub(in crate::cli) sample: f64,
    /// Sends part I of N, counted from 0; sessions are dealt in turn. --rate and --concurrency are those of all parts together.
    #[arg(long, help_heading = "Load", value_name = "I/N", default_value = "0/1", value_parser = shard)]
    pub(in crate::cli) shard: (usize, usize),
    /// Starts no session later than this after the start of the run.
    #[arg(long, help_heading = "Load", value_name = "DURATION", value_parser = with_unit)]
    pub(in crate::cli) duration: Option<Duration>,
    /// Seed of everything that is random.
    #[arg(long, help_heading = "Load", value_name = "N", default_value = "0")]
    pub(in crate::cli) seed: u64,
    /// The server's name for the model; NAME=OTHER sends OTHER for the recorded model NAME only.
    #[arg(long, help_heading = "Requests", value_name = "[NAME=]OTHER", value_parser = model)]
    pub(in crate::cli) model: Vec<(String, String)>,
    /// Adds a header; {session}, {turn} and {index} stand for those of the request.
    #[arg(long, help_heading = "Server", value_name = "NAME: VALUE", hide_env_values = true)]
    pub(in crate::cli) header: Vec<Secret>,
    /// Sent as `Authorization: Bearer KEY`.
    #[arg(long, help_heading = "Server", value_name = "KEY", hide_env_values = true)]
    pub(in crate::cli) api_key: Option<Secret>,
    /// Form of prompts where a trace has no requests: token ids for /v1/completions, or words for the recorded endpoint.
    #[arg(long, help_heading = "Requests", value_name = "FORM", default_value = "ids")]
    pub(in crate::cli) prompt_as: PromptArg,
    /// Tokenizer of the model, by which prompts of words get their lengths. Without it the server is asked before the run.
    #[arg(long, help_heading = "Requests", value_name = "DIR")]
    pub(in crate::cli) tokenizer: Option<String>,
    /// What later turns of a conversation repeat: the recorded answers, or those of this run.
    #[arg(long, help_heading = "Requests", value_name = "WHICH", default_value = "recorded", value_parser = one_of::<History>())]
    pub(in crate::cli) history: History,
    /// Fills the servers' prefix caches before the run: sends the start of each session's first prompt.
    #[arg(long, help_heading = "Requests")]
    pub(in crate::cli) prime: bool,
    /// Starts the run at this time, RFC 3339 or seconds since 1970, for runs on several machines.
    #[arg(long, help_heading = "Load", value_name = "TIME", value_parser = inputs::time)]
    pub(in crate::cli) start_at: Option<SystemTime>,
    /// Sends this text as `cache_salt`, so that a server's prefix cache has nothing of earlier runs; `run` is a new text for each run.
    #[arg(long, help_heading = "Requests", value_name = "TEXT")]
    pub(in crate::cli) cache_salt: Option<String>,
    /// Longest wait for the head of a response, and between its bytes; comments of an event stream, which only keep it alive, are none.
    #[arg(long, help_heading = "Server", value_name = "DURATION", value_parser = some_time, default_value = "10m")]
    pub(in crate::cli) timeout: Duration,
    /// Latency limits: itl limits the largest gap of a request, tpot its mean gap. The report has the requests and tokens per second that
    /// meet them.
    #[arg(long, help_heading = "Verdict", value_name = "ttft=…,itl=…,tpot=…,e2e=…")]
    pub(in crate::cli) slo: Option<Slo>,
    /// Leaves the requests that were due before this time out of the figures.
    #[arg(long, help_heading = "Verdict", value_name = "DURATION", value_parser = with_unit)]
    pub(in crate::cli) warmup: Option<Duration>,
    /// Compares tokens, texts, finish reasons and counts with the recording, for a server that plays it; a difference makes the run
    /// invalid.
    #[arg(long, help_heading = "Verdict")]
    pub(in crate::cli) check: bool,
    /// Share of the requests that may fail in a valid run: 0.05, or 5%.
    #[arg(long, help_heading = "Verdict", value_name = "SHARE", default_value = "0.01", value_parser = share(SHARE))]
    pub(in crate::cli) max_errors: f64,
    /// First measures this client's own limit for some seconds, against a server of its own that answers at once; a run above 80 % of it is
    /// not valid.
    #[arg(long, help_heading = "Verdict")]
    pub(in crate::cli) calibrate: bool,
    /// Reads /metrics of this server every second; the report has its queue, batch and cache beside the client's figures. May be given
    /// several times.
    #[arg(long, help_heading = "Verdict", value_name = "URL", value_parser = server_side::page, conflicts_with = "find_max")]
    pub(in crate::cli) scrape: Vec<UpstreamUrl>,
    #[command(flatten)]
    pub(in crate::cli) search: find_max::FindMaxArgs,
    /// Threads that send. Default: one per core.
    #[arg(long, help_heading = "Load", value_name = "N")]
    pub(in crate::cli) threads: Option<NonZeroUsize>,
    /// Writes the responses as a trace.
    #[arg(long, help_heading = "Output", value_name = "FILE")]
    pub(in crate::cli) out: Option<PathBuf>,
    /// Prints one JSON object instead of text.
    #[arg(long, help_heading = "Output")]
    pub(in crate::cli) json: bool,
    #[command(flatten)]
    pub(in crate::cli) outputs: OutputArgs,
}

impl ReplayArgs {
    /// Shape of the gamma distribution.
    pub(super) fn burstiness(&self) -> f64 {
        self.burstiness.unwrap_or(0.5)
    }
}

/// How requests arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::cli) enum ArrivalsArg {
    /// At the recorded times.
    Recorded,
    /// At equal intervals.
    Constant,
    /// At exponentially distributed intervals.
    Poisson,
    /// At gamma-distributed intervals, see --burstiness.
    Gamma,
    /// All at once.
    Burst,
}

/// Form of prompts that are made up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum PromptArg {
    /// Token ids.
    Ids,
    /// Words.
    Text,
}

fn positive(text: &str) -> Result<f64, String> {
    within(1e-6..=1e9, "not a number between 0.000001 and 1000000000")(text)
}

const SHARE: &str = "a share from 0 to 1 is needed: 0.05, or 5%";

fn some_share(text: &str) -> Result<f64, String> {
    share(SHARE)(text).ok().filter(|share| *share > 0.0).ok_or_else(|| format!("{SHARE}, and not 0"))
}

fn shard(text: &str) -> Result<(usize, usize), String> {
    let parts = text.split_once('/').and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
    parts
        .filter(|(part, parts)| part < parts)
        .ok_or_else(|| "not a part: write I/N, such as 0/4 for the first of four".to_owned())
}

fn model(text: &str) -> Result<(String, String), String> {
    let (from, to) = text.split_once('=').unwrap_or(("", text));
    if to.is_empty() { Err("the model name is missing".to_owned()) } else { Ok((from.to_owned(), to.to_owned())) }
}
