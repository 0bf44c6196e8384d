//! Cassettes from traces and from what other tools wrote, and traces from cassettes.
//!
//! A trace's record is a choice of an answer, a cassette's is an exchange: choices of one request become one record. Answers go
//! into a trace word by word and, under its key `answer`, as the cassette shows them, so that the way back gives the same cassette.
//!
//! Limits: a trace holds posted requests only. What a trace does not hold (requests, texts) cannot become a cassette.

mod aimock;
mod from_trace;
mod http_log;
mod to_trace;

pub use aimock::{ConvertedFixtures, aimock, is_aimock};
pub use from_trace::{FromTrace, from_trace};
pub use http_log::{HttpLog, http_log, is_http_log};
pub use to_trace::{Counts, ToTrace, to_trace};

use recording::yaml::YamlNode;

/// The key of a trace's record under which an answer stands as a cassette shows it.
const ANSWER: &str = "answer";

/// Entries of a list with their places: lines, and numbers from 1 too where a line has several, as where a file is one line.
fn placed(entries: &[YamlNode]) -> impl Iterator<Item = (String, &YamlNode)> {
    let line = |at: usize| entries.get(at).map(|entry| entry.line);
    entries.iter().enumerate().map(move |(at, entry)| {
        let own = Some(entry.line);
        let shares = line(at + 1) == own || at.checked_sub(1).and_then(line) == own;
        let number = if shares { format!(", entry {}", at + 1) } else { String::new() };
        (format!("line {}{number}", entry.line), entry)
    })
}
