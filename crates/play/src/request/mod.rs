//! From a request's bytes to a prompt: extractors, the pipeline of the families, validation, tokenizing.

pub(crate) mod admission;
pub(crate) mod admitted;
pub(crate) mod blocking;
pub(crate) mod budget;
pub(crate) mod extract;
pub(crate) mod info;
pub(crate) mod messages;
pub(crate) mod model;
pub(crate) mod pipeline;
pub(crate) mod prompts;
pub(crate) mod request_cache;
pub(crate) mod response_store;
pub(crate) mod responses;
pub(crate) mod tokens;
