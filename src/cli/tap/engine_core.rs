//! `tap --engine-core`: what stands in place of URLs there, and its run.

use std::{net::SocketAddr, process::ExitCode, str::FromStr};

use clap::{Args, builder::NonEmptyStringValueParser};

use crate::{
    cli::{
        failure::Failure,
        flags::Typed,
        output, runtime,
        tap::{admin_listener, args::TapArgs, conclude, greeting, refuse_remote, serve_admin, setup},
        values::host_and_port,
    },
    net::{server, upstream::UrlError},
    recording::cassette::is_cassette,
    tap::{
        Setup, UpstreamRoute,
        engine_core::{EngineCoreSetup, EngineCoreTap},
    },
};

/// Scheme of addresses of the engine core's protocol.
pub(in crate::cli) const SCHEME: &str = "tcp://";

/// Where engines connect if nothing else is typed: the port after the one at which a front end waits for them.
pub(in crate::cli) const USUAL_ENGINE_CORE: &str = "127.0.0.1:29551";

/// The engine core's protocol in place of HTTP.
#[derive(Debug, Args)]
#[command(next_help_heading = "Engine core")]
pub(in crate::cli) struct EngineCoreArgs {
    /// Relays the messages between a front end of vLLM and its engine cores, and records the requests in them: engines connect to --listen,
    /// and the tap connects to the front end, --upstream.
    #[arg(long)]
    pub(in crate::cli) engine_core: bool,
    /// Model name for the records: the protocol of the engine core has none, except for adapters.
    #[arg(long, value_name = "NAME", requires = "engine_core", value_parser = NonEmptyStringValueParser::new())]
    pub(in crate::cli) served_model_name: Option<String>,
}

/// A value of `--upstream`.
#[derive(Debug, Clone)]
pub(in crate::cli) enum TapUpstream {
    /// A server of HTTP.
    Http(UpstreamRoute),
    /// The `HOST:PORT` at which a front end waits for engines.
    FrontEnd(String),
}

impl FromStr for TapUpstream {
    type Err = String;

    fn from_str(typed: &str) -> Result<Self, String> {
        match typed.strip_prefix(SCHEME) {
            Some(address) => host_and_port(address).map(Self::FrontEnd),
            None => typed.parse().map(Self::Http).map_err(|error: UrlError| error.to_string()),
        }
    }
}

impl TapUpstream {
    /// Takes the servers of HTTP; of a front end, which is no server of HTTP, a stand-in with its address.
    pub(in crate::cli) fn routes(typed: Vec<Self>) -> Result<Vec<UpstreamRoute>, Failure> {
        let route = |upstream| match upstream {
            Self::Http(route) => Ok(route),
            Self::FrontEnd(address) => format!("http://{address}").parse().map_err(Failure::usage),
        };
        typed.into_iter().map(route).collect()
    }
}

/// Reads the value of `--listen`.
pub(in crate::cli) fn listen_address(typed: &str) -> Result<String, String> {
    host_and_port(typed.strip_prefix(SCHEME).unwrap_or(typed)).map(|_| typed.to_owned())
}

/// Refuses addresses and flags that mean nothing with, or without, `--engine-core`.
pub(in crate::cli) fn check(args: &TapArgs, typed: &Typed<'_>) -> Result<(), Failure> {
    let is_core = args.engine_core.engine_core;
    let is_tcp = |upstream: &TapUpstream| matches!(upstream, TapUpstream::FrontEnd(_));
    if !is_core {
        let is_any = args.upstream.iter().any(is_tcp) || args.listen.as_ref().is_some_and(|at| at.starts_with(SCHEME));
        return match is_any {
            true => Err(Failure::usage("tcp:// addresses are for the protocol of the engine core")
                .hint("add --engine-core, or write http:// for a server and HOST:PORT for --listen")),
            false => Ok(()),
        };
    }
    if args.upstream.len() != 1 || !args.upstream.iter().all(is_tcp) {
        return Err(Failure::usage(
            "--upstream: with --engine-core it must be one front end, such as tcp://127.0.0.1:29550",
        )
        .hint(
            "name the address that `vllm serve --data-parallel-size-local 0 --data-parallel-rpc-port 29550` waits at",
        ));
    }
    if is_cassette(&args.trace_out) {
        let file = args.trace_out.display();
        return Err(Failure::usage(format!("--engine-core records a trace, not a cassette ({file})"))
            .hint("name it: --trace-out FILE.jsonl.gz"));
    }
    let is_searched = args.tokenizer.is_some() || args.privacy.redaction.redact.iter().any(|level| level == "off");
    if args.privacy.record_requests && !is_searched {
        return Err(Failure::usage(
            "--record-requests: prompts are ids here, and secrets in them cannot be found without a tokenizer",
        )
        .hint("add --tokenizer DIRECTORY, or --redact off to record them unsearched"));
    }
    if let Some(flag) = typed.tagged(&["@http"]).find(|flag| typed.is_changed(flag)) {
        return Err(Failure::usage(format!("{} has no effect with --engine-core", typed.shown(flag)))
            .hint("it applies to HTTP only; leave it out"));
    }
    Ok(())
}

/// Relays and records until a signal.
pub(in crate::cli) fn run(args: TapArgs) -> Result<ExitCode, Failure> {
    let (address, may_be_remote) = (args.address(), args.network.allow_remote_record);
    let admin = args.network.admin_listen.clone();
    let front_end = match args.upstream.first() {
        Some(TapUpstream::FrontEnd(address)) => address.clone(),
        _ => return Err(Failure::usage("--upstream: with --engine-core it must be the front end, tcp://HOST:PORT")),
    };
    let model = args.engine_core.served_model_name.clone();
    let setup = Setup { timing_zero: "engine_core", amends: false, ..setup::setup(args)? };
    runtime::run(|shutdown| async move {
        server::raise_descriptor_limit();
        runtime::outlive_file_limits();
        if !may_be_remote {
            refuse_remote("--listen", &address).await?;
        }
        let listener = server::bind(&address).await?;
        let at: SocketAddr = listener.local_addr().map_err(Failure::environment)?;
        let admin = admin_listener(admin.as_deref(), may_be_remote).await?;
        let ends = (&*format!("{SCHEME}{at}"), &*format!("{SCHEME}{front_end}"));
        let tap = EngineCoreTap::start(EngineCoreSetup { setup: setup.clone(), front_end: front_end.clone(), model })?;
        output::note(&greeting(ends, &setup, tap.handle().trace()));
        let stop = serve_admin(tap.handle(), admin)?;
        let report = tap.serve(listener, shutdown.requested()).await?;
        drop(stop);
        conclude(report)?;
        Ok(ExitCode::SUCCESS)
    })
}
