//! Taps of MCP servers. Over HTTP they are behind the address of the tap; over stdio a program stands in their place, and
//! starts them ([`StdioTap`], and [`McpCommand`] for clients over HTTP) or calls them over HTTP ([`UrlTap`]).

mod bridge;
mod servers;
mod spawned;
mod stdio;

use std::{ffi::OsString, io, process::Stdio};

use tokio::process::{Child, Command};

pub(super) use self::servers::McpServers;
pub use self::{bridge::UrlTap, spawned::McpCommand, stdio::StdioTap};
use recording::cassette::CassetteError;
pub use replay::mcp_traffic::{McpRecorded, RecordingTarget};

/// Bytes that are read at once.
const AT_ONCE: usize = 64 << 10;

/// Starts a command whose input and output are piped; dropping it kills it.
fn spawn(command: &[OsString]) -> io::Result<Child> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()
}

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

/// What a tap came to.
#[derive(Debug)]
pub struct McpTapEnd {
    /// The server's exit code, as a shell shows it.
    pub code: u8,
    /// What was recorded.
    pub recorded: Result<McpRecorded, CassetteError>,
}
