//! The command line: what was typed, what it means, what is printed, and the exit code.
//!
//! `args` holds what may be typed (and nothing below this layer sees it); each tool's arguments are converted into that
//! tool's own `Config`, and what does not convert is a usage error that names the flag. A flag's value comes from the
//! command line, else from `VLLM_VCR_<FLAG>`, else from the `config_file`, else it is the default. Help, man page,
//! completions and the reference page of the docs are made from one table of flags.
//!
//! [`run`] is the only boundary that reports a failure: once, on stderr, with its causes and a hint.

mod answers;
mod args;
mod bench;
mod build;
mod cassette;
mod child;
mod config_file;
mod conform;
mod doctor;
mod drift;
mod escape;
mod failure;
mod flags;
mod fork;
mod gateway;
mod health;
mod help;
mod hit_faults;
mod inspect;
mod junit;
mod loading;
mod logs;
mod mcp;
mod output;
mod pages;
mod play;
mod player;
mod progress;
mod prove;
mod redaction;
mod replay;
mod runtime;
mod simulator;
mod stepping;
mod sweep;
mod tap;
mod values;
mod vllm_flags;

use std::{ffi::OsString, process::ExitCode};

use clap::{
    FromArgMatches,
    error::{ContextKind, ContextValue},
};

use crate::net::upstream::{without_secrets, without_userinfo};

use args::{Cli, Command};
use build::ProgramBuild;
use flags::Typed;

pub use args::command;
pub use failure::{Exit, Failure};

/// Runs the program with `arguments` (the program's own name first) and returns how it ended.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if build::is_asked(&arguments) {
        return output::print_plain_json(&ProgramBuild::this()).unwrap_or_else(|failure| failure.report());
    }
    match parse(&arguments) {
        Err(Stop::Clap(mut error)) => {
            hide_secrets(&mut error);
            let text = error.render().to_string();
            let shown = without_userinfo(&text);
            if shown == text {
                let _closed_pipe = error.print();
            } else {
                output::warn(&shown);
            }
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
    let command = command();
    if let Some(page) = simulator::help(arguments) {
        return Err(Stop::Clap(help::printed(clap::Command::new("help").override_help(page), &["-h"])));
    }
    let translated = simulator::translate(&command, arguments, &|name| std::env::var(name).ok());
    let simulator::Translated { arguments, notes, is_other } = translated.map_err(Stop::Failed)?;
    if let Some(page) = help::requested(&command, &arguments).map_err(Stop::Failed)? {
        return Err(Stop::Clap(page));
    }
    notes.iter().for_each(|note| output::note(&format!("{note}\n")));
    let vllm_flags::Sorted { kept, passed_over } =
        vllm_flags::sort(&command, &arguments).map_err(|error| Stop::Failed(Failure::usage(error)))?;
    for flag in passed_over {
        output::note(&format!("--{flag} is vLLM's and has no effect here\n"));
    }
    let with_defaults = config_file::apply(command.clone(), &kept).map_err(|error| Stop::Failed(error.into()))?;
    let matches = with_defaults.clone().try_get_matches_from(&kept).map_err(|mut error| {
        config_file::name_sources(&mut error, [&command, &with_defaults], &kept);
        let mut error = help::in_place_of(error, &command, &arguments);
        if is_other && error.use_stderr() {
            simulator::without_usage(&mut error);
        }
        Stop::Clap(error)
    })?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(Stop::Clap)?;
    let typed = matches.subcommand().and_then(|(name, matches)| Typed::new(&command, name, matches));
    match (&mut cli.command, typed) {
        (Command::Play(args), Some(typed)) => {
            args.simulated.engine |= args.simulated.engine_core.is_some();
            play::sources::choose_folder(args);
            play::engine_core::check(args, &typed).and_then(|()| play::sources::check(args, &typed))
        }
        (Command::Tap(args), Some(typed)) => tap::check(args, &typed),
        _ => Ok(()),
    }
    .map_err(Stop::Failed)?;
    Ok(cli)
}

fn dispatch(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Completions { shell } => {
            output::print(&String::from_utf8_lossy(&pages::completions(&args::command(), shell)))
        }
        Command::Man { command } => output::print(&String::from_utf8_lossy(&pages::man(self::command(), &command)?)),
        Command::Reference => output::print(&pages::markdown(args::command())),
        Command::Tap(args) => tap::run(*args),
        Command::Play(args) => play::run(*args),
        Command::Replay(args) => replay::run(*args),
        Command::Prove(args) => prove::run(*args),
        Command::Sweep(args) => sweep::run(*args),
        Command::Conform(args) => conform::run(*args),
        Command::Drift(args) => drift::run(*args),
        Command::Fork(args) => fork::run(&args),
        Command::McpTap(args) => mcp::tap::run(*args),
        Command::McpPlay(args) => mcp::play::run(*args),
        Command::Bench(args) => bench::run(args),
        Command::BenchFloor { arguments } => bench::floor(arguments),
        Command::Doctor(args) => doctor::run(*args),
        Command::Inspect { command } => inspect::run(command),
        Command::Cassette { command } => cassette::run(command),
        Command::Answers { command } => answers::run(command),
        Command::Health(args) => health::run(args),
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
