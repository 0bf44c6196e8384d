//! The trace codec, through its public face.

mod bad;
mod cut;
mod roundtrip;
mod schema;
mod several;
mod summary;

use std::path::{Path, PathBuf};

use serde_json::Value;

/// The material shared with the project, which is not part of the package: `VLLM_VCR_SHARED`, else `../shared`.
pub(crate) fn shared(inside: &str) -> Option<PathBuf> {
    let root = std::env::var_os("VLLM_VCR_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    let path = root.join(inside);
    if !path.exists() {
        eprintln!("SKIPPED: no {inside}; set VLLM_VCR_SHARED to the folder that holds it");
        return None;
    }
    Some(path)
}

/// The trace files of a folder, sorted.
pub(crate) fn traces_in(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|suffix| suffix == "jsonl"));
    files.sort();
    files
}

/// This project's own files in the shapes of the public ones.
pub(crate) fn own_shapes() -> Vec<PathBuf> {
    let files = traces_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/public-shapes"));
    assert_eq!(files.len(), 7);
    files
}

/// The upstream files, none where they are absent.
pub(crate) fn upstream() -> Vec<PathBuf> {
    let files = shared("upstream-traces").map(|folder| traces_in(&folder)).unwrap_or_default();
    assert!(files.is_empty() || files.len() == 7);
    files
}

/// The lines of a file as JSON.
pub(crate) fn json_lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
