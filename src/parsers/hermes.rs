//! Tool calls as Hermes models write them: JSON between tags. The engine looks for names and arguments in the text so
//! far without reading the JSON, so a call whose arguments come first, or never end, streams as it does there.

use serde_json::Value;

use super::{
    delta::{CallDelta, CallIds, Content, Delta},
    lexer::partial_suffix,
    whole::Call,
};
use crate::prompt::python_json;

const START: &str = "<tool_call>";
const END: &str = "</tool_call>";

/// The calls of an answer on its way.
#[derive(Debug, Default)]
pub(super) struct Hermes {
    text: String,
    /// Bytes of content that were told.
    told: usize,
    /// Whether a call's name was told, and its arguments so far.
    calls: Vec<(bool, String)>,
}

impl Hermes {
    /// Takes more text; a delta where there is anything to tell.
    pub(super) fn push(&mut self, text: &str, ids: &mut CallIds) -> Option<Delta> {
        self.text.push_str(text);
        let content = self.content();
        let mut calls = Vec::new();
        for (index, (body, is_complete)) in bodies(&self.text).into_iter().enumerate() {
            if index >= self.calls.len() {
                self.calls.push((false, String::new()));
            }
            let Some((named, told)) = self.calls.get_mut(index) else { break };
            if !*named {
                let Some(name) = name(body) else { break };
                *named = true;
                calls.push(CallDelta { index, id: Some(ids.make()), name: Some(name), arguments: None });
            }
            let Some(arguments) = arguments(body, is_complete) else { continue };
            if arguments.chars().count() > told.chars().count() {
                let fresh: String = arguments.chars().skip(told.chars().count()).collect();
                calls.push(CallDelta { index, arguments: Some(fresh), ..CallDelta::default() });
                arguments.clone_into(told);
            }
        }
        if content.is_none() && calls.is_empty() {
            return None;
        }
        Some(Delta { content: content.map_or(Content::Null, Content::Text), reasoning: None, calls })
    }

    fn content(&mut self) -> Option<String> {
        let held = || self.text.len() - partial_suffix(&self.text, std::iter::once(START));
        let end = self.text.find(START).unwrap_or_else(held);
        let fresh = self.text.get(self.told..end).filter(|fresh| !fresh.is_empty())?.to_owned();
        self.told = end;
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
            let kept = inside.len() - partial_suffix(inside, std::iter::once(END));
            let body = inside.get(..kept).unwrap_or_default().trim();
            found.push((body, serde_json::from_str::<Value>(body).is_ok()));
            break;
        }
    }
    found
}

/// What follows `"key"`, white space and a colon, white space after it left out.
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

/// The calls of a whole answer, and its text before them. One broken call makes all of it text.
pub(super) fn whole(text: &str) -> (Vec<Call>, Option<String>) {
    let none = || (Vec::new(), Some(text.to_owned()));
    let Some(first) = text.find(START) else { return none() };
    let mut calls = Vec::new();
    let mut rest = text.get(first..).unwrap_or_default();
    while let Some((_, inside)) = rest.split_once(START) {
        let (body, after) = inside.split_once(END).unwrap_or((inside, ""));
        let Some(call) = call(body) else { return none() };
        calls.push(call);
        rest = after;
    }
    let content = text.get(..first).filter(|content| !content.trim().is_empty()).map(str::to_owned);
    (calls, content)
}

fn call(body: &str) -> Option<Call> {
    let value: Value = serde_json::from_str(body).ok()?;
    let name = value.get("name")?.as_str()?.to_owned();
    Some(Call { name, arguments: python_json(value.get("arguments")?) })
}
