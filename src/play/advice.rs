//! What is worth knowing of a trace before its first request: what will not be as its user may expect.

use crate::{
    recording::trace::{Kept, Store},
    replay::matching::MatchBy,
};

/// Warnings about a trace that is about to be served, each with the next step.
pub(super) fn warnings(trace: &str, records: &Store, order: &[MatchBy], model_len: u32) -> Vec<String> {
    let all = records.len();
    let found = [
        unmatchable(trace, records, order),
        too_long(trace, records, model_len),
        count(records, |record| {
            record.output_tokens() > 0 && record.ids().is_none() && record.response().is_none()
        }).map(|without| {
            format!(
                "{without} of the {all} records of {trace} hold no token ids: random tokens of their length are served"
            )
        }),
    ];
    found.into_iter().flatten().collect()
}

/// Prompt and output tokens of the longest record.
pub(super) fn longest(records: &Store) -> u32 {
    records.iter().map(length).max().unwrap_or(0)
}

/// Nothing can be found by its prompt, although it is looked for so.
fn unmatchable(trace: &str, records: &Store, order: &[MatchBy]) -> Option<String> {
    let has_hashes = |record: Kept<'_>| {
        record.prompt_hash().is_some() || !record.chain().is_empty() || record.request_key().is_some()
    };
    let is_by_prompt = order.iter().any(|by| matches!(by, MatchBy::Prefix | MatchBy::Auto));
    if !is_by_prompt || records.iter().any(has_hashes) {
        return None;
    }
    let all = records.len();
    Some(format!(
        "none of the {all} records of {trace} has prompt hashes: no request is found by its prompt; give requests ids such \
         as replay-0, or record again with the model's --tokenizer"
    ))
}

fn too_long(trace: &str, records: &Store, model_len: u32) -> Option<String> {
    let longer = count(records, |record| length(record) > model_len)?;
    let (all, longest) = (records.len(), longest(records));
    Some(format!(
        "{longer} of the {all} records of {trace} are longer than --max-model-len {model_len}: requests for them are refused \
         or cut short; the longest has {longest} tokens"
    ))
}

fn length(record: Kept<'_>) -> u32 {
    record.prompt_tokens().saturating_add(record.output_tokens())
}

/// How many records are so; `None` where none is.
fn count(records: &Store, is_so: impl Fn(Kept<'_>) -> bool) -> Option<usize> {
    Some(records.iter().filter(|record| is_so(*record)).count()).filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::trace::{Record, Trace};

    fn store(records: Vec<Record>) -> Store {
        Store::from(&Trace { records, ..Trace::default() })
    }

    fn record(prompt_tokens: u32, output_tokens: u32) -> Record {
        let ids = Some(vec![1; output_tokens as usize]);
        Record { prompt_tokens, output_tokens, output_token_ids: ids, prompt_hash: Some(1), ..Record::default() }
    }

    #[test]
    fn a_sound_trace_gives_no_warning() {
        let records = store(vec![record(90, 10), record(1, 1)]);
        assert_eq!(warnings("t", &records, &[MatchBy::Prefix], 100), <[String; 0]>::default());
        assert_eq!(longest(&records), 100);
    }

    #[test]
    fn what_cannot_be_found_is_told_where_it_is_looked_for() {
        let unhashed = store(vec![Record { prompt_hash: None, ..record(1, 1) }]);
        let notes = warnings("t.jsonl", &unhashed, &[MatchBy::Prefix], 100);
        assert!(
            matches!(notes.as_slice(), [one] if one.contains("none of the 1 records of t.jsonl has prompt hashes"))
        );
        assert_eq!(warnings("t", &unhashed, &[MatchBy::Index], 100), <[String; 0]>::default());
        let one_of_two = store(vec![Record { prompt_hash: None, ..record(1, 1) }, record(1, 1)]);
        assert_eq!(warnings("t", &one_of_two, &[MatchBy::Prefix], 100), <[String; 0]>::default());
    }

    #[test]
    fn long_records_and_missing_ids_are_counted() {
        let records = store(vec![record(95, 10), Record { output_token_ids: None, ..record(1, 1) }]);
        let notes = warnings("t", &records, &[MatchBy::Prefix], 100);
        assert!(notes[0].starts_with("1 of the 2 records of t are longer than --max-model-len 100"), "{notes:?}");
        assert!(notes[0].ends_with("the longest has 105 tokens"), "{notes:?}");
        assert!(notes[1].starts_with("1 of the 2 records of t hold no token ids"), "{notes:?}");
    }
}
