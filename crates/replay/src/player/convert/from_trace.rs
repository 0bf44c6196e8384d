//! From a trace to a cassette.

use std::{collections::HashMap, path::Path, time::Duration};

use serde_json::{Map, Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::ANSWER;
use crate::{player::record::assemble, player::record::cassette_sink::is_usual, player::secrets};
use base::units::Millis;
use recording::{
    cassette::{
        AnswerContent, CassetteError, CassetteRecord, CassetteWriter, Header, Moment, RecordTokens, RecordedAnswer,
        RecordedExchange, Sidecar, TransportFault, WriteMode,
    },
    redaction::RedactionRules,
    trace::{self, Endpoint, FinishReason, Meta, Outcome, RecordedErrorResponse, ResponseContent, replay_key},
};
use text::prompt::{SkipSpecial, Tokenizer};

/// A trace as a cassette.
#[derive(Debug, Default)]
pub struct FromTrace {
    /// Records of the cassette.
    pub records: usize,
    /// Those of the trace that it could not be made of, each with its line and why.
    pub refused: Vec<String>,
}

/// Writes a cassette of a trace's records, each with its line, and its sidecar. Nothing is written where a record is
/// refused, unless those are to be left out, and where no record is left.
///
/// # Errors
/// When the cassette cannot be written.
pub fn from_trace(
    (meta, records): (&Meta, Vec<(u64, trace::Record)>),
    rules: &RedactionRules,
    tokenizer: Option<&Tokenizer>,
    (path, skips_refused): (&Path, bool),
) -> Result<FromTrace, CassetteError> {
    let started = meta.started_at.as_deref().and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok());
    let (mut converted, mut done) = (Vec::new(), FromTrace::default());
    for (line, choices) in requests(records) {
        match convert(&choices, started, tokenizer) {
            Ok(whole) => converted.push(whole),
            Err(why) => done.refused.push(format!("line {line}: {why}")),
        }
    }
    if !done.refused.is_empty() && !skips_refused {
        return Ok(done);
    }
    done.records = converted.len();
    if converted.is_empty() {
        return Ok(done);
    }
    let mut writer = CassetteWriter::create(path, &header(meta), WriteMode::Replace)?;
    let mut tokens = Vec::new();
    for (mut recorded, mut known) in converted {
        if secrets::redact(rules, &mut recorded.record, &mut recorded.side).had_any {
            // Ids and hashes spell what was redacted.
            known = RecordTokens::default();
        }
        known.id = writer.add(recorded);
        known.answer = writer.records().last().map(|record| record.answer.fingerprint()).unwrap_or_default();
        tokens.push(known);
    }
    writer.finish()?;
    RecordTokens::write(path, &tokens).map_err(|source| CassetteError::Io { path: path.to_owned(), source })?;
    Ok(done)
}

fn header(meta: &Meta) -> Header {
    let mut recorded = Map::new();
    let by = meta.recorder.clone().unwrap_or_else(|| concat!("vllm-vcr ", env!("CARGO_PKG_VERSION")).to_owned());
    recorded.insert("by".to_owned(), by.into());
    recorded.extend(meta.vllm_version.iter().map(|version| ("engine".to_owned(), format!("vllm {version}").into())));
    recorded.extend(meta.model.iter().map(|model| ("models".to_owned(), json!([model]))));
    recorded.extend(meta.block_size.map(|size| ("block_size".to_owned(), size.into())));
    recorded.extend(meta.block_hash.map(|hash| ("block_hash".to_owned(), json!(hash))));
    Header { recorded, ..Header::default() }
}

/// The records of each request by its arrival, in the order of their choices; with the line of the one that arrived first.
fn requests(mut records: Vec<(u64, trace::Record)>) -> Vec<(u64, Vec<trace::Record>)> {
    records.sort_by_key(|(_, record)| replay_key(record.arrival));
    let (mut requests, mut groups) = (Vec::<(u64, Vec<_>)>::new(), HashMap::new());
    for (line, record) in records {
        let at = match &record.group {
            Some(group) => *groups.entry(group.clone()).or_insert(requests.len()),
            None => requests.len(),
        };
        match requests.get_mut(at) {
            Some((_, choices)) => choices.push(record),
            None => requests.push((line, vec![record])),
        }
    }
    requests.iter_mut().for_each(|(_, choices)| choices.sort_by_key(|record| record.choice));
    requests
}

/// Converts the choices of a request; the error is why they cannot be.
fn convert(
    choices: &[trace::Record],
    started: Option<OffsetDateTime>,
    tokenizer: Option<&Tokenizer>,
) -> Result<(RecordedExchange, RecordTokens), String> {
    let first = choices.first().ok_or("there is no choice")?;
    let body = first.request.clone().ok_or("it holds no request; record with --record-requests")?;
    let path = first.path().ok_or("it has no path")?.to_owned();
    let times = times(first);
    let end = first.e2e.map(|e2e| Millis::from(e2e).rounded()).or(times.last().copied()).unwrap_or_default();
    let (answer, head, data) = answer(first, choices, &path, tokenizer)?;
    let recorded_at = started
        .zip(first.arrival)
        .map(|(start, arrival)| start + arrival + Duration::try_from_secs_f64(end / 1e3).unwrap_or_default());
    let mut side = Sidecar {
        ms: end,
        recorded_at: recorded_at.and_then(|at| at.format(&Rfc3339).ok()),
        head,
        events: data.into(),
        ..Sidecar::default()
    };
    if side.events.is_empty() && first.stream == Some(true) {
        // The role before them, the end of the choice and of the stream after them.
        let role = first.first_event.map_or(times.first().copied().unwrap_or(end), |at| Millis::from(at).rounded());
        let moments = [role].into_iter().chain(times).chain([end, end]);
        side.events = moments.map(|ms| Moment(ms, None, None)).collect();
    }
    let aborted = (first.outcome == Some(Outcome::ClientGone)).then_some(first.chunks.len() as u64);
    let record = CassetteRecord {
        method: "POST".to_owned(),
        path,
        body: body.into(),
        answer,
        aborted,
        ..CassetteRecord::default()
    };
    let known: Vec<Vec<u32>> = choices.iter().filter_map(|record| record.output_token_ids.clone()).collect();
    let output = if known.len() == choices.len() { known } else { Vec::new() };
    let tokens = RecordTokens {
        output,
        hashes: first.block_hashes.to_vec(),
        prompt: first.prompt_hash,
        ..RecordTokens::default()
    };
    Ok((RecordedExchange { record, side, is_retry: false }, tokens))
}

fn times(record: &trace::Record) -> Vec<f64> {
    let sum = |at: &mut Duration, chunk: trace::Chunk| {
        *at += chunk.gap;
        Some(Millis::from(*at).rounded())
    };
    record.emissions().scan(Duration::ZERO, sum).collect()
}

type ConvertedAnswer = (RecordedAnswer, Map<String, Value>, Vec<Moment>);

/// The answer, what no two runs share of it, and its events where the trace has them.
fn answer(
    first: &trace::Record,
    choices: &[trace::Record],
    path: &str,
    tokenizer: Option<&Tokenizer>,
) -> Result<ConvertedAnswer, String> {
    let status = first.status.unwrap_or(200);
    let fault = (first.outcome == Some(Outcome::UpstreamFailed))
        .then_some(TransportFault::reset(first.events.as_ref().map_or(0, Vec::len)));
    let with = |content| RecordedAnswer { status, content, fault, ..RecordedAnswer::default() };
    if let Some(shown) = first.extra.get(ANSWER) {
        let answer =
            RecordedAnswer::from_shown(shown).map_err(|wrong| format!("its `{ANSWER}` cannot be read: {wrong}"))?;
        return Ok((answer, Map::new(), Vec::new()));
    }
    if let Some(response) = &first.response {
        let (assembled, moments) = match &response.content {
            ResponseContent::Events(events) => (assemble::events(path, events), events.clone()),
            ResponseContent::Body(body) => (assemble::body(path, status, body), Vec::new()),
        };
        return Ok((with(assembled.content), assembled.head, moments));
    }
    if let Some(events) = &first.events {
        let moments: Vec<Moment> = spread(&times(first), events);
        let assembled = assemble::events(path, &moments);
        return Ok((with(assembled.content), assembled.head, moments));
    }
    if let Some(RecordedErrorResponse { headers, body: Some(body) }) = first.error.as_ref().filter(|_| status >= 400) {
        let assembled = assemble::body(path, status, body.as_bytes());
        let is_unusual = |(name, value): &(&String, &String)| !is_usual(name, value);
        let headers = headers.iter().filter(is_unusual).map(|(name, value)| (name.clone(), value.clone())).collect();
        return Ok((RecordedAnswer { headers, ..with(assembled.content) }, assembled.head, Vec::new()));
    }
    let name = match Endpoint::of_path(path) {
        Endpoint::Chat => "message",
        Endpoint::Completions => "text",
        _ => {
            return Err(
                "its answer is not recorded; only those of chats and completions can be made of texts".to_owned()
            );
        }
    };
    if status >= 400 {
        return Err(format!("it was answered with status {status}, and the answer is not recorded"));
    }
    let choice = |record: &trace::Record| -> Result<Map<String, Value>, String> {
        let text = text(record, tokenizer)?;
        let value = if name == "text" { json!(text) } else { json!({"role": "assistant", "content": text}) };
        let finish = record.finish_reason.map(FinishReason::name);
        Ok([(name.to_owned(), value), ("finish_reason".to_owned(), json!(finish))].into_iter().collect())
    };
    let completion: u32 = choices.iter().map(|record| record.output_tokens).sum();
    let usage = Some(json!({"prompt_tokens": first.prompt_tokens, "completion_tokens": completion}));
    let choices = choices.iter().map(choice).collect::<Result<_, String>>()?;
    Ok((with(AnswerContent::Choices { choices, usage }), Map::new(), Vec::new()))
}

fn text(record: &trace::Record, tokenizer: Option<&Tokenizer>) -> Result<String, String> {
    match (&record.text, &record.output_token_ids, tokenizer) {
        (Some(text), ..) => Ok(text.concat()),
        (None, Some(ids), Some(tokenizer)) => {
            tokenizer.decode(ids, SkipSpecial::Skip).map_err(|error| error.to_string())
        }
        (None, Some(_), None) => Err("it holds ids and no text; --tokenizer DIR spells them".to_owned()),
        (None, None, _) => Err("it holds no text; record with --record-text or --record-tokens".to_owned()),
    }
}

/// Events at the times of chunks, evenly where there are more or fewer of them.
fn spread(times: &[f64], events: &[String]) -> Vec<Moment> {
    let place = |at: usize| at * times.len().saturating_sub(1) / events.len().saturating_sub(1).max(1);
    let event = |(at, data): (usize, &String)| {
        Moment(times.get(place(at)).copied().unwrap_or_default(), Some(data.clone()), None)
    };
    events.iter().enumerate().map(event).collect()
}
