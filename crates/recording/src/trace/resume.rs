//! Going on in a trace that is there: in place, after a look at its head and its tail.
//!
//! See docs/decisions/0057-append-in-place.md.

use std::{
    fs::{File, OpenOptions, remove_file},
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use super::{
    CreateMode, Meta, TraceError, TraceReader, TraceWriter,
    gunzip::Gunzip,
    output::{OutputUnit, TraceOutput, claim, open, private},
    several::shared,
    source::Packing,
    tail::{self, Repair, Survey},
    write::EarlierCapture,
};

/// Opens a trace to be appended to.
pub(super) fn resume(path: &Path, meta: &Meta, packing: Packing) -> Result<TraceWriter, TraceError> {
    let failed = |doing| move |source| TraceError::Io { path: path.to_owned(), doing, source };
    let file = OpenOptions::new().read(true).append(true).open(path).map_err(failed("open"))?;
    claim(path, &file)?;
    check_head(path, meta)?;
    let found = tail::survey(&file, packing).map_err(failed("append to"))?;
    let file = private(file).map_err(failed("append to"))?;
    let length = match found.repair {
        Some(repair) => mend(path, &file, packing, repair).map_err(failed("write"))?,
        None => file.metadata().map_err(failed("append to"))?.len(),
    };
    report(path, &found);
    let mut writer = TraceWriter::over(path, meta, packing, TraceOutput::of_file(file, length));
    if length == 0 {
        writer.write_meta()?;
    }
    writer.flush()?;
    Ok(writer.after(before(&found)))
}

fn before(found: &Survey) -> EarlierCapture {
    let (is_uncounted, records) = match &found.end {
        Some(end) if !found.is_whole => (false, end.records),
        Some(_) => (false, found.records),
        None => (!found.is_whole, found.records),
    };
    let dropped = found.end.as_ref().map_or(0, |end| end.dropped);
    EarlierCapture { offset: found.last, dropped, records, is_uncounted }
}

/// Checks the first line and the first record.
fn check_head(path: &Path, meta: &Meta) -> Result<(), TraceError> {
    let mut reader = TraceReader::open(path)?;
    if let Some(Err(error)) = reader.next() {
        return Err(error);
    }
    let mut fields = shared(reader.meta()).into_iter().zip(shared(meta));
    // One of both may be without a tokenizer.
    let is_other = |old: &Option<String>, new: &Option<String>, field| {
        old != new && (field != "tokenizer" || (old.is_some() && new.is_some()))
    };
    match fields.find(|((field, old), (_, new))| is_other(old, new, *field)) {
        Some(((field, _), _)) => Err(TraceError::Mismatch { path: path.to_owned(), field }),
        None => Ok(()),
    }
}

/// Cuts the tail and writes again what was whole of it; returns the file's length. What is cut is in a file beside it until then.
fn mend(path: &Path, mut file: &File, packing: Packing, repair: Repair) -> io::Result<u64> {
    let saved = if repair.keep > 0 { Some(save(path, file, repair.at)?) } else { None };
    file.set_len(repair.at)?;
    let mut lines = OutputUnit::of(packing);
    if let Some((_, saved)) = &saved {
        let mut kept = Gunzip::new(BufReader::new(saved)).take(repair.keep);
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = kept.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            lines.push(buffer.get(..read).unwrap_or_default())?;
            if lines.is_full() {
                file.write_all(&lines.take()?)?;
            }
        }
    }
    if repair.needs_line_end {
        lines.push(b"\n")?;
    }
    file.write_all(&lines.take()?)?;
    if let Some((beside, _)) = saved {
        remove_file(beside)?;
    }
    Ok(file.metadata()?.len())
}

/// Copies a file from `at` on to a new one beside it.
fn save(path: &Path, mut file: &File, at: u64) -> io::Result<(PathBuf, File)> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.tail", std::process::id()));
    let beside = PathBuf::from(beside);
    drop(open(&beside, CreateMode::New).map_err(io::Error::other)?);
    let mut saved = OpenOptions::new().read(true).append(true).open(&beside)?;
    file.seek(SeekFrom::Start(at))?;
    io::copy(&mut file, &mut saved)?;
    saved.seek(SeekFrom::Start(0))?;
    Ok((beside, saved))
}

fn report(path: &Path, found: &Survey) {
    let path = path.display();
    if found.repair.is_some_and(|repair| repair.is_cut) {
        tracing::warn!(%path, "the last line was cut and is left out; the complete records before it were kept");
    }
    if found.bad_lines > 0 {
        tracing::warn!(%path, lines = found.bad_lines, "the trace has lines that are no records; they stay");
    }
}
