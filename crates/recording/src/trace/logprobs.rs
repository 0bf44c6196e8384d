//! Log probabilities as an engine sent them, in few bytes: one flat list for each token.
//!
//! Of an output token: its text, its log probability, then the other tokens with theirs, in the engine's order, such as
//! `["UPER",-11.9,".YES",-11.7]`. The text is null where the client had tokens spelled as ids, and another token is its
//! id then. Of a prompt's token: `[id,logprob,rank,text]` of itself and then of the others; null at the first one, of
//! which nothing is known. Numbers are kept digit for digit.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, SeqAccess, Visitor},
    ser::SerializeSeq,
};

/// Maximum number of tokens of one position: twice the vocabulary of any model.
const MOST_TOKENS: usize = 1 << 20;

/// Log probabilities of a choice's output.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logprobs {
    /// Ranks of which all tokens are given at each position, beside the token itself.
    pub top: u32,
    /// Ids that were given instead of the best ones (`logprob_token_ids`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<u32>,
    /// The prompt's tokens, where a completion repeated it without their ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prompt: Vec<TokenLogprobs>,
    /// The output's tokens, as many as there are.
    pub tokens: Vec<TokenLogprobs>,
}

/// One output token and the others that could have been.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenLogprobs {
    /// The token's text; `None` where only its id was sent.
    pub text: Option<String>,
    /// Its log probability; `None` where none was sent.
    pub logprob: Option<f64>,
    /// The others in the engine's order.
    pub others: Vec<(SpelledToken, f64)>,
}

/// A token as it was spelled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SpelledToken {
    /// By its id.
    Id(u32),
    /// By its text.
    Text(String),
}

/// Log probabilities of a prompt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptLogprobs {
    /// Ranks of which all tokens are given at each position, beside the token itself.
    pub top: u32,
    /// For each token of the prompt itself and the others.
    pub tokens: Vec<RankedLogprobs>,
}

/// The log probabilities of one prompt position: the token itself and then the others; empty where none were sent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RankedLogprobs(pub Vec<RankedLogprob>);

/// A token at one place of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct RankedLogprob {
    /// Its id.
    pub id: u32,
    /// Its log probability.
    pub logprob: f64,
    /// Its place among all tokens, from 1.
    pub rank: u32,
    /// Its text.
    pub text: Option<String>,
}

impl Serialize for TokenLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(2 + 2 * self.others.len()))?;
        list.serialize_element(&self.text)?;
        list.serialize_element(&self.logprob)?;
        for (token, logprob) in &self.others {
            list.serialize_element(token)?;
            list.serialize_element(logprob)?;
        }
        list.end()
    }
}

impl<'de> Deserialize<'de> for TokenLogprobs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TokenLogprobsVisitor;
        impl<'de> Visitor<'de> for TokenLogprobsVisitor {
            type Value = TokenLogprobs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token's text and log probability, then those of the others")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<TokenLogprobs, A::Error> {
                let text = next(&mut list)?;
                let logprob = next(&mut list)?;
                let mut others = Vec::new();
                while let Some(token) = list.next_element()? {
                    others.push((token, next(&mut list)?));
                    bounded(others.len())?;
                }
                Ok(TokenLogprobs { text, logprob, others })
            }
        }
        deserializer.deserialize_seq(TokenLogprobsVisitor)
    }
}

impl Serialize for RankedLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_empty() {
            return serializer.serialize_none();
        }
        let mut list = serializer.serialize_seq(Some(4 * self.0.len()))?;
        for RankedLogprob { id, logprob, rank, text } in &self.0 {
            list.serialize_element(id)?;
            list.serialize_element(logprob)?;
            list.serialize_element(rank)?;
            list.serialize_element(text)?;
        }
        list.end()
    }
}

impl<'de> Deserialize<'de> for RankedLogprobs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RankedLogprobsVisitor;
        impl<'de> Visitor<'de> for RankedLogprobsVisitor {
            type Value = RankedLogprobs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("null, or ids each with a log probability, a rank and a text")
            }

            fn visit_unit<E>(self) -> Result<RankedLogprobs, E> {
                Ok(RankedLogprobs::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<RankedLogprobs, A::Error> {
                let mut tokens = Vec::new();
                while let Some(id) = list.next_element()? {
                    let (logprob, rank, text) = (next(&mut list)?, next(&mut list)?, next(&mut list)?);
                    tokens.push(RankedLogprob { id, logprob, rank, text });
                    bounded(tokens.len())?;
                }
                Ok(RankedLogprobs(tokens))
            }
        }
        deserializer.deserialize_any(RankedLogprobsVisitor)
    }
}

fn next<'de, A: SeqAccess<'de>, T: Deserialize<'de>>(list: &mut A) -> Result<T, A::Error> {
    list.next_element()?.ok_or_else(|| A::Error::custom("a list of log probabilities ends in the middle of a token"))
}

fn bounded<E: serde::de::Error>(tokens: usize) -> Result<(), E> {
    if tokens > MOST_TOKENS {
        return Err(E::custom(format_args!("more than {MOST_TOKENS} tokens at one place")));
    }
    Ok(())
}

impl Logprobs {
    /// The log probabilities of a chat's or a completion's tokens, each value one event's or the whole answer's; `None` where
    /// one of them is of no known shape.
    #[must_use]
    pub fn of_wire<'a>(sent: impl IntoIterator<Item = &'a str>) -> Option<Vec<TokenLogprobs>> {
        let mut tokens = Vec::new();
        for json in sent {
            let Wire { content, tokens: texts, token_logprobs, top_logprobs } = serde_json::from_str(json).ok()?;
            if let Some(content) = content {
                tokens.extend(content.into_iter().map(ChatToken::token));
                continue;
            }
            let (texts, logprobs, top) = (texts?, token_logprobs?, top_logprobs?);
            if texts.len() != logprobs.len() || texts.len() != top.len() {
                return None;
            }
            let parts = texts.into_iter().zip(logprobs).zip(top);
            tokens.extend(parts.map(|((text, logprob), top)| completion_token(text, logprob, top)));
        }
        Some(tokens)
    }
}

impl PromptLogprobs {
    /// The log probabilities of a prompt; `None` where that is of no known shape.
    #[must_use]
    pub fn of_wire(json: &str, top: u32) -> Option<Self> {
        #[derive(Deserialize)]
        struct SentLogprob {
            logprob: f64,
            rank: u32,
            decoded_token: Option<String>,
        }
        let places: Vec<Option<Pairs<SentLogprob>>> = serde_json::from_str(json).ok()?;
        let mut tokens = Vec::with_capacity(places.len());
        for place in places {
            let ranked = place.map_or_else(Vec::new, |place| place.0).into_iter().map(|(id, sent)| {
                let SentLogprob { logprob, rank, decoded_token } = sent;
                Some(RankedLogprob { id: id.parse().ok()?, logprob, rank, text: decoded_token })
            });
            tokens.push(RankedLogprobs(ranked.collect::<Option<_>>()?));
        }
        Some(Self { top, tokens })
    }
}

/// A chat's list, or a completion's lists.
#[derive(Deserialize)]
struct Wire {
    content: Option<Vec<ChatToken>>,
    tokens: Option<Vec<String>>,
    token_logprobs: Option<Vec<Option<f64>>>,
    top_logprobs: Option<Vec<Option<Pairs<f64>>>>,
}

#[derive(Deserialize)]
struct ChatToken {
    token: String,
    logprob: f64,
    bytes: Option<Vec<u8>>,
    #[serde(default)]
    top_logprobs: Vec<ChatOther>,
}

#[derive(Deserialize)]
struct ChatOther {
    token: String,
    logprob: f64,
}

impl ChatToken {
    fn token(self) -> TokenLogprobs {
        let is_first = self.top_logprobs.first().is_some_and(|other| other.token == self.token);
        let others = self.top_logprobs.into_iter().skip(usize::from(is_first));
        let others = others.map(|other| (spelled(other.token), other.logprob)).collect();
        let text = match spelled(self.token) {
            SpelledToken::Text(text) => Some(text),
            // The bytes are the text's.
            SpelledToken::Id(_) => self.bytes.and_then(|bytes| String::from_utf8(bytes).ok()),
        };
        TokenLogprobs { text, logprob: Some(self.logprob), others }
    }
}

fn completion_token(text: String, logprob: Option<f64>, top: Option<Pairs<f64>>) -> TokenLogprobs {
    let others = top.map_or_else(Vec::new, |top| top.0).into_iter();
    // Another token with the same text took the entry's value.
    let others = others.filter(|(token, value)| *token != text || Some(*value) != logprob);
    let others = others.map(|(token, value)| (spelled(token), value)).collect();
    let text = match spelled(text) {
        SpelledToken::Text(text) => Some(text),
        SpelledToken::Id(_) => None,
    };
    TokenLogprobs { text, logprob, others }
}

/// A token by its id where it is spelled so (`token_id:5`).
fn spelled(token: String) -> SpelledToken {
    let id = token.strip_prefix("token_id:").and_then(|digits| digits.parse().ok());
    id.map_or(SpelledToken::Text(token), SpelledToken::Id)
}

/// An object's members in their order.
struct Pairs<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = Pairs<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Pairs<T>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Members(std::marker::PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compact(sent: &str) -> String {
        serde_json::to_string(&Logprobs::of_wire([sent]).unwrap()).unwrap()
    }

    #[test]
    fn a_chat_is_kept_in_few_bytes() {
        let sent = r#"{"content":[{"token":"UPER","logprob":-11.931215286254883,"bytes":[85,80,69,82],"top_logprobs":[{"token":"UPER","logprob":-11.931215286254883,"bytes":[85,80,69,82]},{"token":".YES","logprob":-1.1920928955078125e-7,"bytes":[46,89,69,83]}]}]}"#;
        assert_eq!(compact(sent), r#"[["UPER",-11.931215286254883,".YES",-1.1920928955078125e-7]]"#);
        let sent = r#"{"content":[{"token":"token_id:33604","logprob":-1.0,"bytes":[85],"top_logprobs":[{"token":"token_id:33604","logprob":-1.0,"bytes":[1]},{"token":"token_id:9","logprob":-9999.0,"bytes":[1]}]}]}"#;
        assert_eq!(compact(sent), r#"[["U",-1.0,9,-9999.0]]"#);
    }

    #[test]
    fn a_completion_is_kept_in_few_bytes() {
        let sent = r#"{"text_offset":[0,1,1],"token_logprobs":[null,-0.0,-2.5],"tokens":["A","b","c"],"top_logprobs":[null,{"b":-0.0,"d":-3.0},{"c":-7.0,"x":-1.0}]}"#;
        assert_eq!(compact(sent), r#"[["A",null],["b",-0.0,"d",-3.0],["c",-2.5,"c",-7.0,"x",-1.0]]"#);
    }

    #[test]
    fn a_prompt_is_kept_by_id() {
        let sent = r#"[null,{"3974":{"logprob":-11.9,"rank":16057,"decoded_token":" quick"},"5":{"logprob":-1e-7,"rank":1,"decoded_token":null}}]"#;
        let kept = PromptLogprobs::of_wire(sent, 1).unwrap();
        let json = serde_json::to_string(&kept).unwrap();
        assert_eq!(json, r#"{"top":1,"tokens":[null,[3974,-11.9,16057," quick",5,-1e-7,1,null]]}"#);
        assert_eq!(serde_json::from_str::<PromptLogprobs>(&json).unwrap(), kept);
    }

    #[test]
    fn what_was_written_is_read_and_anything_else_is_refused() {
        let json = r#"{"top":2,"named":[7],"prompt":[["a",null]],"tokens":[["b",-0.5,"c",-1.5],[null,-2.0,17,-3.25]]}"#;
        let read: Logprobs = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), json);
        assert_eq!(read.tokens[1].others, [(SpelledToken::Id(17), -3.25)]);
        for bad in [
            r#"{"top":1}"#,
            r#"{"top":-1,"tokens":[]}"#,
            r#"{"top":1,"tokens":[["a"]]}"#,
            r#"{"top":1,"tokens":[["a",-1.0,"b"]]}"#,
            r#"{"top":1,"tokens":[["a","b"]]}"#,
            r#"{"top":1,"tokens":[[1,-1.0]]}"#,
            r#"{"top":1,"tokens":[],"more":1}"#,
        ] {
            assert!(serde_json::from_str::<Logprobs>(bad).is_err(), "{bad}");
        }
        for bad in
            [r#"{"content":[{"token":"a"}]}"#, "null", r#"{"tokens":["a"],"token_logprobs":[],"top_logprobs":[]}"#]
        {
            assert_eq!(Logprobs::of_wire([bad]), None, "{bad}");
        }
    }
}
