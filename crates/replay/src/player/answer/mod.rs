//! The answer of a record in the form that its request asks for: content, ids, token counts, values, deadlines.

pub(crate) mod content;
pub(crate) mod engine_input;
pub(crate) mod fresh_ids;
pub(crate) mod generated;
pub(crate) mod put_back;
pub(crate) mod response;
