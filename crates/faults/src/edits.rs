//! Changes of single events.

use std::time::Duration;

use api::{DONE, is_last_event_type};
use bytes::{Bytes, BytesMut};
use net::wire::{event_data, event_name};
use serde_json::Value;

use crate::{
    piece::{BodyPiece, FaultedForm},
    steps::BodyPace,
    wire::inside_arguments,
};

/// Place where an event is cut into parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitPoint {
    /// In its middle.
    Middle,
    /// Inside its first character of several bytes; events without one are not concerned.
    Character,
    /// Inside the arguments of a tool call; events without any are not concerned.
    ToolArguments,
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
    /// It has no reason for the end of the answer.
    NoFinish,
    /// So much is added to its output tokens.
    Usage(i64),
}

impl EventEdit {
    /// Returns true if the edit concerns this event; others pass and are not counted.
    pub(crate) fn concerns(self, event: &[u8], form: FaultedForm) -> bool {
        let is_event = form == FaultedForm::Events;
        match self {
            Self::NoDone => is_event && is_last(event),
            Self::NoFinish => edited(event, &no_finish).is_some(),
            Self::Usage(by) => edited(event, &|value| add_to_usage(value, by)).is_some(),
            Self::Malformed => event.contains(&b'{'),
            Self::Split(point, _) => point.of(event).is_some(),
            Self::Bom => true,
            _ => is_event,
        }
    }

    /// The parts in whose place it comes, `at` being the byte that the fault names, where it does; those of `Merge`, `Reorder`
    /// and `Duplicate`, which are several events, are made by the body.
    pub(crate) fn parts(self, piece: BodyPiece, at: Option<usize>) -> Vec<BodyPiece> {
        let event = piece.bytes.clone();
        let changed = match self {
            Self::NoDone => return Vec::new(),
            Self::Merge(_) | Self::Reorder | Self::Duplicate(_) => return vec![piece],
            Self::Split(SplitPoint::EveryByte, every) => {
                return vec![BodyPiece { pace: Some(BodyPace { size: 1, every }), ..piece }];
            }
            Self::Split(point, pause) => return split(piece, at.or_else(|| point.of(&event)), pause),
            Self::Malformed => malformed(&event, at),
            Self::Crlf => with_crlf(&event),
            Self::Comment => [b": comment\n\n".as_slice(), &event].concat().into(),
            Self::NoSpace => without_space(&event),
            Self::Bom => ["\u{feff}".as_bytes(), &event].concat().into(),
            Self::NoFinish => edited(&event, &no_finish).unwrap_or(event),
            Self::Usage(by) => edited(&event, &|value| add_to_usage(value, by)).unwrap_or(event),
        };
        vec![piece.with(changed)]
    }
}

impl SplitPoint {
    fn of(self, event: &[u8]) -> Option<usize> {
        match self {
            Self::EveryByte | Self::Middle => Some(event.len() / 2),
            Self::Character => event.iter().position(|byte| *byte >= 0xc0).map(|at| at + 1),
            Self::ToolArguments => inside_arguments(event),
            Self::End => event.len().checked_sub(1),
        }
    }
}

fn is_last(event: &[u8]) -> bool {
    event_data(event).is_some_and(|data| *data == *DONE.as_bytes())
        || event_name(event).and_then(|name| std::str::from_utf8(name).ok()).is_some_and(is_last_event_type)
}

/// Cuts the JSON in its middle or at a byte of the event, at a character; the empty line after it stays.
fn malformed(event: &Bytes, at: Option<usize>) -> Bytes {
    let text = String::from_utf8_lossy(event);
    let body = text.trim_end_matches(['\r', '\n']);
    let start = body.find('{').unwrap_or(0);
    let at =
        at.unwrap_or(start + (body.len() - start) / 2).clamp(start + 1, body.len().saturating_sub(1).max(start + 1));
    let kept = body.get(..body.floor_char_boundary(at)).unwrap_or_default();
    format!("{kept}{}", text.get(body.len()..).unwrap_or_default()).into()
}

fn split(mut piece: BodyPiece, at: Option<usize>, pause: Duration) -> Vec<BodyPiece> {
    let Some(at) = at.filter(|at| (1..piece.bytes.len()).contains(at)) else { return vec![piece] };
    let first = piece.with(piece.bytes.slice(..at));
    piece.bytes = piece.bytes.slice(at..);
    vec![first, BodyPiece { pause: Some(pause), ..piece }]
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
        if holder.get("object").and_then(Value::as_str) == Some("response") {
            // It ends with its status, which is `in_progress` before.
            is_changed |=
                holder.get("status").is_some_and(|status| status != "in_progress") && nullify_in(holder, "status");
            is_changed |= nullify_in(holder, "incomplete_details");
        }
        let inner = holder.get_mut("delta");
        is_changed |= inner.is_some_and(|delta| nullify(delta, "stop_reason"));
        is_changed |= nullify_in(holder, "stop_reason");
    }
    is_changed
}

fn nullify(object: &mut Value, name: &str) -> bool {
    object.as_object_mut().is_some_and(|object| nullify_in(object, name))
}

fn nullify_in(object: &mut serde_json::Map<String, Value>, name: &str) -> bool {
    let value = object.get_mut(name).filter(|value| !value.is_null());
    value.map(|value| *value = Value::Null).is_some()
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

    fn parts(edit: EventEdit, event: &str) -> Vec<Bytes> {
        let parts = edit.parts(BodyPiece::of(Bytes::from(event.to_owned())), None);
        parts.into_iter().map(|part| part.bytes).collect()
    }

    fn text(parts: &[Bytes]) -> Vec<String> {
        parts.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect()
    }

    #[test]
    fn events_are_changed() {
        let event = "data: {\"a\":\"b\"}\n\n";
        let parts = |edit: EventEdit| text(&parts(edit, event));
        assert_eq!(parts(EventEdit::Malformed), ["data: {\"a\"\n\n"]);
        assert_eq!(parts(EventEdit::Crlf), ["data: {\"a\":\"b\"}\r\n\r\n"]);
        assert_eq!(parts(EventEdit::NoSpace), ["data:{\"a\":\"b\"}\n\n"]);
        assert_eq!(parts(EventEdit::Split(SplitPoint::End, Duration::ZERO)), ["data: {\"a\":\"b\"}\n", "\n"]);
        let every = EventEdit::Split(SplitPoint::EveryByte, Duration::ZERO).parts(BodyPiece::of(event.into()), None);
        assert_eq!(every[0].pace, Some(BodyPace { size: 1, every: Duration::ZERO }));
        assert_eq!(parts(EventEdit::Bom), ["\u{feff}data: {\"a\":\"b\"}\n\n"]);
    }

    #[test]
    fn a_split_character_is_no_text() {
        let event = "data: {\"a\":\"ü\"}\n\n";
        let edit = EventEdit::Split(SplitPoint::Character, Duration::ZERO);
        let parts = parts(edit, event);
        assert_eq!(parts.concat(), event.as_bytes());
        assert!(std::str::from_utf8(&parts[0]).is_err());
        assert!(!edit.concerns(b"data: {}\n\n", FaultedForm::Events));
    }

    #[test]
    fn arguments_are_cut_inside_on_each_wire() {
        let edit = EventEdit::Split(SplitPoint::ToolArguments, Duration::ZERO);
        for (event, cut) in [
            ("data: {\"arguments\":\"{\\\"a\\\"\"}\n\n", "data: {\"arguments\":\"{"),
            ("data: {\"partial_json\": \"\\\"a\"}\n\n", "data: {\"partial_json\": \"\\\""),
            (
                "event: response.function_call_arguments.delta\ndata: {\"delta\":\"ab\"}\n\n",
                "event: response.function_call_arguments.delta\ndata: {\"delta\":\"a",
            ),
        ] {
            assert_eq!(text(&parts(edit, event))[0], cut);
        }
        assert!(!edit.concerns(b"data: {\"arguments\":\"\"}\n\n", FaultedForm::Events));
        assert!(!edit.concerns(b"data: {\"delta\":\"ab\"}\n\n", FaultedForm::Events));
    }

    #[test]
    fn a_byte_names_the_place_of_a_cut() {
        let event = Bytes::from_static(b"data: {\"a\":\"b\"}\n\n");
        let at = |edit: EventEdit, at| {
            let parts = edit.parts(BodyPiece::of(event.clone()), Some(at));
            parts.iter().map(|part| String::from_utf8_lossy(&part.bytes).into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(at(EventEdit::Malformed, 12), ["data: {\"a\":\"\n\n"]);
        assert_eq!(at(EventEdit::Malformed, 99), ["data: {\"a\":\"b\"\n\n"]);
        let split = EventEdit::Split(SplitPoint::Middle, Duration::ZERO);
        assert_eq!(at(split, 3), ["dat", "a: {\"a\":\"b\"}\n\n"]);
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
            assert!(EventEdit::Usage(by).concerns(event.as_bytes(), FaultedForm::Whole));
            assert_eq!(text(&parts(EventEdit::Usage(by), event)), [wrong]);
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
            (
                "event: response.completed\ndata: {\"response\":{\"object\":\"response\",\"status\":\"completed\"}}\n\n",
                "event: response.completed\ndata: {\"response\":{\"object\":\"response\",\"status\":null}}\n\n",
            ),
        ] {
            assert_eq!(text(&parts(EventEdit::NoFinish, event)), [without]);
        }
        assert!(
            !EventEdit::NoFinish.concerns(b"data: {\"choices\":[{\"finish_reason\":null}]}\n\n", FaultedForm::Events)
        );
        assert!(EventEdit::NoDone.concerns(b"data: [DONE]\n\n", FaultedForm::Events));
        assert!(EventEdit::NoDone.concerns(b"event: message_stop\ndata: {}\n\n", FaultedForm::Events));
    }
}
