//! Parameters about single tokens, checked against the vocabulary: the engine's last checks of the sampling
//! parameters, in its order.
//!
//! Deviation: where the model's vocabulary is not known, it is the tokenizer's; a model's may be padded to more.

use serde_json::Value;

use super::{Api, body::ValidBody, error::ApiError, python, values};

/// The most log probabilities per token that the engine gives by default.
const MOST_LOGPROBS: i32 = 20;

/// Limits of a server's ids and log probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VocabularyLimits {
    /// The number of the model's ids.
    pub vocabulary: u32,
    /// The most log probabilities of one token; -1 for all (vLLM's `--max-logprobs`).
    pub most_logprobs: i32,
}

impl VocabularyLimits {
    /// The engine's own limit for a model of so many ids.
    #[must_use]
    pub fn new(vocabulary: u32) -> Self {
        Self { vocabulary, most_logprobs: MOST_LOGPROBS }
    }

    fn most(self) -> i128 {
        if self.most_logprobs == -1 { self.vocabulary.into() } else { self.most_logprobs.into() }
    }
}

/// The most ids whose log probabilities may be asked for by name.
const MOST_LOGPROB_IDS: usize = 128;

/// The ids and counts that a request names.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct VocabularyUse {
    logprobs: Option<i128>,
    prompt_logprobs: Option<i128>,
    logprob_token_ids: Vec<i128>,
    biased: Vec<i128>,
    stop_token_ids: Vec<i128>,
    allowed_token_ids: Option<Vec<i128>>,
    /// The first id of a prompt that no 32 bits hold.
    prompt_beyond: Option<i128>,
    /// The log probabilities that a search with beams asks for: two for each.
    beams: Option<i128>,
    /// True where the request names the tokens of its answer.
    pub(super) replays: bool,
}

impl VocabularyUse {
    pub(super) fn read(api: Api, body: &ValidBody<'_>) -> Self {
        let ids = |name: &str| -> Option<Vec<i128>> {
            let items = body.get(name)?.as_array()?;
            Some(items.iter().filter_map(|item| values::int(item).ok()).collect())
        };
        let logprob_token_ids = ids("logprob_token_ids").unwrap_or_default();
        let beside = match api {
            Api::Chat => body.whole("top_logprobs"),
            Api::Completions => body.whole("logprobs"),
        };
        let requested = match api {
            Api::Chat => beside.filter(|_| python::truthy(body.get("logprobs"))),
            Api::Completions => beside,
        };
        let echoed = beside.filter(|_| python::truthy(body.get("echo")));
        let bias = body.object("logit_bias");
        Self {
            logprobs: requested.filter(|_| logprob_token_ids.is_empty()),
            prompt_logprobs: body.whole("prompt_logprobs").or(echoed),
            logprob_token_ids,
            biased: bias.into_iter().flatten().filter_map(|(key, _)| python::int(key)).collect(),
            stop_token_ids: ids("stop_token_ids").unwrap_or_default(),
            allowed_token_ids: ids("allowed_token_ids"),
            beams: body.flag("use_beam_search", false).then(|| body.whole("n").unwrap_or(1) * 2),
            prompt_beyond: body.get("prompt").and_then(beyond),
            replays: false,
        }
    }

    pub(super) fn check(&self, limits: VocabularyLimits) -> Result<(), ApiError> {
        let vocabulary = limits.vocabulary;
        if let Some(requested) = self.beams {
            return check_count("logprobs", "sample", Some(requested), limits);
        }
        check_count("logprobs", "sample", self.logprobs, limits)?;
        let named = self.logprob_token_ids.len();
        if named > MOST_LOGPROB_IDS {
            let message = format!(
                "Requested logprob_token_ids of length {named}, which is greater than max allowed: {MOST_LOGPROB_IDS}"
            );
            return Err(ApiError::parameter_value("logprob_token_ids", &message, &named.to_string()));
        }
        check_ids("logprob_token_ids", &self.logprob_token_ids, vocabulary)?;
        check_count("prompt_logprobs", "prompt", self.prompt_logprobs, limits)?;
        check_ids("logit_bias", &self.biased, vocabulary)?;
        check_ids("stop_token_ids", &self.stop_token_ids, vocabulary)?;
        self.check_allowed(vocabulary)?;
        if let Some(id) = self.prompt_beyond {
            return Err(ApiError::bad_request(format!("Token id {id} is out of vocabulary")));
        }
        if self.replays {
            return Err(ApiError::bad_request(
                "trace_decode_token_ids is set but trace replay is not enabled. Start the engine with \
                 --enable-trace-replay to use it.",
            ));
        }
        Ok(())
    }

    fn check_allowed(&self, vocabulary: u32) -> Result<(), ApiError> {
        let Some(allowed) = &self.allowed_token_ids else { return Ok(()) };
        let outside: Vec<i128> = allowed.iter().copied().filter(|id| is_outside(*id, vocabulary)).collect();
        let message = if allowed.is_empty() {
            "allowed_token_ids is not None and empty!"
        } else if outside.is_empty() {
            return Ok(());
        } else {
            "allowed_token_ids contains out-of-vocab token id!"
        };
        Err(ApiError::parameter_value("allowed_token_ids", message, &listed(&outside)))
    }
}

fn beyond(prompt: &Value) -> Option<i128> {
    let items = prompt.as_array()?;
    let ids = items.iter().filter_map(|item| values::int(item).ok()).filter(|id| *id > i128::from(u32::MAX));
    ids.max().or_else(|| items.iter().find_map(beyond))
}

fn is_outside(id: i128, vocabulary: u32) -> bool {
    !(0..i128::from(vocabulary)).contains(&id)
}

fn listed(ids: &[i128]) -> String {
    format!("{ids:?}")
}

fn check_count(name: &str, what: &str, count: Option<i128>, limits: VocabularyLimits) -> Result<(), ApiError> {
    let count = match count {
        Some(-1) => i128::from(limits.vocabulary),
        Some(count) => count,
        None => return Ok(()),
    };
    let most = limits.most();
    if count <= most {
        return Ok(());
    }
    let message = format!("Requested {what} logprobs of {count}, which is greater than max allowed: {most}");
    Err(ApiError::parameter_value(name, &message, &count.to_string()))
}

fn check_ids(name: &str, ids: &[i128], vocabulary: u32) -> Result<(), ApiError> {
    let outside: Vec<i128> = ids.iter().copied().filter(|id| is_outside(*id, vocabulary)).collect();
    if outside.is_empty() {
        return Ok(());
    }
    let shown = listed(&outside);
    let message =
        format!("token_id(s) {shown} in {name} contain out-of-vocab token ids. Vocabulary size: {vocabulary}");
    Err(ApiError::parameter_value(name, &message, &shown))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(api: Api, body: &Value) -> Option<String> {
        VocabularyUse::read(api, &ValidBody(body.as_object().unwrap()))
            .check(VocabularyLimits::new(100))
            .err()
            .map(|error| error.message)
    }

    #[test]
    fn counts_and_ids_are_held_against_the_vocabulary_in_the_engines_order() {
        for (api, body, message) in [
            (
                Api::Chat,
                json!({"logprobs": true, "top_logprobs": -1, "stop_token_ids": [100]}),
                "Requested sample logprobs of 100, which is greater than max allowed: 20 (parameter=logprobs, value=100)",
            ),
            (
                Api::Completions,
                json!({"logprobs": 21, "echo": true, "logprob_token_ids": [1]}),
                "Requested prompt logprobs of 21, which is greater than max allowed: 20 (parameter=prompt_logprobs, \
                 value=21)",
            ),
            (
                Api::Completions,
                json!({"stop_token_ids": [1, 100, -3]}),
                "token_id(s) [100, -3] in stop_token_ids contain out-of-vocab token ids. Vocabulary size: 100 \
                 (parameter=stop_token_ids, value=[100, -3])",
            ),
            (
                Api::Chat,
                json!({"logit_bias": {"7": 1, "500": 1}}),
                "token_id(s) [500] in logit_bias contain out-of-vocab token ids. Vocabulary size: 100 \
                 (parameter=logit_bias, value=[500])",
            ),
            (
                Api::Chat,
                json!({"allowed_token_ids": []}),
                "allowed_token_ids is not None and empty! (parameter=allowed_token_ids, value=[])",
            ),
            (
                Api::Completions,
                json!({"prompt": [[1], [5_000_000_000_u64, 6_000_000_000_u64], [7_000_000_000_u64]]}),
                "Token id 6000000000 is out of vocabulary",
            ),
        ] {
            assert_eq!(refused(api, &body).as_deref(), Some(message));
        }
        let fine = json!({"logprobs": 20, "prompt_logprobs": 0, "stop_token_ids": [99], "allowed_token_ids": [0]});
        assert_eq!(refused(Api::Completions, &fine), None);
    }
}
