//! Remarks on a cassette that are no errors.

use std::collections::HashMap;

use crate::recording::{
    canonical::volatile_text,
    cassette::{Cassette, Identified, identified, unreached},
    mcp::McpRecord,
};

/// Each with file and line: records that are never played, requests that are equal, texts that will be others the next time.
pub(in crate::cli) fn notes(cassette: &Cassette) -> Vec<String> {
    let rules = cassette.header.rules();
    let (mut notes, mut first) = (Vec::new(), HashMap::new());
    let unreached: HashMap<usize, usize> = unreached(&cassette.records).into_iter().collect();
    for ((at, record), identified) in cassette.records.iter().enumerate().zip(identified(&rules, &cassette.records)) {
        let mut note = |what: String| notes.push(format!("{}:{}: {what}", cassette.path.display(), record.line));
        if record.plays_partly() {
            note(format!("record {} is partial: it is played up to the point where its client left", record.id));
        } else if record.aborted.is_some() {
            let why = if McpRecord::read(record).is_some() { "the call has no response" } else { "its client left" };
            note(format!("record {} is never played: {why}", record.id));
            continue;
        }
        let Identified { identity, known } = identified;
        if record.is_fixture {
            if let Some(earlier) = unreached.get(&at).and_then(|earlier| cassette.records.get(*earlier)) {
                note(format!(
                    "record {} is never played: record {} has the same `match` or a wider one, and no `times`",
                    record.id, earlier.id
                ));
            }
            continue;
        }
        match first.get(&identity.key) {
            Some(earlier) => note(format!(
                "record {} has the same request as record {earlier}; they are played in this order",
                record.id
            )),
            None => drop(first.insert(identity.key, record.id)),
        }
        if let Some(found) = volatile_text(&identity.body_after(known)) {
            note(format!(
                "the request of record {} has `{found}`, which may change from run to run (scrub, ignore)",
                record.id
            ));
        }
    }
    notes
}
