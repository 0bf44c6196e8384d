//! Flags of `play` by the kind of source they apply to.
//!
//! A flag that would do nothing is refused with the reason, or named in a note where it may matter for some requests. A flag of `play` without a
//! row here fails a test.

mod table;
#[cfg(test)]
mod tests;

use std::path::Path;

use clap::{Arg, ArgAction, ArgMatches, builder::PossibleValue, parser::ValueSource};

use super::{
    args::{self, PlayArgs},
    cassettes,
    failure::Failure,
    matching, output, play_config, play_simulated,
};
use crate::{
    recording::cassette::is_cassette,
    replay::{matching::MatchBy, player::OnMiss},
};
pub(super) use table::Kind;
use table::{
    Effect::{Full, Nothing, Rest, Values},
    effect,
};

/// Lists the kinds that are served: a cassette and the source for its misses, or one other kind.
pub(super) fn of(args: &PlayArgs) -> Vec<Kind> {
    let is_named = args.answers.model_tag.as_deref().is_some_and(|tag| is_cassette(tag.as_ref()));
    let tokens = &args.replay_tokens;
    let has_cassette = !args.cassette.is_empty() || is_named || tokens.iter().any(|path| is_cassette(path));
    let mut kinds = Vec::new();
    kinds.extend(has_cassette.then_some(Kind::Cassette));
    kinds.extend(tokens.iter().any(|path| !is_cassette(path)).then_some(Kind::Trace));
    kinds.extend(args.synthetic.map(|_| Kind::Synthetic));
    if kinds.is_empty() { vec![Kind::BuiltIn] } else { kinds }
}

/// Takes the cassettes of the usual folder where no source is named.
pub(super) fn choose_folder(args: &mut PlayArgs) {
    let folder = Path::new(args::DEFAULT_FOLDER);
    let has_any = || cassettes::files(&[folder.to_path_buf()], &|_| String::new()).is_ok();
    if of(args) == [Kind::BuiltIn] && folder.is_dir() && has_any() {
        args.cassette.push(folder.to_path_buf());
    }
}

/// Refuses flags that would do nothing, and names those that do so only for some requests.
///
/// # Errors
/// The first flag that has no effect on anything that is served.
pub(super) fn check(args: &PlayArgs, typed: &ArgMatches) -> Result<(), Failure> {
    refuse_trace_as_model(args)?;
    play_simulated::check(args, typed)?;
    let kinds = of(args);
    let command = args::command();
    let flags = command.find_subcommand("play").into_iter().flat_map(clap::Command::get_arguments);
    for flag in flags.filter(|flag| is_given(flag, typed)) {
        let name = name_of(flag);
        if let Some(note) = check_flag(name, &values(flag, typed), &kinds)? {
            output::note(&format!("{note}\n"));
        }
    }
    check_together(args, typed, &kinds)
}

fn check_flag(name: &str, values: &[String], kinds: &[Kind]) -> Result<Option<String>, Failure> {
    let mut message = None;
    for kind in kinds {
        let kind_name = kind.name();
        let reason = match effect(name, *kind).unwrap_or(Full) {
            Full => return Ok(None),
            Rest(reason) => {
                return Ok(Some(format!("--{name} has no effect on the records of {kind_name}: {reason}")));
            }
            Values(known, _) if values.iter().all(|value| known.contains(&value.as_str())) => return Ok(None),
            Values(known, reason) => format!("{reason} ({})", known.join(", ")),
            Nothing(reason) => reason.to_owned(),
        };
        message.get_or_insert(format!("--{name} has no effect on {kind_name}: {reason}"));
    }
    match message {
        Some(message) => Err(Failure::usage(message).hint("leave it out")),
        None => Ok(None),
    }
}

/// Refuses a trace as a positional argument, which is a model or a cassette; a trace has a flag of its own.
fn refuse_trace_as_model(args: &PlayArgs) -> Result<(), Failure> {
    let Some(tag) = args.answers.model_tag.as_deref().filter(|tag| !is_cassette(tag.as_ref())) else { return Ok(()) };
    let has_suffix = [".jsonl", ".jsonl.gz", ".json.gz"].iter().any(|suffix| tag.ends_with(suffix));
    if has_suffix || Path::new(tag).is_file() {
        let message = format!("`{tag}` stands where the model's name does, and is a file");
        return Err(Failure::usage(message).hint(format!("to play it, use --replay-tokens {tag}")));
    }
    Ok(())
}

/// Flags that refine something that other flags switch off.
fn check_together(args: &PlayArgs, typed: &ArgMatches, kinds: &[Kind]) -> Result<(), Failure> {
    if args.made_up.reasoning_share.is_some() && args.reasoning_parser.is_none() && !kinds.contains(&Kind::Cassette) {
        let message = "--reasoning-share has no effect: without --reasoning-parser no answer has reasoning";
        return Err(Failure::usage(message).hint("add --reasoning-parser, or leave it out"));
    }
    let makes_up = args.cassettes.on_miss.is_none_or(|chosen| chosen == OnMiss::Random);
    if kinds.contains(&Kind::Cassette) && args.synthetic.is_some() && (args.strict || !makes_up) {
        let message = "--synthetic has no effect: a request without a record does not get made-up tokens";
        return Err(Failure::usage(message).hint("leave it out, or use --on-miss random"));
    }
    check_ways(args, kinds)?;
    let is_trace = |kind: &Kind| matches!(kind, Kind::BuiltIn | Kind::Trace);
    if !kinds.iter().all(is_trace) {
        return Ok(());
    }
    let is_typed =
        |id: &str| matches!(typed.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable));
    if !play_config::refuses_misses(args)
        && let Some(id) = ["miss_status", "miss_detail"].into_iter().find(|id| is_typed(id))
    {
        let name = id.replace('_', "-");
        let message = format!("--{name} is about errors, and a request without a record gets random tokens");
        return Err(Failure::usage(message).hint("add --on-miss error or --strict, or leave it out"));
    }
    if play_config::refuses_misses(args) && is_typed("unmatched_pace") {
        let message = "--unmatched-pace is about made-up tokens, and a request without a record gets an error";
        return Err(Failure::usage(message).hint("leave it out, or use --on-miss random"));
    }
    Ok(())
}

/// Flags about ways that `--match` does not have.
fn check_ways(args: &PlayArgs, kinds: &[Kind]) -> Result<(), Failure> {
    if let (Some(_), false, [_]) = (args.replay_match, args.cassettes.matching.is_empty(), kinds) {
        let message = "--replay-match is the short form of --match, and both are given";
        return Err(Failure::usage(message).hint("leave --replay-match out"));
    }
    if let Some(way) = args.replay_match.filter(|way| kinds.contains(&Kind::Trace) && !way.is_of_trace()) {
        let message = format!("--replay-match {} has no effect on a trace: it has no requests to compare", way.name());
        let hint = format!("it is the trace's way ({}); --match is the cassette's", matching::OF_TRACE.join(", "));
        return Err(Failure::usage(message).hint(hint));
    }
    let ways = matching::of_trace(args);
    let by_index = ways == [MatchBy::Index];
    let by_prefix = ways.iter().any(|way| matches!(way, MatchBy::Auto | MatchBy::Prefix));
    let useless = [
        ("min-match", args.min_match.is_some() && !by_prefix),
        ("on-exhausted", args.cassettes.on_exhausted.is_some() && by_index),
    ];
    match useless.into_iter().find(|(_, is_useless)| *is_useless && *kinds == [Kind::Trace]) {
        Some((name, _)) => {
            let chain: Vec<&str> = ways.iter().map(|way| way.name()).collect();
            let message = format!("--{name} is about matches by prefix, and --match {} finds none", chain.join(","));
            Err(Failure::usage(message).hint("leave it out, or use --match auto or prefix"))
        }
        None => Ok(()),
    }
}

/// The long name, or that of what stands alone.
fn name_of(flag: &Arg) -> &str {
    flag.get_long().unwrap_or_else(|| flag.get_id().as_str())
}

/// Returns true if a flag was typed, or set by the environment or the configuration file.
fn is_given(flag: &Arg, typed: &ArgMatches) -> bool {
    let id = flag.get_id().as_str();
    match typed.value_source(id) {
        None => false,
        Some(_) if matches!(flag.get_action(), ArgAction::SetTrue) => typed.get_flag(id),
        Some(ValueSource::CommandLine | ValueSource::EnvVariable) => true,
        // The file's values are defaults of the command that runs.
        Some(_) => !values(flag, typed).iter().eq(flag.get_default_values()),
    }
}

/// The values of a flag as its help has them, not by another name.
fn values(flag: &Arg, typed: &ArgMatches) -> Vec<String> {
    let raw = typed.try_get_raw(flag.get_id().as_str()).ok().flatten();
    let known = flag.get_possible_values();
    let named = |value: &str| {
        known.iter().find(|known| known.matches(value, false)).map_or(value, PossibleValue::get_name).to_owned()
    };
    raw.into_iter().flatten().map(|value| named(&value.to_string_lossy())).collect()
}
