//! Help for people: `-h` is one screen, `--help` lists all flags by topic, and `--help TOPIC` explains those of one.
//!
//! A topic is a heading of flags (`help_heading`). Each page is the program's own table of flags with some of it hidden, printed by clap.
//!
//! See docs/decisions/0138-help-is-a-screen-and-topics.md.

mod examples;
mod screen;
#[cfg(test)]
mod tests;
mod topics;

use std::ffi::OsString;

use clap::{
    Arg, Command,
    builder::Resettable,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::cli::failure::Failure;

pub(in crate::cli) use topics::{Topic, of as topics};

/// Returns true if a command has flags that its screen lacks: they are listed by topic.
pub(in crate::cli) fn has_topics(command: &Command) -> bool {
    !screen::is_whole(command)
}

/// Finds the page that `arguments` ask for; `None` if they ask for none.
pub(in crate::cli) fn requested(program: &Command, arguments: &[OsString]) -> Result<Option<clap::Error>, Failure> {
    let words = words(arguments);
    let Some(at) = words.iter().position(|word| is_help(word)) else { return Ok(None) };
    let program = built(program);
    let (before, help) = words.split_at(at);
    let Some((help, after)) = help.split_first() else { return Ok(None) };
    let mut command = named(&program, before);
    let mut after = help.strip_prefix("--help=").into_iter().chain(after.iter().copied()).peekable();
    while let Some(child) = after.peek().and_then(|word| command.find_subcommand(word)) {
        command = child;
        after.next();
    }
    let topic = after.next().filter(|word| !word.starts_with('-'));
    let is_long = help.starts_with("--");
    page(command, topic, is_long).map(Some)
}

/// The screen of a command for which too little was typed, in place of clap's; and where `play`'s --host and --port are elsewhere.
pub(in crate::cli) fn in_place_of(mut error: clap::Error, program: &Command, arguments: &[OsString]) -> clap::Error {
    let is_address = |value: Option<&ContextValue>| matches!(value, Some(ContextValue::String(flag)) if flag == "--host" || flag == "--port");
    if error.kind() == ErrorKind::UnknownArgument && is_address(error.get(ContextKind::InvalidArg)) {
        let tip = "`--listen HOST:PORT` sets its address".into();
        if words(arguments).contains(&"tap") {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
        }
    }
    if error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return error;
    }
    let program = built(program);
    printed(screen::of(named(&program, &words(arguments))).arg_required_else_help(true), &[])
}

/// The command that words name, whatever else is among them.
fn named<'a>(program: &'a Command, words: &[&str]) -> &'a Command {
    words.iter().fold(program, |command, word| command.find_subcommand(word).unwrap_or(command))
}

/// What was typed for the program itself, not for a command that it runs.
fn words(arguments: &[OsString]) -> Vec<&str> {
    let words = arguments.iter().skip(1).map(|word| word.to_str().unwrap_or_default());
    words.take_while(|word| *word != "--").collect()
}

/// Returns true for `--help`, `-h` and letters with it, such as `-vh`.
fn is_help(word: &str) -> bool {
    let letters = word.strip_prefix('-').and_then(|word| word.strip_suffix('h'));
    word == "--help"
        || word.starts_with("--help=")
        || letters.is_some_and(|letters| letters.chars().all(|letter| "vq".contains(letter)))
}

fn built(program: &Command) -> Command {
    let mut program = program.clone();
    program.build();
    program
}

/// A page, as clap's request to print it: everything about all flags or those of a topic, their names by topic, or the screen. `-h` is also
/// typed before or within other arguments, so what follows it need not be a topic.
fn page(command: &Command, topic: Option<&str>, is_long: bool) -> Result<clap::Error, Failure> {
    let (topics, long) = (topics::of(command), |command| printed(command, &["--help"]));
    match topic {
        Some("all") => return Ok(long(with_usage(command))),
        Some(word) => match topics::find(command, &topics, word) {
            Some(ids) => return Ok(long(flags(command, &ids))),
            None if is_long => return Err(topics::unknown(command, &topics, word)),
            None => {}
        },
        None if is_long && has_topics(command) => return Ok(long(index(command))),
        None if is_long => return Ok(long(with_usage(command))),
        None => {}
    }
    Ok(printed(screen::of(command), &["-h"]))
}

/// The help of a command, as clap's request to print it.
pub(in crate::cli) fn printed(command: Command, typed: &[&str]) -> clap::Error {
    match command.no_binary_name(true).try_get_matches_from(typed) {
        Err(page) => page,
        Ok(_) => clap::Error::new(ErrorKind::DisplayHelp),
    }
}

/// The command with its usage fixed: hiding flags would change it.
fn with_usage(command: &Command) -> Command {
    let mut command = command.clone();
    let usage = command.render_usage().to_string();
    let explained = |arg: Arg| match arg.get_id().as_str() {
        "help" => arg.help("Shows a screen of help; --help shows the topics, --help TOPIC or --help FLAG more"),
        "version" => arg.help("Shows the version; --version --json all that is known of the build"),
        _ => arg,
    };
    command.override_usage(usage.trim_start_matches("Usage:").trim().to_owned()).mut_args(explained)
}

/// A list of all flags by topic: topics stand where commands do.
fn index(command: &Command) -> Command {
    let name = command.get_bin_name().unwrap_or_default().to_owned();
    let entry = |(order, Topic { word, flags, .. }): (usize, Topic)| {
        let flags: Vec<String> = flags.iter().map(|flag| format!("--{flag}")).collect();
        Command::new(word).about(flags.join(", ")).display_order(order)
    };
    with_usage(command)
        .mut_args(|arg| arg.hide(true))
        .subcommands(topics::of(command).into_iter().enumerate().map(entry))
        .subcommand_help_heading(format!("Topics, explained by `{name} --help TOPIC` or `{name} --help all`"))
}

/// A page of some flags.
fn flags(command: &Command, ids: &[String]) -> Command {
    let name = command.get_bin_name().unwrap_or_default();
    let is_shown = |arg: &Arg| ids.iter().any(|id| arg.get_id() == id.as_str());
    with_usage(command)
        .mut_args(|arg| if is_shown(&arg) { arg } else { arg.hide(true) })
        .mut_subcommands(|child| child.hide(true))
        .long_about(Resettable::Reset)
        .after_long_help(format!("Other topics: `{name} --help`."))
}
