//! What is known of one record beside its text: its times, generated ids, and the events of its answer.
//!
//! The events of an answer are read on first use: most of a large cassette is events, and a test plays a few of its records.

use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
    sync::OnceLock,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, value::RawValue};

/// Sidecar data of one record: a line of `timing.jsonl`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Sidecar {
    /// The record.
    pub id: u64,
    /// The [fingerprint](super::RecordedAnswer::fingerprint) of the answer when it was recorded.
    pub answer: String,
    /// When, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_at: Option<String>,
    /// Milliseconds from the request to the end of its answer.
    pub ms: f64,
    /// The ids that the file shows as `call_1`, …
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ids: BTreeMap<String, String>,
    /// Fields at the top of the answer that no two runs share: `id`, `created`, ….
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub head: Map<String, Value>,
    /// The body of an answer that was no stream, as it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The events of a stream.
    #[serde(default, skip_serializing_if = "Moments::is_nothing")]
    pub events: Moments,
    /// Place at which it is written.
    #[serde(skip)]
    pub times: Times,
}

impl Sidecar {
    /// The token counts of the response with all their details, of which the file shows a part; `None` where there are none.
    #[must_use]
    pub fn usage(&self) -> Option<Value> {
        #[derive(Deserialize)]
        struct Counted {
            usage: Value,
        }
        // Most events have none, and are not parsed.
        let of = |json: &str| {
            let counted: Counted = json.contains("\"usage\"").then(|| serde_json::from_str(json).ok())??;
            Some(counted.usage).filter(Value::is_object)
        };
        let last = || self.events.iter().rev().find_map(|Moment(_, data, _)| of(data.as_deref()?));
        self.body.as_deref().and_then(of).or_else(last)
    }
}

/// Time of an event, in milliseconds from the request, its data, and its `event` field.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Moment(
    /// When.
    pub f64,
    /// Its data; null where something in the record was redacted.
    #[serde(default)]
    pub Option<String>,
    /// Its `event` field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub Option<String>,
);

/// Place of the times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Times {
    /// In the sidecar, with generated ids and the events of streams.
    #[default]
    Sidecar,
    /// In the record itself, without anything else of the sidecar.
    Inline,
    /// Nowhere; nothing else of the sidecar is kept either, since every event holds its creation time.
    None,
}

/// Events in their order. Those of a file that are no events are none.
#[derive(Debug, Clone, Default)]
pub struct Moments {
    /// As the file has them, until they are read.
    raw: Option<Box<RawValue>>,
    read: OnceLock<Vec<Moment>>,
}

impl Deref for Moments {
    type Target = [Moment];

    fn deref(&self) -> &[Moment] {
        self.read.get_or_init(|| parsed(self.raw.as_deref()))
    }
}

impl DerefMut for Moments {
    fn deref_mut(&mut self) -> &mut [Moment] {
        let raw = self.raw.take();
        self.read.get_or_init(|| parsed(raw.as_deref()));
        self.read.get_mut().map(Vec::as_mut_slice).unwrap_or_default()
    }
}

fn parsed(raw: Option<&RawValue>) -> Vec<Moment> {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
}

impl From<Vec<Moment>> for Moments {
    fn from(moments: Vec<Moment>) -> Self {
        Self { raw: None, read: OnceLock::from(moments) }
    }
}

impl FromIterator<Moment> for Moments {
    fn from_iter<I: IntoIterator<Item = Moment>>(moments: I) -> Self {
        moments.into_iter().collect::<Vec<_>>().into()
    }
}

impl<'a> IntoIterator for &'a Moments {
    type Item = &'a Moment;
    type IntoIter = std::slice::Iter<'a, Moment>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl PartialEq for Moments {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Serialize for Moments {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.raw {
            Some(raw) => raw.serialize(serializer),
            None => (**self).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Moments {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self { raw: Some(raw), read: OnceLock::new() })
    }
}

impl Moments {
    /// Returns true if no event is known; a list that was not read yet counts as one.
    pub(crate) fn is_nothing(&self) -> bool {
        self.raw.is_none() && self.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_token_counts_are_those_of_the_response() {
        let event = |data: &str| Moment(0.0, Some(data.to_owned()), None);
        let events =
            ["{\"usage\":{\"n\":1}}", "{\"usage\":{\"n\":2,\"d\":{}}}", "{\"usage\":null}", "[DONE]"].map(event);
        let mut side = Sidecar { events: Moments::from(events.to_vec()), ..Sidecar::default() };
        assert_eq!(side.usage().unwrap().to_string(), r#"{"n":2,"d":{}}"#);
        side.body = Some(r#"{"choices":[],"usage":{"n":3}}"#.to_owned());
        assert_eq!(side.usage().unwrap().to_string(), r#"{"n":3}"#);
        assert_eq!(Sidecar::default().usage(), None);
    }

    #[test]
    fn events_are_read_when_they_are_asked_for() {
        let text = r#"[[1.5,"{}"],[2.0,null],[3.0,"x","ping"]]"#;
        let mut moments: Moments = serde_json::from_str(text).unwrap();
        assert!(moments.read.get().is_none() && !moments.is_nothing());
        assert_eq!(serde_json::to_string(&moments).unwrap(), text);
        let expected = vec![
            Moment(1.5, Some("{}".to_owned()), None),
            Moment(2.0, None, None),
            Moment(3.0, Some("x".to_owned()), Some("ping".to_owned())),
        ];
        assert_eq!(moments, Moments::from(expected));
        moments.iter_mut().for_each(|Moment(_, data, _)| *data = None);
        assert_eq!(serde_json::to_string(&moments).unwrap(), r#"[[1.5,null],[2.0,null],[3.0,null,"ping"]]"#);
        assert!(serde_json::from_str::<Moments>(r#"{"no": "list"}"#).unwrap().is_empty());
        assert!(Moments::default().is_nothing());
    }
}
