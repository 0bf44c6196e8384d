//! Which record answers a prompt, and what becomes of it: one selection decides content and timing.

pub(crate) mod arrival_order;
pub(crate) mod continuation;
pub(crate) mod miss;
pub(crate) mod plan;
mod planned;
pub(crate) mod query;
pub(crate) mod select;
