//! From a request to the script of each of its choices: the recorded one, or a made-up one. One selection per prompt
//! decides content and timing together.

use std::{collections::VecDeque, time::Duration};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    State,
    choice::{Due, Finish, LastToken, Script},
    config::{DEFAULT_RANDOM_TOKENS, Synthetic, Unmatched},
    interim::{Pacing, Query, RandomTokens, Selection},
};
use crate::{
    openai::{ApiError, MaxTokens, StopReason},
    prompt::PromptHashes,
    trace::{FinishReason, Record},
};

/// What is asked for one prompt.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) request_id: Option<&'a str>,
    pub(super) prompt: &'a [u32],
    /// Tokens to repeat under [`Synthetic::Echo`].
    pub(super) echo: &'a [u32],
    pub(super) choices: usize,
    pub(super) max_tokens: MaxTokens,
    pub(super) seed: Option<i64>,
    pub(super) ignore_eos: bool,
}

/// What one prompt gets.
#[derive(Debug)]
pub(super) struct Chosen {
    /// One per choice.
    pub(super) scripts: Vec<Script>,
    /// Cached prompt tokens, as recorded.
    pub(super) cached: u32,
    /// The records in replay order, none for made-up tokens.
    pub(super) records: Vec<usize>,
    /// How they were found: a matcher's word, or what was made up.
    pub(super) by: &'static str,
}

/// Chooses the scripts of one prompt.
///
/// # Errors
/// 422 where no record matches and none may be made up; the recorded status where the record holds a refusal.
pub(super) fn choose(state: &State, wanted: &Wanted<'_>) -> Result<Chosen, ApiError> {
    let Some(replay) = &state.replay else { return Ok(made_up(state, wanted)) };
    let hashes: PromptHashes = replay.hasher.hash(wanted.prompt);
    let query = Query { request_id: wanted.request_id, hashes: &hashes, choices: wanted.choices };
    match replay.matcher.select(&query) {
        Some(selection) if !selection.records.is_empty() => recorded(state, wanted, selection),
        _ if state.config.unmatched == Unmatched::Refuse => {
            Err(ApiError::miss(format!("No recorded answer matched this request ({}).", replay.describe())))
        }
        _ => Ok(made_up(state, wanted)),
    }
}

fn recorded(state: &State, wanted: &Wanted<'_>, selection: Selection) -> Result<Chosen, ApiError> {
    let records = state.replay.as_ref().map(|replay| replay.records.as_slice()).unwrap_or_default();
    let mut scripts = Vec::with_capacity(wanted.choices);
    let mut cached = 0;
    for (choice, index) in selection.records.iter().cycle().take(wanted.choices).enumerate() {
        let Some(record) = records.get(*index) else { continue };
        refuse_as_recorded(record)?;
        cached = cached.max(record.cached_tokens.unwrap_or(0));
        scripts.push(script(state, wanted, record, choice));
    }
    Ok(Chosen { scripts, cached, by: selection.by.name(), records: selection.records })
}

/// A request that the engine refused is refused again; its body was not recorded, its status was.
fn refuse_as_recorded(record: &Record) -> Result<(), ApiError> {
    match record.status {
        Some(status) if status >= 400 && record.output_tokens == 0 => {
            let mut error = ApiError::bad_request(format!("The recorded request was answered with status {status}."));
            error.status = status;
            error.kind = if status >= 500 { "InternalServerError" } else { "BadRequestError" };
            Err(error)
        }
        _ => Ok(()),
    }
}

fn script(state: &State, wanted: &Wanted<'_>, record: &Record, choice: usize) -> Script {
    let ids = match &record.output_token_ids {
        Some(ids) => ids.clone(),
        None => random_ids(state, wanted, choice, record.output_tokens),
    };
    let due = state.config.pacing.schedule(record).map(|(at, tokens)| Due { at, tokens }).collect();
    let finish = finish(record, ids.last().copied(), state.tokenizer.eos_ids());
    Script { ids, due, finish }
}

/// How a record ends. One that was cut short, as by a client that left, ends with `abort`.
fn finish(record: &Record, last: Option<u32>, eos: &[u32]) -> Finish {
    let ends_in_stop_token = record.output_token_ids.is_some()
        && last.is_some_and(|last| eos.contains(&last) || record.stop_token == Some(last));
    let (reason, stop_reason, last_token) = match record.finish_reason {
        Some(FinishReason::Stop) => (
            "stop",
            record.stop_token.map_or(StopReason::Unnamed, StopReason::Token),
            if ends_in_stop_token { LastToken::Stop } else { LastToken::Text },
        ),
        Some(FinishReason::Length) => ("length", StopReason::Unnamed, LastToken::Text),
        Some(FinishReason::Repetition) => {
            ("repetition", StopReason::Text("repetition_detected".to_owned()), LastToken::Text)
        }
        Some(FinishReason::Error) => ("error", StopReason::Unnamed, LastToken::Text),
        Some(FinishReason::Abort) | None => ("abort", StopReason::Unnamed, LastToken::Text),
    };
    Finish { reason, stop_reason, last_token }
}

/// Tokens that no engine made: due one by one at a fixed pace, or all at once.
fn made_up(state: &State, wanted: &Wanted<'_>) -> Chosen {
    let synthetic = state.synthetic();
    let scripts = (0..wanted.choices).map(|choice| made_up_script(state, wanted, synthetic, choice)).collect();
    let by = match synthetic {
        Synthetic::Random => "random",
        Synthetic::Echo => "echo",
    };
    Chosen { scripts, cached: 0, records: Vec::new(), by }
}

fn made_up_script(state: &State, wanted: &Wanted<'_>, synthetic: Synthetic, choice: usize) -> Script {
    let most = match wanted.max_tokens {
        MaxTokens::Asked(most) => most,
        MaxTokens::Left(left) if synthetic == Synthetic::Echo => left,
        MaxTokens::Left(left) => left.min(DEFAULT_RANDOM_TOKENS),
    };
    let (ids, reason) = match synthetic {
        Synthetic::Random => (random_ids(state, wanted, choice, most), "length"),
        Synthetic::Echo => {
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            let once = !(wanted.ignore_eos && matches!(wanted.max_tokens, MaxTokens::Asked(_)));
            if once && wanted.echo.len() <= most {
                (wanted.echo.to_vec(), "stop")
            } else {
                (wanted.echo.iter().copied().cycle().take(most).collect(), "length")
            }
        }
    };
    let (ttft, itl) = match state.config.pacing {
        Pacing::Fixed { ttft, itl } => (ttft, itl),
        Pacing::Recorded { .. } | Pacing::Instant => (Duration::ZERO, Duration::ZERO),
    };
    let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    let due: VecDeque<Due> = (0..count).map(|step| Due { at: ttft + itl * step, tokens: 1 }).collect();
    Script { ids, due, finish: Finish { reason, stop_reason: StopReason::Unnamed, last_token: LastToken::Text } }
}

/// The same server seed, request seed, prompt and choice give the same tokens, whatever else the server does.
fn random_ids(state: &State, wanted: &Wanted<'_>, choice: usize, count: u32) -> Vec<u32> {
    let mut bytes: Vec<u8> = wanted.prompt.iter().flat_map(|id| id.to_le_bytes()).collect();
    bytes.extend_from_slice(&wanted.seed.unwrap_or(-1).to_le_bytes());
    bytes.extend_from_slice(&choice.to_le_bytes());
    let seed = xxh3_64_with_seed(&bytes, state.config.seed);
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    RandomTokens::new(seed, state.tokenizer.ordinary_ids()).take(count).collect()
}
