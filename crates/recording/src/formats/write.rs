//! Writes records in the formats of other tools, and as traces.

use std::{collections::HashMap, env, mem, path::PathBuf, time::Duration};

use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use base::units::Millis;

use super::{
    FormatError, Head, Losses, TraceFormat,
    record::MOST_PROMPT,
    regroup::{Regrouped, regroup},
    sorted::SortedLines,
    write_weka::WekaWriter,
};
use crate::{
    storage::folder_of,
    trace::{CaptureEnd, CreateMode, JsonWriter, Outcome, Record, TraceWriter, is_standard},
};

/// Blocks that have a number of their own in a file of rows; further ones have their hash instead.
const MOST_NUMBERS: usize = 1 << 23;
/// Bits of such a hash: every reader of JSON has so many.
const HASH_BITS: u32 = 53;

/// What is written.
#[derive(Debug, Clone)]
pub struct ConversionTarget {
    /// The file, which must not exist; `-` is standard output.
    pub path: PathBuf,
    /// Its format.
    pub kind: TraceFormat,
    /// Tokens of its blocks; `None` for those of the requests, or for what the format prescribes.
    pub block_size: Option<u32>,
}

/// Takes the hashes of the blocks of each written prompt, for its sharing.
pub(super) type BlockCallback<'a> = &'a mut dyn FnMut(&[u64]);

/// Writer of requests.
pub struct RequestWriter {
    form: Form,
    /// Tokens of a block as they come, and as they are written.
    sizes: (u32, u32),
    kind: TraceFormat,
    count: u64,
    losses: Losses,
}

enum Form {
    Trace(Box<TraceWriter>),
    /// Rows and conversations are written in another order than requests come.
    Sorted(Box<SortedLines>, JsonWriter),
    Dynamo(JsonWriter, Duration),
}

impl RequestWriter {
    /// Creates the file of requests that are read by the options of `head`.
    ///
    /// # Errors
    /// When the format is read only, or the file exists or cannot be written.
    pub fn create(target: &ConversionTarget, head: &Head) -> Result<Self, FormatError> {
        let ConversionTarget { path, kind, block_size } = target;
        let from = head.block_size();
        let to = match kind {
            TraceFormat::Trace | TraceFormat::Dynamo => block_size.unwrap_or(from),
            other => block_size.unwrap_or_else(|| other.usual_block_size()),
        };
        let form = match kind {
            TraceFormat::Trace => {
                let mut meta = head.meta.clone();
                meta.block_size = Some(to);
                Form::Trace(Box::new(TraceWriter::create(path, &meta, CreateMode::New)?))
            }
            TraceFormat::Mooncake | TraceFormat::Weka => {
                let folder = if is_standard(path) { env::temp_dir() } else { folder_of(path).to_owned() };
                Form::Sorted(Box::new(SortedLines::in_folder(&folder)), JsonWriter::create(path)?)
            }
            TraceFormat::Dynamo => Form::Dynamo(JsonWriter::create(path)?, began(head)),
            other => return Err(FormatError::NotWritten { kind: *other }),
        };
        Ok(Self { form, sizes: (from, to), kind: *kind, count: 0, losses: Losses::default() })
    }

    /// Tokens of the blocks that are written.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.sizes.1
    }

    /// Adds a request. Further choices of a request before it are only kept in traces.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn push(&mut self, mut record: Record, seen: &mut dyn FnMut(&[u64])) -> Result<(), FormatError> {
        let is_further = record.group.is_some() && record.choice.is_some_and(|choice| choice > 0);
        if is_further && self.kind != TraceFormat::Trace {
            self.losses.add("further choices of a request", 1);
            return Ok(());
        }
        if record.prompt_tokens > MOST_PROMPT && self.kind != TraceFormat::Trace {
            self.losses.add("requests of more prompt tokens than any prompt has", 1);
            return Ok(());
        }
        self.count += 1;
        let (number, (from, to)) = (self.count, self.sizes);
        if self.kind != TraceFormat::Trace {
            self.leave_out(&mut record);
        }
        match &mut self.form {
            Form::Trace(writer) => {
                if from != to {
                    let made = regroup(&record, from, to, false, number);
                    record.block_hashes = made.blocks.into();
                }
                seen(&record.block_hashes);
                let mended = writer.append(&record)?;
                self.losses
                    .add("fields that no trace may have so (`inspect check` names their rules)", mended.len() as u64);
            }
            Form::Sorted(sorted, _) if self.kind == TraceFormat::Weka => {
                sorted.push(WekaWriter::key(&record, number), &record)?;
            }
            Form::Sorted(sorted, _) => {
                let at = record.arrival.map_or(u64::MAX, |at| u64::try_from(at.as_nanos()).unwrap_or(u64::MAX));
                sorted.push((at, 0), &record)?;
            }
            Form::Dynamo(writer, zero) => {
                let made = regroup(&record, from, to, true, number);
                seen(&made.blocks);
                lose_unknown(&mut self.losses, &made);
                let fraction = zero.saturating_add(record.arrival.unwrap_or_default()).subsec_nanos() % 1_000_000;
                self.losses.add("parts of a millisecond of arrivals", u64::from(fraction > 0));
                writer.append(event(&record, (number, *zero), &made.blocks, to).to_string().as_bytes())?;
            }
        }
        Ok(())
    }

    /// Ends the file; returns what was left out.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn finish(self, seen: &mut dyn FnMut(&[u64])) -> Result<Losses, FormatError> {
        let Self { form, sizes, kind, mut losses, .. } = self;
        match form {
            Form::Trace(writer) => writer.finish(CaptureEnd::default())?,
            Form::Dynamo(mut writer, _) => writer.flush()?,
            Form::Sorted(sorted, mut writer) if kind == TraceFormat::Weka => {
                let mut conversations = WekaWriter::new(sizes);
                sorted.drain(&mut |record| conversations.push(&record, &mut writer, seen))?;
                conversations.end(&mut writer)?;
                losses.join(&conversations.losses);
                writer.flush()?;
            }
            Form::Sorted(sorted, mut writer) => {
                let mut rows = RowWriter::default();
                sorted.drain(&mut |record| {
                    let row = rows.row(&record, sizes, seen, &mut losses);
                    Ok(writer.append(row.to_string().as_bytes())?)
                })?;
                writer.flush()?;
            }
        }
        Ok(losses)
    }

    /// Takes out what only a trace has a place for.
    fn leave_out(&mut self, record: &mut Record) {
        let has_kinds = self.kind == TraceFormat::Weka;
        let mut lost = |what: &str, is_there: bool| self.losses.add(what, u64::from(is_there));
        lost("request bodies", record.request.take().is_some());
        let text = (record.text.take(), record.events.take(), record.response.take(), record.output_token_ids.take());
        lost("answers", text.0.is_some() || text.1.is_some() || text.2.is_some() || text.3.is_some());
        lost("log probabilities", record.logprobs.take().is_some() | record.prompt_logprobs.take().is_some());
        lost("times of single tokens", record.chunks.len() > 2);
        lost("parameters", !mem::take(&mut record.params).is_empty());
        lost("images, sounds and videos", !record.mm_hashes.is_empty());
        record.mm_hashes = Default::default();
        let is_finished = record.outcome.is_none_or(|outcome| outcome == Outcome::Finished);
        lost("outcomes and errors", record.error.take().is_some() || record.is_error() || !is_finished);
        lost("responses that were no stream", record.stream == Some(false) && !has_kinds);
        lost("endpoints", record.endpoint.is_some());
        // The end is kept, and so is the first token.
        record.e2e = record.e2e.or_else(|| ended(record));
        if record.itl_summary.take().is_some() || record.chunks.len() > 1 {
            record.chunks.truncate(1);
            for chunk in &mut record.chunks {
                (chunk.tokens, chunk.step) = (record.output_tokens, None);
            }
            record.extra.insert(HAS_TTFT.to_owned(), json!(true));
        }
    }
}

/// Marks a record whose first token came before the last one.
const HAS_TTFT: &str = "has_ttft";

/// Time from the request to its last token; `None` where it has no times.
fn ended(record: &Record) -> Option<Duration> {
    let sum = record.emissions().fold(Duration::ZERO, |sum, chunk| sum.saturating_add(chunk.gap));
    Some(sum).filter(|sum| !sum.is_zero())
}

/// Time to the first token, where it is known apart from the last one.
pub(super) fn ttft(record: &Record) -> Option<Duration> {
    record.ttft().filter(|ttft| record.extra.contains_key(HAS_TTFT) && !ttft.is_zero())
}

pub(super) fn lose_unknown(losses: &mut Losses, made: &Regrouped) {
    losses.add("blocks of which the hash is not known; they share with none", made.unknown);
}

/// A number with as few digits as it needs.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
pub(super) fn number(value: f64) -> Value {
    if value.fract() == 0.0 && (0.0..9e15).contains(&value) { json!(value as u64) } else { json!(value) }
}

#[derive(Default)]
struct RowWriter {
    zero: Option<Duration>,
    numbers: HashMap<u64, u32>,
    count: u64,
}

impl RowWriter {
    fn row(&mut self, record: &Record, (from, to): (u32, u32), seen: BlockCallback, losses: &mut Losses) -> Value {
        self.count += 1;
        let made = regroup(record, from, to, true, self.count);
        seen(&made.blocks);
        lose_unknown(losses, &made);
        let ids: Vec<u64> = made.blocks.iter().map(|block| self.number_of(*block)).collect();
        let zero = *self.zero.get_or_insert_with(|| {
            let first = record.arrival.unwrap_or_default();
            losses.add("time before the first request, which the rows begin with", u64::from(!first.is_zero()));
            first
        });
        let mut row = json!({
            "timestamp": number(Millis::from(record.arrival.unwrap_or_default().saturating_sub(zero)).0),
            "input_length": record.prompt_tokens,
            "output_length": record.output_tokens,
            "hash_ids": ids,
        });
        losses.add("arrivals that are not known: 0", u64::from(record.arrival.is_none()));
        losses.add("durations", u64::from(record.e2e.is_some()));
        losses.add("pauses before a turn", u64::from(record.think().is_some()));
        losses.add("names of models", u64::from(record.model.is_some()));
        losses.add("names of sub-agents", u64::from(record.agent().is_some()));
        losses.add("cached tokens", u64::from(record.cached_tokens.is_some()));
        losses.add("ids of requests", u64::from(record.request_id.is_some()));
        if let (Some(session), Some(row)) = (&record.session, row.as_object_mut()) {
            row.insert("session_id".to_owned(), json!(session));
        }
        row
    }

    /// Numbers are counted from 0 in the order of their first use.
    fn number_of(&mut self, block: u64) -> u64 {
        let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        if let Some(known) = self.numbers.get(&block) {
            return u64::from(*known);
        }
        if self.numbers.len() < MOST_NUMBERS {
            self.numbers.insert(block, next);
            return u64::from(next);
        }
        // The highest bit keeps them apart from the numbers.
        (block >> (64 - HASH_BITS)) | 1 << (HASH_BITS - 1)
    }
}

/// The time of a trace's zero, from the Unix epoch; zero where it is not known.
fn began(head: &Head) -> Duration {
    let started = head.meta.started_at.as_deref().and_then(|at| OffsetDateTime::parse(at, &Rfc3339).ok());
    started.and_then(|at| Duration::try_from(at - OffsetDateTime::UNIX_EPOCH).ok()).unwrap_or_default()
}

/// A `request_end` of Dynamo's request trace.
fn event(record: &Record, (count, zero): (u64, Duration), blocks: &[u64], block_size: u32) -> Value {
    let received = zero.saturating_add(record.arrival.unwrap_or_default());
    let ended = received.saturating_add(record.e2e.unwrap_or_default());
    let whole = |at: Duration| u64::try_from((at + Duration::from_micros(500)).as_millis()).unwrap_or(u64::MAX);
    let mut request = json!({
        "request_id": record.request_id.clone().unwrap_or_else(|| format!("request-{count}")),
        "input_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "request_received_ms": whole(received),
        "replay": {"trace_block_size": block_size, "input_length": record.prompt_tokens, "input_sequence_hashes": blocks},
    });
    let ms = |at: Duration| number(Millis::from(at).0);
    let optional = [
        ("model", record.model.as_ref().map(|model| json!(model))),
        ("cached_tokens", record.cached_tokens.map(|cached| json!(cached))),
        ("ttft_ms", ttft(record).map(ms)),
        ("total_time_ms", record.e2e.map(ms)),
        ("finish_reason_metadata", record.finish_reason.map(|reason| json!({"finish_reason": reason.name()}))),
    ];
    if let Some(request) = request.as_object_mut() {
        request.extend(optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    }
    let mut event = json!({
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_end",
        "event_time_unix_ms": whole(ended),
        "event_source": "dynamo",
        "request": request,
    });
    let context = match (&record.session, record.agent()) {
        (Some(session), Some(agent)) => {
            Some(json!({"session_id": format!("{session}/{agent}"), "parent_session_id": session}))
        }
        (Some(session), None) => Some(json!({"session_id": session})),
        (None, _) => None,
    };
    if let (Some(context), Some(event)) = (context, event.as_object_mut()) {
        event.insert("agent_context".to_owned(), context);
    }
    json!({"timestamp": whole(ended), "event": event})
}
