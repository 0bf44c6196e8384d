//! Runs of the tools' parser: a family that there is on servers with such a parser, behind all others, as in the engine.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::stats::exposition::{Exposition, read};

const FAMILY: &str = "vllm:tool_call_parser_invocations";

const HELP: &str = "Total number of ToolParser invocations. Non-streaming increments once per choice; streaming increments \
                    once per delta.";

const MODES: [&str; 2] = ["streaming", "non_streaming"];
const OUTCOMES: [&str; 2] = ["tool_call", "no_tool_call"];
const REQUESTS: [&str; 3] = ["chat_completions", "responses", "other"];

/// Runs of the parser, by mode, outcome and kind of request.
#[derive(Debug, Default)]
pub(in super::super) struct ToolParserCalls([[[AtomicU64; REQUESTS.len()]; OUTCOMES.len()]; MODES.len()]);

impl ToolParserCalls {
    /// Counts a run over a delta of a stream, or over a whole choice.
    pub(in super::super) fn count(&self, streams: bool, found_calls: bool, is_response: bool) {
        let place = self.0.get(usize::from(!streams)).and_then(|outcomes| outcomes.get(usize::from(!found_calls)));
        let counter = place.and_then(|requests| requests.get(usize::from(is_response)));
        if let Some(counter) = counter {
            counter.fetch_add(1, Relaxed);
        }
    }
}

/// Appends the family to a page; `since` is when counting began, in seconds since 1970.
pub(super) fn append(page: &mut Exposition, calls: &ToolParserCalls, model: &str, since: f64) {
    for (suffix, kind) in [("total", "counter"), ("created", "gauge")] {
        let name = format!("{FAMILY}_{suffix}");
        page.family(&name, kind, HELP);
        for (mode, outcomes) in MODES.iter().zip(&calls.0) {
            for (outcome, requests) in OUTCOMES.iter().zip(outcomes) {
                for (request, count) in REQUESTS.iter().zip(requests) {
                    let labels =
                        [("mode", *mode), ("model_name", model), ("outcome", *outcome), ("request_type", *request)];
                    page.sample(&name, &labels, if suffix == "created" { since } else { read(count) });
                }
            }
        }
    }
}
