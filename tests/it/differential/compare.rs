//! What is compared of an answer, and what is put out of sight: ids, times, fingerprints, log probabilities and the
//! tokens that they rank. Shapes stay in sight: a key's place, null or not, and how many there are.
//! Also out of sight: on pages of metrics the values (`play_metrics` has those), and one keep-alive comment more or less.

use serde_json::{Map, Value};

use super::golden::{Golden, payload};
use crate::support::client::Answer;

/// Headers whose value is a time, a length or an id.
const LOOSE_HEADERS: &[&str] = &["date", "content-length", "x-request-id"];

/// The first difference between the engine's answer and ours; `sent_id` is the request id that the test made up.
pub(super) fn difference(golden: &Golden, answer: &Answer, sent_id: &str) -> Option<String> {
    if golden.status != answer.status {
        return Some(format!("status {} instead of {}", answer.status, golden.status));
    }
    headers(golden, answer).or_else(|| match &golden.events {
        Some(events) => {
            let expected: Vec<&str> = events.iter().map(|(_, event)| event.as_str()).collect();
            stream(golden, &expected, answer, sent_id)
        }
        None => body(golden.body.as_deref().unwrap_or_default(), &answer.text(), sent_id),
    })
}

/// Names in their order, and the values that do not change from answer to answer. Our own `x-vcr-…` are not the engine's.
fn headers(golden: &Golden, answer: &Answer) -> Option<String> {
    let shown = |headers: &[(String, String)]| -> Vec<String> {
        let value =
            |name: &str, value: &str| if LOOSE_HEADERS.contains(&name) { "…".to_owned() } else { value.to_owned() };
        let ours = headers.iter().filter(|(name, _)| !name.starts_with("x-vcr-"));
        ours.map(|(name, text)| format!("{name}: {}", value(name, text))).collect()
    };
    let (expected, got) = (shown(&golden.headers), shown(&answer.headers));
    let at = expected.iter().zip(&got).position(|(expected, got)| expected != got);
    let at = at.or_else(|| (expected.len() != got.len()).then(|| expected.len().min(got.len())))?;
    Some(format!("header {:?} instead of {:?}", got.get(at), expected.get(at)))
}

fn stream(golden: &Golden, expected: &[&str], answer: &Answer, sent_id: &str) -> Option<String> {
    let got = answer.events();
    let chunks = || {
        let one_each = answer.chunks.len() == got.len() || golden.cut;
        (!one_each).then(|| format!("{} HTTP chunks for {} events", answer.chunks.len(), got.len()))
    };
    let (expected, got) = (with_comments(expected), with_comments(&got));
    let first = expected.iter().zip(&got).enumerate().find_map(|(at, ((silences, expected), (ours, got)))| {
        // The engine's clock: a comment that is due with an event may come before it or not.
        let comments = (silences.abs_diff(*ours) > 1).then(|| format!("after {ours} comments instead of {silences}"));
        Some(format!("event {at}: {}", comments.or_else(|| event(expected, got, sent_id))?))
    });
    let is_longer = got.len() > expected.len() && !golden.cut;
    let count = || {
        (got.len() < expected.len() || is_longer).then(|| format!("{} events instead of {}", got.len(), expected.len()))
    };
    first.or_else(count).or_else(chunks)
}

/// The events that keep no connection alive, each with the number of comments before it.
fn with_comments<T: AsRef<str>>(events: &[T]) -> Vec<(usize, &str)> {
    let mut comments = 0;
    let event = |event: &'_ T| {
        if event.as_ref() == ": keep-alive" {
            comments += 1;
            return None;
        }
        Some(std::mem::take(&mut comments))
    };
    let counts: Vec<Option<usize>> = events.iter().map(event).collect();
    counts.into_iter().zip(events).filter_map(|(count, event)| Some((count?, event.as_ref()))).collect()
}

fn event(expected: &str, got: &str, sent_id: &str) -> Option<String> {
    match (payload(expected), payload(got)) {
        (Some(expected_json), Some(got_json)) => {
            let frame = |event: &str, json: &Value| event.replace(&json.to_string(), "…");
            let name = |event: &str| event.split("data: ").next().unwrap_or_default().to_owned();
            if name(expected) != name(got) {
                return Some(format!("{:?} instead of {:?}", name(got), name(expected)));
            }
            let is_compact = |event: &str, json: &Value| frame(event, json).ends_with("data: …");
            if is_compact(expected, &expected_json) && !is_compact(got, &got_json) {
                return Some("spelled otherwise".to_owned());
            }
            values(&masked(expected_json, sent_id), &masked(got_json, sent_id), "")
        }
        _ => (expected != got).then(|| format!("{got:?} instead of {expected:?}")),
    }
}

fn body(expected: &str, got: &str, sent_id: &str) -> Option<String> {
    match (serde_json::from_str::<Value>(expected), serde_json::from_str::<Value>(got)) {
        (Ok(expected_json), Ok(got_json)) => {
            if is_spelled(expected, &expected_json) && !is_spelled(got, &got_json) {
                return Some("spelled otherwise".to_owned());
            }
            values(&masked(expected_json, sent_id), &masked(got_json, sent_id), "")
        }
        _ if expected.starts_with("# HELP") => metrics(expected, got),
        _ => (expected != got).then(|| format!("body {:?} instead of {:?}", cut(got), cut(expected))),
    }
}

/// Whether a text is the compact spelling of its JSON.
fn is_spelled(text: &str, json: &Value) -> bool {
    let compact = json.to_string();
    compact == text
}

/// The lines of a metrics page in their order, without their values, the machine, the size of the cache and the series of
/// the HTTP requests that came before.
fn metrics(expected: &str, got: &str) -> Option<String> {
    let machine = |line: &str| {
        line.contains("python_")
            || line.contains("process_")
            || (line.starts_with("http_") && line.contains("handler="))
    };
    let named = |text: &str| -> Vec<String> {
        let name = |line: &str| match line.rsplit_once(' ') {
            Some((name, _)) if name.starts_with("vllm:cache_config_info") => without_settings(name),
            Some((name, _)) if !line.starts_with('#') => name.to_owned(),
            _ => line.to_owned(),
        };
        text.lines().filter(|line| !machine(line)).map(name).collect()
    };
    let (expected, got) = (named(expected), named(got));
    let missing: Vec<_> = expected.iter().filter(|line| !got.contains(line)).collect();
    let extra = got.iter().filter(|line| !expected.contains(line)).count();
    let first = missing.first().map_or_else(String::new, |line| format!(", {line:?} first"));
    let differ = || format!("{} lines missing, {extra} added{first}, or in another order", missing.len());
    (expected != got).then(differ)
}

fn without_settings(labels: &str) -> String {
    labels.split('"').step_by(2).collect::<Vec<_>>().join("…")
}

/// Where two values differ first, as a JSON pointer.
fn values(expected: &Value, got: &Value, at: &str) -> Option<String> {
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) => {
            let names = |map: &Map<String, Value>| map.keys().cloned().collect::<Vec<_>>();
            if names(expected) != names(got) {
                let missing: Vec<_> = expected.keys().filter(|key| !got.contains_key(*key)).collect();
                let extra: Vec<_> = got.keys().filter(|key| !expected.contains_key(*key)).collect();
                return Some(format!("keys of {at:?}: missing {missing:?}, added {extra:?}, or in another order"));
            }
            expected.iter().find_map(|(key, value)| values(value, &got[key], &format!("{at}/{key}")))
        }
        (Value::Array(expected), Value::Array(got)) if expected.len() == got.len() => {
            let mut pairs = expected.iter().zip(got).enumerate();
            pairs.find_map(|(index, (expected, got))| values(expected, got, &format!("{at}/{index}")))
        }
        _ => (expected != got)
            .then(|| format!("{at}: {} instead of {}", cut(&got.to_string()), cut(&expected.to_string()))),
    }
}

fn cut(text: &str) -> String {
    if text.chars().count() > 300 { text.chars().take(300).chain("…".chars()).collect() } else { text.to_owned() }
}

fn masked(value: Value, sent_id: &str) -> Value {
    match value {
        Value::Object(map) => map.into_iter().map(|(key, value)| (key.clone(), member(&key, value, sent_id))).collect(),
        Value::Array(items) => items.into_iter().map(|item| masked(item, sent_id)).collect(),
        other => other,
    }
}

fn member(key: &str, value: Value, sent_id: &str) -> Value {
    let is_time =
        key.starts_with("created") || key.ends_with("_ms") || ["completed_at", "tokens_per_second"].contains(&key);
    match value {
        Value::Number(_) if key == "created_cache_tokens" => value,
        Value::Number(_) if is_time => "<time>".into(),
        Value::Number(_) if ["logprob", "rank"].contains(&key) => format!("<{key}>").into(),
        Value::String(text) if key.ends_with("id") || key == "signature" => id(&text, sent_id).into(),
        Value::String(text) if key == "system_fingerprint" => fingerprint(&text).into(),
        Value::Array(items) if key == "token_logprobs" => {
            items.into_iter().map(|item| if item.is_number() { "<logprob>".into() } else { item }).collect()
        }
        Value::Array(items) if ["top_logprobs", "prompt_logprobs"].contains(&key) => {
            items.into_iter().map(ranked).collect()
        }
        other => masked(other, sent_id),
    }
}

/// One place's ranking of tokens: which they are is chance, how many and in which shape is not.
fn ranked(place: Value) -> Value {
    let shape = |value: Value| match value {
        Value::Number(_) => Value::from("<logprob>"),
        Value::Object(entry) => entry.keys().cloned().collect(),
        other => other,
    };
    match place {
        Value::Object(entry) if entry.contains_key("logprob") => entry.keys().cloned().collect(),
        Value::Object(ranking) => ranking.into_iter().map(|(_, value)| shape(value)).collect(),
        other => other,
    }
}

/// An id without the part that is made anew each time: 16 or 32 hexadecimal digits, or the request's own id.
fn id(text: &str, sent_id: &str) -> String {
    let text = if sent_id.is_empty() { text.to_owned() } else { text.replace(sent_id, "<id>") };
    let start = text.len() - text.bytes().rev().take_while(u8::is_ascii_hexdigit).count();
    let replayed = text.rfind("replay-").map(|at| format!("{}<id>", &text[..at]));
    match text.len() - start {
        16 | 32 => format!("{}<id>", &text[..start]),
        _ => replayed.unwrap_or(text),
    }
}

/// A fingerprint without its hash.
fn fingerprint(text: &str) -> String {
    match text.rsplit_once('-') {
        Some((engine, hash)) if hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            format!("{engine}-<hash>")
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differential::golden::{SUITES, suite};

    /// The answer that would be the golden itself.
    fn echo(golden: &Golden) -> Answer {
        let chunk = |(_, event): &(f64, String)| format!("{event}\n\n").into_bytes();
        let chunks: Vec<Vec<u8>> = golden.events.iter().flatten().map(chunk).collect();
        let body = golden.body.clone().map_or_else(|| chunks.concat(), String::into_bytes);
        Answer { status: golden.status, headers: golden.headers.clone(), body, chunks }
    }

    #[test]
    fn the_engine_equals_itself_and_nothing_less_does() {
        for golden in SUITES.iter().flat_map(|name| suite(name)) {
            let same = echo(&golden);
            assert_eq!(difference(&golden, &same, ""), None, "{}", golden.case);
            let other = Answer { status: 299, ..same.clone() };
            assert!(difference(&golden, &other, "").is_some(), "{}: status", golden.case);
            let mut other = same.clone();
            other.headers.swap(1, 2);
            assert!(difference(&golden, &other, "").is_some(), "{}: order of headers", golden.case);
            let mut other = same.clone();
            other.body = String::from_utf8(other.body).unwrap().replacen(['u', 'e'], "#", 1).into_bytes();
            // A metrics page begins with what depends on the machine.
            let changed = other.body != same.body && !same.body.starts_with(b"# HELP");
            assert!(!changed || difference(&golden, &other, "").is_some(), "{}: a letter", golden.case);
            if let Some(events) = &golden.events {
                let mut other = same.clone();
                other.chunks.pop();
                other.body = other.chunks.concat();
                assert!(difference(&golden, &other, "").is_some(), "{}: {} events", golden.case, events.len());
            }
        }
    }

    #[test]
    fn nulls_keys_and_their_order_count() {
        let known = r#"{"id":"x-0123456789abcdef","a":null,"b":{"logprob":-1.5,"token":"t"}}"#;
        assert_eq!(body(known, &known.replace("0123456789abcdef", "replay-3").replace("-1.5", "-2"), "replay-3"), None);
        for other in [
            known.replace(r#""a":null,"#, ""),
            known.replace("null", "0"),
            known.replace("x-", "y-"),
            known.replace("-1.5", "null"),
            known.replace(":null", ": null"),
            r#"{"a":null,"id":"x-0123456789abcdef","b":{"logprob":-1.5,"token":"t"}}"#.to_owned(),
        ] {
            assert!(body(known, &other, "replay-3").is_some(), "{other}");
        }
    }
}
