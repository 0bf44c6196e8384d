//! Every row of the table of other recorders' cases names a test that runs.

use crate::support::{read, tree::root};

#[test]
fn every_case_has_a_test_that_runs() {
    let page = read(&root().join("docs/src/internals/cassette-cases.md"));
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| case")).collect();
    assert!(rows.len() >= 30, "{}", rows.len());
    let mut tests = read(&root().join("crates/recording/src/redaction/redactor/tests.rs"));
    for entry in std::fs::read_dir(root().join("tests/it/cassettes")).unwrap() {
        tests.push_str(&read(&entry.unwrap().path()));
    }
    for row in rows {
        let name = row.rsplit('`').nth(1).unwrap();
        let before = tests.split_once(&format!("fn {name}()")).map_or("", |(before, _)| before);
        let attribute =
            before.lines().rev().find(|line| !line.starts_with("async") && !line.is_empty()).unwrap_or_default();
        let is_test = attribute == "#[test]" || attribute.starts_with("#[tokio::test");
        assert!(is_test, "no test of this name: {row}");
    }
}
