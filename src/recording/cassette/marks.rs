//! Marks of messages that move from turn to turn: a client that has prompts cached sets `cache_control` on its last blocks and takes it off
//! those before them. A record says which of the earlier messages still have it (`cached`).

use std::borrow::Cow;

use serde_json::Value;

use crate::recording::canonical::SharedList;

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
pub(super) enum Kept {
    /// All that had any.
    All,
    /// These and no others.
    Only(Vec<u64>),
    /// A message has other marks than it had.
    Others,
}

/// Finds which of the earlier messages still have their marks.
pub(super) fn kept(own: &SharedList<Value>, earlier: &[Value]) -> Kept {
    let (mut kept, mut has_moved) = (Vec::new(), false);
    for ((message, before), place) in own.iter().zip(earlier).zip(0..) {
        let (now, then) = (marks(message), marks(before));
        match (now.is_empty(), now == then) {
            (true, true) => {}
            (true, false) => has_moved = true,
            (false, true) => kept.push(place),
            (false, false) => return Kept::Others,
        }
    }
    if has_moved { Kept::Only(kept) } else { Kept::All }
}

/// The earlier messages with the marks that they still have.
pub(super) fn marked(mut earlier: Vec<Value>, kept: Option<&[u64]>) -> Vec<Value> {
    let Some(kept) = kept else { return earlier };
    let taken = earlier.iter_mut().zip(0..).filter(|(_, place)| !kept.contains(place));
    taken.for_each(|(message, _)| remove(message));
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
