//! The cassette player of `play` and `tap`: its flags, and what they mean.

pub(in crate::cli) mod admin;
pub(in crate::cli) mod args;
pub(in crate::cli) mod conclude;
mod failures;
pub(in crate::cli) mod files;
pub(in crate::cli) mod matching;

use std::{fs, path::PathBuf, sync::Arc};

use serde_json::{Map, Value, json};

use crate::{
    base::one_line::counted,
    cli::{
        failure::Failure,
        mcp::servers::{self, McpServersArgs},
        output,
        player::{
            admin::AdminAt,
            args::{CassetteArgs, ModeArg},
        },
        redaction::{self, RedactWhat, RedactionArgs},
    },
    net::upstream::NamedEndpoint,
    recording::{
        canonical,
        cassette::{self, Cassette, Header, Keep, Redact, WriteMode},
        redaction::Redactor,
    },
    replay::{
        matching::{
            MinMatch,
            requests::{MatchPolicy, OnExhausted},
        },
        mcp::{McpPolicy, OnNovel},
        player::{
            COMPLETE_WITHIN, CassetteOutput, CassettePlayer, Fork, Mode, ModeExceptions, OnMiss, PlayerConfig,
            RecordErrors, ServerEnvironment,
        },
    },
};

/// Settings of a player besides its flags.
pub(in crate::cli) struct PlayerSettings<'a> {
    /// The cassettes, files or directories.
    pub(in crate::cli) paths: &'a [PathBuf],
    /// What other flags decide: upstreams and servers behind a tap, the pace, rules before every record, the minimum match, and what a miss
    /// gets by default.
    pub(in crate::cli) base: PlayerConfig,
    /// Whether misses, unconsumed records and loose matches are failures.
    pub(in crate::cli) is_strict: bool,
    /// Address of `/vcr/…`.
    pub(in crate::cli) admin: &'a AdminAt,
    pub(in crate::cli) redaction: &'a RedactionArgs,
    /// The server that is recorded, where it is known.
    pub(in crate::cli) environment: ServerEnvironment,
    /// How MCP servers are played; `None` for a tap, which is in front of its own.
    pub(in crate::cli) mcp: Option<&'a McpServersArgs>,
    /// Where the run leaves its cassette, and the cassette of what was served then.
    pub(in crate::cli) fork: Option<(Fork, PathBuf)>,
}

/// Sends what has no record to the MCP servers behind a tap.
fn forward_mcp(config: &mut PlayerConfig, typed: Option<OnExhausted>) {
    let on_novel = if config.on_miss == OnMiss::Stub { OnNovel::Error } else { config.on_miss.into() };
    let forwards = config.mode == Mode::NewEpisodes || on_novel.forwards();
    let reply_within = config.mcp.reply_within;
    config.mcp = McpPolicy { reply_within, ..servers::policy(on_novel, typed, forwards) };
    // A recording has its servers beside the player, until a session plays what it recorded.
    if !matches!(config.mode, Mode::Record | Mode::Live) {
        let called = config.mcp_upstreams.iter().map(|server| server.name.clone());
        let started = config.mcp_started.iter().map(|server| server.name().to_owned());
        config.mcp_names = called.chain(started).collect();
    }
}

pub(in crate::cli) fn cassette_player(
    args: &CassetteArgs,
    settings: PlayerSettings<'_>,
) -> Result<Arc<CassettePlayer>, Failure> {
    let how = files::how_to_record(args, &settings);
    let sessions_only = args.sessions_only.then(|| files::folder_of_sessions(settings.paths)).transpose()?;
    let files = sessions_only.as_deref().map_or_else(|| files::all_files(settings.paths, &how), files::default_file)?;
    args.report.as_deref().map_or(Ok(()), conclude::writable)?;
    let (on_miss, selection) = (args.on_miss.unwrap_or(settings.base.on_miss), selection(args, &settings));
    let mcp = settings.mcp.map(mcp_upstreams).transpose()?.unwrap_or_default();
    let records = settings.mcp.is_some_and(|mcp| mcp.mcp_on_miss == OnNovel::Record) || on_miss == OnMiss::Record;
    let (mode, write) =
        recording(args.mode.unwrap_or(ModeArg::None), &files, records, (&selection, settings.fork.as_ref()))?;
    can_leave(args, (mode, on_miss, &selection), settings.base.upstream.is_some() || !mcp.is_empty())?;
    let sessions_record = settings.base.upstream.is_some() && *settings.admin != AdminAt::Nowhere;
    if write.is_none() && args.mode != Some(ModeArg::Once) && !sessions_record {
        refuse_recording_flags(args)?;
    }
    let plays = matches!(mode, Mode::Replay | Mode::NewEpisodes | Mode::Compare) || selection != ModeExceptions::None;
    let cassettes = if plays { files::load_all(&files, mode, &how)? } else { Vec::new() };
    let replaced = replaced(files.first().filter(|_| mode == Mode::Record))?;
    let old = cassettes.first().map(|cassette| cassette.header.clone()).or(replaced);
    let output = output_of(args, &settings, (old, write), selection != ModeExceptions::None)?;
    let mut config = PlayerConfig {
        matching: policy(args, &cassettes, settings.is_strict, settings.base.matching.min_match)?,
        match_command: matching::exec_command(&args.matching)?,
        rules: rules(args),
        mode,
        selection,
        on_miss,
        miss_status: args.miss_status,
        miss_detail: args.miss_detail,
        output,
        keep: Keep { times: args.timing.unwrap_or_default(), tokens: args.tokens.unwrap_or_default() },
        record_errors: args.record_errors,
        tags: args.tag.clone(),
        complete_within: args.complete_within.unwrap_or(COMPLETE_WITHIN),
        ids: args.ids,
        admin: settings.admin.beside(),
        sessions_overwrite: args.admin_overwrite,
        folder: settings.paths.first().filter(|path| path.is_dir()).map(|path| path.components().collect()),
        sessions_only,
        secrets: redaction::rules(settings.redaction)?,
        supplied: redaction::supplied(args.secrets.as_deref(), settings.redaction)?,
        allows_secrets: args.allow_secrets,
        cross_api: args.cross_api,
        network_block: args.block_network.then(Arc::default),
        cassettes,
        brief_misses: !args.command.is_empty(),
        ..settings.base
    };
    match settings.mcp {
        Some(servers) => servers.configure(&mut config, mcp, (args.on_exhausted, settings.is_strict)),
        None => forward_mcp(&mut config, args.on_exhausted),
    }
    config.apply_header_rules()?;
    config.supplied.unmatched(&config.cassettes).iter().for_each(|warning| tracing::warn!("{warning}"));
    Ok(CassettePlayer::new(config)?)
}

/// What is written, with its top; that of flags which nothing is written with is checked too.
fn output_of(
    args: &CassetteArgs,
    settings: &PlayerSettings<'_>,
    (old, write): (Option<Header>, Option<(PathBuf, WriteMode)>),
    is_full: bool,
) -> Result<Option<CassetteOutput>, Failure> {
    let header = header(args, settings.redaction, old, (&settings.environment, settings.fork.as_ref()))?;
    tags(args, settings.redaction, write.as_ref())?;
    Ok(write.map(|(path, mode)| CassetteOutput { path, header, mode, is_full }))
}

/// Refuses requests that are to go upstream where they cannot.
fn can_leave(
    args: &CassetteArgs,
    (mode, on_miss, selection): (Mode, OnMiss, &ModeExceptions),
    has_upstream: bool,
) -> Result<(), Failure> {
    let leaves = mode != Mode::Replay || matches!(on_miss, OnMiss::Upstream | OnMiss::Record) || !args.live.is_empty();
    if mode == Mode::Compare && *selection != ModeExceptions::None {
        return Err(Failure::usage("--mode compare sends every request upstream: leave out --live and --frozen"));
    }
    if leaves && !has_upstream {
        return Err(Failure::usage("requests would be forwarded, but no upstream is named: add --upstream URL"));
    }
    Ok(())
}

fn mcp_upstreams(args: &McpServersArgs) -> Result<Vec<NamedEndpoint>, Failure> {
    let upstreams = servers::endpoints("--mcp-upstream", &args.mcp_upstream, &args.upstream_header)?;
    if args.mcp_on_miss.forwards() && upstreams.is_empty() {
        let message = "--mcp-on-miss upstream and record need the real servers";
        return Err(Failure::usage(message).hint("name each: --mcp-upstream NAME=URL"));
    }
    Ok(upstreams)
}

/// The top of a cassette that is about to be replaced, if it is there: what people wrote in it stays. What is no cassette is not replaced.
pub(in crate::cli) fn replaced(path: Option<&PathBuf>) -> Result<Option<Header>, Failure> {
    let Some(path) = path.filter(|path| fs::metadata(path).is_ok_and(|found| found.len() > 0)) else { return Ok(None) };
    let old = cassette::load(path).map_err(|error| {
        let hint = format!("it would be replaced: correct it, or delete {} to record it again", path.display());
        Failure::from(error).hint(hint)
    })?;
    let fixtures = old.records.iter().filter(|record| record.is_fixture).count();
    let stay = if fixtures > 0 { format!(", {fixtures} with `match` stay") } else { String::new() };
    let count = old.records.len() - fixtures;
    output::note(&format!("{}: {} will be replaced{stay}\n", path.display(), counted(count, "record")));
    Ok(Some(old.header))
}

/// Refuses tags that hold secrets, or that the file has no place for.
fn tags(args: &CassetteArgs, redaction: &RedactionArgs, write: Option<&(PathBuf, WriteMode)>) -> Result<(), Failure> {
    let rules = redaction::rules(redaction)?;
    if args.tag.iter().any(|tag| Redactor::new(&rules).text(tag).is_some()) {
        return Err(Failure::usage("--tag holds a secret, which would be written to the cassette"));
    }
    match write {
        Some((path, WriteMode::Append)) if !args.tag.is_empty() && path.exists() => {
            let message = format!("--tag: adding records to {} does not change its top", path.display());
            Err(Failure::usage(message).hint("write `tags: [...]` there, or record it again with --mode all"))
        }
        _ => Ok(()),
    }
}

/// Decides what is played and recorded, and the file that is written.
fn recording(
    requested: ModeArg,
    files: &[PathBuf],
    records_misses: bool,
    (selection, fork): (&ModeExceptions, Option<&(Fork, PathBuf)>),
) -> Result<(Mode, Option<(PathBuf, WriteMode)>), Failure> {
    let one = || match files {
        [one] => Ok(one.clone()),
        _ => Err(Failure::usage("recordings go into one cassette: name one file")),
    };
    let (mode, write) = match requested {
        ModeArg::None => (Mode::Replay, None),
        ModeArg::Live => (Mode::Live, None),
        ModeArg::Compare => (Mode::Compare, None),
        ModeArg::Once if one()?.exists() => (Mode::Replay, None),
        ModeArg::Once | ModeArg::All => (Mode::Record, Some((one()?, WriteMode::Replace))),
        ModeArg::NewEpisodes => (Mode::NewEpisodes, Some((one()?, WriteMode::Append))),
    };
    let write = match (selection, records_misses, write) {
        (ModeExceptions::None, true, None) => Some((one()?, WriteMode::Append)),
        (ModeExceptions::None, _, write) => write,
        _ => {
            let derived = one()?.with_extension("derived.yaml");
            Some((fork.map_or(derived, |(_, out)| out.clone()), WriteMode::Replace))
        }
    };
    Ok((mode, write))
}

/// The entry of a fork at the top of its cassette, whose requests have the models that their clients asked for.
fn forked(fork: &Fork) -> Value {
    let model = fork.model.as_ref().map(|model| ("model".to_owned(), json!(model)));
    std::iter::once(("at".to_owned(), json!(fork.played + 1))).chain(model).collect()
}

/// The top of a new cassette: who records it, and what is redacted in it.
pub(in crate::cli) fn header_of(redaction: &RedactionArgs, what: &RedactWhat) -> Header {
    let by = ("by".to_owned(), concat!("vllm-vcr ", env!("CARGO_PKG_VERSION")).into());
    let redact = Redact {
        is_off: what.is_off,
        keys: redaction.redact_key.clone(),
        patterns: redaction.redact_pattern.clone(),
        places: what.places.clone(),
        shapes: what.shapes.clone(),
    };
    Header { recorded: Map::from_iter([by]), redact, ..Header::default() }
}

/// The top of a new cassette: what was typed, beside what an old one holds.
fn header(
    args: &CassetteArgs,
    redaction: &RedactionArgs,
    old: Option<Header>,
    (now, fork): (&ServerEnvironment, Option<&(Fork, PathBuf)>),
) -> Result<Header, Failure> {
    let mut typed = Header {
        matching: matching::header_names(&args.matching),
        ignore: args.ignore.iter().map(ToString::to_string).collect(),
        scrub: args.scrub.iter().map(ToString::to_string).collect(),
        match_headers: args.match_header.clone(),
        tags: args.tag.clone(),
        ..header_of(redaction, &RedactWhat::of(redaction)?)
    };
    typed.recorded.extend(now.fields());
    typed.recorded.extend(fork.map(|(fork, _)| ("fork".to_owned(), forked(fork))));
    Ok(typed.over(old.unwrap_or_default()))
}

fn selection(args: &CassetteArgs, settings: &PlayerSettings<'_>) -> ModeExceptions {
    if let Some((fork, _)) = &settings.fork {
        return ModeExceptions::Fork(fork.clone());
    }
    match (args.live.is_empty(), args.frozen.is_empty()) {
        (false, _) => ModeExceptions::Live(args.live.clone()),
        (true, false) => ModeExceptions::Frozen(args.frozen.clone()),
        (true, true) => ModeExceptions::None,
    }
}

fn rules(args: &CassetteArgs) -> canonical::CanonicalRules {
    canonical::CanonicalRules {
        ignored: args.ignore.clone(),
        scrubs: args.scrub.clone(),
        headers: args.match_header.iter().map(|name| name.to_ascii_lowercase()).collect(),
        ignored_parameters: args.ignore_query.clone(),
        counts_volatile: args.no_default_ignores,
        form: args.canonical,
        joins_texts: false,
        counts_tool_descriptions: false,
    }
}

fn policy(
    args: &CassetteArgs,
    cassettes: &[Cassette],
    is_strict: bool,
    min_match: MinMatch,
) -> Result<MatchPolicy, Failure> {
    Ok(MatchPolicy {
        chain: matching::of_cassettes(&args.matching, cassettes)?,
        min_match,
        on_exhausted: on_exhausted(args, is_strict),
        loose_after_exhausted: args.loose_after_exhausted,
        retries: args.retries,
        custom: None,
    })
}

/// Reads the treatment of exhausted records, if a flag sets it.
pub(in crate::cli) fn on_exhausted(args: &CassetteArgs, strict: bool) -> Option<OnExhausted> {
    args.on_exhausted.or(strict.then_some(OnExhausted::Error))
}

/// Refuses flags about what a recording keeps, for a run that records nothing.
pub(in crate::cli) fn refuse_recording_flags(args: &CassetteArgs) -> Result<(), Failure> {
    let typed = [
        ("--timing", args.timing.is_some()),
        ("--tokens", args.tokens.is_some()),
        ("--tag", !args.tag.is_empty()),
        ("--complete-within", args.complete_within.is_some()),
        ("--record-errors", args.record_errors == RecordErrors::All),
    ];
    let Some((flag, _)) = typed.iter().find(|(_, is_typed)| *is_typed) else { return Ok(()) };
    Err(Failure::usage(format!("{flag} has no effect: nothing is recorded"))
        .hint("leave it out, or record into a cassette: --mode once, new-episodes or all"))
}
