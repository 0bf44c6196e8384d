//! Bytes on the network: the server side of a connection, the HTTP client, server-sent events.

pub mod server;
pub mod upstream;
pub mod wire;
