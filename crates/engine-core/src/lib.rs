//! The protocol between vLLM's front ends and its engine core, over ZeroMQ and MessagePack.
//!
//! A front end (`vllm serve`, `vllm-rs serve`) binds its sockets and the engine connects to them: [`handshake`] has how they meet,
//! [`request`] what a front end sends, [`outputs`] and [`stats`] what an engine does, [`utility`] the calls between them. Structs are arrays by
//! position, whose fields differ by version: [`layout`] has them as tables. [`zmtp`] is the wire, [`session`] an engine's connections
//! to one front end. `examples/echo.rs` is a whole engine.
//!
//! Limits: messages, their values and depth are bounded; pickled values (extensions 1 and 2) are refused, prompt embeddings and
//! shared memory too. There is no authentication: whoever reaches a port speaks.
//!
//! Source: `vllm/v1/engine/__init__.py`, `vllm/v1/serial_utils.py`, `vllm/v1/engine/core.py` of 0.10 to 0.33, ZMTP 3.0 (rfc.zeromq.org/spec/23).
//! See docs/decisions/0134-the-engine-core-protocol-is-read-by-tables.md.

pub mod handshake;
pub mod layout;
pub mod msgpack;
pub mod outputs;
pub mod request;
pub mod session;
pub mod stats;
pub mod utility;
pub mod zmtp;
pub mod zmtp_reader;

use self::{layout::KNOWN_VERSIONS, msgpack::MsgpackError};

/// Why a message is none that is understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// It is no MessagePack, or more than is taken; with its name in vLLM.
    #[error("{0}: {1}")]
    Msgpack(&'static str, #[source] MsgpackError),
    /// A field has another type than vLLM gives it, or is absent.
    #[error("{message}.{field} is not {wanted}")]
    Field {
        /// Name of the message in vLLM.
        message: &'static str,
        /// Name of the field in vLLM.
        field: &'static str,
        /// What it has to be.
        wanted: &'static str,
    },
    /// The number of a request's fields belongs to no version that is known.
    #[error("EngineCoreRequest has {0} fields; known are those of vLLM {KNOWN_VERSIONS}")]
    Layout(usize),
    /// Something that vLLM may send in a request, and that is not taken here.
    #[error("EngineCoreRequest.{field}: {reason}")]
    Refused {
        /// Name of the field in vLLM.
        field: &'static str,
        /// Why, and what to do.
        reason: &'static str,
    },
}
