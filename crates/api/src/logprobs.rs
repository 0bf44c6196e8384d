//! Log probabilities on the wire: what a request asks for, and the three shapes in which the engine sends it.
//!
//! A chat lists the token with its alternatives as objects, a completion has four parallel lists with the alternatives as
//! a dictionary, and those of the prompt are dictionaries by id. In every shape the token that was taken comes first and
//! the best ones follow by rank; one that is among the best is not sent twice. Where the numbers come from is not decided
//! here.

use std::borrow::Cow;

use super::{
    Api,
    body::ValidBody,
    escape::{put_escaped, put_number},
    python,
    values::is_set,
};

/// The lowest value that the engine sends; it stands for minus infinity.
const LEAST: f64 = -9999.0;

/// Log probabilities that a request asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogprobsOptions {
    /// Alternatives of each output token; `None` where none are sent.
    pub sample: Option<usize>,
    /// Alternatives of each prompt token; `None` where none are sent.
    pub prompt: Option<usize>,
    /// Ids to score at each output token instead of the best ones.
    pub token_ids: Vec<u32>,
    /// Spelling of tokens.
    pub spelling: Spelling,
    /// True where the request says how tokens are spelled; else the server's default counts.
    pub is_spelling_given: bool,
}

/// Spelling of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spelling {
    /// As its text.
    #[default]
    Text,
    /// As `token_id:123` (`return_tokens_as_token_ids`).
    Id,
    /// As a number, with its rank, in a chat's form: of tokens in and out.
    Number,
    /// As its text, in a chat's form, and shown among its alternatives in any case: of tokens in and text out.
    TextOut,
}

impl Spelling {
    /// Returns whether it is one of tokens that came in, whose answers have a chat's form.
    #[must_use]
    pub fn is_of_tokens_in(self) -> bool {
        matches!(self, Self::Number | Self::TextOut)
    }
}

impl LogprobsOptions {
    /// `-1`, the whole vocabulary, is refused before it is counted.
    pub(super) fn read(api: Api, body: &ValidBody<'_>) -> Self {
        let count = |name: &str| body.int(name).map(|count| usize::try_from(count).unwrap_or(0));
        let (sample, beside) = match api {
            Api::Chat => {
                let top = count("top_logprobs").unwrap_or(0);
                (body.flag("logprobs", false).then_some(top), Some(top))
            }
            Api::Completions => (count("logprobs"), count("logprobs")),
        };
        let echoed = beside.filter(|_| body.flag("echo", false));
        let spelled_as_ids = body.get("return_tokens_as_token_ids").filter(|value| !value.is_null());
        Self {
            sample,
            prompt: count("prompt_logprobs").or(echoed),
            token_ids: body.ids("logprob_token_ids"),
            spelling: if spelled_as_ids.is_some_and(is_set) { Spelling::Id } else { Spelling::Text },
            is_spelling_given: spelled_as_ids.is_some(),
        }
    }
}

/// Spelling of a number: the engine's answers and its events differ in small ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Digits {
    /// As Python spells it, in a whole answer: `-4.2e-05`.
    Whole,
    /// As its events spell it: `-0.000042`, `-4.2e-6`.
    Event,
}

impl Digits {
    fn put(self, out: &mut String, value: f64) {
        match self {
            Self::Whole => out.push_str(&python::float(value)),
            Self::Event => out.push_str(ryu::Buffer::new().format(value)),
        }
    }
}

/// A token that could have been, and how likely it was.
#[derive(Debug, Clone, PartialEq)]
pub struct CandidateToken {
    /// Its id.
    pub id: u32,
    /// Its text; empty where it only completes a character later.
    pub text: String,
    /// The natural logarithm of its probability.
    pub logprob: f64,
    /// Its place among all tokens, from 1.
    pub rank: u32,
}

impl CandidateToken {
    fn spelled(&self, spelling: Spelling) -> Cow<'_, str> {
        match spelling {
            Spelling::Text | Spelling::TextOut => Cow::Borrowed(&self.text),
            Spelling::Id | Spelling::Number => Cow::Owned(format!("token_id:{}", self.id)),
        }
    }

    fn value(&self) -> f64 {
        self.logprob.max(LEAST)
    }
}

/// One place in a sequence: its token, and the tokens that are sent beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct Position {
    /// The token itself.
    pub id: u32,
    /// Its text.
    pub text: String,
    /// The token first, then the others; empty at a prompt's first token, of which nothing is known.
    pub scored: Vec<CandidateToken>,
}

/// The log probabilities of a chat at these positions.
#[must_use]
pub fn chat_logprobs(positions: &[Position], requested: &LogprobsOptions, digits: Digits) -> String {
    let mut out = String::from("{\"content\":[");
    for (at, position) in positions.iter().enumerate() {
        put_comma(&mut out, at);
        put_chat_position(&mut out, position, requested, digits);
    }
    out + "]}"
}

fn put_chat_position(out: &mut String, position: &Position, requested: &LogprobsOptions, digits: Digits) {
    if requested.spelling == Spelling::Number {
        return put_numbers(out, position, requested, digits);
    }
    let taken = position.scored.first();
    let token = taken.map_or(Cow::Borrowed(position.text.as_str()), |taken| taken.spelled(requested.spelling));
    let value = taken.map_or(LEAST, CandidateToken::value);
    put_token(out, (&token, value), position.text.as_bytes(), digits);
    out.push_str(",\"top_logprobs\":[");
    let least = usize::from(requested.spelling == Spelling::TextOut);
    for (at, scored) in position.scored.iter().take(shown_count(requested, 0).max(least)).enumerate() {
        put_comma(out, at);
        let token = scored.spelled(requested.spelling);
        put_token(out, (&token, scored.value()), token.as_bytes(), digits);
        out.push('}');
    }
    out.push_str("]}");
}

/// A position whose tokens are numbers. The token itself is shown in any case.
fn put_numbers(out: &mut String, position: &Position, requested: &LogprobsOptions, digits: Digits) {
    put_number_of(out, position.id, position.scored.first(), digits);
    out.push_str(",\"top_logprobs\":[");
    for (at, scored) in position.scored.iter().take(shown_count(requested, 0).max(1)).enumerate() {
        put_comma(out, at);
        put_number_of(out, scored.id, Some(scored), digits);
        out.push('}');
    }
    out.push_str("]}");
}

/// The object of a token by its number, without its closing brace.
fn put_number_of(out: &mut String, id: u32, scored: Option<&CandidateToken>, digits: Digits) {
    out.push_str(&format!("{{\"token_id\":{id},\"logprob\":"));
    digits.put(out, scored.map_or(LEAST, CandidateToken::value));
    out.push_str(",\"rank\":");
    match scored.map_or(0, |scored| scored.rank) {
        0 => out.push_str("null"),
        rank => put_number(out, rank),
    }
}

/// A token's object without its closing brace.
fn put_token(out: &mut String, (token, value): (&str, f64), bytes: &[u8], digits: Digits) {
    out.push_str("{\"token\":");
    put_escaped(out, token);
    out.push_str(",\"logprob\":");
    digits.put(out, value);
    out.push_str(",\"bytes\":[");
    for (at, byte) in bytes.iter().enumerate() {
        put_comma(out, at);
        put_number(out, u32::from(*byte));
    }
    out.push(']');
}

fn put_comma(out: &mut String, at: usize) {
    if at > 0 {
        out.push(',');
    }
}

/// Number of a position's scored tokens that are sent.
fn shown_count(requested: &LogprobsOptions, beside_itself: usize) -> usize {
    if requested.token_ids.is_empty() { requested.sample.unwrap_or(0) + beside_itself } else { usize::MAX }
}

/// The log probabilities of a completion at positions whose first is `offset` characters from the start. The second value is the offset
/// behind them.
#[must_use]
pub fn completion_logprobs(
    positions: &[Position],
    requested: &LogprobsOptions,
    offset: usize,
    digits: Digits,
) -> (String, usize) {
    let mut lists = <[String; 4]>::default();
    let end = put_completion_positions(&mut lists, positions, requested, (offset, digits));
    (completion_json(&lists), end)
}

/// Appends to the four lists of a completion, and returns the offset behind the last position.
fn put_completion_positions(
    [offsets, logprobs, tokens, top]: &mut [String; 4],
    positions: &[Position],
    requested: &LogprobsOptions,
    (offset, digits): (usize, Digits),
) -> usize {
    let mut end = offset;
    for position in positions {
        let at = offsets.len();
        [&mut *offsets, logprobs, tokens, top].into_iter().for_each(|list| put_comma(list, at));
        let token = match requested.spelling {
            Spelling::Text | Spelling::TextOut => Cow::Borrowed(position.text.as_str()),
            Spelling::Id | Spelling::Number => Cow::Owned(format!("token_id:{}", position.id)),
        };
        offsets.push_str(&end.to_string());
        end += token.chars().count();
        put_escaped(tokens, &token);
        match position.scored.first() {
            Some(taken) => digits.put(logprobs, taken.value()),
            None => logprobs.push_str("null"),
        }
        put_dictionary(top, position, requested, digits);
    }
    end
}

/// The log probabilities of a whole answer's choice, spelled position by position as they come.
#[derive(Debug, Default)]
pub struct WholeLogprobs {
    /// For a chat the first of them is its list; for a completion they are its four lists.
    lists: [String; 4],
    /// Characters so far.
    end: usize,
}

impl WholeLogprobs {
    /// Adds positions, and returns how many bytes they took.
    pub fn push(&mut self, api: Api, positions: &[Position], requested: &LogprobsOptions) -> usize {
        let before = self.size();
        match api {
            Api::Chat => {
                let [content, ..] = &mut self.lists;
                for position in positions {
                    put_comma(content, content.len());
                    put_chat_position(content, position, requested, Digits::Whole);
                }
            }
            Api::Completions => {
                self.end = put_completion_positions(&mut self.lists, positions, requested, (self.end, Digits::Whole));
            }
        }
        self.size() - before
    }

    fn size(&self) -> usize {
        self.lists.iter().map(String::len).sum()
    }

    /// The JSON of all of them.
    #[must_use]
    pub fn finish(self, api: Api) -> String {
        match (api, &self.lists) {
            (Api::Chat, [content, ..]) => ["{\"content\":[", content, "]}"].concat(),
            (Api::Completions, lists) => completion_json(lists),
        }
    }
}

fn completion_json([offsets, logprobs, tokens, top]: &[String; 4]) -> String {
    let names = ["{\"text_offset\":[", "],\"token_logprobs\":[", "],\"tokens\":[", "],\"top_logprobs\":["];
    let [first, second, third, fourth] = names;
    [first, offsets, second, logprobs, third, tokens, fourth, top, "]}"].concat()
}

/// Tokens of one spelling share an entry: the first one's place, the last one's value.
fn put_dictionary(out: &mut String, position: &Position, requested: &LogprobsOptions, digits: Digits) {
    let Some(taken) = position.scored.first() else { return out.push_str("null") };
    // A recorded value of another token that shares the taken one's entry is no further entry.
    let is_shared = position.scored.get(1).is_some_and(|second| second.id == taken.id);
    let shown = position.scored.iter().take(shown_count(requested, 1).saturating_add(usize::from(is_shared)));
    let mut entries: Vec<(Cow<'_, str>, f64)> = Vec::with_capacity(shown.len());
    for scored in shown {
        let token = scored.spelled(requested.spelling);
        match entries.iter_mut().find(|(known, _)| *known == token) {
            Some((_, value)) => *value = scored.value(),
            None => entries.push((token, scored.value())),
        }
    }
    out.push('{');
    for (at, (token, value)) in entries.iter().enumerate() {
        put_comma(out, at);
        put_escaped(out, token);
        out.push(':');
        digits.put(out, *value);
    }
    out.push('}');
}

/// The log probabilities of a prompt's positions, by id; only whole answers have them.
#[must_use]
pub fn prompt_logprobs(positions: &[Position]) -> String {
    let mut out = String::from("[");
    for (at, position) in positions.iter().enumerate() {
        put_comma(&mut out, at);
        if position.scored.is_empty() {
            out.push_str("null");
            continue;
        }
        out.push('{');
        for (at, scored) in position.scored.iter().enumerate() {
            put_comma(&mut out, at);
            out.push_str(&format!("\"{}\":{{\"logprob\":", scored.id));
            Digits::Whole.put(&mut out, scored.value());
            out.push_str(&format!(",\"rank\":{},\"decoded_token\":", scored.rank));
            put_escaped(&mut out, &scored.text);
            out.push('}');
        }
        out.push('}');
    }
    out + "]"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(id: u32, text: &str, scored: &[(u32, &str, f32, u32)]) -> Position {
        let scored = scored
            .iter()
            .map(|(id, text, logprob, rank)| CandidateToken {
                id: *id,
                text: (*text).to_owned(),
                logprob: f64::from(*logprob),
                rank: *rank,
            })
            .collect();
        Position { id, text: text.to_owned(), scored }
    }

    fn requested(sample: usize, spelling: Spelling) -> LogprobsOptions {
        LogprobsOptions { sample: Some(sample), spelling, ..LogprobsOptions::default() }
    }

    // The expected texts are the engine's own, from the goldens `chat_logprobs_full`, `chat_tokens_as_ids_full`,
    // `comp_logprobs_full` and `prompt_logprobs_full`.

    #[test]
    fn a_chat_has_the_token_and_the_best_ones() {
        let uper = [(33604, "UPER", -11.931_215, 5), (9, ".YES", -11.931_214, 1), (8, "no", -11.931_215, 2)];
        let positions = [position(33604, "UPER", &uper)];
        assert_eq!(
            chat_logprobs(&positions, &requested(2, Spelling::Text), Digits::Whole),
            r#"{"content":[{"token":"UPER","logprob":-11.931215286254883,"bytes":[85,80,69,82],"top_logprobs":[{"token":"UPER","logprob":-11.931215286254883,"bytes":[85,80,69,82]},{"token":".YES","logprob":-11.931214332580566,"bytes":[46,89,69,83]}]}]}"#
        );
        assert_eq!(
            chat_logprobs(&positions, &requested(0, Spelling::Id), Digits::Event),
            r#"{"content":[{"token":"token_id:33604","logprob":-11.931215286254883,"bytes":[85,80,69,82],"top_logprobs":[]}]}"#
        );
    }

    #[test]
    fn a_completion_has_one_more_and_the_offset_of_each_token() {
        let first = [(1, "viewport", -11.931_215, 9), (2, "-events", -11.931_214, 1), (3, " btn", -11.931_214, 2)];
        let positions = [position(1, "viewport", &first), position(4, "ihat", &[(4, "ihat", -0.0, 1)])];
        let (text, end) = completion_logprobs(&positions, &requested(2, Spelling::Text), 3, Digits::Event);
        assert_eq!(
            text,
            r#"{"text_offset":[3,11],"token_logprobs":[-11.931215286254883,-0.0],"tokens":["viewport","ihat"],"top_logprobs":[{"viewport":-11.931215286254883,"-events":-11.931214332580566," btn":-11.931214332580566},{"ihat":-0.0}]}"#
        );
        assert_eq!(end, 15);
        let (text, _) = completion_logprobs(&[position(7, "日", &[])], &requested(2, Spelling::Id), 0, Digits::Whole);
        assert_eq!(
            text,
            r#"{"text_offset":[0],"token_logprobs":[null],"tokens":["token_id:7"],"top_logprobs":[null]}"#
        );
    }

    #[test]
    fn prompt_logprobs_are_keyed_by_id() {
        let quick = [(3974, " quick", -11.931_219, 16057), (58627, "={}\n", -11.931_214, 1)];
        let positions = [position(785, "The", &[]), position(3974, " quick", &quick)];
        assert_eq!(
            prompt_logprobs(&positions),
            r#"[null,{"3974":{"logprob":-11.931219100952148,"rank":16057,"decoded_token":" quick"},"58627":{"logprob":-11.931214332580566,"rank":1,"decoded_token":"={}\n"}}]"#
        );
    }

    // As vLLM's own libraries spell them: `json.dumps`, and `model_dump_json` of a float.
    #[test]
    fn small_numbers_are_spelled_as_answers_and_events_spell_them() {
        for (value, whole, event) in [
            (-4.2e-5, "-4.2e-05", "-0.000042"),
            (-1e-5, "-1e-05", "-0.00001"),
            (-0.00012345, "-0.00012345", "-0.00012345"),
            (-1.1920928955078125e-7, "-1.1920928955078125e-07", "-1.1920928955078125e-7"),
            (-3.0994415283203125e-6, "-3.0994415283203125e-06", "-3.0994415283203125e-6"),
            (-0.0, "-0.0", "-0.0"),
            (-11.931_228_637_695_312, "-11.931228637695312", "-11.931228637695312"),
            (-9999.0, "-9999.0", "-9999.0"),
            (-11.931215286254883, "-11.931215286254883", "-11.931215286254883"),
        ] {
            let spelled = |digits: Digits| {
                let mut out = String::new();
                digits.put(&mut out, value);
                out
            };
            assert_eq!((spelled(Digits::Whole).as_str(), spelled(Digits::Event).as_str()), (whole, event));
        }
    }
}
