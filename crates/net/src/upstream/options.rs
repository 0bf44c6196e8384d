//! What a caller brings: the body of a request, and options.

use std::{sync::Arc, time::Duration};

use super::{connector::Authorities, relay::Relayed};
use crate::server::RequestBody;

/// The body of a request. It is one type, so that hyper's client is compiled once.
pub type OutgoingBody = Relayed<RequestBody>;

/// Options of a client.
#[derive(Debug, Clone, Default)]
pub struct UpstreamOptions {
    /// Timeout of a connection attempt; `None` for the system's.
    pub connect_timeout: Option<Duration>,
    /// Timeout of the head of a response; `None` for no timeout.
    pub response_timeout: Option<Duration>,
    /// Trusted certificates of `https` servers; `None` for Mozilla's root certificates.
    pub authorities: Option<Arc<Authorities>>,
}
