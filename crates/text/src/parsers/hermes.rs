//! Tool calls as Hermes models write them: JSON between tags. The engine looks for names and arguments in the text so
//! far without reading the JSON, so a call whose arguments come first, or never end, streams as it does there.

use super::{
    delta::{CallDelta, CallIds, Delta, ParsedCall},
    json::JsonValue,
};

const START: &str = "<tool_call>";
const END: &str = "</tool_call>";

/// The calls of an answer on its way.
#[derive(Debug, Default)]
pub(super) struct Hermes {
    text: String,
    /// Bytes of content that were sent.
    sent: usize,
    /// For each call: its name was sent; its arguments so far.
    calls: Vec<(bool, Option<String>)>,
}

impl Hermes {
    /// Takes more text; returns a delta where there is something to send.
    pub(super) fn push(&mut self, text: &str, ids: &mut CallIds) -> Option<Delta> {
        self.text.push_str(text);
        let content = self.content();
        let mut calls = Vec::new();
        for (index, (body, is_complete)) in bodies(&self.text).into_iter().enumerate() {
            if index >= self.calls.len() {
                self.calls.push((false, None));
            }
            let Some((named, sent)) = self.calls.get_mut(index) else { break };
            if !*named {
                let Some(name) = name(body) else { break };
                *named = true;
                calls.push(CallDelta { index, id: Some(ids.make()), name: Some(name), ..CallDelta::default() });
            }
            let Some(arguments) = arguments(body, is_complete) else { continue };
            let length = sent.as_ref().map_or(0, |sent| sent.chars().count());
            if arguments.chars().count() > length {
                let fresh: String = arguments.chars().skip(length).collect();
                calls.push(CallDelta { index, arguments: Some(fresh), ..CallDelta::default() });
                *sent = Some(arguments.to_owned());
            }
        }
        if content.is_none() && calls.is_empty() {
            return None;
        }
        Some(Delta { is_content_null: content.is_none(), content, calls, ..Delta::default() })
    }

    /// Returns the text that the engine adds to a last step with calls: an object, if the last call has no arguments yet.
    pub(super) fn remaining(&self) -> String {
        let is_bare = self.calls.last().is_some_and(|(_, arguments)| arguments.is_none());
        if is_bare { "{}".to_owned() } else { String::new() }
    }

    fn content(&mut self) -> Option<String> {
        let held = || self.text.len() - partial_suffix(&self.text, START);
        let end = self.text.find(START).unwrap_or_else(held);
        let fresh = self.text.get(self.sent..end).filter(|fresh| !fresh.is_empty())?.to_owned();
        self.sent = end;
        Some(fresh)
    }
}

/// The text of each call, and whether it is all there.
fn bodies(text: &str) -> Vec<(&str, bool)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, inside)) = rest.split_once(START) {
        if let Some((body, after)) = inside.split_once(END) {
            found.push((body.trim(), true));
            rest = after;
        } else {
            let kept = inside.len() - partial_suffix(inside, END);
            let body = inside.get(..kept).unwrap_or_default().trim();
            found.push((body, JsonValue::read(body).is_ok()));
            break;
        }
    }
    found
}

/// Returns the texts after `"key"`, a colon and white space.
fn after_key<'a>(body: &'a str, key: &str) -> impl Iterator<Item = &'a str> {
    let quoted = format!("\"{key}\"");
    let length = quoted.len();
    let places: Vec<usize> = body.match_indices(&quoted).map(|(at, _)| at + length).collect();
    places.into_iter().filter_map(move |at| Some(body.get(at..)?.trim_start().strip_prefix(':')?.trim_start()))
}

fn name(body: &str) -> Option<String> {
    let quoted = |rest: &str| {
        let (name, _) = rest.strip_prefix('"')?.split_once('"')?;
        Some(name.to_owned()).filter(|name| !name.is_empty())
    };
    after_key(body, "name").find_map(quoted)
}

fn arguments(body: &str, is_complete: bool) -> Option<&str> {
    let raw = after_key(body, "arguments").next()?;
    if !is_complete {
        return Some(raw);
    }
    let raw = raw.trim_end();
    Some(raw.strip_suffix('}').map_or(raw, str::trim_end))
}

/// Bytes of the longest end of a text that begins a tag and is not the whole of it.
fn partial_suffix(text: &str, tag: &str) -> usize {
    let fits = |length: &usize| tag.get(..*length).is_some_and(|start| text.ends_with(start));
    (1..tag.len()).rev().find(fits).unwrap_or(0)
}

/// The calls of a whole answer, and its text before them; `None` where it has none, or one of them is broken.
pub(super) fn whole(text: &str) -> Option<(Vec<ParsedCall>, Option<String>)> {
    let first = text.find(START)?;
    let mut calls = Vec::new();
    let mut rest = text.get(first..).unwrap_or_default();
    while let Some((_, inside)) = rest.split_once(START) {
        let (body, after) = inside.split_once(END).unwrap_or((inside, ""));
        calls.push(call(body)?);
        rest = after;
    }
    Some((calls, text.get(..first).filter(|content| !content.is_empty()).map(str::to_owned)))
}

fn call(body: &str) -> Option<ParsedCall> {
    let value = JsonValue::read(body).ok()?;
    let JsonValue::Text(name) = value.get("name")? else { return None };
    Some(ParsedCall { name: name.clone(), arguments: value.get("arguments")?.write() })
}
