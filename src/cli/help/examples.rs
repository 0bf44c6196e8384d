//! Examples of a command, as its help ends with them.

use clap::Command;

/// Number of examples on a screen.
const SHOWN: usize = 3;

/// The first examples of a command, each with its lines as they are, without empty lines.
pub(super) fn first(command: &Command) -> Vec<String> {
    let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let Some((_, text)) = text.split_once(":\n") else { return Vec::new() };
    let blocks: Vec<&str> = text.split("\n\n").filter(|block| block.starts_with("  ")).collect();
    match blocks.as_slice() {
        [lines] if !lines.trim_end().lines().next().is_some_and(|line| line.ends_with(':')) => one_a_line(lines),
        blocks => blocks.iter().take(SHOWN).map(|block| block.trim_end().to_owned()).collect(),
    }
}

/// Examples without titles; a line that ends in a backslash goes on.
fn one_a_line(lines: &str) -> Vec<String> {
    let mut examples: Vec<String> = Vec::new();
    let mut goes_on = false;
    for line in lines.trim_end().lines() {
        match examples.last_mut().filter(|_| goes_on) {
            Some(example) => example.push_str(&format!("\n{line}")),
            None => examples.push(line.to_owned()),
        }
        goes_on = line.ends_with('\\');
    }
    examples.truncate(SHOWN);
    examples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_blocks_or_lines() {
        let of = |text: &str| first(&Command::new("c").after_long_help(text.to_owned()));
        assert_eq!(of("Examples:\n  c a \\\n      b\n  c d"), ["  c a \\\n      b", "  c d"]);
        assert_eq!(
            of("Examples:\n  Does:\n    c a\n    c b\n\n  Is:\n    c\n\nDurations."),
            ["  Does:\n    c a\n    c b", "  Is:\n    c"]
        );
        assert_eq!(of("Example:\n  c"), ["  c"]);
        assert_eq!(of("Examples:\n  1\n  2\n  3\n  4").len(), 3);
        assert!(first(&Command::new("c")).is_empty());
    }
}
