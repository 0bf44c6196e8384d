//! `bench`: both programs answer its load, and what is printed is whole.

use std::process::Command;

use serde_json::Value;

use crate::support::running::vcr;

#[test]
fn a_row_is_measured_for_both_programs() {
    let folder = tempfile::tempdir().unwrap();
    // A server that read it would not start.
    std::fs::create_dir(folder.path().join("cassettes")).unwrap();
    std::fs::write(folder.path().join("cassettes/odd.yaml"), "odd").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"))
        .args(["bench", "--only", "one_by_one", "--json"])
        .current_dir(&folder)
        .envs([("VLLM_VCR_PORT", "1"), ("VLLM_VCR_LISTEN", "127.0.0.1:1")])
        .output()
        .unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    for row in [&found["one_by_one"], &found["floor"]["one_by_one"]] {
        assert!(
            row["answers"].as_u64().is_some_and(|answers| answers > 10) && row["ttft_ms"]["p99"].is_f64(),
            "{found}"
        );
    }
    assert!(found["machine"]["cores"].as_u64().is_some_and(|cores| cores > 0) && found["build"]["target"].is_string());
    let nowhere = folder.path().join("no/such.svg").display().to_string();
    let output = vcr(&["bench", "--svg", &nowhere]);
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--svg"), "{output:?}");
    assert_eq!(vcr(&["bench", "--only", "everything"]).status.code(), Some(2));
}
