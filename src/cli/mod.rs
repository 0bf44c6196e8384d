//! The command line: what was typed, what it means, what is printed, and the exit code.
//!
//! `args` holds what may be typed (and nothing below this layer sees it); each tool's arguments are converted into that
//! tool's own `Config`, and what does not convert is a usage error that names the flag. A flag's value comes from the
//! command line, else from `VLLM_VCR_<FLAG>`, else from the `config_file`, else it is the default. Help, man page,
//! completions and the reference page of the docs are made from one table of flags.
//!
//! [`run`] is the only boundary that reports a failure: once, on stderr, with its causes and a hint.

mod args;
mod cassette_admin;
mod cassette_convert;
mod cassette_diff;
mod cassette_import;
mod cassette_keep;
mod cassette_lint;
mod cassette_merge;
mod cassette_new;
mod cassette_prune;
mod cassette_tools;
mod cassettes;
mod child;
mod conclude;
mod config_file;
mod escape;
mod failure;
mod inspect;
mod inspect_simulate;
mod loading;
mod logs;
mod matching;
mod mcp_play;
mod mcp_tap;
mod mcp_tapped;
mod output;
mod pages;
mod play;
mod play_answers;
mod play_cassettes;
mod play_config;
mod play_engine;
mod play_fleet;
mod play_greeting;
mod play_kv_events;
mod play_kv_transfer;
mod play_lora;
mod play_server;
mod play_simulated;
mod play_speculative;
mod play_stats;
mod play_synthetic;
mod reference;
mod replay;
mod runtime;
mod secret_args;
mod signals;
mod sources;
mod stdio;
mod tap;
mod tap_cassette;
mod tap_setup;
mod vllm_flags;

use std::{ffi::OsString, process::ExitCode};

use clap::{
    FromArgMatches,
    error::{ContextKind, ContextValue},
};

pub use args::command;
pub use failure::{Exit, Failure};

use args::{Cli, Command};

use crate::net::upstream::without_secrets;

/// Runs the program with `arguments` (the program's own name first) and returns how it ended.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    match parse(&arguments) {
        Err(Stop::Clap(mut error)) => {
            hide_secrets(&mut error);
            let _closed_pipe = error.print();
            u8::try_from(error.exit_code()).unwrap_or(2).into()
        }
        Err(Stop::Failed(failure)) => failure.report(),
        Ok(cli) => {
            logs::start(&cli.global);
            dispatch(cli.command).unwrap_or_else(|failure| failure.report())
        }
    }
}

/// Hides secrets in an error: it shows the refused value, and a refused URL may hold a password.
fn hide_secrets(error: &mut clap::Error) {
    if let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidValue)
        && (typed.contains("://") || typed.contains('@'))
    {
        let shown = without_secrets(typed);
        error.insert(ContextKind::InvalidValue, ContextValue::String(shown));
    }
}

/// Reason why there is nothing to run.
enum Stop {
    /// Help or version was asked for, or the arguments are wrong.
    Clap(clap::Error),
    /// The configuration file is wrong.
    Failed(Failure),
}

fn parse(arguments: &[OsString]) -> Result<Cli, Stop> {
    let vllm_flags::Sorted { kept, passed_over } =
        vllm_flags::sort(arguments).map_err(|error| Stop::Failed(Failure::new(Exit::Usage, error)))?;
    for flag in passed_over {
        output::note(&format!("--{flag} is vLLM's and has no effect here\n"));
    }
    let arguments = kept.as_slice();
    let command = config_file::apply(command(), arguments).map_err(|error| Stop::Failed(error.into()))?;
    let command = play_simulated::with_time_scale(command, arguments);
    let matches = command.try_get_matches_from(arguments).map_err(Stop::Clap)?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(Stop::Clap)?;
    if let Command::Play(args) = &mut cli.command {
        sources::choose_folder(args);
    }
    if let (Command::Play(args), Some(typed)) = (&cli.command, matches.subcommand_matches("play")) {
        sources::check(args, typed).map_err(Stop::Failed)?;
    }
    Ok(cli)
}

fn dispatch(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Completions { shell } => output::print(&String::from_utf8_lossy(&pages::completions(shell))),
        Command::Man { command } => output::print(&String::from_utf8_lossy(&pages::man(&command)?)),
        Command::Reference => output::print(&reference::markdown()),
        Command::Tap(args) => tap::run(*args),
        Command::Play(args) => play::run(*args),
        Command::Replay(args) => replay::run(*args),
        Command::McpTap(args) => mcp_tap::run(*args),
        Command::McpPlay(args) => mcp_play::run(*args),
        Command::Inspect { command } => inspect::run(command),
        Command::Cassette { command } => cassette_tools::run(command),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_flags_is_consistent() {
        command().debug_assert();
    }
}
