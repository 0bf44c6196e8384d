//! Standard output and notes on stderr. A reader that has seen enough closes the pipe: that ends the program quietly, with success.
//!
//! Everything is printed through here, and control characters in it are shown and not obeyed.

use std::{
    io::{self, ErrorKind, Write},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use serde::Serialize;

use super::{
    escape,
    failure::{Exit, Failure},
};

const ERASE_LINE: &str = "\r\x1b[2K";

/// Whether only what is wrong is printed on stderr (`-q`).
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Leaves out notes from now on.
pub(super) fn be_quiet() {
    IS_QUIET.store(true, Relaxed);
}

/// Writes all of `text` to stdout.
///
/// # Errors
/// When stdout cannot be written, as on a full disk; a closed pipe is no error.
pub(super) fn print(text: &str) -> Result<ExitCode, Failure> {
    write(escape::text(text).as_bytes())
}

/// Writes `value` as JSON to stdout.
///
/// # Errors
/// As [`print`].
pub(super) fn print_json(value: &impl Serialize) -> Result<ExitCode, Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::new(Exit::Environment, error))?;
    write(format!("{}\n", escape::json(&text)).as_bytes())
}

/// Writes to stdout what is too long to be kept, and has no control characters.
///
/// # Errors
/// As [`print`].
pub(super) fn stream(
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
            Err(Failure::new(Exit::Environment, format!("cannot write to stdout: {error}")))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Prints a note on stderr, unless it is quiet.
pub(super) fn note(text: &str) {
    if !IS_QUIET.load(Relaxed) {
        warn(text);
    }
}

/// Prints what was done; where it is quiet, what stands below the first line: that is what went wrong.
pub(super) fn summary(text: &str) {
    let below = text.split_once('\n').map_or("", |(_, below)| below);
    warn(if IS_QUIET.load(Relaxed) { below } else { text });
}

/// Prints on stderr what is wrong; a closed stderr is no failure.
pub(super) fn warn(text: &str) {
    let _closed = io::stderr().lock().write_all(escape::text(text).as_bytes());
}

/// Replaces the last line of a terminal's stderr.
pub(super) fn replace_line(text: &str) {
    let _closed = io::stderr().lock().write_all(format!("{ERASE_LINE}{}", escape::text(text)).as_bytes());
}
