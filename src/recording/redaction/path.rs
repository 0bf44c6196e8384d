//! Places in JSON: `$.metadata.email`, `$.messages[*].name`, `$..user`.

use super::scan::Step;

/// A text that names no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a place in JSON; write it like $.metadata.email, $.messages[0].name, $.items[*].id or $..user")]
pub struct PathError(String);

/// A place; what lies below it belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place(Vec<Segment>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Key(String),
    Index(usize),
    Any,
    /// Any number of steps.
    Deep,
}

impl Place {
    /// Reads a place.
    pub(super) fn parse(text: &str) -> Result<Self, PathError> {
        let fail = || PathError(text.to_owned());
        let mut rest = text.strip_prefix('$').ok_or_else(fail)?;
        let mut segments = Vec::new();
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('[') {
                let (inside, after) = after.split_once(']').ok_or_else(fail)?;
                segments.push(bracketed(inside).ok_or_else(fail)?);
                rest = after;
                continue;
            }
            let after = match rest.strip_prefix("..") {
                Some(after) => {
                    segments.push(Segment::Deep);
                    after
                }
                None => rest.strip_prefix('.').ok_or_else(fail)?,
            };
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let (name, after) = after.split_at(end);
            segments.push(match name {
                "" => return Err(fail()),
                "*" => Segment::Any,
                name => Segment::Key(name.to_owned()),
            });
            rest = after;
        }
        if segments.is_empty() { Err(fail()) } else { Ok(Self(segments)) }
    }

    /// Whether a value lies at or below this place.
    pub(super) fn covers(&self, steps: &[Step<'_>]) -> bool {
        covers(&self.0, steps)
    }
}

fn bracketed(inside: &str) -> Option<Segment> {
    if inside == "*" {
        return Some(Segment::Any);
    }
    let quoted = |quote| inside.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    match quoted('\'').or_else(|| quoted('"')) {
        Some(name) => Some(Segment::Key(name.to_owned())),
        None => inside.parse().ok().map(Segment::Index),
    }
}

fn covers(segments: &[Segment], steps: &[Step<'_>]) -> bool {
    let Some((segment, segments)) = segments.split_first() else { return true };
    if *segment == Segment::Deep {
        return (0..steps.len()).any(|skipped| covers(segments, steps.get(skipped..).unwrap_or_default()));
    }
    let Some((step, steps)) = steps.split_first() else { return false };
    let fits = match (segment, step) {
        (Segment::Key(name), Step::Key(key)) => key.as_deref() == Some(name),
        (Segment::Index(wanted), Step::Index(index)) => wanted == index,
        (Segment::Any, _) => true,
        _ => false,
    };
    fits && covers(segments, steps)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn key(name: &str) -> Step<'_> {
        Step::Key(Some(Cow::Borrowed(name)))
    }

    #[test]
    fn places_cover_what_lies_below_them() {
        for (place, steps, covered) in [
            ("$.a", vec![key("a")], true),
            ("$.a", vec![key("a"), key("b")], true),
            ("$.a.b", vec![key("a")], false),
            ("$.a[1]", vec![key("a"), Step::Index(1)], true),
            ("$.a[1]", vec![key("a"), Step::Index(0)], false),
            ("$['a.b'][*].c", vec![key("a.b"), Step::Index(7), key("c")], true),
            ("$..user", vec![key("x"), Step::Index(3), key("user")], true),
            ("$..user.name", vec![key("user"), key("id")], false),
            ("$.*", vec![key("x")], true),
        ] {
            assert_eq!(Place::parse(place).unwrap().covers(&steps), covered, "{place}");
        }
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for text in ["", "$", "a.b", "$.", "$.a[", "$.a[x]", "$.a..", "$a"] {
            assert!(Place::parse(text).is_err(), "{text}");
        }
    }
}
