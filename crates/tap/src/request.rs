//! Fields of a recorded request, read from its body without changing a byte of it.

use http::HeaderMap;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, value::RawValue};

use super::{echo::repeats_last_message, event::ids, logprobs::RequestedLogprobs};
use api::ADAPTER_HEADER;
use net::wire::RawObject;
use recording::trace::Endpoint;
use text::prompt::{BlockHasher, MediaHashes, may_hold_media};

/// Parameters that are recorded: numbers and switches that shape a response, never content.
pub(super) const RECORDED_PARAMS: [&str; 14] = [
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "seed",
    "ignore_eos",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logprobs",
];

/// Parameters of log probabilities, besides the recorded `logprobs`.
const LOGPROB_FIELDS: [&str; 3] = ["top_logprobs", "prompt_logprobs", "logprob_token_ids"];

/// Maximum number of missing choices with records of their own, or one for each prompt if those are more, up to
/// [`MAX_MISSING_PROMPTS`]: a few bytes may request millions.
const MAX_MISSING_CHOICES: u32 = 128;

/// Maximum number of prompts that each get a record where nothing came of them.
const MAX_MISSING_PROMPTS: u32 = 1024;

/// Maximum length of a name that is recorded (model, request id, path), in bytes: each record of a request repeats it. A part of a longer
/// one could be a part of a secret that is not found any more, so that it is left out as a whole.
pub(super) const MAX_NAME: usize = 256;

/// Fields that engines read differently where they are there twice: such a body is not read.
const ONCE: [&str; 11] = [
    "model",
    "stream",
    "stream_options",
    "return_token_ids",
    "echo",
    "n",
    "prompt",
    "messages",
    "token_ids",
    "sampling_params",
    "use_beam_search",
];

/// Fields of a request that the recorder reads. Raw values borrow from the body, so that their place in it is known; `null` is absent, as for
/// engines.
#[derive(Debug)]
pub(super) struct RequestFields<'a> {
    pub(super) model: Option<String>,
    fields: RawObject<'a>,
}

impl<'a> RequestFields<'a> {
    /// Reads a body; `None` when it is not a JSON object (or names a field twice, which engines read differently).
    pub(super) fn read(body: &'a [u8]) -> Option<Self> {
        let fields = RawObject::read(body)?;
        let is_clear = !ONCE.iter().chain(&LOGPROB_FIELDS).any(|name| fields.has_twice(name));
        let model = fields.get("model").map(|model| serde_json::from_str(model.get())).transpose().ok()?;
        // Engines read an empty name as none.
        let model = model.filter(|model: &String| !model.is_empty());
        is_clear.then_some(Self { model, fields })
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.fields.get(name)
    }

    /// Returns true for `"stream": true`.
    pub(super) fn streams(&self) -> bool {
        is(self.get("stream"), "true")
    }

    /// Returns true if the client itself may want a usage event at the end of its stream.
    pub(super) fn wants_usage(&self) -> bool {
        self.get("stream_options").is_some_and(|options| options.get().contains("include_usage"))
    }

    /// Returns true if the response is to repeat the prompt, or a chat's last message.
    pub(super) fn echoes(&self) -> bool {
        self.get("echo").is_some_and(|echo| echo.get() != "false")
    }

    /// Returns the log probabilities that are requested.
    fn logprobs(&self, endpoint: Endpoint) -> RequestedLogprobs {
        let echoes = endpoint == Endpoint::Completions && self.echoes();
        let only_prompt = echoes && is(self.get("max_tokens"), "0");
        RequestedLogprobs { only_prompt, echoes, ..RequestedLogprobs::read(endpoint, |name| self.get(name)) }
    }

    /// Hashes the images, audio and video in its messages; `None` if there are none.
    pub(super) fn media(&self, hasher: &BlockHasher) -> Option<MediaHashes> {
        let messages = self.get("messages").map(RawValue::get).filter(|messages| may_hold_media(messages))?;
        hasher.hash_media(&serde_json::from_str::<Vec<Value>>(messages).ok()?)
    }

    /// Returns the number of choices for each prompt.
    pub(super) fn choices_per_prompt(&self) -> u32 {
        self.get("n").and_then(|n| n.get().parse().ok()).unwrap_or(1).max(1)
    }

    /// Returns the endpoint; `/invocations` takes chats and completions, which differ only in the body.
    fn endpoint(&self, target: RequestTarget<'_>) -> Endpoint {
        match target.path {
            INVOCATIONS if self.get("messages").is_some() => Endpoint::Chat,
            INVOCATIONS if self.get("prompt").is_some() => Endpoint::Completions,
            _ => target.endpoint,
        }
    }

    /// Returns the parameters of a request that has them in `sampling_params`.
    fn sampling(&self, path: &str) -> Option<Self> {
        let params = self.get("sampling_params").filter(|_| path == TOKENS)?;
        Self::read(params.get().as_bytes())
    }

    /// Returns true for beam search, whose tokens are not streamed step by step.
    fn searches(&self) -> bool {
        self.get("use_beam_search").is_some_and(|search| search.get() != "false")
    }

    /// Returns true if the prompt is scored: what the engine makes of a prompt is in its answer alone.
    fn scores_prompt(&self) -> bool {
        self.get("prompt_logprobs").is_some()
    }

    /// Returns true if any field requests log probabilities.
    fn wants_logprobs(&self) -> bool {
        ["logprobs"].iter().chain(&LOGPROB_FIELDS).any(|name| self.get(name).is_some())
    }

    /// Returns the number of prompts: more than one in a list of texts, or of lists of ids.
    pub(super) fn prompts(&self) -> u32 {
        let Some(prompt) = self.get("prompt") else { return 1 };
        let mut inner = prompt.get().bytes().filter(|byte| !byte.is_ascii_whitespace());
        if inner.next() != Some(b'[') || inner.next().is_some_and(|byte| byte.is_ascii_digit()) {
            return 1;
        }
        let prompts = serde_json::from_str::<Vec<IgnoredAny>>(prompt.get()).map_or(1, |prompts| prompts.len());
        u32::try_from(prompts).unwrap_or(u32::MAX).max(1)
    }
}

fn is(value: Option<&RawValue>, text: &str) -> bool {
    value.is_some_and(|value| value.get() == text)
}

/// Facts about a request that its records need.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct RequestFacts {
    pub(super) endpoint: Option<Endpoint>,
    pub(super) model: Option<String>,
    pub(super) stream: bool,
    /// The client requested usage, or may have.
    pub(super) wants_usage: bool,
    /// Prompts of a completion; 1 for all else.
    pub(super) prompts: u32,
    pub(super) choices_per_prompt: u32,
    pub(super) params: Map<String, Value>,
    pub(super) logprobs: RequestedLogprobs,
    pub(super) client_id: Option<String>,
    /// The path, if the endpoint does not imply it.
    pub(super) path: Option<String>,
    /// The prompt's ids, if the client sent ids.
    pub(super) prompt_ids: Option<Vec<u32>>,
    /// Hashes of a chat's images, audio and video.
    pub(super) media: Option<MediaHashes>,
    /// Names that are too long to be recorded.
    pub(super) long_names: Vec<&'static str>,
    /// The response has more than ids stand for: beam search, a scored prompt, or log probabilities of `/inference/v1/generate`.
    pub(super) exceeds_ids: bool,
    /// The response begins with the last message of the chat, which is not among the output tokens.
    pub(super) repeats_message: bool,
}

/// Path whose prompts and outputs are token ids.
const TOKENS: &str = "/inference/v1/generate";
/// Path that takes chats and completions.
const INVOCATIONS: &str = "/invocations";

/// Endpoint and path of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestTarget<'a> {
    pub(super) endpoint: Endpoint,
    pub(super) path: &'a str,
}

impl RequestFacts {
    pub(super) fn new(
        target: RequestTarget<'_>,
        headers: &HeaderMap,
        body: &[u8],
        requested: Option<&RequestFields<'_>>,
    ) -> Self {
        let mut long_names = Vec::new();
        let mut name = |field, name: Option<&str>| {
            long_names.extend(name.filter(|name| name.len() > MAX_NAME).map(|_| field));
            name.filter(|name| name.len() <= MAX_NAME).map(str::to_owned)
        };
        let client_id = name("request_id", headers.get("x-request-id").and_then(|value| value.to_str().ok()));
        let path =
            name("path", Some(target.path).filter(|_| target.endpoint == Endpoint::Other || target.path == TOKENS));
        let adapter = headers.get(ADAPTER_HEADER).filter(|_| target.path == INVOCATIONS);
        let adapter = adapter.and_then(|name| name.to_str().ok()).filter(|name| !name.is_empty());
        let model = name("model", adapter.or(requested.and_then(|requested| requested.model.as_deref())));
        let endpoint = requested.map_or(target.endpoint, |requested| requested.endpoint(target));
        let sampling = requested.and_then(|requested| requested.sampling(target.path));
        let shaped = sampling.as_ref().or(requested);
        Self {
            endpoint: Some(endpoint),
            path,
            model,
            long_names,
            stream: requested.is_some_and(RequestFields::streams),
            wants_usage: requested.is_none_or(RequestFields::wants_usage),
            prompts: requested.filter(|_| endpoint == Endpoint::Completions).map_or(1, RequestFields::prompts),
            choices_per_prompt: shaped.map_or(1, RequestFields::choices_per_prompt),
            params: shaped.map_or_else(|| recorded_params(body), |requested| params(&requested.fields)),
            logprobs: shaped.map(|requested| requested.logprobs(endpoint)).unwrap_or_default(),
            client_id,
            exceeds_ids: requested.is_some_and(|requested| requested.searches() || requested.scores_prompt())
                || sampling.as_ref().is_some_and(RequestFields::wants_logprobs),
            prompt_ids: requested
                .filter(|_| target.path == TOKENS)
                .and_then(|requested| ids(requested.get("token_ids"))),
            media: None,
            repeats_message: endpoint == Endpoint::Chat
                && requested.is_some_and(RequestFields::echoes)
                && repeats_last_message(body),
        }
    }

    /// Returns true for responses made of OpenAI's choices, whose ids may be requested.
    pub(super) fn has_choices(&self) -> bool {
        matches!(self.endpoint, None | Some(Endpoint::Chat | Endpoint::Completions))
    }

    /// Returns true if ids stand for the response: `play` builds responses of these endpoints from them.
    pub(super) fn is_made_of_ids(&self) -> bool {
        self.endpoint.is_none_or(Endpoint::generates)
    }

    /// Returns true if requests may be amended to get ids; `/inference/v1/generate` returns them anyway.
    pub(super) fn may_be_amended(&self) -> bool {
        self.has_choices() && self.path.as_deref() != Some(TOKENS)
    }

    /// Returns true if one choice was requested.
    pub(super) fn wants_one(&self) -> bool {
        self.prompts == 1 && self.choices_per_prompt == 1
    }

    /// Returns the number of choices a response should have, bounded because no engine serves millions.
    pub(super) fn choices(&self) -> u32 {
        let most = self.prompts.clamp(MAX_MISSING_CHOICES, MAX_MISSING_PROMPTS);
        u32::try_from(self.requested_choices()).unwrap_or(u32::MAX).min(most)
    }

    /// Returns the number of choices that were requested.
    pub(super) fn requested_choices(&self) -> u64 {
        if !self.has_choices() {
            return 1;
        }
        u64::from(self.prompts) * u64::from(self.choices_per_prompt)
    }
}

/// Reads the recorded parameters of a body that [`RequestFields`] cannot read.
fn recorded_params(body: &[u8]) -> Map<String, Value> {
    RawObject::read(body).map(|fields| params(&fields)).unwrap_or_default()
}

fn params(fields: &RawObject<'_>) -> Map<String, Value> {
    let recorded = |name: &&str| {
        let value: Value = fields.value(name)?;
        (value.is_number() || value.is_boolean()).then(|| ((*name).to_owned(), value))
    };
    RECORDED_PARAMS.iter().filter_map(recorded).collect()
}

#[cfg(test)]
mod tests;
