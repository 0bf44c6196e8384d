//! Bytes by their digest.

use serde_json::{Value, json};

/// Describes bytes for a comparison: their number and digest.
#[must_use]
pub fn named_bytes(bytes: &[u8]) -> Value {
    json!({"bytes": bytes.len(), "sha256": digest(bytes)})
}

/// The SHA-256 digest of bytes, in hexadecimal digits.
pub(super) fn digest(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
