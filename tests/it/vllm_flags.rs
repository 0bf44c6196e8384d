//! The page that tells what becomes of vLLM's flags.

use std::{fmt::Write, fs, process::Command};

use crate::support::tree;

const PAGE: &str = "docs/src/reference/vllm-flags.md";

const HEAD: &str = "\
# vLLM's flags

A copied `vllm serve` command line works after `play`: flags that mean something without a model are `play`'s own (see the
[command line](cli.md)), those that cannot matter are ignored with a word on stderr, and those that would change answers in a way that `play` does
not have are refused. `--max_model_len` is `--max-model-len`, `-tp 2` is `--tensor-parallel-size 2`, `--no-FLAG` is ignored where the flag is
off anyway, `--FLAG.part` goes with its flag; `-q` is `--quiet`, not `--quantization`. What stands after `--` is a command's and is not read. This page is written from the table by `tests/it/vllm_flags.rs`.

";

#[test]
fn the_page_tells_the_table() {
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-vcr")).args(["play", "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = help.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '-')).collect();
    let (mut refused, mut explained, mut ignored) = (String::new(), String::new(), Vec::new());
    for line in tree::read("src/cli/vllm_flags/table.tsv").lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let name = columns[0].split(',').next().unwrap();
        if words.contains(&format!("--{name}").as_str()) {
            continue;
        }
        match (columns[2], columns[4]) {
            ("refused", reason) => {
                let fine: Vec<String> =
                    columns[3].split(',').filter(|word| !word.is_empty()).map(|word| format!("`{word}`")).collect();
                let but = if fine.is_empty() { String::new() } else { format!("; {} is accepted", fine.join(" or ")) };
                let _ = writeln!(refused, "| `--{name}` | {reason}{but} |");
            }
            (_, "") => ignored.push(format!("`--{name}`")),
            (_, reason) => {
                let _ = writeln!(explained, "| `--{name}` | {reason} |");
            }
        }
    }
    let page = format!(
        "{HEAD}## Refused\n\n| flag | why |\n|---|---|\n{refused}\n## Ignored\n\n| flag | note |\n|---|---|\n\
         {explained}\nAnd, because they are about a model's weights, memory, scheduling, devices, logs or media: {}.\n",
        ignored.join(", ")
    );
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(tree::root().join(PAGE), &page).unwrap();
    }
    let fresh = page == tree::read(PAGE);
    assert!(fresh, "{PAGE} is stale; run `UPDATE_REFERENCE=1 cargo test --test it vllm_flags` and commit it");
}
