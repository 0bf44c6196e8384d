//! Why an answer may differ from the engine's. A difference without a reason fails the test, and so does a reason whose
//! difference is gone.

use super::server::fits;

/// What is known about a case before it is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// It differs, for this reason.
    Differs(&'static str),
    /// It cannot be compared, for this reason.
    Inapplicable(&'static str),
}

use Known::{Differs, Inapplicable};

const SLEPT: Known = Differs("a recording after `/sleep`, which brings families of its own");
const RANKED: Known =
    Differs("a sampled token is among the best ones or listed beside them, as the made-up numbers have it");

const KNOWN: &[(&str, Known)] = &[
    ("options/metrics_after_preempt", SLEPT),
    ("options/metrics_final", SLEPT),
    ("spec/metrics_spec", Differs("speculative decoding is not played, and has families of its own")),
    ("plain/comp_logprobs_*", RANKED),
    ("plain/prompt_logprobs_full", RANKED),
    ("spec/spec_cmpl_stream_logprobs", RANKED),
    (
        "plain/get_openapi_json",
        Differs("descriptions are left out, which are vLLM's prose; the rest is compared in `openapi_pages`"),
    ),
    ("spec/req_return_prompt_text*", Inapplicable("the engine itself had failed when this was recorded")),
];

/// The first row that fits a case.
pub(super) fn known(case: &str) -> Option<Known> {
    KNOWN.iter().find(|(pattern, _)| fits(pattern, case)).map(|(_, known)| *known)
}
