//! From tokens to text: choices, detokenizing, stops, parsers, log probabilities, made-up tokens.

pub(crate) mod begun;
pub(crate) mod choice;
pub(crate) mod guided;
pub(crate) mod logprobs;
mod made_up_again;
pub(crate) mod output;
pub(crate) mod parse;
pub(crate) mod stop;
pub(crate) mod synthetic;
