//! Changes of single events.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use net::wire::{event_data, event_name};
use serde_json::Value;

/// Where an event is cut into parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitPoint {
    /// In its middle.
    Middle,
    /// Inside its first character of several bytes; in its middle where it has none.
    Character,
    /// Before its last line feed.
    End,
    /// Everywhere.
    EveryByte,
}

/// A change of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventEdit {
    /// Its JSON ends in the middle.
    Malformed,
    /// It comes in parts, so long after each other.
    Split(SplitPoint, Duration),
    /// So many come in one write.
    Merge(u64),
    /// It comes so many times more.
    Duplicate(u64),
    /// It comes after the next one.
    Reorder,
    /// Its lines end in CR and LF.
    Crlf,
    /// A comment stands before it.
    Comment,
    /// There is no space after `data:`.
    NoSpace,
    /// A byte order mark stands before it.
    Bom,
    /// It is missing if it ends the stream.
    NoDone,
    /// It does not say why the answer ends.
    NoFinish,
    /// So much is added to its output tokens.
    Usage(i64),
}

/// Names of events that end a stream where there is no `[DONE]`.
const LAST_EVENTS: [&[u8]; 4] = [b"message_stop", b"response.completed", b"response.incomplete", b"response.failed"];

impl EventEdit {
    /// Returns true if the edit concerns this event; others pass and are not counted.
    pub(crate) fn concerns(self, event: &[u8]) -> bool {
        match self {
            Self::NoDone => is_last(event),
            Self::NoFinish => edited(event, &no_finish).is_some(),
            Self::Usage(by) => edited(event, &|value| add_to_usage(value, by)).is_some(),
            Self::Malformed => event.contains(&b'{'),
            _ => true,
        }
    }

    /// The parts in whose place they come; those of `Merge` and `Reorder`, which concern several events, are made by the body.
    pub(crate) fn parts(self, event: Bytes) -> Vec<Bytes> {
        match self {
            Self::NoDone => Vec::new(),
            Self::Malformed => vec![malformed(&event)],
            Self::Split(point, _) => split(event, point),
            Self::Crlf => vec![with_crlf(&event)],
            Self::Comment => vec![[b": comment\n\n".as_slice(), &event].concat().into()],
            Self::NoSpace => vec![without_space(&event)],
            Self::Bom => vec![["\u{feff}".as_bytes(), &event].concat().into()],
            Self::Duplicate(times) => (0..=times).map(|_| event.clone()).collect(),
            Self::NoFinish => vec![edited(&event, &no_finish).unwrap_or(event)],
            Self::Usage(by) => vec![edited(&event, &|value| add_to_usage(value, by)).unwrap_or(event)],
            Self::Merge(_) | Self::Reorder => vec![event],
        }
    }
}

fn is_last(event: &[u8]) -> bool {
    event_data(event).is_some_and(|data| data.as_ref() == b"[DONE]")
        || event_name(event).is_some_and(|name| LAST_EVENTS.contains(&name))
}

/// Cuts the JSON in its middle, at a character; the empty line after it stays.
fn malformed(event: &Bytes) -> Bytes {
    let text = String::from_utf8_lossy(event);
    let body = text.trim_end_matches(['\r', '\n']);
    let start = body.find('{').unwrap_or(0);
    let middle = body.floor_char_boundary(start + (body.len() - start) / 2);
    let (kept, end) = (body.get(..middle).unwrap_or_default(), text.get(body.len()..).unwrap_or_default());
    format!("{kept}{end}").into()
}

fn split(mut event: Bytes, point: SplitPoint) -> Vec<Bytes> {
    let middle = event.len() / 2;
    let at = match point {
        SplitPoint::EveryByte => return (0..event.len()).map(|at| event.slice(at..=at)).collect(),
        SplitPoint::Middle => middle,
        SplitPoint::Character => event.iter().position(|byte| *byte >= 0xc0).map_or(middle, |at| at + 1),
        SplitPoint::End => event.len().saturating_sub(1),
    };
    if at == 0 || at >= event.len() {
        return vec![event];
    }
    let first = event.split_to(at);
    vec![first, event]
}

fn with_crlf(event: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(event.len() + 4);
    for line in event.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_suffix(b"\n") {
            Some(line) => {
                out.extend_from_slice(line.strip_suffix(b"\r").unwrap_or(line));
                out.extend_from_slice(b"\r\n");
            }
            None => out.extend_from_slice(line),
        }
    }
    out.freeze()
}

fn without_space(event: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(event.len());
    for line in event.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_prefix(b"data: ") {
            Some(data) => {
                out.extend_from_slice(b"data:");
                out.extend_from_slice(data);
            }
            None => out.extend_from_slice(line),
        }
    }
    out.freeze()
}

/// The event, or the body without events, with its JSON changed; `None` where nothing is.
fn edited(event: &[u8], edit: &dyn Fn(&mut Value) -> bool) -> Option<Bytes> {
    let is_event = event.starts_with(b"data:") || event.starts_with(b"event:") || event.starts_with(b":");
    let data = if is_event { event_data(event)? } else { event.into() };
    let mut value: Value = serde_json::from_slice(&data).ok()?;
    if !edit(&mut value) {
        return None;
    }
    if !is_event {
        return Some(value.to_string().into());
    }
    let name = event_name(event).map(String::from_utf8_lossy);
    Some(net::wire::encode_event(name.as_deref(), &value.to_string()))
}

/// Objects in which an answer has its usage and its end: the event itself, and what it holds.
fn holders(value: &mut Value) -> Vec<&mut serde_json::Map<String, Value>> {
    let Value::Object(object) = value else { return Vec::new() };
    if object.get("response").is_some_and(Value::is_object) {
        return object.get_mut("response").map(holders).unwrap_or_default();
    }
    if object.get("message").is_some_and(Value::is_object) {
        return object.get_mut("message").map(holders).unwrap_or_default();
    }
    vec![object]
}

fn no_finish(value: &mut Value) -> bool {
    let mut is_changed = false;
    for holder in holders(value) {
        let choices = holder.get_mut("choices").and_then(Value::as_array_mut);
        for choice in choices.into_iter().flatten() {
            is_changed |= nullify(choice, "finish_reason");
        }
        let inner = holder.get_mut("delta");
        is_changed |= inner.is_some_and(|delta| nullify(delta, "stop_reason"));
        let stop = holder.get_mut("stop_reason").filter(|reason| !reason.is_null());
        is_changed |= stop.is_some();
        holder.get_mut("stop_reason").into_iter().for_each(|reason| *reason = Value::Null);
    }
    is_changed
}

fn nullify(object: &mut Value, name: &str) -> bool {
    match object.get_mut(name) {
        Some(value) if !value.is_null() => {
            *value = Value::Null;
            true
        }
        _ => false,
    }
}

fn add_to_usage(value: &mut Value, by: i64) -> bool {
    let mut is_changed = false;
    for holder in holders(value) {
        let Some(usage) = holder.get_mut("usage").and_then(Value::as_object_mut) else { continue };
        for name in ["completion_tokens", "output_tokens", "total_tokens"] {
            if let Some(count) = usage.get_mut(name).filter(|count| count.is_i64() || count.is_u64()) {
                *count = count.as_i64().unwrap_or_default().saturating_add(by).max(0).into();
                is_changed = true;
            }
        }
    }
    is_changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(parts: &[Bytes]) -> Vec<String> {
        parts.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect()
    }

    #[test]
    fn events_are_changed() {
        let event = Bytes::from_static(b"data: {\"a\":\"b\"}\n\n");
        let parts = |edit: EventEdit| text(&edit.parts(event.clone()));
        assert_eq!(parts(EventEdit::Malformed), ["data: {\"a\"\n\n"]);
        assert_eq!(parts(EventEdit::Crlf), ["data: {\"a\":\"b\"}\r\n\r\n"]);
        assert_eq!(parts(EventEdit::NoSpace), ["data:{\"a\":\"b\"}\n\n"]);
        assert_eq!(parts(EventEdit::Duplicate(2)).len(), 3);
        assert_eq!(parts(EventEdit::Split(SplitPoint::End, Duration::ZERO)), ["data: {\"a\":\"b\"}\n", "\n"]);
        assert_eq!(parts(EventEdit::Split(SplitPoint::EveryByte, Duration::ZERO)).len(), event.len());
        assert_eq!(parts(EventEdit::Bom), ["\u{feff}data: {\"a\":\"b\"}\n\n"]);
    }

    #[test]
    fn a_split_character_is_no_text() {
        let event = Bytes::from("data: {\"a\":\"ü\"}\n\n");
        let parts = EventEdit::Split(SplitPoint::Character, Duration::ZERO).parts(event.clone());
        assert_eq!(parts.concat(), event);
        assert!(std::str::from_utf8(&parts[0]).is_err());
    }

    #[test]
    fn usage_and_ends_are_found_on_each_wire() {
        for (event, by, wrong) in [
            (
                "data: {\"usage\":{\"completion_tokens\":3,\"total_tokens\":5}}\n\n",
                1,
                "data: {\"usage\":{\"completion_tokens\":4,\"total_tokens\":6}}\n\n",
            ),
            (
                "event: response.completed\ndata: {\"response\":{\"usage\":{\"output_tokens\":3}}}\n\n",
                -5,
                "event: response.completed\ndata: {\"response\":{\"usage\":{\"output_tokens\":0}}}\n\n",
            ),
            ("{\"usage\":{\"output_tokens\":3}}", 2, "{\"usage\":{\"output_tokens\":5}}"),
        ] {
            assert!(EventEdit::Usage(by).concerns(event.as_bytes()));
            assert_eq!(text(&EventEdit::Usage(by).parts(Bytes::from(event))), [wrong]);
        }
        for (event, without) in [
            (
                "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n",
                "data: {\"choices\":[{\"finish_reason\":null}]}\n\n",
            ),
            (
                "event: message_delta\ndata: {\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n",
                "event: message_delta\ndata: {\"delta\":{\"stop_reason\":null}}\n\n",
            ),
        ] {
            assert_eq!(text(&EventEdit::NoFinish.parts(Bytes::from(event))), [without]);
        }
        assert!(!EventEdit::NoFinish.concerns(b"data: {\"choices\":[{\"finish_reason\":null}]}\n\n"));
        assert!(EventEdit::NoDone.concerns(b"data: [DONE]\n\n"));
        assert!(EventEdit::NoDone.concerns(b"event: message_stop\ndata: {}\n\n"));
    }
}
