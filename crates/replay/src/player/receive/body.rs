//! A request's body as it is compared and recorded: JSON, text, or bytes.
//!
//! A body that was packed with gzip is unpacked first, and the boundary between the parts of a form, which is another one each
//! time, is always the same. What goes upstream is what came.
//!
//! Limits: bodies that were packed in another way are bytes.

use std::borrow::Cow;

use http::{HeaderMap, header};
use serde_json::Value;

use net::wire::recorded_json_as_utf8;
use recording::{canonical, trace};

/// Separator of the parts of a form.
const BOUNDARY: &[u8] = b"--vcr-boundary";

#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ReadBody {
    /// JSON where it is, else text; null for none, and for bytes that are no text.
    pub(crate) value: Value,
    /// The bytes that are no text.
    pub(crate) raw: Option<Vec<u8>>,
}

impl ReadBody {
    /// Reads a body; at most so many bytes are unpacked.
    pub(crate) fn read(headers: &HeaderMap, bytes: &[u8], most: usize) -> Self {
        let unpacked = is_gzip(headers).then(|| trace::gunzip_within(bytes, most)).flatten();
        let plain = unpacked.as_deref().unwrap_or(bytes);
        let even = boundary_of(headers).map_or(Cow::Borrowed(plain), |own| replaced(plain, &own));
        // JSON in another encoding is the same JSON.
        let even = match recorded_json_as_utf8(&even) {
            Cow::Owned(json) => Cow::Owned(json),
            Cow::Borrowed(_) => even,
        };
        match std::str::from_utf8(&even) {
            Ok(text) => Self { value: value_of(text), raw: None },
            Err(_) => Self { value: Value::Null, raw: Some(even.into_owned()) },
        }
    }
}

/// JSON where it is, else text; null for none.
pub(crate) fn value_of(text: &str) -> Value {
    if text.is_empty() {
        return Value::Null;
    }
    serde_json::from_str(&canonical::with_exact_integers(text)).unwrap_or_else(|_| Value::from(text))
}

fn is_gzip(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_ENCODING).is_some_and(|coding| {
        let coding = coding.as_bytes().trim_ascii();
        coding.eq_ignore_ascii_case(b"gzip") || coding.eq_ignore_ascii_case(b"x-gzip")
    })
}

/// The delimiter between the parts of a form.
fn boundary_of(headers: &HeaderMap) -> Option<Vec<u8>> {
    let (kind, parameters) = headers.get(header::CONTENT_TYPE)?.to_str().ok()?.split_once(';')?;
    if !kind.trim_ascii_start().to_ascii_lowercase().starts_with("multipart/") {
        return None;
    }
    let named = parameters.split(';').filter_map(|parameter| parameter.trim().split_once('='));
    let boundary = named.filter(|(name, _)| name.eq_ignore_ascii_case("boundary")).map(|(_, value)| value).next()?;
    let boundary = boundary.trim_matches('"');
    (!boundary.is_empty()).then(|| [b"--", boundary.as_bytes()].concat())
}

/// The bytes with another delimiter.
fn replaced<'a>(bytes: &'a [u8], delimiter: &[u8]) -> Cow<'a, [u8]> {
    let mut found = memchr::memmem::find_iter(bytes, delimiter).peekable();
    if found.peek().is_none() {
        return Cow::Borrowed(bytes);
    }
    let (mut even, mut kept) = (Vec::with_capacity(bytes.len()), 0);
    for at in found {
        even.extend_from_slice(bytes.get(kept..at).unwrap_or_default());
        even.extend_from_slice(BOUNDARY);
        kept = at + delimiter.len();
    }
    even.extend_from_slice(bytes.get(kept..).unwrap_or_default());
    Cow::Owned(even)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(headers: &[(&'static str, &str)], bytes: &[u8]) -> ReadBody {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        ReadBody::read(&headers, bytes, 1 << 20)
    }

    #[test]
    fn bodies_are_json_text_or_bytes() {
        assert_eq!(read(&[], b""), ReadBody::default());
        assert_eq!(read(&[], b"{\"a\": 1}").value, json!({"a": 1}));
        assert_eq!(read(&[], b"{\"a\"").value, json!("{\"a\""));
        assert_eq!(read(&[], b"\xff\x00"), ReadBody { value: Value::Null, raw: Some(b"\xff\x00".to_vec()) });
        let utf16: Vec<u8> = "{\"a\": \"é\"}".encode_utf16().flat_map(u16::to_be_bytes).collect();
        assert_eq!(read(&[], &utf16), ReadBody { value: json!({"a": "é"}), raw: None });
        let long = read(&[], b"{\"seed\": 123456789012345678901234}").value;
        assert_eq!(long, json!({"seed": "123456789012345678901234"}));
    }

    #[test]
    fn what_is_called_gzip_and_is_none_stays() {
        let coding = [("content-encoding", "gzip")];
        assert_eq!(read(&coding, b"{}").value, json!({}));
        assert_eq!(read(&coding, b"\x1f\x8b\xff").raw, Some(b"\x1f\x8b\xff".to_vec()));
    }

    #[test]
    fn the_boundary_of_a_form_does_not_count() {
        let form = |boundary: &str, data: &[u8]| {
            let kind = format!("multipart/form-data; boundary=\"{boundary}\"");
            let (head, tail) = (format!("--{boundary}\r\n\r\n"), format!("\r\n--{boundary}--\r\n"));
            read(&[("content-type", &kind)], &[head.as_bytes(), data, tail.as_bytes()].concat())
        };
        assert_eq!(form("x1", b"\xff1").raw, form("another", b"\xff1").raw);
        assert_eq!(form("x1", b"a").value, form("another", b"a").value);
        assert_ne!(form("x1", b"\xff1").raw, form("x1", b"\xff2").raw);
    }
}
