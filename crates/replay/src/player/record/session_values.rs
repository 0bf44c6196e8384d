//! The values in the requests of each session, which answers may have again.

use std::{collections::HashMap, fmt};

use crate::player::secrets::AnsweredValues;
use recording::{
    cassette::{CassetteRecord, ValueSource},
    redaction::{Placeholder, SeenSecrets},
};

/// Bytes of values that are remembered; further ones are not.
const MOST_BYTES: usize = 16 << 20;

type ValueKey = (Box<str>, Box<str>);

/// Values in the requests of each session, with the first record that has them.
#[derive(Default)]
pub(crate) struct SessionValues {
    of: HashMap<ValueKey, (u64, Placeholder)>,
    bytes: usize,
}

impl fmt::Debug for SessionValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionValues({})", self.of.len())
    }
}

impl SessionValues {
    /// Notes in a record where the values of its answer stand that are in an earlier request of its session.
    pub(crate) fn name_in(&self, record: &mut CassetteRecord, session: &str, answered: &AnsweredValues) {
        for (placeholder, value) in answered.0.iter() {
            if let Some((id, source)) = self.of.get(&(session.into(), value.clone())) {
                let source = ValueSource { placeholder: source.clone(), record: Some(*id) };
                record.put_back.push((placeholder.clone(), source));
            }
        }
    }

    /// Remembers the values of a record's request.
    pub(crate) fn add(&mut self, id: u64, session: &str, requested: &SeenSecrets) {
        // Of several placeholders for one value the first by its name, whatever order the values come in.
        let mut values: Vec<(Placeholder, &str)> = requested.values().collect();
        values.sort_unstable();
        for (placeholder, value) in values {
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
    use recording::redaction::{RedactionRules, Redactor};

    #[test]
    fn values_are_known_in_their_session_and_bounded() {
        let rules = RedactionRules::all();
        let mut redactor = Redactor::new(&rules);
        drop(redactor.text("jane@example.org"));
        let mut earlier = SessionValues::default();
        earlier.add(7, "a", &redactor.seen());
        earlier.add(8, "a", &redactor.seen());
        let placeholder: Placeholder = "email:3".parse().unwrap();
        let answered = AnsweredValues(vec![(placeholder.clone(), "jane@example.org".into())]);
        let named = |session: &str| {
            let mut record = CassetteRecord::default();
            earlier.name_in(&mut record, session, &answered);
            record.put_back
        };
        assert_eq!(named("a"), [(placeholder, "email:1 of 7".parse().unwrap())]);
        assert_eq!(named("b"), []);
        let mut of_many = Redactor::new(&rules);
        for name in ["token", "secret", "password", "api_key", "dsn", "cvv"] {
            assert!(of_many.header(name, "dishwasher-42").is_some());
        }
        let mut earlier = SessionValues::default();
        earlier.add(7, "a", &of_many.seen());
        let source = earlier.of.values().next().map(|(_, source)| source.short());
        assert_eq!(source.as_deref(), Some("api_key:1"), "the first of several by its name");
        let large = format!("{}@example.org", "a".repeat(1 << 20));
        let mut full = SessionValues::default();
        for at in 0..20 {
            let mut redactor = Redactor::new(&rules);
            drop(redactor.text(&format!("{at}{large}")));
            full.add(at, "a", &redactor.seen());
        }
        assert!(full.bytes <= MOST_BYTES && full.of.len() == 15, "{}", full.of.len());
    }
}
