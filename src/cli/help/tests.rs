use clap::Command;

use super::*;
use crate::cli::command;

/// Lines and columns of a screen.
const SCREEN: (usize, usize) = (40, 100);

/// All commands, each as it is typed.
fn commands() -> Vec<Command> {
    fn under(command: &Command, found: &mut Vec<Command>) {
        found.push(command.clone().term_width(SCREEN.1));
        command.get_subcommands().filter(|child| !child.is_hide_set()).for_each(|child| under(child, found));
    }
    let mut found = Vec::new();
    under(&built(&command()), &mut found);
    found
}

fn name(command: &Command) -> String {
    command.get_bin_name().unwrap_or(command.get_name()).to_owned()
}

fn text(command: &Command, topic: Option<&str>, is_long: bool) -> String {
    page(command, topic, is_long).unwrap().to_string()
}

fn of(line: &str) -> Result<String, String> {
    let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    match requested(&command().term_width(SCREEN.1), &arguments) {
        Ok(page) => Ok(page.map(|page| page.to_string()).unwrap_or_default()),
        Err(failure) => Err(failure.text()),
    }
}

#[test]
fn each_screen_fits() {
    for command in commands() {
        let screen = text(&command, None, false);
        let (lines, widest) = (screen.lines().count(), screen.lines().map(|line| line.chars().count()).max().unwrap());
        assert!(
            lines <= SCREEN.0 && widest <= SCREEN.1,
            "`{} -h` has {lines} lines of up to {widest} columns: give it a row in FIRST, fewer flags there, or shorter examples\n{screen}",
            name(&command),
        );
    }
}

#[test]
fn each_screen_has_examples() {
    for command in commands().iter().filter(|command| !["completions", "man"].contains(&command.get_name())) {
        let examples = examples::first(command);
        let fewest = if screen::is_whole(command) { 1 } else { 3 };
        assert!(examples.len() >= fewest, "`{}` has {} examples", name(command), examples.len());
    }
}

#[test]
fn rows_name_flags() {
    let commands = commands();
    for (row, flags) in screen::rows() {
        let command = commands.iter().find(|command| name(command) == row).unwrap_or_else(|| panic!("{row}"));
        let has = |flag: &str| command.get_arguments().any(|arg| arg.get_long() == Some(flag));
        flags.split(' ').for_each(|flag| assert!(has(flag), "{row} has no --{flag}"));
    }
}

#[test]
fn each_flag_has_a_topic_that_shows_it() {
    for command in commands().iter().filter(|command| !screen::is_whole(command)) {
        let index = text(command, None, true);
        for topic in topics::of(command) {
            assert_ne!(topic.heading, "Options", "flags of `{}` without a heading: {:?}", name(command), topic.flags);
            let page = text(command, Some(&topic.word), true);
            for flag in topic.flags {
                let shown = |page: &str| {
                    let words = page.split(|letter: char| letter.is_whitespace() || ",.=[<".contains(letter));
                    words.into_iter().any(|word| word == format!("--{flag}"))
                };
                assert!(shown(&page), "`{} --help {}` lacks --{flag}\n{page}", name(command), topic.word);
                assert!(shown(&index), "`{} --help` lacks --{flag}\n{index}", name(command));
            }
        }
    }
}

#[test]
fn what_is_asked_for_is_shown() {
    for (line, has, lacks) in [
        ("v play -h", "--cassette", "--kv-events-config"),
        ("v play --port 1 -vh", "--cassette", "--kv-events-config"),
        ("v play -h model.yaml", "--cassette", "--kv-events-config"),
        ("v play -h engine", "--max-num-seqs", "--cassette"),
        ("v play --help engine", "--max-num-seqs", "--cassette"),
        ("v play --help=Engine", "--max-num-seqs", "--cassette"),
        ("v --help play engine", "--max-num-seqs", "--cassette"),
        ("v play --help kv", "--kv-events-config", "--max-num-seqs"),
        ("v play --help max-num-seqs", "Requests that run at once", "--max-num-batched-tokens"),
        ("v play --help", "--kv-events-config", "Requests that run at once"),
        ("v play --help --port 1", "--kv-events-config", "Requests that run at once"),
        ("v play --help all", "Requests that run at once", "Topics"),
        ("v play --help global", "--log-format", "--cassette"),
        ("v inspect -h", "summary", "--config"),
        ("v inspect simulate -h", "--router", "--cassette"),
        ("v -h", "mcp-play", "--log-format"),
        ("v --help", "--log-format", "--cassette <"),
        ("v tap -q -h", "--upstream", "--gpu"),
    ] {
        let page = of(line).unwrap();
        assert!(page.contains(has) && !page.contains(lacks), "{line}\n{page}");
    }
    for none in ["v play", "v play -- pytest --help", "v play -q", "v play --host h"] {
        assert_eq!(of(none), Ok(String::new()), "{none}");
    }
}

#[test]
fn an_unknown_topic_names_the_topics() {
    let error = of("v play --help egnine").unwrap_err();
    for part in ["no topic and no flag `egnine`", "did you mean `engine`?", "kv-events", "all"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(of("v cassette fmt --help x").unwrap_err().contains("topics: options, global-options, all"));
}

#[test]
fn too_little_gets_the_screen() {
    for line in ["v", "v cassette"] {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = command().try_get_matches_from(&arguments).unwrap_err();
        let error = in_place_of(error, &command(), &arguments);
        assert_eq!((error.exit_code(), error.use_stderr()), (2, true));
        assert!(error.to_string().contains("More: `vllm-vcr"), "{error}");
    }
}
