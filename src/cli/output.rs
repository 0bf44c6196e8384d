//! Standard output and notes on stderr. A reader that has seen enough closes the pipe: that ends the program quietly, with success.
//!
//! Everything is printed through here, and control characters in it are shown and not obeyed.

use std::{
    fs,
    io::{self, ErrorKind, Write},
    path::Path,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use serde::Serialize;

use crate::{
    base::one_line::counted,
    cli::{
        build, escape,
        failure::{Exit, Failure},
    },
    recording::trace::TraceError,
};

const ERASE_LINE: &str = "\r\x1b[2K";

/// True if only warnings and errors are printed on stderr (`-q`).
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Leaves out notes from now on.
pub(in crate::cli) fn be_quiet() {
    IS_QUIET.store(true, Relaxed);
}

/// Returns true if notes are left out.
pub(in crate::cli) fn is_quiet() -> bool {
    IS_QUIET.load(Relaxed)
}

/// Writes all of `text` to stdout.
pub(in crate::cli) fn print(text: &str) -> Result<ExitCode, Failure> {
    write(escape::text(text).as_bytes())
}

/// Writes a file that was requested beside what is printed. Where the disk is full, no part of it stays.
pub(in crate::cli) fn save(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::environment(format!("{}: {error}", path.display()));
    let mut file = fs::File::create(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(|error| {
        if fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) {
            let _gone = fs::remove_file(path);
        }
        failed(error)
    })
}

/// Returns true if two paths name one file that exists.
pub(in crate::cli) fn is_same_file(one: &Path, other: &Path) -> bool {
    fs::canonicalize(one).is_ok_and(|one| fs::canonicalize(other).is_ok_and(|other| one == other))
}

/// Writes a result as JSON to stdout, with the build that it is of.
pub(in crate::cli) fn print_json(value: &impl Serialize) -> Result<ExitCode, Failure> {
    print_plain_json(&build::stamped(value).map_err(Failure::environment)?)
}

/// Writes a result as JSON or as text, and gives the exit code of whether it holds.
pub(in crate::cli) fn verdict<R: Serialize>(
    holds: bool,
    as_json: bool,
    json: impl FnOnce() -> R,
    text: impl FnOnce() -> String,
) -> Result<ExitCode, Failure> {
    if as_json { print_json(&json()) } else { print(&text()) }?;
    Ok(Exit::unless(holds))
}

/// Writes `value` as JSON to stdout, and nothing else.
pub(in crate::cli) fn print_plain_json(value: &impl Serialize) -> Result<ExitCode, Failure> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::environment)?;
    write(format!("{}\n", escape::json(&text)).as_bytes())
}

/// Writes to stdout what is too long to be kept, and has no control characters.
pub(in crate::cli) fn stream(
    write: impl FnOnce(&mut io::BufWriter<io::StdoutLock<'static>>) -> io::Result<()>,
) -> Result<ExitCode, Failure> {
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    ended(write(&mut stdout).and_then(|()| stdout.flush()))
}

fn write(bytes: &[u8]) -> Result<ExitCode, Failure> {
    let mut stdout = io::stdout().lock();
    ended(stdout.write_all(bytes).and_then(|()| stdout.flush()))
}

fn ended(written: io::Result<()>) -> Result<ExitCode, Failure> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::environment(format!("cannot write to stdout: {error}")))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Returns true if a trace could not be written because the reader of a pipe had seen enough.
pub(in crate::cli) fn is_closed_pipe(error: &TraceError) -> bool {
    matches!(error, TraceError::Io { source, .. } if source.kind() == ErrorKind::BrokenPipe)
}

/// Prints a note on stderr, unless it is quiet.
pub(in crate::cli) fn note(text: &str) {
    if !IS_QUIET.load(Relaxed) {
        warn(text);
    }
}

/// Prints what was done; where it is quiet, what stands below the first line: that is what went wrong.
pub(in crate::cli) fn summary(text: &str) {
    let below = text.split_once('\n').map_or("", |(_, below)| below);
    warn(if IS_QUIET.load(Relaxed) { below } else { text });
}

/// Formats a line for each count that is not zero: its noun, and what is said of it.
pub(in crate::cli) fn counts(counts: &[(u64, &str, &str)]) -> String {
    let some = counts.iter().filter(|(count, ..)| *count > 0);
    some.map(|(count, noun, what)| format!("  {} {what}\n", counted(*count, noun))).collect()
}

/// Prints on stderr what is wrong; a closed stderr is no failure.
pub(in crate::cli) fn warn(text: &str) {
    let _closed = io::stderr().lock().write_all(escape::text(text).as_bytes());
}

/// Replaces the last line of a terminal's stderr.
pub(in crate::cli) fn replace_line(text: &str) {
    let _closed = io::stderr().lock().write_all(format!("{ERASE_LINE}{}", escape::text(text)).as_bytes());
}

/// Quotes a word for a shell; recorded text may hold any character.
pub(in crate::cli) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Quotes a word for a shell where it needs that.
pub(in crate::cli) fn shell_word(word: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "-_./:=@%+,".contains(char);
    if !word.is_empty() && word.chars().all(is_plain) { word.to_owned() } else { quoted(word) }
}
