//! Every decision is short, listed, and named by code that follows it; every name of one in the code leads to its file.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use crate::support::tree;

const FOLDER: &str = "docs/decisions/";

/// Lines of a decision.
const LONGEST: usize = 25;

#[test]
fn every_decision_is_short_and_complete() {
    for path in decisions() {
        let text = tree::read(&path);
        assert!(text.lines().count() <= LONGEST, "{}: more than {LONGEST} lines", path.display());
        for part in ["# ", "**Context.**", "**Decision.**", "**Consequence.**"] {
            assert!(text.lines().any(|line| line.starts_with(part)), "{}: no line begins with {part}", path.display());
        }
    }
}

#[test]
fn the_index_lists_every_decision_once_and_in_order() {
    let index = tree::read(format!("{FOLDER}README.md"));
    let listed: Vec<&str> =
        index.lines().filter_map(|line| line.strip_prefix("| [")?.split(['(', ')']).nth(1)).collect();
    let files: Vec<String> = decisions().iter().map(|path| name(path)).collect();
    assert_eq!(listed, files, "{FOLDER}README.md");
    let numbers: BTreeSet<&str> = files.iter().map(|file| file.split_at(4).0).collect();
    assert_eq!(numbers.len(), files.len(), "two decisions have one number: {files:?}");
}

#[test]
fn code_names_every_decision_and_no_other() {
    let mut sources: Vec<PathBuf> =
        ["src", "crates", "tests/it"].iter().flat_map(|folder| tree::files(folder, "rs")).collect();
    sources.push("Cargo.toml".into());
    sources.extend(tree::files("packages", "mjs"));
    let mut named = BTreeSet::new();
    for source in sources.iter().filter(|source| !source.ends_with(file!())) {
        for decision in names_in(&tree::read(source)) {
            let exists = tree::root().join(FOLDER).join(&decision).exists();
            assert!(exists, "{}: {FOLDER}{decision} does not exist", source.display());
            named.insert(decision);
        }
    }
    let unnamed: Vec<String> = decisions().iter().map(|path| name(path)).filter(|file| !named.contains(file)).collect();
    assert!(unnamed.is_empty(), "no code has a line `See {FOLDER}….md.` for {unnamed:?}");
}

/// The decisions' files, by number.
fn decisions() -> Vec<PathBuf> {
    let mut files = tree::files(FOLDER.trim_end_matches('/'), "md");
    files.retain(|path| !path.ends_with("README.md"));
    files
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// The names of files in `docs/decisions/` that a text holds.
fn names_in(text: &str) -> Vec<String> {
    let found = text.split(FOLDER).skip(1).filter_map(|rest| rest.split_once(".md"));
    found
        .map(|(name, _)| format!("{name}.md"))
        .filter(|name| name.starts_with(|first: char| first.is_ascii_digit()))
        .collect()
}
