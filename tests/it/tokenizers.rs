//! Tokenizers for tests.

use std::{env, fs, path::PathBuf};

use vllm_vcr::prompt::Tokenizer;

use crate::tree::root;

/// The tokenizer of the goldens, which `tests/fetch-qwen3-tokenizer` fetches; `VLLM_VCR_QWEN3` names another place.
/// Without it, `None` and a loud word; in CI that is a failure.
pub(crate) fn qwen3() -> Option<Tokenizer> {
    let directory =
        env::var_os("VLLM_VCR_QWEN3").map_or_else(|| root().join("target/fixtures/tokenizers/qwen3"), PathBuf::from);
    if directory.join("tokenizer.json").is_file() {
        return Some(Tokenizer::load(&directory.display().to_string()).unwrap());
    }
    let ci = env::var("CI").is_ok_and(|value| !value.is_empty());
    assert!(!ci, "no Qwen3 tokenizer in {}: run tests/fetch-qwen3-tokenizer", directory.display());
    eprintln!("SKIPPED: no Qwen3 tokenizer in {}; run tests/fetch-qwen3-tokenizer", directory.display());
    None
}

/// The `tokenizer.json` that is compiled into the binary.
pub(crate) fn smollm2_json() -> Vec<u8> {
    let packed = fs::read(root().join("traces/smollm2-135m/tokenizer.json.gz")).unwrap();
    vllm_vcr::trace::gunzip("tokenizer.json.gz", &packed).unwrap()
}
