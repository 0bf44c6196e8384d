//! Why a replay server cannot start.

use text::prompt::PromptError;

/// Reasons for which a replay server cannot start, each with the next step.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    /// Values of metrics that cannot be set.
    #[error("--fake-metrics: {0}")]
    FakeMetrics(String),
    /// Lengths are to be drawn from a trace, and there is none.
    #[error(
        "--output-tokens trace takes the lengths of a trace: give one with --replay-tokens FILE, or lengths such as 50..400"
    )]
    NoLengths,
    /// The recorder of MCP servers cannot be started.
    #[error(transparent)]
    Mcp(#[from] recording::cassette::CassetteError),
    /// The trace could not be read.
    #[error(transparent)]
    Trace(#[from] recording::trace::TraceError),
    /// The tokenizer could not be loaded.
    #[error(transparent)]
    Tokenizer(#[from] PromptError),
    /// The trace needs a tokenizer that is not the built-in one.
    #[error("{trace} was recorded with the tokenizer {needed}, which is not built in; pass it with --tokenizer DIR")]
    TokenizerNeeded {
        /// The trace.
        trace: String,
        /// The tokenizer that it names.
        needed: String,
    },
    /// The trace holds ids of an unnamed tokenizer.
    #[error(
        "{trace} holds token ids and does not name their tokenizer (its tap had none); pass the model's with --tokenizer DIR"
    )]
    TokenizerUnsaid {
        /// The trace.
        trace: String,
    },
    /// The tokenizer at hand is not the trace's.
    #[error(
        "{trace} was recorded with the tokenizer {recorded} (fingerprint {recorded_fingerprint}), but {given} has another \
         vocabulary (fingerprint {given_fingerprint}); pass the recorded one with --tokenizer DIR"
    )]
    OtherTokenizer {
        /// The trace.
        trace: String,
        /// Name of the tokenizer that it was recorded with.
        recorded: String,
        /// Its fingerprint.
        recorded_fingerprint: String,
        /// Name of the tokenizer that was given.
        given: String,
        /// Its fingerprint.
        given_fingerprint: String,
    },
    /// The trace's hashes were made with another key.
    #[error("the trace's block hashes were made with the key {wanted}, --hash-key-file holds the key {given}")]
    HashKey {
        /// The key at hand.
        given: String,
        /// The trace's.
        wanted: String,
    },
    /// A key where nothing is keyed.
    #[error("the trace's block hashes are made without a key: --hash-key-file has no effect on it; leave it out")]
    NoHashKey,
    /// A recorded id that the model does not have.
    #[error(
        "{trace} holds token id {id}, but the model of {given} has only {vocab_size} ids; pass the tokenizer that it was recorded with (--tokenizer DIR)"
    )]
    IdBeyondVocabulary {
        /// The trace.
        trace: String,
        /// The id.
        id: u32,
        /// Name of the tokenizer that was given.
        given: String,
        /// Number of its ids.
        vocab_size: u32,
    },
    /// The model's sampling defaults cannot be read.
    #[error("cannot read {}, which --generation-config names", path.display())]
    GenerationConfig {
        /// The file.
        path: std::path::PathBuf,
        /// The system's error, or where it is not JSON.
        source: std::io::Error,
    },
    /// An adapter of the start that cannot be one.
    #[error("--lora-modules: {0} Give adapters other names than the model (--served-model-name) and than each other")]
    Adapter(String),
    /// The simulated engine cannot run.
    #[error(transparent)]
    Engine(#[from] super::engine::EngineError),
    /// The trace holds no record at all.
    #[error("{trace} holds no records")]
    Empty {
        /// The trace.
        trace: String,
    },
}
