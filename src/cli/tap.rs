//! Runs `tap`: what was typed becomes its configuration, and its report goes to stderr.

use std::{net::SocketAddr, process::ExitCode};

use tokio::{
    net::lookup_host,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

use super::{
    args::TapArgs,
    child,
    failure::{Exit, Failure},
    output, runtime, signals, tap_cassette,
    tap_setup::{self, Door},
};
use crate::{
    net::server::{self, Listener},
    recording::canonical::Form,
    recording::cassette::is_cassette,
    recording::trace::TraceError,
    replay::matching::requests::Retries,
    replay::player::{Ids, MissDetail, RecordErrors},
    tap::{Handle, Report, Selector, Setup, Tap, TapError},
};

/// Proxies and records until a signal.
///
/// # Errors
/// When the address, the tokenizer or the trace cannot be had, or the trace cannot be finished.
pub(super) fn run(mut args: TapArgs) -> Result<ExitCode, Failure> {
    tap_cassette::choose_file(&mut args);
    if is_cassette(&args.trace_out) {
        return tap_cassette::run(args);
    }
    refuse_cassette_flags(&args)?;
    let command = args.cassettes.command.clone();
    child::needs_an_address(&command, args.network.uds.as_deref())?;
    let door = tap_setup::door(&args)?;
    let (admin, admin_may_be_remote) = (args.network.admin_listen.clone(), args.network.allow_remote_record);
    let setup = tap_setup::setup(args)?;
    refuse_names(&setup)?;
    runtime::run(|shutdown| async move {
        server::raise_descriptor_limit();
        signals::outlive_file_limits();
        let (listener, at) = open(door).await?;
        refuse_circle(&at, &setup).await?;
        let admin = match &admin {
            Some(address) => {
                if !admin_may_be_remote {
                    refuse_remote("--admin-listen", address).await?;
                }
                Some(server::bind(address).await?)
            }
            None => None,
        };
        let greeting = greeting(&at, &setup);
        let tap = Tap::start(setup).await?;
        output::note(&greeting);
        let (stop, stopped) = oneshot::channel::<()>();
        if let Some(listener) = admin {
            let address = listener.local_addr().map_err(|error| Failure::new(Exit::Environment, error))?;
            output::note(&format!("counts at http://{address}/metrics\n"));
            tokio::spawn(tap.handle().serve(listener, async {
                let _ended = stopped.await;
            }));
        }
        tokio::spawn(rotate_at_hangup(tap.handle()));
        let environment = child::Environment { root: &at, ..child::Environment::default() };
        let mut child = child::start(&command, &environment)?;
        let mut code = None;
        let report = tap.serve(listener, async { code = child::until(child.as_mut(), shutdown).await }).await?;
        drop(stop);
        output::summary(&exit_summary(&report));
        match report.recorder.write_error {
            Some(error) if report.recorder.is_failing => {
                let lost = report.recorder.write_failed;
                Err(Failure::new(Exit::Environment, format!("{lost} records could not be written: {error}")))
            }
            _ => Ok(code.map_or(ExitCode::SUCCESS, ExitCode::from)),
        }
    })
}

/// Listens where clients come to.
pub(super) async fn open(door: Door) -> Result<(Listener, String), Failure> {
    let (listener, at) = match (&door.socket, &door.tls) {
        (Some(path), _) => (Listener::from(server::bind_unix(path).await?), format!("unix:{}", path.display())),
        (None, tls) => {
            if tls.is_none() && !door.remote_is_allowed {
                refuse_remote("--listen", &door.address).await?;
            }
            let listener = server::bind(&door.address).await?;
            let address = listener.local_addr().map_err(|error| Failure::new(Exit::Environment, error))?;
            let scheme = if tls.is_some() { "https" } else { "http" };
            (Listener::from(listener), format!("{scheme}://{address}"))
        }
    };
    let listener = listener.with_http2();
    match door.tls {
        Some(tls) => Ok((listener.with_tls(tls), at)),
        None => Ok((listener, at)),
    }
}

/// The status of a miss where no flag sets it.
const DEFAULT_MISS_STATUS: u16 = 422;

/// A trace does not tell upstreams apart.
fn refuse_names(setup: &Setup) -> Result<(), Failure> {
    match setup.routes.iter().find(|route| matches!(route.selector, Some(Selector::Name(_)))) {
        Some(route) => {
            Err(Failure::usage(format!("--upstream {route}: only what is recorded into a cassette names its upstream"))
                .hint("name a path or a model, or record a cassette: --cassette FILE.yaml"))
        }
        None => Ok(()),
    }
}

/// Flags that mean something for cassettes only.
fn refuse_cassette_flags(args: &TapArgs) -> Result<(), Failure> {
    let cassettes = &args.cassettes;
    let typed = [
        ("--mode", cassettes.mode.is_some()),
        ("--match", !cassettes.matching.is_empty()),
        ("--scrub", !cassettes.scrub.is_empty()),
        ("--on-miss", cassettes.on_miss.is_some()),
        ("--on-exhausted", cassettes.on_exhausted.is_some()),
        ("--live", !cassettes.live.is_empty()),
        ("--frozen", !cassettes.frozen.is_empty()),
        ("--fail-on", !cassettes.fail_on.is_empty()),
        ("--report", cassettes.report.is_some()),
        ("--timing", cassettes.timing.is_some()),
        ("--tag", !cassettes.tag.is_empty()),
        ("--tokens", cassettes.tokens.is_some()),
        ("--complete-within", cassettes.complete_within.is_some()),
        ("--record-errors all", cassettes.record_errors == RecordErrors::All),
        ("--cross-api", cassettes.cross_api),
        ("--ids fresh", cassettes.ids == Ids::Fresh),
        ("--retries consume", cassettes.retries == Retries::Consume),
        ("--loose-after-exhausted", cassettes.loose_after_exhausted),
        ("--miss-status", cassettes.miss_status != DEFAULT_MISS_STATUS),
        ("--miss-detail", cassettes.miss_detail != MissDetail::default()),
        ("--ignore", !cassettes.ignore.is_empty()),
        ("--ignore-query", !cassettes.ignore_query.is_empty()),
        ("--no-default-ignores", cassettes.no_default_ignores),
        ("--canonical strict", cassettes.canonical == Form::Strict),
        ("--match-header", !cassettes.match_header.is_empty()),
        ("--allow-secrets", cassettes.allow_secrets),
        ("--secrets", cassettes.secrets.is_some()),
        ("--block-network", cassettes.block_network),
        ("--admin", cassettes.admin),
        ("--no-admin", cassettes.no_admin),
        ("--admin-token", cassettes.admin_token.is_some()),
        ("--admin-overwrite", cassettes.admin_overwrite),
        ("--mcp", !args.mcp.mcp.is_empty()),
        ("--mcp-stdio", !args.mcp.mcp_stdio.is_empty()),
        ("--upstream-header", !args.mcp.upstream_header.is_empty()),
    ];
    let hint = "leave it out, or record a cassette: --cassette FILE.yaml";
    refuse_typed(&typed, &format!("a trace ({})", args.trace_out.display()), hint)
}

/// Refuses flags that were typed and mean nothing for what is recorded.
pub(super) fn refuse_typed(flags: &[(&str, bool)], recorded: &str, hint: &str) -> Result<(), Failure> {
    let typed: Vec<&str> = flags.iter().filter(|(_, is_typed)| *is_typed).map(|(name, _)| *name).collect();
    if typed.is_empty() {
        return Ok(());
    }
    Err(Failure::usage(format!("{} means nothing for {recorded}", typed.join(", "))).hint(hint))
}

/// A tap before itself would send every request round and round.
pub(super) async fn refuse_circle(at: &str, setup: &Setup) -> Result<(), Failure> {
    let Some(own) = at.split_once("://").and_then(|(_, address)| address.parse::<SocketAddr>().ok()) else {
        return Ok(());
    };
    for upstream in std::iter::once(&setup.config.upstream).chain(setup.routes.iter().map(|route| &route.upstream)) {
        let Some(address) = upstream.tcp_address().filter(|(_, port)| *port == own.port()) else { continue };
        let Ok(mut found) = lookup_host(address).await else { continue };
        if found.any(|found| found.ip() == own.ip() || (own.ip().is_unspecified() && found.ip().is_loopback())) {
            return Err(Failure::usage(format!("--upstream {upstream} is where the tap itself listens"))
                .hint("name the engine's port with --upstream, and another one with --listen"));
        }
    }
    Ok(())
}

/// Prompts and credentials do not go over a network unencrypted unless a flag allows it; nor do counts, which name upstreams.
pub(super) async fn refuse_remote(flag: &str, address: &str) -> Result<(), Failure> {
    let Ok(resolved) = lookup_host(address).await else { return Ok(()) };
    match resolved.map(|address: SocketAddr| address.ip()).find(|ip| !ip.is_loopback()) {
        None => Ok(()),
        Some(ip) => {
            let hint = match flag {
                "--listen" => "add --ssl-certfile, or --allow-remote-record where the network is your own",
                _ => "add --allow-remote-record where the network is your own",
            };
            Err(Failure::usage(format!("{flag} {address} is reached from other machines ({ip}), without TLS"))
                .hint(hint))
        }
    }
}

async fn rotate_at_hangup(tap: Handle) {
    let Ok(mut hangups) = signal(SignalKind::hangup()) else { return };
    while hangups.recv().await.is_some() {
        tap.rotate();
    }
}

fn greeting(at: &str, setup: &Setup) -> String {
    let (upstream, trace) = (&setup.config.upstream, setup.config.trace_out.display());
    let further: String = setup.routes.iter().map(|route| format!(", {route}")).collect();
    let mut kept = vec![if setup.config.record_tokens { "token ids" } else { "no token ids" }];
    kept.extend(setup.content.text.then_some("text"));
    kept.extend(setup.content.requests.then_some("requests"));
    kept.extend(setup.content.logprobs.then_some("log probabilities"));
    let kept = if kept == ["no token ids"] {
        "shapes and timing only, no token ids".to_owned()
    } else {
        format!("with {}", kept.join(", "))
    };
    format!("tap on {at} -> {upstream}{further}\nrecording to {trace} ({kept}); Ctrl-C ends it\n")
}

fn exit_summary(report: &Report) -> String {
    let recorder = &report.recorder;
    let mut text = format!("forwarded {} requests, wrote {} records\n", report.forwarded, recorder.written);
    for (count, what) in [
        (recorder.queue_full, "records dropped: the recorder could not keep up"),
        (recorder.queue_bytes, "records dropped: the exchanges that waited for the recorder held too many bytes"),
        (recorder.write_failed, "records dropped: the trace could not be written"),
        (recorder.broken, "records dropped: they could not be made"),
        (recorder.hashes_skipped, "exchanges recorded without block hashes: too many long prompts waited"),
        (recorder.content_skipped, "exchanges recorded without their content: too long, or too much at a time"),
        (recorder.unsearched, "exchanges recorded without their content: too much work to search it for secrets"),
        (recorder.ids_incomplete, "exchanges recorded without ids: the engine did not send all of them"),
        (recorder.repaired, "records repaired: they broke a rule of the format, and what broke it was left out"),
        (recorder.choices_left_out, "choices without a record: their requests had too many"),
        (recorder.redacted, "records with secrets redacted"),
        (recorder.emptied, "times another program emptied the trace: what was in it is gone, and it was begun again"),
        (report.informational_dropped, "informational responses (1xx) dropped: their clients did not read"),
        (report.cut as u64, "connections cut at the drain's deadline"),
    ] {
        if count > 0 {
            text.push_str(&format!("  {count} {what}\n"));
        }
    }
    if let Some(error) = recorder.write_error.as_ref().filter(|_| !recorder.is_failing) {
        text.push_str(&format!("  recording went on after: {error}\n"));
    }
    if recorder.files > 1 {
        text.push_str(&format!("  in {} files\n", recorder.files));
    }
    text
}

impl From<TapError> for Failure {
    fn from(error: TapError) -> Self {
        match &error {
            TapError::Trace(TraceError::Exists { .. }) => Self::usage(error)
                .hint("add to it with --append, replace it with --overwrite, or go on beside it with --next"),
            TapError::Trace(TraceError::Suffix { .. }) => Self::usage(error),
            TapError::Trace(TraceError::Io { .. } | TraceError::InUse { .. }) | TapError::Recorder(_) => {
                Self::new(Exit::Environment, error)
            }
            TapError::Trace(_) => Self::new(Exit::BadInput, error),
        }
    }
}
