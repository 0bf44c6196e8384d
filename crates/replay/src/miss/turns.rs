//! Messages that only one of two requests has: several in a row are one line.

use serde_json::Value;

use super::{
    comparison::text_of,
    edit::{Cause, Edit},
};
use base::one_line::clipped;
use recording::canonical::Operation;

/// Characters of the text of a message, and maximum number of messages that are shown.
const TEXT: usize = 18;
const MOST: usize = 4;

/// Splits edits where one is no message that follows the message before it.
pub(super) fn runs<'e, 'd>(edits: &'e [Edit<'d>]) -> impl Iterator<Item = &'e [Edit<'d>]> {
    edits.chunk_by(|one, next| {
        let are_turns = matches!((one.cause, next.cause), (Cause::Turn, Cause::Turn));
        let places = item(one.place()).zip(item(next.place()));
        let is_next =
            places.is_some_and(|((list, at), (other, after))| list == other && at.checked_add(1) == Some(after));
        are_turns && is_next && one.difference.operation == next.difference.operation
    })
}

/// Describes such messages with their first words, and without.
pub(super) fn lines(run: &[Edit<'_>]) -> Option<[String; 2]> {
    let (first, last) = (run.first()?, run.last()?);
    let what = match first.difference.operation {
        Operation::Add => "were received and not recorded",
        Operation::Remove | Operation::Replace => "were recorded and not received",
    };
    let short = format!("  - {} to {} {what}", first.place(), last.place());
    let message = |edit: &Edit<'_>| {
        let message = edit.difference.recorded.as_ref().or(edit.difference.received.as_ref());
        message.map(in_words).unwrap_or_default()
    };
    let mut words: Vec<String> = run.iter().take(MOST).map(message).collect();
    words.extend((run.len() > MOST).then(|| "…".to_owned()));
    Some([format!("{short}: {}", words.join(", ")), short])
}

/// The list and the place of an item, as `messages` and 5 of `messages[5]`.
fn item(place: &str) -> Option<(&str, usize)> {
    let (list, at) = place.strip_suffix(']')?.rsplit_once('[')?;
    Some((list, at.parse().ok()?))
}

/// A message or an item in a few words: its role, its text, the tools that it calls.
fn in_words(message: &Value) -> String {
    let field = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let of = field(message, "role").or(field(message, "type")).unwrap_or_else(|| "an item".to_owned());
    let listed = ["tool_calls", "content"].into_iter().filter_map(|name| message.get(name)?.as_array()).flatten();
    let name = |call: &Value| field(call.get("function").unwrap_or(call), "name");
    let own = Some(message).filter(|message| message.get("type").is_some_and(|kind| kind == "function_call"));
    let calls: Vec<String> = listed.chain(own).filter_map(name).collect();
    let calls =
        if calls.is_empty() { String::new() } else { format!(" calls {}", clipped(&calls.join(" and "), TEXT * 2)) };
    let text = text_of(message, TEXT).map(|text| format!(" {text}")).unwrap_or_default();
    format!("{of}{text}{calls}")
}
