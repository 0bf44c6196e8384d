//! Compares what came back with what was recorded, and names what differs.

use std::{collections::HashMap, fmt};

use recording::trace::{Endpoint, FinishReason, Outcome, Record, USAGE_OUTPUT_TOKENS, USAGE_PROMPT_TOKENS};
use serde::Serialize;
use serde_json::Value;

use crate::workload::Workload;

/// Differences that are kept in full; all are counted.
const KEPT: usize = 100;

/// A difference of one response from its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The number of the record.
    pub request: usize,
    /// What differs.
    #[serde(flatten)]
    pub what: What,
}

/// Kind of a difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "difference", rename_all = "snake_case")]
pub enum What {
    /// The response of another request came.
    AnotherResponse {
        /// The number of that record.
        of: usize,
    },
    /// Tokens are missing at this place.
    TokensLost {
        /// The place of the first one, from 0.
        at: usize,
        /// How many.
        count: usize,
    },
    /// Tokens came that were not recorded, from this place on.
    TokensAdded {
        /// The place of the first one, from 0.
        at: usize,
        /// How many.
        count: usize,
    },
    /// The recorded tokens came in another order.
    TokensReordered {
        /// The first place that differs.
        at: usize,
    },
    /// Another token came.
    TokensAltered {
        /// The first place that differs.
        at: usize,
        /// The recorded token.
        recorded: u32,
        /// The token that came.
        came: u32,
    },
    /// The tokens are the same, and came in other events.
    Rechunked {
        /// Events with tokens when it was recorded.
        recorded: usize,
        /// Events with tokens now.
        came: usize,
    },
    /// Another reason for the end.
    FinishReason {
        /// The recorded one.
        recorded: Option<FinishReason>,
        /// The one that came.
        came: Option<FinishReason>,
    },
    /// Another HTTP status.
    Status {
        /// The recorded one.
        recorded: Option<u16>,
        /// The one that came.
        came: Option<u16>,
    },
    /// The server counts another number of tokens.
    Usage {
        /// Prompt and output tokens when it was recorded.
        recorded: (u32, u32),
        /// Prompt and output tokens now.
        came: (u32, u32),
    },
    /// Another text.
    Text {
        /// The first byte that differs.
        at: usize,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}: ", self.request)?;
        match &self.what {
            What::AnotherResponse { of } => write!(f, "the response of request {of} came"),
            What::TokensLost { at, count } => write!(f, "{count} tokens are missing from token {at} on"),
            What::TokensAdded { at, count } => write!(f, "{count} tokens more than recorded, from token {at} on"),
            What::TokensReordered { at } => write!(f, "the tokens came in another order, from token {at} on"),
            What::TokensAltered { at, recorded, came } => write!(f, "token {at} is {came}, recorded {recorded}"),
            What::Rechunked { recorded, came } => write!(f, "its tokens came in {came} events, recorded {recorded}"),
            What::FinishReason { recorded, came } => {
                write!(f, "finish_reason {}, recorded {}", spelled(came), spelled(recorded))
            }
            What::Status { recorded, came } => write!(f, "status {}, recorded {}", spelled(came), spelled(recorded)),
            What::Usage { recorded, came } => {
                let ((prompt, output), (old_prompt, old_output)) = (came, recorded);
                write!(f, "usage of {prompt} and {output} tokens, recorded {old_prompt} and {old_output}")
            }
            What::Text { at } => write!(f, "its text differs from byte {at} on"),
        }
    }
}

/// Number of tokens that identify the response that they begin.
const IDENTIFYING: usize = 4;

/// A value in the words of a record.
fn spelled(value: &Option<impl ToString>) -> String {
    value.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)
}

/// Compares responses with a workload.
#[derive(Debug, Default)]
pub struct ContentCheck {
    /// Which record has these tokens; the first of several.
    by_tokens: HashMap<Vec<u32>, usize>,
    /// What was found so far.
    pub report: CheckReport,
}

/// Differences from the recording.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CheckReport {
    /// Responses that were compared.
    pub compared: u64,
    /// Responses that differ.
    pub differ: u64,
    /// The first differences.
    pub differences: Vec<Difference>,
}

impl ContentCheck {
    /// Prepares to compare with the records of a workload.
    pub(crate) fn of(workload: &Workload) -> Self {
        let mut check = Self::default();
        for request in &workload.requests {
            if let Some(ids) = &request.record.output_token_ids {
                check.by_tokens.entry(ids.clone()).or_insert(request.number);
            }
        }
        check
    }

    /// Compares a response with the record of this number.
    pub fn compare(&mut self, number: usize, recorded: &Record, came: &Record) {
        let found = self.differences_of(recorded, came);
        let report = &mut self.report;
        report.compared += 1;
        report.differ += u64::from(!found.is_empty());
        let room = KEPT.saturating_sub(report.differences.len());
        report.differences.extend(found.into_iter().take(room).map(|what| Difference { request: number, what }));
    }

    fn differences_of(&self, recorded: &Record, came: &Record) -> Vec<What> {
        let mut found = Vec::new();
        // A client that leaves gets no end and perhaps no status; what is noted for it depends on when the server sees it.
        let are_left = [recorded, came].map(|record| record.outcome) == [Some(Outcome::ClientGone); 2];
        let has_status = recorded.status.is_some() && (came.status.is_some() || !are_left);
        if has_status && recorded.status != came.status {
            return vec![What::Status { recorded: recorded.status, came: came.status }];
        }
        if recorded.finish_reason != came.finish_reason && !are_left {
            found.push(What::FinishReason { recorded: recorded.finish_reason, came: came.finish_reason });
        }
        let output_tokens = |record: &Record| usage(record, USAGE_OUTPUT_TOKENS).unwrap_or(record.output_tokens);
        let count = |record: &Record| (prompt_tokens(record), output_tokens(record));
        match (&recorded.output_token_ids, &came.output_token_ids) {
            (Some(old), Some(new)) => match self.tokens(old, new) {
                Some(what) => found.push(what),
                None => found.extend(rechunked(recorded, came)),
            },
            _ => found.extend(text(recorded, came)),
        }
        // A recording without a count of the prompt has none of the output: its events were counted. Who leaves may get none.
        let is_counted = recorded.prompt_tokens > 0 && (came.prompt_tokens > 0 || !are_left);
        if is_counted && count(recorded) != count(came) && found.is_empty() {
            found.push(What::Usage { recorded: count(recorded), came: count(came) });
        }
        found
    }

    /// Returns the record that has these tokens, or of which they are the beginning: a response that took another's place may have been cut.
    fn response_of(&self, came: &[u32]) -> Option<usize> {
        let exact = self.by_tokens.get(came).filter(|_| came.len() > 1).copied();
        exact.or_else(|| {
            // All records are looked through for differences that are shown only.
            let is_shown = self.report.differences.len() < KEPT && came.len() >= IDENTIFYING;
            let of = self.by_tokens.iter().filter(|(ids, _)| is_shown && ids.starts_with(came));
            of.map(|(_, number)| *number).min()
        })
    }

    fn tokens(&self, recorded: &[u32], came: &[u32]) -> Option<What> {
        let at = recorded.iter().zip(came).take_while(|(old, new)| old == new).count();
        if at == recorded.len() && at == came.len() {
            return None;
        }
        if let Some(of) = self.response_of(came).filter(|_| at == 0) {
            return Some(What::AnotherResponse { of });
        }
        // What is the same at the end distinguishes a loss from an alteration.
        let rest = |ids: &[u32]| ids.get(at..).unwrap_or_default().to_vec();
        let (old, new) = (rest(recorded), rest(came));
        let same_end = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
        if old.len() > new.len() && same_end == new.len() {
            return Some(What::TokensLost { at, count: old.len() - new.len() });
        }
        if new.len() > old.len() && same_end == old.len() {
            return Some(What::TokensAdded { at, count: new.len() - old.len() });
        }
        let sorted = |mut ids: Vec<u32>| {
            ids.sort_unstable();
            ids
        };
        match (old.first().copied(), new.first().copied()) {
            (Some(first), Some(other)) if sorted(old.clone()) != sorted(new.clone()) => {
                Some(What::TokensAltered { at, recorded: first, came: other })
            }
            _ => Some(What::TokensReordered { at }),
        }
    }
}

/// Returns the server's own count of a prompt's tokens, also where it named another number of ids.
pub(crate) fn prompt_tokens(record: &Record) -> u32 {
    usage(record, USAGE_PROMPT_TOKENS).unwrap_or(record.prompt_tokens)
}

fn usage(record: &Record, name: &str) -> Option<u32> {
    let counted = record.extra.get(name).and_then(Value::as_u64);
    counted.and_then(|counted| u32::try_from(counted).ok())
}

fn rechunked(recorded: &Record, came: &Record) -> Option<What> {
    let sizes = |record: &Record| record.emissions().map(|chunk| chunk.tokens).collect::<Vec<_>>();
    let (old, new) = (sizes(recorded), sizes(came));
    let is_known = recorded.itl_summary.is_none() && recorded.stream != Some(false) && came.stream != Some(false);
    (is_known && old != new).then_some(What::Rechunked { recorded: old.len(), came: new.len() })
}

/// The text of a response; where it is a list of items, without the ids that each response makes up.
fn text_of(record: &Record) -> Option<String> {
    let text = record.text.as_ref()?.concat();
    let has_items = matches!(record.endpoint, Some(Endpoint::Responses | Endpoint::Messages));
    let items = (has_items && record.stream == Some(false)).then(|| serde_json::from_str::<Vec<Value>>(&text));
    let Some(Ok(mut items)) = items else { return Some(text) };
    for item in items.iter_mut().filter_map(Value::as_object_mut) {
        item.retain(|name, _| name != "id" && name != "call_id");
    }
    serde_json::to_string(&items).ok()
}

fn text(recorded: &Record, came: &Record) -> Option<What> {
    let (old, new) = (text_of(recorded)?, text_of(came)?);
    let at = old.bytes().zip(new.bytes()).take_while(|(old, new)| old == new).count();
    (old != new).then_some(What::Text { at })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::WorkloadRequest;
    use recording::trace::Chunk;
    use serde_json::json;

    fn record(ids: &[u32]) -> Record {
        let chunks = ids.iter().map(|_| Chunk { tokens: 1, ..Chunk::default() }).collect();
        let output_tokens = u32::try_from(ids.len()).unwrap();
        let output_token_ids = Some(ids.to_vec());
        Record { prompt_tokens: 7, output_tokens, chunks, output_token_ids, status: Some(200), ..Record::default() }
    }

    fn workload(records: &[&[u32]]) -> Workload {
        let request = |(number, ids): (usize, &&[u32])| WorkloadRequest {
            record: record(ids),
            number,
            at: std::time::Duration::ZERO,
            session: number,
        };
        Workload { requests: records.iter().enumerate().map(request).collect(), ..Workload::default() }
    }

    #[test]
    fn each_damage_has_its_name() {
        let workload = workload(&[&[1, 2, 3, 4, 5], &[7, 8, 9], &[20, 21, 22, 23, 24, 25]]);
        for (came, what) in [
            (&[1, 2, 4, 5][..], Some(What::TokensLost { at: 2, count: 1 })),
            (&[1, 2, 3], Some(What::TokensLost { at: 3, count: 2 })),
            (&[1, 2, 2, 3, 4, 5], Some(What::TokensAdded { at: 2, count: 1 })),
            (&[1, 2, 9, 4, 5], Some(What::TokensAltered { at: 2, recorded: 3, came: 9 })),
            (&[1, 3, 2, 4, 5], Some(What::TokensReordered { at: 1 })),
            (&[7, 8, 9], Some(What::AnotherResponse { of: 1 })),
            // It was cut where this request's length was over.
            (&[20, 21, 22, 23, 24], Some(What::AnotherResponse { of: 2 })),
            (&[1, 2, 3, 4, 5], None),
        ] {
            let mut check = ContentCheck::of(&workload);
            check.compare(0, &workload.requests[0].record, &record(came));
            let found: Vec<What> = check.report.differences.into_iter().map(|difference| difference.what).collect();
            assert_eq!(found, what.into_iter().collect::<Vec<_>>(), "{came:?}");
        }
    }

    #[test]
    fn made_up_ids_and_the_end_of_a_response_that_was_left_are_no_difference() {
        let listed = |endpoint, id: &str, text: &str| Record {
            text: Some(vec![json!([{"id": id, "call_id": id, "content": text}]).to_string()]),
            endpoint: Some(endpoint),
            stream: Some(false),
            ..Record::default()
        };
        for endpoint in [Endpoint::Responses, Endpoint::Messages] {
            let differ = |old, new| ContentCheck::default().differences_of(&old, &new);
            assert_eq!(differ(listed(endpoint, "a", "x"), listed(endpoint, "b", "x")), []);
            assert_eq!(differ(listed(endpoint, "a", "x"), listed(endpoint, "b", "y")).len(), 1);
        }
        let left = Record { outcome: Some(Outcome::ClientGone), ..record(&[1]) };
        let aborted = Record { finish_reason: Some(FinishReason::Abort), status: None, ..left.clone() };
        assert_eq!(ContentCheck::default().differences_of(&left, &aborted), []);
    }

    #[test]
    fn other_events_ends_and_counts_are_differences_too() {
        let recorded = record(&[1, 2, 3]);
        let mut merged = recorded.clone();
        merged.chunks = vec![Chunk { tokens: 1, ..Chunk::default() }, Chunk { tokens: 2, ..Chunk::default() }];
        let ended = Record { finish_reason: Some(FinishReason::Length), ..recorded.clone() };
        let counted = Record { prompt_tokens: 9, ..recorded.clone() };
        let mut renamed = recorded.clone();
        renamed.extra.insert(USAGE_PROMPT_TOKENS.to_owned(), 8.into());
        let mut recounted = recorded.clone();
        recounted.extra.insert(USAGE_OUTPUT_TOKENS.to_owned(), 4.into());
        let refused = Record { status: Some(503), ..Record::default() };
        for (came, what) in [
            (merged, What::Rechunked { recorded: 3, came: 2 }),
            (ended, What::FinishReason { recorded: None, came: Some(FinishReason::Length) }),
            (counted, What::Usage { recorded: (7, 3), came: (9, 3) }),
            (renamed, What::Usage { recorded: (7, 3), came: (8, 3) }),
            (recounted, What::Usage { recorded: (7, 3), came: (7, 4) }),
            (refused, What::Status { recorded: Some(200), came: Some(503) }),
        ] {
            assert_eq!(ContentCheck::default().differences_of(&recorded, &came), [what]);
        }
    }
}
