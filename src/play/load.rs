//! Brings trace, tokenizer and matcher together and refuses what does not fit.

use std::collections::BTreeMap;

use super::{Config, PlayError, Source, TokenizerSource, builtin};
use crate::{
    matching::{MatchBy, Matcher},
    prompt::{BlockHasher, Tokenizer},
    trace::{self, Endpoint, Meta, Record, TokenizerId, Trace},
};

/// Tokens per hashed block where a trace does not say.
const BLOCK_SIZE: u32 = 16;

/// Recorded streams, ready to be found.
#[derive(Debug)]
pub(super) struct Replay {
    /// Name of the trace in messages.
    pub(super) name: String,
    /// In replay order.
    pub(super) records: Vec<Record>,
    pub(super) matcher: Matcher,
    pub(super) hasher: BlockHasher,
}

impl Replay {
    /// The trace in a few words.
    pub(super) fn describe(&self) -> String {
        format!("{}, {} records", self.name, self.records.len())
    }
}

/// Everything that was loaded.
pub(super) struct Loaded {
    pub(super) replay: Option<Replay>,
    pub(super) tokenizer: Tokenizer,
    pub(super) model: String,
}

/// Loads what the configuration names.
///
/// # Errors
/// A trace or tokenizer that cannot be read, or that do not belong together.
pub(super) fn load(config: &Config) -> Result<Loaded, PlayError> {
    let (name, trace) = match &config.source {
        Source::Synthetic(_) => {
            let tokenizer = match given(config)? {
                Some(tokenizer) => tokenizer,
                None => builtin::tokenizer()?,
            };
            return Ok(Loaded { replay: None, model: tokenizer.name().to_owned(), tokenizer });
        }
        Source::BuiltIn => (builtin::TRACE_NAME.to_owned(), builtin::trace()?),
        Source::File(path) => (path.display().to_string(), trace::read(path)?),
        Source::Trace { name, trace } => (name.clone(), Trace::clone(trace)),
    };
    for warning in &trace.warnings {
        tracing::warn!("{warning}");
    }
    if trace.records.is_empty() {
        return Err(PlayError::Empty { trace: name });
    }
    let tokenizer = tokenizer(config, &name, &trace)?;
    let records = in_replay_order(generations(&name, trace.records)?);
    warn_of_missing_ids(&name, &records);
    let hasher = hasher(&trace.meta, config)?;
    check_ids(&name, &records, &tokenizer)?;
    let model = trace.meta.model.or_else(|| asked_for_most(&records)).unwrap_or_else(|| tokenizer.name().to_owned());
    let matcher = Matcher::new(&records, &config.order);
    Ok(Loaded { replay: Some(Replay { name, records, matcher, hasher }), tokenizer, model })
}

/// The records that hold generated tokens: answers of other kinds are shapes that nobody can ask for here.
fn generations(name: &str, mut records: Vec<Record>) -> Result<Vec<Record>, PlayError> {
    let all = records.len();
    records.retain(|record| record.endpoint.is_none_or(Endpoint::generates));
    if records.len() < all {
        let left_out = all - records.len();
        tracing::info!("{left_out} of the {all} records of {name} are of embeddings and the like: not served");
    }
    if records.is_empty() { Err(PlayError::Empty { trace: name.to_owned() }) } else { Ok(records) }
}

/// What hashes prompts as the trace's were.
///
/// # Errors
/// When they are keyed and the key at hand is another one.
fn hasher(meta: &Meta, config: &Config) -> Result<BlockHasher, PlayError> {
    let block_size = meta.block_size.unwrap_or(BLOCK_SIZE);
    let unkeyed = BlockHasher::new(meta.block_hash.unwrap_or_default(), block_size);
    let Some(wanted) = &meta.hash_key_id else { return Ok(unkeyed) };
    match &config.hash_key {
        Some(key) if key.id() == *wanted => Ok(BlockHasher::keyed(key.clone(), block_size)),
        Some(key) => Err(PlayError::HashKey { given: key.id(), wanted: wanted.clone() }),
        None => {
            if config.order.contains(&MatchBy::Prefix) {
                tracing::warn!(
                    "the trace's block hashes are keyed: without --hash-key-file no prompt matches by its prefix"
                );
            }
            Ok(unkeyed)
        }
    }
}

fn warn_of_missing_ids(trace: &str, records: &[Record]) {
    let without = records.iter().filter(|record| record.output_tokens > 0 && record.output_token_ids.is_none()).count();
    if without > 0 {
        let all = records.len();
        tracing::warn!(
            "{without} of the {all} records of {trace} hold no token ids: random tokens of their length are served"
        );
    }
}

/// The model that most records were asked of.
fn asked_for_most(records: &[Record]) -> Option<String> {
    let mut counts = BTreeMap::<&str, usize>::new();
    for name in records.iter().filter(|record| record.status == Some(200)).filter_map(|record| record.model.as_deref())
    {
        *counts.entry(name).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(name, _)| name.to_owned())
}

fn in_replay_order(records: Vec<Record>) -> Vec<Record> {
    let order = trace::replay_order(&records);
    let mut slots: Vec<Option<Record>> = records.into_iter().map(Some).collect();
    order.into_iter().filter_map(|at| slots.get_mut(at).and_then(Option::take)).collect()
}

/// The tokenizer that the trace's ids belong to: the one that was given, or the built-in one where it is the same.
fn tokenizer(config: &Config, name: &str, trace: &Trace) -> Result<Tokenizer, PlayError> {
    let recorded = trace.meta.tokenizer.as_ref();
    let tokenizer = match given(config)? {
        Some(tokenizer) => tokenizer,
        None => {
            let builtin = builtin::tokenizer()?;
            let fits = match recorded {
                Some(recorded) => recorded.fingerprint == builtin.fingerprint(),
                None => !has_ids(trace),
            };
            if !fits {
                let trace = name.to_owned();
                return Err(match recorded {
                    Some(recorded) if recorded.name == builtin.name() => other_tokenizer(trace, recorded, &builtin),
                    Some(recorded) => PlayError::TokenizerNeeded { trace, needed: recorded.name.clone() },
                    None => PlayError::TokenizerUnsaid { trace },
                });
            }
            builtin
        }
    };
    match recorded {
        Some(recorded) if recorded.fingerprint != tokenizer.fingerprint() => {
            Err(other_tokenizer(name.to_owned(), recorded, &tokenizer))
        }
        _ => Ok(tokenizer),
    }
}

fn other_tokenizer(trace: String, recorded: &TokenizerId, given: &Tokenizer) -> PlayError {
    PlayError::OtherTokenizer {
        trace,
        recorded: recorded.name.clone(),
        recorded_fingerprint: recorded.fingerprint.clone(),
        given: given.name().to_owned(),
        given_fingerprint: given.fingerprint().to_owned(),
    }
}

fn given(config: &Config) -> Result<Option<Tokenizer>, PlayError> {
    Ok(match &config.tokenizer {
        TokenizerSource::BuiltIn => None,
        TokenizerSource::Spec(spec) => Some(Tokenizer::load(spec)?),
        TokenizerSource::Loaded(tokenizer) => Some(tokenizer.clone()),
    })
}

fn has_ids(trace: &Trace) -> bool {
    trace.records.iter().any(|record| record.output_token_ids.is_some())
}

fn check_ids(name: &str, records: &[Record], tokenizer: &Tokenizer) -> Result<(), PlayError> {
    let vocab_size = tokenizer.vocab_size();
    for (record, ids) in
        records.iter().enumerate().filter_map(|(at, record)| Some((at, record.output_token_ids.as_ref()?)))
    {
        if let Some(id) = ids.iter().copied().find(|id| *id >= vocab_size) {
            let (trace, given) = (name.to_owned(), tokenizer.name().to_owned());
            return Err(PlayError::IdBeyondVocabulary { trace, record, id, given, vocab_size });
        }
    }
    Ok(())
}
