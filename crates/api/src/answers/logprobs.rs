//! Log probabilities of a whole answer, cut as its text is for a stream: each piece keeps those of its own tokens.
//!
//! Where the tokens do not spell the text (reasoning and calls were taken out of it, or it was edited), they are spread over the
//! pieces in their order.

use serde_json::{Map, Value};

use super::extend;

/// A piece of text and its log probabilities.
pub(super) type ScoredText = (String, Value);

/// A token's bytes, and the log probabilities of it alone.
struct LogprobToken {
    bytes: Vec<u8>,
    logprobs: Value,
}

/// The text cut at most into so many pieces, each with its log probabilities, and those of tokens behind it (the end of
/// sequence); `None` where the tokens do not spell the text.
pub(super) fn cut(text: &str, logprobs: &Value, most: Option<usize>) -> Option<(Vec<ScoredText>, Option<Value>)> {
    let entries = entries(logprobs);
    let (mut pieces, mut start, mut at, mut gathered) = (Vec::new(), 0, 0, Vec::new());
    let mut entries = entries.into_iter().peekable();
    while at < text.len() {
        let entry = entries.next()?;
        if !text.as_bytes().get(at..)?.starts_with(&entry.bytes) {
            return None;
        }
        at += entry.bytes.len();
        gathered.push(entry.logprobs);
        // A character may take several tokens.
        if text.is_char_boundary(at) && at > start {
            pieces.push((text.get(start..at)?.to_owned(), joined(&std::mem::take(&mut gathered))?));
            start = at;
        }
    }
    let rest = joined(&entries.map(|entry| entry.logprobs).collect::<Vec<_>>());
    Some((merged(&pieces, most), rest))
}

/// The log probabilities spread over so many pieces.
pub(super) fn spread(logprobs: Option<&Value>, pieces: usize) -> Vec<Value> {
    let Some(logprobs) = logprobs else { return vec![Value::Null; pieces] };
    let all: Vec<Value> = entries(logprobs).into_iter().map(|entry| entry.logprobs).collect();
    let share = |at: usize| {
        let bounds = (at * all.len() / pieces.max(1))..((at + 1) * all.len() / pieces.max(1));
        joined(all.get(bounds).unwrap_or_default()).unwrap_or_default()
    };
    (0..pieces).map(share).collect()
}

pub(super) fn has_any(logprobs: &Value) -> bool {
    ["content", "tokens"].iter().any(|name| list(logprobs, name).is_some_and(|list| !list.is_empty()))
}

fn list<'v>(logprobs: &'v Value, name: &str) -> Option<&'v [Value]> {
    logprobs.get(name)?.as_array().map(Vec::as_slice)
}

/// The tokens of a chat's `content`, or of a completion's lists.
fn entries(logprobs: &Value) -> Vec<LogprobToken> {
    let tokens = list(logprobs, "content").or_else(|| list(logprobs, "tokens")).unwrap_or_default();
    let entry = |(at, token): (usize, &Value)| {
        let fields = logprobs.as_object().into_iter().flatten();
        let one = fields.map(|(name, value)| {
            let own = value.as_array().map(|list| Value::from(list.get(at).cloned().into_iter().collect::<Vec<_>>()));
            (name.clone(), own.unwrap_or_else(|| value.clone()))
        });
        LogprobToken { bytes: bytes_of(token), logprobs: one.collect::<Map<_, _>>().into() }
    };
    tokens.iter().enumerate().map(entry).collect()
}

/// A token as bytes, which may be a part of a character; its text where they are not there.
fn bytes_of(token: &Value) -> Vec<u8> {
    let byte = |byte: &Value| byte.as_u64().and_then(|byte| u8::try_from(byte).ok());
    let bytes = list(token, "bytes").and_then(|bytes| bytes.iter().map(byte).collect::<Option<Vec<u8>>>());
    let text = token.as_str().or_else(|| token.get("token")?.as_str()).unwrap_or_default();
    bytes.unwrap_or_else(|| text.as_bytes().to_vec())
}

/// As many pieces as there may be, neighbours together.
fn merged(pieces: &[ScoredText], most: Option<usize>) -> Vec<ScoredText> {
    let size = pieces.len().div_ceil(most.unwrap_or(usize::MAX).max(1)).max(1);
    let together = |some: &[ScoredText]| {
        let text = some.iter().map(|(text, _)| text.as_str()).collect();
        (text, joined(&some.iter().map(|(_, logprobs)| logprobs.clone()).collect::<Vec<_>>()).unwrap_or_default())
    };
    pieces.chunks(size).map(together).collect()
}

/// Log probabilities one after the other: lists grow, other fields are those of the last.
fn joined(parts: &[Value]) -> Option<Value> {
    let (first, more) = parts.split_first()?;
    let mut whole = first.clone();
    more.iter().for_each(|part| extend(&mut whole, part));
    Some(whole)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(text: &str) -> Value {
        json!({"token": text, "bytes": text.as_bytes(), "logprob": -0.5, "top_logprobs": []})
    }

    #[test]
    fn each_piece_keeps_the_tokens_that_spell_it() {
        let yes = json!({"content": [token("Ye"), token("s"), token("!"), token("<|im_end|>")]});
        let (pieces, rest) = cut("Yes!", &yes, None).unwrap();
        let texts: Vec<&str> = pieces.iter().map(|(text, _)| text.as_str()).collect();
        assert_eq!(texts, ["Ye", "s", "!"]);
        assert_eq!(pieces[1].1, json!({"content": [token("s")]}));
        assert_eq!(rest, Some(json!({"content": [token("<|im_end|>")]})));
        let (two, _) = cut("Yes!", &yes, Some(2)).unwrap();
        assert_eq!(two[0], ("Yes".to_owned(), json!({"content": [token("Ye"), token("s")]})));
        assert!(cut("No", &yes, None).is_none() && cut("Yes! And more", &yes, None).is_none());
        assert_eq!(spread(Some(&yes), 2)[1], json!({"content": [token("!"), token("<|im_end|>")]}));
        assert_eq!(spread(Some(&yes), 5)[0], Value::Null);
    }

    #[test]
    fn characters_of_several_tokens_stay_whole() {
        let part = |bytes: &[u8]| json!({"token": "\u{fffd}", "bytes": bytes, "logprob": -1.0});
        let (pieces, rest) = cut("é!", &json!({"content": [part(&[0xc3]), part(&[0xa9]), token("!")]}), None).unwrap();
        assert_eq!(pieces[0], ("é".to_owned(), json!({"content": [part(&[0xc3]), part(&[0xa9])]})));
        assert_eq!((pieces.len(), rest), (2, None));
    }

    #[test]
    fn completions_have_lists() {
        let logprobs =
            json!({"tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0], "top_logprobs": null, "text_offset": [0, 1]});
        let (pieces, rest) = cut("ab", &logprobs, None).unwrap();
        let second = json!({"tokens": ["b"], "token_logprobs": [-2.0], "top_logprobs": null, "text_offset": [1]});
        assert_eq!((&pieces[1], rest), (&("b".to_owned(), second), None));
        assert!(has_any(&logprobs) && !has_any(&json!({"content": []})) && !has_any(&Value::Null));
    }
}
