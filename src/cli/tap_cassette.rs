//! `tap` where what is recorded is a cassette.

use std::process::ExitCode;

use super::{
    args::{ModeArg, TapArgs},
    cassettes::{self, Around, Ended, Strict},
    child,
    failure::{Exit, Failure},
    output, redaction, runtime,
};
use crate::{
    deck::{self, OnMiss},
    serve,
    timing::Pacing,
};

/// Proxies, plays and records as the mode says, until a signal or until the command ends.
///
/// # Errors
/// When the cassette or the address cannot be had, or the recording cannot be finished.
pub(super) fn run(mut args: TapArgs) -> Result<ExitCode, Failure> {
    if args.cassettes.mode.is_none() {
        if args.trace_out.exists() && !args.overwrite && !args.append {
            let said = format!("{} exists", args.trace_out.display());
            return Err(Failure::usage(said).hint("choose --mode once, new-episodes, all or none"));
        }
        args.cassettes.mode = Some(if args.append { ModeArg::NewEpisodes } else { ModeArg::All });
    }
    let command = std::mem::take(&mut args.cassettes.command);
    runtime::run(|shutdown| async move {
        let listener = serve::bind(&args.listen).await?;
        let address = listener.local_addr().map_err(|error| Failure::new(Exit::Environment, error))?;
        let engine = deck::engine_at(&args.upstream).await;
        let around = Around {
            paths: std::slice::from_ref(&args.trace_out),
            upstream: Some(args.upstream.clone()),
            pacing: Pacing::default(),
            on_miss: OnMiss::Error,
            strict: Strict::No,
            address: &args.listen,
            secrets: redaction::rules(&args.cassettes.redaction)?,
            engine,
        };
        let deck = cassettes::deck(&args.cassettes, around)?;
        let (upstream, file) = (&args.upstream, args.trace_out.display());
        output::note(&format!("tap on http://{address} -> {upstream}\ncassette {file}; Ctrl-C ends it\n"));
        let mut child = if command.is_empty() { None } else { Some(child::start(&command, "http", address)?) };
        let mut code = None;
        let stop = async { code = child::until(child.as_mut(), shutdown).await };
        let drained = deck.serve(listener, stop, args.drain_timeout).await;
        if drained.cut > 0 {
            output::note(&format!("{} connections cut at the drain's deadline\n", drained.cut));
        }
        let concerns = cassettes::concerns(&args.cassettes, Strict::No);
        let ended = cassettes::conclude(&deck, &args.cassettes, &concerns)?;
        Ok(match (code, ended) {
            (Some(code), _) if code != 0 => code.into(),
            (_, Ended::Failing) => Exit::No.into(),
            (_, Ended::Well) => ExitCode::SUCCESS,
        })
    })
}
