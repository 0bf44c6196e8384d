//! Runs `tap`: what was typed becomes its configuration, and its report goes to stderr.

pub(in crate::cli) mod args;
pub(in crate::cli) mod cassette;
pub(in crate::cli) mod engine_core;
mod playback;
pub(in crate::cli) mod setup;

use std::{net::SocketAddr, path::Path, process::ExitCode};

use clap::Arg;
use tokio::{
    net::{TcpListener, lookup_host},
    sync::oneshot,
};

use crate::{
    base::one_line::counted,
    cli::{
        child,
        failure::Failure,
        flags::Typed,
        output, runtime,
        tap::{args::TapArgs, setup::ListenSetup},
    },
    net::server::{self, Listener},
    recording::{cassette::is_cassette, storage, trace::TraceError},
    replay::player::OnMiss,
    tap::{Handle, Setup, Tap, TapError, TapReport, UpstreamSelector},
};

/// Proxies and records until a signal.
pub(in crate::cli) fn run(args: TapArgs) -> Result<ExitCode, Failure> {
    if is_cassette(&args.trace_out) {
        return cassette::run(args);
    }
    if args.engine_core.engine_core {
        return engine_core::run(args);
    }
    let command = args.cassettes.command.clone();
    child::needs_an_address(&command, args.network.uds.as_deref())?;
    let listen = setup::listen(&args)?;
    let (admin, admin_may_be_remote) = (args.network.admin_listen.clone(), args.network.allow_remote_record);
    let setup = setup::setup(args)?;
    refuse_names(&setup)?;
    runtime::run(|shutdown| async move {
        server::raise_descriptor_limit();
        runtime::outlive_file_limits();
        let (listener, at) = open(listen).await?;
        refuse_circle(&at, &setup).await?;
        let admin = admin_listener(admin.as_deref(), admin_may_be_remote).await?;
        let tap = Tap::start(setup.clone()).await?;
        output::note(&greeting((&at, &setup.config.upstream.to_string()), &setup, tap.handle().trace()));
        let stop = serve_admin(tap.handle(), admin)?;
        let environment = child::ChildEnvironment { root: &at, ..child::ChildEnvironment::default() };
        let mut child = child::start(&command, &environment)?;
        let mut code = None;
        let report = tap.serve(listener, async { code = child::until(child.as_mut(), shutdown).await }).await?;
        drop(stop);
        conclude(report)?;
        Ok(code.map_or(ExitCode::SUCCESS, ExitCode::from))
    })
}

/// Binds the address of counts and health.
async fn admin_listener(address: Option<&str>, may_be_remote: bool) -> Result<Option<TcpListener>, Failure> {
    let Some(address) = address else { return Ok(None) };
    if !may_be_remote {
        refuse_remote("--admin-listen", address).await?;
    }
    Ok(Some(server::bind(address).await?))
}

/// Serves counts and health until what it returns is dropped, and rotates the trace at each SIGHUP.
fn serve_admin(handle: Handle, listener: Option<TcpListener>) -> Result<oneshot::Sender<()>, Failure> {
    let (stop, stopped) = oneshot::channel::<()>();
    if let Some(listener) = listener {
        let address = listener.local_addr().map_err(Failure::environment)?;
        output::note(&format!("metrics at http://{address}/metrics\n"));
        tokio::spawn(handle.clone().serve(listener, async {
            let _ended = stopped.await;
        }));
    }
    runtime::at_hangups(move || handle.rotate())?;
    Ok(stop)
}

/// Prints the summary; an error where the trace could not be written at the end.
fn conclude(report: TapReport) -> Result<(), Failure> {
    output::summary(&exit_summary(&report));
    match report.recorder.write_error {
        Some(error) if report.recorder.is_failing => {
            let lost = report.recorder.write_failed;
            let what = if lost == 0 { "the trace".to_owned() } else { counted(lost, "record") };
            Err(Failure::environment(format!("{what} could not be written: {error}")))
        }
        _ => Ok(()),
    }
}

pub(in crate::cli) async fn open(listen: ListenSetup) -> Result<(Listener, String), Failure> {
    let (listener, at) = match (&listen.socket, &listen.tls) {
        (Some(path), _) => (Listener::from(server::bind_unix(path).await?), format!("unix:{}", path.display())),
        (None, tls) => {
            if tls.is_none() && !listen.remote_is_allowed {
                refuse_remote("--listen", &listen.address).await?;
            }
            let listener = server::bind(&listen.address).await?;
            let address = listener.local_addr().map_err(Failure::environment)?;
            let scheme = if tls.is_some() { "https" } else { "http" };
            (Listener::from(listener), format!("{scheme}://{address}"))
        }
    };
    let listener = listener.with_http2();
    Ok((if let Some(tls) = listen.tls { listener.with_tls(tls) } else { listener }, at))
}

/// A trace does not distinguish upstreams.
fn refuse_names(setup: &Setup) -> Result<(), Failure> {
    match setup.routes.iter().find(|route| matches!(route.selector, Some(UpstreamSelector::Name(_)))) {
        Some(route) => {
            Err(Failure::usage(format!("--upstream {route}: a trace does not record the names of upstreams"))
                .hint("name a path or a model, or record a cassette: --cassette FILE.yaml"))
        }
        None => Ok(()),
    }
}

/// Tags of flags for traces only, for traces in files only, and for HTTP only.
pub(in crate::cli) const TAGS: &[&str] = &["@traces", "@files", "@http"];

/// Chooses the file of a folder, and refuses flags that have no effect on what is recorded.
pub(in crate::cli) fn check(args: &mut TapArgs, typed: &Typed<'_>) -> Result<(), Failure> {
    let shown = storage::shown(&args.trace_out);
    storage::check(&args.trace_out)
        .map_err(|error| Failure::usage(format!("--trace-out {}: {error}", shown.display())))?;
    cassette::choose_file(args);
    refuse_name(&args.trace_out)?;
    let file = args.trace_out.display();
    let is_cassette = is_cassette(&args.trace_out);
    if is_cassette && args.cassettes.on_miss == Some(OnMiss::Random) {
        let hint = "use it with play: vllm-vcr play --cassette FILE";
        return Err(Failure::usage("--on-miss random: tap makes up no tokens").hint(hint));
    }
    let (tags, recorded, hint): (&[&str], _, _) = if is_cassette {
        let hint = "leave it out, or record a trace: --trace-out FILE.jsonl.gz";
        (&["@traces", "FileArgs"], format!("a cassette ({file})"), hint)
    } else {
        let hint = "leave it out, or record a cassette: --cassette FILE.yaml";
        (&["CassetteArgs", "McpTappedArgs"], format!("a trace ({file})"), hint)
    };
    let flags = typed.tagged(tags).filter(|flag| flag.get_long().is_some() && typed.is_changed(flag));
    // Of a switch with two values, the other one has no effect.
    let value = |flag: &Arg| match flag.get_possible_values().len() {
        2 if !is_cassette && !flag.get_default_values().is_empty() => format!(" {}", typed.values(flag).concat()),
        _ => String::new(),
    };
    engine_core::check(args, typed)?;
    let names: Vec<String> = flags.map(|flag| format!("{}{}", typed.shown(flag), value(flag))).collect();
    if !names.is_empty() {
        return Err(Failure::usage(format!("{} has no effect on {recorded}", names.join(", "))).hint(hint));
    }
    // Standard output is one stream: it is not rotated, and nothing is there before.
    match typed.tagged(&["@files"]).find(|flag| typed.is_changed(flag)) {
        Some(flag) if args.trace_out.as_os_str() == "-" => {
            let message = format!("{} has no effect on standard output (--trace-out -)", typed.shown(flag));
            Err(Failure::usage(message))
        }
        _ => Ok(()),
    }
}

/// Refuses a name that says neither trace nor cassette. One that ends in .json may be meant as either, and a trace keeps no content.
fn refuse_name(path: &Path) -> Result<(), Failure> {
    let name = path.to_string_lossy().to_ascii_lowercase();
    let of_packed = name.strip_suffix(".gz");
    let is_packed = of_packed.is_some_and(|name| !is_cassette(Path::new(name)) && !name.ends_with(".json"));
    if is_cassette(path) || is_packed || name == "-" || name.ends_with(".jsonl") {
        return Ok(());
    }
    let shown = storage::shown(path);
    let hint = "name a cassette FILE.yaml, or a trace FILE.jsonl or FILE.jsonl.gz";
    Err(Failure::usage(format!("{}: the name says neither cassette nor trace", shown.display())).hint(hint))
}

/// A tap before itself would send every request round and round.
pub(in crate::cli) async fn refuse_circle(at: &str, setup: &Setup) -> Result<(), Failure> {
    let Some(own) = at.split_once("://").and_then(|(_, address)| address.parse::<SocketAddr>().ok()) else {
        return Ok(());
    };
    for upstream in std::iter::once(&setup.config.upstream).chain(setup.routes.iter().map(|route| &route.upstream)) {
        if upstream.leads_to(own).await {
            return Err(Failure::usage(format!("--upstream {upstream} is the tap's own address: requests would loop"))
                .hint("name the engine's port with --upstream, and another one with --listen"));
        }
    }
    Ok(())
}

/// Prompts and credentials do not go over a network unencrypted unless a flag allows it; nor do counts, which name upstreams.
pub(in crate::cli) async fn refuse_remote(flag: &str, address: &str) -> Result<(), Failure> {
    let Ok(resolved) = lookup_host(address).await else { return Ok(()) };
    match resolved.map(|address: SocketAddr| address.ip()).find(|ip| !ip.is_loopback()) {
        None => Ok(()),
        Some(ip) => {
            let hint = match flag {
                "--listen" => "add --ssl-certfile, or --allow-remote-record if you trust the network",
                _ => "add --allow-remote-record if you trust the network",
            };
            Err(Failure::usage(format!("{flag} {address} can be reached from other machines ({ip}), without TLS"))
                .hint(hint))
        }
    }
}

/// Says what is recorded where: `trace` is the file that was begun.
fn greeting((at, upstream): (&str, &str), setup: &Setup, trace: Option<&Path>) -> String {
    let trace = trace.unwrap_or(&setup.config.trace_out).display();
    let further: String = setup.routes.iter().map(|route| format!(", {route}")).collect();
    let mut kept = vec![if setup.config.record_tokens { "token ids" } else { "no token ids" }];
    kept.extend(setup.content.text.then_some("text"));
    kept.extend(setup.content.requests.then_some("requests"));
    kept.extend(setup.content.logprobs.then_some("log probabilities"));
    let kept = if kept == ["no token ids"] {
        "lengths and timing only, no token ids".to_owned()
    } else {
        format!("with {}", kept.join(", "))
    };
    format!("tap on {at} -> {upstream}{further}\nrecording to {trace} ({kept}); Ctrl-C ends it\n")
}

fn exit_summary(report: &TapReport) -> String {
    let recorder = &report.recorder;
    let mut text =
        format!("forwarded {}, wrote {}\n", counted(report.forwarded, "request"), counted(recorder.written, "record"));
    text.push_str(&output::counts(&[
        (recorder.queue_full, "record", "dropped: the recorder could not keep up"),
        (recorder.queue_bytes, "record", "dropped: too many bytes waited for the recorder"),
        (recorder.write_failed, "record", "dropped: the trace could not be written"),
        (recorder.broken, "record", "dropped: an internal error"),
        (recorder.hashes_skipped, "exchange", "recorded without block hashes: too many long prompts waited"),
        (recorder.content_skipped, "exchange", "recorded without content: compressed, too long, or too much at a time"),
        (recorder.unsearched, "exchange", "recorded without content: too much work to search it for secrets"),
        (recorder.ids_incomplete, "exchange", "recorded without ids: the engine did not send all of them"),
        (recorder.repaired, "record", "repaired: fields that broke a rule of the format were left out"),
        (recorder.choices_left_out, "choice", "without a record: too many in one request"),
        (recorder.redacted, "record", "with secrets redacted"),
        (recorder.emptied, "time", "another program emptied the trace: its records are lost, and it was started again"),
        (report.informational_dropped, "informational response", "(1xx) dropped: the client did not read"),
        (report.cut as u64, "connection", "cut at the end of --drain-timeout"),
    ]));
    if let Some(error) = recorder.write_error.as_ref().filter(|_| !recorder.is_failing) {
        text.push_str(&format!("  recording continued after: {error}\n"));
    }
    if recorder.files > 1 {
        text.push_str(&format!("  in {} files\n", recorder.files));
    }
    text
}

impl From<TapError> for Failure {
    fn from(error: TapError) -> Self {
        match &error {
            TapError::Trace(TraceError::Exists { .. }) => Self::usage(error).hint(
                "append to it with --append, replace it with --overwrite, or write to the next free name with --next",
            ),
            TapError::Trace(TraceError::Suffix { .. }) => Self::usage(error),
            TapError::Trace(TraceError::Io { .. } | TraceError::InUse { .. }) | TapError::Recorder(_) => {
                Self::environment(error)
            }
            TapError::Trace(_) => Self::input(error),
        }
    }
}
