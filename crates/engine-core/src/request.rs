//! What a front end sends: `EngineCoreRequest` and `SamplingParams`.

use crate::{MessageError, layout::VersionFamily, msgpack::MsgpackValue};

/// First frame of a message: what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestType {
    /// An [`EngineCoreRequest`].
    Add,
    /// A list of request ids.
    Abort,
    /// A wave of data parallel ranks begins.
    StartDpWave,
    /// A [`UtilityCall`](crate::utility::UtilityCall).
    Utility,
}

impl RequestType {
    /// Reads the first frame; `None` where it is another one.
    #[must_use]
    pub fn read(frame: &[u8]) -> Option<Self> {
        match frame {
            [0] => Some(Self::Add),
            [1] => Some(Self::Abort),
            [2] => Some(Self::StartDpWave),
            [3] => Some(Self::Utility),
            _ => None,
        }
    }
}

/// Name of the struct in vLLM.
const REQUEST: &str = "EngineCoreRequest";

/// A request, with what is read of it.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineCoreRequest {
    /// Versions that write it so; the newest of those that are possible.
    pub family: VersionFamily,
    /// Name of the request within the engine.
    pub request_id: String,
    /// The prompt; `None` where it is given as embeddings.
    pub prompt_token_ids: Option<Vec<u32>>,
    /// How to sample; `None` for a pooling request.
    pub sampling_params: Option<SamplingParams>,
    /// Whether it is a pooling request.
    pub is_pooling: bool,
    /// Seconds since 1970.
    pub arrival_time: f64,
    /// Name, number and path of the adapter.
    pub lora_request: Option<LoraName>,
    /// Salt of its blocks' hashes.
    pub cache_salt: Option<String>,
    /// The client that waits for it.
    pub client_index: usize,
    /// Smaller ones come first.
    pub priority: i64,
    /// Name of the request at the front end.
    pub external_req_id: Option<String>,
    /// Name of its session.
    pub session_id: Option<String>,
    /// The rank that its client names.
    pub data_parallel_rank: Option<usize>,
    /// Why it cannot be served, where it holds what is not read: pickled values, or a prompt as embeddings.
    pub refused: Option<MessageError>,
}

/// `LoRARequest`, as far as versions agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoraName {
    /// Its name.
    pub lora_name: String,
    /// Its number, from 1.
    pub lora_int_id: u64,
    /// Where it is.
    pub lora_path: String,
}

impl LoraName {
    /// Reads a `LoRARequest`; `None` where it is none.
    #[must_use]
    pub fn read(value: &MsgpackValue) -> Option<Self> {
        let [name, id, path, ..] = value.as_array()? else { return None };
        let (lora_name, lora_path) = (name.as_str()?.to_owned(), path.as_str().unwrap_or_default().to_owned());
        Some(Self { lora_name, lora_int_id: id.as_u64()?, lora_path })
    }
}

impl EngineCoreRequest {
    /// Reads the frame after the type. Frames that follow hold tensors, which are not read.
    ///
    /// # Errors
    /// Where it is no request of a known version.
    pub fn read(bytes: &[u8]) -> Result<Self, MessageError> {
        let value = MsgpackValue::read(bytes).map_err(|source| MessageError::Msgpack(REQUEST, source))?;
        let items = value.as_array().ok_or(wrong("fields", "a list"))?;
        let has_eos = !matches!(items.get(5), Some(MsgpackValue::Float(_)));
        let family = VersionFamily::of_request(items.len(), has_eos).ok_or(MessageError::Layout(items.len()))?;
        Self::of_fields(family, &PositionalFields { family, items })
    }

    fn of_fields(family: VersionFamily, fields: &PositionalFields<'_>) -> Result<Self, MessageError> {
        let (sampling, pooling) = (fields.get("sampling_params"), fields.get("pooling_params"));
        Ok(Self {
            family,
            request_id: fields.text("request_id").ok_or(wrong("request_id", "a text"))?,
            prompt_token_ids: fields.get("prompt_token_ids").map(token_ids).transpose()?,
            sampling_params: sampling.map(|value| SamplingParams { value: value.clone() }),
            is_pooling: pooling.is_some(),
            arrival_time: fields.get("arrival_time").and_then(MsgpackValue::as_f64).unwrap_or_default(),
            lora_request: match fields.get("lora_request") {
                Some(value) => Some(LoraName::read(value).ok_or(wrong("lora_request", "name, number and path"))?),
                None => None,
            },
            cache_salt: fields.text("cache_salt"),
            client_index: fields.index("client_index").unwrap_or(0),
            priority: fields.get("priority").and_then(MsgpackValue::as_i64).unwrap_or(0),
            external_req_id: fields.text("external_req_id"),
            session_id: fields.text("session_id"),
            data_parallel_rank: fields.index("data_parallel_rank"),
            refused: fields.refused(),
        })
    }
}

struct PositionalFields<'a> {
    family: VersionFamily,
    items: &'a [MsgpackValue],
}

impl<'a> PositionalFields<'a> {
    /// A field that is there and not `None`.
    fn get(&self, name: &str) -> Option<&'a MsgpackValue> {
        let at = self.family.request_fields().position(|field| field == name)?;
        self.items.get(at).filter(|value| !value.is_nil())
    }

    fn text(&self, name: &str) -> Option<String> {
        self.get(name).and_then(MsgpackValue::as_str).map(str::to_owned)
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.get(name)?.as_u64().and_then(|index| usize::try_from(index).ok())
    }

    /// What is not read of it, in words.
    fn refused(&self) -> Option<MessageError> {
        let pickled = self.family.request_fields().zip(self.items).find(|(_, value)| has_pickle(value));
        if let Some((field, _)) = pickled {
            let reason = "pickled values are not read; unset VLLM_ALLOW_INSECURE_SERIALIZATION at the front end";
            return Some(MessageError::Refused { field, reason });
        }
        let (field, reason) = ("prompt_embeds", "prompts as embeddings are not read; send token ids or text");
        self.get(field).map(|_| MessageError::Refused { field, reason })
    }
}

fn wrong(field: &'static str, wanted: &'static str) -> MessageError {
    MessageError::Field { message: REQUEST, field, wanted }
}

fn token_ids(value: &MsgpackValue) -> Result<Vec<u32>, MessageError> {
    let id = |value: &MsgpackValue| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = value.as_array().and_then(|items| items.iter().map(id).collect());
    ids.ok_or(wrong("prompt_token_ids", "a list of token ids"))
}

fn has_pickle(value: &MsgpackValue) -> bool {
    match value {
        MsgpackValue::Ext(kind, _) => matches!(kind, 1 | 2),
        MsgpackValue::Array(items) => items.iter().any(has_pickle),
        MsgpackValue::Map(fields) => fields.iter().any(|(_, value)| has_pickle(value)),
        _ => false,
    }
}

/// The id of a request in a form that is not known: it is the first field of every version.
#[must_use]
pub fn id_of_unknown(bytes: &[u8]) -> Option<String> {
    MsgpackValue::read(bytes).ok()?.as_array()?.first()?.as_str().map(str::to_owned)
}

/// Returns the place of a request among those that the front end made of one (`n`), and the front end's name of that one; `external` is the
/// request's own [`external_req_id`](EngineCoreRequest::external_req_id).
#[must_use]
pub fn client_request(id: &str, external: Option<&str>) -> (Option<u32>, String) {
    let numbered = id.split_once('_').filter(|(index, _)| index.bytes().all(|digit| digit.is_ascii_digit()));
    let numbered = numbered.and_then(|(index, rest)| Some((Some(index.parse::<u32>().ok()?), rest)));
    let (index, rest) = numbered.unwrap_or((None, id));
    // The front end appends eight random digits to each id.
    let plain = match rest.rsplit_once('-') {
        Some((plain, random)) if random.len() == 8 && random.bytes().all(|digit| digit.is_ascii_hexdigit()) => plain,
        _ => rest,
    };
    let external = external.filter(|external| !external.is_empty() && index.is_none());
    (index, external.unwrap_or(plain).to_owned())
}

/// Reads the ids of an ABORT.
///
/// # Errors
/// Where it is no list of texts.
pub fn aborted(bytes: &[u8]) -> Result<Vec<String>, MessageError> {
    let message = "ABORT";
    let value = MsgpackValue::read(bytes).map_err(|source| MessageError::Msgpack(message, source))?;
    let ids = value.as_array().and_then(|ids| ids.iter().map(|id| id.as_str().map(str::to_owned)).collect());
    ids.ok_or(MessageError::Field { message, field: "request_ids", wanted: "a list of texts" })
}

/// `SamplingParams`: a map without what has its default.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// All of it, under the names of vLLM's Python.
    pub value: MsgpackValue,
}

impl SamplingParams {
    /// Defaults, which messages leave out, of what every output follows.
    pub const DEFAULTS: &[(&str, MsgpackValue)] = &[
        ("max_tokens", MsgpackValue::Uint(16)),
        ("temperature", MsgpackValue::Float(1.0)),
        ("top_p", MsgpackValue::Float(1.0)),
    ];

    /// A parameter that is not `None`, or its default.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&MsgpackValue> {
        let default = || Self::DEFAULTS.iter().find(|(of, _)| *of == name).map(|(_, default)| default);
        self.value.get(name).or_else(default).filter(|value| !value.is_nil())
    }

    /// A whole number, or its default.
    #[must_use]
    pub fn number(&self, name: &str, default: u64) -> u64 {
        self.get(name).and_then(MsgpackValue::as_u64).unwrap_or(default)
    }

    /// Tokens of the output.
    #[must_use]
    pub fn max_tokens(&self) -> usize {
        usize::try_from(self.number("max_tokens", u64::MAX)).unwrap_or(usize::MAX)
    }

    /// Number of alternatives for each token, where log probabilities are wanted: `logprobs` or `prompt_logprobs`. -1 is all.
    #[must_use]
    pub fn logprobs(&self, name: &str) -> Option<i64> {
        self.get(name).and_then(MsgpackValue::as_i64)
    }

    /// Whether a token ends the output beside those of `stop_token_ids`; `None` with `ignore_eos`.
    #[must_use]
    pub fn eos_token_id(&self) -> Option<u32> {
        let id = self.get("_eos_token_id").and_then(MsgpackValue::as_u64);
        id.and_then(|id| u32::try_from(id).ok())
    }

    /// A list of ids: `stop_token_ids`, which end the output and are named in it, or `logprob_token_ids`.
    #[must_use]
    pub fn ids(&self, name: &str) -> Vec<u32> {
        let ids = self.get(name).and_then(MsgpackValue::as_array).unwrap_or_default();
        ids.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect()
    }
}

#[cfg(test)]
mod tests;
