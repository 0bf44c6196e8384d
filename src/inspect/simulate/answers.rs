//! Answers in the prompts of later turns: whether what an engine computed for them is a part of these prompts.

use std::fmt;

use serde::Serialize;

use super::schedule::Arriving;

/// An answer in the prompt of the next turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answers {
    /// Its tokens are those that were sampled.
    #[default]
    Verbatim,
    /// Its tokens are others, as where its text is tokenized again or a template leaves its reasoning out.
    Changed,
}

/// Answers in the prompts of later turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct AnswersInPrompts {
    /// Those that came back verbatim, for the recorded engine had them in its cache.
    pub verbatim: u64,
    /// Those that did not, for it had what is before them and not them.
    pub changed: u64,
    /// Those of which the trace shows neither.
    pub unknown: u64,
    /// What was assumed of these.
    pub assumed: Answers,
}

impl fmt::Display for AnswersInPrompts {
    /// A line where there are any.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verbatim, changed, unknown, assumed } = *self;
        let assumed = match assumed {
            Answers::Verbatim => "verbatim",
            Answers::Changed => "changed",
        };
        let shown = format!("{verbatim} come back verbatim and {changed} changed, by the trace's cached tokens");
        match (verbatim + changed, unknown) {
            (0, 0) => Ok(()),
            (0, _) => {
                writeln!(f, "answers       {unknown} are assumed to come back {assumed} in later prompts (--answers)")
            }
            (_, 0) => writeln!(f, "answers       {shown}"),
            (..) => writeln!(f, "answers       {shown}; {unknown} are assumed to come back {assumed} (--answers)"),
        }
    }
}

impl Arriving {
    /// What the cached tokens of a prompt that goes on with this request show of its answer: where they reach into the answer it came
    /// back as it was; where the first block that was not cached has tokens of the answer, and only those that were computed, it did not.
    /// Otherwise blocks were evicted, or the two were on different engines. Tokens are cached in blocks of at most `unit` tokens.
    pub(super) fn shown(&self, cached: u32, unit: u32) -> Option<Answers> {
        let missed = cached.saturating_add(unit);
        // The last token was sampled, not computed.
        let computed = self.prompt_tokens.saturating_add(self.output_tokens).saturating_sub(1);
        if cached > self.prompt_tokens {
            Some(Answers::Verbatim)
        } else if missed > self.prompt_tokens && missed <= computed {
            Some(Answers::Changed)
        } else {
            None
        }
    }
}

pub(super) fn greatest_common_divisor(one: u32, other: u32) -> u32 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}
