//! Values that a recording saw in requests: an answer may have one that its own request does not have.

use std::collections::HashMap;

use super::AnsweredValues;
use recording::{
    cassette::{Record, ValueSource},
    redaction::{Placeholder, Seen},
};

/// Bytes of values that are remembered; further ones are not.
const MOST_BYTES: usize = 16 << 20;

/// A session and a value.
type ValueKey = (Box<str>, Box<str>);

/// Values in the requests of each session, with the first record that has them.
#[derive(Default)]
pub(in crate::player) struct EarlierValues {
    of: HashMap<ValueKey, (u64, Placeholder)>,
    bytes: usize,
}

impl std::fmt::Debug for EarlierValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EarlierValues({})", self.of.len())
    }
}

impl EarlierValues {
    /// Notes in a record where the values of its answer stand that are in an earlier request of its session.
    pub(in crate::player) fn name_in(&self, record: &mut Record, session: &str, answered: &AnsweredValues) {
        for (placeholder, value) in answered.0.iter() {
            if let Some((id, source)) = self.of.get(&(session.into(), value.clone())) {
                let source = ValueSource { placeholder: source.clone(), record: Some(*id) };
                record.put_back.push((placeholder.clone(), source));
            }
        }
    }

    /// Remembers the values of a record's request.
    pub(in crate::player) fn add(&mut self, id: u64, session: &str, asked: &Seen) {
        for (placeholder, value) in asked.values() {
            let key: ValueKey = (session.into(), value.into());
            let bytes = session.len() + value.len() + size_of::<(ValueKey, u64, Placeholder)>();
            if self.bytes + bytes <= MOST_BYTES && !self.of.contains_key(&key) {
                self.bytes += bytes;
                self.of.insert(key, (id, placeholder));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use recording::redaction::{Redactor, Rules};

    #[test]
    fn values_are_known_in_their_session_and_bounded() {
        let rules = Rules::all();
        let mut redactor = Redactor::new(&rules);
        drop(redactor.text("jane@example.org"));
        let mut earlier = EarlierValues::default();
        earlier.add(7, "a", &redactor.seen());
        earlier.add(8, "a", &redactor.seen());
        let placeholder: Placeholder = "email:3".parse().unwrap();
        let answered = AnsweredValues(vec![(placeholder.clone(), "jane@example.org".into())]);
        let named = |session: &str| {
            let mut record = Record::default();
            earlier.name_in(&mut record, session, &answered);
            record.put_back
        };
        assert_eq!(named("a"), [(placeholder, "email:1 of 7".parse().unwrap())]);
        assert_eq!(named("b"), []);
        let large = format!("{}@example.org", "a".repeat(1 << 20));
        let mut full = EarlierValues::default();
        for at in 0..20 {
            let mut redactor = Redactor::new(&rules);
            drop(redactor.text(&format!("{at}{large}")));
            full.add(at, "a", &redactor.seen());
        }
        assert!(full.bytes <= MOST_BYTES && full.of.len() == 15, "{}", full.of.len());
    }
}
