//! From a cassette to a trace.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Map, Value};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::ANSWER;
use crate::player::{
    answer::{content::time, generated::on_the_wire},
    record::recorder::route_of,
};
use api::{
    answers::{ChoiceView, added_text, added_text_without_names},
    template_kwargs,
};
use recording::{
    canonical,
    cassette::{AnswerContent, Cassette, CassetteRecord, Moment, RecordTokens, RecordedAnswer},
    trace::{self, Chunk, Endpoint, FinishReason, Meta, Outcome, RecordedErrorResponse, TokenizerId},
};
use text::prompt::{BlockHashAlgorithm, BlockHasher, PromptHashes, SpecialTokens, Tokenizer};

/// Prompt tokens of a block, by default.
const BLOCK_SIZE: u32 = 16;

/// A cassette as a trace.
#[derive(Debug, Default)]
pub struct ToTrace {
    /// The trace's first line.
    pub meta: Meta,
    /// Its records.
    pub records: Vec<trace::Record>,
    /// The place in the cassette of what each of them was made of.
    pub origins: Vec<usize>,
    /// Records of the cassette that a trace cannot hold, each with its line and why.
    pub refused: Vec<String>,
}

/// Outcome of a record without token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// It is refused: a trace that is kept has the number of tokens.
    Needed,
    /// Its prompt has 0 tokens, and its output as many as events with text. Texts are those that a tap records, for a comparison:
    /// of calls the arguments only.
    WhereKnown,
}

/// Makes a trace of a cassette and what is known of its tokens; with a tokenizer, prompts are counted and hashed, and answers
/// that are plain text have ids.
#[must_use]
pub fn to_trace(
    cassette: &Cassette,
    tokens: &BTreeMap<u64, RecordTokens>,
    tokenizer: Option<&Tokenizer>,
    counts: Counts,
) -> ToTrace {
    let mut made = ToTrace { meta: meta(cassette, tokenizer), ..ToTrace::default() };
    let hasher = BlockHasher::new(
        made.meta.block_hash.unwrap_or(BlockHashAlgorithm::Xxh3_64),
        made.meta.block_size.unwrap_or(BLOCK_SIZE),
    );
    let arrivals = arrivals(&cassette.records);
    for (at, (record, arrival)) in cassette.records.iter().zip(arrivals).enumerate() {
        let known = tokens.get(&record.id).filter(|known| known.answer == record.answer.fingerprint());
        let conversion = Conversion { record, known, tokenizer, hasher: &hasher, counts };
        match conversion.records(arrival) {
            Ok(records) => {
                made.origins.extend(records.iter().map(|_| at));
                made.records.extend(records);
            }
            Err(why) => made.refused.push(format!("{}:{}: {why}", cassette.path.display(), record.line)),
        }
    }
    made
}

fn meta(cassette: &Cassette, tokenizer: Option<&Tokenizer>) -> Meta {
    let server = &cassette.header.recorded;
    let text = |name: &str| server.get(name).and_then(Value::as_str).map(str::to_owned);
    let models = server.get("models").and_then(Value::as_array);
    let size = server.get("block_size").and_then(Value::as_u64).and_then(|size| u32::try_from(size).ok());
    let hash = server.get("block_hash").and_then(|hash| serde_json::from_value(hash.clone()).ok());
    Meta {
        format: Some(trace::FORMAT),
        model: models.and_then(|models| models.first()?.as_str()).map(str::to_owned),
        block_size: Some(size.unwrap_or(BLOCK_SIZE)),
        block_hash: Some(hash.unwrap_or(BlockHashAlgorithm::Xxh3_64)),
        tokenizer: tokenizer.map(|tokenizer| TokenizerId {
            name: tokenizer.name().to_owned(),
            fingerprint: tokenizer.fingerprint().to_owned(),
        }),
        vllm_version: text("engine").and_then(|engine| engine.strip_prefix("vllm ").map(str::to_owned)),
        recorder: text("by"),
        started_at: cassette.records.iter().find_map(began).and_then(|at| at.format(&Rfc3339).ok()),
        timing_zero: Some("http".to_owned()),
        ..Meta::default()
    }
}

fn began(record: &CassetteRecord) -> Option<OffsetDateTime> {
    let side = record.side.as_ref()?;
    let end = OffsetDateTime::parse(side.recorded_at.as_deref()?, &Rfc3339).ok()?;
    Some(end - Duration::try_from_secs_f64(side.ms / 1e3).ok()?)
}

/// Times from the first request's arrival; one after the other where they were not recorded.
fn arrivals(records: &[CassetteRecord]) -> Vec<Duration> {
    let zero = records.iter().find_map(began);
    let mut end = Duration::ZERO;
    let arrival = |record: &CassetteRecord| {
        let known = began(record).zip(zero).and_then(|(at, zero)| Duration::try_from(at - zero).ok());
        let arrival = known.unwrap_or(end);
        end = arrival + record.side.as_ref().map_or(Duration::ZERO, |side| time(side.ms));
        arrival
    };
    records.iter().map(arrival).collect()
}

/// One record on its way.
struct Conversion<'a> {
    record: &'a CassetteRecord,
    known: Option<&'a RecordTokens>,
    tokenizer: Option<&'a Tokenizer>,
    hasher: &'a BlockHasher,
    counts: Counts,
}

impl Conversion<'_> {
    fn records(&self, arrival: Duration) -> Result<Vec<trace::Record>, String> {
        let record = self.record;
        if record.is_fixture {
            return Err("a hand-written record (`match`) has no request of its own, which a trace needs".to_owned());
        }
        if record.method != "POST" {
            return Err(format!("a trace holds posted requests, not {} {}", record.method, record.path));
        }
        if record.raw.is_some() {
            return Err("its request is neither JSON nor text".to_owned());
        }
        let endpoint = Endpoint::of_path(route_of(&record.path));
        let base = self.base(endpoint, arrival)?;
        let total = usage(&record.answer.content, &["completion_tokens", "output_tokens"]);
        let AnswerContent::Choices { choices, .. } = &record.answer.content else {
            let finish_reason = end_of(&record.answer.content).filter(|_| self.counts == Counts::WhereKnown);
            return Ok(vec![self.with_tokens(trace::Record { finish_reason, ..base }, 0, total, None)?]);
        };
        let many = choices.len();
        let share = |at: usize| {
            let (total, many) = (total?, u32::try_from(many).ok()?.max(1));
            Some(total / many + u32::from(u32::try_from(at).ok()? < total % many))
        };
        let one = |(at, choice): (usize, &Map<String, Value>)| {
            let finish = choice.get("finish_reason").and_then(Value::as_str);
            let mut base = trace::Record { finish_reason: finish.and_then(FinishReason::of_api), ..base.clone() };
            if many > 1 {
                base.group = Some(format!("record-{}", record.id));
                base.choice = u32::try_from(at).ok();
            }
            self.with_tokens(base, at, share(at), Some(choice))
        };
        choices.iter().enumerate().map(one).collect()
    }

    fn base(&self, endpoint: Endpoint, arrival: Duration) -> Result<trace::Record, String> {
        let record = self.record;
        let (answer, body) = (&record.answer, record.body.value());
        let prompt = body.as_object().and_then(|body| self.prompt_ids(body, endpoint));
        let hashes = match (self.known, &prompt) {
            (Some(known), _) if !known.hashes.is_empty() || known.prompt.is_some() => {
                PromptHashes { blocks: known.hashes.clone(), whole: known.prompt }
            }
            (_, Some(ids)) => self.hasher.hash(ids),
            (_, None) => PromptHashes::default(),
        };
        let counted = usage(&answer.content, &["prompt_tokens", "input_tokens"]);
        let counted = counted.or(prompt.as_ref().and_then(|ids| u32::try_from(ids.len()).ok()));
        if counted.is_none() && self.needs_counts(endpoint) {
            return Err("it has no token counts (`usage`); --tokenizer DIR counts the prompt".to_owned());
        }
        let e2e = record.side.as_ref().map_or(Duration::ZERO, |side| time(side.ms));
        let mut extra = Map::new();
        extra.insert(ANSWER.to_owned(), answer.shown());
        if endpoint == Endpoint::Other {
            extra.insert("path".to_owned(), record.path.clone().into());
        }
        let error = (answer.status >= 400).then(|| error(answer));
        let key = canonical::request_key(&record.path, body.to_string().as_bytes());
        let is_found_by_it = error.is_some() && hashes.whole.is_none();
        Ok(trace::Record {
            request_key: is_found_by_it.then(|| self.hasher.request_key(key.number())).flatten(),
            error,
            prompt_tokens: counted.unwrap_or(0),
            arrival: Some(arrival),
            block_hashes: hashes.blocks.into(),
            prompt_hash: hashes.whole,
            endpoint: Some(endpoint),
            model: record.body.get("model").and_then(Value::as_str).map(str::to_owned),
            stream: Some(record.streams()),
            status: Some(answer.status),
            outcome: Some(match (record.aborted, answer.fault) {
                (Some(_), _) => Outcome::ClientGone,
                (None, Some(_)) => Outcome::UpstreamFailed,
                (None, None) if answer.status >= 400 => Outcome::Error,
                (None, None) => Outcome::Finished,
            }),
            e2e: Some(e2e),
            request: Some(body),
            extra,
            ..trace::Record::default()
        })
    }

    fn needs_counts(&self, endpoint: Endpoint) -> bool {
        self.counts == Counts::Needed && self.generates(endpoint)
    }

    fn generates(&self, endpoint: Endpoint) -> bool {
        endpoint.generates() && self.record.answer.status < 400
    }

    /// A choice with its chunks; `output` is how many tokens it has, where that is known.
    fn with_tokens(
        &self,
        mut base: trace::Record,
        index: usize,
        output: Option<u32>,
        choice: Option<&Map<String, Value>>,
    ) -> Result<trace::Record, String> {
        let generates = base.endpoint.is_some_and(|endpoint| self.generates(endpoint));
        let ids = self.known.and_then(|known| known.output.get(index)).cloned();
        let ids =
            ids.or_else(|| self.tokenizer?.encode(&ChoiceView::read(choice?).plain_text()?, SpecialTokens::Skip).ok());
        let counted = ids.as_ref().and_then(|ids| u32::try_from(ids.len()).ok());
        if counted.or(output).is_none() && base.endpoint.is_some_and(|endpoint| self.needs_counts(endpoint)) {
            return Err("it has no token counts (`usage`)".to_owned());
        }
        let pieces = self.pieces(index, choice);
        let events = || {
            let with_text = pieces.iter().filter(|(_, text)| generates && !text.is_empty());
            u32::try_from(with_text.count()).unwrap_or(u32::MAX)
        };
        let output = counted.or(output).unwrap_or_else(events);
        base.output_tokens = output;
        base.output_token_ids = ids.filter(|ids| !ids.is_empty());
        base.ttft_without_tokens = base.e2e.unwrap_or_default();
        base.first_event = pieces.first().map(|(at, _)| *at);
        let (chunks, text) = chunks(&pieces, output);
        // Where nothing is known of the text there is nothing to compare with.
        let is_known = self.counts == Counts::Needed || text.iter().any(|text| !text.is_empty());
        (base.chunks, base.text) = (chunks, Some(text).filter(|_| generates && output > 0 && is_known));
        Ok(base)
    }

    /// The text of a choice in pieces, each with its time; all of it at the end where it was no stream.
    fn pieces(&self, index: usize, choice: Option<&Map<String, Value>>) -> Vec<(Duration, String)> {
        let side = self.record.side.as_ref();
        let events = side.filter(|_| self.record.is_as_recorded()).map(|side| &*side.events).unwrap_or_default();
        let added: fn(&Value, usize) -> Option<String> = match self.counts {
            Counts::Needed => added_text,
            Counts::WhereKnown => added_text_without_names,
        };
        let piece = |Moment(ms, data, _): &Moment| {
            Some((time(*ms), added(&serde_json::from_str(data.as_deref()?).ok()?, index)?))
        };
        let pieces: Vec<(Duration, String)> = events.iter().filter_map(piece).collect();
        if !pieces.is_empty() {
            return pieces;
        }
        let text = |choice: &Map<String, Value>| match self.counts {
            Counts::Needed => ChoiceView::read(choice).plain_text(),
            Counts::WhereKnown => Some(ChoiceView::read(&on_the_wire(choice)).text_without_names()),
        };
        let whole = choice.and_then(text).unwrap_or_default();
        let times: Vec<f64> = side.into_iter().flat_map(|side| &side.events).map(|Moment(ms, ..)| *ms).collect();
        // The role before them, the end of the choice and of the stream after them.
        match times.get(1..times.len().saturating_sub(2)).filter(|times| !times.is_empty()) {
            None => vec![(side.map_or(Duration::ZERO, |side| time(side.ms)), whole)],
            Some(times) => {
                let chars: Vec<char> = whole.chars().collect();
                let size = chars.len().div_ceil(times.len()).max(1);
                let mut texts = chars.chunks(size).map(|some| some.iter().collect::<String>());
                times.iter().map(|ms| (time(*ms), texts.next().unwrap_or_default())).collect()
            }
        }
    }

    fn prompt_ids(&self, body: &Map<String, Value>, endpoint: Endpoint) -> Option<Vec<u32>> {
        let tokenizer = self.tokenizer?;
        match endpoint {
            Endpoint::Completions => tokenizer.ids_of_completion(body.get("prompt")?),
            Endpoint::Chat => tokenizer.ids_of_chat(body, &template_kwargs(body)),
            Endpoint::Responses | Endpoint::Messages | Endpoint::Embeddings | Endpoint::Other => None,
        }
    }
}

/// Why a response or a message ended.
fn end_of(content: &AnswerContent) -> Option<FinishReason> {
    let AnswerContent::Json(value) = content else { return None };
    let reason = value.get("stop_reason").or_else(|| value.get("status"))?;
    FinishReason::of_api(reason.as_str()?)
}

/// An error as its client got it, as far as it is text.
fn error(answer: &RecordedAnswer) -> RecordedErrorResponse {
    let body = match &answer.content {
        AnswerContent::Json(value) => Some(value.to_string()),
        AnswerContent::Text(text) => Some(text.clone()),
        _ => None,
    };
    let has_type = answer.headers.iter().any(|(name, _)| name == "content-type");
    let json = matches!(answer.content, AnswerContent::Json(_)) && !has_type;
    let usual = json.then(|| ("content-type".to_owned(), "application/json".to_owned()));
    RecordedErrorResponse { headers: answer.headers.iter().cloned().chain(usual).collect(), body }
}

/// Makes as many chunks as there are pieces, or tokens where those are fewer, with the tokens spread over them.
fn chunks(pieces: &[(Duration, String)], tokens: u32) -> (Vec<Chunk>, Vec<String>) {
    let most = usize::try_from(tokens).unwrap_or(usize::MAX).min(pieces.len());
    let Some(count) = u32::try_from(most).ok().filter(|count| *count > 0) else { return (Vec::new(), Vec::new()) };
    let (mut chunks, mut texts, mut last) = (Vec::new(), Vec::new(), Duration::ZERO);
    for at in 0..most {
        // Pieces at..next make one chunk, which comes when the first of them does.
        let (from, next) = (at * pieces.len() / most, (at + 1) * pieces.len() / most);
        let some = pieces.get(from..next).unwrap_or_default();
        let time = some.first().map_or(last, |(time, _)| *time).max(last);
        let rest = if at == 0 { tokens % count } else { 0 };
        chunks.push(Chunk { gap: time - last, tokens: tokens / count + rest, step: None });
        texts.push(some.iter().map(|(_, text)| text.as_str()).collect());
        last = time;
    }
    (chunks, texts)
}

fn usage(content: &AnswerContent, names: &[&str]) -> Option<u32> {
    let usage = match content {
        AnswerContent::Choices { usage, .. } => usage.as_ref()?,
        AnswerContent::Json(value) => value.get("usage")?,
        _ => return None,
    };
    names.iter().find_map(|name| usage.get(*name)?.as_u64()).and_then(|count| u32::try_from(count).ok())
}
