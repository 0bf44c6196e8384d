//! Reads JSON into a tree of values whose memory is bounded, and the ids of a completion's prompt without one.
//!
//! A value takes [72 bytes](Value) beside what it holds, and an id takes two bytes of a body. So the ids of a prompt go into lists of
//! their own as they are read, and what else a body holds is counted.

use std::{
    cell::{Cell, RefCell},
    fmt,
    sync::Arc,
};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::values::TWO_63;

/// Values of a body, without the ids of its prompt.
const MOST_VALUES: usize = 4 << 20;

/// Values for which an object counts: it has room for several fields.
const OBJECT: usize = 6;

/// Findings beside the tree of values.
#[derive(Debug)]
pub(super) struct TreeReading {
    left: Cell<usize>,
    /// Ids of the prompts, where `prompt` is a list of ids or of such lists.
    ids: RefCell<Option<Vec<Arc<[u32]>>>>,
    takes_ids: bool,
    /// True where a number may have been a whole one of more digits than were kept.
    is_rounded: Cell<bool>,
}

impl TreeReading {
    pub(super) fn new(takes_ids: bool) -> Self {
        Self::of(MOST_VALUES, takes_ids)
    }

    fn of(most: usize, takes_ids: bool) -> Self {
        Self { left: Cell::new(most), ids: RefCell::default(), takes_ids, is_rounded: Cell::new(false) }
    }

    /// Reads a text. Where ids are taken, a list of one id stands for those of the field `prompt`, or an empty list for each of its lists.
    pub(super) fn read(&self, text: &[u8]) -> serde_json::Result<Value> {
        let mut reader = serde_json::Deserializer::from_slice(text);
        let value = TreeBuilder { reading: self, is_top: self.takes_ids }.deserialize(&mut reader)?;
        reader.end().map(|()| value)
    }

    /// The message for a text that holds too many values; `None` where it does not.
    pub(super) fn too_many(&self) -> Option<String> {
        let message = format!(
            "The request body holds more than {MOST_VALUES} JSON values (an object counts as {OBJECT}), the most that this server \
             reads beside the token ids of a completion's `prompt`. Please send less in one request."
        );
        (self.left.get() == 0).then_some(message)
    }

    pub(super) fn is_rounded(&self) -> bool {
        self.is_rounded.get()
    }

    pub(super) fn into_ids(self) -> Option<Vec<Arc<[u32]>>> {
        self.ids.into_inner()
    }

    fn count<E: Error>(&self, more: usize) -> Result<(), E> {
        let left = self.left.get().saturating_sub(more);
        self.left.set(left);
        if left == 0 { Err(E::custom("too many values")) } else { Ok(()) }
    }
}

#[derive(Debug, Clone, Copy)]
struct TreeBuilder<'r> {
    reading: &'r TreeReading,
    /// True for the body itself, where ids are taken from it.
    is_top: bool,
}

impl<'de> DeserializeSeed<'de> for TreeBuilder<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        self.reading.count(1)?;
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TreeBuilder<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(flag.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        if number.abs() >= TWO_63 {
            self.reading.is_rounded.set(true);
        }
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Value, A::Error> {
        values(self.reading, Vec::new(), items)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        self.reading.count(OBJECT - 1)?;
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let value = if self.is_top && name == "prompt" {
                let prompt = fields.next_value_seed(PromptSeed(self.reading))?;
                let (value, ids) = prompt.apart(self.reading)?;
                *self.reading.ids.borrow_mut() = ids;
                value
            } else {
                fields.next_value_seed(TreeBuilder { is_top: false, ..self })?
            };
            map.insert(name, value);
        }
        Ok(map.into())
    }
}

/// The rest of a list whose first items were read.
fn values<'de, A: SeqAccess<'de>>(
    reading: &TreeReading,
    mut read: Vec<Value>,
    mut items: A,
) -> Result<Value, A::Error> {
    while let Some(item) = items.next_element_seed(TreeBuilder { reading, is_top: false })? {
        read.push(item);
    }
    Ok(read.into())
}

enum PromptItem {
    Id(u32),
    Ids(Vec<u32>),
    Lists(Vec<Arc<[u32]>>),
    Other(Value),
}

impl PromptItem {
    /// The value that stands for a prompt, and its ids.
    #[allow(clippy::type_complexity)] // a value, and what it stands for
    fn apart<E: Error>(self, reading: &TreeReading) -> Result<(Value, Option<Vec<Arc<[u32]>>>), E> {
        Ok(match self {
            Self::Ids(ids) if !ids.is_empty() => (vec![0].into(), Some(vec![ids.into()])),
            Self::Lists(lists) => (vec![Value::Array(Vec::new()); lists.len()].into(), Some(lists)),
            item @ (Self::Id(_) | Self::Ids(_) | Self::Other(_)) => (item.value(reading)?, None),
        })
    }

    fn value<E: Error>(self, reading: &TreeReading) -> Result<Value, E> {
        Ok(match self {
            Self::Id(id) => id.into(),
            Self::Ids(ids) => {
                reading.count(ids.len())?;
                ids.into()
            }
            Self::Lists(lists) => {
                // The lists were counted as they were read.
                reading.count(lists.iter().map(|list| list.len()).sum())?;
                lists.into_iter().map(|list| Value::from(&*list)).collect()
            }
            Self::Other(value) => value,
        })
    }
}

/// Reads an item; lists of ids within lists of lists are no such lists.
struct PromptSeed<'r>(&'r TreeReading);

impl<'de> DeserializeSeed<'de> for PromptSeed<'_> {
    type Value = PromptItem;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<PromptItem, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> PromptSeed<'_> {
    fn other<E: Error>(self, read: impl FnOnce(TreeBuilder<'_>) -> Result<Value, E>) -> Result<PromptItem, E> {
        self.0.count(1)?;
        read(TreeBuilder { reading: self.0, is_top: false }).map(PromptItem::Other)
    }

    /// A list of which the first items are values; `next` is one that was read after them.
    fn mixed<A: SeqAccess<'de>>(self, first: PromptItem, next: PromptItem, items: A) -> Result<PromptItem, A::Error> {
        let mut read = match first.value(self.0)? {
            Value::Array(read) => read,
            other => vec![other],
        };
        read.push(next.value(self.0)?);
        values(self.0, read, items).map(PromptItem::Other)
    }
}

impl<'de> Visitor<'de> for PromptSeed<'_> {
    type Value = PromptItem;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<PromptItem, E> {
        self.other(|tree| tree.visit_unit())
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<PromptItem, E> {
        self.other(|tree| tree.visit_bool(flag))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<PromptItem, E> {
        self.other(|tree| tree.visit_i64(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<PromptItem, E> {
        match u32::try_from(number) {
            Ok(id) => Ok(PromptItem::Id(id)),
            Err(_) => self.other(|tree| tree.visit_u64(number)),
        }
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<PromptItem, E> {
        self.other(|tree| tree.visit_f64(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<PromptItem, E> {
        self.other(|tree| tree.visit_str(text))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<PromptItem, E> {
        self.other(|tree| tree.visit_string(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<PromptItem, A::Error> {
        self.other(|tree| tree.visit_map(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<PromptItem, A::Error> {
        let mut read = PromptItem::Ids(Vec::new());
        while let Some(item) = items.next_element_seed(PromptSeed(self.0))? {
            match (&mut read, item) {
                (PromptItem::Ids(ids), PromptItem::Id(id)) => ids.push(id),
                (PromptItem::Lists(lists), PromptItem::Ids(ids)) => {
                    self.0.count(1)?;
                    lists.push(ids.into());
                }
                (PromptItem::Ids(none), PromptItem::Ids(ids)) if none.is_empty() => {
                    self.0.count(1)?;
                    read = PromptItem::Lists(vec![ids.into()]);
                }
                (_, item) => return self.mixed(read, item, items),
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> (Value, Option<Vec<Arc<[u32]>>>) {
        let reading = TreeReading::new(true);
        let value = reading.read(text.as_bytes()).unwrap();
        (value, reading.into_ids())
    }

    #[test]
    fn ids_of_a_prompt_are_no_values() {
        let reading = TreeReading::of(10, true);
        let many = format!(r#"{{"prompt": [{}1], "n": 1}}"#, "1,".repeat(100_000));
        assert_eq!(reading.read(many.as_bytes()).unwrap(), json!({"prompt": [0], "n": 1}));
        assert_eq!(reading.into_ids().unwrap()[0].len(), 100_001);
        let (value, ids) = read(r#"{"prompt": [[1, 2], [], [4294967295]]}"#);
        assert_eq!(value, json!({"prompt": [[], [], []]}));
        assert_eq!(ids.unwrap(), [vec![1, 2], vec![], vec![u32::MAX]].map(Arc::from));
        let lists = format!(r#"{{"prompt": [{}[]]}}"#, "[],".repeat(100));
        assert!(TreeReading::of(50, true).read(lists.as_bytes()).is_err(), "lists are values");
    }

    #[test]
    fn what_is_no_list_of_ids_is_read_as_it_is() {
        for prompt in [
            json!([]),
            json!("x"),
            json!(["a", "b"]),
            json!([1, 2, "x", [3]]),
            json!([[1], 2, [3]]),
            json!([[1], [2, null]]),
            json!([[1], [[2], [3]]]),
            json!([[[1], [2]], [3]]),
            json!([1, 4_294_967_296_u64, 3]),
            json!([1, -1, 2.5, true, null, {"a": [1]}]),
            json!(7),
            json!({"prompt": [1]}),
        ] {
            let body = json!({"model": "m", "prompt": prompt, "more": {"prompt": [1, 2]}});
            assert_eq!(read(&body.to_string()), (body, None));
        }
        let twice = r#"{"prompt": [1, 2], "prompt": "x"}"#;
        assert_eq!(read(twice), (json!({"prompt": "x"}), None));
        let list = json!([1, {"prompt": [1]}]);
        assert_eq!(read(&list.to_string()), (list, None));
        let chat = TreeReading::new(false);
        assert_eq!(chat.read(br#"{"prompt": [1, 2]}"#).unwrap(), json!({"prompt": [1, 2]}));
    }

    #[test]
    fn values_are_counted() {
        for (text, most) in [
            ("[1, [], {}, \"a\"]", 10),
            (r#"{"a": {"b": [null, true]}}"#, 15),
            (r#"{"prompt": [1, 2, "x"]}"#, 9),
            (r#"{"prompt": [[1, 2], [3], {}]}"#, 17),
        ] {
            let reading = TreeReading::of(most + 1, true);
            assert!(reading.read(text.as_bytes()).is_ok() && reading.too_many().is_none(), "{text}");
            let reading = TreeReading::of(most - 1, true);
            assert!(reading.read(text.as_bytes()).is_err() && reading.too_many().is_some(), "{text}");
        }
        assert!(TreeReading::new(true).read(b"[1] x").is_err());
    }
}
