//! What Cargo does not check of the layers: modules within a crate import downward only, and some dependencies are used in one
//! place only. The rules are in `docs/src/internals/layers.md`, the reasons in `docs/decisions/0110-rooms-are-crates.md`.
//!
//! Limits: names are looked for in the text of a file without its comments; a path that a macro puts together is not seen.

use std::path::Path;

use crate::support::tree;

/// Folders or files, and the modules of their crate that they may not name: those above them, and their neighbours in `src`.
const ABOVE: [(&[&str], &[&str]); 22] = [
    (&["src/conform"], &["tap", "play", "inspect", "cli", "drive", "prove", "sweep"]),
    (
        &["crates/play/src/config.rs", "crates/play/src/config"],
        &["load", "state", "request", "selection", "generate", "answer", "recorded", "rare", "endpoints", "routes"],
    ),
    (
        &["crates/play/src/load.rs", "crates/play/src/load"],
        &["state", "request", "selection", "generate", "answer", "recorded", "rare", "endpoints", "routes", "front"],
    ),
    (
        &[
            "crates/play/src/state.rs",
            "crates/play/src/request",
            "crates/play/src/selection",
            "crates/play/src/generate",
            "crates/play/src/answer.rs",
            "crates/play/src/answer",
            "crates/play/src/recorded",
        ],
        &["cassettes", "rare", "routes", "front"],
    ),
    (&["src/sweep"], &["tap", "inspect", "cli", "drive"]),
    (&["src/prove"], &["tap", "inspect", "cli", "drive", "sweep"]),
    (&["src/inspect"], &["tap", "play", "cli", "prove", "sweep", "conform"]),
    (&["crates/text/src/python.rs"], &["prompt", "parsers"]),
    (&["crates/text/src/prompt"], &["parsers"]),
    (&["crates/engine/src/kv_cache"], &["kv_events", "scheduler", "step_clock", "offline"]),
    (&["crates/engine/src/scheduler", "crates/engine/src/kv_events"], &["step_clock", "offline"]),
    (&["crates/engine/src/step_clock"], &["offline"]),
    (
        &["crates/recording/src/children.rs"],
        &[
            "yaml",
            "field_path",
            "redaction",
            "canonical",
            "recorder",
            "trace",
            "cassette",
            "capture",
            "mcp",
            "exchange",
            "formats",
        ],
    ),
    (
        &["crates/recording/src/storage"],
        &["yaml", "redaction", "canonical", "recorder", "trace", "cassette", "capture", "mcp", "exchange", "formats"],
    ),
    (
        &["crates/recording/src/yaml", "crates/recording/src/field_path.rs"],
        &["redaction", "canonical", "recorder", "trace", "cassette", "capture", "mcp", "exchange"],
    ),
    (
        &["crates/recording/src/redaction", "crates/recording/src/canonical", "crates/recording/src/recorder"],
        &["trace", "cassette", "capture", "mcp", "exchange"],
    ),
    (&["crates/recording/src/trace", "crates/recording/src/cassette"], &["capture", "mcp", "exchange", "formats"]),
    (&["crates/recording/src/formats"], &["capture", "mcp", "exchange", "cassette", "recorder"]),
    (
        &[
            "crates/replay/src/matching",
            "crates/replay/src/timing",
            "crates/replay/src/meter",
            "crates/replay/src/steps.rs",
            "crates/replay/src/values.rs",
        ],
        &["account", "delivery", "miss", "player", "mcp", "mcp_traffic"],
    ),
    (
        &["crates/replay/src/account", "crates/replay/src/delivery", "crates/replay/src/miss"],
        &["player", "mcp", "mcp_traffic"],
    ),
    (&["crates/replay/src/player", "crates/replay/src/mcp"], &["mcp_traffic"]),
    // Sessions of MCP wait for nothing and read nothing.
    (
        &["crates/replay/src/mcp"],
        &["tokio", "std::fs", "std::io", "std::net", "std::process", "std::thread", "std::env"],
    ),
];

/// Dependencies, and the only places of their crates that may use them.
const CONFINED: [(&[&str], &[&str]); 11] = [
    (&["clap", "clap_complete", "clap_mangen"], &["src/cli"]),
    (
        &["hyper", "http_body", "http_body_util"],
        &[
            "crates/net",
            "crates/replay/src/account",
            "crates/replay/src/delivery",
            "crates/replay/src/player",
            "crates/tap",
            "crates/drive",
            "crates/faults",
            "crates/play",
            "src/prove",
            "src/conform",
        ],
    ),
    (&["axum"], &["crates/replay/src/account", "crates/tap", "crates/play"]),
    (&["axum_core"], &["crates/net/src/server"]),
    (&["zeromq"], &["crates/play"]),
    (&["tokenizers"], &["crates/text/src/prompt"]),
    (&["flate2"], &["crates/recording/src/trace"]),
    (&["object_store", "reqwest"], &["crates/recording/src/storage"]),
    (&["httparse"], &["crates/net/src/upstream"]),
    (&["hdrhistogram"], &["crates/base/src/stats"]),
    (&["regex"], &["crates/recording/src/redaction", "crates/recording/src/canonical", "crates/faults"]),
];

#[test]
fn modules_import_downward_only() {
    let mut found = Vec::new();
    for (places, above) in ABOVE {
        for path in sources() {
            let Some(place) = places.iter().find(|place| path.starts_with(place)) else { continue };
            let hits = uses(&tree::read(&path), &modules_above(place), above)
                .into_iter()
                .filter(|(_, name)| !is_beside(&path, place, name));
            found.extend(hits.map(|hit| breach(&path, hit)));
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn dependencies_stay_in_their_places() {
    let mut found = Vec::new();
    for path in sources() {
        let source = tree::read(&path);
        for (names, places) in CONFINED {
            let is_outside = !places.iter().any(|place| path.starts_with(place));
            found.extend(
                uses(&source, "crate::", names).into_iter().filter(|_| is_outside).map(|hit| breach(&path, hit)),
            );
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn a_breach_is_found() {
    let names: &[&str] = &["play", "std::io"];
    for source in
        ["use crate::play::X;", "use crate::{\n    play::{X},\n};", "fn f() { crate::play::x() }", "use std::io::Read;"]
    {
        assert_eq!(uses(source, "crate::", names).len(), 1, "{source}");
    }
    assert_eq!(uses("use crate::load::X;", &modules_above("crates/play/src/config"), &["load"]).len(), 1);
    for source in ["// crate::play::X", "let display = display::x();", "use super::play;", "let x: u8 = 1; //! play::x"]
    {
        assert_eq!(uses(source, "crate::", names), [], "{source}");
    }
}

fn sources() -> Vec<std::path::PathBuf> {
    ["src", "crates"].iter().flat_map(|folder| tree::files(folder, "rs")).collect()
}

/// Whether a folder around the file, within its place, has a module of that name.
fn is_beside(path: &Path, place: &str, name: &str) -> bool {
    let folders = path.ancestors().skip(1).filter(|folder| folder.starts_with(place));
    folders
        .map(|folder| tree::root().join(folder).join(name))
        .any(|own| own.is_dir() || own.with_extension("rs").exists())
}

fn breach(path: &Path, (line, name): (usize, String)) -> String {
    format!("{}:{line}: may not use {name}", path.display())
}

/// The path to what stands beside a place: `crate::load::` for `crates/play/src/load/model.rs`.
fn modules_above(place: &str) -> String {
    let folders = Path::new(place).parent().into_iter().flatten().skip_while(|part| *part != "src").skip(1);
    folders.fold("crate::".to_owned(), |path, folder| format!("{path}{}::", folder.to_string_lossy()))
}

/// Lines, from 1, in which one of the names begins a path, alone or behind `above`.
fn uses(source: &str, above: &str, names: &[&str]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in source.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for name in names {
            let begins = code.match_indices(&format!("{name}::")).any(|(at, _)| {
                let before = code[..at].strip_suffix(above).unwrap_or(&code[..at]);
                !before.ends_with(|c: char| c.is_alphanumeric() || "_:.".contains(c))
            });
            found.extend(begins.then(|| (number + 1, (*name).to_owned())));
        }
    }
    found
}
