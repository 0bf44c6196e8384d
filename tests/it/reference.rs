//! The reference page of the docs is what the program prints.

use std::{fs, process::Command};

use crate::support::tree;

const PAGE: &str = "docs/src/reference/cli.md";

#[test]
fn the_page_is_fresh() {
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-vcr")).arg("reference").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(tree::root().join(PAGE), &printed).unwrap();
    }
    let fresh = printed == tree::read(PAGE);
    assert!(fresh, "{PAGE} is stale; run `UPDATE_REFERENCE=1 cargo test --test it reference` and commit it");
}
