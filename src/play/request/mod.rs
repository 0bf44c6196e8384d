//! From a request's bytes to a prompt: extractors, the pipeline of the families, validation, tokenizing.

pub(in crate::play) mod admission;
pub(in crate::play) mod admitted;
pub(in crate::play) mod blocking;
pub(in crate::play) mod budget;
pub(in crate::play) mod extract;
pub(in crate::play) mod info;
pub(in crate::play) mod messages;
pub(in crate::play) mod model;
pub(in crate::play) mod pipeline;
pub(in crate::play) mod prompts;
pub(in crate::play) mod request_cache;
pub(in crate::play) mod response_store;
pub(in crate::play) mod responses;
pub(in crate::play) mod tokens;
