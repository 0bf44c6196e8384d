//! `/inference/v1/generate`: token ids in, token ids (or text too) out; a completion request in other words.
//!
//! Limits: text only; log probabilities, sampling masks and scores are not sent.

mod answer;
mod render;
mod request;

pub use self::{
    answer::TokenEncoder,
    render::{RenderRequest, Rendered},
    request::TokenRequest,
};
