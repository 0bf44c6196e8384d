//! The error that was a request's answer, or that ended its stream.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Stands for a text of an error's body that was left out.
pub const WITHHELD: &str = "(not recorded)";

/// An error as its client got it, as far as it was recorded. Its status is the record's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorResponse {
    /// Headers that a client acts on, such as `retry-after`; names in small letters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The body, or the payload of the event that ended a stream; `None` where it was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}
