//! What a recorded request asks for, read from its body without changing a byte of it.

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
    logprobs::AskedLogprobs,
};
use crate::{
    recording::trace::Endpoint,
    text::prompt::{BlockHasher, MediaHashes, may_hold_media},
};

/// Parameters that are written down: numbers and switches that shape an answer, never content.
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

/// What shapes log probabilities, besides the recorded `logprobs`.
const LOGPROB_FIELDS: [&str; 3] = ["top_logprobs", "prompt_logprobs", "logprob_token_ids"];

/// Choices that never spoke have records of their own up to so many, or one for each prompt: a few bytes may ask for
/// millions.
const MOST_SILENT: u32 = 128;

/// The request's parts that matter to a recorder, read in one pass. Raw parts borrow from the body, so that their place in
/// it is known.
#[derive(Debug, Default)]
pub(super) struct Asked<'a> {
    pub(super) model: Option<String>,
    pub(super) stream: Option<&'a RawValue>,
    pub(super) stream_options: Option<&'a RawValue>,
    pub(super) return_token_ids: Option<&'a RawValue>,
    pub(super) echo: Option<&'a RawValue>,
    pub(super) n: Option<&'a RawValue>,
    prompt: Option<&'a RawValue>,
    messages: Option<&'a RawValue>,
    /// A prompt as ids, of a request for tokens in and tokens out.
    token_ids: Option<&'a RawValue>,
    sampling_params: Option<&'a RawValue>,
    use_beam_search: Option<&'a RawValue>,
    /// The values of [`LOGPROB_FIELDS`].
    logprobs: [Option<&'a RawValue>; LOGPROB_FIELDS.len()],
    /// The values of [`RECORDED_PARAMS`].
    params: [Option<&'a RawValue>; RECORDED_PARAMS.len()],
}

impl<'de: 'a, 'a> Deserialize<'de> for Asked<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(Reading(PhantomData))
    }
}

struct Reading<'a>(PhantomData<Asked<'a>>);

impl<'de: 'a, 'a> Visitor<'de> for Reading<'a> {
    type Value = Asked<'a>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut fields: M) -> Result<Asked<'a>, M::Error> {
        #[derive(Deserialize)]
        struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
        let mut asked = Asked::default();
        let mut has_model = false;
        while let Some(Name(name)) = fields.next_key::<Name<'_>>()? {
            let param = RECORDED_PARAMS.iter().position(|known| *known == name);
            let slot = match name.as_ref() {
                "model" if !has_model => {
                    has_model = true;
                    asked.model = fields.next_value()?;
                    continue;
                }
                "model" => return Err(M::Error::duplicate_field("model")),
                "stream" => Some(&mut asked.stream),
                "stream_options" => Some(&mut asked.stream_options),
                "return_token_ids" => Some(&mut asked.return_token_ids),
                "echo" => Some(&mut asked.echo),
                "n" => Some(&mut asked.n),
                "prompt" => Some(&mut asked.prompt),
                "messages" => Some(&mut asked.messages),
                "token_ids" => Some(&mut asked.token_ids),
                "sampling_params" => Some(&mut asked.sampling_params),
                "use_beam_search" => Some(&mut asked.use_beam_search),
                name => {
                    let place = LOGPROB_FIELDS.iter().position(|known| *known == name);
                    place.and_then(|place| asked.logprobs.get_mut(place))
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
            if let Some(param) = param.and_then(|place| asked.params.get_mut(place)) {
                *param = Some(value);
            }
        }
        Ok(asked)
    }
}

/// `null` is as good as nothing.
fn given(value: &RawValue) -> Option<&RawValue> {
    (value.get() != "null").then_some(value)
}

impl<'a> Asked<'a> {
    /// Reads a body; `None` when it is not a JSON object (or names a field twice, which engines read differently).
    #[must_use]
    pub(super) fn read(body: &'a [u8]) -> Option<Self> {
        is_object(body).then(|| serde_json::from_slice(body).ok()).flatten()
    }

    /// Whether a stream was asked for in so many words.
    #[must_use]
    pub(super) fn streams(&self) -> bool {
        is(self.stream, "true")
    }

    /// Whether the client itself wants a usage event at the end of its stream.
    #[must_use]
    pub(super) fn wants_usage(&self) -> bool {
        self.stream_options.is_some_and(|options| options.get().contains("include_usage"))
    }

    /// Whether the answer is to repeat the prompt, or a chat's last message.
    #[must_use]
    pub(super) fn echoes(&self) -> bool {
        self.echo.is_some() && !is(self.echo, "false")
    }

    /// The prompt of a completion.
    pub(super) fn prompt(&self) -> Option<&'a RawValue> {
        self.prompt
    }

    /// What is written down of its parameters.
    fn params(&self) -> Map<String, Value> {
        let named = RECORDED_PARAMS.iter().zip(self.params);
        named.filter_map(|(name, value)| recorded_param(name, value?)).collect()
    }

    /// What is asked for of log probabilities.
    fn logprobs(&self, endpoint: Endpoint) -> AskedLogprobs {
        let names = LOGPROB_FIELDS.iter().zip(self.logprobs).chain(RECORDED_PARAMS.iter().zip(self.params));
        let field = |wanted: &str| names.clone().find(|(name, _)| **name == wanted)?.1;
        let wants_none = field("max_tokens").is_some_and(|most| most.get() == "0");
        let only_prompt = endpoint == Endpoint::Completions && self.echoes() && wants_none;
        let echoes = endpoint == Endpoint::Completions && self.echoes();
        AskedLogprobs { only_prompt, echoes, ..AskedLogprobs::read(endpoint, field) }
    }

    /// Hashes of the images, audio and video in its messages; `None` where there are none.
    #[must_use]
    pub(super) fn media(&self, hasher: &BlockHasher) -> Option<MediaHashes> {
        let messages = self.messages.map(RawValue::get).filter(|messages| may_hold_media(messages))?;
        hasher.hash_media(&serde_json::from_str::<Vec<Value>>(messages).ok()?)
    }

    /// How many choices one prompt gets.
    #[must_use]
    pub(super) fn choices_per_prompt(&self) -> u32 {
        self.n.and_then(|n| n.get().parse().ok()).unwrap_or(1).max(1)
    }

    /// The endpoint, where only the body tells which of two a request is for.
    fn endpoint(&self, called: Called<'_>) -> Endpoint {
        match called.path {
            INVOCATIONS if self.messages.is_some() => Endpoint::Chat,
            INVOCATIONS if self.prompt.is_some() => Endpoint::Completions,
            _ => called.endpoint,
        }
    }

    /// The parameters of a request that has them in an object of their own.
    fn sampling(&self, path: &str) -> Option<Self> {
        self.sampling_params.filter(|_| path == TOKENS).and_then(|params| Self::read(params.get().as_bytes()))
    }

    /// Whether a search picks the tokens, which no step streams or ends as it does otherwise.
    fn searches(&self) -> bool {
        self.use_beam_search.is_some() && !is(self.use_beam_search, "false")
    }

    /// Whether anything asks for log probabilities.
    fn wants_logprobs(&self) -> bool {
        let place = RECORDED_PARAMS.iter().position(|name| *name == "logprobs");
        let plain = place.and_then(|place| *self.params.get(place)?).and_then(given);
        plain.is_some() || self.logprobs.iter().any(Option::is_some)
    }

    /// How many prompts there are: more than one in a list of texts, or of lists of ids.
    #[must_use]
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

/// What is remembered of a request until its records are written.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct RequestFacts {
    pub(super) endpoint: Option<Endpoint>,
    pub(super) model: Option<String>,
    pub(super) stream: bool,
    /// Whether the client asked for usage, or may have.
    pub(super) wants_usage: bool,
    /// Prompts of a completion; 1 for all else.
    pub(super) prompts: u32,
    pub(super) choices_per_prompt: u32,
    pub(super) params: Map<String, Value>,
    pub(super) logprobs: AskedLogprobs,
    /// The request id that the client sent.
    pub(super) client_id: Option<String>,
    /// The path, where the endpoint does not tell it.
    pub(super) path: Option<String>,
    /// The prompt's ids, where they are what was sent.
    pub(super) prompt_ids: Option<Vec<u32>>,
    /// Hashes of a chat's images, audio and video.
    pub(super) media: Option<MediaHashes>,
    /// Whether the answer says more than ids stand for: that of a search, or tokens out with their log probabilities.
    pub(super) exceeds_ids: bool,
    /// Whether the answer begins with the last message of the chat, which no token of the output is of.
    pub(super) repeats_message: bool,
}

/// Takes token ids and gives token ids, whatever is asked for.
const TOKENS: &str = "/inference/v1/generate";
/// Takes chats and completions.
const INVOCATIONS: &str = "/invocations";

/// What was called.
#[derive(Debug, Clone, Copy)]
pub(super) struct Called<'a> {
    pub(super) endpoint: Endpoint,
    pub(super) path: &'a str,
}

impl RequestFacts {
    /// Takes the facts out of a request.
    #[must_use]
    pub(super) fn new(called: Called<'_>, headers: &HeaderMap, body: &[u8], asked: Option<&Asked<'_>>) -> Self {
        let id = headers.get("x-request-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let endpoint = asked.map_or(called.endpoint, |asked| asked.endpoint(called));
        let sampling = asked.and_then(|asked| asked.sampling(called.path));
        let shaped = sampling.as_ref().or(asked);
        Self {
            endpoint: Some(endpoint),
            path: (!called.is_told_by_endpoint()).then(|| called.path.to_owned()),
            model: asked.and_then(|asked| asked.model.clone()),
            stream: asked.is_some_and(Asked::streams),
            wants_usage: asked.is_none_or(Asked::wants_usage),
            prompts: asked.filter(|_| endpoint == Endpoint::Completions).map_or(1, Asked::prompts),
            choices_per_prompt: shaped.map_or(1, Asked::choices_per_prompt),
            params: shaped.map_or_else(|| recorded_params(body), Asked::params),
            logprobs: shaped.map(|asked| asked.logprobs(endpoint)).unwrap_or_default(),
            client_id: id,
            exceeds_ids: asked.is_some_and(Asked::searches) || sampling.as_ref().is_some_and(Asked::wants_logprobs),
            prompt_ids: asked.filter(|_| called.path == TOKENS).and_then(|asked| ids(asked.token_ids)),
            media: None,
            repeats_message: endpoint == Endpoint::Chat
                && asked.is_some_and(Asked::echoes)
                && repeats_last_message(body),
        }
    }
}

impl Called<'_> {
    fn is_told_by_endpoint(self) -> bool {
        self.endpoint != Endpoint::Other && self.path != TOKENS
    }
}

impl RequestFacts {
    /// Whether answers are OpenAI's choices, whose ids may be asked for.
    #[must_use]
    pub(super) fn has_choices(&self) -> bool {
        matches!(self.endpoint, None | Some(Endpoint::Chat | Endpoint::Completions))
    }

    /// Whether ids stand for its answer: `play` makes those of these endpoints by itself.
    #[must_use]
    pub(super) fn is_made_of_ids(&self) -> bool {
        self.endpoint.is_none_or(Endpoint::generates)
    }

    /// Whether ids may be asked for, where answers have them only then.
    #[must_use]
    pub(super) fn may_be_amended(&self) -> bool {
        self.has_choices() && self.path.as_deref() != Some(TOKENS)
    }

    /// Whether one choice is all that was asked for.
    #[must_use]
    pub(super) fn wants_one(&self) -> bool {
        self.prompts == 1 && self.choices_per_prompt == 1
    }

    /// How many choices an answer should have. Who asks for more than anybody gets is not believed.
    #[must_use]
    pub(super) fn choices(&self) -> u32 {
        if !self.has_choices() {
            return 1;
        }
        self.prompts.saturating_mul(self.choices_per_prompt).min(self.prompts.max(MOST_SILENT))
    }
}

/// The parameters of a body that could not be read otherwise.
fn recorded_params(body: &[u8]) -> Map<String, Value> {
    #[derive(Deserialize)]
    struct Fields<'a>(#[serde(borrow)] std::collections::HashMap<std::borrow::Cow<'a, str>, &'a RawValue>);
    let Ok(Fields(fields)) = serde_json::from_slice::<Fields<'_>>(body) else { return Map::new() };
    RECORDED_PARAMS.iter().filter_map(|name| recorded_param(name, fields.get(*name)?)).collect()
}

fn recorded_param(name: &str, value: &RawValue) -> Option<(String, Value)> {
    let value: Value = serde_json::from_str(value.get()).ok()?;
    (value.is_number() || value.is_boolean()).then(|| (name.to_owned(), value))
}

#[cfg(test)]
mod tests;
