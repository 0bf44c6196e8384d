//! The commands that the README and the docs show are commands that the program takes.

use std::path::PathBuf;

use crate::support::{
    running::{Running, vcr},
    tree,
};

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

/// Record, simulate, drive, compare: the four lines, with free ports for their own and without a tokenizer's folder.
#[test]
fn the_round_trip_runs() {
    let readme = tree::read("README.md");
    let all = commands(&readme);
    let end = all.iter().position(|words| words.iter().any(|word| word == "compare")).unwrap();
    let [tap, play, replay, compare] = all.get(end - 3..=end).unwrap() else { panic!("{all:?}") };
    let folder = tempfile::tempdir().unwrap();
    let typed = |line: &[String], server: &str| -> Vec<String> {
        let of_the_test = |word: &String| match word.as_str() {
            "127.0.0.1:8001" => "127.0.0.1:0".to_owned(),
            "8002" => "0".to_owned(),
            "./tokenizer" => "none".to_owned(),
            word if word.starts_with("http://localhost:") => format!("http://{server}"),
            word if word.ends_with(".jsonl.gz") => folder.path().join(word).to_str().unwrap().to_owned(),
            word => word.to_owned(),
        };
        line.iter().skip(1).map(of_the_test).collect()
    };
    let start = |line: &[String]| Running::start(&line.iter().map(String::as_str).collect::<Vec<_>>());
    let end = |line: &[String]| vcr(&line.iter().map(String::as_str).collect::<Vec<_>>());
    let engine = Running::start(&["play", "--port", "0", "--instant"]);
    let tap = start(&typed(tap, &engine.address.to_string()));
    let builtin = tree::root().join("traces/builtin.jsonl.gz");
    let target = format!("http://{}", tap.address);
    vcr(&["replay", builtin.to_str().unwrap(), "--target", &target, "--arrivals", "burst"]);
    let (code, said) = tap.stop();
    assert_eq!(code, 0, "{said}");
    let play = start(&typed(play, ""));
    let driven = end(&typed(replay, &play.address.to_string()));
    let printed = String::from_utf8(driven.stdout).unwrap();
    assert!(printed.contains("19 sent and ended, 0 failed"), "{printed}{}", String::from_utf8_lossy(&driven.stderr));
    let compared = end(&typed(compare, ""));
    let printed = String::from_utf8(compared.stdout).unwrap();
    let of = |metric: &str| printed.lines().find(|line| line.starts_with(metric)).unwrap().split_whitespace();
    assert_eq!(of("output_tokens_mean").nth(1), of("output_tokens_mean").nth(2), "{printed}");
    assert!(of("ttft_p50").count() > 3, "{printed}");
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
    Some(std::iter::once("vllm-vcr".to_owned()).chain(words(typed)).collect())
}

/// The words of a line; quotes hold white space together.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in line.chars() {
        match letter {
            '\'' | '"' if quote.is_none_or(|open| open == letter) => {
                quote = if quote.is_some() { None } else { Some(letter) };
                word.get_or_insert_default();
            }
            letter if letter.is_whitespace() && quote.is_none() => words.extend(word.take()),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

#[test]
fn commands_are_found_in_fences() {
    let text = "vllm-vcr a\n```sh\nvllm-vcr b \\\n  --c 1 # why\ncat x | vllm-vcr d - > y\nvllm-vcr f 'g h=\"i\"'\ncargo run --release -- e\n```\n";
    let found: Vec<String> = commands(text).iter().map(|words| words.join(" ")).collect();
    assert_eq!(found, ["vllm-vcr b --c 1", "vllm-vcr d -", "vllm-vcr f g h=\"i\"", "vllm-vcr e"]);
}
