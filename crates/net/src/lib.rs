//! Bytes on the network: the server side of a connection, the HTTP client, downloads, server-sent events, frames of ZeroMQ's protocol.

mod download;
pub mod server;
pub mod upstream;
pub mod wire;
pub mod zmtp;

pub use download::{DownloadError, download};
