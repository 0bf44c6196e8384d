//! Events of a stream that differ from an earlier one in their words and ids only, which is nearly all of them: they are
//! compared instead of parsed.
//!
//! Limits: text with escapes, lists of ids with spaces or of more than 16, and everything else that is not plain is left to the parser.

use std::ops::{Deref, Range};

use super::event::{ChunkKind, StreamEvent, omits_empty_fields};
use net::wire::span_in;

/// Maximum number of ids of an event that is recognised.
const MAX_IDS: usize = 16;

/// Bytes of an event around its text and its ids.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EventPattern {
    pub(super) index: u32,
    /// Bytes up to the text, with the quote before it.
    before: Box<[u8]>,
    /// Bytes from the quote after the text to the ids, or to the end.
    between: Box<[u8]>,
    /// Bytes after the ids, if there are ids.
    after: Option<Box<[u8]>>,
    /// Length of the choice's JSON without its text, in bytes.
    weight: usize,
    /// Fields without a value are left out.
    pub(super) omits_empty_fields: bool,
}

/// Text and ids of an event that fits a pattern.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hit<'a> {
    pub(super) text: &'a str,
    pub(super) weight: usize,
    /// The ids, and the span of their list in the event.
    pub(super) ids: Option<(FewIds, Range<usize>)>,
}

/// Token ids of an event, which are seldom more than one or two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FewIds {
    ids: [u32; MAX_IDS],
    count: usize,
}

impl Deref for FewIds {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        self.ids.get(..self.count).unwrap_or_default()
    }
}

impl FewIds {
    fn push(&mut self, id: u32) -> Option<()> {
        *self.ids.get_mut(self.count)? = id;
        self.count += 1;
        Some(())
    }
}

impl EventPattern {
    /// Makes the pattern of an event that was read from `raw`; `None` if it has more than text and ids.
    pub(super) fn of(raw: &[u8], event: &StreamEvent<'_>) -> Option<Self> {
        let [choice] = event.choices.as_slice() else { return None };
        let is_special = event.usage.is_some()
            || event.error.is_some()
            || event.prompt_token_ids.is_some()
            || choice.prompt_token_ids.is_some()
            || choice.logprobs.is_some()
            || choice.finish_reason.is_some();
        let plain = ChunkKind { is_role: false, is_parsed: false, has_text: true };
        if is_special || choice.kind() != plain {
            return None;
        }
        let quoted = choice.content()?.get();
        let text = span_in(raw, quoted.strip_prefix('"')?.strip_suffix('"')?.as_bytes())?;
        let ids = match choice.token_ids {
            Some(ids) => Some(span_in(raw, ids.get().as_bytes())?),
            None => None,
        };
        let end = ids.as_ref().map_or(raw.len(), |ids| ids.start);
        Some(Self {
            index: choice.index,
            before: raw.get(..text.start)?.into(),
            between: raw.get(text.end..end)?.into(),
            after: match ids {
                Some(ids) => Some(raw.get(ids.end..)?.into()),
                None => None,
            },
            weight: choice.weight() - text.len(),
            omits_empty_fields: omits_empty_fields(raw),
        })
    }

    /// Reads an event that fits this pattern; `None` for any other.
    pub(super) fn hit<'a>(&self, raw: &'a [u8]) -> Option<Hit<'a>> {
        let rest = raw.strip_prefix(&*self.before)?;
        let length =
            rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)).filter(|length| *length > 0)?;
        let (text, rest) = rest.split_at_checked(length)?;
        let rest = rest.strip_prefix(&*self.between)?;
        let text = std::str::from_utf8(text).ok()?;
        let ids = match &self.after {
            Some(after) => {
                let list = rest.strip_suffix(&**after)?;
                Some((plain_list(list)?, span_in(raw, list)?))
            }
            None if rest.is_empty() => None,
            None => return None,
        };
        Some(Hit { text, weight: self.weight + length, ids })
    }
}

/// Reads a list like `[1,23]`, written without a space; `None` for a long one.
fn plain_list(list: &[u8]) -> Option<FewIds> {
    let mut ids = FewIds::default();
    for digits in list.strip_prefix(b"[")?.strip_suffix(b"]")?.split(|byte| *byte == b',') {
        let is_plain = digits.first().is_some_and(|first| *first != b'0') || digits == b"0";
        let digit = |byte: &u8| byte.is_ascii_digit().then(|| u32::from(byte - b'0'));
        let id = digits.iter().try_fold(0_u32, |id, byte| id.checked_mul(10)?.checked_add(digit(byte)?))?;
        ids.push(is_plain.then_some(id)?)?;
    }
    Some(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{channels::PLAIN, event::ids};

    const SHAPES: [(&str, &str); 4] = [
        (
            r#"data: {"id":"1","choices":[{"index":2,"delta":{"content":"WORDS"},"logprobs":null,"finish_reason":null,"token_ids":IDS}]}"#,
            "\n\n",
        ),
        (r#"data: {"choices":[{"text":"WORDS","index":0,"token_ids":IDS,"finish_reason":null}],"created":1}"#, "\n\n"),
        (
            r#"event: a
data:{"choices":[{"delta":{"role":"assistant","content":"WORDS"},"token_ids":IDS}]}"#,
            "\r\n\r\n",
        ),
        (r#"data: {"choices":[{"index":0,"delta":{"content":"WORDS"},"token_ids":null}]}"#, "\n\n"),
    ];

    fn event((shape, end): (&str, &str), text: &str, ids: &str) -> Vec<u8> {
        (shape.replace("WORDS", text).replace("IDS", ids) + end).into_bytes()
    }

    fn payload(raw: &[u8]) -> &[u8] {
        let start = raw.iter().position(|byte| *byte == b'{').unwrap();
        raw[start..].trim_ascii_end()
    }

    #[test]
    fn a_fitting_event_reads_as_the_parser_reads_it() {
        for shape in SHAPES {
            let first = event(shape, "Hello", "[7]");
            let pattern = EventPattern::of(&first, &StreamEvent::read(payload(&first)).unwrap()).unwrap();
            let sixteen = format!("{:?}", [7; 16]).replace(' ', "");
            for (text, list) in
                [("Hello", "[7]"), (" wörld \u{2028}", "[1,22,4294967295]"), ("{}", "[0]"), ("a", &*sixteen)]
            {
                let raw = event(shape, text, list);
                let hit = pattern.hit(&raw).unwrap();
                let parsed = StreamEvent::read(payload(&raw)).unwrap();
                let choice = &parsed.choices[0];
                assert_eq!((vec![(PLAIN, hit.text.to_owned())], hit.weight), (choice.texts(), choice.weight()));
                assert_eq!(hit.ids.as_ref().map(|(ids, _)| ids.to_vec()), ids(choice.token_ids));
                assert!(hit.ids.is_none_or(|(_, span)| &raw[span] == list.as_bytes()));
                assert_eq!((pattern.index, choice.finish_reason.as_deref()), (choice.index, None));
            }
        }
    }

    #[test]
    fn other_events_are_left_to_the_parser() {
        let shape = SHAPES[0];
        let first = event(shape, "Hello", "[7]");
        let pattern = EventPattern::of(&first, &StreamEvent::read(payload(&first)).unwrap()).unwrap();
        for (text, list) in [
            ("", "[7]"),
            ("a\\n", "[7]"),
            ("a\"},\"x\":{\"y\":\"", "[7]"),
            ("a", "[]"),
            ("a", "null"),
            ("a", "[1, 2]"),
            ("a", "[01]"),
            ("a", "[4294967296]"),
            ("a", "[+1]"),
            ("a", "[1,]"),
            ("a", "[1],\"token_ids\":[1]"),
            ("a", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"),
        ] {
            assert_eq!(pattern.hit(&event(shape, text, list)), None, "{text} {list}");
        }
        let mut bad = event(shape, "aa", "[7]");
        let at = bad.windows(2).position(|two| two == b"aa").unwrap();
        bad[at] = 0xff;
        assert_eq!(pattern.hit(&bad), None);
        assert_eq!(pattern.hit(&first[..first.len() - 1]), None);
    }

    #[test]
    fn special_events_have_no_pattern() {
        for payload in [
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}"#,
            r#"{"choices":[{"delta":{"content":"a"}},{"delta":{"content":"b"}}]}"#,
            r#"{"choices":[{"delta":{"content":"a","reasoning":"b"}}]}"#,
            r#"{"choices":[{"delta":{"content":["a"]}}]}"#,
            r#"{"choices":[{"token_ids":[1],"delta":{"content":"a"}}]}"#,
            r#"{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":1}}"#,
            r#"{"choices":[{"delta":{"content":"a"}}],"error":{}}"#,
            r#"{"choices":[{"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":0.0}]}}]}"#,
            r#"{"choices":[]}"#,
        ] {
            assert_eq!(
                EventPattern::of(payload.as_bytes(), &StreamEvent::read(payload.as_bytes()).unwrap()),
                None,
                "{payload}"
            );
        }
    }
}
