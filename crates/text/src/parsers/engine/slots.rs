//! The calls of an answer as they grow.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{
    arguments,
    grammar::{Arguments, Grammar},
    machine::MachineEvent,
    schema,
};
use crate::parsers::{
    delta::{CallDelta, CallIds, ParsedCall},
    json::JsonValue,
    names::Function,
};

#[derive(Debug)]
pub(super) struct CallSlots {
    grammar: &'static Grammar,
    functions: Arc<[Function]>,
    slots: Vec<CallSlot>,
}

#[derive(Debug, Default)]
struct CallSlot {
    name: String,
    body: String,
    is_named: bool,
    string_keys: Option<Vec<String>>,
    /// The JSON of the arguments that was sent.
    sent: String,
}

impl CallSlots {
    pub(super) fn new(grammar: &'static Grammar, functions: Arc<[Function]>) -> Self {
        Self { grammar, functions, slots: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(super) fn take(&mut self, event: MachineEvent, deltas: &mut Vec<CallDelta>, made: &mut CallIds) {
        match event {
            MachineEvent::CallStart => self.slots.push(CallSlot::default()),
            MachineEvent::Name(text) => {
                if let Some(slot) = self.slots.last_mut() {
                    slot.name.push_str(&text);
                }
            }
            MachineEvent::Argument(text) => self.argument(&text, deltas, made),
            MachineEvent::CallEnd => self.end(deltas, made),
            MachineEvent::Text(_) | MachineEvent::Reasoning(_) | MachineEvent::ReasoningEnd => {}
        }
    }

    fn argument(&mut self, text: &str, deltas: &mut Vec<CallDelta>, made: &mut CallIds) {
        let Some(slot) = self.slots.last_mut() else { return };
        slot.body.push_str(text);
        if slot.is_named {
            let more = self.more(text);
            deltas.extend(more.map(|more| self.sent(more)));
            return;
        }
        let call = self.name(made);
        let is_sent = call.is_some() && self.grammar.arguments == Arguments::Object;
        deltas.extend(call);
        if is_sent {
            deltas.push(self.sent(text.to_owned()));
        }
    }

    fn end(&mut self, deltas: &mut Vec<CallDelta>, made: &mut CallIds) {
        let rest = self.rest();
        if self.slots.last().is_some_and(|slot| slot.is_named) {
            deltas.extend(rest.map(|rest| self.sent(rest)));
        } else {
            let call = self.name(made);
            deltas.extend(call.map(|call| CallDelta { arguments: Some(rest.unwrap_or_default()), ..call }));
        }
    }

    /// Arguments of the last call.
    fn sent(&self, arguments: String) -> CallDelta {
        let index = self.slots.len().saturating_sub(1);
        CallDelta { index, arguments: Some(arguments), ..CallDelta::default() }
    }

    /// Sends a call's name, where it has one; a call without may have it in its body.
    fn name(&mut self, made: &mut CallIds) -> Option<CallDelta> {
        let (index, may_be_empty) = (self.slots.len().saturating_sub(1), self.grammar.names_may_be_empty);
        let slot = self.slots.last_mut()?;
        if slot.name.is_empty() && !may_be_empty {
            slot.name = named_in(&slot.body)?;
        }
        slot.is_named = true;
        let name = slot.name.clone();
        slot.string_keys = properties(&self.functions, &name).and_then(schema::string_keys);
        Some(CallDelta { index, id: Some(made.make()), name: Some(name), ..CallDelta::default() })
    }

    /// Returns the text that a step adds to arguments.
    fn more(&mut self, raw: &str) -> Option<String> {
        if self.grammar.arguments == Arguments::Object {
            return Some(raw.to_owned()).filter(|raw| !raw.is_empty());
        }
        let slot = self.slots.last()?;
        let json = self.fixed(&slot.name, self.object(slot, false));
        let slot = self.slots.last_mut()?;
        let stable = arguments::stable(&json, slot.string_keys.as_deref());
        let fresh = stable.strip_prefix(slot.sent.as_str()).filter(|fresh| !fresh.is_empty())?.to_owned();
        stable.clone_into(&mut slot.sent);
        Some(fresh)
    }

    /// Returns the part of complete arguments that was not sent.
    fn rest(&mut self) -> Option<String> {
        if self.grammar.arguments == Arguments::Object {
            return None;
        }
        let slot = self.slots.last()?;
        let json = self.fixed(&slot.name, self.object(slot, true));
        let slot = self.slots.last_mut()?;
        if json.chars().count() <= slot.sent.chars().count() {
            return None;
        }
        let fresh = json.strip_prefix(slot.sent.as_str())?.to_owned();
        slot.sent = json;
        Some(fresh)
    }

    fn object(&self, slot: &CallSlot, is_whole: bool) -> JsonValue {
        let is_verbatim = self.grammar.arguments == Arguments::VerbatimParameters;
        JsonValue::Object(arguments::members(&slot.body, is_whole, is_verbatim))
    }

    /// Arguments of the types in the function's schema.
    fn fixed(&self, name: &str, mut arguments: JsonValue) -> String {
        if let Some(properties) = properties(&self.functions, name) {
            schema::coerce(&mut arguments, properties);
        }
        arguments.write()
    }

    /// The calls of an answer that is complete.
    pub(super) fn calls(&self) -> Vec<ParsedCall> {
        let mut calls = Vec::new();
        for slot in self.slots.iter().filter(|slot| !slot.name.is_empty() || !slot.body.is_empty()) {
            let name = slot.name.trim();
            let (name, arguments) = match self.grammar.arguments {
                _ if slot.body.trim().is_empty() => (name.to_owned(), "{}".to_owned()),
                Arguments::Parameters | Arguments::VerbatimParameters if name.is_empty() => enveloped(slot.body.trim()),
                Arguments::Parameters | Arguments::VerbatimParameters => {
                    (name.to_owned(), self.object(slot, true).write())
                }
                Arguments::Object => (name.to_owned(), first_value(slot.body.trim())),
            };
            if !name.is_empty() || self.grammar.names_may_be_empty {
                let fixed = JsonValue::read(&arguments).ok().and_then(|mut value| {
                    let properties = properties(&self.functions, &name)?;
                    schema::coerce(&mut value, properties).then(|| value.write())
                });
                calls.push(ParsedCall { name, arguments: fixed.unwrap_or(arguments) });
            }
        }
        calls
    }
}

fn properties<'a>(functions: &'a [Function], name: &str) -> Option<&'a Map<String, Value>> {
    let function = functions.iter().find(|function| function.name == name)?;
    function.parameters.get("properties")?.as_object()
}

/// The first complete value of a text, as it is written; all of it where there is none.
fn first_value(text: &str) -> String {
    JsonValue::read_first(text).map_or(text, |(_, end)| text.get(..end).unwrap_or(text)).to_owned()
}

/// Finds a name in a JSON body.
fn named_in(body: &str) -> Option<String> {
    let quoted = |(at, key): (usize, &str)| {
        let value = body.get(at + key.len()..)?.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
        value.split_once('"').map(|(name, _)| name.to_owned())
    };
    body.match_indices("\"name\"").find_map(quoted).filter(|name| !name.is_empty())
}

/// Name and arguments of a call that is an object of both.
fn enveloped(body: &str) -> (String, String) {
    let Ok(value @ JsonValue::Object(_)) = JsonValue::read(body) else { return (String::new(), body.to_owned()) };
    let name = match value.get("name") {
        Some(JsonValue::Text(name)) => name.clone(),
        _ => String::new(),
    };
    let arguments = match value.get("arguments").or_else(|| value.get("parameters")) {
        Some(JsonValue::Text(text)) => text.clone(),
        Some(value) => value.write(),
        None => {
            let JsonValue::Object(members) = value else { return (name, String::new()) };
            JsonValue::Object(members.into_iter().filter(|(key, _)| key != "name").collect()).write()
        }
    };
    (name, arguments)
}

/// Pieces of one call made one.
pub(super) fn merged(deltas: Vec<CallDelta>) -> Vec<CallDelta> {
    let mut merged: Vec<CallDelta> = Vec::new();
    for delta in deltas {
        let Some(known) = merged.iter_mut().find(|known| known.index == delta.index) else {
            merged.push(delta);
            continue;
        };
        known.id = known.id.take().or(delta.id);
        known.name = known.name.take().or(delta.name);
        if let Some(more) = delta.arguments {
            known.arguments.get_or_insert_default().push_str(&more);
        }
    }
    merged
}
