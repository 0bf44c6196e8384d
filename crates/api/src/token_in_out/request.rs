//! A request for tokens as the completion request that it stands for.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::{
    Api, ApiError, GenerationInput, GenerationRequest, KvTransferParams, PromptInput, Spelling,
    body::ValidBody,
    fields::{REPETITION, STREAM_OPTIONS, STRUCTURED_OUTPUTS},
    json, rules,
    schema::{
        Field, INT64, Kind, NOT_NEGATIVE,
        Need::{Nullable, Optional, Required},
        Object, check_body, object,
    },
    values,
};

const IDS: Kind = Kind::List(&Kind::Int);

/// The engine's `SamplingParams`, in the order of its fields; what else is there is ignored. `output_kind` and the ids of prompt
/// log probabilities are not judged.
static SAMPLING_PARAMS: Object = object(&[
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
    Field("structured_outputs", STRUCTURED_OUTPUTS, Nullable),
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

static REASONING_KWARGS: Object = object(&[Field("chat_template_kwargs", Kind::Dictionary, Optional)]);

/// Hashes and places of media, which are judged and change nothing.
static FEATURES: Object = object(&[
    Field("mm_hashes", Kind::DictionaryOf(&Kind::List(&Kind::Text)), Required),
    Field("mm_placeholders", Kind::DictionaryOf(&Kind::List(&Kind::Object(&PLACEHOLDER))), Required),
    Field("kwargs_data", SERIALIZED, Nullable),
    Field("mm_metadata", SERIALIZED, Nullable),
]);
static PLACEHOLDER: Object =
    object(&[Field("offset", NOT_NEGATIVE, Required), Field("length", Kind::IntAbove(0), Required)]);
const SERIALIZED: Kind = Kind::DictionaryOf(&Kind::List(&Kind::NullOr(&Kind::Text)));

static REQUEST: Object = Object {
    fields: &[
        Field("request_id", Kind::Text, Optional),
        Field("token_ids", Kind::With(&Kind::SomeList(&Kind::Int), not_negative), Required),
        Field("token_offsets", Kind::List(&Kind::List(&Kind::Int)), Nullable),
        Field("features", Kind::Object(&FEATURES), Nullable),
        Field("content_parts", Kind::List(&Kind::Dictionary), Nullable),
        Field("sampling_params", Kind::InstanceOr("SamplingParams", &SAMPLING_PARAMS), Required),
        Field("model", Kind::Text, Nullable),
        Field("reasoning_ended", Kind::Flag, Nullable),
        Field("reasoning_parser_kwargs", Kind::Closed(&REASONING_KWARGS), Nullable),
        Field("return_token_ids", Kind::Flag, Nullable),
        Field("output_mode", Kind::OneOf(&["tokens", "text"]), Optional),
        Field("stream", Kind::Flag, Nullable),
        Field("stream_options", STREAM_OPTIONS, Nullable),
        Field("priority", INT64, Optional),
        Field("kv_transfer_params", Kind::Dictionary, Nullable),
        Field("ec_transfer_params", Kind::Dictionary, Nullable),
    ],
    condition: Some(text_without_text),
};

/// Checks that text is asked for only where tokens are made into text.
fn text_without_text(body: &Map<String, Value>) -> Option<String> {
    let is_text = body.get("output_mode").is_some_and(|mode| mode == "text");
    let detokenize = body.get("sampling_params").and_then(|params| params.get("detokenize"));
    let has_text = detokenize.is_none_or(values::is_set);
    (is_text && !has_text).then(|| "output_mode='text' requires sampling_params.detokenize to be true".to_owned())
}

fn not_negative(ids: &Value) -> Option<String> {
    let is_negative = |id: &Value| id.as_f64().is_some_and(|id| id < 0.0);
    let ids = ids.as_array()?;
    ids.iter().any(is_negative).then(|| "token_ids must not contain negative values".to_owned())
}

/// A request to `/inference/v1/generate` whose body fits the schema.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenRequest {
    body: Map<String, Value>,
}

impl TokenRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// The engine's or the framework's error for a body that does not fit.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let body = json::object(body)?;
        rules::cache_salt(&body)?;
        check_body(&REQUEST, &body).map(|()| Self { body })
    }

    /// The completion request of a prompt and an engine's `SamplingParams`, which have been validated by a front end.
    ///
    /// # Errors
    /// A sampling parameter of another type or out of its range.
    pub fn of_engine(params: Map<String, Value>, prompt: Arc<[u32]>) -> Result<GenerationRequest, ApiError> {
        let transfer = params.get("extra_args").and_then(Value::as_object).map(ValidBody);
        let kv_transfer = transfer.as_ref().and_then(KvTransferParams::read);
        let mut body = Map::new();
        body.insert("token_ids".to_owned(), json!([0]));
        body.insert("sampling_params".to_owned(), params.into());
        check_body(&REQUEST, &body)?;
        let mut request = Self { body }.completion()?;
        // An engine emits its tokens one by one, even where all are sent at once.
        request.stream = true;
        request.kv_transfer = kv_transfer;
        request.prompts = GenerationInput::Completion(vec![PromptInput::Ids(prompt)]);
        Ok(request)
    }

    /// The completion request, which always asks for ids.
    ///
    /// # Errors
    /// A sampling parameter of another type or out of its range.
    pub fn completion(&self) -> Result<GenerationRequest, ApiError> {
        let params = self.body.get("sampling_params").unwrap_or(&Value::Null);
        let stops = params.get("stop").is_some_and(|stop| *stop != json!([]) && !stop.is_null());
        if stops && !params.get("detokenize").is_none_or(values::is_set) {
            let message = "stop strings are only supported when detokenize is True. Set detokenize=True to use stop.";
            return Err(ApiError::bad_request(message));
        }
        let known = |name: &str| SAMPLING_PARAMS.fields.iter().any(|Field(known, ..)| *known == name);
        let own = params.as_object().into_iter().flatten().filter(|(name, value)| known(name) && !value.is_null());
        let mut completion: Map<String, Value> = own.map(|(name, value)| (name.clone(), value.clone())).collect();
        let mut put = |name: &str, here: &str| {
            completion.extend(self.body.get(here).map(|value| (name.to_owned(), value.clone())));
        };
        put("prompt", "token_ids");
        for name in ["model", "stream", "request_id", "cache_salt", "priority", "kv_transfer_params"] {
            put(name, name);
        }
        if self.body.get("stream").is_some_and(values::is_set) {
            put("stream_options", "stream_options");
        }
        completion.insert("return_token_ids".to_owned(), true.into());
        let mut request = GenerationRequest::of_checked(Api::Completions, completion)?;
        if params.get("max_tokens").is_none_or(Value::is_null) {
            // All that is left of the model's length.
            request.max_tokens = None;
        }
        if params.get("trace_decode_token_ids").is_some_and(|ids| ids.as_array().is_some_and(|ids| !ids.is_empty())) {
            request.vocabulary.replays = true;
        }
        request.logprobs.spelling = if self.has_text() { Spelling::TextOut } else { Spelling::Number };
        Ok(request)
    }

    /// Returns whether the answer has the text of its ids.
    pub(crate) fn has_text(&self) -> bool {
        self.body.get("output_mode").is_some_and(|mode| mode == "text")
    }

    /// Returns whether the answer repeats the prompt's ids.
    pub(crate) fn repeats_prompt(&self) -> bool {
        self.body.get("return_token_ids").is_some_and(values::is_set)
    }
}
