//! The commands that the README and the docs show are commands that the program takes.

use std::path::PathBuf;

use crate::support::tree;

#[test]
fn every_shown_command_parses() {
    let mut pages = tree::files("docs/src", "md");
    pages.push(PathBuf::from("README.md"));
    let mut shown = 0;
    for page in pages {
        for arguments in commands(&tree::read(&page)) {
            let parsed = vllm_vcr::cli::command().try_get_matches_from(&arguments);
            if let Err(error) = parsed {
                let asks_for_help = !error.use_stderr();
                assert!(asks_for_help, "{}: {}\n{error}", page.display(), arguments.join(" "));
            }
            shown += 1;
        }
    }
    assert!(shown > 5, "only {shown} commands were found");
}

#[test]
fn the_readme_has_two_setup_commands() {
    let readme = tree::read("README.md");
    for command in ["cargo run --release -- play", "cargo test"] {
        assert!(readme.lines().any(|line| line.trim() == command), "{command}");
    }
}

/// The argument lists of every `vllm-vcr …` and `cargo run … -- …` in `sh` fences.
fn commands(text: &str) -> Vec<Vec<String>> {
    let fences = text.split("\n```").skip(1).step_by(2).filter_map(|fence| fence.strip_prefix("sh\n"));
    fences.flat_map(|fence| fence.replace("\\\n", " ").lines().filter_map(arguments).collect::<Vec<_>>()).collect()
}

fn arguments(line: &str) -> Option<Vec<String>> {
    let line = line.split(" #").next().unwrap_or(line);
    let line =
        line.split('|').map(str::trim).find(|part| part.starts_with("vllm-vcr") || part.starts_with("cargo run"))?;
    let line = line.split(" > ").next().unwrap_or(line).trim_end_matches('&');
    let typed = match line.strip_prefix("cargo run") {
        Some(rest) => rest.split_once(" -- ").map_or("", |(_, typed)| typed),
        None => line.strip_prefix("vllm-vcr")?,
    };
    let words = typed.split_whitespace().map(|word| word.trim_matches(['\'', '"']).to_owned());
    Some(std::iter::once("vllm-vcr".to_owned()).chain(words).collect())
}

#[test]
fn commands_are_found_in_fences() {
    let text =
        "vllm-vcr a\n```sh\nvllm-vcr b \\\n  --c 1 # why\ncat x | vllm-vcr d - > y\ncargo run --release -- e\n```\n";
    let found: Vec<String> = commands(text).iter().map(|words| words.join(" ")).collect();
    assert_eq!(found, ["vllm-vcr b --c 1", "vllm-vcr d -", "vllm-vcr e"]);
}
