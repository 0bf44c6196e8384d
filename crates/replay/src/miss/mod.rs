//! Explanation of a request without a record: the closest record, the differences, and what helps. Requests to models and to MCP
//! servers have the same.

mod advice;
mod comparison;
mod edit;
mod message;

pub(crate) use self::{
    advice::{Advice, file_in_shell, in_shell, only_flags},
    comparison::{Comparison, RecordLocation},
    edit::{Edit, edits, named},
    message::{Explanation, FOR_CLIENTS, FOR_LOG, NAME, SHORT, one, summary},
};
