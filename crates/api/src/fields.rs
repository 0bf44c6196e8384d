//! The fields of chat and completion requests as tables, in the order in which faults are reported.

use serde_json::{Map, Value};

use super::{
    Api,
    issues::{Issues, Loc},
    messages, python,
    schema::{
        Field, INT64, Kind, NOT_NEGATIVE,
        Need::{Nullable, Optional, Required},
        Object, check_fields, object,
    },
};

const CHAT: &[Field] = &[
    Field("messages", messages::MESSAGES, Required),
    Field("model", Kind::Text, Nullable),
    Field("frequency_penalty", Kind::Float, Nullable),
    Field("logit_bias", Kind::DictionaryOf(&Kind::Float), Nullable),
    Field("logprobs", Kind::Flag, Nullable),
    Field("top_logprobs", Kind::Int, Nullable),
    Field("max_tokens", Kind::Int, Nullable),
    Field("max_completion_tokens", Kind::Int, Nullable),
    Field("n", Kind::Int, Nullable),
    Field("presence_penalty", Kind::Float, Nullable),
    Field("response_format", RESPONSE_FORMAT, Nullable),
    Field("seed", INT64, Nullable),
    Field("stop", STOPS, Nullable),
    Field("stream", Kind::Flag, Nullable),
    Field("stream_options", STREAM_OPTIONS, Nullable),
    Field("temperature", Kind::Float, Nullable),
    Field("top_p", Kind::Float, Nullable),
    Field("tools", TOOLS, Nullable),
    Field("tool_choice", TOOL_CHOICE, Nullable),
    Field("reasoning_effort", Kind::OneOf(&["none", "minimal", "low", "medium", "high", "xhigh", "max"]), Nullable),
    Field("include_reasoning", Kind::Flag, Optional),
    Field("parallel_tool_calls", Kind::Flag, Nullable),
    Field("user", Kind::Text, Nullable),
];

const CHAT_EXTRA: &[Field] = &[
    Field("echo", Kind::Flag, Optional),
    Field("add_generation_prompt", Kind::Flag, Optional),
    Field("continue_final_message", Kind::Flag, Optional),
    Field("add_special_tokens", Kind::Flag, Optional),
    Field("documents", DOCUMENTS, Nullable),
    Field("chat_template", Kind::Text, Nullable),
    Field("chat_template_kwargs", Kind::Dictionary, Nullable),
    Field("media_io_kwargs", MEDIA, Nullable),
    Field("mm_processor_kwargs", Kind::Dictionary, Nullable),
    Field("structured_outputs", STRUCTURED_OUTPUTS, Nullable),
    Field("priority", INT64, Optional),
    Field("request_id", Kind::Text, Optional),
    Field("session_id", Kind::Text, Nullable),
    Field("return_tokens_as_token_ids", Kind::Flag, Nullable),
    Field("return_token_ids", Kind::Flag, Nullable),
    Field("routed_experts_prompt_start", NOT_NEGATIVE, Optional),
    Field("return_token_offsets", Kind::Flag, Nullable),
    Field("return_prompt_text", Kind::Flag, Nullable),
];

const COMPLETION: &[Field] = &[
    Field("model", Kind::Text, Nullable),
    Field("prompt", PROMPT, Nullable),
    Field("echo", Kind::Flag, Nullable),
    Field("frequency_penalty", Kind::Float, Nullable),
    Field("logit_bias", Kind::DictionaryOf(&Kind::Float), Nullable),
    Field("logprobs", Kind::Int, Nullable),
    Field("max_tokens", Kind::Int, Nullable),
    Field("n", Kind::Int, Optional),
    Field("presence_penalty", Kind::Float, Nullable),
    Field("seed", INT64, Nullable),
    Field("stop", STOPS, Nullable),
    Field("stream", Kind::Flag, Nullable),
    Field("stream_options", STREAM_OPTIONS, Nullable),
    Field("suffix", Kind::Text, Nullable),
    Field("temperature", Kind::Float, Nullable),
    Field("top_p", Kind::Float, Nullable),
    Field("user", Kind::Text, Nullable),
];

const SAMPLING: &[Field] = &[
    Field("use_beam_search", Kind::Flag, Optional),
    Field("top_k", Kind::Int, Nullable),
    Field("min_p", Kind::Float, Nullable),
    Field("repetition_penalty", Kind::Float, Nullable),
    Field("watermarking", Kind::Flag, Nullable),
    Field("length_penalty", Kind::Float, Optional),
    Field("stop_token_ids", IDS, Nullable),
    Field("include_stop_str_in_output", Kind::Flag, Optional),
    Field("ignore_eos", Kind::Flag, Optional),
    Field("min_tokens", Kind::Int, Optional),
    Field("skip_special_tokens", Kind::Flag, Optional),
    Field("spaces_between_special_tokens", Kind::Flag, Optional),
    Field("truncate_prompt_tokens", Kind::IntIn(-1, i64::MAX as i128), Nullable),
    Field("truncation_side", Kind::OneOf(&["left", "right"]), Nullable),
    Field("allowed_token_ids", IDS, Nullable),
    Field("prompt_logprobs", Kind::Int, Nullable),
    Field("logprob_token_ids", IDS, Nullable),
    Field("bad_words", Kind::List(&Kind::Text), Optional),
];

/// Fields that both endpoints have at their end.
const EXTENSIONS: &[Field] = &[
    Field("mm_payload", MM_PAYLOAD, Optional),
    Field("return_mm_kwargs", Kind::Flag, Nullable),
    Field("kv_transfer_params", Kind::Dictionary, Nullable),
    Field("ec_transfer_params", Kind::Dictionary, Nullable),
    Field("vllm_xargs", XARGS, Nullable),
    Field("repetition_detection", REPETITION, Nullable),
    Field("stream_interval", Kind::IntIn(1, i128::MAX), Nullable),
];

const COMPLETION_EXTRA: &[Field] = &[
    Field("prompt_embeds", EMBEDS, Nullable),
    Field("add_special_tokens", Kind::Flag, Optional),
    Field("response_format", RESPONSE_FORMAT, Nullable),
    Field("structured_outputs", STRUCTURED_OUTPUTS, Nullable),
    Field("priority", INT64, Optional),
    Field("request_id", Kind::Text, Optional),
    Field("session_id", Kind::Text, Nullable),
    Field("return_tokens_as_token_ids", Kind::Flag, Nullable),
    Field("return_token_ids", Kind::Flag, Nullable),
    Field("routed_experts_prompt_start", NOT_NEGATIVE, Optional),
    Field("return_token_offsets", Kind::Flag, Nullable),
];

/// `tools`
pub(super) const TOOLS: Kind = Kind::List(&Kind::Object(&TOOL));
const TOOL: Object = object(&[
    Field("type", Kind::OneOf(&["function"]), Optional),
    Field("function", Kind::Object(&FUNCTION), Required),
    Field("defer_loading", Kind::Flag, Nullable),
]);
const FUNCTION: Object = object(&[
    Field("name", Kind::Text, Required),
    Field("description", Kind::Text, Nullable),
    Field("parameters", Kind::Dictionary, Nullable),
    Field("strict", Kind::Flag, Nullable),
    Field("defer_loading", Kind::Flag, Nullable),
]);

const TOOL_CHOICE: Kind = Kind::AnyOf(&[
    Kind::OneOf(&["none"]),
    Kind::OneOf(&["auto"]),
    Kind::OneOf(&["required"]),
    Kind::Object(&object(&[
        Field("function", Kind::Object(&object(&[Field("name", Kind::Text, Required)])), Required),
        Field("type", Kind::OneOf(&["function"]), Optional),
    ])),
]);

/// Text, JSON or a JSON schema, or one of two kinds of structural tag. What is inside a schema or a tag is not judged here.
const RESPONSE_FORMAT: Kind = Kind::AnyOf(&[
    Kind::Object(&object(&[
        Field("type", Kind::OneOf(&["text", "json_object", "json_schema"]), Required),
        Field("json_schema", Kind::Object(&JSON_SCHEMA), Nullable),
    ])),
    Kind::Object(&object(&[
        Field("type", Kind::OneOf(&["structural_tag"]), Required),
        Field("format", Kind::Any, Required),
    ])),
    Kind::Object(&object(&[
        Field("type", Kind::OneOf(&["structural_tag"]), Required),
        Field("structures", Kind::List(&Kind::Any), Required),
        Field("triggers", Kind::List(&Kind::Any), Required),
    ])),
]);
const JSON_SCHEMA: Object = object(&[
    Field("name", Kind::Text, Required),
    Field("description", Kind::Text, Nullable),
    Field("schema", Kind::Dictionary, Nullable),
    Field("strict", Kind::Flag, Nullable),
]);

/// `structured_outputs`
pub(super) const STRUCTURED_OUTPUTS: Kind = Kind::Dataclass(
    "StructuredOutputsParams",
    &object(&[
        Field("json", Kind::AnyOf(&[Kind::Text, Kind::Dictionary]), Nullable),
        Field("regex", Kind::Text, Nullable),
        Field("choice", Kind::List(&Kind::Text), Nullable),
        Field("grammar", Kind::Text, Nullable),
        Field("json_object", Kind::Flag, Nullable),
        Field("disable_any_whitespace", Kind::Flag, Optional),
        Field("disable_additional_properties", Kind::Flag, Optional),
        Field("whitespace_pattern", Kind::Text, Nullable),
        Field("structural_tag", Kind::Text, Nullable),
    ]),
);

/// `stream_options`
pub(super) const STREAM_OPTIONS: Kind = Kind::Object(&object(&[
    Field("include_usage", Kind::Flag, Nullable),
    Field("continuous_usage_stats", Kind::Flag, Nullable),
]));

/// `media_io_kwargs`
pub(super) const MEDIA: Kind = Kind::DictionaryOf(&Kind::Dictionary);

/// `mm_payload`
pub(super) const MM_PAYLOAD: Kind = Kind::OneOf(&["tensors", "none"]);

/// `repetition_detection`
pub(super) const REPETITION: Kind = Kind::Dataclass(
    "RepetitionDetectionParams",
    &object(&[
        Field("max_pattern_size", Kind::Int, Optional),
        Field("min_pattern_size", Kind::Int, Optional),
        Field("min_count", Kind::Int, Optional),
    ]),
);

const XARGS: Kind = Kind::DictionaryOf(&Kind::AnyOf(&[
    Kind::Text,
    Kind::Int,
    Kind::Float,
    Kind::List(&Kind::AnyOf(&[Kind::Text, Kind::Int, Kind::Float])),
]));

const DOCUMENTS: Kind = Kind::List(&Kind::DictionaryOf(&Kind::Text));
const EMBEDS: Kind = Kind::AnyOf(&[Kind::Bytes, Kind::List(&Kind::Bytes)]);
const IDS: Kind = Kind::List(&Kind::Int);
const PROMPT: Kind = Kind::AnyOf(&[
    Kind::List(&NOT_NEGATIVE),
    Kind::List(&Kind::List(&NOT_NEGATIVE)),
    Kind::Text,
    Kind::List(&Kind::Text),
]);

/// `stop`: a text, or up to four.
pub(super) const STOPS: Kind = Kind::AnyOf(&[Kind::Text, Kind::ListUpTo(&Kind::Text, 4)]);

/// Adds everything in the body that does not fit.
pub(super) fn check(api: Api, body: &Map<String, Value>, loc: &Loc<'_>, issues: &mut Issues) {
    let tables = match api {
        Api::Chat => [CHAT, SAMPLING, CHAT_EXTRA, EXTENSIONS],
        Api::Completions => [COMPLETION, SAMPLING, COMPLETION_EXTRA, EXTENSIONS],
    };
    // Of a chat with tools the engine has chosen `tool_choice` before, which is a key more.
    let is_chosen = api == Api::Chat && python::truthy(body.get("tools")) && !body.contains_key("tool_choice");
    let keys = Some(body.len() + usize::from(is_chosen));
    tables.into_iter().for_each(|fields| check_fields(fields, body, keys, loc, issues));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::judge;

    fn faults(value: &Value) -> Vec<(String, String)> {
        let mut issues = Issues::new();
        judge(&RESPONSE_FORMAT, value, &Loc::Root("r"), &mut issues);
        if issues.is_empty() {
            return Vec::new();
        }
        let message = issues.error().message;
        let part = |line: &str, key: &str| line.split(key).nth(1).unwrap().split('\'').nth(1).unwrap().to_owned();
        message.lines().skip(1).map(|line| (part(line, "'type': "), part(line, "'loc': "))).collect()
    }

    /// The faults as pydantic gave them for the engine's own model.
    #[test]
    fn a_value_that_fits_no_branch_has_the_faults_of_all() {
        let tags =
            ["type literal_error", "format missing", "type literal_error", "structures missing", "triggers missing"];
        for (value, first) in [
            (json!({"type": "xml"}), vec!["type literal_error"]),
            (json!({"type": "json_schema", "json_schema": 3}), vec!["json_schema model_attributes_type"]),
            (json!({"type": "json_schema", "json_schema": {"schema": {}}}), vec!["json_schema.name missing"]),
            (
                json!({"type": "json_schema", "json_schema": {"name": "a", "schema": 3, "strict": "maybe"}}),
                vec!["json_schema.schema dict_type", "json_schema.strict bool_parsing"],
            ),
            (
                json!({"type": "text", "json_schema": {"name": 3, "description": 4}}),
                vec!["json_schema.name string_type", "json_schema.description string_type"],
            ),
        ] {
            let got: Vec<String> = faults(&value)
                .into_iter()
                .map(|(kind, loc)| format!("{} {kind}", loc.trim_start_matches("r.")))
                .collect();
            assert_eq!(got, [first, tags.to_vec()].concat(), "{value}");
        }
        assert_eq!(faults(&json!("x")).len(), 3);
        assert_eq!(faults(&json!({})).len(), 6);
    }

    #[test]
    fn a_value_that_fits_one_branch_has_none() {
        for value in [
            json!({"type": "text"}),
            json!({"type": "json_object", "json_schema": null}),
            json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": true}}),
            json!({"type": "structural_tag", "format": {"type": "any_text"}}),
            json!({"type": "structural_tag", "structures": [], "triggers": []}),
        ] {
            assert_eq!(faults(&value), [], "{value}");
        }
    }
}
