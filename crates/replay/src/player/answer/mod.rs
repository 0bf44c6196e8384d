//! The answer of a record in the form that its request asks for: content, ids, token counts, values, deadlines.

pub(in crate::player) mod content;
pub(in crate::player) mod engine_input;
pub(in crate::player) mod fresh_ids;
pub(in crate::player) mod generated;
pub(in crate::player) mod put_back;
pub(in crate::player) mod response;
