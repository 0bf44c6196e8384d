//! Large documents, read in parts on all cores.
//!
//! The items of one long list at the top, each beginning with `- ` at the start of a line, are cut into parts between items. Nothing
//! else of a well-formed document can stand there: what belongs to an item is indented. Where a part cannot be read, the whole
//! is read instead, which finds what is wrong.

use std::{borrow::Cow, num::NonZero, thread};

use super::{YamlError, YamlKind, YamlNode, parse, read::shift};

/// Smaller documents are not worth a thread.
const SMALLEST: usize = 256 << 10;

/// As [`parse`]; the list under `key` is read in parts where it is long.
pub(crate) fn parse_in_parts(text: &str, key: &str) -> Result<YamlNode, YamlError> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    match in_parts(text, key, threads, SMALLEST) {
        Some(node) => Ok(node),
        None => parse(text),
    }
}

fn in_parts(text: &str, key: &str, threads: usize, smallest: usize) -> Option<YamlNode> {
    if text.len() < smallest || threads < 2 {
        return None;
    }
    let head = format!("\n{key}:\n- ");
    let start = text.find(&head)? + head.len() - 2;
    let list = text.get(start..)?;
    let end = end_of(list);
    let pieces = pieces(list.get(..end)?, threads);
    // Everything else with the list's first item in place of the list.
    let first = list.find("\n- ").map_or(end, |at| at + 1).min(end);
    let around = format!("{}{}{}", text.get(..start)?, list.get(..first)?, list.get(end..)?);
    let (around, parts) = thread::scope(|scope| {
        let is_last = |at: usize| at + 1 == pieces.len() && start + end == text.len();
        let parts = pieces.iter().enumerate().map(|(at, (_, piece))| scope.spawn(move || part(piece, is_last(at))));
        let parts: Vec<_> = parts.collect();
        let around = parse(&around);
        (around, parts.into_iter().map(|part| part.join().ok()?).collect::<Option<Vec<_>>>())
    });
    let lines = |text: &str| text.bytes().filter(|byte| *byte == b'\n').count();
    let before = lines(text.get(..start)?);
    let mut items = Vec::new();
    for (mut some, (at, _)) in parts?.into_iter().zip(&pieces) {
        let offset = before + lines(list.get(..*at)?);
        some.iter_mut().for_each(|item| shift(item, offset));
        items.extend(some);
    }
    let shortened = lines(list.get(first..end)?);
    joined(around.ok()?, key, items, before + lines(list.get(..first)?), shortened)
}

/// The items of a part. What follows an item marks where its text ends, so another one follows the last one too, unless nothing does.
fn part(piece: &str, is_last: bool) -> Option<Vec<YamlNode>> {
    let text = if is_last { Cow::Borrowed(piece) } else { Cow::Owned(format!("{piece}- end\n")) };
    let YamlKind::List(mut items) = parse(&text).ok()?.kind else { return None };
    if !is_last {
        items.pop();
    }
    Some(items)
}

/// Finds the end of the list: the first line that belongs to something else.
fn end_of(list: &str) -> usize {
    let mut at = 0;
    for line in list.split_inclusive('\n') {
        let is_item =
            line.strip_prefix('-').is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\n', '\r', '\t']));
        if !is_item && !line.starts_with([' ', '\n', '\r', '#']) {
            return at;
        }
        at += line.len();
    }
    at
}

/// About equal parts, with their places; each begins with an item.
fn pieces(list: &str, count: usize) -> Vec<(usize, &str)> {
    let (share, mut at, mut pieces) = (list.len().div_ceil(count).max(1), 0, Vec::new());
    while at < list.len() {
        let wanted = (at + share).min(list.len());
        let mut cut = wanted;
        while !list.is_char_boundary(cut) {
            cut += 1;
        }
        let next = list.get(cut..).and_then(|rest| rest.find("\n- ")).map_or(list.len(), |found| cut + found + 1);
        pieces.extend(list.get(at..next).map(|piece| (at, piece)));
        at = next;
    }
    pieces
}

/// Puts all items into the document; nodes after the line `after` move down by `lines`.
fn joined(mut around: YamlNode, key: &str, mut items: Vec<YamlNode>, after: usize, lines: usize) -> Option<YamlNode> {
    let YamlKind::Map(entries) = &mut around.kind else { return None };
    for entry in entries.iter_mut() {
        if entry.key == key {
            // The list's own place is that of its first item.
            let YamlKind::List(list) = &mut entry.value.kind else { return None };
            *list = std::mem::take(&mut items);
        } else if entry.line > after {
            entry.line += lines;
            shift(&mut entry.value, lines);
        }
    }
    Some(around)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_are_the_same_as_the_whole() {
        let item = |at: usize| {
            format!(
                "- id: {at}\n  text: |-\n    - not an item\n    é{at}\n# remark\n\n  more: [1, {{a: \"\\n- x\"}}]\n"
            )
        };
        for count in [1, 2, 3, 7, 50] {
            let items: String = (0..count).map(item).collect();
            for tail in ["", "tools:\n  a: {b: 1}\nlast: 2\n", "...\n"] {
                let text = format!("vcr: 1\nnested:\n- other\nrecords:\n{items}{tail}");
                for threads in [2, 3, 8] {
                    assert_eq!(in_parts(&text, "records", threads, 0), parse(&text).ok(), "{count} {threads} {tail}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_the_text_parts_are_the_whole_or_nothing(
            lines in prop::collection::vec(prop::sample::select(vec![
                "- a: 1", "  b: 'x", "  y'", "- c", "-", "- - d", "tools: {}", "  - e", "# r", "", "- |", "  text", "- >-", "--- ", "- {f: [", "  ]}", "- \"g", "h\"", "... ", "- &x 1",
            ]), 1..14),
            threads in 2_usize..5,
        ) {
            let text = format!("vcr: 1\nrecords:\n- z: 0\n{}\n", lines.join("\n"));
            if let Some(node) = in_parts(&text, "records", threads, 0) {
                prop_assert_eq!(Some(node), parse(&text).ok(), "{}", text);
            }
        }
    }
}
