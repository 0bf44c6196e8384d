//! Lists and bodies that share their beginnings: a conversation of 2,000 turns has each of its messages in memory once, however
//! many requests repeat it.
//!
//! Limits: items are only added at the end. Going through a list takes a vector of references as long as the list.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use serde_json::{Map, Value};

/// The fields of a body whose items are shared, the first that has any.
const SHARED: [&str; 2] = ["messages", "input"];

/// A list that shares its beginning with the lists that it was copied from. A copy costs nothing.
pub struct SharedList<T> {
    last: Option<Arc<Link<T>>>,
}

struct Link<T> {
    item: T,
    length: usize,
    before: SharedList<T>,
}

impl<T> Clone for SharedList<T> {
    fn clone(&self) -> Self {
        Self { last: self.last.clone() }
    }
}

impl<T> Default for SharedList<T> {
    fn default() -> Self {
        Self { last: None }
    }
}

impl<T: fmt::Debug> fmt::Debug for SharedList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T> Drop for SharedList<T> {
    /// Goes along the list: dropping a link within a link would need a stack as deep as the list.
    fn drop(&mut self) {
        let mut next = self.last.take();
        while let Some(mut link) = next.and_then(Arc::into_inner) {
            next = link.before.last.take();
        }
    }
}

impl<T: PartialEq> PartialEq for SharedList<T> {
    fn eq(&self, other: &Self) -> bool {
        if self.len() != other.len() {
            return false;
        }
        let (mut one, mut other) = (self.last.as_ref(), other.last.as_ref());
        while let (Some(a), Some(b)) = (one, other) {
            if Arc::ptr_eq(a, b) {
                return true;
            }
            if a.item != b.item {
                return false;
            }
            (one, other) = (a.before.last.as_ref(), b.before.last.as_ref());
        }
        true
    }
}

impl<T> Extend<T> for SharedList<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        items.into_iter().for_each(|item| self.push(item));
    }
}

impl<T> FromIterator<T> for SharedList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut list = Self::default();
        list.extend(items);
        list
    }
}

impl<T> SharedList<T> {
    /// Adds an item; copies of this list stay as they are.
    pub fn push(&mut self, item: T) {
        let before = Self { last: self.last.take() };
        self.last = Some(Arc::new(Link { item, length: before.len() + 1, before }));
    }

    /// Returns the number of items.
    #[must_use]
    pub fn len(&self) -> usize {
        self.last.as_ref().map_or(0, |link| link.length)
    }

    /// Returns true if there is no item.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    pub(crate) fn last(&self) -> Option<&T> {
        self.last.as_ref().map(|link| &link.item)
    }

    /// The items, from the last one to the first.
    pub fn backward(&self) -> impl Iterator<Item = &T> {
        std::iter::successors(self.last.as_deref(), |link| link.before.last.as_deref()).map(|link| &link.item)
    }

    /// The items in order.
    #[must_use]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        self.after(0).into_iter()
    }

    /// The items after the first so many.
    #[must_use]
    pub fn after(&self, count: usize) -> Vec<&T> {
        let mut items: Vec<&T> = self.backward().take(self.len().saturating_sub(count)).collect();
        items.reverse();
        items
    }

    /// The items after those of a list that this one is a longer copy of; `None` where it is no such copy.
    #[must_use]
    pub fn since(&self, start: &Self) -> Option<Vec<&T>> {
        let more = self.len().checked_sub(start.len())?;
        let mut links = std::iter::successors(Some(self), |list| list.last.as_ref().map(|link| &link.before));
        links.nth(more).is_some_and(|list| list.is_same(start)).then(|| self.after(start.len()))
    }

    /// Returns true if two lists are the same one in memory.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.last, &other.last) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

/// Counts the items of several lists, each shared one once.
#[cfg(test)]
pub(crate) fn items_held<'l, T: 'l>(lists: impl IntoIterator<Item = &'l SharedList<T>>) -> usize {
    let mut known = std::collections::HashSet::new();
    for list in lists {
        let mut next = list.last.as_ref();
        while let Some(link) = next.filter(|link| known.insert(Arc::as_ptr(link))) {
            next = link.before.last.as_ref();
        }
    }
    known.len()
}

/// The body of a request: JSON, whose `messages`, or the items of whose `input`, are shared with the requests that continue it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SharedBody {
    /// Null stands for messages that are shared.
    fields: Arc<Value>,
    /// The field that they are in.
    list: Option<&'static str>,
    messages: SharedList<Value>,
}

impl From<Value> for SharedBody {
    fn from(mut body: Value) -> Self {
        let list = SHARED.into_iter().find(|name| body.get(*name).is_some_and(|value| !value.is_null()));
        let list = list.filter(|name| body.get(*name).is_some_and(|value| is_shared(name, value)));
        let items = list.and_then(|name| body.get_mut(name)).map(Value::take);
        let messages = match items {
            Some(Value::Array(items)) => items.into_iter().collect(),
            _ => SharedList::default(),
        };
        Self { fields: Arc::new(body), list, messages }
    }
}

/// Returns true for a list of messages, or of items; an `input` of texts or token ids is none.
fn is_shared(name: &str, value: &Value) -> bool {
    value.as_array().is_some_and(|items| name == "messages" || items.iter().all(Value::is_object))
}

impl SharedBody {
    /// The same fields with these messages, after all fields where there were none.
    #[must_use]
    pub fn with_messages(self, messages: SharedList<Value>) -> Self {
        let list = self.list.unwrap_or("messages");
        self.with_list(list, messages)
    }

    /// The same fields with these messages in a field of this name.
    #[must_use]
    pub fn with_list(mut self, list: &'static str, messages: SharedList<Value>) -> Self {
        if self.fields.get(list).is_none_or(|known| !known.is_null()) {
            self.set(list, Value::Null);
        }
        Self { list: Some(list), messages, ..self }
    }

    /// Sets a field.
    pub fn set(&mut self, name: &str, value: Value) {
        let shared = SHARED.into_iter().find(|shared| *shared == name && is_shared(name, &value));
        let shared = shared.filter(|shared| self.list.is_none_or(|list| list == *shared));
        let (value, messages) = match (value, shared) {
            (Value::Array(items), Some(_)) => (Value::Null, items.into_iter().collect()),
            (value, _) => (value, SharedList::default()),
        };
        if let Some(fields) = Arc::make_mut(&mut self.fields).as_object_mut() {
            fields.insert(name.to_owned(), value);
            if shared.is_some() || self.list == Some(name) {
                (self.list, self.messages) = (shared, messages);
            }
        }
    }

    /// Takes a field out.
    pub fn remove(&mut self, name: &str) {
        if self.fields.get(name).is_some() {
            Arc::make_mut(&mut self.fields).as_object_mut().and_then(|fields| fields.shift_remove(name));
        }
        if self.list == Some(name) {
            (self.list, self.messages) = (None, SharedList::default());
        }
    }

    /// A field, unless it is messages that are shared.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|_| self.list != Some(name))
    }

    /// All fields; null stands for messages that are shared. Also a body that is no object.
    #[must_use]
    pub fn fields(&self) -> &Value {
        &self.fields
    }

    /// The messages or items, where the body has a list of them.
    #[must_use]
    pub fn messages(&self) -> Option<&SharedList<Value>> {
        self.list.map(|_| &self.messages)
    }

    /// The field that they are in.
    #[must_use]
    pub fn list(&self) -> Option<&'static str> {
        self.list
    }

    /// Returns true if there is no body.
    pub(crate) fn is_null(&self) -> bool {
        self.fields.is_null()
    }

    /// The last message, or the last item of the `input`.
    pub(crate) fn last_message(&self) -> Option<&Value> {
        let input = || self.get("input").and_then(Value::as_array).and_then(|items| items.last());
        self.messages().map_or_else(input, SharedList::last)
    }

    /// Returns true if its JSON has at most so many bytes; no more than those of a longer one are looked at, nor its messages.
    #[must_use]
    pub fn is_at_most(&self, bytes: usize) -> bool {
        // A message takes two bytes at least, with the comma before the next one.
        self.messages.len() <= bytes / 2 && write!(SizeLimit(bytes), "{self}").is_ok()
    }

    /// The whole body.
    #[must_use]
    pub fn value(&self) -> Value {
        let mut value = Value::clone(&self.fields);
        if let Some(place) = self.list.and_then(|list| value.get_mut(list)) {
            *place = self.messages.iter().cloned().collect();
        }
        value
    }

    /// The fields before the messages, and those after them; all are before where no messages are shared.
    #[must_use]
    pub fn around_messages(&self) -> (Map<String, Value>, Map<String, Value>) {
        let fields = self.fields.as_object().into_iter().flatten();
        let (mut before, mut after, mut is_after) = (Map::new(), Map::new(), false);
        for (name, value) in fields {
            match (self.list == Some(name.as_str()), is_after) {
                (true, _) => is_after = true,
                (false, false) => drop(before.insert(name.clone(), value.clone())),
                (false, true) => drop(after.insert(name.clone(), value.clone())),
            }
        }
        (before, after)
    }
}

/// Writer of nothing, with room for so many bytes.
struct SizeLimit(usize);

impl fmt::Write for SizeLimit {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = self.0.checked_sub(text.len()).ok_or(fmt::Error)?;
        Ok(())
    }
}

impl fmt::Display for SharedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((list, fields)) = self.list.zip(self.fields.as_object()) else { return self.fields.fmt(f) };
        let comma = |at: usize| if at > 0 { "," } else { "" };
        f.write_str("{")?;
        for (at, (name, value)) in fields.iter().enumerate() {
            write!(f, "{}{}:", comma(at), serde_json::to_string(name).map_err(|_| fmt::Error)?)?;
            if name != list {
                value.fmt(f)?;
                continue;
            }
            f.write_str("[")?;
            for (at, message) in self.messages.iter().enumerate() {
                write!(f, "{}{message}", comma(at))?;
            }
            f.write_str("]")?;
        }
        f.write_str("}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn copies_share_their_beginning() {
        let mut one: SharedList<usize> = (0..3).collect();
        let start = one.clone();
        one.push(3);
        let mut other = start.clone();
        other.extend([4, 5]);
        assert_eq!((one.iter().copied().collect::<Vec<_>>(), start.len()), (vec![0, 1, 2, 3], 3));
        assert_eq!(other.since(&start), Some(vec![&4, &5]));
        assert_eq!(
            (one.since(&other), start.since(&one), one.since(&SharedList::default()).map(|it| it.len())),
            (None, None, Some(4))
        );
        assert_eq!(items_held([&one, &start, &other]), 6);
        assert_eq!(
            (one.last(), other.after(4), one == other, one == (0..4).collect()),
            (Some(&3), vec![&5], false, true)
        );
        assert!(
            (0..3).collect::<SharedList<usize>>() == start && !(0..3).collect::<SharedList<usize>>().is_same(&start)
        );
    }

    #[test]
    fn a_long_list_is_dropped_without_a_deep_stack() {
        let list: SharedList<usize> = (0..1_000_000).collect();
        let copy = list.clone();
        drop(list);
        assert_eq!(copy.len(), 1_000_000);
    }

    #[test]
    fn a_body_is_what_it_was() {
        for body in [
            json!({"model": "m", "messages": [{"role": "user"}], "n": 1}),
            json!({"model": "m", "input": [{"role": "user"}], "n": 1}),
            json!({"messages": [{"role": "user"}, {"role": "tool"}], "input": [{"role": "user"}]}),
            json!({"a \"name\"": "é", "messages": []}),
            json!({"input": [{}, "x"]}),
            json!({"input": [1, 2]}),
            json!({"messages": null}),
            json!({"messages": "x"}),
            json!([1]),
            json!("text"),
            json!(null),
        ] {
            let shared = SharedBody::from(body.clone());
            assert_eq!((shared.value().to_string(), shared.to_string()), (body.to_string(), body.to_string()));
            let bytes = body.to_string().len();
            assert_eq!((shared.is_at_most(bytes), shared.is_at_most(bytes - 1)), (true, false), "{body}");
        }
        let mut body = SharedBody::from(json!({"model": "m"})).with_messages([json!(1)].into_iter().collect());
        assert_eq!((body.value(), body.get("messages")), (json!({"model": "m", "messages": [1]}), None));
        body.set("messages", json!("x"));
        assert_eq!((body.value(), body.messages()), (json!({"model": "m", "messages": "x"}), None));
        body.set("messages", json!([2]));
        assert_eq!(body.last_message(), Some(&json!(2)));
        body.remove("messages");
        assert_eq!(body.value(), json!({"model": "m"}));
    }
}
