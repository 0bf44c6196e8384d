//! Percent-decoding of URIs.

use std::borrow::Cow;

/// Decodes percent-encoded bytes. Invalid escapes stay; invalid UTF-8 becomes the replacement character.
#[must_use]
pub fn percent_decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match (*first, digits.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            (byte, _) => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
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
