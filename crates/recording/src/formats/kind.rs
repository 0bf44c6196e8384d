//! Which program's format a file has.

use std::path::Path;

use super::fields::Fields;

base::named! {
    /// A format of files of requests.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum TraceFormat {
        /// A trace of this program.
        Trace = "trace",
        /// A row for each request: Mooncake, AIPerf's `mooncake_trace`, Dynamo's replay rows. Times in milliseconds, blocks of 512 tokens.
        Mooncake = "mooncake",
        /// The same rows for `vllm bench serve --dataset-name timed_trace`. Times in seconds, blocks of 16 tokens.
        VllmTimedTrace = "vllm-timed-trace",
        /// An object for each conversation with the requests of an agent and its sub-agents: Weka, AgentX.
        Weka = "weka",
        /// Events of Dynamo's request trace.
        Dynamo = "dynamo",
        /// AIPerf's `single_turn`: a text for each request.
        AiperfSingleTurn = "aiperf-single-turn",
        /// AIPerf's `multi_turn`: the users' texts of each conversation.
        AiperfMultiTurn = "aiperf-multi-turn",
        /// An object for each conversation with the texts of both sides.
        ShareGpt = "sharegpt",
    }
}

impl TraceFormat {
    /// Default number of tokens of a block.
    pub(crate) fn usual_block_size(self) -> u32 {
        match self {
            Self::Mooncake => 512,
            Self::Weka | Self::Dynamo => 64,
            Self::Trace | Self::VllmTimedTrace | Self::AiperfSingleTurn | Self::AiperfMultiTurn | Self::ShareGpt => 16,
        }
    }

    /// Returns true if files of it are written, not only read.
    #[must_use]
    pub fn is_written(self) -> bool {
        matches!(self, Self::Trace | Self::Mooncake | Self::Weka | Self::Dynamo)
    }

    /// Returns whether a last block that is not full has a hash too.
    pub(crate) fn has_tails(self) -> bool {
        matches!(self, Self::Mooncake | Self::VllmTimedTrace | Self::Dynamo)
    }

    /// The format that a name promises: `NAME.weka.jsonl.gz`, any other one a trace.
    #[must_use]
    pub fn of_name(path: &Path) -> Self {
        let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        let stem = name.trim_end_matches(".gz").trim_end_matches(".jsonl").trim_end_matches(".json");
        stem.rsplit_once('.').and_then(|(_, ending)| Self::named(ending)).unwrap_or(Self::Trace)
    }

    /// The format that only its objects have; `None` where it could be several or none.
    pub(super) fn of_object(fields: &Fields) -> Option<Self> {
        let has = |names: &[&str]| names.iter().any(|name| fields.has(name));
        if has(&["meta", "prompt_tokens", "ttft_ms"]) {
            return Some(Self::Trace);
        }
        if has(&["requests"]) || (has(&["in"]) && has(&["out"])) {
            return Some(Self::Weka);
        }
        if has(&["event", "event_type", "schema"]) {
            return Some(Self::Dynamo);
        }
        if has(&["turns"]) {
            return Some(Self::AiperfMultiTurn);
        }
        if has(&["conversations"]) {
            return Some(Self::ShareGpt);
        }
        let is_row = has(&["input_length", "input_tokens", "hash_ids", "text_input", "payload"]);
        if is_row || (has(&["messages"]) && has(&["timestamp", "delay", "session_id", "output_length"])) {
            return Some(Self::Mooncake);
        }
        has(&["text", "texts"]).then_some(Self::AiperfSingleTurn)
    }
}
