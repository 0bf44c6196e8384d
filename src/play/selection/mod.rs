//! Which record answers a prompt, and what becomes of it: one selection decides content and timing.

pub(in crate::play) mod arrival_order;
pub(in crate::play) mod continuation;
pub(in crate::play) mod miss;
pub(in crate::play) mod plan;
mod planned;
pub(in crate::play) mod query;
pub(in crate::play) mod select;
