//! Traces: the public files, and files that are made for a test.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use vllm_vcr::{
    play::Player,
    text::prompt::{BlockHashAlgorithm, BlockHasher, SpecialTokens},
};

use super::{play_server::tokenizer, running::Running};

/// The material shared with the project, which is not part of the package: `VLLM_VCR_SHARED`, else `../shared`.
pub(crate) fn shared(inside: &str) -> Option<PathBuf> {
    let root = std::env::var_os("VLLM_VCR_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    let path = root.join(inside);
    if !path.exists() {
        eprintln!("SKIPPED: no {inside}; set VLLM_VCR_SHARED to the folder that holds it");
        return None;
    }
    Some(path)
}

/// The trace files of a folder, sorted.
pub(crate) fn traces_in(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|suffix| suffix == "jsonl"));
    files.sort();
    files
}

/// This project's own files in the shapes of the public ones.
pub(crate) fn own_shapes() -> Vec<PathBuf> {
    let files = traces_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/public-shapes"));
    assert_eq!(files.len(), 7);
    files
}

/// The upstream files, none where they are absent.
pub(crate) fn upstream() -> Vec<PathBuf> {
    let files = shared("upstream-traces").map(|folder| traces_in(&folder)).unwrap_or_default();
    assert!(files.is_empty() || files.len() == 7);
    files
}

/// The lines of a file as JSON.
pub(crate) fn json_lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A line of a trace: a prompt and what was answered.
pub(crate) fn line(prompt: &str, text: &str, more: &Value) -> Value {
    let ids = tokenizer().encode(prompt, SpecialTokens::Add).unwrap();
    let hashes = BlockHasher::new(BlockHashAlgorithm::Xxh3_64, 16).hash(&ids);
    let output = tokenizer().encode(text, SpecialTokens::Skip).unwrap();
    let mut line = json!({"prompt_tokens": ids.len(), "output_tokens": output.len(), "ttft_ms": 1.0,
        "itl_ms": vec![1.0; output.len() - 1], "block_hashes": hashes.blocks, "prompt_hash": hashes.whole,
        "output_token_ids": output, "finish_reason": "length", "endpoint": "completions"});
    line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    line
}

/// A folder with a trace.
pub(crate) struct Trace {
    folder: tempfile::TempDir,
    pub(crate) file: PathBuf,
}

impl Trace {
    pub(crate) fn of(lines: &[Value]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("day.jsonl");
        let tokenizer = Player::builtin_tokenizer().unwrap();
        let meta = json!({"meta": {"format": 1, "block_size": 16, "block_hash": "xxh3-64",
            "tokenizer": {"name": tokenizer.name(), "fingerprint": tokenizer.fingerprint()}}});
        let text: String = std::iter::once(&meta).chain(lines).map(|line| format!("{line}\n")).collect();
        std::fs::write(&file, text).unwrap();
        Self { folder, file }
    }

    pub(crate) fn play(&self, flags: &[&str]) -> Running {
        let fixed = ["play", "--port", "0", "--instant", "--replay-tokens", self.file.to_str().unwrap()];
        Running::start(&[&fixed[..], flags].concat())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
