//! Random ids of calls and items. They are renamed in order of appearance.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// The names that ids have: `id_1`, `id_2`, … in order of appearance.
#[derive(Debug, Clone, Default)]
pub(super) struct IdNames(HashMap<String, String>);

impl IdNames {
    pub(super) fn rename(&mut self, body: &mut Value) {
        visit_ids(body, &mut |id| self.rename_one(id));
    }

    pub(super) fn rename_item(&mut self, item: &mut Value) {
        item.as_object_mut().into_iter().for_each(|item| of_item(item, &mut |id| self.rename_one(id)));
    }

    /// The names for a body's other fields: a copy, where there are ids in it at all.
    pub(super) fn for_fields(&self, fields: &mut Value) -> Self {
        let mut has_ids = false;
        visit_ids(fields, &mut |_| has_ids = true);
        if has_ids { self.clone() } else { Self::default() }
    }

    fn rename_one(&mut self, id: &mut String) {
        let next = self.0.len() + 1;
        id.clone_from(self.0.entry(id.clone()).or_insert_with(|| format!("id_{next}")));
    }
}

/// The body with every id that `names` knows replaced.
#[must_use]
pub fn renamed(mut body: Value, names: &HashMap<String, String>) -> Value {
    visit_ids(&mut body, &mut |id| {
        if let Some(name) = names.get(id) {
            id.clone_from(name);
        }
    });
    body
}

/// Shows every id in the messages, input or output items of a body, in order; those of the body itself where it is a message.
pub fn visit_ids(body: &mut Value, visit: &mut dyn FnMut(&mut String)) {
    for name in ["messages", "input", "output"] {
        let items = body.get_mut(name).and_then(Value::as_array_mut).map(Vec::as_mut_slice).unwrap_or_default();
        items.iter_mut().filter_map(Value::as_object_mut).for_each(|item| of_item(item, visit));
    }
    if let Some(Value::String(id)) = body.get_mut("previous_response_id") {
        visit(id);
    }
    // A whole message of the Messages API.
    if let Some(message) = body.as_object_mut().filter(|body| body.get("content").is_some_and(Value::is_array)) {
        of_item(message, visit);
    }
}

/// Shows the ids of one message or item, in order.
pub(super) fn of_item(item: &mut Map<String, Value>, visit: &mut dyn FnMut(&mut String)) {
    let is_block = item.get("type").and_then(Value::as_str).is_some();
    let own: &[&str] = if is_block { &["id", "call_id", "tool_use_id"] } else { &["tool_call_id"] };
    for name in own {
        if let Some(Value::String(id)) = item.get_mut(*name) {
            visit(id);
        }
    }
    for name in ["tool_calls", "content"] {
        let parts = item.get_mut(name).and_then(Value::as_array_mut).map(Vec::as_mut_slice).unwrap_or_default();
        parts.iter_mut().filter_map(Value::as_object_mut).for_each(|part| {
            for name in ["id", "tool_use_id"] {
                if let Some(Value::String(id)) = part.get_mut(name) {
                    visit(id);
                }
            }
        });
    }
}
