//! Taps of MCP servers. Over HTTP they are behind the address of the tap; over stdio a program stands in their place, and
//! starts them ([`StdioTap`], and [`McpCommand`] for clients over HTTP) or calls them over HTTP ([`UrlTap`]).

mod bridge;
mod servers;
mod spawned;
mod stdio;

use std::{ffi::OsString, fmt, io, process::Stdio, sync::Arc};

use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::process::{Child, Command};

pub(super) use self::servers::McpServers;
pub use self::{
    bridge::UrlTap,
    spawned::{McpCommand, stand_for},
    stdio::StdioTap,
};
use net::server::ResponseBody;
use recording::cassette::CassetteError;
pub use replay::mcp_traffic::{McpRecorded, RecordingTarget};

/// Bytes that are read at once.
const AT_ONCE: usize = 64 << 10;

/// Starts a command whose input and output are piped; dropping it kills it.
fn spawn(command: &[OsString]) -> io::Result<Child> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()
}

/// A request to a path below `/mcp/`.
pub type McpRequest = Request<Incoming>;

/// What answers requests to MCP servers from a cassette, where that is played; it reaches the real servers by itself.
pub trait McpPlayback: fmt::Debug + Send + Sync {
    /// Answers a request.
    fn answer(&self, request: McpRequest) -> BoxFuture<'static, Response<ResponseBody>>;

    /// Ends its streams, which would go on until their clients leave.
    fn end_streams(&self);

    /// Ends the processes of the servers that were started.
    fn end(&self) -> BoxFuture<'_, ()>;

    /// Ends the recording; blocks until the records are handed over. `None` where nothing was recorded.
    fn finish(&self) -> Option<McpRecorded>;
}

/// The playback of a tap, where it plays.
pub type SharedPlayback = Option<Arc<dyn McpPlayback>>;

/// Makes a line of a message: JSON has line ends between its tokens only.
fn as_line(mut message: Vec<u8>) -> Vec<u8> {
    message.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    message.push(b'\n');
    message
}

/// Reason for which a server cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum McpTapError {
    /// The cassette cannot be written.
    #[error(transparent)]
    Cassette(#[from] CassetteError),
    /// The server cannot be started.
    #[error("cannot run {command}")]
    Command {
        /// The program.
        command: String,
        /// Why.
        source: io::Error,
    },
}

/// Outcome of a tap.
#[derive(Debug)]
pub struct McpTapEnd {
    /// The server's exit code, as a shell shows it.
    pub code: u8,
    /// What was recorded.
    pub recorded: Result<McpRecorded, CassetteError>,
}
