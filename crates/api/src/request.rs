//! A generation request, read from its body and judged in the engine's stages.

mod limits;

pub use limits::MaxTokens;

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{
    Api, UsageEvents,
    body::{Body, ids},
    conversation::{ChatPrompt, RequestTemplates, chat_prompt},
    error::ApiError,
    event_options::EventOptions,
    fields,
    issues::{Issues, Loc},
    json,
    json_tree::Reading,
    kv_transfer::KvTransferParams,
    logprobs::LogprobsAsked,
    messages, rules,
    sampling::Sampling,
    structured::{self, Constraint},
    tool_choice::{ToolParsing, ToolUse},
    truncation::Truncation,
    unserved::Unserved,
    vocabulary::{VocabularyLimits, VocabularyUse},
};

/// The most output tokens a completion makes when it does not set a number.
const COMPLETION_MAX_TOKENS: i128 = 16;

/// A request whose body fits the schema. Model, lengths and sampling ranges are checked by the methods, in their order.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationRequest {
    /// The endpoint.
    pub api: Api,
    /// The model that was asked for; the engine takes its own where none is named.
    pub model: Option<String>,
    /// Input to continue.
    pub prompts: Prompts,
    /// Choices per prompt.
    pub choices: u32,
    /// Output tokens before end-of-sequence, stop tokens and stop strings count.
    pub min_tokens: u32,
    /// Texts that end the output.
    pub stop: Vec<String>,
    /// Token ids that end the output.
    pub stop_token_ids: Vec<u32>,
    /// True where what ended the output is part of it.
    pub include_stop_str_in_output: bool,
    /// True where the end of sequence is ignored.
    pub ignore_eos: bool,
    /// True where special tokens leave no text.
    pub skip_special_tokens: bool,
    /// True where spaces stand between special tokens that are shown.
    pub spaces_between_special_tokens: bool,
    /// True where the prompt is encoded with the tokenizer's own special tokens around it.
    pub add_special_tokens: bool,
    /// True where the client wants a stream.
    pub stream: bool,
    /// Events of a stream that have token counts.
    pub usage_events: UsageEvents,
    /// True where prompt and output ids are sent.
    pub return_token_ids: bool,
    /// True where a chat returns its rendered prompt.
    pub return_prompt_text: bool,
    /// True where a completion repeats its prompt, or a chat its last message.
    pub echo: bool,
    /// Seed of random tokens.
    pub seed: Option<i64>,
    /// The id that the body asks for.
    pub request_id: Option<String>,
    /// Tool calls as they are asked for; the default for completions.
    pub tools: ToolUse,
    /// True where reasoning is sent.
    pub include_reasoning: bool,
    /// Tokens that may be spent on thinking, where the request bounds them.
    pub thinking_budget: Option<i64>,
    /// Log probabilities that are sent.
    pub logprobs: LogprobsAsked,
    /// Truncation of the prompt.
    pub truncation: Option<Truncation>,
    /// Tokens that an event waits for, where the request sets it.
    pub stream_interval: Option<u32>,
    /// Lower is sooner, on an engine that schedules by priority.
    pub priority: i64,
    /// Text without which no other request shares its cached blocks.
    pub cache_salt: Option<String>,
    /// What KV events have of its blocks.
    pub events: EventOptions,
    /// Its part in disaggregated serving, where it has one.
    pub kv_transfer: Option<KvTransferParams>,
    max_tokens: Option<(&'static str, i128)>,
    most_unasked: Option<u32>,
    /// True where tools are taken that nothing would find calls of.
    takes_any_tools: bool,
    unserved: Unserved,
    /// What calls of tools have to look like, where the request forces them.
    pub forced_calls: Option<Constraint>,
    structured: Option<structured::Asked>,
    sampling: Sampling,
    vocabulary: VocabularyUse,
}

/// Input to continue.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompts {
    /// A conversation.
    Chat(ChatPrompt),
    /// Several conversations, a choice for each.
    Batch(Vec<ChatPrompt>),
    /// One or several prompts.
    Completion(Vec<PromptInput>),
}

impl Prompts {
    /// Returns their number.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Chat(_) => 1,
            Self::Batch(chats) => chats.len(),
            Self::Completion(inputs) => inputs.len(),
        }
    }
}

/// The server that a request is judged for.
#[derive(Debug, Clone, Copy)]
pub struct Served {
    /// True where requests may bring templates.
    pub templates: RequestTemplates,
    /// True where tool calls are found.
    pub tools: ToolParsing,
    /// Prompt and output tokens that a request may have together.
    pub max_model_len: u32,
}

/// One prompt of a completion.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptInput {
    /// Text, to be tokenized.
    Text(String),
    /// Token ids.
    Ids(Arc<[u32]>),
}

impl GenerationRequest {
    /// Reads a body and checks it against the rules and the schema.
    ///
    /// # Errors
    /// What the engine would answer: not JSON, not an object, a broken rule, a field of another type.
    pub fn parse(api: Api, body: &[u8]) -> Result<Self, ApiError> {
        let reading = Reading::new(api == Api::Completions);
        let mut request = Self::of(api, &json::object_by(&reading, body)?)?;
        if let Some(prompts) = reading.into_ids() {
            request.prompts = Prompts::Completion(prompts.into_iter().map(PromptInput::Ids).collect());
        }
        Ok(request)
    }

    /// Checks a body that was read already.
    ///
    /// # Errors
    /// A broken rule, a field of another type.
    pub(super) fn of(api: Api, map: &Map<String, Value>) -> Result<Self, ApiError> {
        let request = Self::translated(api, map)?;
        check_late(api, map)?;
        Ok(request)
    }

    /// Checks a body that was made from one of a family whose messages are their own.
    ///
    /// # Errors
    /// A broken rule, a field of another type.
    pub(super) fn translated(api: Api, map: &Map<String, Value>) -> Result<Self, ApiError> {
        rules::check(api, map)?;
        let mut issues = Issues::new();
        fields::check(api, map, &Loc::BODY, &mut issues);
        issues.unless_any(())?;
        Self::of_fitting(api, map)
    }

    /// Checks a body whose fields were found to fit another schema.
    ///
    /// # Errors
    /// A broken rule.
    pub(super) fn of_checked(api: Api, map: &Map<String, Value>) -> Result<Self, ApiError> {
        rules::check(api, map)?;
        Self::of_fitting(api, map)
    }

    fn of_fitting(api: Api, map: &Map<String, Value>) -> Result<Self, ApiError> {
        structured::Asked::own(map).map_or(Ok(()), |asked| asked.check_count())?;
        Ok(Self::read(api, &Body(map)))
    }

    /// Checks a body that stands within another, to which it adds what does not fit the schema; `None` then.
    ///
    /// # Errors
    /// A broken rule.
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
        let request = Self::of_fitting(api, map)?;
        check_late(api, map)?;
        Ok(Some(request))
    }

    fn read(api: Api, body: &Body<'_>) -> Self {
        let stop = body.texts("stop");
        let prompts = match api {
            Api::Chat => Prompts::Chat(chat_prompt(body)),
            Api::Completions => Prompts::Completion(body.0.get("prompt").map(completion_prompts).unwrap_or_default()),
        };
        Self {
            api,
            model: body.text("model"),
            prompts,
            choices: body.int("n").and_then(|n| u32::try_from(n).ok()).unwrap_or(1),
            min_tokens: body.int("min_tokens").and_then(|least| u32::try_from(least).ok()).unwrap_or(0),
            stop_token_ids: body.ids("stop_token_ids"),
            include_stop_str_in_output: body.flag("include_stop_str_in_output", false),
            ignore_eos: body.flag("ignore_eos", false),
            skip_special_tokens: body.flag("skip_special_tokens", true),
            spaces_between_special_tokens: body.flag("spaces_between_special_tokens", true),
            add_special_tokens: body.flag("add_special_tokens", api == Api::Completions),
            stream: body.flag("stream", false),
            usage_events: body.usage_events(),
            return_token_ids: body.flag("return_token_ids", false),
            return_prompt_text: body.flag("return_prompt_text", false),
            echo: body.flag("echo", false),
            seed: body.int("seed"),
            request_id: body.text("request_id"),
            tools: if api == Api::Chat { ToolUse::read(body) } else { ToolUse::default() },
            include_reasoning: body.flag("include_reasoning", true),
            thinking_budget: body.int("thinking_token_budget").filter(|budget| *budget != -1),
            logprobs: LogprobsAsked::read(api, body),
            truncation: Truncation::read(body, max_tokens(api, body).map(|(_, count)| count)),
            stream_interval: body.int("stream_interval").map(|count| u32::try_from(count).unwrap_or(u32::MAX)),
            priority: body.int("priority").unwrap_or(0),
            cache_salt: body.text("cache_salt"),
            events: EventOptions::read(body),
            kv_transfer: KvTransferParams::read(body),
            forced_calls: if api == Api::Chat { structured::forced_calls(body.0) } else { None },
            structured: structured::Asked::read(body.0),
            max_tokens: max_tokens(api, body),
            most_unasked: None,
            takes_any_tools: false,
            unserved: Unserved::read(api, body),
            vocabulary: VocabularyUse::read(api, body),
            sampling: Sampling::read(body, &stop),
            stop,
        }
    }

    /// Takes all that is left of the model's length.
    pub(super) fn forget_max_tokens(&mut self) {
        self.max_tokens = None;
    }

    /// Takes tools on a server without a parser too, as another family does.
    pub(super) fn take_any_tools(&mut self) {
        self.takes_any_tools = true;
    }

    /// Returns whether it was made from a request for a response.
    #[must_use]
    pub fn is_response(&self) -> bool {
        self.takes_any_tools
    }

    /// Sets the name by which another family limits its output tokens.
    pub(super) fn rename_max_tokens(&mut self, to: &'static str) {
        if let Some((name, _)) = &mut self.max_tokens {
            *name = to;
        }
    }

    /// Checks that tools can be called, that a chat template may be sent, and that the counts of tokens
    /// fit the model's length.
    ///
    /// # Errors
    /// 400 for one that does not fit. The model's name is judged before.
    pub fn check_served(&self, served: Served) -> Result<(), ApiError> {
        let Served { templates, tools, max_model_len } = served;
        if !self.takes_any_tools {
            self.tools.check(tools)?;
        }
        if let Prompts::Chat(chat) = &self.prompts {
            chat.check_template(templates)?;
        }
        if let Some((name, count)) = self.max_tokens.filter(|(_, count)| *count > i128::from(max_model_len)) {
            let message = format!(
                "{name}={count} cannot be greater than max_model_len={max_model_len}. Please request fewer output tokens."
            );
            return Err(ApiError::parameter_value(name, &message, &count.to_string()));
        }
        self.truncation.map_or(Ok(()), |truncation| truncation.check(max_model_len))?;
        self.unserved.check()?;
        match &self.prompts {
            Prompts::Chat(chat) => chat.check_conversation(),
            Prompts::Completion(prompts) if prompts.is_empty() => {
                Err(ApiError::bad_request("You must pass at least one prompt"))
            }
            Prompts::Completion(_) if self.stream && self.sampling.is_beam_search => {
                Err(ApiError::bad_request("Streaming is not currently supported with beam search"))
            }
            Prompts::Batch(_) | Prompts::Completion(_) => Ok(()),
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

    /// Asks for tokens by their ids.
    pub(super) fn ask_for_replay(&mut self) {
        self.vocabulary.ask_for_replay();
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
        self.structured.as_ref().map_or(Ok(None), structured::Asked::constraint)
    }

    /// The engine's answer where the request's structural tag is none.
    #[must_use]
    pub fn invalid_tag(&self) -> ApiError {
        let asked = self.structured.as_ref().map(structured::Asked::invalid_tag);
        asked.unwrap_or_else(|| structured::invalid_tag("structured_outputs"))
    }
}

fn check_late(api: Api, map: &Map<String, Value>) -> Result<(), ApiError> {
    match (api, map.get("messages")) {
        (Api::Chat, Some(Value::Array(messages))) => messages::check_late(messages),
        _ => Ok(()),
    }
}

fn max_tokens(api: Api, body: &Body<'_>) -> Option<(&'static str, i128)> {
    match api {
        Api::Chat => ["max_completion_tokens", "max_tokens"]
            .into_iter()
            .find_map(|name| body.whole(name).map(|count| (name, count))),
        Api::Completions => Some(("max_tokens", body.whole("max_tokens").unwrap_or(COMPLETION_MAX_TOKENS))),
    }
}

fn completion_prompts(prompt: &Value) -> Vec<PromptInput> {
    match prompt {
        Value::String(text) => vec![PromptInput::Text(text.clone())],
        Value::Array(items) if items.is_empty() => Vec::new(),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            items.iter().filter_map(Value::as_str).map(|text| PromptInput::Text(text.to_owned())).collect()
        }
        Value::Array(items) if items.iter().all(Value::is_array) => {
            items.iter().filter_map(Value::as_array).map(|items| PromptInput::Ids(ids(items).into())).collect()
        }
        Value::Array(items) => vec![PromptInput::Ids(ids(items).into())],
        _ => Vec::new(),
    }
}
