//! Redaction: secrets are found and replaced before anything is written down.
//!
//! [`RedactionRules`] define what a secret is, in layers that add up: names of keys and headers, patterns of values, literal values,
//! places in JSON. Personal data (e-mail addresses, phone numbers) is one where that is requested. A [`Redactor`] applies them to one record and numbers what it finds: `[REDACTED:email:1]`, the same
//! number for the same secret, so that two addresses stay two addresses. JSON keeps every byte that is no secret; text
//! that was cut into pieces is searched as a whole and keeps its pieces, wherever the cuts are.
//!
//! Who redacted something in a record must also drop what spells it in other ways: verbatim copies, log probabilities,
//! token ids and hashes of them (see [`Redactor::found_any`]).
//!
//! [`PlaceholderValues`] are put back in place of placeholders.
//!
//! Limits: pure functions, no input or output. A secret without a known name or shape is not found, nor one in images,
//! compressed data or base64, nor one percent-encoded twice. A `pw` is read in text only: as a name in JSON it may
//! be a power. Names count for everything under them but for `token`, which
//! counts for the value right under it, or in a list under it: `{"token":{"id":7}}` is no secret. In JSON schemas
//! (`properties`) names count for values and defaults, not for descriptions. The log probabilities' `token` and everything
//! under `usage` are exempt from names.

mod built_in;
mod edits;
mod known;
mod named_values;
mod names;
mod path;
mod patterns;
mod percent;
mod placeholder;
mod redactor;
mod restore;
mod rules;
mod scan;
mod trail;

pub use super::field_path::PathError;
pub use named_values::NamedValues;
pub use patterns::{SecretShape, shapes};
pub use placeholder::{NoPlaceholder, Placeholder, has_placeholder, json_has_placeholder, placeholders};
pub use redactor::{Checkpoint, Find, Redactor, SeenSecrets, looks_like_json};
pub use restore::PlaceholderValues;
pub use rules::{RedactionRules, RulesError};
