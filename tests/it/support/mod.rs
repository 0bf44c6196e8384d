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

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
};

/// The path that most requests have.
pub(crate) const CHAT: &str = "/v1/chat/completions";

/// The first of so many free ports that follow each other. Systems give those from 32768 on to connections, so nobody takes these before
/// they are listened at.
pub(crate) fn free_ports(count: u16) -> u16 {
    let is_free = |port| TcpListener::bind(("0.0.0.0", port)).is_ok();
    std::iter::repeat_with(|| rand::random_range(21_000..32_000))
        .take(200)
        .find(|first| (*first..first + count).all(is_free))
        .expect("free ports")
}

/// An address of this machine that nobody listens at.
pub(crate) fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_ports(1)).into()
}

/// The text of a file.
pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}
