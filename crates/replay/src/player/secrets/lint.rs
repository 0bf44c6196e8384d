//! The secrets that a cassette holds: in its records, around them, and in its sidecar.
//!
//! Records are searched as they are read, and the file as text: comments, names and what has no effect are published too. A
//! sidecar's entry of a record that is as it was recorded is in its answer, which is searched; the other entries are searched
//! themselves.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    fmt,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    SearchedConversation, finds_across, finds_in_copy, redact_answer, redact_request,
    whole::{named_in, redact_tools},
};
use crate::player::record::{assemble, recorder::route_of};
use recording::{
    canonical::SharedList,
    cassette::{
        Cassette, CassetteRecord, Inherited, Moment, RecordedAnswer, Sidecar, bases, other_blobs_of, read_beside,
        text_of, timing_of,
    },
    redaction::{Find, RedactionRules, Redactor, SeenSecrets},
};

/// Digits that a number of any kind may have by chance.
const OF_NUMBERS: &str = "card";

/// A secret and where it is.
#[derive(Debug, Clone)]
pub(crate) struct Leak {
    file: PathBuf,
    /// From 1; `None` where the file has no lines.
    line: Option<usize>,
    find: Find,
}

impl Leak {
    /// Its kind and example, equal for equal secrets.
    fn name(&self) -> (String, String) {
        (self.find.kind.clone(), self.find.example.clone())
    }
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
        let Find { place, kind, example } = &self.find;
        write!(f, "{}{line}: {kind} ({example})", self.file.display())?;
        if place.is_empty() { Ok(()) } else { write!(f, " at {place}") }
    }
}

/// The secrets that a cassette holds, each as `file:line: what`; its sidecar too. What a name shows to be one is one in all of it. One in a message is named once, where the message
/// stands, however many requests repeat it.
#[must_use]
pub fn secrets(rules: &RedactionRules, cassette: &Cassette) -> Vec<String> {
    let named = named_in(rules, cassette).seen();
    let mut redactor = Redactor::new(rules).knowing(&named);
    let mut begun = Inherited::new(&bases(&cassette.records));
    let of_record = |(at, record): (usize, &CassetteRecord)| {
        let earlier =
            begun.of(at).and_then(|(base, begun)| Some((cassette.records.get(base)?.body.messages()?, begun)));
        let (searched, leaks) = leaks_of(&mut redactor, record, earlier, &cassette.path);
        begun.keep(at, searched);
        leaks
    };
    let mut found: Vec<Leak> = cassette.records.iter().enumerate().flat_map(of_record).collect();
    around((rules, &named), cassette, &mut found);
    beside((rules, &named), cassette, &mut found);
    found.iter().map(Leak::to_string).collect()
}

/// Secrets of a record that goes on from messages which were searched before, and how far its own are.
pub(crate) fn leaks_of(
    redactor: &mut Redactor<'_>,
    record: &CassetteRecord,
    earlier: Option<(&SharedList<Value>, SearchedConversation)>,
    file: &Path,
) -> (SearchedConversation, Vec<Leak>) {
    redactor.begin_another();
    let searched = redact_request(redactor, &mut CassetteRecord { side: None, ..record.clone() }, earlier);
    (searched, found_in(redactor, record, file))
}

/// Takes what a redactor found in a record's request, and searches the rest of the record.
pub(crate) fn found_in(redactor: &mut Redactor<'_>, record: &CassetteRecord, file: &Path) -> Vec<Leak> {
    redact_answer(redactor, &mut record.answer.clone());
    record.tags.iter().for_each(|tag| drop(redactor.text(tag)));
    let leak = |find| Leak { file: file.to_owned(), line: Some(record.line), find };
    let mut leaks: Vec<Leak> = redactor.take_finds().into_iter().map(leak).collect();
    if let Some(side) = record.side.as_ref().filter(|_| record.is_edited) {
        search_side(redactor, &record.path, side);
        let timing = timing_of(file);
        let of_record = |find: Find| Find { place: format!("record {} {}", record.id, find.place), ..find };
        let finds = redactor.take_finds().into_iter().map(of_record);
        leaks.extend(finds.map(|find| Leak { file: timing.clone(), line: None, find }));
    }
    leaks
}

/// Searches a sidecar's entry of a record: secrets may be cut over several events.
pub(super) fn search_side(redactor: &mut Redactor<'_>, path: &str, side: &Sidecar) {
    let with_data: Vec<Moment> = side.events.iter().filter(|Moment(_, data, _)| data.is_some()).cloned().collect();
    if !with_data.is_empty() {
        let content = assemble::events(route_of(path), &with_data).content;
        redact_answer(redactor, &mut RecordedAnswer { content, ..RecordedAnswer::default() });
        finds_across(redactor, with_data.iter().filter_map(|Moment(_, data, _)| data.as_deref()));
    }
    side.body.iter().for_each(|body| drop(redactor.json_text(body)));
    side.events.iter().filter_map(|Moment(_, _, name)| name.as_ref()).for_each(|name| drop(redactor.text(name)));
    redactor.json(&mut Value::Object(side.head.clone()));
    side.ids.values().for_each(|id| drop(redactor.text(id)));
}

/// Adds the secrets that are in a file beside its records.
pub(crate) fn around((rules, named): (&RedactionRules, &SeenSecrets), cassette: &Cassette, found: &mut Vec<Leak>) {
    let mut redactor = Redactor::new(rules).knowing(named);
    let mut known = known_of(found);
    let mut add =
        |line: usize, finds: Vec<Find>| merge((&mut *found, &mut known), (cassette.path.as_path(), Some(line)), finds);
    let text = text_of(&cassette.path).unwrap_or_default();
    // A rule may well find itself.
    let (built_in, mut is_rule) = (RedactionRules::default(), false);
    let mut of_rules = Redactor::new(&built_in);
    for (at, line) in text.lines().enumerate() {
        if line.starts_with(|first: char| first.is_ascii_alphabetic()) {
            is_rule = line.starts_with("redact:");
        }
        let searching = if is_rule { &mut of_rules } else { &mut redactor };
        if searching.text(&unescaped(line)).is_some() {
            let finds = searching.take_finds().into_iter().filter(|find| find.kind != OF_NUMBERS);
            add(at + 1, finds.collect());
            searching.begin_another();
        }
    }
    // Values that are secrets by their names.
    redactor.begin_another();
    redactor.fields(&mut cassette.header.recorded.clone());
    add(cassette.line_of("recorded", None), redactor.take_finds());
    redact_tools(&mut redactor, &mut cassette.tools.clone());
    add(cassette.line_of("tools", None), redactor.take_finds());
}

/// A line with spaces for what is escaped in it: the `n` of a line break belongs to no word.
fn unescaped(line: &str) -> Cow<'_, str> {
    if !line.contains('\\') {
        return Cow::Borrowed(line);
    }
    let mut is_escape = false;
    let plain = line.chars().map(|c| {
        let is_part = is_escape || c == '\\';
        is_escape = c == '\\';
        if is_part { ' ' } else { c }
    });
    Cow::Owned(plain.collect())
}

/// Adds what a cassette's sidecar holds, record or not.
fn beside((rules, named): (&RedactionRules, &SeenSecrets), cassette: &Cassette, found: &mut Vec<Leak>) {
    let mut redactor = Redactor::new(rules).knowing(named);
    let mut known = known_of(found);
    let timing = timing_of(&cassette.path);
    let bytes = read_beside(&cassette.path, &timing).unwrap_or_default();
    let paths: HashMap<u64, &str> = cassette.records.iter().map(|record| (record.id, &*record.path)).collect();
    for (at, line) in String::from_utf8_lossy(&bytes).lines().enumerate() {
        redactor.begin_another();
        match serde_json::from_str::<Sidecar>(line) {
            Ok(side) => {
                search_side(&mut redactor, paths.get(&side.id).copied().unwrap_or_default(), &side);
                let copies = side.events.iter().filter_map(|Moment(_, data, _)| data.as_ref());
                for data in copies {
                    finds_in_copy(&mut redactor, data);
                }
            }
            Err(_) => drop(redactor.text(&unescaped(line))),
        }
        merge((&mut *found, &mut known), (timing.as_path(), Some(at + 1)), redactor.take_finds());
    }
    // Texts were searched in their records.
    for blob in other_blobs_of(&cassette.path, &cassette.records) {
        redactor.begin_another();
        drop(read_beside(&cassette.path, &blob).map(|bytes| redactor.bytes(&bytes)));
        merge((&mut *found, &mut known), (blob.as_path(), None), redactor.take_finds());
    }
}

/// The names of secrets that were found.
type KnownLeaks = HashSet<(String, String)>;

fn known_of(found: &[Leak]) -> KnownLeaks {
    found.iter().map(Leak::name).collect()
}

/// Adds what was found at a place and was not known before.
fn merge((found, known): (&mut Vec<Leak>, &mut KnownLeaks), (file, line): (&Path, Option<usize>), finds: Vec<Find>) {
    let new = finds.into_iter().map(|find| Leak { file: file.to_owned(), line, find });
    let new: Vec<Leak> = new.filter(|leak| !known.contains(&leak.name())).collect();
    known.extend(new.iter().map(Leak::name));
    found.extend(new);
}
