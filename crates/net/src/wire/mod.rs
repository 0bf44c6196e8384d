//! Encodings on the wire, independent of HTTP and of the OpenAI API: a decoder of server-sent events, fields, values and edits of
//! JSON text, percent-decoding, encodings of JSON.

mod buffer;
mod encoding;
mod json;
mod path;
mod raw;
mod sse;

use std::borrow::Cow;

pub use buffer::EventBuffer;
pub use encoding::{body_as_utf8, json_as_utf8, recorded_json_as_utf8};
pub use json::{Edits, span_in, value_text};
pub use path::is_unambiguous_path;
pub use raw::RawObject;
pub use sse::{RawEvent, SseSplitter, encode_event, event_data, event_name};

/// Decodes percent-encoded bytes. Invalid escapes stay; invalid UTF-8 becomes the replacement character.
#[must_use]
pub fn percent_decoded(text: &str) -> Cow<'_, str> {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_once() {
        assert_eq!(percent_decoded("/%761/models"), "/v1/models");
        assert_eq!(percent_decoded("/%2576"), "/%76");
        assert_eq!(percent_decoded("/a%2"), "/a%2");
        assert_eq!(percent_decoded("/%zz%+1"), "/%zz%+1");
    }
}
