//! Requests that fit the schema and that this kind of server refuses.

use serde_json::Value;

use super::{Api, body::ValidBody, error::ApiError, python};

/// Fields that are refused once the model is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unserved {
    /// Why its `suffix` is refused; `None` without one.
    suffix: Option<&'static str>,
    embeds: bool,
    media: MediaOptions,
}

/// Options of the processing of media that a request brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MediaOptions {
    processor: bool,
    loading: bool,
}

impl Unserved {
    pub(super) fn read(api: Api, body: &ValidBody<'_>) -> Self {
        let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty) || value == "";
        Self {
            suffix: (api == Api::Completions && body.get("suffix").is_some()).then(|| suffix_refusal(body)),
            embeds: body.get("prompt_embeds").is_some_and(|embeds| !is_empty(embeds)),
            media: MediaOptions::read(body),
        }
    }

    pub(super) fn check(self) -> Result<(), ApiError> {
        if let Some(message) = self.suffix {
            let refused = ApiError::bad_request(message);
            return Err(ApiError { param: Some("suffix".to_owned()), ..refused });
        }
        if self.embeds {
            let message = "You must set `--enable-prompt-embeds` to input `prompt_embeds`.";
            return Err(ApiError::parameter("prompt_embeds", message));
        }
        self.media.check()
    }
}

impl MediaOptions {
    /// Reads a body of any family: the engine looks for these fields in all of them, whatever they are.
    pub(super) fn read(body: &ValidBody<'_>) -> Self {
        let is_set = |name: &str| python::truthy(body.get(name));
        Self { processor: is_set("mm_processor_kwargs"), loading: is_set("media_io_kwargs") }
    }

    pub(super) fn check(self) -> Result<(), ApiError> {
        let (field, what) = match self {
            Self { processor: true, .. } => ("mm_processor_kwargs", "preprocessing"),
            Self { loading: true, .. } => ("media_io_kwargs", "media loading"),
            Self { .. } => return Ok(()),
        };
        let message = format!(
            "Per-request {field} are disabled by default because they can change multimodal {what} resource usage. Start \
             the server with --trust-request-mm-kwargs only when clients are trusted."
        );
        Err(ApiError::parameter(field, &message))
    }
}

/// Why the engine refuses a `suffix`, in its order (`vllm/renderers/online_renderer.py`); no model here renders one.
fn suffix_refusal(body: &ValidBody<'_>) -> &'static str {
    if body.flag("echo", false) {
        return "Echo is unsupported with suffix.";
    }
    if body.get("prompt_embeds").is_some() {
        return "suffix is not supported with prompt_embeds";
    }
    if body.get("truncate_prompt_tokens").is_some() {
        return "suffix is not supported with truncate_prompt_tokens";
    }
    match body.get("prompt") {
        Some(Value::Array(prompts)) if !prompts.iter().all(Value::is_string) => {
            "suffix requires text prompt input for FIM completion rendering"
        }
        _ => "suffix is only supported for models with FIM completion rendering",
    }
}
