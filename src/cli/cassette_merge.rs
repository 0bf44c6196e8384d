//! `cassette merge`: puts cassettes together in a new one.

use std::{fs, process::ExitCode};

use super::{
    args::MergeArgs,
    cassettes,
    failure::{Exit, Failure},
    output,
};
use crate::recording::cassette::{self, Cassette, CassetteError, Tokens};

/// Writes the records of all cassettes to one, in the order of the cassettes.
///
/// # Errors
/// When one of them cannot be read, their tops do not go together, or the new one is there or cannot be written.
pub(super) fn run(args: &MergeArgs) -> Result<ExitCode, Failure> {
    let to = &args.output;
    if to.exists() {
        return Err(Failure::usage(format!("{} exists", to.display())).hint("name a new file: -o FILE"));
    }
    let files = cassettes::files(&args.files, &|_| "name cassettes, or the folder that they are in".to_owned())?;
    cassettes::once(&files)?;
    let io = |source| Failure::from(CassetteError::Io { path: to.clone(), source });
    let mut whole: Option<Cassette> = None;
    let mut tokens = Vec::new();
    for file in &files {
        let mut cassette = cassette::load(file)?;
        let mut own = Tokens::read(file).map_err(io)?;
        match &mut whole {
            None => {
                cassette.path.clone_from(to);
                whole = Some(cassette);
            }
            Some(whole) => {
                let numbers = whole.append(cassette).map_err(|entry| {
                    let message = format!("{}: `{entry}` at its top is another one than before", file.display());
                    Failure::new(Exit::BadInput, message).hint("make it the same in both files")
                })?;
                own.iter_mut().for_each(|(id, tokens)| tokens.id = numbers.get(id).copied().unwrap_or(*id));
            }
        }
        tokens.extend(own.into_values());
    }
    let Some(whole) = whole else { return Ok(ExitCode::SUCCESS) };
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(io)?;
    }
    cassette::rewrite(&whole)?;
    Tokens::write(to, &tokens).map_err(io)?;
    output::note(&format!("{}: {} records of {} cassettes\n", to.display(), whole.records.len(), files.len()));
    Ok(ExitCode::SUCCESS)
}
