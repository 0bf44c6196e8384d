//! The pages about faults: the catalogue is the program's, and the guide's commands give what they show.

use std::process::Command;

use vllm_vcr::{
    faults::{FaultStage, rows},
    play::FaultLines,
};

use crate::support::{running::Running, tree};

const PAGE: &str = "docs/src/reference/faults.md";
const GUIDE: &str = "docs/src/guides/faults.md";
const MARKS: [&str; 2] = ["<!-- catalogue -->\n", "<!-- end of the catalogue -->"];

const STAGES: [(FaultStage, &str); 7] = [
    (FaultStage::Before, "Before the answer: retryable"),
    (FaultStage::Body, "In the body: committed"),
    (FaultStage::Reply, "In what the model says: committed"),
    (FaultStage::Metrics, "On `/metrics`: retryable"),
    (FaultStage::Health, "On `/health` and `/ping`: retryable"),
    (FaultStage::Events, "In KV events"),
    (FaultStage::Server, "In the whole server"),
];

fn catalogue() -> String {
    let mut page = String::new();
    for (stage, title) in STAGES {
        page.push_str(&format!("\n### {title}\n\n| kind | what happens | arguments | example |\n|---|---|---|---|\n"));
        for row in rows().filter(|row| row.stage == stage) {
            let names: Vec<String> =
                std::iter::once(&row.name).chain(row.aliases).map(|name| format!("`{name}`")).collect();
            let arguments: Vec<String> =
                row.arguments.iter().map(|(name, meaning)| format!("`{name}`: {meaning}")).collect();
            let line =
                format!("| {} | {} | {} | `{}` |\n", names.join(", "), row.summary, arguments.join("; "), row.example);
            page.push_str(&line);
        }
    }
    page + "\n"
}

#[test]
fn the_catalogue_of_the_page_is_fresh() {
    let page = tree::read(PAGE);
    let (before, rest) = page.split_once(MARKS[0]).unwrap();
    let (found, after) = rest.split_once(MARKS[1]).unwrap();
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        let fresh = [before, MARKS[0], &catalogue(), MARKS[1], after].concat();
        std::fs::write(tree::root().join(PAGE), fresh).unwrap();
        return;
    }
    assert_eq!(found, catalogue(), "{PAGE} is stale; run `UPDATE_REFERENCE=1 cargo test --test it faults::pages`");
}

/// The fences of a page with their languages.
fn fences(text: &str) -> Vec<(&str, &str)> {
    let inside = text.split("\n```").skip(1).step_by(2);
    inside.map(|fence| fence.split_once('\n').unwrap()).collect()
}

/// Each server of the guide is started, the commands after it are run, and print what the page shows.
#[test]
fn the_commands_of_the_guide_print_what_it_shows() {
    let guide = tree::read(GUIDE);
    let folder = tempfile::tempdir().unwrap();
    let (mut server, mut printed, mut compared): (Option<Running>, String, usize) = (None, String::new(), 0);
    for (language, text) in fences(&guide) {
        match language {
            "yaml" => {
                FaultLines::parse(text, GUIDE, 0).unwrap();
                std::fs::write(folder.path().join("faults.yaml"), text).unwrap();
            }
            "sh" if text.starts_with("vllm-vcr play") => {
                let line = text
                    .replace("\\\n", " ")
                    .replace("faults.yaml", folder.path().join("faults.yaml").to_str().unwrap());
                let words = shell_words(line.trim());
                let words: Vec<&str> = words.iter().skip(1).map(String::as_str).chain(["--port", "0"]).collect();
                server = Some(Running::start(&words));
            }
            "sh" => {
                let address = server.as_ref().unwrap().address.to_string();
                let output =
                    Command::new("sh").args(["-c", &text.replace("localhost:8000", &address)]).output().unwrap();
                printed = String::from_utf8(output.stdout).unwrap();
            }
            "text" => {
                assert_eq!(printed.trim_end(), text.trim_end(), "{GUIDE}");
                compared += 1;
            }
            other => panic!("a fence of {other}"),
        }
    }
    assert!(compared > 3, "{compared}");
}

/// The words of a line as a shell has them.
fn shell_words(line: &str) -> Vec<String> {
    let output = Command::new("sh").args(["-c", &format!("printf '%s\\n' {line}")]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}
