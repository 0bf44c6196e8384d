//! `tap` where what is recorded is a cassette.
//!
//! Limits: what belongs to traces has no effect here (rotation, samples, token ids, hashes, several upstreams).

use std::process::ExitCode;

use super::{
    args::{ModeArg, TapArgs},
    cassettes::{self, Around, Ended, Strict},
    child,
    failure::{Exit, Failure},
    output, runtime,
    tap::open,
    tap_setup,
};
use crate::{
    deck::{self, OnMiss},
    tap::Setup,
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
    let cassettes = args.cassettes.clone();
    let door = tap_setup::door(&args)?;
    let listen = args.listen.clone();
    let Setup { config, reach, content, routes, .. } = tap_setup::setup(args)?;
    if !routes.is_empty() {
        return Err(Failure::usage("a cassette is recorded from one upstream"));
    }
    runtime::run(|shutdown| async move {
        let (listener, at) = open(door).await?;
        let engine = deck::engine_at(&config.upstream, &reach).await;
        let around = Around {
            paths: std::slice::from_ref(&config.trace_out),
            upstream: Some(config.upstream.clone()),
            reach,
            pacing: Pacing::default(),
            on_miss: OnMiss::Error,
            strict: Strict::No,
            address: &listen,
            secrets: content.rules,
            engine,
        };
        let deck = cassettes::deck(&cassettes, around)?;
        let (upstream, file) = (&config.upstream, config.trace_out.display());
        output::note(&format!("tap on {at} -> {upstream}\ncassette {file}; Ctrl-C ends it\n"));
        let mut child = if command.is_empty() { None } else { Some(child::start(&command, &at)?) };
        let mut code = None;
        let stop = async { code = child::until(child.as_mut(), shutdown).await };
        let drained = deck.serve(listener, stop, config.drain).await;
        if drained.cut > 0 {
            output::note(&format!("{} connections cut at the drain's deadline\n", drained.cut));
        }
        let concerns = cassettes::concerns(&cassettes, Strict::No);
        let ended = cassettes::conclude(&deck, &cassettes, &concerns)?;
        Ok(match (code, ended) {
            (Some(code), _) if code != 0 => code.into(),
            (_, Ended::Failing) => Exit::No.into(),
            (_, Ended::Well) => ExitCode::SUCCESS,
        })
    })
}
