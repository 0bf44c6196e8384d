//! The program's standard input and output as streams of bytes.

use std::{fs, io, os::fd::AsFd};

use tokio::fs::File;

use super::failure::{Exit, Failure};

/// Opens both.
///
/// # Errors
/// When one of them is closed.
pub(super) fn open() -> Result<(File, File), Failure> {
    let both = || -> io::Result<(File, File)> { Ok((stream(io::stdin())?, stream(io::stdout())?)) };
    both().map_err(|error| Failure::new(Exit::Environment, format!("cannot use stdin and stdout: {error}")))
}

fn stream(standard: impl AsFd) -> io::Result<File> {
    Ok(File::from_std(fs::File::from(standard.as_fd().try_clone_to_owned()?)))
}
