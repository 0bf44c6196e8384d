//! What a cassette's owner may want to know, though it is no mistake.

use std::collections::HashMap;

use crate::{
    cassette::{Cassette, Record},
    identity::{Call, Rules, volatile_text},
};

/// Each with file and line: records that are never played, requests that are equal, texts that will be others the next time.
pub(super) fn notes(cassette: &Cassette) -> Vec<String> {
    let rules = Rules {
        ignored: cassette.header.ignore.iter().filter_map(|path| path.parse().ok()).collect(),
        scrubs: cassette.header.scrub.iter().filter_map(|edit| edit.parse().ok()).collect(),
        ..Rules::default()
    };
    let (mut notes, mut first) = (Vec::new(), HashMap::new());
    for record in &cassette.records {
        let mut note = |what: String| notes.push(format!("{}:{}: {what}", cassette.path.display(), record.line));
        let Record { method, path, headers, .. } = record;
        if record.aborted.is_some() {
            note(format!("record {} is never played: its client left", record.id));
            continue;
        }
        let identity = rules.identify(&Call { method, path, headers, body: &record.compared() });
        match first.get(&identity.key) {
            Some(earlier) => {
                note(format!("record {} asks the same as record {earlier}; they are played in this order", record.id))
            }
            None => drop(first.insert(identity.key, record.id)),
        }
        if let Some(found) = volatile_text(&identity.body) {
            note(format!(
                "record {} asks with `{found}`, which may be another text the next time (scrub, ignore)",
                record.id
            ));
        }
    }
    notes
}
