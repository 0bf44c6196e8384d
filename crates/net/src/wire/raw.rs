//! JSON objects of which only some fields are read, without copying.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;

/// The fields of an object as JSON text; those that are null count as missing.
#[derive(Debug, Default)]
pub struct RawObject<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> RawObject<'a> {
    /// Reads an object; `None` where the text is none.
    #[must_use]
    pub fn read(json: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }

    /// Reads the object that a field has.
    #[must_use]
    pub fn object(&self, name: &str) -> Option<Self> {
        Self::read(self.get(name)?.get().as_bytes())
    }

    /// A field; of one that is there twice the last, as other readers have it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        let last = self.0.iter().rev().find(|(known, _)| known == name).map(|(_, value)| *value);
        last.filter(|value| value.get() != "null")
    }

    /// Returns true if a field is there more than once, null or not.
    #[must_use]
    pub fn has_twice(&self, name: &str) -> bool {
        self.0.iter().filter(|(known, _)| known == name).nth(1).is_some()
    }

    /// A field's value; `None` where it has another type.
    #[must_use]
    pub fn value<T: Deserialize<'a>>(&self, name: &str) -> Option<T> {
        serde_json::from_str(self.get(name)?.get()).ok()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for RawObject<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

#[derive(Deserialize)]
struct FieldName<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> de::Visitor<'de> for FieldsVisitor {
    type Value = RawObject<'de>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: de::MapAccess<'de>>(self, mut map: M) -> Result<RawObject<'de>, M::Error> {
        let mut fields = Vec::with_capacity(map.size_hint().unwrap_or(8));
        while let Some((FieldName(name), value)) = map.next_entry::<FieldName<'de>, &'de RawValue>()? {
            fields.push((name, value));
        }
        Ok(RawObject(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_where_they_stand() {
        let json = br#"{"a": {"n": 7}, "b": null, "\u0063": [1]}"#;
        let object = RawObject::read(json).unwrap();
        assert_eq!(object.object("a").unwrap().value::<u32>("n"), Some(7));
        assert!(object.get("b").is_none() && object.object("c").is_none() && object.value::<u32>("c").is_none());
        assert_eq!(object.value::<Vec<u32>>("c"), Some(vec![1]));
        let twice = RawObject::read(br#"{"a": 1, "a": 2, "b": 1, "b": null}"#).unwrap();
        assert_eq!((twice.value("a"), twice.value::<u32>("b")), (Some(2), None));
        for other in ["[1]", "1", "{", ""] {
            assert!(RawObject::read(other.as_bytes()).is_none(), "{other}");
        }
    }
}
