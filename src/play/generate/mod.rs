//! From tokens to text: choices, detokenizing, stops, parsers, log probabilities, made-up tokens.

pub(in crate::play) mod begun;
pub(in crate::play) mod choice;
pub(in crate::play) mod guided;
pub(in crate::play) mod logprobs;
mod made_up_again;
pub(in crate::play) mod output;
pub(in crate::play) mod parse;
pub(in crate::play) mod stop;
pub(in crate::play) mod synthetic;
