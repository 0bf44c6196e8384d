//! Bytes on the network: the server side of a connection, the HTTP client, downloads, server-sent events.

mod download;
pub mod server;
pub mod upstream;
pub mod wire;

pub use download::{DownloadError, download};
