//! Flags of `play` by the kind of source they apply to, and by whether there is an engine.
//!
//! A flag that would do nothing is refused with the reason, or named in a note where it may matter for some requests. Which flags these are
//! is in their tags ([`flags`](crate::cli::flags)); a flag of `play` without a tag that has a row here fails a test.

#[cfg(test)]
mod tests;

use std::path::Path;

use clap::{Arg, Command};

use crate::{
    cli::{
        failure::Failure,
        flags::{Typed, tags_of},
        output,
        play::{args::PlayArgs, config},
        player::{
            args::DEFAULT_FOLDER,
            files::files,
            matching::{self, OF_TRACE},
        },
    },
    play::Synthetic,
    recording::cassette::is_cassette,
    replay::{matching::MatchBy, player::OnMiss},
};

use Effect::{Excludes, Full, Nothing, Rest, Values};

base::named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(in crate::cli) enum SourceKind {
        BuiltIn = "the built-in trace",
        Trace = "a trace",
        Synthetic = "synthetic tokens",
        Cassette = "a cassette",
    }
}

/// Effect of a flag on a kind of source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// As its help describes.
    Full,
    /// Something for requests that the source does not answer; the reason is shown.
    Rest(&'static str),
    /// Something with these values only, for this reason.
    Values(&'static [&'static str], &'static str),
    /// Nothing, for this reason.
    Nothing(&'static str),
    /// Nothing, and other sources beside it do not help.
    Excludes(&'static str),
}

/// Tags, and structs of arguments, with what their flags do for each kind, in the order of [`SourceKind::ALL`]. A flag's tag wins over
/// its struct, and of several the one that is first here.
const TABLE: &[(&[&str], [Effect; 4])] = &[
    (&["@any", "ServerArgs", "EngineArgs", "AnswerArgs", "KvEventsArgs", "@questions"], [Full; 4]),
    (&["@answers", "LoraArgs"], [Full, Full, Full, ANSWERED]),
    (&["@tokens"], [Full, Full, Full, OF_EXCHANGES]),
    (&["@times"], [Full, Full, NO_TIMES, Full]),
    (&["KvTransferArgs"], [Full, Full, Full, NO_TRANSFER]),
    (&["SyntheticArgs"], [Full, Full, Full, OWN_LENGTH]),
    (&["@soundness"], [SOUND, Full, NO_RECORDS, OF_TRACES]),
    (&["@apis"], [ANY_API, ANY_API, NO_RECORDS, Full]),
    (&["@medians"], [Full, Full, OWN_PACE, NO_MEDIANS]),
    (&["@records", "RedactionArgs"], [Full, Full, NO_RECORDS, Full]),
    (&["@hashes"], [NO_KEY, Full, NO_RECORDS, NOT_HASHED]),
    (&["@account"], [Full, Full, NO_ACCOUNT, Full]),
    (&["McpServersArgs"], [NO_SERVERS, NO_SERVERS, NO_SERVERS, Full]),
    (&["@misses"], [OWN_MISSES, OWN_MISSES, NO_RECORDS, Full]),
    (&["@concerns"], [OWN_CONCERNS, OWN_CONCERNS, NO_RECORDS, Full]),
    (&["@mode"], [PLAYED, PLAYED, PLAYED, Full]),
    (&["@new_ids"], [NEW_IDS, NEW_IDS, NEW_IDS, Full]),
    (&["@tries"], [EACH_TRY, EACH_TRY, NO_RECORDS, Full]),
    (&["@ways"], [TRACE_WAYS, TRACE_WAYS, NO_RECORDS, Full]),
    (&["@comparison"], [HASHED, HASHED, NO_RECORDS, Full]),
    (&["@upstreams"], [NO_UPSTREAM, NO_UPSTREAM, NO_UPSTREAM, Full]),
    (&["@recording"], [NOT_RECORDED, NOT_RECORDED, NOT_RECORDED, Full]),
    (&["@search"], [NOT_SEARCHED, NOT_SEARCHED, NO_RECORDS, Full]),
    (&["@placeholders"], [NOT_PUT_BACK, NOT_PUT_BACK, NO_RECORDS, Full]),
    (&["@network"], [CALLS_PASS, CALLS_PASS, CALLS_PASS, Full]),
    (&["@engine", "@vllm_engine"], [Full; 4]),
];

const NO_RECORDS: Effect = Nothing("made-up tokens have no records");
const ANSWERED: Effect = Rest("recorded responses are served as recorded");
const OWN_LENGTH: Effect = Rest("recorded responses have their own length");
const SOUND: Effect = Nothing("all its records are valid");
const OF_EXCHANGES: Effect = Excludes("it applies to tokens, and a cassette has whole responses");
const OF_TRACES: Effect = Nothing("it applies to traces only");
const OWN_PACE: Effect = Nothing("--time-to-first-token and --inter-token-latency set when they are sent");
const NO_MEDIANS: Effect = Nothing("it has no median times");
const NO_KEY: Effect = Nothing("its prompts are hashed without a key");
const NOT_HASHED: Effect = Nothing("its requests are not hashed; --match chooses how they are matched");
const NO_ACCOUNT: Effect = Nothing("made-up tokens have no records to report on");
const NO_SERVERS: Effect = Nothing("only cassettes have records of MCP servers");
const NO_TIMES: Effect = Nothing("made-up tokens have no recorded times");
const NO_TRANSFER: Effect = Rest("recorded responses need no transfer");
const OWN_MISSES: Effect = Values(&["error", "random"], "a request without a record gets an error or random tokens");
const OWN_CONCERNS: Effect = Values(
    &["miss", "unconsumed", "unconsumed=all", "exhausted", "loose"],
    "drift is found only in cassettes, which name the recorded server",
);
const PLAYED: Effect = Values(&["none"], "it is only played; record with `vllm-vcr tap`, or into a cassette");
const NEW_IDS: Effect = Values(&["fresh"], "answers always have new ids");
const EACH_TRY: Effect = Values(&["consume"], "each try of a request takes the next record");
const TRACE_WAYS: Effect = Values(OF_TRACE, "it has no requests to compare");
const NOT_PUT_BACK: Effect = Nothing("placeholders of traces are served as they are");
const ANY_API: Effect = Nothing("its records answer requests to every API");
const HASHED: Effect = Nothing("its prompts are compared as hashes");
const NO_UPSTREAM: Effect = Nothing("nothing is forwarded; play a cassette for that");
const NOT_RECORDED: Effect = Nothing("nothing is recorded");
const CALLS_PASS: Effect = Nothing("calls to other servers are blocked only with a cassette");
const NOT_SEARCHED: Effect = Nothing("it is not searched for secrets; use `vllm-vcr inspect audit`");

/// Flags that no server has without an engine.
const OF_ENGINE: &[&str] = &["@engine", "KvEventsArgs", "KvTransferArgs"];

/// Flags that change nothing without an engine, as vLLM's do without a model.
const OF_VLLMS_ENGINE: &[&str] = &["@vllm_engine"];

pub(in crate::cli) fn tags() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|(tags, _)| *tags).copied()
}

/// Returns the effect of a flag on a kind; `None` if none of its tags is in the table.
fn effect(play: &Command, flag: &Arg, kind: SourceKind) -> Option<Effect> {
    let tags: Vec<&str> = tags_of(play, flag).collect();
    let row = |is_own: bool| {
        let is_tag = |tag: &&str| tag.starts_with('@') == is_own && tags.contains(tag);
        TABLE.iter().find(|(rows, _)| rows.iter().any(is_tag))
    };
    let (_, effects) = row(true).or_else(|| row(false))?;
    SourceKind::ALL.into_iter().zip(effects).find(|(of, _)| *of == kind).map(|(_, effect)| *effect)
}

/// Lists the kinds that are served: a cassette and the source for its misses, or one other kind.
pub(in crate::cli) fn of(args: &PlayArgs) -> Vec<SourceKind> {
    let is_named = args.answers.model_tag.as_deref().is_some_and(|tag| is_cassette(tag.as_ref()));
    let tokens = &args.replay_tokens;
    let has_written = !args.cassette.is_empty() || !args.answer_files.is_empty();
    let has_cassette = has_written || is_named || tokens.iter().any(|path| is_cassette(path));
    let mut kinds = Vec::new();
    kinds.extend(has_cassette.then_some(SourceKind::Cassette));
    kinds.extend(tokens.iter().any(|path| !is_cassette(path)).then_some(SourceKind::Trace));
    kinds.extend(args.synthetic.map(|_| SourceKind::Synthetic));
    if kinds.is_empty() { vec![SourceKind::BuiltIn] } else { kinds }
}

/// Takes the cassettes of the usual folder where no source is named.
pub(in crate::cli) fn choose_folder(args: &mut PlayArgs) {
    let folder = Path::new(DEFAULT_FOLDER);
    let has_any = || files(&[folder.to_path_buf()], &|_| String::new()).is_ok();
    let is_core = args.simulated.engine_core.is_some();
    if !is_core && of(args) == [SourceKind::BuiltIn] && folder.is_dir() && has_any() {
        args.cassette.push(folder.to_path_buf());
    }
}

/// Refuses flags that would do nothing, and names those that do so only for some requests.
pub(in crate::cli) fn check(args: &PlayArgs, typed: &Typed<'_>) -> Result<(), Failure> {
    refuse_trace_as_model(args)?;
    let kinds = of(args);
    check_engine(args, typed)?;
    for flag in typed.command.get_arguments().filter(|flag| typed.is_given(flag)) {
        if let Some(note) = check_flag(flag, typed, &kinds)? {
            output::note(&format!("{note}\n"));
        }
    }
    check_together(args, typed, &kinds)
}

/// Refuses flags of the engine without it, and names those of vLLM that have no effect.
fn check_engine(args: &PlayArgs, typed: &Typed<'_>) -> Result<(), Failure> {
    let given =
        |tags| typed.tagged(tags).filter(|flag| typed.is_typed(flag.get_id().as_str())).map(|flag| typed.shown(flag));
    if !args.lora.enable_lora {
        given(&["LoraArgs"]).for_each(|name| output::note(&format!("{name} has no effect without --enable-lora\n")));
    }
    if args.simulated.engine {
        return Ok(());
    }
    if let Some(name) = given(OF_ENGINE).next() {
        let message = format!("{name} needs the simulated engine");
        return Err(Failure::usage(message).hint("add --engine, or leave it out"));
    }
    given(OF_VLLMS_ENGINE).for_each(|name| output::note(&format!("{name} has no effect without --engine\n")));
    if args.server.kv_cache_metrics {
        output::note("--kv-cache-metrics shows families that stay zero without --engine\n");
    }
    Ok(())
}

fn check_flag(flag: &Arg, typed: &Typed<'_>, kinds: &[SourceKind]) -> Result<Option<String>, Failure> {
    let (name, values) = (typed.shown(flag), typed.values(flag));
    let mut message = None;
    for kind in kinds {
        let kind_name = kind.name();
        let failed = |reason: &str| format!("{name} has no effect on {kind_name}: {reason}");
        let other = |known: &[&str]| values.iter().find(|value| !known.contains(&value.as_str()));
        let reason = match effect(&typed.command, flag, *kind).unwrap_or(Full) {
            Full => return Ok(None),
            Rest(reason) => {
                return Ok(Some(format!("{name} has no effect on the records of {kind_name}: {reason}")));
            }
            Values(known, reason) => match other(known) {
                Some(value) => format!("{reason}; `{value}` is not one of {}", known.join(", ")),
                None => return Ok(None),
            },
            Nothing(reason) => reason.to_owned(),
            Excludes(reason) => return Err(Failure::usage(failed(reason)).hint("leave it out")),
        };
        message.get_or_insert_with(|| failed(&reason));
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
        let message = format!("`{tag}` is a file, but a model name is expected here");
        return Err(Failure::usage(message).hint(format!("to play it, use --replay-tokens {tag}")));
    }
    Ok(())
}

/// Flags that refine something that other flags switch off.
fn check_together(args: &PlayArgs, typed: &Typed<'_>, kinds: &[SourceKind]) -> Result<(), Failure> {
    if args.made_up.reasoning_share.is_some()
        && args.reasoning_parser.is_none()
        && !kinds.contains(&SourceKind::Cassette)
    {
        let message = "--reasoning-share has no effect: without --reasoning-parser no answer has reasoning";
        return Err(Failure::usage(message).hint("add --reasoning-parser, or leave it out"));
    }
    let makes_up = args.cassettes.on_miss.is_none_or(|chosen| chosen == OnMiss::Random);
    if kinds.contains(&SourceKind::Cassette) && args.synthetic.is_some() && (args.strict || !makes_up) {
        let message = "--synthetic has no effect: a request without a record does not get made-up tokens";
        return Err(Failure::usage(message).hint("leave it out, or use --on-miss random"));
    }
    check_ways(args, kinds)?;
    let made_up = typed.tagged(&["SyntheticArgs"]).find(|flag| typed.is_given(flag));
    if let (Some(flag), Some(Synthetic::Echo)) = (made_up, args.synthetic) {
        let message = format!("{} is about random answers, and --synthetic echo makes none", typed.shown(flag));
        return Err(Failure::usage(message).hint("leave one of the two out"));
    }
    let is_trace = |kind: &SourceKind| matches!(kind, SourceKind::BuiltIn | SourceKind::Trace);
    if !kinds.iter().all(is_trace) {
        return Ok(());
    }
    if !config::refuses_misses(args)
        && let Some(id) = ["miss_status", "miss_detail"].into_iter().find(|id| typed.is_typed(id))
    {
        let name = id.replace('_', "-");
        let message = format!("--{name} is about errors, and a request without a record gets random tokens");
        return Err(Failure::usage(message).hint("add --on-miss error or --strict, or leave it out"));
    }
    if config::refuses_misses(args) && typed.is_typed("unmatched_pace") {
        let message = "--unmatched-pace is about made-up tokens, and a request without a record gets an error";
        return Err(Failure::usage(message).hint("leave it out, or use --on-miss random"));
    }
    Ok(())
}

/// Flags about ways that `--match` does not have.
fn check_ways(args: &PlayArgs, kinds: &[SourceKind]) -> Result<(), Failure> {
    if let (Some(_), false, [_]) = (args.replay_match, args.cassettes.matching.is_empty(), kinds) {
        let message = "--replay-match is the short form of --match, and both are given";
        return Err(Failure::usage(message).hint("leave --replay-match out"));
    }
    if let Some(way) = args.replay_match.filter(|way| kinds.contains(&SourceKind::Trace) && way.of_trace().is_none()) {
        let message = format!("--replay-match {} has no effect on a trace: it has no requests to compare", way.name());
        let hint = format!("it is the trace's way ({}); --match is the cassette's", matching::OF_TRACE.join(", "));
        return Err(Failure::usage(message).hint(hint));
    }
    let ways = matching::of_trace(&args.cassettes.matching, args.replay_match);
    let by_index = ways == [MatchBy::Index];
    let by_prefix = ways.iter().any(|way| matches!(way, MatchBy::Auto | MatchBy::Prefix));
    let useless = [
        ("min-match", args.min_match.is_some() && !by_prefix),
        ("on-exhausted", args.cassettes.on_exhausted.is_some() && by_index),
    ];
    match useless.into_iter().find(|(_, is_useless)| *is_useless && *kinds == [SourceKind::Trace]) {
        Some((name, _)) => {
            let chain: Vec<&str> = ways.iter().map(|way| way.name()).collect();
            let message =
                format!("--{name} has an effect only on matches by prefix, and --match {} finds none", chain.join(","));
            Err(Failure::usage(message).hint("leave it out, or use --match auto or prefix"))
        }
        None => Ok(()),
    }
}
