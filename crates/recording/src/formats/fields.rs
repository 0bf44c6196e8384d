//! Fields of an object of another tool's file, each read on demand. An error about a value of a wrong type names its field.

use std::{borrow::Cow, fmt, time::Duration};

use base::{one_line::clipped, units::Millis};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, MapAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

use super::Losses;
use crate::trace::{brief, reason};

/// Maximum number of fields; more than any of these formats has.
const MOST_FIELDS: usize = 4096;
/// Maximum number of characters of a wrong value in an error.
const MOST_SHOWN: usize = 60;
/// Maximum depth of nested objects.
pub(super) const MOST_DEPTH: usize = 16;

/// Fields that were not taken yet.
#[derive(Default)]
pub(super) struct Fields<'a>(Vec<(Cow<'a, str>, Option<&'a RawValue>)>);

#[derive(Deserialize)]
struct FieldKey<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldEntries;
        impl<'de> Visitor<'de> for FieldEntries {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Fields::default();
                while let Some(FieldKey(key)) = map.next_key::<FieldKey<'de>>()? {
                    let value: &RawValue = map.next_value()?;
                    if fields.0.len() >= MOST_FIELDS {
                        return Err(A::Error::custom(format!("more than {MOST_FIELDS} fields")));
                    }
                    fields.0.push((key, Some(value).filter(|value| value.get() != "null")));
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(FieldEntries)
    }
}

impl<'a> Fields<'a> {
    /// Reads an object.
    pub(super) fn parse(text: &'a [u8]) -> Result<Self, String> {
        serde_json::from_slice(text).map_err(|error| {
            format!("is no JSON object, at column {}: {}", error.column(), clipped(&reason(&error), 200))
        })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(key, value)| key == name && value.is_some())
    }

    /// Names of the fields, the first few.
    pub(super) fn names(&self) -> String {
        let names: Vec<String> = self.0.iter().take(8).map(|(key, _)| format!("`{}`", clipped(key, 40))).collect();
        names.join(", ")
    }

    /// Takes the first of some names that the object has.
    fn take(&mut self, names: &[&'static str]) -> Option<(&'static str, &'a RawValue)> {
        names.iter().find_map(|name| {
            let (_, value) = self.0.iter_mut().find(|(key, value)| key == name && value.is_some())?;
            Some((*name, value.take()?))
        })
    }

    /// Takes a field of a type; `expected` names it in errors.
    fn typed<T: DeserializeOwned>(&mut self, names: &[&'static str], expected: &str) -> Result<Option<T>, String> {
        let Some((name, value)) = self.take(names) else { return Ok(None) };
        match serde_json::from_str(value.get()) {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                let is_list = value.get().starts_with(['[', '{']);
                let shown = if is_list { clipped(&reason(&error), 200) } else { clipped(value.get(), MOST_SHOWN) };
                Err(format!("`{name}` is no {expected}: {shown}"))
            }
        }
    }

    pub(super) fn number(&mut self, names: &[&'static str]) -> Result<Option<f64>, String> {
        self.typed(names, "number")
    }

    /// Takes a time, given in units of so many milliseconds.
    pub(super) fn time(&mut self, names: &[&'static str], unit: f64) -> Result<Option<Duration>, String> {
        let name = names.iter().find(|name| self.has(name)).copied().unwrap_or_default();
        let Some(number) = self.number(names)? else { return Ok(None) };
        let units = if unit >= 1000.0 { "seconds" } else { "milliseconds" };
        let time = Millis(number * unit).duration().filter(|_| number >= 0.0);
        time.map(Some).ok_or_else(|| format!("`{name}` {} is no time in {units}", brief(number)))
    }

    /// Takes a number of tokens.
    pub(super) fn count(&mut self, names: &[&'static str]) -> Result<Option<u32>, String> {
        let name = names.iter().find(|name| self.has(name)).copied().unwrap_or_default();
        let Some(number) = self.number(names)? else { return Ok(None) };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
        let count = (number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number)).then_some(number as u32);
        count.map(Some).ok_or_else(|| format!("`{name}` {} is no whole number from 0 to {}", brief(number), u32::MAX))
    }

    pub(super) fn ids(&mut self, names: &[&'static str]) -> Result<Option<Vec<u64>>, String> {
        self.typed(names, "list of whole numbers from 0 on")
    }

    pub(super) fn token_ids(&mut self, names: &[&'static str]) -> Result<Option<Vec<u32>>, String> {
        self.typed(names, "list of token ids")
    }

    pub(super) fn text(&mut self, names: &[&'static str]) -> Result<Option<String>, String> {
        self.typed(names, "text")
    }

    /// Takes a text, or a number as text.
    pub(super) fn name(&mut self, names: &[&'static str]) -> Result<Option<String>, String> {
        Ok(self.typed::<Value>(names, "text")?.and_then(|value| match value {
            Value::String(text) => Some(text),
            Value::Number(number) => Some(number.to_string()),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        }))
    }

    pub(super) fn value(&mut self, names: &[&'static str]) -> Result<Option<Value>, String> {
        self.typed(names, "JSON of so few levels")
    }

    /// As [`value`](Fields::value), with the length of its text.
    pub(super) fn sized_value(&mut self, names: &[&'static str]) -> Result<Option<(usize, Value)>, String> {
        let find = |name: &&'static str| self.0.iter().find_map(|(key, value)| value.filter(|_| key == name));
        let bytes = names.iter().find_map(find).map_or(0, |value| value.get().len());
        Ok(self.value(names)?.map(|value| (bytes, value)))
    }

    /// Takes a list of objects.
    pub(super) fn objects(&mut self, names: &[&'static str]) -> Result<Option<Vec<&'a RawValue>>, String> {
        let Some((name, value)) = self.take(names) else { return Ok(None) };
        serde_json::from_str(value.get()).map(Some).map_err(|_| format!("`{name}` is no list of objects"))
    }

    pub(super) fn object(&mut self, names: &[&'static str]) -> Result<Option<Self>, String> {
        let Some((name, value)) = self.take(names) else { return Ok(None) };
        Self::parse(value.get().as_bytes()).map(Some).map_err(|_| format!("`{name}` is no object"))
    }

    /// Counts the fields that were not taken.
    pub(super) fn lose_rest(&self, losses: &mut Losses) {
        for (key, _) in self.0.iter().filter(|(_, value)| value.is_some()) {
            losses.add(&format!("`{}`", clipped(key, 40)), 1);
        }
    }
}

pub(super) fn required<T>(value: Option<T>, name: &str) -> Result<T, String> {
    value.ok_or_else(|| format!("missing field `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_named_with_their_fields() {
        let text =
            br#"{"a":"x","b":-1,"c":[1,-2],"d":1.5,"e":1e300,"f":null,"g":[[[]]],"h":9007199254740993,"i":600.0}"#;
        let mut fields = Fields::parse(text).unwrap();
        assert!(fields.has("a") && !fields.has("f") && !fields.has("z"));
        assert_eq!(fields.number(&["z", "a"]).unwrap_err(), "`a` is no number: \"x\"");
        assert_eq!(fields.time(&["b"], 1.0).unwrap_err(), "`b` -1 is no time in milliseconds");
        assert!(
            fields.ids(&["c"]).unwrap_err().starts_with("`c` is no list of whole numbers from 0 on: invalid value")
        );
        assert_eq!(fields.count(&["d"]).unwrap_err(), "`d` 1.5 is no whole number from 0 to 4294967295");
        assert!(fields.time(&["e"], 1000.0).unwrap_err().contains("is no time in seconds"));
        assert_eq!(fields.count(&["i"]), Ok(Some(600)));
        assert_eq!(fields.ids(&["f"]), Ok(None));
        let mut losses = Losses::default();
        fields.lose_rest(&mut losses);
        assert_eq!(losses.list(), [("`g`".to_owned(), 1), ("`h`".to_owned(), 1)]);
    }

    #[test]
    fn text_that_is_no_object_is_named_with_its_column() {
        for (text, start) in [
            (&b"{\"a\": NaN}"[..], "is no JSON object, at column 7"),
            (b"[]", "is no JSON object, at column"),
            (b"{\"a\":\"\xff\"}", "is no JSON object, at column"),
        ] {
            let error = Fields::parse(text).err().unwrap();
            assert!(error.starts_with(start), "{error}");
        }
        let many: String = (0..5000).map(|at| format!("\"{at}\":1,")).collect();
        let error = Fields::parse(format!("{{{many}\"z\":1}}").as_bytes()).err().unwrap();
        assert!(error.contains("more than 4096 fields"), "{error}");
        // Depth costs no stack where nobody reads it, and is refused where somebody does.
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let mut fields = Fields::parse(deep.as_bytes()).unwrap();
        assert!(fields.value(&["a"]).unwrap_err().contains("recursion limit"));
    }
}
