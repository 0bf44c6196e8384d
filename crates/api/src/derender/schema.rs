//! The schema of requests to derender: two kinds of body on one path, which differ by `stream`.

use serde_json::{Map, Value};

use crate::{
    Api, ApiError, GenerationRequest,
    issues::{FieldFault, Issues, Loc},
    schema::{
        Field, Kind, NOT_NEGATIVE,
        Need::{Nullable, Optional, Required},
        Object, check, object,
    },
};

/// Token strings that a state may carry.
const WINDOW: usize = 1024;

static LOGPROB: Object = object(&[
    Field("token_id", Kind::Int, Required),
    Field("logprob", Kind::Float, Required),
    Field("rank", Kind::Int, Nullable),
]);

static POSITION: Object = object(&[
    Field("token_id", Kind::Int, Required),
    Field("logprob", Kind::Float, Required),
    Field("rank", Kind::Int, Nullable),
    Field("top_logprobs", Kind::List(&Kind::Object(&LOGPROB)), Optional),
]);

static LOGPROBS: Object = object(&[Field("content", Kind::List(&Kind::Object(&POSITION)), Nullable)]);

static SPAN: Object = object(&[
    Field("version", Kind::Text, Required),
    Field("start", Kind::Int, Required),
    Field("end", Kind::Int, Required),
]);

const STOP_REASON: Kind = Kind::AnyOf(&[Kind::Int, Kind::Text]);
const MASK: Kind = Kind::List(&Kind::List(&Kind::Int));
const SPANS: Kind = Kind::List(&Kind::Dataclass("WeightVersionSpan", &SPAN));

static CHOICE: Object = object(&[
    Field("index", Kind::Int, Required),
    Field("finish_reason", Kind::Text, Nullable),
    Field("stop_reason", STOP_REASON, Nullable),
    Field("token_ids", Kind::With(&Kind::List(&Kind::Int), negative), Nullable),
    Field("routed_experts", Kind::Text, Nullable),
    Field("sampling_mask", MASK, Nullable),
    Field("weight_versions", SPANS, Nullable),
    Field("logprobs", Kind::Object(&LOGPROBS), Nullable),
]);

static CHUNK_CHOICE: Object = object(&[
    Field("index", Kind::Int, Required),
    Field("finish_reason", Kind::Text, Nullable),
    Field("stop_reason", STOP_REASON, Nullable),
    Field("token_ids", Kind::List(&Kind::Int), Nullable),
    Field("routed_experts", Kind::Text, Nullable),
    Field("sampling_mask", MASK, Nullable),
    Field("weight_versions", SPANS, Nullable),
    Field("logprobs", Kind::Object(&LOGPROBS), Nullable),
]);

static USAGE: Object = object(&[
    Field("prompt_tokens", Kind::Int, Optional),
    Field("total_tokens", Kind::Int, Optional),
    Field("completion_tokens", Kind::Int, Nullable),
    Field("prompt_tokens_details", Kind::Object(&PROMPT_DETAILS), Nullable),
    Field("completion_tokens_details", Kind::Object(&OUTPUT_DETAILS), Nullable),
]);
static PROMPT_DETAILS: Object = object(&[
    Field("cached_tokens", Kind::Int, Nullable),
    Field("created_cache_tokens", Kind::Int, Nullable),
    Field("multimodal_tokens", Kind::DictionaryOf(&Kind::Int), Nullable),
]);
static OUTPUT_DETAILS: Object = object(&[Field("reasoning_tokens", Kind::Int, Optional)]);

static METRICS: Object = object(&[
    Field("time_to_first_token_ms", Kind::Float, Nullable),
    Field("generation_time_ms", Kind::Float, Nullable),
    Field("queue_time_ms", Kind::Float, Nullable),
    Field("mean_itl_ms", Kind::Float, Nullable),
    Field("tokens_per_second", Kind::Float, Nullable),
    Field("speculative_decoding", Kind::Object(&SPECULATION), Nullable),
]);
static SPECULATION: Object = object(&[
    Field("mean_acceptance_length", Kind::Float, Required),
    Field("draft_acceptance_rate", Kind::Float, Required),
    Field("acceptance_histogram", Kind::List(&Kind::Int), Required),
    Field("num_spec_steps", Kind::Int, Required),
    Field("num_accepted_draft_tokens", Kind::Int, Required),
    Field("num_draft_tokens", Kind::Int, Required),
    Field("num_spec_tokens", Kind::Int, Required),
    Field("per_step_accepted", Kind::List(&Kind::Int), Nullable),
    Field("per_step_drafted", Kind::List(&Kind::Int), Nullable),
]);

static PLACEHOLDER: Object =
    object(&[Field("offset", NOT_NEGATIVE, Required), Field("length", Kind::IntAbove(0), Required)]);
const PLACEHOLDERS: Kind = Kind::DictionaryOf(&Kind::List(&Kind::Object(&PLACEHOLDER)));

static PROMPT_LOGPROB: Object = object(&[
    Field("logprob", Kind::Float, Required),
    Field("rank", Kind::Int, Nullable),
    Field("decoded_token", Kind::Text, Nullable),
]);
const PROMPT_LOGPROBS: Kind = Kind::List(&Kind::NullOr(&Kind::ById(&Kind::Dataclass("Logprob", &PROMPT_LOGPROB))));

static RESPONSE: Object = object(&[
    Field("request_id", Kind::Text, Optional),
    Field("model", Kind::Text, Nullable),
    Field("created", Kind::Int, Nullable),
    Field("usage", Kind::Object(&USAGE), Nullable),
    Field("prompt_logprobs", PROMPT_LOGPROBS, Nullable),
    Field("prompt_token_id_logprobs", Kind::Text, Nullable),
    Field("prompt_token_ids", Kind::List(&NOT_NEGATIVE), Nullable),
    Field("mm_placeholders", PLACEHOLDERS, Nullable),
    Field("metrics", Kind::Object(&METRICS), Nullable),
    Field("kv_transfer_params", Kind::Dictionary, Nullable),
    Field("ec_transfer_params", Kind::Dictionary, Nullable),
    Field("output_mode", Kind::OneOf(&["tokens"]), Optional),
    Field("choices", Kind::List(&Kind::Object(&CHOICE)), Required),
]);

static CHUNK: Object = object(&[
    Field("request_id", Kind::Text, Optional),
    Field("usage", Kind::Object(&USAGE), Nullable),
    Field("prompt_token_ids", Kind::List(&NOT_NEGATIVE), Nullable),
    Field("mm_placeholders", PLACEHOLDERS, Nullable),
    Field("metrics", Kind::Object(&METRICS), Nullable),
    Field("output_mode", Kind::OneOf(&["tokens"]), Optional),
    Field("choices", Kind::List(&Kind::Object(&CHUNK_CHOICE)), Required),
]);

static STATE: Object = Object {
    fields: &[
        Field("prev_tokens", Kind::With(&Kind::List(&Kind::Text), too_wide), Optional),
        Field("prefix_offset", NOT_NEGATIVE, Optional),
        Field("read_offset", NOT_NEGATIVE, Optional),
        Field("role_sent", Kind::Flag, Optional),
        Field("logprob_context_token_ids", Kind::ListUpTo(&Kind::Int, 4), Optional),
        Field("logprob_text_offset", NOT_NEGATIVE, Optional),
        Field("output_token_ids", Kind::List(&Kind::Int), Optional),
        Field("output_chunk_lens", Kind::List(&Kind::IntAbove(0)), Optional),
        Field("tools_streamed", Kind::Flag, Optional),
        Field("last_tool_call_ids", Kind::List(&Kind::Text), Optional),
    ],
    condition: Some(other_sum),
};

static WHOLE_CHAT: Object = object(&[
    Field("stream", Kind::Exactly(false), Optional),
    Field("model", Kind::Text, Nullable),
    Field("generate_response", Kind::Object(&RESPONSE), Required),
    Field("prompt_tokens", Kind::Int, Nullable),
    Field("prompt_token_ids", Kind::List(&NOT_NEGATIVE), Nullable),
]);

static WHOLE_COMPLETION: Object = object(&[
    Field("stream", Kind::Exactly(false), Optional),
    Field("model", Kind::Text, Nullable),
    Field("generate_responses", Kind::List(&Kind::Object(&RESPONSE)), Required),
    Field("prompt_tokens", Kind::List(&Kind::Int), Nullable),
    Field("prompt_token_ids", Kind::List(&Kind::NullOr(&Kind::List(&NOT_NEGATIVE))), Nullable),
]);

static ONE_CHUNK: Object = object(&[
    Field("stream", Kind::Exactly(true), Required),
    Field("model", Kind::Text, Nullable),
    Field("generate_chunk", Kind::Object(&CHUNK), Required),
    Field("stream_state", Kind::Object(&STATE), Nullable),
    Field("prompt_tokens", Kind::Int, Nullable),
    Field("prompt_token_ids", Kind::List(&NOT_NEGATIVE), Nullable),
]);

fn negative(ids: &Value) -> Option<String> {
    let mut numbers = ids.as_array()?.iter().filter_map(Value::as_f64);
    numbers.any(|id| id < 0.0).then(|| "token_ids must not contain negative values".to_owned())
}

fn too_wide(tokens: &Value) -> Option<String> {
    let count = tokens.as_array().map(Vec::len).filter(|count| *count > WINDOW)?;
    Some(format!("prev_tokens length ({count}) exceeds maximum ({WINDOW})"))
}

fn other_sum(state: &Map<String, Value>) -> Option<String> {
    let list = |name: &str| state.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let sum: i128 = super::read::ints(list("output_chunk_lens")).into_iter().map(i128::from).sum();
    let count = list("output_token_ids").len();
    (i128::try_from(count) != Ok(sum)).then(|| {
        format!("output_chunk_lens must sum to len(output_token_ids) (got sum={sum}, len(output_token_ids)={count})")
    })
}

/// Kind of a body, with the request that it was made for.
pub(super) enum DerenderKind {
    Whole(Option<GenerationRequest>),
    Chunk(Option<GenerationRequest>),
}

/// Finds the kind that a body fits.
pub(super) fn member(api: Api, body: &Value) -> Result<DerenderKind, ApiError> {
    let root = Loc::BODY;
    let (whole, chunk, object) = match api {
        Api::Chat => (root.field("DerenderChatRequest"), root.field("DerenderChatStreamRequest"), &WHOLE_CHAT),
        // A kind with a condition has no name in a place.
        Api::Completions => (root, root.field("DerenderCompletionStreamRequest"), &WHOLE_COMPLETION),
    };
    let mut issues = Issues::new();
    let Value::Object(map) = body else {
        [whole, chunk].iter().for_each(|loc| issues.push(loc, FieldFault::NO_ATTRIBUTES, body));
        return Err(issues.error());
    };
    check(object, map, &whole, &mut issues);
    let as_whole = within(api, map, &whole, &mut issues)?;
    let has_condition = api == Api::Completions && issues.is_empty();
    if let Some(message) = has_condition.then(|| other_count(map)).flatten() {
        issues.push_broken(&whole, &message, map);
    }
    if issues.is_empty() {
        return Ok(DerenderKind::Whole(as_whole));
    }
    let before = issues.count();
    check(&ONE_CHUNK, map, &chunk, &mut issues);
    let as_chunk = within(api, map, &chunk, &mut issues)?;
    if issues.count() == before { Ok(DerenderKind::Chunk(as_chunk)) } else { Err(issues.error()) }
}

fn within(
    api: Api,
    map: &Map<String, Value>,
    loc: &Loc<'_>,
    issues: &mut Issues,
) -> Result<Option<GenerationRequest>, ApiError> {
    let name = match api {
        Api::Chat => "chat_request",
        Api::Completions => "completion_request",
    };
    let loc = loc.field(name);
    match map.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(request)) => GenerationRequest::within(api, request, &loc, issues),
        Some(other) => {
            issues.push(&loc, FieldFault::NO_ATTRIBUTES, other);
            Ok(None)
        }
    }
}

/// The error for lists that do not go with the answers one to one.
fn other_count(map: &Map<String, Value>) -> Option<String> {
    let count = |name: &str| map.get(name).and_then(Value::as_array).map(Vec::len);
    let answers = count("generate_responses")?;
    ["prompt_tokens", "prompt_token_ids"].into_iter().find_map(|name| {
        let count = count(name).filter(|count| *count != answers)?;
        Some(format!("{name} length ({count}) must equal generate_responses length ({answers})"))
    })
}
