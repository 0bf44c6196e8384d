//! Finds the commit that the program is built from, for `--version` and for the results of `replay`.
//!
//! It runs again when a source has changed, which builds the program anyway; a commit of other files does not. So the commit is the one that was checked
//! out when the sources were last changed: `-dirty` where they were not yet committed then, `unknown` without git.

#![allow(clippy::print_stdout, reason = "cargo reads it")]

use std::{env, fs, path::Path, process::Command};

/// What the program is made of.
const SOURCES: [&str; 5] = ["Cargo.toml", "Cargo.lock", "build.rs", "crates", "src"];

fn main() {
    for source in SOURCES.into_iter().filter(|source| Path::new(source).exists()) {
        println!("cargo::rerun-if-changed={source}");
    }
    let commit = packaged_commit().or_else(commit).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=VLLM_VCR_COMMIT={commit}");
}

/// The commit that a package was made of, as `cargo package` notes it.
fn packaged_commit() -> Option<String> {
    let noted = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, after) = noted.split_once("\"sha1\"")?;
    let commit = after.split('"').nth(1).filter(|commit| is_commit(commit))?;
    Some(if noted.contains("\"dirty\": true") { format!("{commit}-dirty") } else { commit.to_owned() })
}

/// The commit that is checked out here; `None` if the package is not at the top of a repository of its own.
fn commit() -> Option<String> {
    let top = fs::canonicalize(git(&["rev-parse", "--show-toplevel"])?).ok()?;
    if top != fs::canonicalize(env::var_os("CARGO_MANIFEST_DIR")?).ok()? {
        return None;
    }
    let commit = git(&["rev-parse", "HEAD"]).filter(|commit| is_commit(commit))?;
    let changes = git(&[&["status", "--porcelain", "--untracked-files=no", "--"], &SOURCES[..]].concat())?;
    Some(if changes.is_empty() { commit } else { format!("{commit}-dirty") })
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim_end().to_owned())
}

fn is_commit(text: &str) -> bool {
    text.len() >= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
