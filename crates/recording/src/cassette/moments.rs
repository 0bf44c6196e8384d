//! The events of an answer. Those of a file are read on first use: most of a large cassette is events, and a test
//! plays a few of its records.

use std::{
    ops::{Deref, DerefMut},
    sync::OnceLock,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::side::Moment;

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
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.raw.is_none() && self.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
