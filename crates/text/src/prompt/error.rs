//! Errors of tokenizers and prompts, each with the path and the next step.

use std::path::PathBuf;

/// Error of loading a tokenizer or building a prompt.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The tokenizer was given as a path, and nothing is there.
    #[error("no tokenizer at {0}: the path does not exist; pass a directory that holds tokenizer.json")]
    PathMissing(PathBuf),
    /// The directory is there, but not the tokenizer in it.
    #[error("{0} holds no tokenizer.json; pass the directory of a model with a fast tokenizer, or the file itself")]
    NoTokenizerJson(PathBuf),
    /// The tokenizer was given as a Hub id, the local Hub cache does not have it, and it may not be fetched.
    #[error(
        "the tokenizer {id} is not in the local Hub cache (looked for {looked_for}), and HF_HUB_OFFLINE forbids to fetch \
         it; unset that, or pass its directory (--tokenizer DIR)"
    )]
    NotInHubCache {
        /// The Hub id, such as `Qwen/Qwen3-0.6B`.
        id: String,
        /// Path that was looked for.
        looked_for: PathBuf,
    },
    /// The tokenizer was given as a Hub id, and the Hub does not give it.
    #[error(
        "the tokenizer {id} is neither a path nor in the local Hub cache, and cannot be fetched from {endpoint}: {reason}; \
         check its name and the network, or pass its directory (--tokenizer DIR)"
    )]
    NotFetched {
        /// The Hub id, such as `Qwen/Qwen3-0.6B`.
        id: String,
        /// The Hub's address.
        endpoint: String,
        /// The error of the network, the Hub or the file system.
        reason: String,
    },
    /// A file that is there could not be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The JSON is broken, or is no tokenizer.
    #[error("{origin} is not a tokenizer: {reason}; pass the tokenizer.json of a Hugging Face model")]
    NotATokenizer {
        /// The file, or the tokenizer's name where it came from memory.
        origin: String,
        /// The parser's error, with line and column.
        reason: String,
    },
    /// A file beside the tokenizer is broken.
    #[error("{origin} is not usable: {reason}; repair it or download it again")]
    BadConfig {
        /// The file's name and the tokenizer's.
        origin: String,
        /// The parser's error, with line and column.
        reason: String,
    },
    /// The chat template does not compile.
    #[error(
        "the chat template of {origin} does not compile (line {line}): {reason}; pass another with --chat-template"
    )]
    BadTemplate {
        /// The tokenizer's name.
        origin: String,
        /// Line in the template, from 1; 0 where unknown.
        line: usize,
        /// The template engine's error.
        reason: String,
    },
    /// The chat template refused this conversation; an engine answers 400 with this text, the template's own (`raise_exception`) or
    /// the template engine's.
    #[error("{0}")]
    Rejected(String),
    /// The messages cannot be turned into what a template takes; an engine answers 400 with this text.
    #[error("{reason}")]
    BadMessage {
        /// Reason, in vLLM's words.
        reason: String,
        /// The field at fault, as vLLM names it.
        parameter: &'static str,
        /// What it held, where vLLM says so.
        value: Option<String>,
    },
    /// A content part of this type is an image, audio or video; an engine answers 400, naming the model.
    #[error("this is not a multimodal model: it cannot take a content part of type {0}")]
    NotMultimodal(String),
    /// The tokenizer itself failed on a text.
    #[error("the tokenizer {name} cannot encode this text: {reason}")]
    Encode {
        /// The tokenizer's name.
        name: String,
        /// The tokenizer's error.
        reason: String,
    },
    /// The tokenizer itself failed on ids.
    #[error("the tokenizer {name} cannot decode these ids: {reason}")]
    Decode {
        /// The tokenizer's name.
        name: String,
        /// The tokenizer's error.
        reason: String,
    },
}
