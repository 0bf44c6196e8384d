//! Likeness of requests by the words of their texts, whatever else is in them: a question is closer to another question about the
//! same than to one of the same length.
//!
//! Words count by their first letters, so that `refund` and `refunds` are one; pairs of words count too. A request that is no
//! conversation, such as a call of a tool, has few words: its numbers, the names within its fields and any three letters in a row count
//! as well, so that `barr` is closer to `bar` than to `foo`. Limits: of each message the
//! first [`OF_MESSAGE`] bytes are read, and of all records together [`OF_ALL`]; roles, ids and tools do not count.

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use serde_json::Value;

use recording::canonical::{ChainLink, Identity};

/// Bytes of a message that are read.
const OF_MESSAGE: usize = 4 << 10;

/// Bytes that are read of a request, and of a record after what it shares with the request.
const OF_REQUEST: usize = 64 << 10;

/// Bytes that are read of all records.
const OF_ALL: usize = 16 << 20;

/// Numbers of shared messages for which the rest of the request is indexed.
const MOST_RESTS: usize = 64;

/// The letters of a word that count.
const LETTERS: usize = 5;

/// Weights of a short word, of a longer one, of a pair, and of three letters.
const SHORT: u64 = 1;
const LONG: u64 = 3;
const PAIR: u64 = 2;
const THREE: u64 = 2;

/// Fields of messages that hold no text.
const NO_TEXT: [&str; 6] = ["role", "type", "id", "tool_call_id", "call_id", "tool_use_id"];

/// Fields of bodies that hold no text of a conversation.
const NO_CONVERSATION: [&str; 4] = ["model", "tools", "functions", "response_format"];

/// Likeness of 1.
const WHOLE: u64 = 1_000_000;

/// Least likeness, of what two requests do not share, of requests that are alike.
const ALIKE: u64 = WHOLE * 15 / 100;

/// Features of a text with their weights.
type Features = HashMap<u64, u64>;

/// A request that records are compared with.
pub(super) struct Likeness {
    /// The features of each message of the request.
    messages: Vec<Features>,
    /// The features of what follows after so many messages.
    rests: HashMap<usize, Features>,
    /// Bytes that may still be read of records.
    left: usize,
}

impl Likeness {
    pub(super) fn new(received: &Identity) -> Self {
        let mut left = OF_REQUEST;
        let messages = texts(received, 0).map(|text| features(text, &mut left)).collect();
        Self { messages, rests: HashMap::new(), left: OF_ALL }
    }

    /// Returns how alike a record's request is that shares so many first messages, up to [`WHOLE`].
    pub(super) fn of(&mut self, recorded: &Identity, shared: usize) -> u64 {
        let common: u64 = self.messages.iter().take(shared).map(weight).sum();
        let (both, rest, other) = self.beyond(recorded, shared);
        let all = 2 * common + rest + other;
        (2 * (common + both)).saturating_mul(WHOLE).checked_div(all).unwrap_or(WHOLE)
    }

    /// Returns whether what a record does not share with the request is about the same, or one of them only goes on.
    pub(super) fn is_alike(&mut self, recorded: &Identity, shared: usize) -> bool {
        let (both, rest, other) = self.beyond(recorded, shared);
        (rest == 0 || other == 0) && shared > 0 || 2 * both * WHOLE >= ALIKE * (rest + other)
    }

    /// The weights of what the request and the record have in common after the shared messages, of the request there, and of the record.
    fn beyond(&mut self, recorded: &Identity, shared: usize) -> (u64, u64, u64) {
        if !self.rests.contains_key(&shared) && self.rests.len() < MOST_RESTS {
            let rest = self.messages.iter().skip(shared).flatten().map(|(word, weight)| (*word, *weight)).collect();
            self.rests.insert(shared, rest);
        }
        let Some(rest) = self.rests.get(&shared) else { return (0, 0, 0) };
        let mut budget = OF_REQUEST.min(self.left);
        let before = budget;
        let mut seen: HashSet<u64> = HashSet::new();
        let (mut both, mut other) = (0, 0);
        for text in texts(recorded, shared) {
            for (word, weight) in features(text, &mut budget) {
                if seen.insert(word) {
                    other += weight;
                    both += if rest.contains_key(&word) { weight } else { 0 };
                }
            }
        }
        self.left -= before - budget;
        (both, weight(rest), other)
    }
}

fn weight(features: &Features) -> u64 {
    features.values().sum()
}

/// The texts of a request after its first messages: of each further message, and of the fields where no message is a text.
fn texts(identity: &Identity, after: usize) -> impl Iterator<Item = Text<'_>> {
    let lead: Vec<&Value> = ["system", "instructions"].iter().filter_map(|name| identity.fields.get(*name)).collect();
    let single = ["input", "prompt"].iter().find_map(|name| identity.fields.get(*name).filter(|text| text.is_string()));
    let links = identity.chain.after(after).into_iter().enumerate();
    let of_link = move |(at, link): (usize, &'_ ChainLink)| match &link.value {
        Some(_) => None,
        None => lead.get(at + after).copied().or(single),
    };
    let listed = links.map(move |link| (link.1.value.as_ref(), of_link(link)));
    let listed = listed.filter_map(|(own, field)| own.or(field)).map(Text::Message);
    let fields = identity.chain.is_empty().then_some(Text::Fields(&identity.fields));
    listed.chain(fields)
}

/// A text, wherever it is in a value.
#[derive(Clone, Copy)]
enum Text<'a> {
    Message(&'a Value),
    Fields(&'a Value),
}

/// The features of a text, of which no more than the budget is read.
fn features(text: Text<'_>, budget: &mut usize) -> Features {
    let is_call = matches!(text, Text::Fields(_));
    let mut words = TextWords { features: Features::new(), last: None, left: OF_MESSAGE.min(*budget), is_call };
    let before = words.left;
    match text {
        Text::Message(value) => words.add(value),
        Text::Fields(Value::Object(fields)) => {
            let kept = fields.iter().filter(|(name, _)| !NO_CONVERSATION.contains(&name.as_str()));
            kept.for_each(|(_, value)| words.add(value));
        }
        Text::Fields(value) => words.add(value),
    }
    *budget -= before - words.left;
    words.features
}

/// The words of texts so far.
struct TextWords {
    features: Features,
    last: Option<u64>,
    left: usize,
    /// Numbers, names and letters count too.
    is_call: bool,
}

impl TextWords {
    fn add(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.add_text(text),
            Value::Array(items) => items.iter().for_each(|item| self.add(item)),
            Value::Object(fields) if self.is_call => {
                for (name, value) in fields {
                    self.add_text(name);
                    self.add(value);
                }
            }
            Value::Object(fields) => {
                let kept = fields.iter().filter(|(name, _)| !NO_TEXT.contains(&name.as_str()));
                kept.for_each(|(_, value)| self.add(value));
            }
            Value::Bool(_) | Value::Number(_) if self.is_call => self.add_text(&value.to_string()),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn add_text(&mut self, text: &str) {
        let end = text.floor_char_boundary(self.left);
        let read = text.get(..end).unwrap_or_default();
        self.left -= read.len();
        for word in read.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
            if word.is_ascii() {
                self.add_word(word.chars().take(LETTERS).flat_map(char::to_lowercase), word.len());
            } else {
                // Some languages put nothing between words.
                word.chars().for_each(|c| self.add_word(c.to_lowercase(), 1));
            }
            if self.is_call {
                self.add_letters(word);
            }
        }
    }

    /// Adds any three letters in a row, those at the ends with what is before and after.
    fn add_letters(&mut self, word: &str) {
        let within = word.chars().flat_map(char::to_lowercase);
        let letters: Vec<char> = std::iter::once(' ').chain(within).chain([' ']).collect();
        self.features.extend(letters.windows(3).map(|three| (hash_of(three), THREE)));
    }

    fn add_word(&mut self, letters: impl Iterator<Item = char>, length: usize) {
        let word = hash_of(letters.collect::<String>());
        self.features.insert(word, if length > 3 { LONG } else { SHORT });
        if let Some(last) = self.last.replace(word) {
            self.features.insert(hash_of((last, word)), PAIR);
        }
    }
}

fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
