//! Arguments of `inspect`.

use std::{num::NonZeroU32, path::PathBuf};

use clap::{Args, Subcommand};

use super::{RedactionArgs, SimulateArgs};

/// What to do with a trace.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum InspectCommand {
    /// Count, and give percentiles of tokens and latencies.
    #[command(after_long_help = "Examples:\n  vllm-vcr inspect summary day.jsonl.gz\n  \
                                 vllm-vcr inspect summary monday.jsonl.gz tuesday.jsonl.gz --json | jq .")]
    Summary(InspectArgs),
    /// Check every rule of the format; list what breaks one, and exit 1 if anything does.
    #[command(after_long_help = "Examples:\n  vllm-vcr inspect check day.jsonl.gz\n  \
                                 zcat day.jsonl.gz | vllm-vcr inspect check -")]
    Check(InspectArgs),
    /// Show what the trace reveals to its readers; list what looks like a secret, and exit 1 if anything does.
    #[command(after_long_help = "Examples:\n  vllm-vcr inspect audit day.jsonl.gz\n  \
                                 vllm-vcr inspect audit day.jsonl.gz --redact-pattern 'case=case-[0-9]+'")]
    Audit(AuditArgs),
    /// Run the simulated engine's scheduler on a workload; print each step as vLLM's own scheduler decides it.
    #[command(after_long_help = "Examples:\n  vllm-vcr inspect schedule workload.json > steps.jsonl\n  \
                                 vllm-vcr inspect schedule workload.json | jq -c '[.step, .running, .waiting, .usage]'")]
    Schedule(ScheduleArgs),
    /// Fit a model of an engine's step times to traces; print it with its errors.
    #[command(after_long_help = "Examples:\n  vllm-vcr inspect fit low.jsonl.gz\n  \
                                 vllm-vcr inspect fit low.jsonl.gz --predict high.jsonl.gz --max-num-seqs 64")]
    Fit(FitArgs),
    /// Run the requests of a trace through simulated engines behind a router, under a clock that only counts; print their latencies.
    #[command(
        after_long_help = "Examples:\n  vllm-vcr inspect simulate day.jsonl.gz --replicas 4 --router prefix --slo ttft=2s,itl=50ms\n  \
                                 vllm-vcr inspect simulate toolagent_trace.jsonl --replicas 8 --router round_robin --latency-profile h100x4-70b\n  \
                                 vllm-vcr inspect simulate day.jsonl.gz --latency-trace day.jsonl.gz --speed 3 --json | jq .ttft_ms"
    )]
    Simulate(Box<SimulateArgs>),
}

/// Traces to fit, and one to predict.
#[derive(Debug, Args)]
pub(in crate::cli) struct FitArgs {
    /// The traces: files, directories of them, the first file of a capture in several; - is stdin.
    #[arg(value_name = "PATH", required = true)]
    pub(in crate::cli) paths: Vec<PathBuf>,
    /// Runs the requests of this trace through a simulated engine with the fitted times, and compares their latencies with the recorded
    /// ones.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) predict: Option<PathBuf>,
    /// Requests that the predicted engine runs at once.
    #[arg(long, value_name = "N", default_value = "256", requires = "predict")]
    pub(in crate::cli) max_num_seqs: NonZeroU32,
    /// Tokens of one of its steps.
    #[arg(long, value_name = "N", default_value = "2048", requires = "predict")]
    pub(in crate::cli) max_num_batched_tokens: NonZeroU32,
    /// Blocks of its KV cache.
    #[arg(long, value_name = "N", default_value = "16384", requires = "predict")]
    pub(in crate::cli) num_gpu_blocks_override: NonZeroU32,
    /// Seed of the times that are drawn.
    #[arg(long, value_name = "N", default_value = "0", requires = "predict")]
    pub(in crate::cli) seed: u64,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

/// A workload for the scheduler.
#[derive(Debug, Args)]
pub(in crate::cli) struct ScheduleArgs {
    /// The workload, JSON: a configuration and requests with the steps before which they arrive; - is stdin.
    #[arg(value_name = "WORKLOAD.json")]
    pub(in crate::cli) workload: PathBuf,
}

/// A trace and what counts as a secret.
#[derive(Debug, Args)]
pub(in crate::cli) struct AuditArgs {
    /// The trace; - is stdin.
    #[arg(value_name = "FILE")]
    pub(in crate::cli) file: PathBuf,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(in crate::cli) json: bool,
    #[command(flatten)]
    pub(in crate::cli) redaction: RedactionArgs,
}

/// Traces and how to print what was found.
#[derive(Debug, Args)]
pub(in crate::cli) struct InspectArgs {
    /// The traces: files, directories of them, the first file of a capture in several; - is stdin.
    #[arg(value_name = "PATH", required = true)]
    pub(in crate::cli) paths: Vec<PathBuf>,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(in crate::cli) json: bool,
}
