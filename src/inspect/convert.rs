//! Files of requests, from one format to another: what prompts shared before and after, and what was left out.

use std::{
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
    fs,
    path::Path,
};

use serde::Serialize;

use super::sharing::KnownBlocks;
use crate::{
    base::one_line::one_line,
    recording::{
        formats::{self, ConversionTarget, FormatError, Head, Losses, ReadOptions, RequestWriter},
        trace::Record,
    },
};

/// Distinct blocks that are counted one by one; of more of them a part that is drawn by their hashes is.
const COUNTED_BLOCKS: usize = 1 << 22;

/// Result of a conversion. [`Display`] formats it for people.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConvertReport {
    /// The file that was read.
    pub from: NamedFile,
    /// The file that was written.
    pub to: NamedFile,
    /// Requests that were read; further choices of one are none.
    pub requests: u64,
    /// What an unbounded prefix cache could reuse of the prompts, by the hashes that were read.
    pub before: IdealHits,
    /// The same by the hashes that were written.
    pub after: IdealHits,
    /// Counts of what was left out, by what it is.
    pub lost: BTreeMap<String, u64>,
}

/// A file and its format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NamedFile {
    /// Its name.
    pub path: String,
    /// Its format.
    pub format: &'static str,
}

/// Hits of an unbounded cache.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct IdealHits {
    /// Tokens of a block.
    pub block_size: u32,
    /// Blocks of all prompts, those that are not full included where the format has hashes of them.
    pub blocks: u64,
    /// Share of the blocks that an earlier prompt had too; `None` without blocks.
    pub hit_rate: Option<f64>,
    /// The share is estimated, since there are too many different blocks to count them one by one.
    pub is_estimated: bool,
}

/// Reads a file of requests and writes them in another format. Nothing of the written file stays where that fails.
///
/// # Errors
/// When one cannot be read, or the other not written.
pub fn convert(path: &Path, options: &ReadOptions, target: &ConversionTarget) -> Result<ConvertReport, FormatError> {
    let mut conversion = TraceConversion::of(target);
    let read = formats::read(path, options, &mut |head, record| conversion.take(head, record));
    let written = read.and_then(|(kind, lost)| Ok((kind, lost, conversion.finish()?)));
    if written.is_err() && conversion.has_begun && target.path.is_file() {
        let _gone = fs::remove_file(&target.path);
    }
    let (kind, mut lost, more) = written?;
    lost.join(&more);
    let named = |path: &Path, format| NamedFile { path: path.display().to_string(), format };
    let TraceConversion { requests, sizes, before, after, .. } = conversion;
    Ok(ConvertReport {
        from: named(path, kind.name()),
        to: named(&target.path, target.kind.name()),
        requests,
        before: IdealHits::of(&before, sizes.0),
        after: IdealHits::of(&after, sizes.1),
        lost: lost.list().into_iter().collect(),
    })
}

struct TraceConversion<'a> {
    target: &'a ConversionTarget,
    writer: Option<RequestWriter>,
    /// The file was created here.
    has_begun: bool,
    requests: u64,
    sizes: (u32, u32),
    before: KnownBlocks,
    after: KnownBlocks,
    blocks: Vec<u64>,
}

impl<'a> TraceConversion<'a> {
    fn of(target: &'a ConversionTarget) -> Self {
        let known = || KnownBlocks::bounded(COUNTED_BLOCKS);
        let (before, after) = (known(), known());
        Self { target, writer: None, has_begun: false, requests: 0, sizes: (0, 0), before, after, blocks: Vec::new() }
    }

    fn take(&mut self, head: &Head, record: Record) -> Result<(), FormatError> {
        let from = head.block_size();
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => {
                let writer = RequestWriter::create(self.target, head)?;
                (self.has_begun, self.sizes) = (true, (from, writer.block_size()));
                self.writer.insert(writer)
            }
        };
        if record.choice.unwrap_or(0) == 0 {
            self.requests += 1;
            self.blocks.clear();
            self.blocks.extend_from_slice(&record.block_hashes);
            self.blocks.extend(head.tail_of(&record));
            self.before.insert(&self.blocks);
        }
        writer.push(record, &mut |blocks| self.after.insert(blocks))
    }

    fn finish(&mut self) -> Result<Losses, FormatError> {
        let Some(writer) = self.writer.take() else { return Ok(Losses::default()) };
        writer.finish(&mut |blocks| self.after.insert(blocks))
    }
}

impl IdealHits {
    fn of(known: &KnownBlocks, block_size: u32) -> Self {
        let (blocks, hit_rate) = (known.blocks(), known.repeated());
        Self { block_size, blocks, hit_rate, is_estimated: known.is_estimated() }
    }
}

impl Display for ConvertReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (what, file) in [("from", &self.from), ("to", &self.to)] {
            writeln!(f, "{what:<16}{} ({})", one_line(&file.path), file.format)?;
        }
        writeln!(f, "{:<16}{}", "requests", self.requests)?;
        for (what, hits) in [("ideal before", &self.before), ("ideal after", &self.after)] {
            writeln!(f, "{what:<16}{hits}")?;
        }
        let mut label = "lost";
        for (what, count) in &self.lost {
            writeln!(f, "{label:<16}{count} {}", one_line(what))?;
            label = "";
        }
        Ok(())
    }
}

impl Display for IdealHits {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(rate) = self.hit_rate else { return f.write_str("no hashes of prompts") };
        let about = if self.is_estimated { "about " } else { "" };
        write!(f, "{about}{:.1} % hits of {} blocks of {} tokens", rate * 100.0, self.blocks, self.block_size)
    }
}
