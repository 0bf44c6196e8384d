//! No record is written that the reader would refuse: it is mended first.
//!
//! The rules are the reader's own, asked of the very line that is to be written. What breaks one is left out, and what is
//! certain stays: counts before times, times before content. The key `repaired` names the fields.
//!
//! See docs/decisions/0010-one-bad-record-does-not-cost-a-trace.md.

use std::{io, time::Duration};

use super::{
    Chunk, Record,
    error::Defect,
    raw::{self, KEYS, Part, SpelledRecord},
    rules::{MOST_TOKENS, OTHER_TIMES, PREEMPTIONS},
    source::LONGEST_LINE,
};

/// The key of a record that was mended.
const REPAIRED: &str = "repaired";
/// More rounds than there are things to leave out.
const ROUNDS: usize = 24;

/// Spells `record` as a line without its end, mended where the reader would refuse it; with `prompt_of` in place of its prompt's hashes. The defects that were mended come
/// back, none for a sound record.
pub(super) fn spell(record: &Record, prompt_of: Option<u32>, line: &mut Vec<u8>) -> io::Result<Vec<String>> {
    let mut defects = attempt(record, prompt_of, line)?;
    if defects.is_empty() {
        return Ok(Vec::new());
    }
    let (mut mended, mut all) = (record.clone(), Vec::new());
    if drop_ambiguous(&mut mended) {
        all = defects;
        defects = attempt(&mended, None, line)?;
    }
    for _ in 0..ROUNDS {
        defects.iter().for_each(|defect| mend(&mut mended, defect.field));
        all.append(&mut defects);
        mended.extra.insert(REPAIRED.to_owned(), fields(&all).into());
        defects = attempt(&mended, None, line)?;
        if defects.is_empty() {
            return Ok(all.iter().map(Defect::to_string).collect());
        }
    }
    let what = defects.first().map(Defect::to_string).unwrap_or_default();
    Err(io::Error::other(format!("a record cannot be written so that it can be read: {what}")))
}

/// Spells a record as a line without its end, by itself, for a file that only this program reads again; what the reader would refuse is left out.
pub(crate) fn to_line(record: &Record, line: &mut Vec<u8>) -> io::Result<()> {
    spell(record, None, line).map(drop)
}

/// Reads a line that [`to_line`] spelled; `None` for any that is no record.
pub(crate) fn of_line(line: &[u8]) -> Option<Record> {
    raw::parse(line).ok()?.into_record().ok()
}

fn fields(defects: &[Defect]) -> Vec<&'static str> {
    let mut fields: Vec<_> = defects.iter().map(|defect| defect.field.unwrap_or("content")).collect();
    fields.sort_unstable();
    fields.dedup();
    fields
}

/// Leaves out further keys that mean something: they would be read as what they are not, or twice.
fn drop_ambiguous(record: &mut Record) -> bool {
    let before = record.extra.len();
    record.extra.retain(|key, _| key != REPAIRED && !KEYS.contains(&key.as_str()));
    record.extra.len() < before
}

/// Spells a record; what the reader would find wrong with it.
fn attempt(record: &Record, prompt_of: Option<u32>, line: &mut Vec<u8>) -> io::Result<Vec<Defect>> {
    line.clear();
    // A sound response breaks no rule, and to read it again would be most of the work.
    let Some(response) = record.response.as_deref().filter(|response| response.is_sound()) else {
        serde_json::to_writer(&mut *line, &SpelledRecord { record, prompt_of, part: Part::Whole })?;
        return Ok(broken_rules(line));
    };
    serde_json::to_writer(&mut *line, &SpelledRecord { record, prompt_of, part: Part::BeforeResponse })?;
    line.pop();
    let before = line.len();
    let rest = serde_json::to_vec(&SpelledRecord { record, prompt_of, part: Part::AfterResponse })?;
    let rest = [if rest.len() > 2 { &b","[..] } else { b"" }, rest.get(1..).unwrap_or_default()].concat();
    line.extend_from_slice(&rest);
    let defects = broken_rules(line);
    if !defects.is_empty() {
        return Ok(defects);
    }
    line.truncate(before);
    line.extend_from_slice(b",\"response\":");
    serde_json::to_writer(&mut *line, response)?;
    line.extend_from_slice(&rest);
    Ok(too_long(line).into_iter().collect())
}

fn broken_rules(line: &[u8]) -> Vec<Defect> {
    let read = || raw::parse(line).map_or_else(|defects| defects, |raw| raw.broken_rules());
    too_long(line).map_or_else(read, |defect| vec![defect])
}

fn too_long(line: &[u8]) -> Option<Defect> {
    (line.len() as u64 + 1 >= LONGEST_LINE).then(|| Defect::line("is longer than any reader takes"))
}

fn mend(record: &mut Record, field: Option<&'static str>) {
    match field {
        Some(
            "itl_ms" | "itl_tokens" | "itl_summary" | "itl_ctx" | "itl_ctx.num_running" | "itl_ctx.prefill_tokens",
        ) => {
            drop_gaps(record);
        }
        Some("output_tokens") => correct_output(record),
        Some("output_token_ids") => record.output_token_ids = None,
        Some("logprobs") => record.logprobs = None,
        Some("prompt_logprobs") => record.prompt_logprobs = None,
        Some("cached_tokens") => record.cached_tokens = None,
        Some("ttft_ms") => {
            record.ttft_without_tokens = Duration::ZERO;
            record.chunks.first_mut().into_iter().for_each(|first| first.gap = Duration::ZERO);
        }
        Some("arrival_ms") => record.arrival = None,
        Some("e2e_ms") => record.e2e = None,
        Some("first_event_ms") => record.first_event = None,
        Some(other) if other == PREEMPTIONS || OTHER_TIMES.contains(&other) => drop(record.extra.shift_remove(other)),
        Some(_) | None => drop_content(record),
    }
}

/// All tokens at the time of the first: when the others came is not known.
fn drop_gaps(record: &mut Record) {
    let first = record.ttft().unwrap_or(record.ttft_without_tokens);
    record.ttft_without_tokens = first;
    record.chunks = match record.output_tokens {
        0 => Vec::new(),
        tokens => vec![Chunk { gap: first, tokens, step: None }],
    };
    record.itl_summary = None;
    if let Some(text) = &mut record.text {
        *text = vec![text.concat()];
    }
}

/// A count that no engine gives is not believed; the chunks may have another one.
fn correct_output(record: &mut Record) {
    let seen = record.chunks.iter().try_fold(0_u32, |sum, chunk| sum.checked_add(chunk.tokens));
    record.output_tokens = seen.filter(|seen| *seen <= MOST_TOKENS).unwrap_or(0);
    record.output_token_ids = None;
}

/// Leaves out the next thing that can make a line too long or too deep.
fn drop_content(record: &mut Record) {
    if record.events.take().is_some() || record.request.take().is_some() || record.text.take().is_some() {
        return;
    }
    if record.logprobs.take().is_some() || record.prompt_logprobs.take().is_some() {
        return;
    }
    if record.extra.keys().any(|key| key != REPAIRED) {
        record.extra.clear();
    } else if !record.params.is_empty() {
        record.params.clear();
    } else {
        drop_the_rest(record);
    }
}

/// Leaves counts and what happened.
fn drop_the_rest(record: &mut Record) {
    *record = Record {
        prompt_tokens: record.prompt_tokens,
        output_tokens: record.output_tokens.min(MOST_TOKENS),
        finish_reason: record.finish_reason,
        choice: record.choice,
        endpoint: record.endpoint,
        stream: record.stream,
        status: record.status,
        outcome: record.outcome,
        ..Record::default()
    };
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, option, prelude::*, sample::select};
    use serde_json::{Map, Value, json};

    use std::sync::Arc;

    use super::*;
    use crate::{
        cassette::Moment,
        trace::{
            ContentSource, Endpoint, FinishReason, ItlSummary, Logprobs, Outcome, Response, ResponseContent,
            StepContext, TokenLogprobs,
        },
    };

    fn durations() -> impl Strategy<Value = Duration> {
        prop_oneof![
            6 => (0_u64..1 << 40).prop_map(Duration::from_nanos),
            1 => any::<(u64, u32)>().prop_map(|(seconds, nanos)| Duration::new(seconds >> 1, nanos % 1_000_000_000)),
            1 => Just(Duration::MAX),
        ]
    }

    fn counts() -> impl Strategy<Value = u32> {
        prop_oneof![9 => 0_u32..12, 1 => any::<u32>(), 1 => Just(MOST_TOKENS + 1)]
    }

    fn chunk() -> impl Strategy<Value = Chunk> {
        let step =
            option::of((counts(), counts()).prop_map(|(a, b)| StepContext { num_running: a, prefill_tokens: b }));
        (durations(), counts(), step).prop_map(|(gap, tokens, step)| Chunk { gap, tokens, step })
    }

    fn deep(levels: usize) -> Value {
        (0..levels).fold(json!(1), |inside, _| json!([inside]))
    }

    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            3 => ".{0,9}".prop_map(Value::from),
            1 => any::<f64>().prop_map(|number| json!(number)),
            1 => (1_usize..200).prop_map(deep),
            1 => Just(json!({"a": [null, {"b": true}]})),
        ]
    }

    fn map() -> impl Strategy<Value = Map<String, Value>> {
        let key = select(vec![
            "x",
            "model",
            "itl_ms",
            "prompt_tokens",
            "repaired",
            "meta",
            "end",
            "é\n",
            "stream",
            "queue_ms",
            "preemptions",
        ]);
        vec((key.prop_map(str::to_owned), value()), 0..3).prop_map(|fields| fields.into_iter().collect())
    }

    fn shape() -> impl Strategy<Value = Record> {
        let summary = option::of((any::<f64>(), counts()).prop_map(|(mean_ms, count)| ItlSummary { mean_ms, count }));
        let counted = (counts(), option::of(counts()), counts());
        (counted, vec(chunk(), 0..6), summary, durations(), option::of(vec(any::<u32>(), 0..12))).prop_map(
            |((prompt_tokens, cached_tokens, output_tokens), chunks, itl_summary, ttft, ids)| Record {
                prompt_tokens,
                cached_tokens,
                output_tokens,
                chunks,
                itl_summary,
                ttft_without_tokens: ttft,
                output_token_ids: ids,
                ..Record::default()
            },
        )
    }

    /// Whatever a record can be made to hold.
    fn anything() -> impl Strategy<Value = Record> {
        let times = any::<[bool; 3]>().prop_flat_map(|_| prop::array::uniform3(option::of(durations())));
        let texts = option::of(vec(".{0,5}", 0..4));
        (shape(), times, map(), map(), option::of(value()), texts, any::<(Option<u16>, Option<bool>, Vec<u64>)>())
            .prop_map(
                |(
                    record,
                    [arrival, e2e, first_event],
                    params,
                    extra,
                    request,
                    text,
                    (status, stream, block_hashes),
                )| Record {
                    arrival,
                    e2e,
                    first_event,
                    params,
                    extra,
                    request,
                    events: text.clone(),
                    text,
                    status,
                    stream,
                    block_hashes: block_hashes.into(),
                    ..record
                },
            )
    }

    fn read_back(line: &[u8]) -> Result<Record, Vec<Defect>> {
        raw::parse_at_length(line)?.into_record()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]
        #[test]
        fn whatever_is_written_is_read(record in anything()) {
            let mut line = Vec::new();
            let repaired = spell(&record, None, &mut line).unwrap();
            let read = read_back(&line).unwrap();
            prop_assert_eq!(read.prompt_tokens, record.prompt_tokens);
            prop_assert_eq!((read.status, read.stream), (record.status, record.stream));
            if record.output_tokens <= MOST_TOKENS {
                prop_assert_eq!(read.output_tokens, record.output_tokens);
            }
            prop_assert!(repaired.is_empty() || read.extra.contains_key(REPAIRED));
        }
    }

    fn repaired(record: &Record) -> (Record, Vec<String>) {
        let mut line = Vec::new();
        let repaired = spell(record, None, &mut line).unwrap();
        (read_back(&line).unwrap(), repaired)
    }

    fn streamed(chunks: &[u32], output_tokens: u32) -> Record {
        let gap = Duration::from_millis(5);
        let chunks = chunks.iter().map(|tokens| Chunk { gap, tokens: *tokens, step: None }).collect();
        Record { prompt_tokens: 4, output_tokens, chunks, finish_reason: Some(FinishReason::Stop), ..Record::default() }
    }

    /// A chat with `echo`, whose echoed event was taken for a chunk.
    #[test]
    fn a_chunk_too_many_costs_the_gaps_and_no_count() {
        let ids = Some((0..8).collect());
        let echoed =
            Record { output_token_ids: ids.clone(), text: Some(vec!["a".into(), "b".into()]), ..streamed(&[1; 9], 8) };
        let (read, defects) = repaired(&echoed);
        assert_eq!(
            defects,
            [
                "itl_ms: the chunks after the first hold 8 tokens, but output_tokens is 8; the first chunk would hold none"
            ]
        );
        assert_eq!(read.chunks, streamed(&[8], 8).chunks);
        assert_eq!((read.output_tokens, read.output_token_ids, read.finish_reason), (8, ids, echoed.finish_reason));
        assert_eq!((read.text, &read.extra[REPAIRED]), (Some(vec!["ab".to_owned()]), &json!(["itl_ms"])));
    }

    #[test]
    fn ids_that_are_not_as_many_go_and_the_times_stay() {
        let logprobs = Some(Logprobs { tokens: vec![TokenLogprobs::default()], ..Logprobs::default() });
        let (read, _) = repaired(&Record { output_token_ids: Some(vec![1]), logprobs, ..streamed(&[1, 1], 2) });
        assert_eq!((read.output_token_ids, read.logprobs, read.chunks.len()), (None, None, 2));
    }

    #[test]
    fn a_request_that_is_too_deep_goes_alone() {
        let deep = Record { request: Some(deep(130)), endpoint: Some(Endpoint::Chat), ..streamed(&[1, 1], 2) };
        let read = repaired(&Record { params: json!({"n": 1}).as_object().unwrap().clone(), ..deep }).0;
        assert_eq!((read.request, read.params.len(), read.endpoint), (None, 1, Some(Endpoint::Chat)));
    }

    #[test]
    fn a_line_has_its_response_where_the_keys_have_it() {
        let moment = |ms, data: &str| Moment(ms, Some(data.to_owned()), None);
        for content in [
            ResponseContent::Events(vec![moment(1.25, "{\"a\":\"\u{1}\"}"), moment(2.0, "[DONE]")]),
            ResponseContent::Body(vec![0xff, b'"']),
            ResponseContent::Events(vec![moment(-1.0, "")]),
        ] {
            let source = Some(ContentSource::Events);
            let response = Some(Arc::new(Response { content, ..Response::default() }));
            for (extra, content_source) in [(json!({"x": {"response": 0}}), source), (json!({}), None)] {
                let extra = extra.as_object().unwrap().clone();
                let record = Record { response: response.clone(), content_source, extra, ..streamed(&[1, 1], 2) };
                let mut line = Vec::new();
                let defects = spell(&record, None, &mut line).unwrap();
                if defects.is_empty() {
                    let whole = SpelledRecord { record: &record, prompt_of: None, part: Part::Whole };
                    assert_eq!(line, serde_json::to_vec(&whole).unwrap());
                    assert_eq!(read_back(&line).unwrap(), record);
                } else {
                    assert!(!record.response.unwrap().is_sound());
                }
            }
        }
    }

    #[test]
    fn a_sound_record_is_left_as_it_is() {
        let sound = Record { outcome: Some(Outcome::Finished), ..streamed(&[2, 1, 3], 6) };
        assert_eq!(repaired(&sound), (sound.clone(), Vec::new()));
    }
}
