//! `prove`: its flags, and a proof as a table, JSON, JUnit and scripts.

use std::{
    collections::BTreeSet, fs, num::NonZeroUsize, path::PathBuf, process::ExitCode, sync::atomic::AtomicU64,
    time::Duration,
};

use clap::Args;
use serde_json::json;

use crate::{
    base::one_line::{counted, one_line},
    cli::{
        failure::Failure,
        gateway::GatewayArgs,
        junit::{JunitCase, junit},
        output, runtime,
        values::{one_of, with_unit},
    },
    net::server,
    play::{Source, TokenizerSource},
    prove::{
        BehindServer, CompareBy, CompareRules, GroundSources, GroundTruthError, PriceTable, Proof, ProveCheck,
        ProveError, ProvePlan, ProvenFailure, Prover, ScriptPlaces, ground_truth, marker_in, served_config,
    },
    recording::cassette,
};

/// Prove that a gateway passes streams on unchanged, however they are cut.
///
/// Serves known streams behind the gateway, requests them through it, and compares: each stream is cut, merged and edited in ways that no
/// client must notice, many are sent at once, and some fail. Failures are reduced to small cases and printed as scripts. Exit code 1 if
/// there are any.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  vllm-vcr prove --via http://localhost:4000\n  \
                             vllm-vcr prove --via http://localhost:4000 --cases 5000 --scripts failures/\n  \
                             vllm-vcr prove --via https://gateway.example \\\n      --listen 0.0.0.0:9000 --api-key KEY --model team/m --compare content")]
pub(in crate::cli) struct ProveArgs {
    #[command(flatten)]
    gateway: GatewayArgs,
    /// Also serves the streams of these cassettes.
    #[arg(long, help_heading = "Streams", value_name = "FILE")]
    cassette: Vec<PathBuf>,
    /// Serves the streams of this trace, in place of the built-in one.
    #[arg(long, help_heading = "Streams", value_name = "FILE")]
    replay_tokens: Vec<PathBuf>,
    /// Tokenizer of the trace: a directory, a tokenizer.json or a Hub id.
    #[arg(long, help_heading = "Streams", value_name = "DIR", requires = "replay_tokens")]
    tokenizer: Option<String>,
    /// Runs only these checks.
    #[arg(long, help_heading = "Cases", value_name = "CHECK", value_delimiter = ',', value_parser = one_of::<ProveCheck>())]
    only: Vec<ProveCheck>,
    /// What is compared of a stream.
    #[arg(long, help_heading = "Comparison", value_name = "WHAT", default_value = "events", value_parser = one_of::<CompareBy>())]
    compare: CompareBy,
    /// Fields of events that may differ, such as id,created,model.
    #[arg(long, help_heading = "Comparison", value_name = "FIELD", value_delimiter = ',')]
    ignore: Vec<String>,
    /// Prices by model, a JSON file in the format of LiteLLM: {"MODEL": {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}}.
    /// Default: 1 for each token.
    #[arg(long, help_heading = "Comparison", value_name = "FILE")]
    prices: Option<PathBuf>,
    /// Number of random cuts, beside the fixed ones.
    #[arg(long, help_heading = "Cases", value_name = "N", default_value = "500")]
    cases: usize,
    /// Tries further random cuts for this long.
    #[arg(long, help_heading = "Cases", value_name = "DURATION", value_parser = with_unit)]
    duration: Option<Duration>,
    /// Seed of random cuts.
    #[arg(long, help_heading = "Cases", value_name = "N", default_value = "0")]
    seed: u64,
    /// Cases at once.
    #[arg(long, help_heading = "Cases", value_name = "N", default_value = "32")]
    concurrency: NonZeroUsize,
    /// Streams at once for the check of isolation.
    #[arg(long, help_heading = "Cases", value_name = "N", default_value = "512")]
    streams: NonZeroUsize,
    /// Milliseconds between two writes of a cut stream.
    #[arg(long, help_heading = "Cases", value_name = "MS", default_value = "2")]
    pause: u64,
    /// Time without a byte after which a stream that stalls is given up.
    #[arg(long, help_heading = "Cases", value_name = "DURATION", value_parser = with_unit, default_value = "2s")]
    stall: Duration,
    /// Maximum number of failures that are reduced to small cases.
    #[arg(long, help_heading = "Cases", value_name = "N", default_value = "20")]
    shrink: usize,
    /// Writes the script of each failure into this folder instead of printing it.
    #[arg(long, help_heading = "Output", value_name = "DIR")]
    scripts: Option<PathBuf>,
    /// Writes the checks and failures as JUnit XML.
    #[arg(long, help_heading = "Output", value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Prints one JSON object instead of text.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Proves, and prints what was proven.
pub(in crate::cli) fn run(args: ProveArgs) -> Result<ExitCode, Failure> {
    runtime::run(|shutdown| async move {
        server::raise_descriptor_limit();
        if let Some(folder) = &args.scripts {
            fs::create_dir_all(folder)
                .map_err(|error| Failure::environment(format!("{}: {error}", folder.display())))?;
        }
        let mut prover = prover(&args).await?;
        let address = prover.behind.address;
        args.gateway.announce(&format!("{} streams", prover.streams.len()), address);
        let plan = plan(&args, address);
        let proof = prover.prove(&plan, shutdown.requested()).await?;
        save(&args, &proof)?;
        let gateway = args.gateway.via.to_string();
        let json = || json!({"gateway": gateway, "seed": args.seed, "proven": proof.holds(), "proof": proof});
        let verdict = output::verdict(proof.holds(), args.json, json, || text(&args, &proof))?;
        if proof.is_stopped { Err(runtime::stopped_before("everything was proven")) } else { Ok(verdict) }
    })
}

async fn prover(args: &ProveArgs) -> Result<Prover, Failure> {
    let cassettes = args.cassette.iter().map(|path| cassette::load(path)).collect::<Result<Vec<_>, _>>()?;
    let tokenizer = args.tokenizer.clone().map_or(TokenizerSource::BuiltIn, TokenizerSource::Spec);
    let trace = (!args.replay_tokens.is_empty()).then(|| (Source::Files(args.replay_tokens.clone()), tokenizer));
    let streams = ground_truth(GroundSources { trace, cassettes }, &args.gateway.model).await?;
    let prices = args.prices.as_deref().map(PriceTable::read).transpose().map_err(Failure::input)?;
    let listener = args.gateway.listener().await?;
    let via = &args.gateway.via;
    if via.leads_to(listener.local_addr().map_err(Failure::environment)?).await {
        return Err(Failure::usage(format!("--via {via} is where the known streams are served, not a gateway"))
            .hint("name the gateway's own address; the one above is its upstream"));
    }
    let behind = BehindServer::start(listener, served_config(&streams, &args.gateway.model)?, marker_in)?;
    Ok(Prover {
        behind,
        client: args.gateway.client()?,
        streams,
        rules: CompareRules {
            by: args.compare,
            ignored: args.ignore.iter().cloned().collect(),
            prices: prices.unwrap_or_default(),
            model: args.gateway.model.clone(),
        },
        concurrency: args.concurrency.get(),
        pause_ms: args.pause,
        stall: args.stall,
        seed: args.seed,
        counter: AtomicU64::new(0),
    })
}

fn plan(args: &ProveArgs, upstream: std::net::SocketAddr) -> ProvePlan {
    let mut only: BTreeSet<ProveCheck> = args.only.iter().copied().collect();
    if only.is_empty() {
        only.extend(ProveCheck::ALL);
    }
    let via = args.gateway.via.to_string();
    let (gateway, prefix) = places(&via);
    ProvePlan {
        only,
        cases: args.cases,
        duration: args.duration,
        isolation: args.streams.get(),
        shrink: args.shrink,
        wait: args.gateway.wait,
        places: ScriptPlaces { gateway, is_tls: via.starts_with("https:"), prefix, upstream },
    }
}

/// Host and port of a URL, and its path, for a script.
fn places(url: &str) -> (String, String) {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let port = if scheme == "https" { ":443" } else { ":80" };
    (format!("{authority}{}", if has_port { "" } else { port }), path.trim_end_matches('/').to_owned())
}

/// Writes JUnit's file and the scripts.
fn save(args: &ProveArgs, proof: &Proof) -> Result<(), Failure> {
    if let Some(folder) = &args.scripts {
        for (number, failure) in proof.failures.iter().enumerate().filter(|(_, failure)| !failure.script.is_empty()) {
            output::save(&folder.join(script_name(number)), &failure.script)?;
        }
    }
    let Some(path) = &args.junit else { return Ok(()) };
    let checks = proof.checks.iter().map(|check| {
        let failure = (check.failed > 0).then(|| format!("{} of {} cases failed", check.failed, check.cases));
        JunitCase { name: check.check.name().to_owned(), failure }
    });
    let failures = proof.failures.iter();
    let failures = failures.map(|failure| JunitCase { name: title(failure), failure: Some(failure.what.clone()) });
    output::save(
        path,
        &junit(
            "vllm-vcr prove",
            &checks.chain(failures).chain(JunitCase::stopped(proof.is_stopped)).collect::<Vec<_>>(),
        ),
    )
}

fn script_name(number: usize) -> String {
    format!("prove-{}.py", number + 1)
}

/// A failure in a few words.
fn title(failure: &ProvenFailure) -> String {
    let faults = if failure.faults.is_empty() { "as it is".to_owned() } else { failure.faults.join(" | ") };
    let streams = if failure.streams > 1 { format!("{} streams at once, ", failure.streams) } else { String::new() };
    let writes = counted(failure.writes, "write");
    format!("{}: {} {}, {streams}{writes}: {faults}", failure.check.name(), failure.endpoint, failure.stream)
}

/// The table, the failures, and their scripts where these are not written to files.
fn text(args: &ProveArgs, proof: &Proof) -> String {
    let mut lines = vec![format!("{:12}{:>8}{:>8}  {}", "check", "cases", "failed", "verdict")];
    lines.extend(proof.checks.iter().map(|check| {
        let verdict = match check.failed {
            0 if proof.is_stopped => "so far",
            0 => "holds",
            _ => "FAILS",
        };
        format!("{:12}{:>8}{:>8}  {verdict}", check.check.name(), check.cases, check.failed)
    }));
    let names =
        |endpoints: &[crate::api::Endpoint]| endpoints.iter().map(|it| it.name()).collect::<Vec<_>>().join(", ");
    lines.push(format!("endpoints: {}", names(&proof.endpoints)));
    if !proof.absent.is_empty() {
        lines.push(format!("the gateway does not have: {}", names(&proof.absent)));
    }
    if proof.together > 0 {
        lines.push(format!("streams in progress at the same time: {}", proof.together));
    }
    if proof.silent_cuts > 0 {
        lines.push(format!("failed streams that were cut off without an error or an end: {}", proof.silent_cuts));
    }
    for (number, failure) in proof.failures.iter().enumerate() {
        lines.push(format!("\n{}. {} ({})", number + 1, one_line(&title(failure)), counted(failure.cases, "case")));
        lines.push(format!("   {}", one_line(&failure.what)));
        match &args.scripts {
            _ if failure.script.is_empty() => {}
            Some(folder) => lines.push(format!("   python3 {}", folder.join(script_name(number)).display())),
            None => lines.push(failure.script.clone()),
        }
    }
    if proof.more_failures > 0 {
        lines.push(format!("\nfurther kinds of failures, not reduced (--shrink): {}", proof.more_failures));
    }
    lines.push(if proof.holds() { "proven".to_owned() } else { "not proven".to_owned() });
    lines.join("\n") + "\n"
}

impl From<GroundTruthError> for Failure {
    fn from(error: GroundTruthError) -> Self {
        match error {
            GroundTruthError::Play(error) => error.into(),
            GroundTruthError::Cassette(error) => error.into(),
            GroundTruthError::Player(error) => error.into(),
            error @ GroundTruthError::Io(_) => Self::environment(error),
            error @ (GroundTruthError::Url(_) | GroundTruthError::Empty(_)) => Self::input(error),
        }
    }
}

impl From<ProveError> for Failure {
    fn from(error: ProveError) -> Self {
        match error {
            ProveError::Gateway(error) => error.into(),
            error @ ProveError::Fault(_) => Self::environment(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_connect_to_host_and_port() {
        assert_eq!(places("http://h:4000/team/"), ("h:4000".to_owned(), "/team".to_owned()));
        assert_eq!(places("https://gateway.example"), ("gateway.example:443".to_owned(), String::new()));
    }
}
