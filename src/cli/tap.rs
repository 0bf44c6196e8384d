//! Runs `tap`: what was typed becomes its configuration, and its report is told on stderr.

use std::{net::SocketAddr, process::ExitCode};

use super::{
    args::TapArgs,
    failure::{Exit, Failure},
    output, runtime,
};
use crate::{
    prompt::Tokenizer,
    serve,
    tap::{Config, Report, Tap, TapError},
    trace::{CreateMode, TraceError},
};

/// Proxies and records until a signal.
///
/// # Errors
/// When the address, the tokenizer or the trace cannot be had, or the trace cannot be finished.
pub(super) fn run(args: TapArgs) -> Result<ExitCode, Failure> {
    let listen = args.listen.clone();
    let config = config(args)?;
    runtime::run(|shutdown| async move {
        serve::raise_descriptor_limit();
        let listener = serve::bind(&listen).await?;
        let address = listener.local_addr().map_err(|error| Failure::new(Exit::Environment, error))?;
        let greeting = greeting(address, &config);
        let tap = Tap::start(config).await?;
        output::note(&greeting);
        let report = tap.serve(listener, shutdown.requested()).await?;
        output::note(&farewell(&report));
        match report.recorder.write_error {
            None => Ok(ExitCode::SUCCESS),
            Some(error) => {
                let lost = report.recorder.write_failed;
                Err(Failure::new(Exit::Environment, format!("{lost} records could not be written: {error}")))
            }
        }
    })
}

fn config(args: TapArgs) -> Result<Config, Failure> {
    let tokenizer = args.tokenizer.as_deref().map(Tokenizer::load).transpose()?;
    Ok(Config {
        upstream: args.upstream,
        trace_out: args.trace_out,
        create: match (args.append, args.overwrite) {
            (true, _) => CreateMode::Append,
            (false, true) => CreateMode::Truncate,
            (false, false) => CreateMode::New,
        },
        record_tokens: args.record_tokens,
        tokenizer,
        block_hash: args.block_hash.into(),
        block_size: args.block_size.get(),
        drain: args.drain_timeout,
    })
}

fn greeting(address: SocketAddr, config: &Config) -> String {
    let (upstream, trace) = (&config.upstream, config.trace_out.display());
    let tokens = if config.record_tokens { "with token ids" } else { "shapes and timing only, no token ids" };
    format!("tap on http://{address} -> {upstream}\nrecording to {trace} ({tokens}); Ctrl-C ends it\n")
}

fn farewell(report: &Report) -> String {
    let recorder = &report.recorder;
    let mut text = format!("forwarded {} requests, wrote {} records\n", report.forwarded, recorder.written);
    for (count, what) in [
        (recorder.queue_full, "exchanges dropped: the recorder could not keep up"),
        (recorder.write_failed, "records dropped: the trace could not be written"),
        (recorder.broken, "exchanges dropped: their records could not be made"),
        (recorder.hashes_skipped, "exchanges recorded without block hashes: too many long prompts waited"),
        (recorder.ids_incomplete, "exchanges recorded without ids: the engine did not tell all of them"),
        (report.cut as u64, "connections cut at the drain's deadline"),
    ] {
        if count > 0 {
            text.push_str(&format!("  {count} {what}\n"));
        }
    }
    text
}

impl From<TapError> for Failure {
    fn from(error: TapError) -> Self {
        match &error {
            TapError::Trace(TraceError::Exists { .. }) => {
                Self::usage(error).hint("add to it with --append, or replace it with --overwrite")
            }
            TapError::Trace(TraceError::Suffix { .. }) => Self::usage(error),
            TapError::Trace(TraceError::Io { .. }) | TapError::Recorder(_) => Self::new(Exit::Environment, error),
            TapError::Trace(_) => Self::new(Exit::BadInput, error),
        }
    }
}
