//! The guide about test frameworks shows the code of the examples, which `tests/frameworks/run.py` runs.

use crate::support::tree;

#[test]
fn the_guide_has_the_code_of_the_examples() {
    let guide = tree::read("docs/src/guides/test-frameworks.md");
    for file in ["pytest/conftest.py", "vitest/vcr.js", "go/vcr_test.go"] {
        let code = tree::read(format!("examples/{file}"));
        // What a file says of itself is what the guide says around it.
        let code = code.trim_start_matches(|c| c != '\n').trim();
        assert!(guide.contains(code), "examples/{file} is not in the guide as it stands");
    }
}

#[test]
fn the_guide_has_the_workflow_of_the_example() {
    let workflow = tree::read("examples/github/drift.yml");
    let workflow = workflow.trim_start_matches(|c| c != '\n').trim();
    assert!(
        tree::read("docs/src/guides/drift.md").contains(workflow),
        "examples/github/drift.yml is not in the guide as it stands"
    );
}
