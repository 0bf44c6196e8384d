//! Tokenizers for tests.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use vllm_vcr::{play::load_tokenizer, text::prompt::Tokenizer};

use super::tree::root;

/// The tokenizer of the goldens, which `tests/fetch-qwen3-tokenizer` fetches; `VLLM_VCR_QWEN3` names another place.
/// Without it, `None` and a loud word; in CI that is a failure.
pub(crate) fn qwen3() -> Option<Tokenizer> {
    fetched(&qwen3_directory(), "Qwen3", "tests/fetch-qwen3-tokenizer")
}

/// A tokenizer of the Llama 3 family, which `tests/fetch-llama3-tokenizer` fetches; without it, as above.
pub(crate) fn llama3() -> Option<Tokenizer> {
    fetched(&root().join("target/fixtures/tokenizers/llama3"), "Llama 3", "tests/fetch-llama3-tokenizer")
}

fn fetched(directory: &Path, name: &str, script: &str) -> Option<Tokenizer> {
    if directory.join("tokenizer.json").is_file() {
        return Some(load_tokenizer(&directory.display().to_string()).unwrap());
    }
    let ci = env::var("CI").is_ok_and(|value| !value.is_empty());
    assert!(!ci, "no {name} tokenizer in {}: run {script}", directory.display());
    eprintln!("SKIPPED: no {name} tokenizer in {}; run {script}", directory.display());
    None
}

/// Where that tokenizer is looked for.
pub(crate) fn qwen3_directory() -> PathBuf {
    env::var_os("VLLM_VCR_QWEN3").map_or_else(|| root().join("target/fixtures/tokenizers/qwen3"), PathBuf::from)
}

/// The `tokenizer.json` that is compiled into the binary.
pub(crate) fn smollm2_json() -> Vec<u8> {
    let packed = fs::read(root().join("traces/smollm2-135m/tokenizer.json.gz")).unwrap();
    vllm_vcr::recording::trace::gunzip("tokenizer.json.gz", &packed).unwrap()
}
