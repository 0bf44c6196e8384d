//! Standard output and notes on stderr. A reader that has seen enough closes the pipe: that ends the program quietly, with success.

use std::{
    io::{self, ErrorKind, Write},
    process::ExitCode,
};

use super::failure::{Exit, Failure};

/// Writes all of `bytes` to stdout.
///
/// # Errors
/// When stdout cannot be written, as on a full disk; a closed pipe is no error.
pub(super) fn print(bytes: &[u8]) -> Result<ExitCode, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::Environment, format!("cannot write to stdout: {error}")))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Prints a note on stderr; a closed stderr is no failure.
pub(super) fn note(text: &str) {
    let _closed = io::stderr().lock().write_all(text.as_bytes());
}
