//! Warnings about a trace before its first request: records that are not served, and requests that will not find them.

use std::collections::{BTreeMap, HashSet};

use recording::trace::{Outcome, RecordRef, Store};
use replay::matching::MatchBy;

/// Warnings about a trace that is about to be served, each with the next step.
/// `served` has an entry for each record.
pub(crate) fn warnings(
    trace: &str,
    records: &Store,
    served: &[bool],
    order: &[MatchBy],
    model_len: u32,
) -> Vec<String> {
    let found = [
        unserved(trace, records, served),
        unmatchable(trace, records, order),
        unhashed(trace, records, order),
        too_long(trace, records, model_len),
        without_ids(trace, records),
    ];
    found.into_iter().flatten().collect()
}

/// Records that nothing can be served of, with the reasons.
fn unserved(trace: &str, records: &Store, served: &[bool]) -> Option<String> {
    let mut reasons = BTreeMap::<&str, usize>::new();
    for (record, _) in records.iter().zip(served).filter(|(_, served)| !**served) {
        *reasons.entry(reason(record)).or_default() += 1;
    }
    let (left, all) = (reasons.values().sum::<usize>(), records.len());
    let reasons: Vec<String> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    (left > 0).then(|| format!("{left} of the {all} records of {trace} are not served: {}", reasons.join(", ")))
}

/// Why nothing can be served of a record.
pub(crate) fn reason(record: RecordRef<'_>) -> &'static str {
    if record.is_lost() {
        return "whose line breaks a rule of the format";
    }
    if !record.generates() {
        return "of embeddings and the like without a response (the tap records it with --record-tokens)";
    }
    match record.outcome() {
        Some(Outcome::ClientGone) => "whose client left before the first token",
        Some(Outcome::UpstreamFailed) => "whose upstream failed before the first token",
        Some(Outcome::TimedOut) => "that timed out before the first token",
        Some(Outcome::Cut) => "that the recorder's end cut before the first token",
        Some(Outcome::Finished | Outcome::Error) | None => "without tokens and without a response",
    }
}

/// Records of which only the length is known. The choices of a request may share one response.
fn without_ids(trace: &str, records: &Store) -> Option<String> {
    let with_response = |record: RecordRef<'_>| record.response().is_some();
    let groups: HashSet<&str> =
        records.iter().filter(|record| with_response(*record)).filter_map(|record| record.group()).collect();
    let has_content = |record: RecordRef<'_>| {
        with_response(record) || record.ids().is_some() || record.group().is_some_and(|group| groups.contains(group))
    };
    let without = count(records, |record| record.output_tokens() > 0 && !has_content(record))?;
    let all = records.len();
    if records.meta.has_permuted_ids() {
        return Some(format!(
            "{without} of the {all} records of {trace} hold permuted token ids, which spell nothing (--permute-ids): random \
             tokens of their length are served"
        ));
    }
    Some(format!(
        "{without} of the {all} records of {trace} hold no token ids: random tokens of their length are served"
    ))
}

/// Prompt and output tokens of the longest record.
pub(crate) fn longest(records: &Store) -> u32 {
    records.iter().map(length).max().unwrap_or(0)
}

/// Nothing can be found by its prompt, although it is looked for so.
fn unmatchable(trace: &str, records: &Store, order: &[MatchBy]) -> Option<String> {
    let has_hashes = |record: RecordRef<'_>| {
        record.prompt_hash().is_some() || !record.chain().is_empty() || record.request_key().is_some()
    };
    let is_by_prompt = MatchBy::any_by_prompt(order);
    if !is_by_prompt || records.iter().any(has_hashes) {
        return None;
    }
    Some(format!(
        "no record of {trace} has prompt hashes: no request is found by its prompt; give requests ids such as replay-0, or \
         record again with the model's --tokenizer"
    ))
}

/// Records without hashes among others that have them: the tap leaves them out where a prompt held a secret.
fn unhashed(trace: &str, records: &Store, order: &[MatchBy]) -> Option<String> {
    let is_unhashed = |record: RecordRef<'_>| {
        record.prompt_hash().is_none() && record.request_key().is_none() && record.output_tokens() > 0
    };
    let is_hashed = |record: RecordRef<'_>| record.prompt_hash().is_some();
    if !MatchBy::any_by_prompt(order) || !records.iter().any(is_hashed) {
        return None;
    }
    let (without, all) = (count(records, is_unhashed)?, records.len());
    Some(format!(
        "{without} of the {all} records of {trace} have no prompt hashes, as those whose prompt held a secret: no request is \
         found by its prompt there, and what is served for it may be another prompt's; give such requests ids such as replay-0"
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

fn length(record: RecordRef<'_>) -> u32 {
    record.prompt_tokens().saturating_add(record.output_tokens())
}

/// Counts the records for which `is_so` holds; `None` where there is none.
fn count(records: &Store, is_so: impl Fn(RecordRef<'_>) -> bool) -> Option<usize> {
    Some(records.iter().filter(|record| is_so(*record)).count()).filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use recording::trace::{Record, Trace};

    fn store(records: Vec<Record>) -> Store {
        Store::from(&Trace { records, ..Trace::default() })
    }

    fn advised(trace: &str, records: &Store, by: MatchBy) -> Vec<String> {
        warnings(trace, records, &vec![true; records.len()], &[by], 100)
    }

    fn record(prompt_tokens: u32, output_tokens: u32) -> Record {
        let ids = Some(vec![1; output_tokens as usize]);
        Record { prompt_tokens, output_tokens, output_token_ids: ids, prompt_hash: Some(1), ..Record::default() }
    }

    #[test]
    fn a_sound_trace_gives_no_warning() {
        let records = store(vec![record(90, 10), record(1, 1)]);
        assert_eq!(advised("t", &records, MatchBy::Prefix), <[String; 0]>::default());
        assert_eq!(longest(&records), 100);
    }

    #[test]
    fn records_without_hashes_give_a_warning_where_prompts_are_matched() {
        let unhashed = store(vec![Record { prompt_hash: None, ..record(1, 1) }]);
        let notes = advised("t.jsonl", &unhashed, MatchBy::Prefix);
        assert!(matches!(notes.as_slice(), [one] if one.contains("no record of t.jsonl has prompt hashes")));
        assert_eq!(advised("t", &unhashed, MatchBy::Index), <[String; 0]>::default());
        let one_of_two = store(vec![Record { prompt_hash: None, ..record(1, 1) }, record(1, 1)]);
        let notes = advised("t", &one_of_two, MatchBy::Prefix);
        assert!(matches!(notes.as_slice(), [one] if one.starts_with("1 of the 2 records of t have no prompt hashes")));
        assert_eq!(advised("t", &one_of_two, MatchBy::Index), <[String; 0]>::default());
    }

    #[test]
    fn long_records_and_missing_ids_are_counted() {
        let records = store(vec![record(95, 10), Record { output_token_ids: None, ..record(1, 1) }]);
        let notes = advised("t", &records, MatchBy::Prefix);
        assert!(notes[0].starts_with("1 of the 2 records of t are longer than --max-model-len 100"), "{notes:?}");
        assert!(notes[0].ends_with("the longest has 105 tokens"), "{notes:?}");
        assert!(notes[1].starts_with("1 of the 2 records of t hold no token ids"), "{notes:?}");
    }

    #[test]
    fn records_without_an_answer_are_named_with_their_reasons() {
        let gone = |outcome| Record { outcome: Some(outcome), ..Record::default() };
        let records =
            store(vec![record(1, 1), gone(Outcome::ClientGone), gone(Outcome::TimedOut), gone(Outcome::TimedOut)]);
        let notes = warnings("t", &records, &[true, false, false, false], &[MatchBy::Index], 100);
        let warning = "3 of the 4 records of t are not served: 2 that timed out before the first token, 1 whose client left \
                    before the first token";
        assert_eq!(notes, [warning]);
    }

    #[test]
    fn choices_of_one_response_need_no_ids() {
        let choice = |choice| Record {
            output_token_ids: None,
            group: Some("g".to_owned()),
            choice: Some(choice),
            ..record(1, 1)
        };
        let first = Record { response: Some(std::sync::Arc::default()), ..choice(0) };
        assert_eq!(advised("t", &store(vec![first, choice(1)]), MatchBy::Prefix), <[String; 0]>::default());
    }
}
