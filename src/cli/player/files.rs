//! The files of a player: the cassettes at its paths, and how to record one that is missing.

use std::{
    collections::HashSet,
    fs,
    io::{self, BufRead, ErrorKind::NotFound},
    path::{Path, PathBuf},
};

use super::{
    PlayerSettings,
    args::{CassetteArgs, DEFAULT_FILE},
};
use crate::{
    cli::{failure::Failure, output::shell_word, redaction::shown},
    recording::{
        cassette::{self, Cassette, CassetteError, is_cassette},
        storage::{self, StoredObject},
    },
    replay::player::Mode,
};

/// The files of all paths, each of which may be named once.
pub(super) fn all_files(paths: &[PathBuf], how: &dyn Fn(&Path) -> String) -> Result<Vec<PathBuf>, Failure> {
    let files = files(paths, how)?;
    once(&files).map(|()| files)
}

/// The files of all paths; a directory stands for its cassettes, by name, and then for those of the folders in it.
pub(in crate::cli) fn files(paths: &[PathBuf], how: &dyn Fn(&Path) -> String) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        let io = |source| Failure::from(CassetteError::Io { path: storage::shown(path), source });
        let object = storage::find(path).map_err(io)?;
        if !object.as_ref().map_or_else(|| path.is_dir(), StoredObject::is_folder) {
            files.push(path.clone());
            continue;
        }
        let mut found = storage::entries(path, object.as_ref()).map_err(io)?;
        found.retain(|path| is_cassette(path));
        found.sort();
        if object.is_none() {
            found.extend(below(path).map_err(io)?);
        }
        if found.is_empty() {
            let nothing = format!("{} has no cassettes (*.yaml)", path.display());
            return Err(Failure::input(nothing).hint(how(path)));
        }
        files.extend(found);
    }
    Ok(files)
}

/// The cassettes of the folders in a folder, without links. Other programs' files may be there: what has no version of a cassette is none.
fn below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = storage::entries(folder, None)?;
    let is_hidden = |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    folders.retain(|path| path.symlink_metadata().is_ok_and(|found| found.is_dir()) && !is_hidden(path));
    folders.sort();
    let mut found = Vec::new();
    for folder in folders {
        let mut own = storage::entries(&folder, None)?;
        let has_version = |line: &str| {
            let line = line.trim_start_matches('\u{feff}');
            line.starts_with("vcr:") || line.starts_with("{\"vcr\"")
        };
        // One that cannot be read is named where it is loaded.
        let is_own = |path: &Path| {
            let of_line = |line: io::Result<String>| line.map_or(true, |line| has_version(&line));
            fs::File::open(path).map_or(true, |file| io::BufReader::new(file).lines().any(of_line))
        };
        own.retain(|path| is_cassette(path) && is_own(path));
        own.sort();
        found.extend(own);
        found.extend(below(&folder)?);
    }
    Ok(found)
}

/// The cassettes of all paths; a folder stands for its own.
pub(in crate::cli) fn cassettes(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    files(paths, &|_| "name cassettes, or a folder of cassettes".to_owned())
}

/// A file that is played twice would have each of its records twice.
pub(in crate::cli) fn once(files: &[PathBuf]) -> Result<(), Failure> {
    let mut known = HashSet::new();
    let same = files.iter().find(|file| !known.insert(fs::canonicalize(file).unwrap_or_else(|_| file.to_path_buf())));
    same.map_or(Ok(()), |file| Err(Failure::usage(format!("{} is named twice", file.display()))))
}

/// Reads a cassette, and logs its warnings; where it is missing, the hint is how to record it.
pub(in crate::cli) fn load(path: &Path, how: &dyn Fn(&Path) -> String) -> Result<Cassette, Failure> {
    let cassette = cassette::load(path).map_err(|error| match &error {
        CassetteError::Io { source, .. } if source.kind() == NotFound && !path.exists() => {
            Failure::from(error).hint(how(path))
        }
        _ => error.into(),
    })?;
    cassette.warnings.iter().for_each(|warning| tracing::warn!("{}", shown(warning)));
    Ok(cassette)
}

/// Reads the cassettes that are played; those that are added to need not be there yet.
pub(super) fn load_all(files: &[PathBuf], mode: Mode, how: &dyn Fn(&Path) -> String) -> Result<Vec<Cassette>, Failure> {
    files.iter().filter(|path| mode != Mode::NewEpisodes || path.exists()).map(|path| load(path, how)).collect()
}

/// The one folder of sessions' cassettes; `tap` names the cassette of other requests in it.
pub(super) fn folder_of_sessions(paths: &[PathBuf]) -> Result<PathBuf, Failure> {
    let folder = match paths {
        [path] if path.ends_with(DEFAULT_FILE) => path.parent().map(Path::to_owned),
        [path] if !is_cassette(path) => Some(path.clone()),
        _ => None,
    };
    folder.ok_or_else(|| Failure::usage("--sessions-only needs one folder of cassettes: --cassette FOLDER/"))
}

/// The cassette of requests without a session, where it is there.
pub(super) fn default_file(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    Ok(Some(folder.join(DEFAULT_FILE)).filter(|file| file.exists()).into_iter().collect())
}

/// Formats the command that records a cassette, with the command that was typed.
pub(super) fn how_to_record(args: &CassetteArgs, settings: &PlayerSettings<'_>) -> impl Fn(&Path) -> String + use<> {
    let upstream =
        settings.base.upstream.as_ref().map_or_else(|| "http://localhost:8000".to_owned(), ToString::to_string);
    let command: Vec<String> = args.command.iter().map(|word| shell_word(word)).collect();
    let command = if command.is_empty() { "COMMAND".to_owned() } else { command.join(" ") };
    move |path| {
        let file = if is_cassette(path) { path.to_owned() } else { path.join("NAME.yaml") };
        let file = shell_word(&file.to_string_lossy());
        shown(&format!("record it: vllm-vcr tap --upstream {upstream} --cassette {file} -- {command}"))
    }
}
