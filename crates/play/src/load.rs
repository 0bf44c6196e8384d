//! Brings trace, tokenizer and matcher together and refuses what does not fit.

pub(crate) mod account;
pub(crate) mod adapters;
pub(crate) mod advice;
pub(crate) mod builtin;
pub(crate) mod concurrency;
pub(crate) mod generation;
pub(crate) mod model;
pub(crate) mod pace;
pub(crate) mod recordings;
pub(crate) mod samples;
pub(crate) mod trace;

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    num::NonZeroU32,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    Config, DEFAULT_IDS, DEFAULT_MODEL_LEN, PlayError, Source, TokenizerSource,
    engine::EngineConfig,
    load::{
        account::TraceLedger,
        pace::TracePace,
        recordings::{RecordedErrors, Recordings},
        trace::LoadedTrace,
    },
};
use ::engine::OutputTokens;
use base::one_line::counted;
use recording::trace::{BadLines, LoadProgress, LoadedFile, Meta, RecordRef, Sources, Store, TraceError, load_all};
use replay::matching::{Keys, MatchBy, MatchRules, Matcher};
use text::prompt::{BlockHasher, PromptError, Tokenizer};

/// Tokens per block, hashed and cached, where neither a trace nor a flag has it.
pub(super) const BLOCK_SIZE: u32 = 16;

/// A load that takes as long as this is worth a line in the log.
const LONG_LOAD: Duration = Duration::from_secs(1);

/// Everything that was loaded.
pub(super) struct LoadedSources {
    pub(super) replay: Option<Arc<LoadedTrace>>,
    pub(super) tokenizer: Tokenizer,
    pub(super) model: String,
    /// The models that recorded requests asked, the most asked first.
    pub(super) recorded_models: Vec<String>,
    /// Prompt and output tokens that a request may have together.
    pub(super) max_model_len: u32,
}

/// Loads what the configuration names.
/// Errors: a trace or tokenizer that cannot be read, or that do not belong together.
pub(super) fn load(config: &Config) -> Result<LoadedSources, PlayError> {
    let (name, mut records) = match &config.source {
        Source::Synthetic(_) => return without_trace(config),
        Source::BuiltIn => (builtin::TRACE_NAME.to_owned(), Store::from(&builtin::trace()?)),
        Source::Files(paths) => {
            let sources = Sources::gather(paths)?;
            (sources.name(), load_files(&sources, &config.progress)?)
        }
        Source::Trace { name, trace } => (name.clone(), Store::from(trace.as_ref())),
    };
    for file in &mut records.files {
        if file.path.as_os_str().is_empty() {
            file.path = PathBuf::from(&name);
        }
        report_bad_lines(file, config)?;
    }
    let is_left_out = |record: RecordRef<'_>| record.is_lost() || (!record.generates() && record.response().is_none());
    if records.iter().all(is_left_out) {
        return Err(PlayError::Empty { trace: name });
    }
    let tokenizer = tokenizer(config, &name, &records)?;
    records.sort();
    let usual = || advice::longest(&records).max(recorded_model_length(&records).unwrap_or(DEFAULT_MODEL_LEN));
    let max_model_len = model_length(config, records.meta.block_size, usual);
    check_ids(&records, &tokenizer)?;
    let hasher = hasher(&records.meta, config)?;
    let recorded_models = recorded_models(&records);
    let is_asked = |name: &String| recorded_models.is_empty() || recorded_models.contains(name);
    let asked_for_most = || recorded_models.first().cloned();
    let model = records.meta.model.clone().filter(is_asked).or_else(asked_for_most);
    let model = model.unwrap_or_else(|| tokenizer.name().to_owned());
    let recordings = Recordings::of(&records);
    // A record that names no model is of the one that a request without a model is for.
    let usual_model = recorded_models.first().map(String::as_str);
    let keys = records.iter().enumerate().map(|(at, kept)| {
        let keys = recordings.keys(at, kept);
        Keys { model: keys.model.or(usual_model), ..keys }
    });
    let matcher = Matcher::new(keys, rules(config, &recorded_models));
    let is_served = |record: usize| matcher.is_servable(record) || recordings.serves(record);
    let served: Vec<bool> = (0..records.len()).map(is_served).collect();
    for warning in advice::warnings(&name, &records, &served, &config.order, max_model_len) {
        tracing::warn!("{warning}");
    }
    records.forget_chains();
    let (account, pace) = (TraceLedger::new(&matcher), TracePace::of(&records));
    let secrets = config.secrets.clone();
    let errors = RecordedErrors::of(&records);
    let has_recorded_times = config.engine.as_ref().is_some_and(EngineConfig::has_recorded_times);
    let concurrency = if has_recorded_times { concurrency::recorded(&records) } else { Vec::new() };
    let replay =
        LoadedTrace { name, records, matcher, account, secrets, recordings, errors, hasher, pace, concurrency };
    let replay = Arc::new(replay);
    Ok(LoadedSources { replay: Some(replay), tokenizer, model, recorded_models, max_model_len })
}

/// Loads a server that makes all tokens up.
/// Errors: a tokenizer that cannot be read, and lengths of a trace that there is not.
fn without_trace(config: &Config) -> Result<LoadedSources, PlayError> {
    if config.synthetic.output_tokens == Some(OutputTokens::Trace) {
        return Err(PlayError::NoLengths);
    }
    let tokenizer = configured(config, None)?;
    let max_model_len = model_length(config, None, || DEFAULT_MODEL_LEN);
    let (model, recorded_models) = (tokenizer.name().to_owned(), Vec::new());
    Ok(LoadedSources { replay: None, model, recorded_models, tokenizer, max_model_len })
}

/// The length that the recorded engine's model has, where its trace names it.
fn recorded_model_length(records: &Store) -> Option<u32> {
    let length = records.meta.extra.get("upstream")?.get("max_model_len")?.as_u64()?;
    u32::try_from(length).ok().filter(|length| *length > 0)
}

/// Prompt and output tokens that a request may have together: as configured, or as many as are usual and fit an engine's cache.
fn model_length(config: &Config, traced_block: Option<u32>, usual: impl FnOnce() -> u32) -> u32 {
    let fits = |usual| match &config.engine {
        Some(engine) => {
            let block_size = config.block_size.map(NonZeroU32::get).or(traced_block).unwrap_or(BLOCK_SIZE);
            engine.most_tokens(block_size, usual)
        }
        None => usual,
    };
    config.max_model_len.unwrap_or_else(|| fits(usual()))
}

/// Rules of matching. Models count where several were recorded and are served under their recorded names.
fn rules(config: &Config, recorded_models: &[String]) -> MatchRules {
    let is_recorded = |name: &String| recorded_models.contains(name);
    let by_model = recorded_models.len() > 1 && config.served_model_names.iter().all(is_recorded);
    MatchRules {
        order: config.order.clone(),
        least: config.min_match,
        on_exhausted: config.on_exhausted,
        loose_after_exhausted: config.loose_after_exhausted,
        by_model,
    }
}

/// Logs the reader's warnings about a file and the lines that break a rule of the format, which are not served.
/// Errors: with the first such line, where that is not wanted.
fn report_bad_lines(file: &LoadedFile, config: &Config) -> Result<(), TraceError> {
    let path = file.path.display();
    for warning in &file.warnings {
        tracing::warn!("{path}: {warning}");
    }
    let BadLines { count, first } = &file.bad_lines;
    for finding in first {
        if config.strict_trace {
            return Err(TraceError::Line { path: file.path.clone(), finding: finding.clone() });
        }
        tracing::warn!("{path}:{finding}");
    }
    if *count > 0 {
        tracing::warn!(
            "{path}: {} not served, {} served in their places; `vllm-vcr inspect check` lists the invalid lines, \
             --strict-trace refuses such a file",
            counted(*count, "invalid line"),
            counted(file.records, "record")
        );
    }
    Ok(())
}

fn load_files(sources: &Sources, progress: &Arc<LoadProgress>) -> Result<Store, TraceError> {
    let start = Instant::now();
    let records = load_all(sources, progress)?;
    let (took, json) = (start.elapsed(), progress.now().json);
    if took >= LONG_LOAD {
        let megabytes = json as f64 / 1e6;
        let seconds = took.as_secs_f64();
        tracing::info!(
            "loaded {}: {megabytes:.0} MB of JSON in {seconds:.1} s, {:.0} MB/s",
            counted(records.len(), "record"),
            megabytes / seconds
        );
    }
    Ok(records)
}

/// Makes the hasher of the trace's prompts.
/// Errors: when they are keyed and the key at hand is another one.
fn hasher(meta: &Meta, config: &Config) -> Result<BlockHasher, PlayError> {
    let block_size = meta.block_size.unwrap_or(BLOCK_SIZE);
    match (&meta.hash_key_id, &config.hash_key) {
        (Some(wanted), Some(key)) if key.id() == *wanted => return Ok(BlockHasher::keyed(key.clone(), block_size)),
        (Some(wanted), Some(key)) => return Err(PlayError::HashKey { given: key.id(), wanted: wanted.clone() }),
        (None, Some(_)) => return Err(PlayError::NoHashKey),
        (Some(_), None) if MatchBy::any_by_prompt(&config.order) => tracing::warn!(
            "the trace's block hashes are keyed: without --hash-key-file no prompt matches by its prefix"
        ),
        (_, None) => {}
    }
    Ok(BlockHasher::new(meta.block_hash.unwrap_or_default(), block_size))
}

/// The models that answered, the one that most records were asked of first.
fn recorded_models(records: &Store) -> Vec<String> {
    let mut counts = BTreeMap::<&str, usize>::new();
    let answered =
        records.iter().filter(|record| record.generates() && record.status().is_none_or(|status| status == 200));
    for name in answered.filter_map(|record| record.model()) {
        *counts.entry(name).or_default() += 1;
    }
    let mut models: Vec<_> = counts.into_iter().collect();
    models.sort_by_key(|(_, count)| Reverse(*count));
    models.into_iter().map(|(name, _)| name.to_owned()).collect()
}

/// The tokenizer that the trace's ids belong to: the one that was given, or the built-in one where it is the same.
fn tokenizer(config: &Config, name: &str, trace: &Store) -> Result<Tokenizer, PlayError> {
    let tokenizer = configured(config, Some(trace))?;
    let is_given = !matches!(config.tokenizer, TokenizerSource::BuiltIn);
    let has_ids = || trace.iter().any(|record| record.ids().is_some());
    let (trace_name, own_name) = (name.to_owned(), tokenizer.name());
    match &trace.meta.tokenizer {
        _ if tokenizer.is_ids_only() => Ok(tokenizer),
        Some(recorded) if recorded.fingerprint == tokenizer.fingerprint() => Ok(tokenizer),
        Some(recorded) if is_given || recorded.name == own_name => Err(PlayError::OtherTokenizer {
            trace: trace_name,
            recorded: recorded.name.clone(),
            recorded_fingerprint: recorded.fingerprint.clone(),
            given: own_name.to_owned(),
            given_fingerprint: tokenizer.fingerprint().to_owned(),
        }),
        Some(recorded) => Err(PlayError::TokenizerNeeded { trace: trace_name, needed: recorded.name.clone() }),
        None if is_given || !has_ids() || recorded_models(trace) == [own_name] => Ok(tokenizer),
        None => Err(PlayError::TokenizerUnsaid { trace: trace_name }),
    }
}

/// Loads the tokenizer that `spec` names, the built-in one by its name too, and downloads it where it is one of the Hugging Face Hub that
/// is not in the local cache: [`Tokenizer::load`]. Blocks.
///
/// # Errors
/// Those of [`Tokenizer::load`].
pub fn load_tokenizer(spec: &str) -> Result<Tokenizer, PromptError> {
    const LARGEST_FILE: usize = 256 << 20;
    if spec == builtin::NAME && !Path::new(spec).exists() {
        return builtin::tokenizer();
    }
    Tokenizer::load(spec, &|url, token| net::download(url, token, LARGEST_FILE).map_err(|error| error.to_string()))
}

/// The tokenizer of a configuration, with the size of the model's vocabulary where a user gave it.
fn configured(config: &Config, trace: Option<&Store>) -> Result<Tokenizer, PlayError> {
    let tokenizer = match &config.tokenizer {
        TokenizerSource::BuiltIn => builtin::tokenizer()?,
        TokenizerSource::None => {
            let recorded = trace.and_then(|trace| trace.iter().filter_map(|record| record.ids()).flatten().max());
            let recorded = recorded.map_or(0, |id| id.saturating_add(1));
            Tokenizer::ids_only(config.vocabulary.unwrap_or(DEFAULT_IDS).max(recorded))?
        }
        TokenizerSource::Spec(spec) => load_tokenizer(spec)?,
        TokenizerSource::Loaded(tokenizer) => tokenizer.clone(),
    };
    Ok(match config.vocabulary {
        Some(size) => tokenizer.with_model_vocabulary(size),
        None => tokenizer,
    })
}

/// Looks for ids that the tokenizer does not have. Models have some where their embeddings are padded, and in the engine
/// too they are no text.
/// Errors: an id that the model cannot have given: nothing shows that the tokenizer is the trace's, and the size of the model's
/// vocabulary is known.
fn check_ids(records: &Store, tokenizer: &Tokenizer) -> Result<(), PlayError> {
    let is_recorded_one = records.meta.tokenizer.is_some();
    let vocabulary = tokenizer.known_model_vocabulary().filter(|_| !is_recorded_one);
    for (file, id) in records.files.iter().filter_map(|file| Some((file, file.highest_id?))) {
        let (trace, given) = (file.path.display().to_string(), tokenizer.name());
        if let Some(vocab_size) = vocabulary.filter(|size| id >= *size) {
            return Err(PlayError::IdBeyondVocabulary { trace, id, given: given.to_owned(), vocab_size });
        }
        if id >= tokenizer.model_vocabulary() {
            tracing::warn!(
                "{trace} holds token ids up to {id}, which {given} does not have: they are served without text; if the text \
                 looks wrong, pass the model's own tokenizer (--tokenizer DIR)"
            );
        }
    }
    Ok(())
}
