//! Whether an answer without the canary came through as it was.

use bytes::Bytes;
use serde_json::Value;

use super::block::{ReadResponse, defect};
use crate::{
    api::Endpoint,
    base::one_line::clipped,
    play::ServedResponse,
    prove::{ReceivedStream, answer_content, first_difference},
};

/// Characters of a difference.
const SHOWN: usize = 80;

/// What of clean answers has to be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CleanCompare {
    /// Texts, calls, reasons, log probabilities and token counts.
    Content,
    /// Every byte.
    Bytes,
}

/// A clean answer and what became of it.
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
            defect(form, has_usage, received).or_else(|| content_difference((form.0, has_usage), served, &truth, &got))
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
    got: &Bytes,
) -> Option<String> {
    let of = Endpoint::of_path(&served.path);
    let content = |endpoint, body| {
        let Some(answer) = ReadResponse::of(endpoint, body).answer else { return Value::Null };
        let mut content = answer_content(&answer);
        if has_usage {
            let counts = answer.counts();
            content["usage"] = serde_json::json!([counts.prompt, counts.completion]);
        }
        for choice in content["choices"].as_array_mut().into_iter().flatten().filter(|_| of != endpoint) {
            choice["logprobs"] = Value::Null;
        }
        content
    };
    let (truth, got) = (content(of, truth), content(endpoint, got));
    if of == endpoint {
        return first_difference(&truth, &got);
    }
    // Another endpoint names and counts in its own way.
    let choices = |content: &Value| content["choices"].clone();
    first_difference(&choices(&truth), &choices(&got))
}
