//! Log probabilities on the wire: what a request asks for, and the three shapes in which the engine tells it.
//!
//! A chat lists the token with its alternatives as objects, a completion has four parallel lists with the alternatives as
//! a dictionary, and those of the prompt are dictionaries by id. In every shape the token that was taken comes first and
//! the best ones follow by rank; one that is among the best is not told twice. Where the numbers come from is not decided
//! here.

use serde_json::{Map, Value, json};

use super::{Api, body::Body};

/// The least that the engine tells, and what stands for minus infinity.
const LEAST: f32 = -9999.0;

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogprobsAsked {
    /// Alternatives of each output token; `None` where nothing is told of them.
    pub sample: Option<usize>,
    /// Alternatives of each prompt token; `None` where nothing is told of them.
    pub prompt: Option<usize>,
    /// Ids to tell at each output token instead of the best ones.
    pub token_ids: Vec<u32>,
    /// How tokens are spelled.
    pub spelling: Spelling,
}

/// How a token is spelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spelling {
    /// As its text.
    #[default]
    Text,
    /// As `token_id:123` (`return_tokens_as_token_ids`).
    Id,
}

impl LogprobsAsked {
    /// `-1`, the whole vocabulary, is refused before it is counted.
    pub(super) fn read(api: Api, body: &Body<'_>) -> Self {
        let count = |name: &str| body.int(name).map(|count| usize::try_from(count).unwrap_or(0));
        let (sample, beside) = match api {
            Api::Chat => {
                let top = count("top_logprobs").unwrap_or(0);
                (body.flag("logprobs", false).then_some(top), Some(top))
            }
            Api::Completions => (count("logprobs"), count("logprobs")),
        };
        let echoed = beside.filter(|_| body.flag("echo", false));
        let spelled_as_ids = body.flag("return_tokens_as_token_ids", false);
        Self {
            sample,
            prompt: count("prompt_logprobs").or(echoed),
            token_ids: body.ids("logprob_token_ids"),
            spelling: if spelled_as_ids { Spelling::Id } else { Spelling::Text },
        }
    }
}

/// A token that could have been, and how likely it was.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// Its id.
    pub id: u32,
    /// Its text; empty where it only completes a character later.
    pub text: String,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// Its place among all tokens, from 1.
    pub rank: u32,
}

impl Scored {
    fn spelled(&self, spelling: Spelling) -> String {
        match spelling {
            Spelling::Text => self.text.clone(),
            Spelling::Id => format!("token_id:{}", self.id),
        }
    }

    fn value(&self) -> Value {
        Value::from(f64::from(self.logprob.max(LEAST)))
    }
}

/// One place in a sequence: its token, and the tokens that are told beside it, each id once.
#[derive(Debug, Clone, PartialEq)]
pub struct Position {
    /// The token itself.
    pub id: u32,
    /// Its text.
    pub text: String,
    /// The token first, then the others; empty at a prompt's first token, of which nothing can be said.
    pub scored: Vec<Scored>,
}

/// What a chat tells of these positions.
#[must_use]
pub fn chat_logprobs(positions: &[Position], asked: &LogprobsAsked) -> String {
    let content: Vec<Value> = positions.iter().map(|position| chat_position(position, asked)).collect();
    json!({ "content": content }).to_string()
}

fn chat_position(position: &Position, asked: &LogprobsAsked) -> Value {
    let shown = told(asked, 0).min(position.scored.len());
    let others = position.scored.iter().take(shown).map(|scored| {
        let token = scored.spelled(asked.spelling);
        json!({"token": token, "logprob": scored.value(), "bytes": token.as_bytes()})
    });
    let others: Vec<Value> = others.collect();
    let taken = position.scored.first();
    json!({
        "token": taken.map_or_else(|| position.text.clone(), |taken| taken.spelled(asked.spelling)),
        "logprob": taken.map_or_else(|| Value::from(f64::from(LEAST)), Scored::value),
        "bytes": position.text.as_bytes(),
        "top_logprobs": others,
    })
}

/// How many scored tokens of a position are told.
fn told(asked: &LogprobsAsked, beside_itself: usize) -> usize {
    if asked.token_ids.is_empty() { asked.sample.unwrap_or(0) + beside_itself } else { usize::MAX }
}

/// What a completion tells of positions whose first is `offset` characters from the start. The second value is the offset
/// behind them.
#[must_use]
pub fn completion_logprobs(positions: &[Position], asked: &LogprobsAsked, offset: usize) -> (String, usize) {
    let (mut offsets, mut logprobs, mut tokens, mut top) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut end = offset;
    for position in positions {
        let token = match asked.spelling {
            Spelling::Text => position.text.clone(),
            Spelling::Id => format!("token_id:{}", position.id),
        };
        offsets.push(Value::from(end));
        end += token.chars().count();
        tokens.push(Value::from(token));
        logprobs.push(position.scored.first().map_or(Value::Null, Scored::value));
        top.push(if position.scored.is_empty() { Value::Null } else { dictionary(position, asked) });
    }
    let lists = json!({"text_offset": offsets, "token_logprobs": logprobs, "tokens": tokens, "top_logprobs": top});
    (lists.to_string(), end)
}

/// Tokens of one spelling share an entry: the first one's place, the last one's value.
fn dictionary(position: &Position, asked: &LogprobsAsked) -> Value {
    let shown = position.scored.iter().take(told(asked, 1));
    Value::Object(shown.map(|scored| (scored.spelled(asked.spelling), scored.value())).collect::<Map<_, _>>())
}

/// What is told of a prompt's positions, by id.
#[must_use]
pub fn prompt_logprobs(positions: &[Position]) -> String {
    let position = |position: &Position| {
        let told = |scored: &Scored| {
            let value = json!({"logprob": scored.value(), "rank": scored.rank, "decoded_token": scored.text});
            (scored.id.to_string(), value)
        };
        let map: Map<String, Value> = position.scored.iter().map(told).collect();
        if map.is_empty() { Value::Null } else { Value::Object(map) }
    };
    Value::Array(positions.iter().map(position).collect()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(id: u32, text: &str, scored: &[(u32, &str, f32, u32)]) -> Position {
        let scored = scored
            .iter()
            .map(|(id, text, logprob, rank)| Scored {
                id: *id,
                text: (*text).to_owned(),
                logprob: *logprob,
                rank: *rank,
            })
            .collect();
        Position { id, text: text.to_owned(), scored }
    }

    fn asked(sample: usize, spelling: Spelling) -> LogprobsAsked {
        LogprobsAsked { sample: Some(sample), spelling, ..LogprobsAsked::default() }
    }

    // The expected texts are the engine's own, from the goldens `chat_logprobs_full`, `chat_tokens_as_ids_full`,
    // `comp_logprobs_full` and `prompt_logprobs_full`.

    #[test]
    fn a_chat_tells_the_token_and_the_best_ones() {
        let uper = [(33604, "UPER", -11.931_215, 5), (9, ".YES", -11.931_214, 1), (8, "no", -11.931_215, 2)];
        let positions = [position(33604, "UPER", &uper)];
        assert_eq!(
            chat_logprobs(&positions, &asked(2, Spelling::Text)),
            r#"{"content":[{"token":"UPER","logprob":-11.931215286254883,"bytes":[85,80,69,82],"top_logprobs":[{"token":"UPER","logprob":-11.931215286254883,"bytes":[85,80,69,82]},{"token":".YES","logprob":-11.931214332580566,"bytes":[46,89,69,83]}]}]}"#
        );
        assert_eq!(
            chat_logprobs(&positions, &asked(0, Spelling::Id)),
            r#"{"content":[{"token":"token_id:33604","logprob":-11.931215286254883,"bytes":[85,80,69,82],"top_logprobs":[]}]}"#
        );
    }

    #[test]
    fn a_completion_tells_one_more_and_where_each_token_is() {
        let first = [(1, "viewport", -11.931_215, 9), (2, "-events", -11.931_214, 1), (3, " btn", -11.931_214, 2)];
        let positions = [position(1, "viewport", &first), position(4, "ihat", &[(4, "ihat", -0.0, 1)])];
        let (text, end) = completion_logprobs(&positions, &asked(2, Spelling::Text), 3);
        assert_eq!(
            text,
            r#"{"text_offset":[3,11],"token_logprobs":[-11.931215286254883,-0.0],"tokens":["viewport","ihat"],"top_logprobs":[{"viewport":-11.931215286254883,"-events":-11.931214332580566," btn":-11.931214332580566},{"ihat":-0.0}]}"#
        );
        assert_eq!(end, 15);
        let (text, _) = completion_logprobs(&[position(7, "日", &[])], &asked(2, Spelling::Id), 0);
        assert_eq!(
            text,
            r#"{"text_offset":[0],"token_logprobs":[null],"tokens":["token_id:7"],"top_logprobs":[null]}"#
        );
    }

    #[test]
    fn a_prompt_is_told_by_id() {
        let quick = [(3974, " quick", -11.931_219, 16057), (58627, "={}\n", -11.931_214, 1)];
        let positions = [position(785, "The", &[]), position(3974, " quick", &quick)];
        assert_eq!(
            prompt_logprobs(&positions),
            r#"[null,{"3974":{"logprob":-11.931219100952148,"rank":16057,"decoded_token":" quick"},"58627":{"logprob":-11.931214332580566,"rank":1,"decoded_token":"={}\n"}}]"#
        );
    }
}
