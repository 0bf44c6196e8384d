//! Fields of a recorded request, read from its body without changing a byte of it.

use std::{borrow::Cow, fmt, marker::PhantomData};

use http::HeaderMap;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

use super::{
    echo::repeats_last_message,
    event::{ids, is_object},
    logprobs::RequestedLogprobs,
};
use recording::trace::Endpoint;
use text::prompt::{BlockHasher, MediaHashes, may_hold_media};

/// Parameters that are recorded: numbers and switches that shape a response, never content.
const RECORDED_PARAMS: [&str; 14] = [
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

/// Fields of a request that the recorder reads, in one pass. Raw values borrow from the body, so that
/// their place in it is known.
#[derive(Debug, Default)]
pub(super) struct RequestFields<'a> {
    pub(super) model: Option<String>,
    pub(super) stream: Option<&'a RawValue>,
    pub(super) stream_options: Option<&'a RawValue>,
    pub(super) return_token_ids: Option<&'a RawValue>,
    pub(super) echo: Option<&'a RawValue>,
    pub(super) n: Option<&'a RawValue>,
    prompt: Option<&'a RawValue>,
    messages: Option<&'a RawValue>,
    /// The prompt of `/inference/v1/generate`, as ids.
    token_ids: Option<&'a RawValue>,
    sampling_params: Option<&'a RawValue>,
    use_beam_search: Option<&'a RawValue>,
    /// The values of [`LOGPROB_FIELDS`].
    logprobs: [Option<&'a RawValue>; LOGPROB_FIELDS.len()],
    /// The values of [`RECORDED_PARAMS`].
    params: [Option<&'a RawValue>; RECORDED_PARAMS.len()],
}

impl<'de: 'a, 'a> Deserialize<'de> for RequestFields<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(FieldsSeed(PhantomData))
    }
}

struct FieldsSeed<'a>(PhantomData<RequestFields<'a>>);

impl<'de: 'a, 'a> Visitor<'de> for FieldsSeed<'a> {
    type Value = RequestFields<'a>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut fields: M) -> Result<RequestFields<'a>, M::Error> {
        #[derive(Deserialize)]
        struct MemberName<'a>(#[serde(borrow)] Cow<'a, str>);
        let mut requested = RequestFields::default();
        let mut has_model = false;
        while let Some(MemberName(name)) = fields.next_key::<MemberName<'_>>()? {
            let param = RECORDED_PARAMS.iter().position(|known| *known == name);
            let slot = match name.as_ref() {
                "model" if !has_model => {
                    has_model = true;
                    requested.model = fields.next_value()?;
                    continue;
                }
                "model" => return Err(M::Error::duplicate_field("model")),
                "stream" => Some(&mut requested.stream),
                "stream_options" => Some(&mut requested.stream_options),
                "return_token_ids" => Some(&mut requested.return_token_ids),
                "echo" => Some(&mut requested.echo),
                "n" => Some(&mut requested.n),
                "prompt" => Some(&mut requested.prompt),
                "messages" => Some(&mut requested.messages),
                "token_ids" => Some(&mut requested.token_ids),
                "sampling_params" => Some(&mut requested.sampling_params),
                "use_beam_search" => Some(&mut requested.use_beam_search),
                name => {
                    let place = LOGPROB_FIELDS.iter().position(|known| *known == name);
                    place.and_then(|place| requested.logprobs.get_mut(place))
                }
            };
            if slot.is_none() && param.is_none() {
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            let value: &RawValue = fields.next_value()?;
            match slot {
                Some(Some(_)) => return Err(M::Error::custom("a field twice")),
                Some(slot) => *slot = given(value),
                None => {}
            }
            if let Some(param) = param.and_then(|place| requested.params.get_mut(place)) {
                *param = Some(value);
            }
        }
        Ok(requested)
    }
}

/// Treats `null` as absent, as engines do.
fn given(value: &RawValue) -> Option<&RawValue> {
    (value.get() != "null").then_some(value)
}

impl<'a> RequestFields<'a> {
    /// Reads a body; `None` when it is not a JSON object (or names a field twice, which engines read differently).
    pub(super) fn read(body: &'a [u8]) -> Option<Self> {
        is_object(body).then(|| serde_json::from_slice(body).ok()).flatten()
    }

    /// Returns true for `"stream": true`.
    pub(super) fn streams(&self) -> bool {
        is(self.stream, "true")
    }

    /// Returns true if the client itself may want a usage event at the end of its stream.
    pub(super) fn wants_usage(&self) -> bool {
        self.stream_options.is_some_and(|options| options.get().contains("include_usage"))
    }

    /// Returns true if the response is to repeat the prompt, or a chat's last message.
    pub(super) fn echoes(&self) -> bool {
        self.echo.is_some() && !is(self.echo, "false")
    }

    pub(super) fn prompt(&self) -> Option<&'a RawValue> {
        self.prompt
    }

    /// Returns the parameters that are recorded.
    fn params(&self) -> Map<String, Value> {
        let named = RECORDED_PARAMS.iter().zip(self.params);
        named.filter_map(|(name, value)| recorded_param(name, value?)).collect()
    }

    /// Returns the log probabilities that are requested.
    fn logprobs(&self, endpoint: Endpoint) -> RequestedLogprobs {
        let names = LOGPROB_FIELDS.iter().zip(self.logprobs).chain(RECORDED_PARAMS.iter().zip(self.params));
        let field = |wanted: &str| names.clone().find(|(name, _)| **name == wanted)?.1;
        let wants_none = field("max_tokens").is_some_and(|most| most.get() == "0");
        let only_prompt = endpoint == Endpoint::Completions && self.echoes() && wants_none;
        let echoes = endpoint == Endpoint::Completions && self.echoes();
        RequestedLogprobs { only_prompt, echoes, ..RequestedLogprobs::read(endpoint, field) }
    }

    /// Hashes the images, audio and video in its messages; `None` if there are none.
    pub(super) fn media(&self, hasher: &BlockHasher) -> Option<MediaHashes> {
        let messages = self.messages.map(RawValue::get).filter(|messages| may_hold_media(messages))?;
        hasher.hash_media(&serde_json::from_str::<Vec<Value>>(messages).ok()?)
    }

    /// Returns the number of choices for each prompt.
    pub(super) fn choices_per_prompt(&self) -> u32 {
        self.n.and_then(|n| n.get().parse().ok()).unwrap_or(1).max(1)
    }

    /// Returns the endpoint; `/invocations` takes chats and completions, which differ only in the body.
    fn endpoint(&self, target: RequestTarget<'_>) -> Endpoint {
        match target.path {
            INVOCATIONS if self.messages.is_some() => Endpoint::Chat,
            INVOCATIONS if self.prompt.is_some() => Endpoint::Completions,
            _ => target.endpoint,
        }
    }

    /// Returns the parameters of a request that has them in `sampling_params`.
    fn sampling(&self, path: &str) -> Option<Self> {
        self.sampling_params.filter(|_| path == TOKENS).and_then(|params| Self::read(params.get().as_bytes()))
    }

    /// Returns true for beam search, whose tokens are not streamed step by step.
    fn searches(&self) -> bool {
        self.use_beam_search.is_some() && !is(self.use_beam_search, "false")
    }

    /// Returns true if the prompt is scored: what the engine makes of a prompt is in its answer alone.
    fn scores_prompt(&self) -> bool {
        let fields = LOGPROB_FIELDS.iter().zip(self.logprobs);
        fields.into_iter().any(|(name, value)| *name == "prompt_logprobs" && value.and_then(given).is_some())
    }

    /// Returns true if any field requests log probabilities.
    fn wants_logprobs(&self) -> bool {
        let place = RECORDED_PARAMS.iter().position(|name| *name == "logprobs");
        let plain = place.and_then(|place| *self.params.get(place)?).and_then(given);
        plain.is_some() || self.logprobs.iter().any(Option::is_some)
    }

    /// Returns the number of prompts: more than one in a list of texts, or of lists of ids.
    pub(super) fn prompts(&self) -> u32 {
        let Some(prompt) = self.prompt else { return 1 };
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
        let model = name("model", requested.and_then(|requested| requested.model.as_deref()));
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
            params: shaped.map_or_else(|| recorded_params(body), RequestFields::params),
            logprobs: shaped.map(|requested| requested.logprobs(endpoint)).unwrap_or_default(),
            client_id,
            exceeds_ids: requested.is_some_and(|requested| requested.searches() || requested.scores_prompt())
                || sampling.as_ref().is_some_and(RequestFields::wants_logprobs),
            prompt_ids: requested.filter(|_| target.path == TOKENS).and_then(|requested| ids(requested.token_ids)),
            media: None,
            repeats_message: endpoint == Endpoint::Chat
                && requested.is_some_and(RequestFields::echoes)
                && repeats_last_message(body),
        }
    }
}

impl RequestFacts {
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
        if !self.has_choices() {
            return 1;
        }
        let most = self.prompts.clamp(MAX_MISSING_CHOICES, MAX_MISSING_PROMPTS);
        self.prompts.saturating_mul(self.choices_per_prompt).min(most)
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
    #[derive(Deserialize)]
    struct RawFields<'a>(#[serde(borrow)] std::collections::HashMap<std::borrow::Cow<'a, str>, &'a RawValue>);
    let Ok(RawFields(fields)) = serde_json::from_slice::<RawFields<'_>>(body) else { return Map::new() };
    RECORDED_PARAMS.iter().filter_map(|name| recorded_param(name, fields.get(*name)?)).collect()
}

fn recorded_param(name: &str, value: &RawValue) -> Option<(String, Value)> {
    let value: Value = serde_json::from_str(value.get()).ok()?;
    (value.is_number() || value.is_boolean()).then(|| (name.to_owned(), value))
}

#[cfg(test)]
mod tests;
