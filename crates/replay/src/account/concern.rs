//! What can be asked to be a failure.

use std::str::FromStr;

base::named! {
    /// Something that can be asked to be a failure.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Concern {
        /// A request without a record.
        Miss = "miss",
        /// A request to a session whose cassette does not exist.
        NoCassette = "no_cassette",
        /// A record without a request, of a session or a group that has begun.
        Unconsumed = "unconsumed",
        /// A record that no session was served.
        UnconsumedAll = "unconsumed=all",
        /// A record that was served again because no other was left.
        Exhausted = "exhausted",
        /// A record that answered another request than it was recorded for.
        Loose = "loose",
        /// An engine, a tokenizer, a tool or the structure of an answer that is not as it was recorded.
        Drift = "drift",
        /// A text of an answer that is not as it was recorded, where answers are compared.
        Text = "text",
        /// A call of the wrapped command to another server, which was refused.
        Blocked = "blocked",
        /// An answer with a placeholder, since no value was known for it.
        Placeholder = "placeholder",
    }
}

/// A text that names no concern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is none of miss, no_cassette, unconsumed, unconsumed=all, exhausted, loose, drift, text, blocked, placeholder"
)]
pub struct UnknownConcern(String);

impl FromStr for Concern {
    type Err = UnknownConcern;

    fn from_str(text: &str) -> Result<Self, UnknownConcern> {
        Self::ALL
            .into_iter()
            .find(|concern| concern.name() == text.trim())
            .ok_or_else(|| UnknownConcern(text.to_owned()))
    }
}
