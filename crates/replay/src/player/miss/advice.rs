//! What helps against a miss: each cause of a difference has its own remedy, and each remedy leads to a run that `--strict` accepts.

use std::path::Path;

use super::{
    super::{CassettePlayer, request::IncomingRequest},
    Reason,
    comparison::Comparison,
    edit::{Cause, Edit, edits},
};

/// Longest command that is shown; a part of one would be another command.
const LONGEST: usize = 200;

/// Remedies, for people and, as words, for programs.
#[derive(Debug, Default)]
pub(super) struct Advice {
    fixes: Vec<String>,
    pub(super) hints: Vec<&'static str>,
}

impl Advice {
    /// The first remedy, for the first line of the message.
    pub(super) fn first(&self) -> Option<&str> {
        self.fixes.first().map(String::as_str)
    }

    /// The others.
    pub(super) fn further(&self) -> &[String] {
        self.fixes.get(1..).unwrap_or_default()
    }

    fn add(&mut self, hint: &'static str, fix: String) {
        if !self.hints.contains(&hint) {
            self.hints.push(hint);
        }
        if fix.len() <= LONGEST && !self.fixes.contains(&fix) {
            self.fixes.push(fix);
        }
    }

    pub(super) fn new(
        player: &CassettePlayer,
        asked: &IncomingRequest,
        reason: Reason,
        found: Option<&Comparison>,
    ) -> Self {
        let mut advice = Self::default();
        if reason == Reason::Exhausted {
            advice.add("on_exhausted", "Serve the last one again with --on-exhausted last".to_owned());
            advice.add("rerecord", format!("record the extra call: {}", record(player)));
            return advice;
        }
        if found.is_some_and(|found| found.is_canonical) {
            advice.add("match", "It is the same in canonical form: use --match canonical".to_owned());
        }
        let edits = found.filter(|_| asked.raw.is_none()).map(|found| edits(&found.differences)).unwrap_or_default();
        let is_alike = found.is_some_and(|found| found.is_alike);
        let (by_flag, by_hand): (Vec<&Edit<'_>>, Vec<&Edit<'_>>) =
            edits.iter().partition(|edit| matches!(edit.cause, Cause::Volatile(_) | Cause::OneSided | Cause::Query));
        // Where flags are all that is needed, they come first.
        let only_flags = by_hand.is_empty() && !by_flag.is_empty() && reason == Reason::NoMatch;
        if only_flags && is_alike {
            by_flag.iter().for_each(|edit| advice.by_flag(edit));
        }
        if found.is_none() && reason == Reason::NoMatch && player.has_fixture_for(asked) {
            advice.add("fixture", "Add a record with a `match` that it fulfils, or `match: any`".to_owned());
        }
        advice.add("rerecord", format!("If intended, record it: {}", record(player)));
        if reason == Reason::NoRecords {
            let boundary = in_shell(&asked.identity.boundary);
            advice.add("live", format!("run it for real: --live {boundary} --upstream URL"));
        }
        if is_alike || reason == Reason::NoRecords {
            edits.iter().for_each(|edit| advice.by_flag(edit));
        }
        // The cassette of a session is recorded whole.
        if !only_flags && player.config.session_folder.is_none() {
            advice.add("prune", "records that no run uses: vllm-vcr cassette prune".to_owned());
        }
        advice
    }

    /// Adds the flag that makes an edit count no more, where there is one.
    fn by_flag(&mut self, edit: &Edit<'_>) {
        let path = &edit.difference.path;
        match edit.cause {
            Cause::Volatile(shape) => {
                self.add("scrub", format!("Add --scrub {} for {}", in_shell(shape.scrub), shape.name))
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

/// The command that records what is missing, and what to do before it. The path is in the line of the closest record.
fn record(player: &CassettePlayer) -> String {
    let path = match player.config.cassettes.as_slice() {
        [one] => Some(&one.path),
        _ => None,
    };
    let short = |path: &Path, most: usize| Some(in_shell(&path.to_string_lossy())).filter(|name| name.len() <= most);
    if let Some(folder) = &player.config.session_folder {
        let file = path.and_then(|path| short(path.strip_prefix(folder).unwrap_or(path.as_path()), LONGEST / 3));
        let (file, folder) = (file.unwrap_or_else(|| "its cassette".to_owned()), short(&folder.join(""), LONGEST / 5));
        let folder = folder.unwrap_or_else(|| "FOLDER/".to_owned());
        return format!("delete {file} and run vllm-vcr tap --cassette {folder} --upstream URL -- COMMAND");
    }
    let name = path.and_then(|path| short(Path::new(path.file_name()?), LONGEST / 4));
    let name = name.unwrap_or_else(|| "FILE".to_owned());
    format!("vllm-vcr tap --mode new-episodes --upstream URL --cassette {name}")
}

/// Quotes a word for a shell.
fn in_shell(word: &str) -> String {
    let is_plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '@' | '%' | '+' | '=');
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
