//! Places that are taken out of a body before it is compared.

use serde_json::Value;

use crate::{
    children::children_mut,
    field_path::{FieldPath, PathStep},
};

impl FieldPath {
    /// Removes what is at this place; nothing happens where nothing is.
    pub fn remove_from(&self, body: &mut Value) {
        remove(&self.steps, body);
    }

    /// Removes what is at this place within one item of a list that is a field of the body, as [`remove_from`](Self::remove_from)
    /// does for the whole body where the path [keeps](Self::keeps_items) all items.
    pub(super) fn remove_from_item(&self, list: &str, index: usize, item: &mut Value) {
        match self.steps.as_slice() {
            [PathStep::Anywhere, ..] => remove(&self.steps, item),
            [PathStep::Key(name), PathStep::Item(at), rest @ ..] if name == list && *at == index => remove(rest, item),
            [PathStep::Key(name), PathStep::AnyItem, rest @ ..] if name == list => remove(rest, item),
            _ => {}
        }
    }

    /// Returns true if the items of a list keep their places when the path is removed, so that each can be examined alone.
    pub(super) fn keeps_items(&self, list: &str) -> bool {
        match self.steps.as_slice() {
            [PathStep::Key(name)] | [PathStep::Anywhere, PathStep::Key(name)] => name != list,
            [PathStep::Key(name), PathStep::Item(_) | PathStep::AnyItem] => name != list,
            [PathStep::Key(name), PathStep::Item(_) | PathStep::AnyItem, ..] if name == list => true,
            [PathStep::Key(name), ..] => name != list,
            _ => false,
        }
    }
}

fn remove(steps: &[PathStep], value: &mut Value) {
    match (steps, value) {
        ([], _) => {}
        ([PathStep::Anywhere, rest @ ..], value) => {
            remove(rest, value);
            children_mut(value).for_each(|(_, child)| remove(steps, child));
        }
        ([PathStep::Key(name)], Value::Object(map)) => {
            map.shift_remove(name);
        }
        ([PathStep::AnyKey], Value::Object(map)) => map.clear(),
        ([PathStep::AnyItem], Value::Array(items)) => items.clear(),
        ([PathStep::Item(at)], Value::Array(items)) if *at < items.len() => {
            items.remove(*at);
        }
        ([PathStep::Key(name), rest @ ..], Value::Object(map)) => {
            map.get_mut(name).into_iter().for_each(|child| remove(rest, child));
        }
        ([PathStep::Item(at), rest @ ..], Value::Array(items)) => {
            items.get_mut(*at).into_iter().for_each(|child| remove(rest, child));
        }
        ([PathStep::AnyKey, rest @ ..], value @ Value::Object(_))
        | ([PathStep::AnyItem, rest @ ..], value @ Value::Array(_)) => {
            children_mut(value).for_each(|(_, child)| remove(rest, child));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn places_are_removed_and_nothing_else() {
        let body = || json!({"a": {"b": 1, "nonce": 2}, "list": [{"c": 1, "d": 2}, {"c": 3}], "nonce": 4});
        for (path, left) in [
            ("$.a.b", json!({"a": {"nonce": 2}, "list": [{"c": 1, "d": 2}, {"c": 3}], "nonce": 4})),
            ("$.list[*].c", json!({"a": {"b": 1, "nonce": 2}, "list": [{"d": 2}, {}], "nonce": 4})),
            ("$.list[0]", json!({"a": {"b": 1, "nonce": 2}, "list": [{"c": 3}], "nonce": 4})),
            ("**.nonce", json!({"a": {"b": 1}, "list": [{"c": 1, "d": 2}, {"c": 3}]})),
            ("$.list..c", json!({"a": {"b": 1, "nonce": 2}, "list": [{"d": 2}, {}], "nonce": 4})),
            ("$['a'].*", json!({"a": {}, "list": [{"c": 1, "d": 2}, {"c": 3}], "nonce": 4})),
            ("$.nothing[7].here", body()),
        ] {
            let mut value = body();
            path.parse::<FieldPath>().unwrap().remove_from(&mut value);
            assert_eq!(value, left, "{path}");
        }
    }
}
