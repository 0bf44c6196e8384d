//! Bytes on the wire: server-sent events cut out of a byte stream, and edits of JSON text that leave every other byte as
//! it was.
//!
//! Nothing here knows HTTP or the OpenAI API.

mod json;
mod percent;
mod sse;

pub use json::{Edits, span_in};
pub use percent::percent_decoded;
pub use sse::{Event, SseSplitter};
