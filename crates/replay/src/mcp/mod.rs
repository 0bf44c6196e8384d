//! MCP: what a tap sees of it becomes records, and records answer a client. Nothing here reads, writes or waits.
//!
//! [`Observer`] makes records of the lines of a connection. [`RecordIndex`] finds them by method and canonical parameters, and [`McpSession`] is a
//! server that answers one connection from a recording. The loops around them are in `tap::mcp` and `play::mcp`.
//!
//! See docs/decisions/0087-mcp-sessions-without-io.md.

mod endpoint;
mod era;
mod import;
mod lines;
mod message;
mod miss;
mod observer;
mod params;
mod playback;
mod record_index;
mod servers;
mod session;
mod stub;
#[cfg(test)]
mod tests;
mod tool_changes;

pub(crate) use self::{
    endpoint::account_session,
    params::{is_by_method, is_list},
};
pub use self::{
    endpoint::{
        EndpointAnswer, EndpointReply, HttpSender, McpEndpoint, McpForward, McpHeaders, PARAMETER, SessionKey,
        StreamMessage, named_in_headers,
    },
    import::{ImportError, Imported, import, is_log},
    lines::{LineSplitter, ReadLine},
    message::{MOST_BYTES, error_response, method_of},
    miss::{EXHAUSTED, NO_MATCH},
    observer::{FinishedExchange, MessageOrigin, Observer, Sender, Unrecorded},
    params::ParamRules,
    record_index::{IndexedRecord, McpRecordError, RecordIndex, servers},
    servers::{Servers, is_of_mcp},
    session::{McpPolicy, McpSession, OnNovel, OnUsedUp, SentMessage, SessionStep, journal_entry},
    tool_changes::{ChangeClass, ToolChange, tool_changes},
};
