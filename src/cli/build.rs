//! Which build of the program this is, for `--version` and for results; the package's build script finds it out.

use std::ffi::OsString;

use serde::Serialize;
use serde_json::{Value, json};

pub(in crate::cli) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commit of its sources: its hash, with `-dirty` if they had changes, or `unknown`.
pub(in crate::cli) const COMMIT: &str = env!("BUILD_COMMIT");

/// Both, for `--version`.
pub(in crate::cli) const LONG_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD_COMMIT"), ")");

/// This build, as `--version --json` prints it and results have it.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct ProgramBuild {
    version: &'static str,
    /// `None` where the sources came without it.
    commit: Option<&'static str>,
    /// Hash of the lock file of dependencies: `sha256:` and its digits.
    lock: Option<&'static str>,
    features: Vec<&'static str>,
    /// The target triple.
    target: &'static str,
    /// The profile of cargo.
    profile: &'static str,
}

impl ProgramBuild {
    pub(in crate::cli) fn this() -> Self {
        let known = |text: &'static str| (text != "unknown").then_some(text);
        Self {
            version: VERSION,
            commit: known(COMMIT),
            lock: known(env!("BUILD_LOCK")),
            features: env!("BUILD_FEATURES").split(',').filter(|feature| !feature.is_empty()).collect(),
            target: env!("BUILD_TARGET"),
            profile: env!("BUILD_PROFILE"),
        }
    }
}

/// A result as JSON, with the build as its last field if it is an object without one.
pub(in crate::cli) fn stamped(result: &impl Serialize) -> serde_json::Result<Value> {
    let mut result = serde_json::to_value(result)?;
    if let Some(fields) = result.as_object_mut() {
        fields.entry("build").or_insert_with(|| json!(ProgramBuild::this()));
    }
    Ok(result)
}

/// Returns true for `--version --json`, in any order and nothing else.
pub(in crate::cli) fn is_asked(arguments: &[OsString]) -> bool {
    let typed: Vec<&str> = arguments.iter().skip(1).map(|word| word.to_str().unwrap_or_default()).collect();
    let is_version = |word: &&str| matches!(*word, "--version" | "-V");
    typed.contains(&"--json")
        && typed.iter().any(is_version)
        && typed.iter().all(|word| is_version(word) || *word == "--json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_are_objects_name_the_build_once() {
        let stamp = |value: Value| stamped(&value).unwrap();
        assert_eq!(stamp(json!({"a": 1}))["build"]["version"], VERSION);
        assert_eq!(stamp(json!({"build": 1})), json!({"build": 1}));
        assert_eq!(stamp(json!([1])), json!([1]));
    }

    #[test]
    fn the_build_is_asked_for_by_two_flags() {
        let is = |line: &str| is_asked(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(is("v --version --json") && is("v --json -V"));
        assert!(!is("v --version") && !is("v --json") && !is("v play --json --version"));
    }
}
