//! Large texts: images in messages, base64, long prompts. They are files of their own in the sidecar, and stand in the cassette as
//! `{$blob: sha256-…}`; a text that occurs in many records is there once.
//!
//! What people wrote into the file stays there: a record with a large text in it keeps its texts when it is written again. Words of an answer
//! stay too, however many, so that they can be edited. A map with `$blob` as its only key that is no such name is written with another `$`.
//!
//! See docs/decisions/0078-large-texts-are-beside-the-cassette.md.

use std::{borrow::Cow, collections::HashSet, path::Path};

use serde_json::{Map, Value, json};

use super::{blob, error::Wrong, record::CassetteRecord};
use crate::{
    children::{children, children_mut},
    yaml::{YamlKind, YamlNode},
};

pub(super) const KEY: &str = "$blob";

/// Texts of more bytes are files of their own.
const LARGEST: usize = 4096;

/// Fields of a record that may hold such texts.
const FIELDS: [(&str, LargePart); 2] = [("body", LargePart::Request), ("answer", LargePart::Answer)];

/// Texts of a part of a record that are files of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LargePart {
    Request,
    /// Its words stay.
    Answer,
}

impl LargePart {
    /// Returns true if a text in it is a file of its own.
    pub(super) fn is_beside(self, text: &str) -> bool {
        let is_data = || !text.bytes().any(|byte| byte.is_ascii_whitespace());
        text.len() > LARGEST && (self == Self::Request || is_data())
    }
}

/// Replaces texts of a record's fields, as a file shows them.
pub(super) fn put_beside(fields: &mut Map<String, Value>, is_beside: impl Fn(&str, LargePart) -> bool) {
    for (name, part) in FIELDS {
        fields.get_mut(name).into_iter().for_each(|value| replace(value, &|text| is_beside(text, part)));
    }
}

fn replace(value: &mut Value, is_beside: &dyn Fn(&str) -> bool) {
    children_mut(value).for_each(|(_, value)| replace(value, is_beside));
    match value {
        Value::String(text) if is_beside(text) => *value = json!({KEY: blob::text_name(text)}),
        Value::Object(map) => {
            let escaped = map.keys().next().filter(|key| map.len() == 1 && is_key(key)).map(|key| format!("${key}"));
            if let Some(key) = escaped {
                *map = std::mem::take(map).into_iter().map(|(_, value)| (key.clone(), value)).collect();
            }
        }
        Value::Array(_) | Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns true for the key, however many `$` stand before it.
fn is_key(key: &str) -> bool {
    key.strip_suffix(KEY).is_some_and(|more| more.bytes().all(|byte| byte == b'$'))
}

/// The large texts of a record, without those of messages that were seen before: the messages of a conversation are looked at once.
pub(super) fn texts<'r>(record: &'r CassetteRecord, seen: &mut HashSet<usize>) -> Vec<Cow<'r, str>> {
    let (mut requested, mut answered) = (Vec::new(), Vec::new());
    if record.holds_large {
        return Vec::new();
    }
    if !record.body.fields().is_string() {
        find(record.body.fields(), LargePart::Request, &mut requested);
    }
    for message in record.body.messages().into_iter().flat_map(|messages| messages.backward()) {
        if !seen.insert(std::ptr::from_ref(message).addr()) {
            break;
        }
        find(message, LargePart::Request, &mut requested);
    }
    let shown = record.answer.shown();
    find(&shown, LargePart::Answer, &mut answered);
    let answered: Vec<Cow<'r, str>> = answered.into_iter().map(|text| Cow::Owned(text.to_owned())).collect();
    requested.into_iter().map(Cow::Borrowed).chain(answered).collect()
}

fn find<'v>(value: &'v Value, part: LargePart, found: &mut Vec<&'v str>) {
    found.extend(value.as_str().filter(|text| part.is_beside(text)));
    children(value).for_each(|(_, value)| find(value, part, found));
}

/// Returns true if a record, as it was read, has a large text in it.
pub(super) fn holds_any(record: &YamlNode) -> bool {
    FIELDS.iter().any(|(name, part)| record.get(name).is_some_and(|value| has_any(value, *part)))
}

fn has_any(node: &YamlNode, part: LargePart) -> bool {
    match &node.kind {
        YamlKind::Scalar(Value::String(text)) => part.is_beside(text),
        YamlKind::Scalar(_) => false,
        YamlKind::List(items) => items.iter().any(|item| has_any(item, part)),
        YamlKind::Map(entries) => entries.iter().any(|entry| has_any(&entry.value, part)),
    }
}

/// Reads the texts that a record only names. They take of `room`, the bytes that all records of a cassette may take.
pub(super) fn restore(record: &mut YamlNode, cassette: &Path, room: &mut u64) -> Result<(), Wrong> {
    let YamlKind::Map(entries) = &mut record.kind else { return Ok(()) };
    let fields = entries.iter_mut().filter(|entry| FIELDS.iter().any(|(name, _)| *name == entry.key));
    fields.map(|entry| &mut entry.value).try_for_each(|node| restore_within(node, cassette, room))
}

fn restore_within(node: &mut YamlNode, cassette: &Path, room: &mut u64) -> Result<(), Wrong> {
    let line = node.line;
    match &mut node.kind {
        YamlKind::Scalar(_) => {}
        YamlKind::List(items) => items.iter_mut().try_for_each(|item| restore_within(item, cassette, room))?,
        YamlKind::Map(entries) => {
            if let [only] = entries.as_mut_slice()
                && is_key(&only.key)
            {
                let name = only.value.text().filter(|name| only.key == KEY && blob::is_name(name));
                if let Some(name) = name {
                    let bytes = blob::read(cassette, name, room).map_err(|message| Wrong::at(line, message))?;
                    let text = String::from_utf8(bytes)
                        .map_err(|_| Wrong::at(line, format!("`{KEY}`: {name} is no UTF-8 text")))?;
                    node.kind = YamlKind::Scalar(text.into());
                    return Ok(());
                }
                if only.key != KEY {
                    only.key.remove(0);
                }
            }
            entries.iter_mut().try_for_each(|entry| restore_within(&mut entry.value, cassette, room))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml::parse;

    #[test]
    fn a_text_that_is_named_many_times_takes_memory_each_time_up_to_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let cassette = folder.path().join("a.yaml");
        let text = "word ".repeat(2000);
        let blobs = folder.path().join("a.vcr/blobs");
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::write(blobs.join(blob::text_name(&text)), &text).unwrap();
        let named = format!("body: {{{KEY}: {}}}\n", blob::text_name(&text));
        let (mut room, mut refused) = (25_000, None);
        for _ in 0..3 {
            let mut record = parse(&named).unwrap();
            refused = restore(&mut record, &cassette, &mut room).err().map(|wrong| format!("{wrong:?}"));
        }
        assert_eq!(room, 5000, "two fit");
        assert!(
            refused.is_some_and(|message| message.contains("one too many") && message.contains("split the cassette"))
        );
        let mut room = 25_000;
        let bodies = (0..3).map(|_| blob::read(&cassette, &blob::text_name(&text), &mut room).is_ok());
        assert_eq!(bodies.collect::<Vec<_>>(), [true, true, false], "bodies are counted too");
        let huge = std::fs::File::create(blobs.join(blob::text_name(&text))).unwrap();
        huge.set_len(blob::MOST_BYTES + 1).unwrap();
        let error = blob::read(&cassette, &blob::text_name(&text), &mut { blob::MOST_BYTES }).unwrap_err();
        assert!(error.contains("one too many"), "{error}");
    }
}
