//! Prompts of text, for chats of which no request was recorded and for servers that take no token ids.
//!
//! A prompt is one message of words. Each block of the recorded prompt becomes words that its hash draws, about one word for a token, so prompts
//! that shared blocks share text from the beginning. The words are common ones, which vocabularies have as one token each with the
//! space before them; with a tokenizer they are its own, tried out.
//!
//! How many words a prompt of so many tokens has depends on the server: its template adds tokens, and its vocabulary may split words. A
//! [`Length`] has the number of tokens for none and for each word; it comes from the tokenizer, or from two requests before the run.
//!
//! Limits: the template's tokens after the message end what two prompts share, and those before it move the blocks, so a prompt may
//! share a block less or more than recorded. Lengths are as good as the measure: what is off is reported for each run.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use recording::trace::{Endpoint, Record};
use serde_json::{Map, Value, json};
use text::prompt::{SkipSpecial, Tokenizer};

/// Words that common vocabularies have as one token each, together with the space before them.
const WORDS: &str = "time year people way day man thing woman life child world school state family student group country problem hand part \
    place case week company system program question work government number night point home water room mother area money story fact \
    month lot right study book eye job word business issue side kind head house service friend father power hour game line end member \
    law car city community name president team minute idea kid body information back parent face others level office door health person \
    art war history party result change morning reason research girl guy moment air teacher force education";

/// Words of the two prompts by which lengths are measured.
pub(crate) const MEASURED: [u32; 2] = [16, 272];

/// Returns the endpoint to which the text of a record's prompt goes: its own; completions where that takes none.
pub(crate) fn endpoint_of(record: &Record) -> Endpoint {
    record.endpoint.filter(|endpoint| endpoint.generates()).unwrap_or(Endpoint::Completions)
}

/// Makes the body of a request for an answer of `output` tokens. The Messages API cannot forbid an earlier end.
pub(crate) fn body_of(endpoint: Endpoint, text: &str, output: u32, stream: bool) -> Map<String, Value> {
    let messages = json!([{"role": "user", "content": text}]);
    let body = match endpoint {
        Endpoint::Chat => json!({"messages": messages, "max_tokens": output, "ignore_eos": true, "stream": stream}),
        Endpoint::Responses => {
            json!({"input": text, "max_output_tokens": output, "ignore_eos": true, "store": false, "stream": stream})
        }
        Endpoint::Messages => json!({"messages": messages, "max_tokens": output, "stream": stream}),
        Endpoint::Completions | Endpoint::Embeddings | Endpoint::Other => {
            json!({"prompt": text, "max_tokens": output, "ignore_eos": true, "stream": stream})
        }
    };
    let Value::Object(mut fields) = body else { return Map::new() };
    if stream && endpoint.has_choices() {
        fields.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    fields
}

/// Number of tokens of a prompt of words at a server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Length {
    /// Tokens beside those of the words: of the template, of the begin of the text.
    pub fixed: f64,
    /// Tokens of a word.
    pub per_word: f64,
}

impl Default for Length {
    fn default() -> Self {
        Self { fixed: 0.0, per_word: 1.0 }
    }
}

impl Length {
    /// The length by two counts of prompts with [`MEASURED`] words; `None` where they are inconsistent.
    pub(crate) fn measured(counts: [u32; 2]) -> Option<Self> {
        let ([few, many], [few_tokens, many_tokens]) = (MEASURED.map(f64::from), counts.map(f64::from));
        let per_word = (many_tokens - few_tokens) / (many - few);
        (per_word > 0.0).then(|| Self { fixed: (few_tokens - per_word * few).max(0.0), per_word })
    }

    /// The number of words of a prompt of so many tokens; at least one.
    fn words(self, tokens: u32) -> usize {
        whole(((f64::from(tokens) - self.fixed) / self.per_word).round()).max(1)
    }
}

/// Makes prompts of text.
#[derive(Debug, Clone)]
pub struct PromptTexts {
    /// Each with the space before it.
    words: Vec<String>,
    /// By the endpoint and the name of the model at the server.
    lengths: BTreeMap<(Endpoint, String), Length>,
}

impl Default for PromptTexts {
    fn default() -> Self {
        Self { words: WORDS.split_whitespace().map(|word| format!(" {word}")).collect(), lengths: BTreeMap::new() }
    }
}

impl PromptTexts {
    pub(crate) fn set_length(&mut self, endpoint: Endpoint, model: &str, length: Length) {
        self.lengths.insert((endpoint, model.to_owned()), length);
    }

    /// Takes the words of a tokenizer, of one token each.
    pub(crate) fn with_words(mut self, tokenizer: &Tokenizer) -> Self {
        let words = tokenizer.words();
        let texts = words.next.iter().filter_map(|id| tokenizer.decode(&[*id], SkipSpecial::Skip).ok());
        let spaced: Vec<String> = texts.filter(|text| text.starts_with(' ') && text.trim().len() > 1).collect();
        if !spaced.is_empty() {
            self.words = spaced;
        }
        self
    }

    /// The length of prompts by a tokenizer; `None` where it has no template for chats.
    pub(crate) fn length_by(&self, tokenizer: &Tokenizer, endpoint: Endpoint, model: &str) -> Option<Length> {
        let count = |words: u32| {
            let text = self.text_of(&[(0, usize::try_from(words).unwrap_or_default())]);
            let ids = if endpoint == Endpoint::Completions {
                tokenizer.ids_of_completion(&json!(text))
            } else {
                let mut body = body_of(Endpoint::Chat, &text, 1, false);
                body.insert("model".to_owned(), json!(model));
                tokenizer.ids_of_chat(&body, &Map::new())
            };
            u32::try_from(ids?.len()).ok()
        };
        let [few, many] = MEASURED;
        Length::measured([count(few)?, count(many)?])
    }

    /// A prompt of so many words, to measure lengths with.
    pub(crate) fn measuring(&self, words: u32) -> String {
        self.text_of(&[(u64::from(words), usize::try_from(words).unwrap_or_default())])
    }

    /// The prompt of a record; `own` draws what no block hash does.
    pub(crate) fn prompt(&self, record: &Record, block_size: u32, model: &str, own: u64) -> String {
        let known = self.lengths.get(&(endpoint_of(record), model.to_owned()));
        let length = known.copied().unwrap_or_default();
        let words = length.words(record.prompt_tokens);
        let (mut parts, mut so_far, mut tokens) = (Vec::new(), 0, 0.0);
        for hash in record.block_hashes.iter() {
            tokens += f64::from(block_size);
            let until = whole((tokens / length.per_word).round()).min(words);
            parts.push((*hash, until - so_far));
            so_far = until;
        }
        parts.push((record.prompt_hash.unwrap_or(own), words - so_far));
        self.text_of(&parts)
    }

    /// The text of parts, each so many words that a seed draws.
    fn text_of(&self, parts: &[(u64, usize)]) -> String {
        let mut text = String::new();
        for (seed, count) in parts {
            let mut random = StdRng::seed_from_u64(*seed);
            for _ in 0..*count {
                let word = self.words.get(random.random_range(0..self.words.len().max(1)));
                text.push_str(word.map_or("", String::as_str));
            }
        }
        text.trim_start().to_owned()
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and no prompt is longer")]
fn whole(number: f64) -> usize {
    number.max(0.0) as usize
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn record(tokens: u32, hashes: &[u64], prompt_hash: u64) -> Record {
        let block_hashes = Arc::new(hashes.to_vec());
        Record { prompt_tokens: tokens, block_hashes, prompt_hash: Some(prompt_hash), ..Record::default() }
    }

    #[test]
    fn equal_blocks_are_equal_text_and_lengths_follow_the_measure() {
        let mut texts = PromptTexts::default();
        for (fixed, per_word) in [(0.0, 1.0), (7.0, 1.0), (11.0, 1.5)] {
            texts.set_length(Endpoint::Completions, "m", Length { fixed, per_word });
            let one = texts.prompt(&record(70, &[1, 2, 3, 4], 9), 16, "m", 0);
            let other = texts.prompt(&record(90, &[1, 2, 5, 6, 7], 8), 16, "m", 0);
            for (prompt, tokens) in [(&one, 70.0), (&other, 90.0)] {
                let words = u32::try_from(prompt.split(' ').count()).unwrap();
                let drift: f64 = fixed + per_word * f64::from(words) - tokens;
                assert!(drift.abs() <= per_word / 2.0, "{drift}");
            }
            let shared = one.split(' ').zip(other.split(' ')).take_while(|(one, other)| one == other).count();
            let blocks = whole((32.0 / per_word).round());
            assert!((blocks..blocks + 3).contains(&shared), "{shared}");
        }
        assert_eq!(texts.prompt(&record(3, &[], 1), 16, "m", 0).split(' ').count(), 1, "at least a word");
    }

    #[test]
    fn a_length_is_measured_by_two_prompts() {
        assert_eq!(Length::measured([16 + 9, 272 + 9]), Some(Length { fixed: 9.0, per_word: 1.0 }));
        assert_eq!(Length::measured([20, 20]), None);
        let [few, many] = MEASURED.map(|words| PromptTexts::default().measuring(words).split(' ').count());
        assert_eq!((few, many), (16, 272));
    }
}
