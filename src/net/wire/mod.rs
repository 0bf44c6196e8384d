//! Bytes on the wire: server-sent events cut out of a byte stream, fields of JSON text, and edits that leave every other byte as
//! it was.
//!
//! Nothing here knows HTTP or the OpenAI API.

mod json;
mod percent;
mod raw;
mod sse;

pub use json::{Edits, span_in};
pub use percent::percent_decoded;
pub use raw::RawObject;
pub use sse::{Event, SseSplitter, encode_event};
