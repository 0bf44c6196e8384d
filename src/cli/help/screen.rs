//! The screen that `-h` prints: at most 40 lines of 100 columns.

use clap::{Arg, Command, builder::Resettable};

use super::{examples, topics, with_usage};

/// Flags on the screen of a command that has more of them than fit, in their order. Of the other commands all flags are on it.
const FIRST: [(&str, &str); 12] = [
    ("vllm-vcr", "verbose quiet version"),
    (
        "vllm-vcr tap",
        "upstream listen trace-out record-tokens tokenizer mode append overwrite sample rotate-every redact",
    ),
    (
        "vllm-vcr play",
        "replay-tokens cassette synthetic tokenizer strict engine fault instant time-scale served-model-name host port",
    ),
    ("vllm-vcr replay", "target arrivals rate speed concurrency limit duration model check find-max out json"),
    ("vllm-vcr prove", "via upstream-port api-key model cassette only compare cases junit json"),
    ("vllm-vcr conform", "target profile kv-events model strict json api-key timeout"),
    ("vllm-vcr drift", "live text upstream api-key header secrets timeout concurrency json markdown junit"),
    ("vllm-vcr fork", "at model target out overwrite match listen secrets allow-secrets timing json"),
    ("vllm-vcr sweep", "via upstream-port api-key model canary only cells compare junit json"),
    ("vllm-vcr mcp-tap", "cassette name mode url upstream-header redact"),
    ("vllm-vcr mcp-play", "cassette server on-miss on-exhausted strict ignore fail-on report secrets"),
    (
        "vllm-vcr inspect simulate",
        "replicas router speed slo max-num-seqs num-gpu-blocks-override latency-trace latency-profile seed json",
    ),
];

/// Where a flag stands on the screen; `None` if it does not.
fn place(command: &Command, arg: &Arg) -> Option<usize> {
    match first(command) {
        Some(first) => match arg.get_long() {
            Some(long) => first.split(' ').position(|name| name == long),
            None => Some(0),
        },
        None => (!arg.is_global_set() && arg.get_id() != "help" && !arg.is_hide_set()).then_some(0),
    }
}

fn first(command: &Command) -> Option<&'static str> {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    FIRST.iter().find(|(command, _)| *command == name).map(|(_, flags)| *flags)
}

/// Returns true if the screen has all flags that are the command's own.
pub(super) fn is_whole(command: &Command) -> bool {
    command.has_subcommands() || first(command).is_none()
}

pub(super) fn of(command: &Command) -> Command {
    let short = |arg: Arg| {
        let whole = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let help = if first(command).is_some() { first_sentence(&whole).to_owned() } else { whole };
        match place(command, &arg) {
            Some(order) => arg.help(help).display_order(order).help_heading(Resettable::Reset),
            None => arg.hide(true),
        }
    };
    let brief = |child: Command| {
        let about = child.get_about().map(ToString::to_string).unwrap_or_default();
        child.about(first_sentence(&about).to_owned())
    };
    with_usage(command).mut_args(short).mut_subcommands(brief).after_help(foot(command))
}

/// The clause before the first full stop, semicolon or colon; a colon in quotes is text.
fn first_sentence(text: &str) -> &str {
    let before = |text, stop| str::split_once(text, stop).map_or(text, |(first, _)| first);
    let sentence = before(before(text, ". "), "; ");
    let clause = before(sentence, ": ");
    if clause.contains(" '") || clause.contains('`') { sentence } else { clause }
}

/// Examples, and how to see more.
fn foot(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let mut foot = examples::first(command).join("\n");
    if !foot.is_empty() {
        foot = format!("Examples:\n{foot}\n\n");
    }
    let topics: Vec<String> = topics::of(command).into_iter().map(|topic| topic.word).collect();
    let more = if command.has_subcommands() {
        format!("More: `{name} COMMAND -h`, `{name} --help`.")
    } else if is_whole(command) {
        format!("More: `{name} --help`; flags of every command: `vllm-vcr --help`.")
    } else {
        format!("All flags: `{name} --help`. By topic: `{name} --help TOPIC`, of {}.", topics.join(", "))
    };
    foot + &more
}

#[cfg(test)]
pub(super) fn rows() -> impl Iterator<Item = (&'static str, &'static str)> {
    FIRST.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_ends_before_the_next() {
        for (text, first) in [
            ("Files of .yaml. Others too", "Files of .yaml"),
            ("A file; another", "A file"),
            ("A; b. C", "A"),
            ("such as s/A/B/", "such as s/A/B/"),
            ("A file: one of .yaml", "A file"),
            ("Such as 'Authorization: KEY'. Others too", "Such as 'Authorization: KEY'"),
        ] {
            assert_eq!(first_sentence(text), first);
        }
    }
}
