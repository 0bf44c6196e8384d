//! Tool calls as Llama 3 and 4 write them: JSON objects at the answer's start, with `; ` between them.
//!
//! The engine completes the JSON that there is so far, and sends of its arguments what two steps have in common; broken
//! JSON, and two bytes that are not `; `, silence it.

use super::{
    delta::{CallDelta, CallIds, Delta, ParsedCall},
    json::{self, JsonValue},
    partial::{self, OpenStrings},
};

const TAG: &str = "<|python_tag|>";

/// The calls of an answer on its way.
#[derive(Debug, Default)]
pub(super) struct Llama {
    text: String,
    /// The calls of the last step that was read.
    known: Vec<JsonValue>,
    /// Number of calls that were begun.
    begun: usize,
    named: bool,
    sent: Vec<String>,
}

impl Llama {
    /// Takes more text; returns a delta where there is something to send.
    pub(super) fn push(&mut self, text: &str, made: &mut CallIds) -> Option<Delta> {
        self.text.push_str(text);
        if !self.text.starts_with(TAG) && !self.text.starts_with('{') {
            return Some(Delta::text(text));
        }
        let strings = if self.named { OpenStrings::Closed } else { OpenStrings::LeftOut };
        let calls = calls(&self.text, strings)?;
        let current = match self.begun.checked_sub(1) {
            _ if calls.is_empty() => return None,
            Some(at) => calls.get(at)?.clone(),
            None => calls.last()?.clone(),
        };
        let is_call = matches!(current.0, JsonValue::Object(_));
        if calls.len() > self.begun {
            return if is_call || self.begun == 0 { self.begin(calls.len(), &current.0) } else { None };
        }
        if !is_call {
            return None;
        }
        let index = self.begun.checked_sub(1)?;
        let delta = if self.named {
            self.more(index, &current)?
        } else {
            let Some(name) = current.0.get("name").filter(|name| name.is_truthy()) else {
                self.known = calls.into_iter().map(|(call, _)| call).collect();
                return None;
            };
            let JsonValue::Text(name) = name else { return None };
            self.named = true;
            Some(CallDelta { index, id: Some(made.make()), name: Some(name.clone()), ..CallDelta::default() })
        };
        self.known = calls.into_iter().map(|(call, _)| call).collect();
        delta.map(|call| Delta { calls: vec![call], ..Delta::default() })
    }

    /// Goes to the last of this many calls; returns what is missing of the one before.
    fn begin(&mut self, count: usize, last: &JsonValue) -> Option<Delta> {
        let mut rest = None;
        if let (Some(index), Some(arguments)) = (self.begun.checked_sub(1), truthy(last)) {
            let sent = self.sent.get_mut(index)?;
            let fresh: String = arguments.write().chars().skip(sent.chars().count()).collect();
            sent.push_str(&fresh);
            rest = Some(CallDelta { index, arguments: Some(fresh), ..CallDelta::default() });
        }
        self.begun = count;
        self.named = false;
        self.sent.push(String::new());
        rest.map(|call| Delta { calls: vec![call], ..Delta::default() })
    }

    /// More of a call's arguments; `None` where the engine fails at it.
    fn more(&mut self, index: usize, (call, is_whole): &(JsonValue, bool)) -> Option<Option<CallDelta>> {
        let Some(arguments) = truthy(call) else { return Some(None) };
        let sent = self.sent.get_mut(index)?;
        let length = sent.chars().count();
        let written = arguments.write();
        let before = truthy(self.known.get(index)?).map(JsonValue::write);
        let sure = match before {
            _ if *is_whole => written,
            Some(before) if before != written => {
                let same = before.chars().zip(written.chars()).take_while(|(before, now)| before == now);
                same.map(|(c, _)| c).collect()
            }
            _ => return Some(None),
        };
        let fresh: String = sure.chars().skip(length).collect();
        sent.push_str(&fresh);
        Some(Some(CallDelta { index, arguments: Some(fresh), ..CallDelta::default() }))
    }

    /// Returns the arguments of the last call that were read and not sent.
    pub(super) fn remaining(&self) -> String {
        let Some(last) = self.known.last() else { return String::new() };
        let expected = match last.get("arguments") {
            Some(JsonValue::Text(text)) => text.clone(),
            Some(arguments) => arguments.write(),
            None => "{}".to_owned(),
        };
        let sent = self.sent.get(self.known.len() - 1).map_or("", String::as_str);
        expected.strip_prefix(sent).unwrap_or_default().to_owned()
    }
}

fn truthy(call: &JsonValue) -> Option<&JsonValue> {
    call.get("arguments").filter(|arguments| arguments.is_truthy())
}

/// The calls of a text, and whether each is all there; `None` where the text is not read.
fn calls(text: &str, strings: OpenStrings) -> Option<Vec<(JsonValue, bool)>> {
    let mut rest = text.strip_prefix(TAG).unwrap_or(text);
    let mut found = Vec::new();
    while !rest.is_empty() {
        let (mut call, end) = partial::read(rest, strings).ok()?;
        let is_whole = rest.get(..end).is_some_and(|text| JsonValue::read(text).is_ok());
        let after = rest.get(end..).unwrap_or_default();
        let mut skipped = after.chars();
        skipped.by_ref().take(2).for_each(drop);
        rest = skipped.as_str();
        let parameters = call.get("parameters").cloned();
        match (&mut call, parameters) {
            (JsonValue::Object(members), Some(parameters)) => {
                if members.iter().any(|(key, _)| key == "arguments") {
                    return None;
                }
                json::set(members, "arguments".to_owned(), parameters);
            }
            (JsonValue::Object(_), None) => {}
            // The engine looks for the key in texts and lists, too, and goes on where it is not there.
            (JsonValue::Text(text), _) if !text.contains("parameters") => {}
            (JsonValue::List(items), _)
                if !items.iter().any(|item| matches!(item, JsonValue::Text(text) if text == "parameters")) => {}
            _ => return None,
        }
        found.push((call, is_whole));
    }
    Some(found)
}

/// The calls of a whole answer; `None` where it has none, or one of them is broken. Text around them is dropped.
pub(super) fn whole(text: &str) -> Option<Vec<ParsedCall>> {
    let mut calls = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let object = rest.get(at..).unwrap_or_default();
        let (value, end) = JsonValue::read_first(object).ok()?;
        let JsonValue::Text(name) = value.get("name")? else { return None };
        let arguments = value.get("arguments").or_else(|| value.get("parameters"))?;
        calls.push(ParsedCall { name: name.clone(), arguments: arguments.write() });
        // A brace right behind is taken for one inside.
        let after = object.get(end..).unwrap_or_default();
        let mut after = after.chars();
        after.next();
        rest = after.as_str();
    }
    Some(calls).filter(|calls| !calls.is_empty())
}
