//! Arguments written as `<parameter=name>value</parameter>`, made into JSON, also while they are on their way.

use crate::parsers::json::{self, JsonValue};

/// The members that a call's body names; of a partial body also the last one, as far as it goes. Line breaks at both ends of a value
/// are a part of the format, unless values are verbatim.
pub(super) fn members(body: &str, is_whole: bool, is_verbatim: bool) -> Vec<(String, JsonValue)> {
    let text = |value: &str| {
        let inside = value.strip_prefix('\n').unwrap_or(value);
        let inside = inside.strip_suffix('\n').unwrap_or(inside);
        JsonValue::Text(if is_verbatim { value } else { inside }.to_owned())
    };
    let mut members = Vec::new();
    let mut others = String::new();
    let mut at = 0;
    while let Some((start, name, inside)) = opening(body, at) {
        let Some((end, after)) = closing(body, inside) else { break };
        others.push_str(body.get(at..start).unwrap_or_default());
        let value = body.get(inside..end).unwrap_or_default();
        json::set(&mut members, name.to_owned(), text(value));
        at = after;
    }
    others.push_str(body.get(at..).unwrap_or_default());
    if !is_whole {
        let mut from = 0;
        while let Some((start, name, inside)) = opening(&others, from) {
            // A name of blanks is the last of them until its value ends.
            let blank = || others.get(..inside.saturating_sub(1))?.chars().next_back().filter(|c| is_space(*c));
            let name = if name.is_empty() { blank().map(String::from) } else { Some(name.to_owned()) };
            if let Some(name) = name {
                let value = others.get(inside..).unwrap_or_default();
                json::set(&mut members, name, text(value));
                break;
            }
            from = start + 1;
        }
    }
    members
}

/// `<parameter=name>` from a place on: where it begins, the name, where it ends.
fn opening(text: &str, from: usize) -> Option<(usize, &str, usize)> {
    for (at, _) in text.get(from..)?.match_indices('<') {
        let start = from + at;
        let Some(name_at) = name_start(text, start) else { continue };
        // A tag that nothing ends is the last one: nothing ends those behind it either.
        let length = text.get(name_at..)?.find('>')?;
        return Some((start, text.get(name_at..name_at + length)?, name_at + length + 1));
    }
    None
}

/// Finds the start of the name in a parameter's tag.
fn name_start(text: &str, at: usize) -> Option<usize> {
    let rest = spaceless(text.get(at..)?.strip_prefix('<')?).strip_prefix("parameter")?;
    let name = spaceless(spaceless(rest).strip_prefix('=')?);
    Some(text.len() - name.len())
}

/// Finds the end of a value and the place to read on: its closing tag or the next parameter.
fn closing(text: &str, from: usize) -> Option<(usize, usize)> {
    text.get(from..)?.match_indices('<').find_map(|(at, _)| {
        let start = from + at;
        if name_start(text, start).is_some() {
            return Some((start, start));
        }
        let rest = spaceless(spaceless(text.get(start..)?.strip_prefix('<')?).strip_prefix('/')?);
        let rest = spaceless(rest.strip_prefix("parameter")?).strip_prefix('>')?;
        Some((start, text.len() - rest.len()))
    })
}

fn spaceless(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// As much of an object's JSON as will not change when more comes: up to its last value, and of that one the inside of a
/// string whose key may hold nothing else. No keys: every value may be a string.
pub(super) fn stable<'a>(json: &'a str, string_keys: Option<&[String]>) -> &'a str {
    let Some((colon, key)) = last_colon(json) else { return "" };
    let head = |end: usize| json.get(..end).unwrap_or_default();
    let after = json.get(colon + 1..).unwrap_or_default();
    let value = after.trim_start_matches([' ', '\t', '\n', '\r']);
    let start = json.len() - value.len();
    let may_stream = string_keys.is_none_or(|keys| key.is_some_and(|key| keys.iter().any(|known| known == key)));
    let Some(inside) = value.strip_prefix('"').filter(|_| may_stream) else { return head(start) };
    let mut escaped = false;
    for (at, c) in inside.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return head(start + 1 + at),
            _ => {}
        }
    }
    json
}

/// The last colon of the outer object, and the key before it.
fn last_colon(json: &str) -> Option<(usize, Option<&str>)> {
    let (mut found, mut pending) = (None, None);
    let (mut in_string, mut escaped, mut start, mut depth) = (false, false, 0, 0_usize);
    for (at, c) in json.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' if in_string => {
                in_string = false;
                if depth == 1 {
                    pending = json.get(start + 1..at);
                }
            }
            _ if in_string => {}
            '"' => (in_string, start) = (true, at),
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            ':' if depth == 1 => found = Some((at, pending.take())),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str, is_whole: bool) -> String {
        JsonValue::Object(members(body, is_whole, false)).write()
    }

    #[test]
    fn parameters_become_members() {
        let body =
            "\n<parameter=a>\nx\ny\n</parameter>< parameter = b >1< / parameter ><parameter=c>open<parameter=a>2";
        assert_eq!(read(body, true), r#"{"a": "x\ny", "b ": "1", "c": "open"}"#);
        assert_eq!(read(body, false), r#"{"a": "2", "b ": "1", "c": "open"}"#);
    }

    #[test]
    fn what_may_change_is_held_back() {
        assert_eq!(stable(r#"{"a": "x", "b": 12}"#, None), r#"{"a": "x", "b": "#);
        assert_eq!(stable(r#"{"a": "x\"y"}"#, None), r#"{"a": "x\"y"#);
        assert_eq!(stable(r#"{"a": "x"}"#, Some(&[])), r#"{"a": "#);
        assert_eq!(stable("{}", None), "");
    }
}
