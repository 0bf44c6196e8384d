//! Marks of messages that move from request to request: a client that has prompts cached sets `cache_control` on its last blocks and removes it
//! from those before them. `cached` in a record lists the earlier messages that still have it.

use std::borrow::Cow;

use serde_json::Value;

use crate::canonical::SharedList;

/// The field of a block that is such a mark.
const MARK: &str = "cache_control";

/// The message without its marks.
pub(super) fn unmarked(message: &Value) -> Cow<'_, Value> {
    if marks(message).is_empty() {
        return Cow::Borrowed(message);
    }
    let mut message = message.clone();
    remove(&mut message);
    Cow::Owned(message)
}

/// The earlier messages that still have their marks, by their place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EarlierMarks {
    /// All that had any.
    All,
    /// These and no others.
    Only(Vec<u64>),
    /// A message has other marks than it had.
    Others,
}

/// Finds which of the earlier messages still have their marks.
pub(super) fn earlier_marks(own: &SharedList<Value>, earlier: &[Value]) -> EarlierMarks {
    let (mut unchanged, mut has_moved) = (Vec::new(), false);
    for ((message, before), place) in own.iter().zip(earlier).zip(0..) {
        let (now, then) = (marks(message), marks(before));
        match (now.is_empty(), now == then) {
            (true, true) => {}
            (true, false) => has_moved = true,
            (false, true) => unchanged.push(place),
            (false, false) => return EarlierMarks::Others,
        }
    }
    if has_moved { EarlierMarks::Only(unchanged) } else { EarlierMarks::All }
}

/// The earlier messages, of which only those at these places have their marks.
pub(super) fn marked(mut earlier: Vec<Value>, places: Option<&[u64]>) -> Vec<Value> {
    let Some(places) = places else { return earlier };
    let unmarked = earlier.iter_mut().zip(0..).filter(|(_, place)| !places.contains(place));
    unmarked.for_each(|(message, _)| remove(message));
    earlier
}

fn blocks(message: &Value) -> &[Value] {
    message.get("content").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The marks of a message, each with the place of its block. Results of tools have blocks in their blocks.
fn marks(message: &Value) -> Vec<(usize, &Value)> {
    let mut found = Vec::new();
    for (at, block) in blocks(message).iter().enumerate() {
        found.extend(block.get(MARK).map(|mark| (at, mark)));
        found.extend(marks(block));
    }
    found
}

fn remove(message: &mut Value) {
    for block in message.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten() {
        block.as_object_mut().and_then(|block| block.shift_remove(MARK));
        remove(block);
    }
}
