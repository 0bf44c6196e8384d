//! Large bodies that are no text, and large texts: files of their own in the sidecar, `NAME.vcr/blobs/sha256-…`.

use std::{
    borrow::Cow,
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{
    large,
    private_file::write,
    record::{AnswerContent, CassetteRecord},
    side::{make_folder, read_file, sidecar_of},
};

const PREFIX: &str = "sha256-";

/// Bodies of more bytes are files of their own.
const LARGEST_INLINE: usize = 1024;

/// Describes bytes for a comparison: their number and digest.
#[must_use]
pub fn named_bytes(bytes: &[u8]) -> Value {
    json!({"bytes": bytes.len(), "sha256": digest(bytes)})
}

/// The SHA-256 digest of bytes, in hexadecimal digits.
fn digest(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name of a body that is a file of its own; `None` where it stands in the cassette.
pub(super) fn name_of(bytes: &[u8]) -> Option<String> {
    (bytes.len() > LARGEST_INLINE).then(|| format!("{PREFIX}{}", digest(bytes)))
}

pub(super) fn text_name(text: &str) -> String {
    format!("{PREFIX}{}", digest(text.as_bytes()))
}

/// Returns true if a text has the form of such a name.
pub(super) fn is_name(name: &str) -> bool {
    let digits = name.strip_prefix(PREFIX).filter(|digits| digits.len() == 64);
    digits.is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

/// The most bytes of all texts and bodies that a cassette's records name: a small cassette may name a large file many times.
pub(super) const MOST_BYTES: u64 = 1 << 30;

/// Reads a body by its name. It takes of `room`, the bytes that are left to those of the cassette.
pub(super) fn read(cassette: &Path, name: &str, room: &mut u64) -> Result<Vec<u8>, String> {
    let digits = name.strip_prefix(PREFIX);
    if !is_name(name) {
        return Err(format!("`body_blob` has to be the name of a file, sha256-…, not `{name}`"));
    }
    let cassette = finished(cassette);
    let path = folder(&cassette).join(name);
    let too_many = || {
        format!(
            "{} is one too many: the files that records name are more than {MOST_BYTES} bytes in memory; split the cassette",
            path.display()
        )
    };
    if fs::symlink_metadata(&path).is_ok_and(|found| found.len() > *room) {
        return Err(too_many());
    }
    let bytes = read_file(&cassette, &path)
        .map_err(|error| format!("`body_blob` cannot be read: {}: {error}", path.display()))?;
    if bytes.len() as u64 > *room {
        return Err(too_many());
    }
    if digits.is_none_or(|digits| !digits.eq_ignore_ascii_case(&digest(&bytes))) {
        return Err(format!("{} is damaged: its bytes are not those of its name", path.display()));
    }
    *room = room.saturating_sub(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    Ok(bytes)
}

/// Writes the bodies of records that are files of their own; those that are there stay.
///
/// # Errors
/// When one cannot be written.
pub fn write_blobs<'a>(cassette: &Path, records: impl Iterator<Item = &'a CassetteRecord>) -> io::Result<()> {
    write_new_blobs(cassette, records, &mut HashSet::new()).map(drop)
}

/// As [`write_blobs`], without the messages that were seen before; returns the files that are new.
pub(super) fn write_new_blobs<'a>(
    cassette: &Path,
    records: impl Iterator<Item = &'a CassetteRecord>,
    seen: &mut HashSet<usize>,
) -> io::Result<Vec<PathBuf>> {
    let mut new = Vec::new();
    for record in records {
        for (name, bytes) in &blobs(record, seen) {
            let path = folder(cassette).join(name);
            make_folder(cassette, &folder(cassette))?;
            match fs::symlink_metadata(&path) {
                Ok(found) if found.is_file() => {}
                Ok(_) => drop(read_file(cassette, &path)?),
                // A part of one has not the bytes of its name, and takes the room of what follows.
                Err(_) => {
                    write(&path, bytes).inspect_err(|_| drop(fs::remove_file(&path)))?;
                    new.push(path);
                }
            }
        }
    }
    Ok(new)
}

/// The bodies and texts of a record that are files of their own, with their names.
fn blobs<'r>(record: &'r CassetteRecord, seen: &mut HashSet<usize>) -> Vec<(String, Cow<'r, [u8]>)> {
    let answered = if let AnswerContent::Bytes(bytes) = &record.answer.content { Some(bytes.as_slice()) } else { None };
    let bodies = record.raw.as_deref().into_iter().chain(answered);
    let bodies = bodies.filter_map(|bytes| Some((name_of(bytes)?, Cow::Borrowed(bytes))));
    let bytes = |text: Cow<'r, str>| match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    };
    let texts = large::texts(record, seen).into_iter().map(|text| (text_name(&text), bytes(text)));
    bodies.chain(texts).collect()
}

/// The files of a cassette's bodies, whether a record names them or not; without those that are texts of its records.
#[must_use]
pub fn other_blobs_of(cassette: &Path, records: &[CassetteRecord]) -> Vec<PathBuf> {
    let mut seen = HashSet::new();
    let texts: HashSet<String> =
        records.iter().flat_map(|record| large::texts(record, &mut seen)).map(|text| text_name(&text)).collect();
    let is_text = |path: &PathBuf| path.file_name().is_some_and(|name| texts.contains(name.to_string_lossy().as_ref()));
    blobs_of(cassette).into_iter().filter(|path| !is_text(path)).collect()
}

fn blobs_of(cassette: &Path) -> Vec<PathBuf> {
    let is_dir = |folder: &Path| fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir());
    let folder = Some(folder(cassette)).filter(|folder| is_dir(&sidecar_of(cassette)) && is_dir(folder));
    let entries = folder.and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// Removes the files of bodies whose names do not occur in the text of the cassette.
pub(super) fn remove_others(cassette: &Path) -> io::Result<()> {
    // The text decides, since a record that was read does not tell which of its bodies and texts stood in it.
    let text = if cassette.exists() { fs::read_to_string(cassette)? } else { String::new() };
    let named = text.split(PREFIX).skip(1).filter_map(|after| Some(after.get(..64)?.to_ascii_lowercase()));
    let named: HashSet<String> = named.map(|digits| format!("{PREFIX}{digits}")).collect();
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    blobs_of(cassette).into_iter().filter(|path| !named.contains(&name(path))).try_for_each(fs::remove_file)
}

/// Removes these files of a cassette's bodies, and its folders where nothing is left in them.
pub(super) fn remove(cassette: &Path, files: &[PathBuf]) -> io::Result<()> {
    files.iter().try_for_each(fs::remove_file)?;
    // A folder that holds anything stays.
    [folder(cassette), sidecar_of(cassette)].iter().for_each(|folder| drop(fs::remove_dir(folder)));
    Ok(())
}

fn folder(cassette: &Path) -> PathBuf {
    sidecar_of(cassette).join("blobs")
}

/// The cassette that a recording becomes when it is finished, beside which its bodies are already.
fn finished(cassette: &Path) -> PathBuf {
    let is_partial = cassette.extension().is_some_and(|end| end == "partial");
    if is_partial { cassette.with_extension("") } else { cassette.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cassette::{RecordedAnswer, load, rewrite};

    #[test]
    fn large_bodies_are_files_and_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.yaml");
        let large: Vec<u8> = (0..20).flat_map(|_| 0..=250).collect();
        let record = |id, bytes: &[u8]| CassetteRecord {
            id,
            method: "GET".to_owned(),
            path: "/x".to_owned(),
            answer: RecordedAnswer {
                status: 200,
                content: AnswerContent::Bytes(bytes.to_vec()),
                ..RecordedAnswer::default()
            },
            ..CassetteRecord::default()
        };
        let records = vec![record(0, &large), record(1, &[0, 255])];
        let cassette = crate::cassette::Cassette { path: path.clone(), records, ..Default::default() };
        rewrite(&cassette).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let name = name_of(&large).unwrap();
        assert!(text.contains(&format!("body_blob: {name}")) && text.contains("body_base64: AP8="), "{text}");
        let read: Vec<AnswerContent> =
            load(&path).unwrap().records.into_iter().map(|record| record.answer.content).collect();
        assert_eq!(read, [AnswerContent::Bytes(large.clone()), AnswerContent::Bytes(vec![0, 255])]);
        #[cfg(unix)]
        refuses_what_is_no_file(&path, &name, &large);
        for (wrong, message) in [("../../x", "has to be the name"), (name.as_str(), "cannot be read")] {
            fs::write(&path, text.replace(&name, wrong)).unwrap();
            fs::remove_dir_all(folder.path().join("a.vcr/blobs")).ok();
            let error = load(&path).unwrap_err().to_string();
            assert!(error.contains("a.yaml:") && error.contains(message), "{error}");
        }
    }

    /// Checks a cassette with a body of its own after the body, and then the sidecar, has moved behind a link or is a pipe.
    #[cfg(unix)]
    fn refuses_what_is_no_file(path: &Path, name: &str, bytes: &[u8]) {
        use std::os::unix::fs::symlink;
        let (blob, sidecar, away) = (super::folder(path).join(name), sidecar_of(path), path.with_extension("away"));
        let refused = || {
            let error = format!("{:?}", load(path).unwrap_err());
            assert!(error.contains("a link, a pipe or a device is not used"), "{error}");
            assert!(blobs_of(path).is_empty());
        };
        fs::rename(&blob, &away).unwrap();
        symlink(&away, &blob).unwrap();
        refused();
        let record = CassetteRecord {
            answer: RecordedAnswer { content: AnswerContent::Bytes(bytes.to_vec()), ..RecordedAnswer::default() },
            ..CassetteRecord::default()
        };
        assert!(write_blobs(path, std::iter::once(&record)).is_err());
        fs::remove_file(&blob).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &blob, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        refused();
        fs::remove_file(&blob).unwrap();
        fs::rename(&away, &blob).unwrap();
        assert!(load(path).is_ok() && blobs_of(path) == [blob]);
        fs::rename(&sidecar, &away).unwrap();
        symlink(&away, &sidecar).unwrap();
        refused();
        assert!(write_blobs(path, std::iter::once(&record)).is_err());
        fs::remove_file(&sidecar).unwrap();
        fs::rename(&away, &sidecar).unwrap();
    }
}
