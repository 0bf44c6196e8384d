//! Responses of the Responses API: read from the last event of a stream, which has all of it, and written as events item by item.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    cut::{EventSink, split},
    list, with,
    words::TextKind,
};
use crate::ends_response;
use net::wire::RawObject;

/// Type of the event that ends a stream.
const COMPLETED: &str = "response.completed";

pub(super) fn of_text(text: &str, model: Option<&Value>) -> Value {
    json!({"id": "resp_vcr", "object": "response", "created_at": 0, "status": "completed",
        "model": model, "output": [{"type": "message", "id": "msg_vcr", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}]}],
        "parallel_tool_calls": true, "tool_choice": "auto", "tools": []})
}

/// The response of the event that ends a stream; `None` where there is none.
pub(super) fn accumulate(events: &[Value]) -> Option<Map<String, Value>> {
    let ends = |event: &&Value| event.get("type").and_then(Value::as_str).is_some_and(ends_response);
    events.iter().rev().find(ends)?.get("response")?.as_object().cloned()
}

/// The body of the response that an event ends, if it ends one.
#[must_use]
pub fn completed(event: &[u8]) -> Option<String> {
    let data = event.strip_prefix(b"event: response.completed\ndata: ")?;
    Some(RawObject::read(data)?.get("response")?.get().to_owned())
}

/// An event of a response's stream; its fields are in the engine's order.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct ResponseEvent<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    item_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<&'a [Value]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<&'a Value>,
    sequence_number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

/// The text of an item that events add to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextPlace<'a> {
    pub(crate) words: TextKind,
    pub(crate) item_id: &'a str,
    /// Index of its content part; arguments have none.
    pub(crate) part: usize,
}

impl<'a> TextPlace<'a> {
    fn event(self, kind: &'static str) -> ResponseEvent<'a> {
        ResponseEvent {
            kind,
            item_id: Some(self.item_id),
            content_index: (self.words != TextKind::Arguments).then_some(self.part),
            logprobs: (self.words == TextKind::Text).then_some(&[]),
            ..ResponseEvent::default()
        }
    }

    /// Types of the events that add to the text and that end it.
    fn kinds(self) -> (&'static str, &'static str) {
        match self.words {
            TextKind::Text => ("response.output_text.delta", "response.output_text.done"),
            TextKind::Refusal => ("response.refusal.delta", "response.refusal.done"),
            TextKind::Reasoning => ("response.reasoning_text.delta", "response.reasoning_text.done"),
            TextKind::Arguments => ("response.function_call_arguments.delta", "response.function_call_arguments.done"),
        }
    }
}

/// Writer of a response's stream: numbers events and items.
#[derive(Debug, Default)]
pub(crate) struct ResponseWriter {
    sequence: u64,
    /// Index of the open item, or of the next one.
    index: usize,
}

impl ResponseWriter {
    /// Starts a response that has no output yet.
    pub(crate) fn start(&mut self, response: &Value, out: &mut impl EventSink) {
        for kind in ["response.created", "response.in_progress"] {
            self.put(ResponseEvent { kind, response: Some(response), ..ResponseEvent::default() }, out);
        }
    }

    /// Opens an item that has no content yet.
    pub(crate) fn open(&mut self, item: &Value, out: &mut impl EventSink) {
        self.put_in_item(
            ResponseEvent { kind: "response.output_item.added", item: Some(item), ..ResponseEvent::default() },
            out,
        );
    }

    /// Opens a content part that has no text yet.
    pub(crate) fn open_part(&mut self, place: TextPlace<'_>, part: &Value, out: &mut impl EventSink) {
        self.put_part("response.content_part.added", place, part, out);
    }

    pub(crate) fn add(&mut self, place: TextPlace<'_>, text: &str, out: &mut impl EventSink) {
        self.add_scored(place, text, &[], out);
    }

    /// Adds to a text, with log probabilities of its tokens where it is that of a message.
    pub(crate) fn add_scored(&mut self, place: TextPlace<'_>, text: &str, scored: &[Value], out: &mut impl EventSink) {
        let event = place.event(place.kinds().0);
        let logprobs = event.logprobs.map(|_| scored);
        self.put_in_item(ResponseEvent { delta: Some(text), logprobs, ..event }, out);
    }

    /// Ends the text of a content part, and the part.
    pub(crate) fn close_part(&mut self, place: TextPlace<'_>, text: &str, part: &Value, out: &mut impl EventSink) {
        let (text, refusal) = if place.words == TextKind::Refusal { (None, Some(text)) } else { (Some(text), None) };
        self.put_in_item(ResponseEvent { text, refusal, ..place.event(place.kinds().1) }, out);
        self.put_part("response.content_part.done", place, part, out);
    }

    /// Ends the arguments of a call.
    pub(crate) fn close_call(&mut self, place: TextPlace<'_>, call: &Value, out: &mut impl EventSink) {
        let text = |name: &str| call.get(name).and_then(Value::as_str);
        let event = ResponseEvent { arguments: text("arguments"), name: text("name"), ..place.event(place.kinds().1) };
        self.put_in_item(event, out);
    }

    pub(crate) fn close(&mut self, item: &Value, out: &mut impl EventSink) {
        self.put_in_item(
            ResponseEvent { kind: "response.output_item.done", item: Some(item), ..ResponseEvent::default() },
            out,
        );
        self.index += 1;
    }

    pub(crate) fn end(&mut self, response: &Value, out: &mut impl EventSink) {
        self.put(ResponseEvent { kind: COMPLETED, response: Some(response), ..ResponseEvent::default() }, out);
    }

    fn put_part(&mut self, kind: &'static str, place: TextPlace<'_>, part: &Value, out: &mut impl EventSink) {
        self.put_in_item(ResponseEvent { part: Some(part), logprobs: None, ..place.event(kind) }, out);
    }

    fn put_in_item(&mut self, event: ResponseEvent<'_>, out: &mut impl EventSink) {
        self.put(ResponseEvent { output_index: Some(self.index), ..event }, out);
    }

    fn put(&mut self, event: ResponseEvent<'_>, out: &mut impl EventSink) {
        out.put_event(event.kind, &ResponseEvent { sequence_number: self.sequence, ..event });
        self.sequence += 1;
    }
}

pub(super) fn events(body: &Map<String, Value>, out: &mut impl EventSink) {
    let (mut writer, answer) = (ResponseWriter::default(), Value::Object(body.clone()));
    writer.start(
        &with(&answer, json!({"status": "in_progress", "incomplete_details": null, "output": [], "usage": null})),
        out,
    );
    for item in list(body, "output") {
        put_item(&mut writer, item, out);
    }
    writer.end(&answer, out);
}

fn put_item(writer: &mut ResponseWriter, item: &Value, out: &mut impl EventSink) {
    let text = |value: &'_ Value, name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let id = text(item, "id");
    let begun = with(item, json!({"status": "in_progress"}));
    if text(item, "type") == "function_call" {
        let place = TextPlace { words: TextKind::Arguments, item_id: &id, part: 0 };
        writer.open(&with(&begun, json!({"arguments": ""})), out);
        writer.add(place, &text(item, "arguments"), out);
        writer.close_call(place, item, out);
    } else {
        writer.open(&with(&begun, json!({"content": []})), out);
        let parts = item.as_object().map(|item| list(item, "content")).unwrap_or_default();
        for (at, part) in parts.iter().enumerate() {
            let (words, field) = match text(part, "type").as_str() {
                "reasoning_text" => (TextKind::Reasoning, "text"),
                "refusal" => (TextKind::Refusal, "refusal"),
                _ => (TextKind::Text, "text"),
            };
            let (place, whole) = (TextPlace { words, item_id: &id, part: at }, text(part, field));
            writer.open_part(place, &with(part, json!({field: ""})), out);
            split(&whole, None).iter().for_each(|piece| writer.add(place, piece, out));
            writer.close_part(place, &whole, part, out);
        }
    }
    writer.close(item, out);
}
