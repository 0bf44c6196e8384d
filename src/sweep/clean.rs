//! Whether an answer without the canary came through as it was.

use bytes::Bytes;

use super::block::ReadResponse;
use crate::{
    api::Endpoint,
    base::one_line::clipped,
    play::ServedResponse,
    prove::{ReceivedStream, answer_content, first_difference, without_fields},
};

/// Characters of a difference.
const SHOWN: usize = 80;

/// Parts of clean answers that have to be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CleanCompare {
    /// Texts, calls, reasons, log probabilities and token counts.
    Content,
    /// Every byte.
    Bytes,
}

/// A clean answer and its outcome.
#[derive(Debug, Clone, Default)]
pub(super) struct CleanDifference {
    /// The first byte that differs, and what is there.
    pub bytes: Option<String>,
    /// What is damaged.
    pub damage: Option<String>,
}

/// Compares what came with what was served.
pub(super) fn difference(
    (by, has_usage): (CleanCompare, bool),
    form: (Endpoint, bool),
    served: Option<&ServedResponse>,
    received: &ReceivedStream,
) -> CleanDifference {
    let Some(served) = served else {
        let what = format!("it was not passed on: status {}", received.status);
        return CleanDifference { bytes: Some(what.clone()), damage: Some(what) };
    };
    let (truth, got) = (Bytes::from(served.body.concat()), received.body());
    let bytes = byte_difference(&truth, &got);
    if bytes.is_none() && received.status == 200 {
        return CleanDifference::default();
    }
    let damage = match by {
        CleanCompare::Bytes => bytes.clone(),
        CleanCompare::Content => {
            let (endpoint, is_stream) = form;
            let read = ReadResponse::of(endpoint, &got);
            let defect = read.defect(is_stream, has_usage, received);
            defect.or_else(|| content_difference((endpoint, has_usage), served, &truth, &read))
        }
    };
    CleanDifference { bytes, damage }
}

fn byte_difference(truth: &[u8], got: &[u8]) -> Option<String> {
    if truth == got {
        return None;
    }
    let at = truth.iter().zip(got).take_while(|(one, other)| one == other).count();
    let shown = |bytes: &[u8]| {
        let rest = String::from_utf8_lossy(bytes.get(at..).unwrap_or_default()).into_owned();
        if rest.is_empty() { "the end".to_owned() } else { format!("{:?}", clipped(&rest, SHOWN)) }
    };
    Some(format!("byte {at} is {}, not {}", shown(got), shown(truth)))
}

fn content_difference(
    (endpoint, has_usage): (Endpoint, bool),
    served: &ServedResponse,
    truth: &Bytes,
    got: &ReadResponse,
) -> Option<String> {
    let of = Endpoint::of_path(&served.path);
    let content = |read: &ReadResponse| {
        let (content, counts) = (answer_content(read.answer.as_ref()?), read.answer.as_ref()?.counts());
        Some((content, [counts.prompt, counts.completion]))
    };
    let (Some((truth, wanted)), Some((got, counts))) = (content(&ReadResponse::of(of, truth)), content(got)) else {
        return Some("it is no answer".to_owned());
    };
    // Log probabilities of another endpoint have another form.
    let differs = |name: &str| of != endpoint && name == "logprobs";
    let (truth, got) = (without_fields(&truth, &differs), without_fields(&got, &differs));
    first_difference(&truth, &got).or_else(|| {
        let is_other = has_usage && counts != wanted;
        is_other.then(|| format!("usage is {}, not {}", shown_counts(counts), shown_counts(wanted)))
    })
}

/// Tokens of the prompt and of the answer.
fn shown_counts(counts: [Option<u32>; 2]) -> String {
    counts.map(|count| count.map_or_else(|| "none".to_owned(), |count| count.to_string())).join(" + ")
}
