//! Options for the contents of answers, as vLLM's flags of the same names.

/// Optional parts of answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerOptions {
    /// True where an answer of one choice has its times.
    pub request_metrics: bool,
    /// The value of `system_fingerprint`.
    pub fingerprint: Fingerprint,
    /// The engine's model: a Hub id or a directory. Without it, that of the trace or the tokenizer.
    pub model: Option<String>,
}

/// The value of `system_fingerprint` (vLLM's `--fingerprint-mode`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Fingerprint {
    /// The engine's version, and a hash that is the same for the same tokenizer and seed. One engine alone has no
    /// parallelism to report, so the engine's modes `full` and `hash` are both this.
    #[default]
    Hash,
    /// This text, or nothing.
    Custom(Option<String>),
}

impl Fingerprint {
    /// The text; `None` where there is to be none.
    pub(in crate::play) fn text(&self, version: &str, hash: u64) -> Option<String> {
        match self {
            Self::Hash => Some(format!("vllm-{version}-{:08x}", hash >> 32)),
            Self::Custom(text) => text.clone(),
        }
    }
}
