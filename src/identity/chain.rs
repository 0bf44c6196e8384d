//! A conversation as a chain of hashes: one per message, each over all before it.

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::normal::sorted;

/// The fields that a conversation is in.
pub(super) const FIELDS: [&str; 5] = ["system", "instructions", "messages", "input", "prompt"];

/// The hashes of a canonical body's messages (or input items), its system prompt first; empty where it has none.
pub(super) fn of(body: &Value) -> Vec<u64> {
    let system = ["system", "instructions"].iter().filter_map(|name| body.get(*name));
    let messages = ["messages", "input"].iter().find_map(|name| body.get(*name));
    let single = ["input", "prompt"].iter().find_map(|name| body.get(*name).filter(|value| value.is_string()));
    let listed = messages.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut last = 0;
    let link = |message: &Value| {
        last = xxh3_64_with_seed(&sorted(message), last);
        last
    };
    system.chain(listed).chain(single).map(link).collect()
}
