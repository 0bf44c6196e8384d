//! Messages and tools as vLLM hands them to a chat template.
//!
//! What a client sends is not what a template sees: content parts are joined or wrapped, `null` content is empty, the
//! arguments of earlier tool calls become objects, and only the fields that vLLM knows are passed on.
//!
//! Limits: images, audio and video are refused as vLLM refuses them for a text model, or leave a placeholder each: a part of
//! its kind for templates that take parts, else `<image>`, `<audio>` or `<video>` on lines before the text.

use serde_json::{Map, Value, json};

use super::PromptError;
use super::content_format::ContentFormat;
use super::media::{MEDIA, medium};

/// Content parts that are text.
const TEXT: [&str; 6] = ["text", "thinking", "input_text", "output_text", "refusal", "tool_reference"];

/// Conversation that a chat request asks a template to render.
#[derive(Debug, Clone, Copy)]
pub struct Conversation<'a> {
    /// The request's `messages`.
    pub messages: &'a [Value],
    /// The request's `tools`, where it has any that the template shall see.
    pub tools: Option<&'a [Value]>,
    /// The request's `documents`.
    pub documents: Option<&'a [Value]>,
    /// The text ends with the opening of the assistant's message (vLLM's default: true).
    pub add_generation_prompt: bool,
    /// The last message is left open, to be continued (vLLM's default: false).
    pub continue_final_message: bool,
    /// Images, audio and video are accepted, each as a placeholder; otherwise they are refused.
    pub takes_media: bool,
    /// Further variables for the template: the request's `chat_template_kwargs`.
    pub kwargs: &'a Map<String, Value>,
}

impl<'a> Conversation<'a> {
    /// Reads the conversation of a chat request; `None` if it has no messages.
    pub(crate) fn of_request(body: &'a Map<String, Value>, kwargs: &'a Map<String, Value>) -> Option<Self> {
        let flag = |name: &str, default| body.get(name).and_then(Value::as_bool).unwrap_or(default);
        let list = |name: &str| body.get(name).and_then(Value::as_array).map(Vec::as_slice);
        Some(Self {
            messages: list("messages")?,
            tools: list("tools"),
            documents: list("documents"),
            add_generation_prompt: flag("add_generation_prompt", true),
            continue_final_message: flag("continue_final_message", false),
            takes_media: false,
            kwargs,
        })
    }
}

/// The messages as a template of this format sees them.
pub(super) fn normalise(
    messages: &[Value],
    format: ContentFormat,
    takes_media: bool,
) -> Result<Vec<Value>, PromptError> {
    messages.iter().map(|message| normalise_message(message, format, takes_media)).collect()
}

fn normalise_message(message: &Value, format: ContentFormat, takes_media: bool) -> Result<Value, PromptError> {
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    let mut content = match message.get("content") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(parts)) => {
            parts.iter().filter_map(|part| content_part(part, takes_media).transpose()).collect::<Result<_, _>>()?
        }
        Some(text) => vec![ContentPart::text(text.as_str().unwrap_or_default())],
    };
    if role == "system" {
        drop_billing_header(&mut content);
    }
    if format == ContentFormat::String {
        content.retain(|part| part.medium.is_some() || !part.text.is_empty());
    }
    let as_text = format == ContentFormat::String || role == "tool";
    let mut out = Map::new();
    out.insert("role".to_owned(), role.into());
    out.insert(
        "content".to_owned(),
        if as_text { joined(&content) } else { content.into_iter().map(ContentPart::wrapped).collect() },
    );
    match role {
        "assistant" => add_assistant_fields(message, &mut out)?,
        "tool" => copy(message, "tool_call_id", &mut out),
        "developer" => drop(out.insert("tools".to_owned(), message.get("tools").cloned().unwrap_or_default())),
        _ => {}
    }
    for key in ["name", "task"] {
        if message.get(key).is_some_and(Value::is_string) {
            copy(message, key, &mut out);
        }
    }
    Ok(Value::Object(out))
}

struct ContentPart {
    text: String,
    extra: Map<String, Value>,
    /// Medium, if it is not text.
    medium: Option<&'static str>,
}

impl ContentPart {
    fn text(text: &str) -> Self {
        Self { text: text.to_owned(), extra: Map::new(), medium: None }
    }

    fn medium(medium: &'static str) -> Self {
        Self { medium: Some(medium), ..Self::text("") }
    }

    fn wrapped(self) -> Value {
        let mut out = Map::new();
        if let Some(medium) = self.medium {
            out.insert("type".to_owned(), medium.into());
            return Value::Object(out);
        }
        out.insert("type".to_owned(), "text".into());
        out.insert("text".to_owned(), self.text.into());
        out.extend(self.extra);
        Value::Object(out)
    }
}

/// The texts, after the placeholders of media, as the engine puts them.
fn joined(parts: &[ContentPart]) -> Value {
    let media = parts.iter().filter_map(|part| part.medium).map(|medium| format!("<{medium}>"));
    let texts = parts.iter().filter(|part| part.medium.is_none()).map(|part| part.text.clone());
    media.chain(texts).collect::<Vec<_>>().join("\n").into()
}

fn bad(reason: String, parameter: &'static str) -> PromptError {
    PromptError::BadMessage { reason, parameter, value: None }
}

/// One content part; `None` for a text part without text, which vLLM skips.
fn content_part(part: &Value, takes_media: bool) -> Result<Option<ContentPart>, PromptError> {
    let Value::Object(fields) = part else {
        return Ok(part.as_str().map(ContentPart::text));
    };
    // A medium may stand under its name alone.
    let kind = match fields.get("type") {
        Some(kind) => kind.as_str(),
        None => MEDIA
            .into_iter()
            .map(|(kind, _)| kind)
            .find(|kind| fields.contains_key(*kind))
            .map(Some)
            .ok_or_else(|| bad("Missing 'type' field in multimodal part.".to_owned(), "type"))?,
    };
    let key = match kind {
        Some("text" | "input_text" | "output_text") => "text",
        Some("refusal") => "refusal",
        Some("thinking") => "thinking",
        Some("tool_reference") => "name",
        Some(other) => match medium(other).filter(|_| takes_media) {
            Some(medium) => return Ok(Some(ContentPart::medium(medium))),
            None => return Err(refusal_of(other)),
        },
        None => return Err(bad("Invalid 'type' field in multimodal part.".to_owned(), "type")),
    };
    let extra = fields.iter().filter(|(name, _)| *name != "type" && *name != key);
    Ok(fields.get(key).and_then(Value::as_str).map(|text| ContentPart {
        medium: None,
        text: text.to_owned(),
        extra: extra.map(|(name, value)| (name.clone(), value.clone())).collect(),
    }))
}

fn refusal_of(kind: &str) -> PromptError {
    if MEDIA.iter().any(|(known, _)| *known == kind) {
        return PromptError::NotMultimodal(kind.to_owned());
    }
    let mut supported: Vec<&str> = MEDIA.into_iter().map(|(kind, _)| kind).chain(TEXT).collect();
    supported.sort_unstable();
    let supported = supported.join(", ");
    let reason = format!("Unsupported chat content part type: '{kind}'. Supported types: {supported}.");
    PromptError::BadMessage { reason, parameter: "type", value: Some(kind.to_owned()) }
}

/// The attribution line of a known client changes with every request; vLLM drops it so that prefixes stay shared.
fn drop_billing_header(parts: &mut Vec<ContentPart>) {
    parts.retain_mut(|part| {
        if !part.text.starts_with("x-anthropic-billing-header") {
            return true;
        }
        part.text = part.text.split_once('\n').map(|(_, rest)| rest.to_owned()).unwrap_or_default();
        !part.text.is_empty()
    });
}

fn copy(from: &Value, key: &str, to: &mut Map<String, Value>) {
    if let Some(value) = from.get(key) {
        to.insert(key.to_owned(), value.clone());
    }
}

fn add_assistant_fields(message: &Value, out: &mut Map<String, Value>) -> Result<(), PromptError> {
    let calls = message.get("tool_calls").and_then(Value::as_array).filter(|calls| !calls.is_empty());
    if let Some(calls) = calls {
        let calls = calls.iter().map(normalise_call).collect::<Result<Vec<_>, _>>()?;
        out.insert("tool_calls".to_owned(), calls.into());
    }
    let given = |key| message.get(key).filter(|value: &&Value| !value.is_null());
    if let Some(reasoning) = given("reasoning").or_else(|| given("reasoning_content")) {
        out.insert("reasoning".to_owned(), reasoning.clone());
        out.insert("reasoning_content".to_owned(), reasoning.clone());
    }
    Ok(())
}

/// Arguments that are JSON text become the object they spell; anything else becomes an empty object.
fn normalise_call(call: &Value) -> Result<Value, PromptError> {
    let mut call = call.clone();
    let Some(fields) = call.as_object_mut() else {
        return Err(bad("assistant tool_calls entries must be objects.".to_owned(), "tool_calls"));
    };
    let is_function = fields.get("type").is_none_or(|kind| kind == "function");
    match fields.get_mut("function").and_then(Value::as_object_mut) {
        Some(function) if is_function => {
            let parsed = match function.get("arguments") {
                Some(Value::String(text)) => serde_json::from_str(text).ok(),
                other => other.cloned(),
            };
            function.insert("arguments".to_owned(), parsed.filter(Value::is_object).unwrap_or_else(|| json!({})));
            Ok(call)
        }
        _ => {
            Err(bad("chat completions only support assistant tool_calls of type 'function'.".to_owned(), "tool_calls"))
        }
    }
}

/// A tool with its fields in the order of vLLM's own type: what is missing is `null`, what is unknown is dropped.
pub(super) fn normalise_tool(tool: &Value) -> Value {
    let given = tool.get("function").unwrap_or(&Value::Null);
    let mut function = Map::new();
    for key in ["name", "description", "parameters"] {
        function.insert(key.to_owned(), given.get(key).cloned().unwrap_or_default());
    }
    let set = |from: &Value, key| from.get(key).filter(|value: &&Value| !value.is_null()).cloned();
    if let Some(strict) = set(given, "strict") {
        function.insert("strict".to_owned(), strict);
    }
    let outer = set(tool, "defer_loading");
    if let Some(deferred) = set(given, "defer_loading").or_else(|| outer.clone()) {
        function.insert("defer_loading".to_owned(), deferred);
    }
    let mut out = json!({"type": "function", "function": function});
    if let (Some(deferred), Some(fields)) = (outer, out.as_object_mut()) {
        fields.insert("defer_loading".to_owned(), deferred);
    }
    out
}

/// For templates that do not know the `developer` role: it becomes `system`, and where that leaves system messages
/// further down, all of them are merged into one at the top.
pub(super) fn fold_developer_messages(messages: &mut Vec<Value>) {
    let role = |message: &Value, wanted: &str| message.get("role").is_some_and(|role| role == wanted);
    if !messages.iter().any(|message| role(message, "developer")) {
        return;
    }
    for message in messages.iter_mut().filter(|message| role(message, "developer")) {
        if let Some(fields) = message.as_object_mut() {
            fields.insert("role".to_owned(), "system".into());
            fields.shift_remove("tools");
        }
    }
    if !messages.iter().skip(1).any(|message| role(message, "system")) {
        return;
    }
    let (system, mut others): (Vec<_>, Vec<_>) = messages.drain(..).partition(|message| role(message, "system"));
    let texts: Vec<String> = system.iter().map(plain_text).filter(|text| !text.is_empty()).collect();
    messages.push(json!({"role": "system", "content": texts.join("\n\n")}));
    messages.append(&mut others);
}

fn plain_text(message: &Value) -> String {
    match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            parts.iter().filter_map(|part| part.get("text")?.as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}
