//! Hashes of a prompt that several choices of one request share: one record has them, and the records after it name its choice in `prompt_of`.
//!
//! Limits: only records of the same group may stand between, so that a reader remembers one prompt; a line that names another choice breaks
//! a rule. A short prompt is repeated.
//!
//! See docs/decisions/0054-hashes-once-per-group.md.

use std::sync::Arc;

use super::{Record, error::Defect, packed::Packed, raw::RawRecord, record_reader::FromLine};

/// Number of hashes from which they are not repeated.
const LEAST: usize = 32;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct SharedPrompt {
    blocks: Arc<Vec<u64>>,
    media: Arc<Vec<String>>,
    whole: Option<u64>,
}

/// The last record with a prompt that others may share.
#[derive(Debug)]
struct LastPrompt<P> {
    group: String,
    choice: u32,
    prompt: P,
}

#[derive(Debug, Default)]
pub(super) struct WrittenPrompt(Option<LastPrompt<SharedPrompt>>);

impl WrittenPrompt {
    /// Returns the choice that was written with the hashes of this record.
    pub(super) fn choice_for(&self, record: &Record) -> Option<u32> {
        let last = self.0.as_ref().filter(|last| Some(&last.group) == record.group.as_ref())?;
        let is_same = last.prompt.blocks == record.block_hashes
            && last.prompt.media == record.mm_hashes
            && last.prompt.whole == record.prompt_hash;
        (is_same && record.choice.is_some()).then_some(last.choice)
    }

    /// Remembers a record that was written with its hashes; forgets the last one if it has too few.
    pub(super) fn wrote(&mut self, record: &Record) {
        let is_long = record.block_hashes.len() + record.mm_hashes.len() >= LEAST;
        self.0 = record.key().filter(|_| is_long).zip(record.prompt()).map(|((group, choice), prompt)| LastPrompt {
            group: group.to_owned(),
            choice,
            prompt,
        });
    }

    /// Forgets the last record: it was not written as it is.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }
}

#[derive(Debug)]
pub(super) struct ReadPrompt<P>(Option<LastPrompt<P>>);

impl<P> Default for ReadPrompt<P> {
    fn default() -> Self {
        Self(None)
    }
}

impl<P> ReadPrompt<P> {
    /// Gives a record the hashes of the choice that it names, and remembers those of its own.
    pub(super) fn complete<R: FromLine<Prompt = P>>(
        &mut self,
        record: &mut R,
        prompt_of: Option<u32>,
    ) -> Result<(), Defect> {
        let Some(named) = prompt_of else {
            if let Some(((group, choice), prompt)) = record.key().zip(record.prompt()) {
                self.0 = Some(LastPrompt { group: group.to_owned(), choice, prompt });
            }
            return Ok(());
        };
        let group = record.key().map(|(group, _)| group);
        match self.0.as_ref().filter(|last| last.choice == named && Some(last.group.as_str()) == group) {
            Some(last) => {
                record.set_prompt(&last.prompt);
                Ok(())
            }
            None => {
                let text = format!("is {named}, but no record of this choice of its group comes before it");
                Err(Defect::field("prompt_of", text))
            }
        }
    }
}

impl FromLine for Record {
    type Prompt = SharedPrompt;

    fn of_line(raw: RawRecord) -> Result<Self, Vec<Defect>> {
        raw.into_record()
    }

    fn key(&self) -> Option<(&str, u32)> {
        self.group.as_deref().zip(self.choice)
    }

    fn prompt(&self) -> Option<SharedPrompt> {
        let (blocks, media) = (Arc::clone(&self.block_hashes), Arc::clone(&self.mm_hashes));
        let has_any = !blocks.is_empty() || !media.is_empty();
        has_any.then_some(SharedPrompt { blocks, media, whole: self.prompt_hash })
    }

    fn set_prompt(&mut self, prompt: &SharedPrompt) {
        self.block_hashes = Arc::clone(&prompt.blocks);
        self.mm_hashes = Arc::clone(&prompt.media);
        self.prompt_hash = prompt.whole;
    }
}

#[derive(Debug, Clone)]
pub(super) struct PackedPrompt {
    chain: Arc<[u64]>,
    has_media: bool,
    whole: Option<u64>,
}

impl FromLine for Packed {
    type Prompt = PackedPrompt;

    fn of_line(raw: RawRecord) -> Result<Self, Vec<Defect>> {
        raw.into_packed()
    }

    fn key(&self) -> Option<(&str, u32)> {
        self.facts.group.as_deref().zip(self.facts.choice)
    }

    fn prompt(&self) -> Option<PackedPrompt> {
        let (chain, has_media) = (Arc::clone(&self.chain), self.facts.has_media);
        let has_any = !chain.is_empty() || has_media;
        has_any.then_some(PackedPrompt { chain, has_media, whole: self.facts.prompt_hash })
    }

    fn set_prompt(&mut self, prompt: &PackedPrompt) {
        self.chain = Arc::clone(&prompt.chain);
        (self.facts.has_media, self.facts.prompt_hash) = (prompt.has_media, prompt.whole);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::trace::{CreateMode, Meta, Store, TraceWriter, check, load, read};

    fn record(group: &str, choice: u32, hashes: usize) -> Record {
        let (block_hashes, last) = (Arc::new((0..hashes as u64).collect()), Some(hashes as u64));
        Record {
            prompt_tokens: 9,
            group: Some(group.to_owned()),
            choice: Some(choice),
            block_hashes,
            prompt_hash: last,
            ..Record::default()
        }
    }

    fn written(records: &[Record]) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let mut writer = TraceWriter::create(&path, &Meta::default(), CreateMode::New).unwrap();
        records.iter().for_each(|record| assert!(writer.append(record).unwrap().is_empty()));
        writer.flush().unwrap();
        (folder, path)
    }

    fn chains(store: &Store) -> Vec<(Vec<u64>, Option<u64>)> {
        store.iter().map(|kept| (kept.chain().to_vec(), kept.prompt_hash())).collect()
    }

    #[test]
    fn a_thousand_choices_have_the_hashes_of_their_prompt_once() {
        let records: Vec<Record> = (0..1000).map(|choice| record("g", choice, 6250)).collect();
        let (_folder, path) = written(&records);
        let size = fs::metadata(&path).unwrap().len();
        assert!(size < 200_000, "{size} bytes");
        assert_eq!(read(&path).unwrap().records, records);
        let store = load(&path, &Arc::default()).unwrap();
        assert!(chains(&store).iter().all(|(chain, whole)| chain.len() == 6250 && *whole == Some(6250)));
        assert!(check(&path).unwrap().findings.is_empty());
    }

    #[test]
    fn lines_that_name_a_prompt_share_its_hashes() {
        let records: Vec<Record> = (0..1000).map(|choice| record("g", choice, 6250)).collect();
        let (_folder, path) = written(&records);
        let read = read(&path).unwrap().records;
        let first = &read[0];
        assert_eq!((read.len(), first.block_hashes.len()), (1000, 6250));
        assert!(read.iter().all(|record| Arc::ptr_eq(&record.block_hashes, &first.block_hashes)));
        assert!(read.iter().all(|record| Arc::ptr_eq(&record.mm_hashes, &first.mm_hashes)));
    }

    #[test]
    fn prompts_and_groups_are_kept_apart_and_short_prompts_are_repeated() {
        let with_media = |choice| Record { mm_hashes: vec!["vcr:1".to_owned(); 40].into(), ..record("m", choice, 0) };
        let alone = Record { group: None, choice: None, ..record("g", 0, 50) };
        let records = [
            record("a", 0, 40),
            record("a", 1, 40),
            record("a", 2, 41),
            record("a", 3, 41),
            record("b", 0, 41),
            record("b", 1, 31),
            record("b", 2, 31),
            alone.clone(),
            alone,
            with_media(0),
            with_media(1),
        ];
        let (_folder, path) = written(&records);
        let text = fs::read_to_string(&path).unwrap();
        let named: Vec<bool> = text.lines().skip(1).map(|line| line.contains("prompt_of")).collect();
        let expected = [false, true, false, true, false, false, false, false, false, false, true];
        assert_eq!(named, expected, "{text}");
        assert_eq!(read(&path).unwrap().records, records);
        let store = load(&path, &Arc::default()).unwrap();
        let whole = Store::from(&read(&path).unwrap());
        assert_eq!(chains(&store), chains(&whole));
        assert!(store.get(10).unwrap().has_media());
    }

    #[test]
    fn a_choice_that_does_not_come_before_is_a_bad_line() {
        let (_folder, path) = written(&[record("a", 0, 40), record("a", 1, 40), record("a", 2, 40)]);
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        fs::write(&path, [lines[0], lines[2], lines[1], lines[3]].join("\n") + "\n").unwrap();
        let found = check(&path).unwrap().findings;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].to_string().contains("prompt_of"), "{}", found[0]);
        let store = load(&path, &Arc::default()).unwrap();
        let sound: Vec<bool> = store.iter().map(|kept| !kept.is_lost()).collect();
        assert_eq!((sound, store.get(2).unwrap().chain().len()), (vec![false, true, true], 40));
    }
}
