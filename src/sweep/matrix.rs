//! The matrix: where the canary stands, in which form, cut how, on which endpoint, streamed or not.

use std::fmt;

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};
use serde::{Serialize, Serializer};

use super::canary::Canary;
use crate::api::Endpoint;

/// Cuts that are drawn beside those at every place.
const DRAWN: u64 = 4;

base::named! {
    /// Field of an answer that has the canary.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum CanaryField {
        /// The text for the user.
        Content = "content",
        /// What precedes it.
        Reasoning = "reasoning",
        /// Arguments of a tool call.
        Arguments = "arguments",
        /// A refusal.
        Refusal = "refusal",
        /// The text for the user, and the log probabilities of its tokens.
        Logprobs = "logprobs",
        /// The text of the second choice.
        Choice = "choice",
        /// The prompt, which a completion repeats (`echo`).
        Echo = "echo",
    }
}

/// Form of the canary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CanaryForm {
    /// As it is.
    Plain,
    /// Base64.
    Base64,
    /// The given text in another language, from 1.
    Other(usize),
}

base::named! {
    /// Place of the canary in its field.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum CanaryPosition {
        /// In the first token.
        Start = "start",
        /// With text on both sides.
        Middle = "middle",
        /// Before the end.
        End = "end",
    }
}

/// Cut of the canary into tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenSplit {
    /// One token.
    Whole,
    /// Two, the first of so many characters.
    At(usize),
    /// A token for each character.
    Characters,
    /// At places that this seed draws.
    Drawn(u64),
}

/// A cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SweepCell {
    /// Endpoint of the gateway.
    pub endpoint: Endpoint,
    /// Whether the answer is asked for as a stream.
    pub is_stream: bool,
    /// The field.
    pub field: CanaryField,
    /// The form.
    pub form: CanaryForm,
    /// The place.
    pub position: CanaryPosition,
    /// The tokens.
    pub split: TokenSplit,
}

impl CanaryField {
    /// Returns true if answers of this endpoint have it.
    pub(crate) fn is_on(self, endpoint: Endpoint) -> bool {
        match self {
            Self::Content => true,
            Self::Reasoning | Self::Arguments => endpoint != Endpoint::Completions,
            Self::Refusal => matches!(endpoint, Endpoint::Chat | Endpoint::Responses),
            Self::Logprobs | Self::Choice => endpoint.has_choices(),
            Self::Echo => endpoint == Endpoint::Completions,
        }
    }
}

impl fmt::Display for CanaryForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain"),
            Self::Base64 => f.write_str("base64"),
            Self::Other(number) => write!(f, "other-{number}"),
        }
    }
}

impl fmt::Display for TokenSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("whole"),
            Self::At(place) => write!(f, "at-{place}"),
            Self::Characters => f.write_str("characters"),
            Self::Drawn(seed) => write!(f, "seed-{seed}"),
        }
    }
}

impl TokenSplit {
    /// All ways to cut a text of so many characters.
    fn all(characters: usize, seed: u64) -> impl Iterator<Item = Self> {
        let at = (1..characters).map(Self::At);
        let drawn = (0..DRAWN).map(move |number| Self::Drawn(seed.wrapping_add(number)));
        [Self::Whole, Self::Characters].into_iter().chain(at).chain(drawn)
    }

    /// Cuts a text; the pieces add up to it.
    pub(crate) fn pieces(self, text: &str) -> Vec<String> {
        let mut random = match self {
            Self::Drawn(seed) => Some(Xoshiro256PlusPlus::seed_from_u64(seed)),
            Self::Whole | Self::At(_) | Self::Characters => None,
        };
        let mut pieces: Vec<String> = Vec::new();
        for (place, character) in text.chars().enumerate() {
            let is_cut = match self {
                Self::Whole => false,
                Self::At(at) => place == at,
                Self::Characters => true,
                Self::Drawn(_) => random.as_mut().is_some_and(|random| random.random_range(0..3) == 0),
            };
            match pieces.last_mut().filter(|_| !is_cut) {
                Some(piece) => piece.push(character),
                None => pieces.push(character.to_string()),
            }
        }
        pieces
    }
}

impl SweepCell {
    pub(crate) fn parts(&self) -> [String; 6] {
        [
            self.endpoint.to_string(),
            if self.is_stream { "stream" } else { "body" }.to_owned(),
            self.field.name().to_owned(),
            self.form.to_string(),
            self.position.to_string(),
            self.split.to_string(),
        ]
    }

    /// Returns true if it has all of these parts.
    pub(crate) fn has(&self, wanted: &[String]) -> bool {
        let parts = self.parts();
        wanted.iter().all(|part| parts.contains(part))
    }
}

impl fmt::Display for SweepCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.parts().join("/"))
    }
}

impl Serialize for SweepCell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// All cells that have the parts of one of the wanted lists; all where there is no list.
#[must_use]
pub fn matrix(canary: &Canary, endpoints: &[Endpoint], wanted: &[Vec<String>], seed: u64) -> Vec<SweepCell> {
    let mut cells = Vec::new();
    let fields = endpoints.iter().flat_map(|endpoint| CanaryField::ALL.map(|field| (*endpoint, field)));
    for (endpoint, field) in fields.filter(|(endpoint, field)| field.is_on(*endpoint)) {
        for form in canary.forms() {
            let characters = canary.shown(form).chars().count();
            for position in CanaryPosition::ALL {
                for split in TokenSplit::all(characters, seed) {
                    let cell = |is_stream| SweepCell { endpoint, is_stream, field, form, position, split };
                    cells.extend([cell(true), cell(false)]);
                }
            }
        }
    }
    cells.retain(|cell| wanted.is_empty() || wanted.iter().any(|wanted| cell.has(wanted)));
    cells
}

/// So many of the cells, in their order; a seed draws them.
#[must_use]
pub fn sampled(mut cells: Vec<SweepCell>, most: usize, seed: u64) -> Vec<SweepCell> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut left = most.min(cells.len());
    let mut rest = cells.len();
    // Each is taken with the probability that is left for it, so that exactly so many are.
    cells.retain(|_| {
        let is_taken = random.random_range(0..rest.max(1)) < left;
        rest -= 1;
        left -= usize::from(is_taken);
        is_taken
    });
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prove::ENDPOINTS;

    #[test]
    fn pieces_add_up_and_are_cut_where_they_are_said_to_be() {
        let text = "größe-42";
        assert_eq!(TokenSplit::Whole.pieces(text), [text]);
        assert_eq!(TokenSplit::At(3).pieces(text), ["grö", "ße-42"]);
        assert_eq!(TokenSplit::Characters.pieces(text).len(), 8);
        let drawn: Vec<Vec<String>> = (0..9).map(|seed| TokenSplit::Drawn(seed).pieces(text)).collect();
        assert!(drawn.iter().all(|pieces| pieces.concat() == text) && drawn.iter().any(|pieces| pieces != &drawn[0]));
    }

    #[test]
    fn cells_are_chosen_by_their_parts_and_drawn_by_seed() {
        let canary = Canary::new("abcdef".to_owned(), vec![]).unwrap();
        let all = matrix(&canary, &ENDPOINTS, &[], 0);
        // 17 fields on endpoints, 3 places, stream or not; 6 characters, and 8 of base64.
        assert_eq!(all.len(), 17 * 3 * 2 * ((2 + 5 + 4) + (2 + 7 + 4)));
        for cell in [all[0], all[777]] {
            let name = cell.to_string().split('/').map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(matrix(&canary, &ENDPOINTS, &[name], 0), [cell]);
        }
        let wanted = ["chat", "at-2"].map(str::to_owned).to_vec();
        assert_eq!(matrix(&canary, &ENDPOINTS, &[wanted], 0).len(), 6 * 3 * 2 * 2);
        let some = sampled(all.clone(), 100, 3);
        assert_eq!(
            (some.len(), sampled(all.clone(), 100, 3) == some, sampled(all.clone(), 100, 4) == some),
            (100, true, false)
        );
        assert_eq!(sampled(all.clone(), 100_000, 3), all);
    }
}
