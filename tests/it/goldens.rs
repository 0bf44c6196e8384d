//! The captured exchanges with a real vLLM, where they are at hand.

#![allow(clippy::print_stderr)] // a skipped test says so

use std::{fs, path::PathBuf};

use serde_json::Value;

/// The shared directory: `VLLM_VCR_SHARED`, or `../shared` beside the checkout or the directory above it.
pub(crate) fn shared() -> Option<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let named = std::env::var_os("VLLM_VCR_SHARED").map(PathBuf::from);
    let candidates = named.into_iter().chain([root.join("../shared"), root.join("../../shared")]);
    let found = candidates.into_iter().find(|path| path.join("golden").is_dir());
    if found.is_none() {
        eprintln!("SKIPPED: no shared directory with goldens (set VLLM_VCR_SHARED)");
    }
    found
}

/// The goldens of one suite, as (name, exchange), sorted by name.
pub(crate) fn suite(name: &str) -> Vec<(String, Value)> {
    let Some(shared) = shared() else { return Vec::new() };
    let Ok(entries) = fs::read_dir(shared.join("golden/vllm-0.32.0").join(name)) else { return Vec::new() };
    let mut goldens: Vec<(String, Value)> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let name = entry.path().file_stem()?.to_str()?.to_owned();
            Some((name, serde_json::from_slice(&fs::read(entry.path()).ok()?).ok()?))
        })
        .collect();
    goldens.sort_by(|(one, _), (other, _)| one.cmp(other));
    goldens
}
