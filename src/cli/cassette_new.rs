//! `cassette new`: a cassette to begin with, for those who write one by hand.

use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Write},
    path::Path,
    process::ExitCode,
};

use super::{
    args::NewArgs,
    failure::{Exit, Failure},
    output,
    play_greeting::shell_word,
};
use crate::recording::cassette::{CassetteError, is_cassette};

/// What is written.
const TEMPLATE: &str = include_str!("cassette_new.yaml");

/// Writes the cassette.
///
/// # Errors
/// When a file is there already, or none can be written.
pub(super) fn run(args: &NewArgs) -> Result<ExitCode, Failure> {
    let path = &args.file;
    if !is_cassette(path) {
        return Err(Failure::usage(format!("{} is no name of a cassette: it ends with .yaml", path.display())));
    }
    write(path).map_err(|source| match source.kind() {
        ErrorKind::AlreadyExists => Failure::usage(format!("{} exists", path.display())),
        _ => Failure::new(Exit::Environment, CassetteError::Io { path: path.clone(), source }),
    })?;
    let name = shell_word(&path.to_string_lossy());
    output::note(&format!("{} is written; play it: vllm-vcr play --cassette {name}\n", path.display()));
    Ok(ExitCode::SUCCESS)
}

/// Writes the file with its folder, if there is none of its name.
fn write(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let text = TEMPLATE.replace("FILE", &shell_word(&path.to_string_lossy()));
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(text.as_bytes())
}
