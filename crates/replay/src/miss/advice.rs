//! What helps against a miss: each cause of a difference has its own remedy.

use std::{ops::Range, path::Path};

use super::{
    comparison::Comparison,
    edit::{Cause, Edit},
};
use recording::{
    canonical::BodyDifference,
    redaction::{Placeholder, placeholders},
};

/// Longest command that is shown; a part of one would be another command.
const LONGEST: usize = 200;

/// Remedies, for people and, as words, for programs.
#[derive(Debug, Default)]
pub(crate) struct Advice {
    fixes: Vec<String>,
    pub(crate) hints: Vec<&'static str>,
}

impl Advice {
    /// The first remedy, for the first line of the message.
    pub(crate) fn first(&self) -> Option<&str> {
        self.fixes.first().map(String::as_str)
    }

    /// The others.
    pub(crate) fn further(&self) -> &[String] {
        self.fixes.get(1..).unwrap_or_default()
    }

    pub(crate) fn add(&mut self, hint: &'static str, fix: String) {
        if !self.hints.contains(&hint) {
            self.hints.push(hint);
        }
        if fix.len() <= LONGEST && !self.fixes.contains(&fix) {
            self.fixes.push(fix);
        }
    }

    /// Advises what to do where all records of a request were served; `record` records another one.
    pub(crate) fn exhausted(record: &str) -> Self {
        let mut advice = Self::default();
        advice.add("on_exhausted", "Serve the last one again with --on-exhausted last".to_owned());
        advice.add("rerecord", format!("record the extra call: {record}"));
        advice
    }

    /// Adds how to supply the first secret for which the record has a placeholder and the request has something else. A placeholder in
    /// the request is one that the record of `source` served.
    pub(crate) fn by_secrets(
        &mut self,
        found: &Comparison,
        edits: &[Edit<'_>],
        source: impl Fn(&Placeholder) -> Option<String>,
    ) {
        let missing = edits.iter().find_map(|edit| {
            let BodyDifference { recorded, received, .. } = edit.difference;
            let (recorded, received) = (recorded.as_ref()?.as_str()?, received.as_ref()?.as_str()?);
            let is_missing =
                |(span, _): &(Range<usize>, _)| !recorded.get(span.clone()).is_some_and(|it| received.contains(it));
            let served = placeholders(received).find_map(|(_, served)| Some((source(&served)?, served)));
            let (_, missing) = placeholders(recorded).find(is_missing)?;
            Some(served.unwrap_or_else(|| (found.name.clone(), missing)))
        });
        if let Some((name, placeholder)) = missing {
            let short = placeholder.short();
            self.add(
                "secrets",
                format!("If it is the same secret, name it: --secrets FILE with {name} {short} = VALUE"),
            );
        }
    }

    /// Adds the flags that make edits count no more.
    pub(crate) fn by_flags(&mut self, edits: &[Edit<'_>]) {
        edits.iter().for_each(|edit| self.by_flag(edit));
    }

    /// Adds the flag that makes an edit count no more, where there is one.
    fn by_flag(&mut self, edit: &Edit<'_>) {
        let path = &edit.difference.path;
        match &edit.cause {
            Cause::Volatile(shapes) => {
                for shape in shapes {
                    self.add("scrub", format!("Add --scrub {} for {}", in_shell(shape.scrub), shape.name));
                }
            }
            Cause::OneSided => self.add("ignore", format!("Add --ignore {} if it is not to count", in_shell(path))),
            Cause::Field => {
                self.add("ignore", format!("if {} is not to count: --ignore {}", edit.place(), in_shell(path)))
            }
            Cause::Query => {
                let name = path.strip_prefix("query ").unwrap_or_default();
                self.add("ignore_query", format!("Add --ignore-query {} if it is not to count", in_shell(name)));
            }
            Cause::Header => {
                let name = path.strip_prefix("header ").unwrap_or_default();
                self.add("match_header", format!("it counts because of --match-header {}", in_shell(name)));
            }
            Cause::Conversation | Cause::Turn | Cause::Tool | Cause::Form => {}
        }
    }
}

/// Returns true if flags are all that is needed for a request to match: what differs does so by itself, or is on one side only.
pub(crate) fn only_flags(edits: &[Edit<'_>]) -> bool {
    let is_by_flag = |edit: &Edit<'_>| matches!(edit.cause, Cause::Volatile(_) | Cause::OneSided | Cause::Query);
    !edits.is_empty() && edits.iter().all(is_by_flag)
}

/// The path of a cassette in a command, without its folders where it is long; `FILE` where it is not known.
pub(crate) fn file_in_shell(path: Option<&Path>) -> String {
    let short = |path: &Path| Some(in_shell(&path.to_string_lossy())).filter(|name| name.len() <= LONGEST / 4);
    let name = path.and_then(|path| short(path).or_else(|| short(Path::new(path.file_name()?))));
    name.unwrap_or_else(|| "FILE".to_owned())
}

pub(crate) fn in_shell(word: &str) -> String {
    let is_plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '@' | '%' | '+' | '=');
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
