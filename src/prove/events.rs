//! A body as the events that a client reads in it.

use bytes::Bytes;
use serde_json::Value;

use crate::{net::wire::SseSplitter, recording::cassette::SseEvent};

/// The byte order mark, which a client skips at the start of a stream.
const BOM: &[u8] = "\u{feff}".as_bytes();

/// Events of a body, as a client reads them. Those without data, and comments, are none; data that is no UTF-8 has replacement characters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReadEvents {
    /// The events in order.
    pub events: Vec<SseEvent>,
    /// Place of the first byte that is no UTF-8.
    pub invalid_at: Option<usize>,
    /// Bytes after the last empty line.
    pub rest: usize,
}

impl ReadEvents {
    /// Reads a body as the standard of server-sent events has it.
    #[must_use]
    pub fn of(body: &Bytes) -> Self {
        let invalid_at = std::str::from_utf8(body).err().map(|error| error.valid_up_to());
        let start = if body.starts_with(BOM) { BOM.len() } else { 0 };
        let mut splitter = SseSplitter::with_lone_returns();
        splitter.push(body.slice(start..));
        let mut events = Vec::new();
        while let Some(event) = splitter.next_event() {
            let fields: Vec<(&[u8], &[u8])> = event.fields().collect();
            let of =
                |wanted: &[u8]| fields.iter().filter(|(name, _)| *name == wanted).map(|(_, value)| *value).collect();
            let data: Vec<&[u8]> = of(b"data");
            if data.is_empty() {
                continue;
            }
            let names: Vec<&[u8]> = of(b"event");
            let text = String::from_utf8_lossy(&data.join(&b'\n')).into_owned();
            let data = serde_json::from_str(&text).unwrap_or(Value::String(text));
            events.push(SseEvent { name: names.last().map(|name| String::from_utf8_lossy(name).into_owned()), data });
        }
        Self { events, invalid_at, rest: splitter.take_rest().len() }
    }

    /// What is wrong with the body around its events.
    pub(crate) fn framing_defect(&self) -> Option<String> {
        let invalid = self.invalid_at.map(|at| format!("byte {at} is not UTF-8"));
        invalid.or_else(|| (self.rest > 0).then(|| format!("{} bytes after the last event", self.rest)))
    }
}

/// The type of an event's data, in the streams of messages and responses; empty where it has none.
pub(crate) fn type_of(data: &Value) -> &str {
    data.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// Returns true if an event reports an error.
pub(crate) fn is_error(event: &SseEvent) -> bool {
    let has_error = event.data.get("error").is_some_and(|error| !error.is_null());
    has_error || ["error", "response.failed"].contains(&type_of(&event.data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_as_the_standard_has_it() {
        let body = "\u{feff}: comment\n\nevent: x\r\ndata:{\"a\":1}\r\n\r\ndata: [DONE]\n\ndata: cut";
        let read = ReadEvents::of(&Bytes::from(body));
        let first = SseEvent { name: Some("x".to_owned()), data: serde_json::json!({"a": 1}) };
        assert_eq!(read.events.first(), Some(&first));
        assert_eq!((read.events.len(), read.events[1].data.as_str(), read.rest), (2, Some("[DONE]"), 9));
        assert_eq!(ReadEvents::of(&Bytes::from_static(b"data: \xc3\n\n")).invalid_at, Some(6));
    }
}
