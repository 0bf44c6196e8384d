//! The schema of a Messages request.

use serde_json::{Map, Value};

use crate::{
    fields::MM_PAYLOAD,
    schema::{
        Field, Kind,
        Need::{Nullable, Optional, Required},
        Object, object,
    },
};

const BLOCK_TYPES: &[&str] = &[
    "text",
    "image",
    "tool_use",
    "tool_result",
    "tool_reference",
    "thinking",
    "redacted_thinking",
    "tool_addition",
    "tool_removal",
];
const EFFORTS: &[&str] = &["low", "medium", "high", "xhigh", "max"];
const DISPLAYS: &[&str] = &["summarized", "omitted", "updates"];
const MOST_STOPS: usize = 4;

static TOOL: Object = object(&[
    Field("name", Kind::Text, Required),
    Field("description", Kind::Text, Nullable),
    Field("input_schema", Kind::Dictionary, Required),
    Field("strict", Kind::Flag, Nullable),
    Field("defer_loading", Kind::Flag, Nullable),
]);

static TOOL_REFERENCE: Object = object(&[Field("name", Kind::Text, Required)]);
static TOOL_DEFINITION: Object = object(&[Field("definition", Kind::Object(&TOOL), Required)]);
const TOOL_CHANGE: Kind = Kind::Tagged(&[("tool_reference", &TOOL_REFERENCE), ("tool_definition", &TOOL_DEFINITION)]);

static BLOCK: Object = Object {
    fields: &[
        Field("type", Kind::OneOf(BLOCK_TYPES), Required),
        Field("text", Kind::Text, Nullable),
        Field("source", Kind::Dictionary, Nullable),
        Field("id", Kind::Text, Nullable),
        Field("tool_use_id", Kind::Text, Nullable),
        Field("name", Kind::Text, Nullable),
        Field("input", Kind::Dictionary, Nullable),
        Field("content", Kind::AnyOf(&[Kind::Text, Kind::List(&Kind::Dictionary)]), Nullable),
        Field("is_error", Kind::Flag, Nullable),
        Field("tool_name", Kind::Text, Nullable),
        Field("thinking", Kind::Text, Nullable),
        Field("signature", Kind::Text, Nullable),
        Field("data", Kind::Text, Nullable),
        Field("tool", TOOL_CHANGE, Nullable),
    ],
    condition: Some(tool_change),
};

const CONTENT: Kind = Kind::AnyOf(&[Kind::Text, Kind::List(&Kind::Object(&BLOCK))]);

static MESSAGE: Object = Object {
    fields: &[
        Field("role", Kind::OneOf(&["user", "assistant", "system"]), Required),
        Field("content", CONTENT, Required),
    ],
    condition: Some(tool_changes_are_of_the_system),
};

static TOOL_CHOICE: Object = Object {
    fields: &[
        Field("type", Kind::OneOf(&["auto", "any", "tool", "none"]), Required),
        Field("name", Kind::Text, Nullable),
        Field("disable_parallel_tool_use", Kind::Flag, Nullable),
    ],
    condition: Some(named_tool),
};

static FORMAT: Object =
    object(&[Field("schema", Kind::Dictionary, Nullable), Field("type", Kind::OneOf(&["json_schema"]), Optional)]);

static OUTPUT_CONFIG: Object =
    object(&[Field("effort", Kind::OneOf(EFFORTS), Nullable), Field("format", Kind::Object(&FORMAT), Nullable)]);

static THINKING_ENABLED: Object = object(&[
    Field("budget_tokens", Kind::IntIn(1024, i128::MAX), Required),
    Field("display", Kind::OneOf(DISPLAYS), Nullable),
]);
static THINKING_DISABLED: Object = object(&[]);
static THINKING_ADAPTIVE: Object = object(&[Field("display", Kind::OneOf(DISPLAYS), Nullable)]);
const THINKING: Kind =
    Kind::Tagged(&[("enabled", &THINKING_ENABLED), ("disabled", &THINKING_DISABLED), ("adaptive", &THINKING_ADAPTIVE)]);

const SYSTEM: Kind = Kind::With(&CONTENT, no_tool_changes);
const MODEL: Kind = Kind::With(&Kind::Text, named_model);
const MESSAGES: Kind = Kind::List(&Kind::Object(&MESSAGE));
const TOOLS: Kind = Kind::List(&Kind::Object(&TOOL));

/// A request to `/v1/messages`.
pub(super) static REQUEST: Object = Object {
    fields: &[
        Field("model", MODEL, Required),
        Field("messages", MESSAGES, Required),
        Field("max_tokens", Kind::With(&Kind::Int, positive), Required),
        Field("metadata", Kind::Dictionary, Nullable),
        Field("output_config", Kind::Object(&OUTPUT_CONFIG), Nullable),
        Field("thinking", THINKING, Nullable),
        Field("stop_sequences", Kind::ListUpTo(&Kind::Text, MOST_STOPS), Nullable),
        Field("stream", Kind::Flag, Nullable),
        Field("system", SYSTEM, Nullable),
        Field("temperature", Kind::Float, Nullable),
        Field("tool_choice", Kind::Object(&TOOL_CHOICE), Nullable),
        Field("tools", TOOLS, Nullable),
        Field("top_k", Kind::Int, Nullable),
        Field("top_p", Kind::Float, Nullable),
        Field("mm_payload", MM_PAYLOAD, Optional),
        Field("return_mm_kwargs", Kind::Flag, Nullable),
        Field("cache_salt", Kind::SomeText, Nullable),
        Field("watermarking", Kind::Flag, Nullable),
        Field("kv_transfer_params", Kind::Dictionary, Nullable),
        Field("ec_transfer_params", Kind::Dictionary, Nullable),
        Field("vllm_xargs", Kind::Dictionary, Nullable),
        Field("chat_template_kwargs", Kind::Dictionary, Nullable),
    ],
    condition: Some(thinking_budget),
};

/// A request to `/v1/messages/count_tokens`.
pub(super) static COUNT: Object = object(&[
    Field("model", MODEL, Required),
    Field("messages", MESSAGES, Required),
    Field("output_config", Kind::Object(&OUTPUT_CONFIG), Nullable),
    Field("system", SYSTEM, Nullable),
    Field("thinking", THINKING, Nullable),
    Field("tool_choice", Kind::Object(&TOOL_CHOICE), Nullable),
    Field("tools", TOOLS, Nullable),
    Field("chat_template_kwargs", Kind::Dictionary, Nullable),
]);

fn named_model(model: &Value) -> Option<String> {
    (model == "").then(|| "Model is required".to_owned())
}

fn positive(count: &Value) -> Option<String> {
    let is_positive = count.as_f64().is_none_or(|count| count > 0.0);
    (!is_positive).then(|| "max_tokens must be positive".to_owned())
}

fn named_tool(choice: &Map<String, Value>) -> Option<String> {
    let has_name = choice.get("name").and_then(Value::as_str).is_some_and(|name| !name.is_empty());
    let needs_one = choice.get("type").is_some_and(|kind| kind == "tool");
    (needs_one && !has_name).then(|| "tool_choice.name is required when type is 'tool'".to_owned())
}

fn tool_change(block: &Map<String, Value>) -> Option<String> {
    let kind = block.get("type").and_then(Value::as_str).filter(|kind| is_tool_change(kind))?;
    match block.get("tool").filter(|tool| !tool.is_null()) {
        None => Some(format!("tool is required for {kind} blocks")),
        Some(tool) if kind == "tool_removal" && tool.get("type").is_none_or(|kind| kind != "tool_reference") => {
            Some("tool_removal only accepts a tool_reference".to_owned())
        }
        Some(_) => None,
    }
}

fn is_tool_change(kind: &str) -> bool {
    kind == "tool_addition" || kind == "tool_removal"
}

fn tool_changes_are_of_the_system(message: &Map<String, Value>) -> Option<String> {
    if message.get("role").is_some_and(|role| role == "system") {
        return None;
    }
    message.get("content").and_then(no_tool_changes)
}

fn no_tool_changes(content: &Value) -> Option<String> {
    let mut kinds = content.as_array()?.iter().filter_map(|block| block.get("type")?.as_str());
    let kind = kinds.find(|kind| is_tool_change(kind))?;
    Some(format!("{kind} blocks are only allowed in messages with role \"system\""))
}

fn thinking_budget(body: &Map<String, Value>) -> Option<String> {
    let goes_on_elsewhere =
        body.get("kv_transfer_params").is_some_and(|params| crate::python::truthy(params.get("do_remote_decode")));
    let budget =
        body.get("thinking").filter(|thinking| thinking["type"] == "enabled")?.get("budget_tokens")?.as_f64()?;
    let most = body.get("max_tokens")?.as_f64()?;
    (!goes_on_elsewhere && budget >= most).then(|| "thinking.budget_tokens must be less than max_tokens".to_owned())
}
