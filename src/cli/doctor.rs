//! `doctor`: whether this machine, a tokenizer and an engine are fit for what is planned, line by line, with what to do.

use std::{fmt::Write as _, path::PathBuf, process::ExitCode, thread, time::Duration};

use clap::Args;
use rustix::time::ClockId;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    base::one_line::one_line,
    cli::{
        failure::Failure, gateway, output, play::model, replay::calibration::Server, runtime, values::api_path_advice,
    },
    drive::{machine, numbers::processor_time},
    net::{
        server,
        upstream::{UpstreamOptions, UpstreamUrl},
        wire::value_text,
    },
    play::{Player, TokenizerSource, load_tokenizer},
    recording::trace::Meta,
    replay::player::{PROBE, ServerEnvironment, tokenizer_name},
    tap,
    text::prompt::{SpecialTokens, Tokenizer},
};

/// Time for all that is asked of an engine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Files that may be open, fewer than which are too few to work with.
const FEWEST_FILES: u64 = 256;

/// Files that may be open, fewer than which are too few for a load test.
const FEW_FILES: u64 = 4096;

/// Lateness of a timer at its 99th percentile from which on times are rough, and from which on they are meaningless, in ms.
const ROUGH_TIMER: f64 = 1.0;
const BAD_TIMER: f64 = 20.0;

/// Median time of a request over loopback from which on it is slow, in ms.
const SLOW_LOOPBACK: f64 = 0.5;

/// Check this machine, a tokenizer and an engine, and advise what to do.
///
/// Measures for a few seconds how late the timer is and how long a request over loopback takes. Each line is ok, warn or fail; exit code 1
/// if anything fails.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  Check this machine:\n    vllm-vcr doctor\n\n  \
                       Check the engine that is to be recorded, and the tokenizer for its trace:\n    \
                       vllm-vcr doctor --upstream http://localhost:8000 --tokenizer ./tokenizer\n\n  \
                       Let a script see what is wrong:\n    \
                       vllm-vcr doctor --json | jq '.checks[] | select(.state != \"ok\")'")]
pub(in crate::cli) struct DoctorArgs {
    /// A tokenizer, as in `play --tokenizer`: a directory, a tokenizer.json or a Hub id. With --upstream it is compared with the engine's.
    #[arg(long, value_name = "SPEC")]
    tokenizer: Option<String>,
    /// An engine, such as http://localhost:8000: whether it can be reached, its version, models and settings.
    #[arg(long, value_name = "URL")]
    upstream: Option<UpstreamUrl>,
    /// CA certificate of the engine, or its own certificate, a PEM file.
    #[arg(long, value_name = "FILE", requires = "upstream")]
    upstream_ca: Option<PathBuf>,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckState {
    Ok,
    Warn,
    Fail,
}

/// Result of a check, and advice.
#[derive(Debug, Serialize)]
struct CheckLine {
    check: &'static str,
    state: CheckState,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<&'static str>,
    #[serde(skip_serializing_if = "Value::is_null")]
    figures: Value,
}

impl CheckLine {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, state: CheckState::Ok, found: found.into(), advice: None, figures: Value::Null }
    }

    fn but(self, state: CheckState, advice: &'static str) -> Self {
        Self { state, advice: Some(advice), ..self }
    }

    fn with(self, figures: Value) -> Self {
        Self { figures, ..self }
    }
}

/// Checks, and prints what was found; exit code 1 where anything fails.
pub(in crate::cli) fn run(args: DoctorArgs) -> Result<ExitCode, Failure> {
    runtime::run(|shutdown| async move {
        let lines = shutdown.unless_requested(check(&args), "everything was checked").await?;
        let fit = lines.iter().all(|line| line.state != CheckState::Fail);
        output::verdict(fit, args.json, || json!({"fit": fit, "checks": lines}), || text(&lines))
    })
}

async fn check(args: &DoctorArgs) -> Result<Vec<CheckLine>, Failure> {
    let reach = gateway::options(args.upstream_ca.as_deref());
    let reach = reach.map_err(|failure| failure.hint("--upstream-ca takes a PEM file"))?;
    let reach = UpstreamOptions { connect_timeout: Some(Duration::from_secs(3)), ..reach };
    let mut lines =
        vec![cores(), descriptors(server::raise_descriptor_limit()), timer().await?, loopback(&reach).await?];
    let (line, tokenizer) = tokenizer(args.tokenizer.clone()).await?;
    lines.push(line);
    if let Some(url) = &args.upstream {
        let line = upstream(url, &reach).await;
        let is_there = line.state != CheckState::Fail;
        lines.push(line);
        if let Some(tokenizer) = tokenizer.filter(|_| is_there) {
            lines.extend(same_tokenizer(url, &reach, &tokenizer).await?);
        }
    }
    Ok(lines)
}

fn cores() -> CheckLine {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let line = CheckLine::ok("cores", cores.to_string()).with(json!({"cores": cores}));
    let advice = "server and client share it: run them on two machines, or expect latencies of milliseconds";
    if cores < 2 { line.but(CheckState::Warn, advice) } else { line }
}

fn descriptors(limit: Option<u64>) -> CheckLine {
    let found = limit
        .map_or_else(|| "any number of files may be open".to_owned(), |limit| format!("{limit} files may be open"));
    let line = CheckLine::ok("descriptors", found).with(json!({"limit": limit}));
    let advice = "each connection takes one: ulimit -n 65536, or LimitNOFILE=65536 in a systemd unit";
    match limit.unwrap_or(u64::MAX) {
        limit if limit < FEWEST_FILES => line.but(CheckState::Fail, advice),
        limit if limit < FEW_FILES => line.but(CheckState::Warn, advice),
        _ => line,
    }
}

async fn timer() -> Result<CheckLine, Failure> {
    let late = tokio::spawn(machine::timer_lateness(1000)).await.map_err(Failure::environment)?;
    let Some(late) = late.summary() else { return Err(Failure::environment("the timer never fired")) };
    let found = format!("late by {:.3} ms, p99 {:.3} ms", late.p50, late.p99);
    let line = CheckLine::ok("timer", found).with(json!({"late_ms": late}));
    let advice = "other programs use the cores, or the cores sleep deeply: stop them, set the performance governor, or use a dedicated machine";
    Ok(match late.p99 {
        p99 if p99 > BAD_TIMER => line.but(CheckState::Fail, advice),
        p99 if p99 > ROUGH_TIMER => line.but(CheckState::Warn, advice),
        _ => line,
    })
}

/// Requests to a server of this program, one after the other.
async fn loopback(reach: &UpstreamOptions) -> Result<CheckLine, Failure> {
    const REQUESTS: u32 = 1000;
    let server = Server::start(64).await?;
    let url: UpstreamUrl = server.url.parse().map_err(Failure::environment)?;
    let warm = machine::round_trips(&url, reach, 100).await;
    let before = processor_time(ClockId::ProcessCPUTime);
    let took = match warm {
        Ok(_) => machine::round_trips(&url, reach, REQUESTS).await,
        Err(error) => Err(error),
    };
    let spent =
        processor_time(ClockId::ProcessCPUTime).saturating_sub(before).as_secs_f64() * 1e6 / f64::from(REQUESTS);
    server.end().await;
    let advice = "a firewall or proxy inspects loopback, or other programs use the cores";
    Ok(match took.map(|took| took.summary()) {
        Ok(Some(took)) => {
            let found = format!(
                "{:.3} ms a request, p99 {:.3} ms; {spent:.0} µs of processor time for both sides",
                took.p50, took.p99
            );
            let line = CheckLine::ok("loopback", found).with(json!({"request_ms": took, "cpu_us_per_request": spent}));
            if took.p50 > SLOW_LOOPBACK { line.but(CheckState::Warn, advice) } else { line }
        }
        Ok(None) => CheckLine::ok("loopback", "no request ended".to_owned()).but(CheckState::Fail, advice),
        Err(error) => CheckLine::ok("loopback", error.to_string()).but(CheckState::Fail, advice),
    })
}

async fn tokenizer(spec: Option<String>) -> Result<(CheckLine, Option<Tokenizer>), Failure> {
    let source = model::tokenizer(spec);
    let is_given = matches!(source, TokenizerSource::Spec(_));
    let load = move || match source {
        TokenizerSource::Spec(spec) => load_tokenizer(&spec).map(Some).map_err(Failure::from),
        TokenizerSource::None => Ok(None),
        TokenizerSource::BuiltIn | TokenizerSource::Loaded(_) => {
            Player::builtin_tokenizer().map(Some).map_err(Failure::from)
        }
    };
    Ok(match tokio::task::spawn_blocking(load).await.map_err(Failure::environment)? {
        Ok(None) => (CheckLine::ok("tokenizer", "none: token ids, and no text of them"), None),
        Ok(Some(tokenizer)) => {
            let name = if is_given { tokenizer.name() } else { "the built-in one" };
            let template = if tokenizer.chat_template().is_some() { "with" } else { "without" };
            let found = format!("{name}: {} tokens, {template} a chat template", tokenizer.vocab_size());
            (CheckLine::ok("tokenizer", one_line(&found)), Some(tokenizer).filter(|_| is_given))
        }
        Err(failure) => {
            let advice = "--tokenizer takes a folder with tokenizer.json, or a Hub id (HF_TOKEN for a gated one, HTTPS_PROXY behind a proxy)";
            (CheckLine::ok("tokenizer", reason(&failure)).but(CheckState::Fail, advice), None)
        }
    })
}

fn reason(failure: &Failure) -> String {
    one_line(&failure.chain().join(": ")).into_owned()
}

async fn upstream(url: &UpstreamUrl, reach: &UpstreamOptions) -> CheckLine {
    let line = |found: String| CheckLine::ok("upstream", one_line(&found));
    let Ok(answered) = timeout(PATIENCE, tap::engine_meta(url, reach)).await else {
        return line(format!("{url} accepts connections, but does not respond within {} s", PATIENCE.as_secs()))
            .but(CheckState::Fail, "wait until the engine has loaded its model, or restart it");
    };
    match answered {
        Err(error) => CheckLine::ok("upstream", reason(&Failure::environment(error)))
            .but(CheckState::Fail, "start the engine, or correct the scheme, host or port of --upstream"),
        Ok(None) => {
            let other = "other servers than vLLM can be recorded too, with token ids only if they send them";
            let line = line(format!("{url} responds, but has no /version as vLLM does"));
            line.but(CheckState::Warn, api_path_advice(url).unwrap_or(other))
        }
        Ok(Some(meta)) => {
            let line = line(format!("{url}: {}", settings(&meta))).with(json!({
                "vllm_version": meta.vllm_version, "model": meta.model, "settings": meta.extra.get("upstream"),
            }));
            let advice = "its models are hidden, probably by an API key: tap forwards the keys of clients, and the trace names no model";
            if meta.model.is_none() { line.but(CheckState::Warn, advice) } else { line }
        }
    }
}

/// An engine's version, models and settings in a line.
fn settings(meta: &Meta) -> String {
    let mut parts = vec![format!("vLLM {}", meta.vllm_version.as_deref().unwrap_or_default())];
    let upstream = meta.extra.get("upstream");
    let at = |name: &str| upstream.and_then(|upstream| upstream.get(name));
    let models = at("models").and_then(Value::as_array).into_iter().flatten();
    parts.extend(models.filter_map(Value::as_str).map(str::to_owned));
    parts.extend(at("max_model_len").map(|length| format!("max_model_len {length}")));
    for (name, value) in at("cache").and_then(Value::as_object).into_iter().flatten() {
        parts.push(format!("{name} {}", value_text(value)));
    }
    parts.join(", ")
}

/// Compares a tokenizer with the engine's, where that shows it.
async fn same_tokenizer(
    url: &UpstreamUrl,
    reach: &UpstreamOptions,
    tokenizer: &Tokenizer,
) -> Result<Option<CheckLine>, Failure> {
    let own = tokenizer_name(&tokenizer.encode(PROBE, SpecialTokens::Skip)?);
    let Some(theirs) = ServerEnvironment::at(url, reach).await.tokenizer else { return Ok(None) };
    let line = |found: &str| CheckLine::ok("same tokenizer", found.to_owned());
    let advice = "prompts would be hashed and texts decoded with wrong tokens: use the tokenizer of the engine's model";
    Ok(Some(match own == theirs {
        true => line("the engine tokenizes a difficult text in the same way"),
        false => line("the engine tokenizes a difficult text differently").but(CheckState::Fail, advice),
    }))
}

fn text(lines: &[CheckLine]) -> String {
    let mut text = String::new();
    for line in lines {
        let state = match line.state {
            CheckState::Ok => "ok",
            CheckState::Warn => "warn",
            CheckState::Fail => "FAIL",
        };
        let _ = writeln!(text, "{state:5} {:15} {}", line.check, line.found);
        if let Some(advice) = line.advice {
            let _ = writeln!(text, "{:21} {advice}", "");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_descriptors_are_named() {
        let state = |limit| descriptors(limit).state;
        assert_eq!(state(Some(100)), CheckState::Fail);
        assert_eq!(state(Some(1024)), CheckState::Warn);
        assert_eq!((state(Some(65536)), state(None)), (CheckState::Ok, CheckState::Ok));
        let printed = text(&[descriptors(Some(1024))]);
        assert!(
            printed.starts_with("warn  descriptors     1024 files may be open\n") && printed.contains("ulimit -n"),
            "{printed}"
        );
    }

    #[test]
    fn settings_are_a_line() {
        let mut meta = Meta { vllm_version: Some("0.32.0".to_owned()), ..Meta::default() };
        assert_eq!(settings(&meta), "vLLM 0.32.0");
        let upstream =
            json!({"models": ["m", "a"], "max_model_len": 4096, "cache": {"block_size": 16, "cache_dtype": "auto"}});
        meta.extra.insert("upstream".to_owned(), upstream);
        assert_eq!(settings(&meta), "vLLM 0.32.0, m, a, max_model_len 4096, block_size 16, cache_dtype auto");
    }
}
