//! The table: what each flag does for each kind of source.

use crate::cli::matching::OF_TRACE;

/// Kind of source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Kind {
    BuiltIn,
    Trace,
    Synthetic,
    Cassette,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::BuiltIn => "the built-in trace",
            Self::Trace => "a trace",
            Self::Synthetic => "synthetic tokens",
            Self::Cassette => "a cassette",
        }
    }
}

/// Effect of a flag on a kind of source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// As its help describes.
    Full,
    /// Something for requests that the source does not answer; the reason is shown.
    Rest(&'static str),
    /// Something with these values only, for this reason.
    Values(&'static [&'static str], &'static str),
    /// Nothing, for this reason.
    Nothing(&'static str),
}

use Effect::{Full, Nothing, Rest, Values};

/// Flags with what they do for each kind: the built-in trace, a trace, synthetic tokens, a cassette.
struct Row {
    flags: &'static [&'static str],
    effects: [Effect; 4],
}

const NO_RECORDS: Effect = Nothing("made-up tokens have no records");
const ANSWERED: Effect = Rest("what is recorded is answered as it was recorded");

const TABLE: &[Row] = &[
    Row {
        flags: &[
            "replay-tokens",
            "cassette",
            "synthetic",
            "tokenizer",
            "served-model-name",
            "chat-template",
            "max-model-len",
            "instant",
            "time-scale",
            "pace",
            "time-to-first-token",
            "inter-token-latency",
            "host",
            "port",
            "stats-json",
            "drain-timeout",
            "enable-request-id-headers",
            "trust-request-chat-template",
            "enable-scale-out",
            "model_tag",
            "model",
            "command",
            "api-key",
            "allowed-origins",
            "allowed-methods",
            "allowed-headers",
            "allow-credentials",
            "uds",
            "ssl-certfile",
            "ssl-keyfile",
            "ssl-ca-certs",
            "ssl-cert-reqs",
            "enable-ssl-refresh",
            "root-path",
            "disable-fastapi-docs",
            "enable-server-load-tracking",
            "sse-keep-alive-interval",
            "max-num-queued-reqs",
            "kv-cache-metrics",
            "kv-cache-metrics-sample",
            "threads",
            "startup-duration",
            "vcr-metrics",
            "enable-tokenizer-info-endpoint",
            "vllm-version",
            "default-chat-template-kwargs",
            "hf-overrides",
            "seed",
        ],
        effects: [Full; 4],
    },
    Row {
        flags: &[
            "enable-prompt-tokens-details",
            "stream-interval",
            "reasoning-parser",
            "enable-auto-tool-choice",
            "tool-call-parser",
            "enable-per-request-metrics",
            "fingerprint-mode",
            "fingerprint-value",
            "enable-force-include-usage",
            "generation-config",
            "override-generation-config",
            "max-logprobs",
            "return-tokens-as-token-ids",
        ],
        effects: [Full, Full, Full, ANSWERED],
    },
    Row {
        flags: &[
            "engine",
            "block-size",
            "max-num-seqs",
            "max-num-batched-tokens",
            "long-prefill-token-threshold",
            "enable-chunked-prefill",
            "no-enable-chunked-prefill",
            "scheduling-policy",
            "num-gpu-blocks-override",
            "enable-prefix-caching",
            "no-enable-prefix-caching",
            "prefix-caching-hash-algo",
            "legacy-metrics",
            "replicas",
            "replica-addresses",
            "data-parallel-size",
            "script",
            "latency-trace",
            "latency-profile",
            "time-to-first-token-std-dev",
            "inter-token-latency-std-dev",
            "prefill-overhead",
            "prefill-time-per-token",
            "prefill-time-std-dev",
            "time-factor-under-load",
            "kv-events-config",
            "enable-kv-cache-events",
            "kv-events-endpoint",
            "kv-events-topic",
            "kv-events-encoding",
            "kv-events-block-hashes",
            "speculative-config",
            "speculative-acceptance-rate",
        ],
        effects: [Full; 4],
    },
    Row { flags: &["latency-recorded"], effects: [Full, Full, NO_TIMES, Full] },
    Row {
        flags: &[
            "kv-transfer-config",
            "kv-cache-transfer-latency",
            "kv-cache-transfer-time-per-token",
            "kv-cache-transfer-latency-std-dev",
            "kv-cache-transfer-time-std-dev",
        ],
        effects: [Full, Full, Full, NO_TRANSFER],
    },
    Row {
        flags: &["enable-lora", "lora-modules", "max-loras", "max-cpu-loras"],
        effects: [Full, Full, Full, ANSWERED],
    },
    Row { flags: &["multimodal"], effects: [Full, Full, Full, ANSWERED] },
    Row {
        flags: &["output-tokens", "stop-rate", "reasoning-share"],
        effects: [Full, Full, Full, Rest("what is recorded has its own length")],
    },
    Row {
        flags: &["strict-trace"],
        effects: [Nothing("all its records are sound"), Full, NO_RECORDS, Nothing("it is about traces")],
    },
    Row { flags: &["cross-api"], effects: [ANY_API, ANY_API, NO_RECORDS, Full] },
    Row {
        flags: &["unmatched-pace"],
        effects: [
            Full,
            Full,
            Nothing("--time-to-first-token and --inter-token-latency set when they are sent"),
            Nothing("it has no median times"),
        ],
    },
    Row { flags: &["strict"], effects: [Full, Full, NO_RECORDS, Full] },
    Row {
        flags: &["hash-key-file"],
        effects: [
            Nothing("its prompts are hashed without a key"),
            Full,
            NO_RECORDS,
            Nothing("its requests are not hashed; --match chooses how they are matched"),
        ],
    },
    Row {
        flags: &["admin-listen", "admin", "no-admin", "admin-token", "report"],
        effects: [Full, Full, Nothing("made-up tokens have no records to give an account of"), Full],
    },
    Row { flags: &["redact-key", "redact-pattern", "redact-env", "redact"], effects: [Full, Full, NO_RECORDS, Full] },
    Row {
        flags: &["on-exhausted", "min-match", "loose-after-exhausted", "miss-status", "miss-detail"],
        effects: [Full, Full, NO_RECORDS, Full],
    },
    Row {
        flags: &["mcp-on-miss", "mcp-upstream", "upstream-header", "mcp-match-meta", "mcp-reply-within", "mcp-host"],
        effects: [NO_SERVERS, NO_SERVERS, NO_SERVERS, Full],
    },
    Row { flags: &["on-miss"], effects: [OWN_MISSES, OWN_MISSES, NO_RECORDS, Full] },
    Row { flags: &["fail-on"], effects: [OWN_CONCERNS, OWN_CONCERNS, NO_RECORDS, Full] },
    Row { flags: &["mode", "admin-overwrite"], effects: [PLAYED, PLAYED, PLAYED, Full] },
    Row { flags: &["ids"], effects: [NEW_IDS, NEW_IDS, NEW_IDS, Full] },
    Row { flags: &["retries"], effects: [EACH_TRY, EACH_TRY, NO_RECORDS, Full] },
    Row { flags: &["match", "replay-match"], effects: [TRACE_WAYS, TRACE_WAYS, NO_RECORDS, Full] },
    Row {
        flags: &["ignore", "ignore-query", "no-default-ignores", "canonical", "scrub", "match-header"],
        effects: [HASHED, HASHED, NO_RECORDS, Full],
    },
    Row { flags: &["upstream", "live", "frozen"], effects: [NO_UPSTREAM, NO_UPSTREAM, NO_UPSTREAM, Full] },
    Row {
        flags: &["record-errors", "timing", "tokens", "tag", "complete-within"],
        effects: [NOT_RECORDED, NOT_RECORDED, NOT_RECORDED, Full],
    },
    Row { flags: &["allow-secrets"], effects: [NOT_SEARCHED, NOT_SEARCHED, NO_RECORDS, Full] },
    Row { flags: &["secrets"], effects: [NOT_PUT_BACK, NOT_PUT_BACK, NO_RECORDS, Full] },
    Row { flags: &["block-network", "allow-host"], effects: [CALLS_PASS, CALLS_PASS, CALLS_PASS, Full] },
];

const NO_SERVERS: Effect = Nothing("only cassettes have records of MCP servers");
const NO_TIMES: Effect = Nothing("made-up tokens have no recorded times");
const NO_TRANSFER: Effect = Rest("what is recorded is computed where it is asked for");
const OWN_MISSES: Effect =
    Values(&["error", "random"], "a request without a record gets an error or random tokens, and goes nowhere else");
const OWN_CONCERNS: Effect = Values(
    &["miss", "unconsumed", "unconsumed=all", "exhausted", "loose"],
    "drift is found where a cassette names the server that was recorded",
);
const PLAYED: Effect = Values(&["none"], "it is only played; record with `vllm-vcr tap`, or into a cassette");
const NEW_IDS: Effect = Values(&["fresh"], "answers always have new ids");
const EACH_TRY: Effect = Values(&["consume"], "each try of a request takes the next record");
const TRACE_WAYS: Effect = Values(OF_TRACE, "it has no requests to compare");
const NOT_PUT_BACK: Effect = Nothing("placeholders of traces are served as they are");
const ANY_API: Effect = Nothing("its records answer requests to every API");
const HASHED: Effect = Nothing("its prompts are compared by their hashes, of which nothing can be left out");
const NO_UPSTREAM: Effect = Nothing("nothing goes upstream; play a cassette for that");
const NOT_RECORDED: Effect = Nothing("it chooses what a recording keeps, and nothing is recorded");
const CALLS_PASS: Effect = Nothing("calls to other servers are refused and counted for a cassette");
const NOT_SEARCHED: Effect = Nothing("it is not searched for secrets; `vllm-vcr inspect audit` does that");

/// Returns the effect of a flag, by its long name, on a kind; `None` if it is not in the table.
pub(super) fn effect(flag: &str, kind: Kind) -> Option<Effect> {
    let row = TABLE.iter().find(|row| row.flags.contains(&flag))?;
    let [built_in, trace, synthetic, cassette] = row.effects;
    Some(match kind {
        Kind::BuiltIn => built_in,
        Kind::Trace => trace,
        Kind::Synthetic => synthetic,
        Kind::Cassette => cassette,
    })
}
