//! The limit on a request's output.

/// Most output tokens of a request; at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxTokens {
    /// Set by the request.
    Asked(u32),
    /// Not set by the request: all that is left of the model's length.
    Left(u32),
}

impl MaxTokens {
    /// So many tokens less, where there are so many.
    #[must_use]
    pub fn less(self, tokens: u32) -> Self {
        match self {
            Self::Asked(most) => Self::Asked(most.saturating_sub(tokens)),
            Self::Left(most) => Self::Left(most.saturating_sub(tokens)),
        }
    }
}
