//! One run in the figures of other load clients: under their names, by their formulas.
//!
//! | | TTFT | between tokens | latency ends | quantiles |
//! |---|---|---|---|---|
//! | `vllm bench serve` | first event with a choice (in chats the role) | every gap between events, pooled; TPOT (latency − TTFT) / (tokens − 1) | last event with a choice | interpolated |
//! | guidellm | first event with tokens | (last − first token) / (tokens − 1), weighted by tokens − 1; TPOT (last token − start) / tokens, weighted by tokens | end of the stream | nearest rank of the weights |
//! | aiperf | first event with content | (latency − TTFT) / (tokens − 1); gaps between events pooled (ICL) | last event with content | interpolated |
//! | genai-bench | first event with content | TPOT (latency − TTFT) / (tokens − 1), left out where latency − TTFT is below 1 ms | the event with the usage | interpolated |
//! | inference-perf | first token | gaps between tokens, pooled, 0 within an event; TPOT (last − first token) / (tokens − 1); NTPOT latency / tokens | end of the stream | interpolated |
//!
//! Sources: `vllm/benchmarks/serve.py` and `lib/endpoint_request_func.py` of vllm-project/vllm; `schemas/request_stats.py`, `schemas/statistics.py` and
//! `benchmark/schemas/metrics.py` of vllm-project/guidellm; `metrics/types` of ai-dynamo/aiperf; `metrics/request_metrics_collector.py` and
//! `aggregated_metrics_collector.py` of sgl-project/genai-bench; `reportgen/base.py` of kubernetes-sigs/inference-perf.
//!
//! Limits: quantiles of pooled gaps have three digits. Of events without text or tokens only the first is known, so a last event that has a finish reason alone
//! ends no latency, nor is it a gap. Durations are from the first request to the last end; vLLM's own includes what it does before and after. Of a request with
//! several choices the first one counts.

mod figures;

use std::time::Duration;

use base::stats::Durations;
use serde::{Serialize, Serializer};

use crate::results::Sample;

base::named! {
    /// A load client.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum LoadClient {
        /// `vllm bench serve`.
        Vllm = "vllm bench serve",
        /// guidellm.
        Guidellm = "guidellm",
        /// aiperf.
        Aiperf = "aiperf",
        /// genai-bench.
        GenaiBench = "genai-bench",
        /// inference-perf.
        InferencePerf = "inference-perf",
    }
}

/// Inputs of their figures.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Requests that ended well.
    pub good: Vec<Sample>,
    /// Requests that did not.
    pub failed: u64,
    /// From the first request to the last end.
    pub duration: Duration,
    /// Gaps between events with tokens, of all responses.
    pub chunk_gaps: Durations,
    /// Gaps between tokens, of all responses.
    pub itl: Durations,
}

/// A run in the figures of a load client.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PeerReport {
    /// The client.
    pub tool: LoadClient,
    /// Its figures.
    pub figures: ClientFigures,
}

/// Figures in the order in which they are shown.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClientFigures(pub Vec<(&'static str, ClientFigure)>);

/// One figure, in the tool's own unit.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ClientFigure {
    /// A number.
    One(f64),
    /// A distribution, by the tool's names for its statistics.
    Statistics(Statistics),
}

/// Statistics of a distribution, by their names.
#[derive(Debug, Clone, PartialEq)]
pub struct Statistics(pub Vec<(&'static str, f64)>);

impl PeerReport {
    /// The figures that this client would print of a run.
    #[must_use]
    pub fn of(tool: LoadClient, run: &Measured) -> Self {
        let figures = match tool {
            LoadClient::Vllm => figures::vllm(run),
            LoadClient::Guidellm => figures::guidellm(run),
            LoadClient::Aiperf => figures::aiperf(run),
            LoadClient::GenaiBench => figures::genai_bench(run),
            LoadClient::InferencePerf => figures::inference_perf(run),
        };
        Self { tool, figures: ClientFigures(figures) }
    }
}

impl Serialize for ClientFigures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl Serialize for Statistics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

#[cfg(test)]
mod tests;
