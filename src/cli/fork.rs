//! `fork`: a cassette is played up to a request, and its session goes on with a live server; what differs is printed.
//!
//! See docs/decisions/0144-a-fork-is-a-derived-cassette.md.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, FromArgMatches, builder::NonEmptyStringValueParser};
use serde_json::{Value, json};

use crate::{
    base::one_line::counted,
    cli::{
        cassette::{
            diff::{DiffArgs, DiffWhat, DifferingRecords},
            new_cassette, writable_name,
        },
        failure::{Exit, Failure},
        output,
        player::{
            args::ModeArg,
            conclude::PlayerEnd,
            matching::{Way, WayParser},
        },
        redaction::RedactionArgs,
        tap::{
            args::TapArgs,
            cassette::serve,
            engine_core::{SCHEME, TapUpstream},
        },
        values::{Secret, host_and_port, one_of},
    },
    net::upstream::UpstreamUrl,
    recording::{
        cassette::{self, Times},
        mcp::McpRecord,
    },
    replay::{
        account::{Concern, Report, SessionReport},
        player::{CassettePlayer, Fork},
    },
};

/// Play the start of a cassette, go on live from a request, and show what differs.
///
/// The first N-1 recorded requests of each session are answered from the cassette, all others by the server, with another model if --model
/// names one. Both are recorded in a new cassette. Exit code 1 if a request before the fork was not recorded or no request came after it; 4
/// if a response of the server could not be recorded; else the command's.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Fork",
    after_long_help = "Examples:\n  vllm-vcr fork agent.yaml --at 4 --model qwen3-32b --target http://gpu-box:8000 -- python agent.py\n  \
                       vllm-vcr fork agent.yaml --at 1 --target https://api.openai.com --out other.yaml -- pytest\n  \
                       vllm-vcr fork agent.yaml --at 4 --target http://gpu-box:8000 --listen 127.0.0.1:8001"
)]
pub(in crate::cli) struct ForkArgs {
    /// The cassette.
    #[arg(value_name = "CASSETTE")]
    cassette: PathBuf,
    /// The first recorded request that goes live, counted from 1; those before it are played.
    #[arg(long, value_name = "N")]
    at: NonZeroUsize,
    /// The model of live requests, in place of the client's.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    model: Option<String>,
    /// The server: http://HOST, https://HOST or h2c://HOST, with the path before /v1 if there is one.
    #[arg(long, value_name = "URL")]
    target: UpstreamUrl,
    /// The new cassette. Default: CASSETTE.fork.yaml beside the old one.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replaces the new cassette if it exists.
    #[arg(long)]
    overwrite: bool,
    /// How a request finds its record before the fork, as in play --match.
    #[arg(long = "match", value_name = "WAYS", value_delimiter = ',', value_parser = WayParser)]
    matching: Vec<Way>,
    /// The address to listen on, by default 127.0.0.1:8001; port 0 takes a free one, which is the default for a command.
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    listen: Option<String>,
    /// CA certificate of the server, or its own certificate, a PEM file. Default: the CAs that browsers trust.
    #[arg(long, value_name = "FILE")]
    upstream_ca: Option<PathBuf>,
    /// Values of placeholders in what is played, one per line: email:1 = jane@example.org.
    #[arg(long, value_name = "FILE")]
    secrets: Option<PathBuf>,
    /// Plays a cassette even if it holds secrets.
    #[arg(long)]
    allow_secrets: bool,
    /// Where recorded times are kept.
    #[arg(long, value_name = "WHERE", value_parser = one_of::<Times>())]
    timing: Option<Times>,
    /// The token that callers of /vcr/... must send, as `Authorization: Bearer TOKEN`.
    #[arg(long, value_name = "TOKEN", hide_default_value = true)]
    admin_token: Option<Secret>,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    redaction: RedactionArgs,
    /// Runs a command with OPENAI_BASE_URL and the like set to this server; its output goes to stderr.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Plays, goes on live and prints what differs.
pub(in crate::cli) fn run(args: &ForkArgs) -> Result<ExitCode, Failure> {
    forkable(&args.cassette)?;
    let out = args.out.clone().unwrap_or_else(|| args.cassette.with_extension("fork.yaml"));
    writable(&out, args)?;
    let fork = Fork { played: args.at.get() - 1, model: args.model.clone() };
    serve(tap_of(args)?, Some((fork, out.clone())), |player, end, code| conclude(args, &out, player, (end, code)))
}

/// Refuses what has records that no fork plays.
fn forkable(path: &Path) -> Result<(), Failure> {
    let name = path.display();
    if path.is_dir() {
        return Err(Failure::usage(format!("{name} is a folder: fork takes one cassette")).hint("name a file in it"));
    }
    for record in &cassette::load(path)?.records {
        let why = match record {
            _ if record.is_fixture => "is hand-written (`match`)",
            _ if McpRecord::read(record).is_some() => "is a message to an MCP server",
            _ => continue,
        };
        return Err(Failure::input(format!("{name}:{}: this record {why}, which fork cannot play", record.line))
            .hint("fork a cassette without it, or choose what goes live by kind: vllm-vcr play --live llm"));
    }
    Ok(())
}

/// Refuses a new cassette that is there, that is none, or that is the old one.
fn writable(out: &Path, args: &ForkArgs) -> Result<(), Failure> {
    let name = out.display();
    if output::is_same_file(out, &args.cassette) {
        return Err(Failure::usage(format!("--out {name}: this is the cassette that is played")));
    }
    match args.overwrite {
        true => writable_name(out),
        false => new_cassette(out, "replace it with --overwrite, or name another one with --out"),
    }
}

/// The tap that plays and records: flags other than a fork's have their defaults, whatever the environment has.
fn tap_of(args: &ForkArgs) -> Result<TapArgs, Failure> {
    let target = args.target.to_string();
    let tap = TapArgs::augment_args(clap::Command::new("tap")).try_get_matches_from(["tap", "--upstream", &target]);
    let tap = tap.and_then(|matches| TapArgs::from_arg_matches(&matches));
    let mut tap = tap.map_err(|error| Failure::usage(format!("--target {target}: {error}")))?;
    if tap.upstream.iter().any(|upstream| matches!(upstream, TapUpstream::FrontEnd(_))) {
        return Err(Failure::usage(format!("--target {target}: fork needs an HTTP server, not {SCHEME}")));
    }
    tap.trace_out.clone_from(&args.cassette);
    tap.listen.clone_from(&args.listen);
    tap.network.upstream_ca.clone_from(&args.upstream_ca);
    tap.privacy.redaction = args.redaction.clone();
    let cassettes = &mut tap.cassettes;
    cassettes.mode = Some(ModeArg::NewEpisodes);
    cassettes.matching.clone_from(&args.matching);
    cassettes.secrets.clone_from(&args.secrets);
    cassettes.allow_secrets = args.allow_secrets;
    cassettes.timing = args.timing;
    cassettes.admin_token.clone_from(&args.admin_token);
    cassettes.fail_on = vec![Concern::Miss];
    cassettes.command.clone_from(&args.command);
    Ok(tap)
}

/// Prints what differs, and how the fork ended.
fn conclude(
    args: &ForkArgs,
    out: &Path,
    player: &CassettePlayer,
    (end, code): (PlayerEnd, Option<u8>),
) -> Result<ExitCode, Failure> {
    let report = player.report(None);
    let live = sum(&report, |session| session.forwarded);
    let lost = report.not_recorded.unwrap_or_default() + player.unanswered();
    let diff = DiffArgs { old: args.cassette.clone(), new: out.to_owned(), what: DiffWhat::Run };
    let found = if out.exists() && live > 0 { diff.differing()? } else { Vec::new() };
    if args.json {
        output::print_json(&json_of(args, out, (&report, lost), &found))?;
    } else {
        output::print(&diff.text(&found))?;
    }
    if live == 0 {
        output::warn(&format!("error: no request reached --at {}: nothing was sent to {}\n", args.at, args.target));
    } else if lost > 0 {
        let lost = counted(lost, "response");
        output::warn(&format!("error: {lost} of {} not recorded in {}\n", args.target, out.display()));
    }
    Ok(match (code.unwrap_or(0), end) {
        (0, PlayerEnd::Well) if live == 0 => Exit::No.into(),
        (0, PlayerEnd::Well) if lost > 0 => Exit::Environment.into(),
        _ => end.exit_code(code),
    })
}

fn sum(report: &Report, of: impl Fn(&SessionReport) -> u64) -> u64 {
    report.sessions.values().chain(report.earlier.values()).map(of).sum()
}

fn json_of(args: &ForkArgs, out: &Path, (report, lost): (&Report, u64), found: &[DifferingRecords]) -> Value {
    let missed = sum(report, |session| session.misses.values().sum());
    let played = sum(report, |session| session.served as u64);
    json!({"cassette": args.cassette, "at": args.at, "model": args.model, "target": args.target.to_string(), "out": out,
        "played": played, "live": sum(report, |session| session.forwarded), "missed": missed,
        "not_recorded": lost, "differences": found})
}
