//! From a request to the script of each of its choices: the recorded one, or a made-up one. One selection per prompt
//! decides content and timing together.

use std::sync::Arc;

use crate::{
    ServerState,
    config::Unmatched,
    generate::{
        choice::{ChoiceFinish, ChoiceScript, ChoiceTokens},
        synthetic::{in_place_of, made_up},
    },
    load::{account::TraceSession, trace::LoadedTrace},
    recorded::{errors, failure::RecordedFailure},
    request::admitted::most_tokens,
    selection::{
        continuation::{self, Continuation},
        miss::MissExplanation,
        query::{PromptQuery, PromptScripts},
    },
};
use api::{ApiError, StopReason};
use recording::trace::{FinishReason, Outcome, Record, RecordRef};
use replay::{
    matching::{MatchBy, MatchQuery, PromptMiss, RecordSelection, WholePrompt},
    timing::Schedule,
};

/// Chooses the scripts of one prompt.
/// Errors: 422 where no record matches and none may be made up.
pub(crate) fn scripts_of(state: &ServerState, wanted: &PromptQuery<'_>) -> Result<PromptScripts, ApiError> {
    let Some(replay) = &state.replay else { return Ok(made_up(state, wanted)) };
    let query = wanted.matched(state);
    let session = wanted.session.unwrap_or(replay.account.default_session());
    let model = if state.takes_any_model(wanted.model) { model_of_prompt(state, session, &query) } else { None };
    let query = MatchQuery { model: model.or(query.model), ..query };
    let error = session.with(|session| {
        let selected = errors::select(replay, &session.consumption, &query, wanted.recorded?);
        selected.inspect(|selected| session.count(selected))
    });
    match error {
        Some(Ok(selection)) => {
            let by = errors::error_match(&selection).to_owned();
            return Ok(PromptScripts { by, ..recorded(state, wanted, selection, None) });
        }
        Some(Err(miss)) => return missed(state, replay, wanted, &miss),
        None => {}
    }
    let continued = session.with(|session| {
        let (selection, continuation) = continuation::find(state, replay, wanted, &query, &session.consumption)?;
        let selection = Ok(selection);
        session.count(&selection);
        Some((selection.ok()?, continuation))
    });
    if let Some((selection, continuation)) = continued {
        return Ok(recorded(state, wanted, selection, Some(continuation)));
    }
    let selected = session.with(|session| {
        let select = |query: &MatchQuery<'_>| replay.matcher.select(&session.consumption, query);
        let by_media = wanted.prompt.media.as_deref().and_then(|hashes| select(&MatchQuery { hashes, ..query }).ok());
        let selected = by_media.map_or_else(|| select(&query), Ok);
        session.count(&selected);
        selected
    });
    match selected {
        Ok(selection) => Ok(recorded(state, wanted, selection, None)),
        Err(miss) => missed(state, replay, wanted, &miss),
    }
}

/// The model of which the whole prompt was recorded, one with a record that was not served yet first.
fn model_of_prompt<'a>(state: &'a ServerState, session: &TraceSession, query: &MatchQuery<'_>) -> Option<&'a str> {
    let replay = state.replay.as_ref()?;
    let found = |model: &&'a str| {
        let query = MatchQuery { model: Some(model), ..*query };
        session.with(|session| replay.matcher.whole_prompt(&session.consumption, &query))
    };
    let recorded: Vec<(&str, WholePrompt)> =
        state.model.names.iter().map(String::as_str).filter_map(|model| Some((model, found(&model)?))).collect();
    let fresh = recorded.iter().find(|(_, found)| found.fresh.is_some());
    fresh.or(recorded.first()).map(|(model, _)| *model)
}

/// Answers a prompt without a record: made-up tokens or an error.
fn missed(
    state: &ServerState,
    replay: &LoadedTrace,
    wanted: &PromptQuery<'_>,
    miss: &PromptMiss,
) -> Result<PromptScripts, ApiError> {
    let explain = || MissExplanation::new(state, replay, wanted, miss);
    let session = wanted.session.unwrap_or(replay.account.default_session());
    match state.config.unmatched {
        Unmatched::Random => {
            session.with(|session| session.keep_miss(|| explain().entry()));
            Ok(made_up(state, wanted))
        }
        Unmatched::Refuse => {
            let explanation = explain();
            tracing::warn!("{}", explanation.message());
            session.with(|session| session.keep_miss(|| explanation.entry()));
            Err(explanation.error(state.config.miss_status, state.config.miss_detail))
        }
    }
}

fn recorded(
    state: &ServerState,
    wanted: &PromptQuery<'_>,
    selection: RecordSelection,
    mut continuation: Option<Continuation>,
) -> PromptScripts {
    let from = continuation.as_ref().map(|continuation| format!(";from={}", continuation.delivered()));
    let by = described(&selection) + &from.unwrap_or_default();
    let mut chosen = PromptScripts { by, ..PromptScripts::default() };
    // A record that was found by its index, or that shares a prefix only, may have had a longer prompt.
    let mut prompt_tokens = u32::try_from(wanted.prompt.ids.len()).unwrap_or(u32::MAX);
    for (choice, index) in selection.records.iter().cycle().take(wanted.choices()).enumerate() {
        let Some(kept) = state.replay.as_ref().and_then(|replay| replay.records.get(*index)) else { continue };
        let mut record = kept.record();
        if wanted.prompt.media.is_some() && kept.has_media() {
            prompt_tokens = record.prompt_tokens;
            chosen.prompt_tokens = Some(prompt_tokens);
        }
        chosen.failure = chosen.failure.or_else(|| RecordedFailure::of(&record, state.pacing()));
        chosen.cached = chosen.cached.max(record.cached_tokens.unwrap_or(0).min(prompt_tokens));
        chosen.failing_event = chosen.failing_event.or_else(|| record.error.take()?.body);
        chosen.scripts.push(script(state, wanted, (kept, record), choice, continuation.take()));
    }
    let first = selection.records.first().filter(|_| wanted.request.logprobs.prompt.is_some());
    let first = first.and_then(|index| state.replay.as_ref()?.records.get(*index));
    chosen.prompt_logprobs = first.and_then(|record| record.prompt_logprobs());
    chosen.records = selection.records;
    chosen
}

/// A selection as the answer's headers name it: `prefix;blocks=12/14`.
fn described(selection: &RecordSelection) -> String {
    let RecordSelection { by, matched_blocks, total_blocks, .. } = selection;
    let mut text = by.name().to_owned();
    if *by == MatchBy::Prefix {
        text.push_str(&format!(";blocks={matched_blocks}/{total_blocks}"));
    }
    if selection.whole {
        text.push_str(";whole");
    }
    if selection.again && *by != MatchBy::Index {
        text.push_str(";again");
    }
    text
}

fn script(
    state: &ServerState,
    wanted: &PromptQuery<'_>,
    (kept, mut record): (RecordRef<'_>, Record),
    choice: usize,
    continuation: Option<Continuation>,
) -> ChoiceScript {
    let ids = record.output_token_ids.take();
    let last = ids.as_ref().and_then(|ids| ids.last().copied());
    let (rest, begun) = continuation.map(|continuation| continuation.apply(&mut record)).unzip();
    let ids = match rest.or(ids) {
        Some(ids) => ChoiceTokens::Known(ids),
        None => {
            let count = usize::try_from(record.output_tokens).unwrap_or(usize::MAX);
            in_place_of(state, wanted, &wanted.prompt.ids, choice, count)
        }
    };
    let most = most_tokens(wanted.prompt.max_tokens);
    let schedule = Schedule::of(&record, state.pacing(), Some(most));
    let finish = finish(&record, last, state.model.tokenizer.eos_ids(), most);
    let sends_logprobs = wanted.request.logprobs.sample.is_some() && last.is_some();
    let logprobs = if sends_logprobs { kept.logprobs().map(Arc::new) } else { None };
    let breaks_off = record.outcome.is_some_and(Outcome::breaks_off);
    ChoiceScript { ids, schedule, finish, logprobs, begun, breaks_off }
}

/// The end of a record for a request of at most `max_tokens`. One whose client left ends with `abort`; one that broke off has none.
fn finish(record: &Record, last: Option<u32>, eos: &[u32], max_tokens: u32) -> ChoiceFinish {
    let ends_in_stop_token = last.is_some_and(|last| eos.contains(&last) || record.stop_token == Some(last));
    let finish_reason = record.finish_reason.or_else(|| missing_reason(record, max_tokens));
    let hides_last_token = ends_in_stop_token && finish_reason == Some(FinishReason::Stop);
    let (reason, stop_reason) = match finish_reason {
        Some(FinishReason::Stop) => ("stop", record.stop_token.map_or(StopReason::Unnamed, StopReason::Token)),
        Some(FinishReason::Length) => ("length", StopReason::Unnamed),
        Some(FinishReason::Repetition) => ("repetition", StopReason::Text("repetition_detected".to_owned())),
        Some(FinishReason::Error) => ("error", StopReason::Unnamed),
        Some(FinishReason::Abort) | None => ("abort", StopReason::Unnamed),
    };
    ChoiceFinish { reason, stop_reason, hides_last_token }
}

/// The reason of a record that does not have one, as public traces may: `length` where the output is as long as was asked
/// for, else `stop`, and `error` where its stream ended in one. `None` where the record is of an answer that was cut short.
pub(crate) fn missing_reason(record: &Record, max_tokens: u32) -> Option<FinishReason> {
    match record.outcome {
        None | Some(Outcome::Finished) if record.output_tokens >= max_tokens => Some(FinishReason::Length),
        None | Some(Outcome::Finished) => Some(FinishReason::Stop),
        Some(Outcome::Error | Outcome::ClientGone | Outcome::UpstreamFailed | Outcome::TimedOut | Outcome::Cut) => None,
    }
}
