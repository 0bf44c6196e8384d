//! Topics of a command's flags: their headings.

use clap::{Arg, ArgAction, Command};

use crate::cli::{failure::Failure, flags::likely};

/// Heading of the flags that have none.
const REST: &str = "Options";

/// Flags with one heading.
#[derive(Debug)]
pub(in crate::cli) struct Topic {
    /// The heading in lower case, its words joined by dashes.
    pub(in crate::cli) word: String,
    pub(super) heading: String,
    /// Long names of its flags.
    pub(super) flags: Vec<String>,
    /// Whether its flags are those of every command.
    pub(in crate::cli) is_global: bool,
}

impl Topic {
    /// Returns true if this is the topic of a flag.
    pub(in crate::cli) fn has(&self, arg: &Arg) -> bool {
        heading_of(arg) == self.heading && arg.is_global_set() == self.is_global
    }
}

/// The topics of a command that was built: in the order of its flags, those of every command last.
pub(in crate::cli) fn of(command: &Command) -> Vec<Topic> {
    let mut topics: Vec<Topic> = Vec::new();
    let (own, global): (Vec<&Arg>, Vec<&Arg>) = shown(command).partition(|arg| !arg.is_global_set());
    for arg in own.into_iter().chain(global) {
        let flag = arg.get_long().unwrap_or_default().to_owned();
        match topics.iter_mut().find(|topic| topic.has(arg)) {
            Some(topic) => topic.flags.push(flag),
            None => topics.push(Topic {
                word: slug(heading_of(arg)),
                heading: heading_of(arg).to_owned(),
                flags: vec![flag],
                is_global: arg.is_global_set(),
            }),
        }
    }
    topics
}

fn heading_of(arg: &Arg) -> &str {
    arg.get_help_heading().unwrap_or(REST)
}

fn slug(heading: &str) -> String {
    let words = heading.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_lowercase()
}

/// Flags, without those that only ask for help or the version.
fn shown(command: &Command) -> impl Iterator<Item = &Arg> {
    let asks = |arg: &Arg| {
        matches!(arg.get_action(), ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version)
    };
    command.get_arguments().filter(move |arg| arg.get_long().is_some() && !arg.is_hide_set() && !asks(arg))
}

/// The ids of the flags that `word` names: those of a topic, of all topics with this word in their heading, or one flag.
pub(super) fn find(command: &Command, topics: &[Topic], word: &str) -> Option<Vec<String>> {
    let word = slug(word);
    let has = |topic: &&Topic| topic.word.split('-').any(|part| part == word);
    let exact = topics.iter().filter(|topic| topic.word == word).map(|topic| topic.heading.as_str());
    let alike = topics.iter().filter(has).map(|topic| topic.heading.as_str());
    let mut headings: Vec<&str> = exact.collect();
    if headings.is_empty() {
        headings.extend(alike);
    }
    let of_topic = |arg: &&Arg| headings.contains(&heading_of(arg));
    let is_named = |arg: &&Arg| arg.get_long_and_visible_aliases().is_some_and(|names| names.contains(&word.as_str()));
    let ids = |wanted: &dyn Fn(&&Arg) -> bool| -> Vec<String> {
        shown(command).filter(wanted).map(|arg| arg.get_id().to_string()).collect()
    };
    let found = if headings.is_empty() { ids(&is_named) } else { ids(&of_topic) };
    (!found.is_empty()).then_some(found)
}

/// The topic that was requested is none.
pub(super) fn unknown(command: &Command, topics: &[Topic], word: &str) -> Failure {
    let name = command.get_bin_name().unwrap_or_default();
    let words: Vec<&str> = topics.iter().map(|topic| topic.word.as_str()).collect();
    let names = words.iter().copied().chain(shown(command).filter_map(Arg::get_long));
    let likely = likely(word, names).map(|known| format!("did you mean `{known}`? "));
    Failure::usage(format!("`{name} --help` has no topic and no flag `{word}`")).hint(format!(
        "{}topics: {}, all",
        likely.unwrap_or_default(),
        words.join(", ")
    ))
}
