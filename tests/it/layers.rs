//! Layers import downward only, and some crates are used in one place only. The rules are in `docs/src/internals/layers.md`,
//! the reasons in `docs/decisions/0032-rooms.md`.
//!
//! Paths are found in the token stream of each source file (`crate::x`, `super::super::x`, in nested groups too), so that
//! comments and strings do not count. Limits: a path that a macro puts together is not seen.

use std::path::Path;

use crate::support::tree;

/// Rooms by row, the lowest one first. A room imports from rows below its own, never sideways.
const ROOMS: [&[&str]; 7] = [
    &["base"],
    &["text", "net"],
    &["api"],
    &["recording", "engine"],
    &["replay"],
    &["tap", "play", "inspect"],
    &["cli"],
];

/// Modules of a room by row, the lowest one first. A module imports from its own row or from rows below it.
const INSIDE: [(&str, &[&[&str]]); 4] = [
    ("text", &[&["prompt"], &["parsers"]]),
    ("engine", &[&["kv_cache"], &["kv_events", "scheduler"], &["step_clock"], &["offline"]]),
    (
        "recording",
        &[
            &["yaml", "field_path"],
            &["redaction", "canonical", "recorder"],
            &["trace", "cassette"],
            &["capture", "mcp"],
            &["exchange"],
        ],
    ),
    (
        "replay",
        &[
            &["matching", "timing", "meter", "steps", "values"],
            &["account", "delivery", "miss"],
            &["player", "mcp"],
            &["mcp_traffic"],
        ],
    ),
];

/// Crates and the only rooms or modules that may use them.
const CONFINED: [(&[&str], &[&str]); 13] = [
    (&["clap", "clap_complete", "clap_mangen"], &["cli"]),
    (
        &["hyper", "hyper_util", "http_body", "http_body_util"],
        &["net", "replay::account", "replay::delivery", "replay::player", "tap", "play"],
    ),
    (&["axum"], &["replay::account", "tap", "play"]),
    (&["zeromq"], &["play"]),
    (&["tokio_rustls", "webpki_roots"], &["net"]),
    (&["tokenizers"], &["text::prompt"]),
    (&["ureq"], &["text::prompt"]),
    (&["llguidance", "toktrie"], &["engine"]),
    (&["flate2"], &["recording::trace"]),
    (&["httparse"], &["net::upstream"]),
    (&["hdrhistogram"], &["base::stats"]),
    (&["saphyr_parser"], &["recording::yaml"]),
    (&["regex"], &["recording::redaction", "recording::canonical"]),
];

#[test]
fn the_crates_page_has_the_rooms_in_their_rows() {
    let expected: Vec<(usize, &str)> =
        ROOMS.iter().enumerate().flat_map(|(row, rooms)| rooms.iter().map(move |room| (row, *room))).rev().collect();
    let page = tree::read(Path::new("src/lib.rs"));
    let row = |line: &str| {
        let mut cells = line.strip_prefix("//! |")?.split('|').map(str::trim);
        let row = cells.next()?.parse().ok()?;
        Some((row, cells.next()?.trim_matches(['[', '`', ']']).to_owned()))
    };
    let mut found: Vec<(usize, String)> = page.lines().filter_map(row).collect();
    let mut expected: Vec<(usize, String)> = expected.into_iter().map(|(row, room)| (row, room.to_owned())).collect();
    assert!(found.is_sorted_by_key(|(row, _)| std::cmp::Reverse(*row)), "the highest row comes first: {found:?}");
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn mcp_sessions_read_write_and_wait_for_nothing() {
    let banned = ["tokio", "fs", "io", "net", "process", "thread", "env"];
    let mut found = Vec::new();
    for path in tree::files("src/replay/mcp", "rs") {
        let source = tree::read(&path);
        for (line, segments) in paths(&tokens(&source), &module_path(&path)) {
            let is_std = segments.first().is_some_and(|root| root == "std");
            let named = segments.get(usize::from(is_std)).filter(|name| is_std || *name == "tokio");
            let is_banned = named.is_some_and(|name| banned.contains(&name.as_str()));
            found.extend(is_banned.then(|| format!("{}:{line}: {}", path.display(), segments.join("::"))));
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn imports_point_downward() {
    let found: Vec<String> =
        tree::files("src", "rs").iter().flat_map(|path| violations(path, &tree::read(path))).collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

/// Everything in one source file that breaks a rule, as `file:line: what`.
fn violations(path: &Path, source: &str) -> Vec<String> {
    let tokens = tokens(source);
    let home = module_path(path);
    let is_main = path == Path::new("src/main.rs");
    if home.is_empty() && !is_main {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (line, segments) in paths(&tokens, &home) {
        let breach = match segments.split_first() {
            Some((root, to)) if is_main && root == "vllm_vcr" => {
                to.first().filter(|to| *to != "cli").map(|to| format!("main -> {to}: main imports cli only"))
            }
            Some((root, to)) if root == "crate" => breach_of_layers(&home, to),
            Some((root, _)) => breach_of_confinement(&home, root),
            None => None,
        };
        found.extend(breach.map(|what| format!("{}:{line}: {what}", path.display())));
    }
    found.dedup();
    found
}

fn breach_of_layers(from: &[String], to: &[String]) -> Option<String> {
    let (home, room) = (from.first()?, to.first()?);
    if home == room {
        let (_, rows) = INSIDE.iter().find(|(name, _)| name == room)?;
        let (above, below) = (row(rows, from.get(1)?)?, row(rows, to.get(1)?)?);
        return (above < below).then(|| format!("{}::{} -> {}: upward in {room}", room, from[1], to[1]));
    }
    let arrow = format!("{home} -> {room}");
    let (Some(above), Some(below)) = (row(&ROOMS, home), row(&ROOMS, room)) else {
        return Some(format!("{arrow}: one of them has no row"));
    };
    match above.cmp(&below) {
        std::cmp::Ordering::Less => Some(format!("{arrow}: upward, row {above} to row {below}")),
        std::cmp::Ordering::Equal => Some(format!("{arrow}: sideways in row {above}")),
        std::cmp::Ordering::Greater => None,
    }
}

fn breach_of_confinement(from: &[String], name: &str) -> Option<String> {
    let (_, allowed) = CONFINED.iter().find(|(crates, _)| crates.contains(&name))?;
    let module = from[..from.len().min(2)].join("::");
    let is_allowed = allowed.iter().any(|place| *place == module || from.first().is_some_and(|room| place == room));
    (!is_allowed).then(|| format!("{module} -> {name}: only {} may use it", allowed.join(", ")))
}

fn row(rows: &[&[&str]], name: &str) -> Option<usize> {
    rows.iter().position(|names| names.contains(&name))
}

/// `src/tap/body.rs` is `[tap, body]`, `src/tap/mod.rs` is `[tap]`, `src/lib.rs` is `[]`.
fn module_path(path: &Path) -> Vec<String> {
    let inside = path.strip_prefix("src").unwrap().with_extension("");
    let mut segments: Vec<String> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if segments.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        segments.pop();
    }
    segments
}

/// One token: a word, `::`, or a single other character.
#[derive(Debug, PartialEq)]
struct Token {
    line: usize,
    text: String,
}

/// The words and signs of a source text, without comments, strings and characters.
fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let (mut tokens, mut at, mut line) = (Vec::new(), 0, 1);
    while at < chars.len() {
        let rest = &chars[at..];
        let (length, is_token) = match rest {
            ['/', '/', ..] => (rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()), false),
            ['/', '*', ..] => (block_comment(rest), false),
            ['r', '"' | '#', ..] if raw_string(rest).is_some() => (raw_string(rest).unwrap(), false),
            ['"', ..] => (quoted(rest), false),
            ['\'', '\\', ..] => (quoted(rest), false),
            ['\'', _, '\'', ..] => (3, false),
            [':', ':', ..] => (2, true),
            [c, ..] if c.is_alphanumeric() || *c == '_' => {
                (rest.iter().position(|c| !c.is_alphanumeric() && *c != '_').unwrap_or(rest.len()), true)
            }
            [c, ..] => (1, !c.is_whitespace()),
            [] => unreachable!(),
        };
        if is_token {
            tokens.push(Token { line, text: rest[..length].iter().collect() });
        }
        line += rest[..length].iter().filter(|c| **c == '\n').count();
        at += length;
    }
    tokens
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn raw_string(rest: &[char]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    let start = hashes + 2;
    if rest.get(hashes + 1) != Some(&'"') {
        return None;
    }
    let end = (start..rest.len())
        .find(|at| rest[*at] == '"' && rest[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes)?;
    Some(end + 1 + hashes)
}

fn quoted(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != rest[0] {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// Every path with `::`, resolved: one from the crate's root starts with `crate`. `home` is the file's module.
fn paths(tokens: &[Token], home: &[String]) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    let mut inline = Vec::new();
    let mut depth = 0;
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                inline.retain(|(_, opened)| *opened <= depth);
            }
            "mod" if text(tokens, at + 2) == "{" => inline.push((tokens[at + 1].text.clone(), depth + 1)),
            "use" => {
                let here = here(home, &inline);
                at = expand(tokens, at + 1, &[], &mut |line, path| found.push((line, resolve(&here, path))));
                continue;
            }
            word if is_word(word) && text(tokens, at + 1) == "::" && !is_continued(tokens, at) => {
                let here = here(home, &inline);
                let path = straight(tokens, at);
                found.push((tokens[at].line, resolve(&here, &path)));
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Whether the word at `at` goes on a path; the one in `::name` begins it.
fn is_continued(tokens: &[Token], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).map_or("", |at| text(tokens, at));
    before(1) == "::" && (is_word(before(2)) || before(2) == ">")
}

fn here(home: &[String], inline: &[(String, i32)]) -> Vec<String> {
    home.iter().chain(inline.iter().map(|(name, _)| name)).cloned().collect()
}

fn text(tokens: &[Token], at: usize) -> &str {
    tokens.get(at).map_or("", |token| token.text.as_str())
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The words of the path that starts at `at`, up to where it is no plain path any more.
fn straight(tokens: &[Token], at: usize) -> Vec<String> {
    let mut path = vec![tokens[at].text.clone()];
    let mut at = at + 1;
    while text(tokens, at) == "::" && is_word(text(tokens, at + 1)) {
        path.push(tokens[at + 1].text.clone());
        at += 2;
    }
    path
}

/// Shows every path of the use tree at `at` to `visit`; returns the place after it.
fn expand(tokens: &[Token], at: usize, prefix: &[String], visit: &mut dyn FnMut(usize, &[String])) -> usize {
    let (mut path, mut at) = (prefix.to_vec(), at);
    loop {
        match text(tokens, at) {
            "{" => {
                at += 1;
                while !matches!(text(tokens, at), "}" | "") {
                    let next = expand(tokens, at, &path, visit);
                    // A sign that no path has, as in a file with conflict markers, is stepped over.
                    at = next + usize::from(text(tokens, next) == "," || next == at);
                }
                return at + 1;
            }
            "::" => at += 1,
            "as" => at += 2,
            word if is_word(word) || word == "*" => {
                path.push(word.to_owned());
                at += 1;
            }
            _ => {
                visit(tokens[at.saturating_sub(1)].line, &path);
                return at;
            }
        }
    }
}

/// `super` and `self` made absolute; other paths as they are.
fn resolve(here: &[String], path: &[String]) -> Vec<String> {
    let mut absolute: Option<Vec<String>> = None;
    for segment in path {
        match segment.as_str() {
            "crate" => absolute = Some(vec!["crate".to_owned()]),
            "self" | "super" => {
                let known = absolute.get_or_insert_with(|| ["crate".to_owned()].iter().chain(here).cloned().collect());
                if segment == "super" && known.len() > 1 {
                    known.pop();
                }
            }
            _ => match &mut absolute {
                Some(known) => known.push(segment.clone()),
                None => return path.to_vec(),
            },
        }
    }
    absolute.unwrap_or_default()
}

#[cfg(test)]
mod the_checker {
    use super::*;

    fn check(path: &str, source: &str) -> Vec<String> {
        violations(Path::new(path), source)
    }

    #[test]
    fn finds_upward_and_sideways_imports() {
        for (path, source, expected) in [
            (
                "src/recording/trace/read.rs",
                "\nuse crate::tap::Config;",
                "src/recording/trace/read.rs:2: recording -> tap: upward, row 3 to row 5",
            ),
            ("src/tap/mod.rs", "use crate::{base, play::{self, X}};", "tap -> play: sideways in row 5"),
            (
                "src/recording/canonical/mod.rs",
                "fn f() { crate::recording::trace::read() }",
                "recording::canonical -> trace: upward in recording",
            ),
            ("src/tap/body.rs", "use super::super::inspect;", "tap -> inspect: sideways"),
            ("src/tap/body.rs", "use super::{self, super::cli::run};", "tap -> cli: upward"),
            (
                "src/base/units/mod.rs",
                "mod tests { use super::super::super::net; }",
                "base -> net: upward, row 0 to row 1",
            ),
            ("src/base/mod.rs", "use crate::colour;", "base -> colour: one of them has no row"),
            ("src/base/mod.rs", "use crate::*;", "base -> *: one of them has no row"),
            ("src/main.rs", "fn main() { vllm_vcr::tap::run() }", "main -> tap: main imports cli only"),
        ] {
            let found = check(path, source);
            assert!(found.len() == 1 && found[0].contains(expected), "{source}: {found:?}");
        }
    }

    #[test]
    fn finds_crates_that_are_out_of_place() {
        for (path, source, expected) in [
            ("src/tap/mod.rs", "use clap::Parser;", "tap -> clap: only cli may use it"),
            (
                "src/base/stats/mod.rs",
                "use {hyper::{body::Incoming}};",
                "base::stats -> hyper: only net, replay::account, replay::delivery, replay::player",
            ),
            ("src/net/server/mod.rs", "use axum::Router;", "net::server -> axum: only replay::account, tap, play"),
            ("src/play/mod.rs", "type T = ::tokenizers::Tokenizer;", "play -> tokenizers: only text::prompt"),
            ("src/cli/mod.rs", "use flate2;", "cli -> flate2: only recording::trace"),
            ("src/recording/cassette/mod.rs", "use flate2;", "recording::cassette -> flate2: only recording::trace"),
            ("src/cli/mod.rs", "pub use hdrhistogram::Histogram as H;", "cli -> hdrhistogram: only base::stats"),
        ] {
            let found = check(path, source);
            assert!(found.len() == 1 && found[0].contains(expected), "{source}: {found:?}");
        }
    }

    #[test]
    fn lets_the_rest_pass() {
        for (path, source) in [
            (
                "src/tap/mod.rs",
                "use crate::{net::server, recording::trace::{self, Record}, net::upstream::UpstreamUrl};",
            ),
            ("src/tap/body.rs", "use super::event; mod tests { use super::*; use super::super::amend; }"),
            ("src/recording/trace/read.rs", "use super::super::cassette::Moment;"),
            ("src/base/units/mod.rs", "// use crate::tap;\n/* crate::play /* crate::cli */ */ //! [`crate::cli`]"),
            (
                "src/base/units/mod.rs",
                "const A: &str = \"crate::tap\"; const B: &str = r#\"\"crate::tap\"#; const C: char = '\"';",
            ),
            ("src/net/server/mod.rs", "fn f<'a>(x: &'a str) -> hyper::Error { crate::net::upstream::x() }"),
            ("src/lib.rs", "pub use crate::cli::run;"),
            ("src/main.rs", "fn main() { vllm_vcr::cli::run() }"),
        ] {
            assert_eq!(check(path, source), Vec::<String>::new(), "{source}");
        }
    }
}
