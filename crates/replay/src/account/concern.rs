//! What can be asked to be a failure.

use std::str::FromStr;

/// Something that can be asked to be a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Concern {
    /// A request without a record.
    Miss,
    /// A request to a session whose cassette does not exist.
    NoCassette,
    /// A record without a request, of a session or a group that has begun.
    Unconsumed,
    /// A record that no session was served.
    UnconsumedAll,
    /// A record that was served again because no other was left.
    Exhausted,
    /// A record that answered another request than it was recorded for.
    Loose,
    /// An engine, a tokenizer, a tool or the structure of an answer that is not as it was recorded.
    Drift,
    /// A text of an answer that is not as it was recorded, where answers are compared.
    Text,
    /// A call of the wrapped command to another server, which was refused.
    Blocked,
    /// An answer with a placeholder, since no value was known for it.
    Placeholder,
}

impl Concern {
    /// The reason of a miss of this kind.
    pub(crate) const NO_CASSETTE: &str = "no_cassette";

    /// All of them.
    pub(super) const ALL: [Self; 10] = [
        Self::Miss,
        Self::NoCassette,
        Self::Unconsumed,
        Self::UnconsumedAll,
        Self::Exhausted,
        Self::Loose,
        Self::Drift,
        Self::Text,
        Self::Blocked,
        Self::Placeholder,
    ];

    /// Its name in flags and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Miss => "miss",
            Self::NoCassette => Self::NO_CASSETTE,
            Self::Unconsumed => "unconsumed",
            Self::UnconsumedAll => "unconsumed=all",
            Self::Exhausted => "exhausted",
            Self::Loose => "loose",
            Self::Drift => "drift",
            Self::Text => "text",
            Self::Blocked => "blocked",
            Self::Placeholder => "placeholder",
        }
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
