//! A generation request, read from its body and judged in the engine's stages.

mod input;
mod limits;

use input::completion_prompts;
pub use input::{GenerationInput, PromptInput};
pub use limits::MaxTokens;

use serde_json::{Map, Value};

use super::{
    Api, UsageEvents,
    body::ValidBody,
    conversation::{ChatPrompt, RequestTemplates},
    error::ApiError,
    event_options::EventOptions,
    fields,
    issues::{Issues, Loc},
    json,
    json_tree::TreeReading,
    kv_transfer::KvTransferParams,
    logprobs::LogprobsOptions,
    messages, rules,
    sampling::Sampling,
    structured::{self, Constraint},
    tool_choice::ToolUse,
    truncation::Truncation,
    unserved::Unserved,
    vocabulary::{VocabularyLimits, VocabularyUse},
};

/// The most output tokens a completion makes when it does not set a number.
const COMPLETION_MAX_TOKENS: i128 = 16;

/// Declares a request, and how each of its fields is read from a body that fits the schema.
macro_rules! request {
    ($(#[$meta:meta])* pub struct $name:ident, read from ($api:ident, $body:ident) {
        $($(#[$field_meta:meta])* $visibility:vis $field:ident: $type:ty = $read:expr,)*
    }) => {
        $(#[$meta])*
        pub struct $name { $($(#[$field_meta])* $visibility $field: $type,)* }

        impl $name {
            fn read($api: Api, $body: &ValidBody<'_>) -> Self {
                Self { $($field: $read,)* }
            }
        }
    };
}

request! {
    /// A request whose body fits the schema. Model, lengths and sampling ranges are checked by the methods, in their order.
    #[derive(Debug, Clone, PartialEq)]
    pub struct GenerationRequest, read from (api, body) {
        /// The endpoint.
        pub api: Api = api,
        /// The model that was requested; the engine takes its own where none is named.
        pub model: Option<String> = body.text("model"),
        /// Input to continue.
        pub prompts: GenerationInput = GenerationInput::Completion(Vec::new()),
        /// Choices per prompt.
        pub choices: u32 = body.int("n").and_then(|n| u32::try_from(n).ok()).unwrap_or(1),
        /// Output tokens before end-of-sequence, stop tokens and stop strings count.
        pub min_tokens: u32 = body.int("min_tokens").and_then(|least| u32::try_from(least).ok()).unwrap_or(0),
        /// Texts that end the output.
        pub stop: Vec<String> = body.texts("stop"),
        /// Token ids that end the output.
        pub stop_token_ids: Vec<u32> = body.ids("stop_token_ids"),
        /// True where what ended the output is part of it.
        pub include_stop_str_in_output: bool = body.flag("include_stop_str_in_output", false),
        /// True where the end of sequence is ignored.
        pub ignore_eos: bool = body.flag("ignore_eos", false),
        /// True where special tokens leave no text.
        pub skip_special_tokens: bool = body.flag("skip_special_tokens", true),
        /// True where spaces stand between special tokens that are shown.
        pub spaces_between_special_tokens: bool = body.flag("spaces_between_special_tokens", true),
        /// True where the prompt is encoded with the tokenizer's own special tokens around it.
        pub add_special_tokens: bool = body.flag("add_special_tokens", api == Api::Completions),
        /// True where the client wants a stream.
        pub stream: bool = body.flag("stream", false),
        /// Events of a stream that have token counts.
        pub usage_events: UsageEvents = body.usage_events(),
        /// True where prompt and output ids are sent.
        pub return_token_ids: bool = body.flag("return_token_ids", false),
        /// True where a chat returns its rendered prompt.
        pub return_prompt_text: bool = body.flag("return_prompt_text", false),
        /// True where a completion repeats its prompt, or a chat its last message.
        pub echo: bool = body.flag("echo", false),
        /// Seed of random tokens.
        pub seed: Option<i64> = body.int("seed"),
        /// The id that the body asks for.
        pub request_id: Option<String> = body.text("request_id"),
        /// Tool calls as they are requested; the default for completions.
        pub tools: ToolUse = if api == Api::Chat { ToolUse::read(body) } else { ToolUse::default() },
        /// True where reasoning is sent.
        pub include_reasoning: bool = body.flag("include_reasoning", true),
        /// Tokens that may be spent on thinking, where the request bounds them.
        pub thinking_budget: Option<i64> = body.int("thinking_token_budget").filter(|budget| *budget != -1),
        /// Log probabilities that are sent.
        pub logprobs: LogprobsOptions = LogprobsOptions::read(api, body),
        /// Truncation of the prompt.
        pub truncation: Option<Truncation> = Truncation::read(body, max_tokens(api, body).map(|(_, count)| count)),
        /// Tokens that an event waits for, where the request sets it.
        pub stream_interval: Option<u32> =
            body.int("stream_interval").map(|count| u32::try_from(count).unwrap_or(u32::MAX)),
        /// Lower is sooner, on an engine that schedules by priority.
        pub priority: i64 = body.int("priority").unwrap_or(0),
        /// Text without which no other request shares its cached blocks.
        pub cache_salt: Option<String> = body.text("cache_salt"),
        /// What KV events have of its blocks.
        pub events: EventOptions = EventOptions::read(body),
        /// Its part in disaggregated serving, where it has one.
        pub kv_transfer: Option<KvTransferParams> = KvTransferParams::read(body),
        pub(super) max_tokens: Option<(&'static str, i128)> = max_tokens(api, body),
        routed_experts_prompt_start: i128 = body.whole("routed_experts_prompt_start").unwrap_or(0),
        most_unasked: Option<u32> = None,
        /// True where tools are taken that nothing would find calls of.
        pub(super) takes_any_tools: bool = false,
        unserved: Unserved = Unserved::read(api, body),
        /// What calls of tools have to look like, where the request forces them.
        pub forced_calls: Option<Constraint> = if api == Api::Chat { structured::forced_calls(body.0) } else { None },
        structured: Option<structured::RequestedStructure> = structured::RequestedStructure::read(body.0),
        sampling: Sampling = Sampling::read(body),
        pub(super) vocabulary: VocabularyUse = VocabularyUse::read(api, body),
    }
}

/// The server that a request is judged for.
#[derive(Debug, Clone, Copy)]
pub struct ServerProfile {
    /// True where requests may bring templates.
    pub templates: RequestTemplates,
    /// True where tool calls are found.
    pub finds_calls: bool,
    /// Prompt and output tokens that a request may have together.
    pub max_model_len: u32,
}

impl GenerationRequest {
    /// Reads a body and checks it against the rules and the schema.
    ///
    /// # Errors
    /// What the engine would answer: not JSON, not an object, a broken rule, a field of another type.
    pub fn parse(api: Api, body: &[u8]) -> Result<Self, ApiError> {
        let reading = TreeReading::new(api == Api::Completions);
        let mut request = Self::of(api, json::object_by(&reading, body)?)?;
        if let Some(prompts) = reading.into_ids() {
            request.prompts = GenerationInput::Completion(prompts.into_iter().map(PromptInput::Ids).collect());
        }
        Ok(request)
    }

    /// Checks a body that was read already.
    pub(super) fn of(api: Api, map: Map<String, Value>) -> Result<Self, ApiError> {
        Self::check(api, &map)?;
        Ok(Self::take(api, map))
    }

    /// Checks a body that was made from one of a family whose messages are their own.
    pub(super) fn translated(api: Api, map: Map<String, Value>) -> Result<Self, ApiError> {
        Self::check_fields(api, &map)?;
        Ok(Self::take(api, map))
    }

    /// Checks a chat that the engine makes of a request for several, when it comes to it.
    pub(super) fn of_batch(map: Map<String, Value>) -> Result<Self, ApiError> {
        Self::check_by(Api::Chat, &map, Issues::of_chat())?;
        check_late(Api::Chat, &map, Issues::of_chat)?;
        Ok(Self::take(Api::Chat, map))
    }

    /// Checks a body whose fields were found to fit another schema.
    pub(super) fn of_checked(api: Api, map: Map<String, Value>) -> Result<Self, ApiError> {
        rules::check(api, &map)?;
        check_constraint(&map)?;
        Ok(Self::take(api, map))
    }

    /// Checks a body that stands within another, to which it adds what does not fit the schema; `None` then.
    pub(super) fn within(
        api: Api,
        map: &Map<String, Value>,
        loc: &Loc<'_>,
        issues: &mut Issues,
    ) -> Result<Option<Self>, ApiError> {
        rules::check(api, map)?;
        let before = issues.count();
        fields::check(api, map, loc, issues);
        if issues.count() > before {
            return Ok(None);
        }
        check_constraint(map)?;
        check_late(api, map, Issues::new)?;
        Ok(Some(Self::take(api, map.clone())))
    }

    fn check(api: Api, map: &Map<String, Value>) -> Result<(), ApiError> {
        Self::check_fields(api, map)?;
        check_late(api, map, Issues::new)
    }

    fn check_fields(api: Api, map: &Map<String, Value>) -> Result<(), ApiError> {
        Self::check_by(api, map, Issues::new())
    }

    fn check_by(api: Api, map: &Map<String, Value>, mut issues: Issues) -> Result<(), ApiError> {
        rules::check(api, map)?;
        fields::check(api, map, &Loc::BODY, &mut issues);
        issues.unless_any(())?;
        check_constraint(map)
    }

    fn take(api: Api, mut map: Map<String, Value>) -> Self {
        let mut request = Self::read(api, &ValidBody(&map));
        request.prompts = match api {
            Api::Chat => GenerationInput::Chat(ChatPrompt::take(&mut map)),
            Api::Completions => GenerationInput::Completion(completion_prompts(map.get_mut("prompt").map(Value::take))),
        };
        request
    }

    /// Returns whether it was made from a request for a response.
    #[must_use]
    pub fn is_response(&self) -> bool {
        self.takes_any_tools
    }

    /// Checks that tools can be called, that a chat template may be sent, and that the counts of tokens
    /// fit the model's length.
    ///
    /// # Errors
    /// 400 for one that does not fit. The model's name is judged before.
    pub fn check_served(&self, served: ServerProfile) -> Result<(), ApiError> {
        let ServerProfile { templates, finds_calls, max_model_len } = served;
        if !self.takes_any_tools {
            self.tools.check(finds_calls)?;
        }
        self.prompts.chats().iter().try_for_each(|chat| chat.check_template(templates))?;
        if let Some((name, count)) = self.max_tokens.filter(|(_, count)| *count > i128::from(max_model_len)) {
            let message = format!(
                "{name}={count} cannot be greater than max_model_len={max_model_len}. Please request fewer output tokens."
            );
            return Err(ApiError::parameter_value(name, &message, &count.to_string()));
        }
        self.truncation.map_or(Ok(()), |truncation| truncation.check(max_model_len))?;
        self.unserved.check()?;
        match &self.prompts {
            GenerationInput::Chat(_) | GenerationInput::Batch(_) => {
                self.prompts.chats().iter().try_for_each(ChatPrompt::check_conversation)
            }
            GenerationInput::Completion(prompts) if prompts.is_empty() => {
                Err(ApiError::bad_request("You must pass at least one prompt"))
            }
            GenerationInput::Completion(_) if self.stream && self.sampling.is_beam_search => {
                Err(ApiError::bad_request("Streaming is not currently supported with beam search"))
            }
            GenerationInput::Completion(_) => Ok(()),
        }
    }

    /// Returns whether it asks for a beam search.
    #[must_use]
    pub fn is_beam_search(&self) -> bool {
        self.sampling.is_beam_search
    }

    /// Returns whether the likeliest token is taken at each place, so that the same prompt has the same answer; `default` is the
    /// temperature of a request that names none.
    #[must_use]
    pub fn is_greedy(&self, default: f64) -> bool {
        self.sampling.is_greedy(default)
    }

    /// Takes a limit on output tokens that requests have which name none.
    pub fn limit_tokens(&mut self, most: u32) {
        self.most_unasked = Some(most);
    }

    /// Checks the parameters about single tokens against a vocabulary of so many.
    ///
    /// # Errors
    /// More log probabilities than the engine gives, or ids that the vocabulary does not have.
    pub fn check_vocabulary(&self, limits: VocabularyLimits) -> Result<(), ApiError> {
        self.vocabulary.check(limits)
    }

    /// Returns whether the answer's texts have to conform to something.
    #[must_use]
    pub fn is_constrained(&self) -> bool {
        self.structured.is_some() || self.forced_calls.is_some()
    }

    /// What every text of the answer has to conform to; the engine's last check of a request.
    ///
    /// # Errors
    /// 400 for an empty constraint, or one that nests too deep.
    pub fn constraint(&self) -> Result<Option<Constraint>, ApiError> {
        self.structured.as_ref().map_or(Ok(None), structured::RequestedStructure::constraint)
    }

    /// The engine's answer where the request's structural tag is none.
    #[must_use]
    pub fn invalid_tag(&self) -> ApiError {
        let requested = self.structured.as_ref().map(structured::RequestedStructure::invalid_tag);
        requested.unwrap_or_else(|| structured::invalid_tag("structured_outputs"))
    }
}

/// Checks the field `structured_outputs` alone, which has to be right by itself.
pub(super) fn check_constraint(map: &Map<String, Value>) -> Result<(), ApiError> {
    structured::RequestedStructure::own(map).map_or(Ok(()), |requested| requested.check_count())
}

fn check_late(api: Api, map: &Map<String, Value>, issues: fn() -> Issues) -> Result<(), ApiError> {
    match (api, map.get("messages")) {
        (Api::Chat, Some(Value::Array(messages))) => messages::check_late(messages, issues),
        _ => Ok(()),
    }
}

fn max_tokens(api: Api, body: &ValidBody<'_>) -> Option<(&'static str, i128)> {
    match api {
        Api::Chat => ["max_completion_tokens", "max_tokens"]
            .into_iter()
            .find_map(|name| body.whole(name).map(|count| (name, count))),
        Api::Completions => Some(("max_tokens", body.whole("max_tokens").unwrap_or(COMPLETION_MAX_TOKENS))),
    }
}

/// Header of `/invocations` that names the model, whatever the body names: an adapter's, as SageMaker calls it.
pub const ADAPTER_HEADER: &str = "x-amzn-sagemaker-adapter-identifier";

/// Reads a body of `/invocations` as a chat request, else as a completion; the model is the one of its [`ADAPTER_HEADER`].
///
/// # Errors
/// A broken rule of the first family whose schema was not what failed, or that no family fits.
pub fn invocation(body: &[u8], adapter: Option<String>) -> Result<GenerationRequest, ApiError> {
    // The handler reads it itself.
    let unreadable = |fault| ApiError::framework(format!("JSON decode error: {fault}"), None);
    let mut map = json::object(body).map_err(|error| json::read_plainly(body).err().map_or(error, unreadable))?;
    map.insert("model".to_owned(), adapter.into());
    for api in [Api::Chat, Api::Completions] {
        match GenerationRequest::check(api, &map) {
            Err(misfit) if misfit.is_of_framework() => {}
            checked => return checked.map(|()| GenerationRequest::take(api, map)),
        }
    }
    Err(ApiError::bad_request(
        "Cannot find suitable handler for request. Expected one of: ['ChatCompletionRequest', 'CompletionRequest']",
    ))
}
