//! What tests share: clients, scripted engines, running servers and programs, the goldens and other files.

pub(crate) mod cassettes;
pub(crate) mod client;
pub(crate) mod drawn_bytes;
pub(crate) mod engine;
pub(crate) mod goldens;
pub(crate) mod kv_subscriber;
pub(crate) mod mailer;
pub(crate) mod peer;
pub(crate) mod play_server;
pub(crate) mod public_reader;
pub(crate) mod router;
pub(crate) mod running;
pub(crate) mod simulated;
pub(crate) mod tap_program;
pub(crate) mod tapping;
pub(crate) mod tokenizers;
pub(crate) mod traces;
pub(crate) mod tree;

use std::path::Path;

/// The path that most requests have.
pub(crate) const CHAT: &str = "/v1/chat/completions";

/// The text of a file.
pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}
