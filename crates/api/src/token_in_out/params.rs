//! The sampling parameters of a request for tokens: the engine's own class, which passes over whatever else is there.
//!
//! Limits: `output_kind` and the ids of prompt log probabilities are not judged.

use crate::{
    fields::{REPETITION, STRUCTURED_OUTPUTS_PARAMS},
    schema::{
        Field, Kind,
        Need::{Nullable, Optional},
        Object, object,
    },
};

const IDS: Kind = Kind::List(&Kind::Int);

/// `SamplingParams`, in the order of its fields.
pub(super) static SAMPLING_PARAMS: Object = object(&[
    Field("n", Kind::Int, Optional),
    Field("presence_penalty", Kind::Float, Optional),
    Field("frequency_penalty", Kind::Float, Optional),
    Field("repetition_penalty", Kind::Float, Optional),
    Field("temperature", Kind::Float, Optional),
    Field("watermarking", Kind::Flag, Nullable),
    Field("top_p", Kind::Float, Optional),
    Field("top_k", Kind::Int, Optional),
    Field("min_p", Kind::Float, Optional),
    Field("seed", Kind::Int, Nullable),
    Field("stop", Kind::AnyOf(&[Kind::Text, Kind::List(&Kind::Text)]), Nullable),
    Field("stop_token_ids", IDS, Nullable),
    Field("ignore_eos", Kind::Flag, Optional),
    Field("max_tokens", Kind::Int, Nullable),
    Field("min_tokens", Kind::Int, Optional),
    Field("logprobs", Kind::Int, Nullable),
    Field("prompt_logprobs", Kind::Int, Nullable),
    Field("prompt_logprob_token_ids", Kind::Any, Nullable),
    Field("prompt_logprob_start", Kind::Int, Nullable),
    Field("logprob_token_ids", IDS, Nullable),
    Field("flat_logprobs", Kind::Flag, Optional),
    Field("detokenize", Kind::Flag, Optional),
    Field("skip_special_tokens", Kind::Flag, Optional),
    Field("spaces_between_special_tokens", Kind::Flag, Optional),
    Field("include_stop_str_in_output", Kind::Flag, Optional),
    Field("output_kind", Kind::Any, Optional),
    Field("stream_interval", Kind::Int, Nullable),
    Field("skip_clone", Kind::Flag, Optional),
    Field("output_text_buffer_length", Kind::Int, Optional),
    Field("structured_outputs", STRUCTURED_OUTPUTS_PARAMS, Nullable),
    Field("logit_bias", Kind::ById(&Kind::Float), Nullable),
    Field("allowed_token_ids", IDS, Nullable),
    Field("extra_args", Kind::Dictionary, Nullable),
    Field("bad_words", Kind::List(&Kind::Text), Nullable),
    Field("skip_reading_prefix_cache", Kind::Flag, Nullable),
    Field("thinking_token_budget", Kind::Int, Nullable),
    Field("repetition_detection", REPETITION, Nullable),
    Field("routed_experts_prompt_start", Kind::Int, Optional),
    Field("trace_decode_token_ids", IDS, Nullable),
]);
