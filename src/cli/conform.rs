//! `conform`: its flags, and what was found as a table or JSON.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::{
    base::one_line::{counted, one_line},
    cli::{
        failure::Failure,
        gateway, output, runtime,
        values::{Secret, api_path_advice, some_time},
    },
    conform::{
        ConformCheck, ConformClient, ConformError, ShapeDifference, check_exchanges, check_kv_events, check_metrics,
    },
    net::upstream::UpstreamUrl,
};

/// Check whether a server answers in the shapes of a real vLLM.
///
/// Sends the requests of recorded exchanges (chats, completions, streams, errors, models, tokens) and compares status, content type, names
/// and types of fields and the order of events, never texts or numbers. Exit code 1 if anything differs.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Conformance",
    after_long_help = "Examples:\n  vllm-vcr conform --target http://localhost:8000\n  \
                             vllm-vcr conform --target http://localhost:8000 --profile picker --kv-events tcp://localhost:5557\n  \
                             vllm-vcr conform --target http://localhost:8000 --json > conform.json"
)]
pub(in crate::cli) struct ConformArgs {
    /// The server: http://HOST, https://HOST or h2c://HOST, with the path before /v1 if there is one.
    #[arg(long, value_name = "URL")]
    target: UpstreamUrl,
    /// What is compared: the answers of vLLM, or what an endpoint picker reads (families of /metrics, and KV events).
    #[arg(long, value_name = "PROFILE", value_delimiter = ',', default_value = "vllm")]
    profile: Vec<ConformProfile>,
    /// Where the server publishes KV events, such as tcp://localhost:5557. Default: they are not checked.
    #[arg(long, value_name = "ENDPOINT")]
    kv_events: Option<String>,
    /// Name of the model. Default: the first one of /v1/models.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Also counts as differences fields that are missing where null was recorded, and added fields.
    #[arg(long)]
    strict: bool,
    /// Prints the results as JSON.
    #[arg(long)]
    json: bool,
    /// Sent as `Authorization: Bearer KEY`.
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    api_key: Option<Secret>,
    /// Adds a header to every request.
    #[arg(long, value_name = "NAME: VALUE", hide_env_values = true)]
    header: Vec<Secret>,
    /// CA certificate of the server, or its own certificate, a PEM file. Default: the CAs that browsers trust.
    #[arg(long, value_name = "FILE")]
    target_ca: Option<PathBuf>,
    /// Time limit for a whole response, and for a KV event.
    #[arg(long, value_name = "DURATION", value_parser = some_time, default_value = "60s")]
    timeout: Duration,
}

base::named! {
    /// What is compared.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
    pub(in crate::cli) enum ConformProfile {
        /// Answers of vLLM.
        Vllm = "vllm",
        /// What an endpoint picker reads.
        Picker = "picker",
    }
}

/// Checks a server and prints what was found.
pub(in crate::cli) fn run(args: ConformArgs) -> Result<ExitCode, Failure> {
    runtime::run(|shutdown| async move {
        let (mut model, mut checks) = (args.model.clone(), Vec::new());
        let is_stopped = tokio::select! {
            done = check(&args, &mut model, &mut checks) => done.map(|()| false)?,
            () = shutdown.requested() => true,
        };
        let hold = checks.iter().filter(|check| check.holds(args.strict)).count();
        let holds = hold == checks.len() && !is_stopped;
        let profiles: Vec<&str> = args.profile.iter().map(|profile| profile.name()).collect();
        let json = || {
            json!({
                "target": args.target.to_string(), "profile": profiles, "model": model, "strict": args.strict,
                "conforms": holds, "is_stopped": is_stopped, "checked": checks.len(), "hold": hold, "checks": checks,
            })
        };
        let verdict = match (holds, is_stopped) {
            (true, _) => "conforms",
            (false, true) => "stopped",
            (false, false) => "differs",
        };
        let exit = output::verdict(holds, args.json, json, || text(&checks, verdict, args.strict))?;
        if is_stopped { Err(runtime::stopped_before("everything was checked")) } else { Ok(exit) }
    })
}

/// Adds what is found, and sets the model that is asked where none is named.
async fn check(args: &ConformArgs, model: &mut Option<String>, checks: &mut Vec<ConformCheck>) -> Result<(), Failure> {
    let client = client(args)?;
    let model = match model {
        Some(model) => model,
        None => model.insert(client.model().await.map_err(|error| no_model(args, error))?),
    };
    if args.profile.contains(&ConformProfile::Vllm) {
        check_exchanges(&client, model, checks).await?;
    }
    if args.profile.contains(&ConformProfile::Picker) {
        checks.extend(check_metrics(&client, model).await?);
    }
    if let Some(endpoint) = &args.kv_events {
        checks.push(check_kv_events(&client, model, endpoint, args.timeout).await?);
    }
    Ok(())
}

/// A server that lists no model may have been named with the path of its API.
fn no_model(args: &ConformArgs, error: ConformError) -> Failure {
    let advice = match error {
        ConformError::NoModel { status: 401 | 403, .. } => Some("--api-key names the key that the server asks for"),
        ConformError::NoModel { .. } => api_path_advice(&args.target),
        _ => None,
    };
    let failure = Failure::environment(error);
    if let Some(advice) = advice { failure.hint(advice) } else { failure }
}

fn client(args: &ConformArgs) -> Result<ConformClient, Failure> {
    let headers = gateway::headers(&args.header, args.api_key.as_ref())?;
    let options = gateway::options(args.target_ca.as_deref())?;
    Ok(ConformClient::new(args.target.clone(), &options, headers, args.timeout))
}

/// A line for each check, with its differences below, and the verdict.
fn text(checks: &[ConformCheck], verdict: &str, is_strict: bool) -> String {
    let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or_default();
    let mut text = String::new();
    let mut noted = 0;
    for check in checks {
        let verdict = if check.holds(is_strict) { "ok" } else { "differs" };
        text.push_str(&format!("{:width$}  {verdict:7}  {}\n", check.name, check.request));
        let notes = if is_strict { check.found.notes.as_slice() } else { &[] };
        noted += check.found.notes.len();
        for ShapeDifference { place, what } in check.found.differences.iter().chain(notes) {
            text.push_str(&format!("{:width$}    {}\n", "", one_line(&format!("{place} {what}"))));
        }
    }
    let good = checks.iter().filter(|check| check.holds(is_strict)).count();
    text.push_str(&format!("\n{verdict}: {good} of {} passed", counted(checks.len(), "check")));
    if noted > 0 && !is_strict {
        text.push_str(&format!(
            "; {} missing where null was recorded, or added (--strict shows and counts them)",
            counted(noted, "field")
        ));
    }
    text.push('\n');
    text
}
