//! Explains a prompt without a record: the nearest one, and where the prompts part.
//!
//! Of recorded prompts a trace holds hashes only, so the text around the difference is the request's.

use serde_json::{Value, json};

use crate::{
    ServerState,
    load::{account::TraceSession, advice, trace::LoadedTrace},
    selection::{
        continuation::{self, ContinuationDifference},
        query::PromptQuery,
    },
};
use api::ApiError;
use recording::redaction::Redactor;
use replay::{
    account::DEFAULT_SESSION,
    matching::{MatchBy, MissReason, Nearest, PromptMiss},
    player::MissDetail,
};
use text::prompt::SkipSpecial;

/// Tokens before and after a block that are searched for secrets with it.
const AROUND: usize = 256;
/// Characters of a prompt that are shown.
const LONGEST: usize = 200;

pub(crate) struct MissExplanation {
    reason: &'static str,
    message: String,
    detail: Value,
}

impl MissExplanation {
    pub(crate) fn new(state: &ServerState, replay: &LoadedTrace, wanted: &PromptQuery<'_>, miss: &PromptMiss) -> Self {
        let block = replay.hasher.block_size();
        let is_by_prompt = MatchBy::any_by_prompt(&replay.matcher.rules().order);
        let mut lines = vec![opening(replay, miss)];
        let mut detail = json!({"reason": miss.reason.name(), "trace": replay.name, "session": wanted.session.and_then(TraceSession::name).unwrap_or(DEFAULT_SESSION),
            "blocks": miss.total_blocks, "prompt_tokens": wanted.prompt.ids.len(),
            "match": replay.matcher.rules().order.iter().map(|by| by.name()).collect::<Vec<_>>(),
            "min_match": replay.matcher.rules().least.to_string()});
        let mut put =
            |name: &str, value: Value| detail.as_object_mut().map(|fields| fields.insert(name.to_owned(), value));
        match miss.nearest {
            Some(Nearest { record: at, matched_blocks }) => {
                let record = replay.records.get(at);
                let tokens = record.map_or(0, |record| record.prompt_tokens());
                let first_token = matched_blocks * block;
                lines.push(format!(
                    "Nearest: record {at}, a prompt of {tokens} tokens; it shares {matched_blocks} of the {} blocks of {block} tokens.",
                    miss.total_blocks
                ));
                put("nearest", json!({"record": at, "prompt_tokens": tokens, "matched_blocks": matched_blocks}));
                if miss.reason == MissReason::NoMatch {
                    let text = text_at(state, &wanted.prompt.ids, first_token, block);
                    let shown = text.as_deref().map(|text| format!(": '{text}'")).unwrap_or_default();
                    lines.push(format!("First difference: block {matched_blocks}, from token {first_token}{shown}"));
                    put("first_difference", json!({"block": matched_blocks, "token": first_token, "received": text}));
                }
            }
            None if !is_by_prompt => {}
            None if wanted.prompt.ids.len() < block => {
                lines.push(format!(
                    "It is shorter than a block ({block} tokens): only a record of the same whole prompt matches."
                ));
            }
            None => lines.push("No record shares its first block.".to_owned()),
        }
        let session = wanted.session.unwrap_or(replay.account.default_session());
        let near = session.with(|session| continuation::difference(state, replay, wanted, &session.consumption));
        if let Some(near) = near {
            let [received, recorded] =
                [&near.received, &near.recorded].map(|text| shown_text(state, text, near.characters));
            lines.push(continuation_line(&near, received.as_deref().zip(recorded.as_deref())));
            let (record, characters) = (near.record, near.characters);
            let facts = json!({"record": record, "characters": characters, "received": received, "recorded": recorded});
            put("continuation", facts);
        }
        lines.push(next_step(replay, wanted, miss));
        Self { reason: miss.reason.name(), message: lines.join("\n"), detail }
    }

    /// The explanation of a request that has no recorded response.
    pub(crate) fn of_response(replay: &LoadedTrace, path: &str, reason: MissReason, message: String) -> Self {
        let detail = json!({"reason": reason.name(), "trace": replay.name, "path": path,
            "match": replay.matcher.rules().order.iter().map(|by| by.name()).collect::<Vec<_>>()});
        Self { reason: reason.name(), message, detail }
    }

    /// For the account: message and facts.
    pub(crate) fn entry(&self) -> Value {
        json!({"message": self.message, "vcr": self.detail})
    }

    /// For people.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// For the client, in as much detail as it is to have.
    pub(crate) fn error(self, status: u16, detail: MissDetail) -> ApiError {
        let message = match detail {
            MissDetail::Brief | MissDetail::Full | MissDetail::Summary => self.message,
            MissDetail::None => "No recorded answer matched this request.".to_owned(),
        };
        let error = ApiError::miss(status, self.reason, message);
        let detail = matches!(detail, MissDetail::Brief | MissDetail::Full).then(|| Box::new(self.detail));
        ApiError { detail, ..error }
    }
}

fn opening(replay: &LoadedTrace, miss: &PromptMiss) -> String {
    match miss.reason {
        MissReason::NoMatch => format!("No recorded answer matched this request ({}).", replay.describe()),
        MissReason::Exhausted => {
            format!("Every record that matches this request was served already ({}).", replay.describe())
        }
    }
}

fn next_step(replay: &LoadedTrace, wanted: &PromptQuery<'_>, miss: &PromptMiss) -> String {
    let rules = replay.matcher.rules();
    let by_index = rules.order.contains(&MatchBy::Index);
    let named = replay.matcher.index_of(wanted.request_id).filter(|_| miss.reason == MissReason::NoMatch);
    if let Some((index, record)) = named.and_then(|index| Some((index, replay.records.get(index)?))) {
        return format!("Record {index} is one {}: there is nothing to serve of it.", advice::reason(record));
    }
    match (miss.reason, wanted.request_id) {
        (MissReason::Exhausted, _) => {
            "Serve them again with --on-exhausted last or cycle, or start again with POST /vcr/reset.".to_owned()
        }
        (_, None) if by_index => {
            "Records are found by the number at the end of the request id (--replay-match index), and there is no id."
                .to_owned()
        }
        (_, Some(_)) if by_index => {
            "Its request id ends with no number of a record that can be served (--replay-match index).".to_owned()
        }
        (_, Some(id)) if id.starts_with("replay-") && rules.order.contains(&MatchBy::Auto) => {
            "Its request id names no record that can be served.".to_owned()
        }
        _ => format!("By prefix at least this much has to match: {} (--min-match).", rules.least),
    }
}

/// Characters of an answer that are shown where it differs.
const CONTINUED: usize = 40;

fn continuation_line(near: &ContinuationDifference, texts: Option<(&str, &str)>) -> String {
    let ContinuationDifference { record, characters, .. } = near;
    let texts = texts.map(|(received, recorded)| format!(": '{received}', recorded '{recorded}'"));
    format!(
        "It almost continues the answer of record {record}: the first {characters} characters are the same, then it differs{}",
        texts.unwrap_or_default()
    )
}

/// A text behind so many characters; `None` where a secret is anywhere in it.
fn shown_text(state: &ServerState, text: &str, characters: usize) -> Option<String> {
    let shown = text.chars().skip(characters).take(CONTINUED).collect::<String>();
    Redactor::new(&state.config.secrets).text(text).is_none().then(|| shown.replace('\n', "\\n"))
}

/// The text of one block of a prompt; `None` where a secret is in it or near it.
fn text_at(state: &ServerState, prompt: &[u32], start: usize, block: usize) -> Option<String> {
    let end = (start + block).min(prompt.len());
    let around = prompt.get(start.saturating_sub(AROUND)..(end + AROUND).min(prompt.len()))?;
    let around = state.model.tokenizer.decode(around, SkipSpecial::Keep).ok()?;
    if Redactor::new(&state.config.secrets).text(&around).is_some() {
        return None;
    }
    let text = state.model.tokenizer.decode(prompt.get(start..end)?, SkipSpecial::Keep).ok()?;
    Some(text.chars().take(LONGEST).collect::<String>().replace('\n', "\\n")).filter(|text| !text.is_empty())
}
