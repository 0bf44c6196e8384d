//! Encodings on the wire, independent of HTTP and of the OpenAI API: a decoder of server-sent events, fields and edits of JSON text,
//! percent-decoding, encodings of JSON.

mod buffer;
mod encoding;
mod json;
mod percent;
mod raw;
mod sse;

pub use buffer::EventBuffer;
pub use encoding::{body_as_utf8, json_as_utf8};
pub use json::{Edits, span_in};
pub use percent::percent_decoded;
pub use raw::RawObject;
pub use sse::{Event, SseSplitter, encode_event};
