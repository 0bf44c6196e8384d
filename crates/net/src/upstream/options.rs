//! What a caller brings: the body of a request, and options.

use std::{sync::Arc, time::Duration};

use super::{connector::Authorities, relay::Relayed};
use crate::server::RequestBody;

/// The body of a request. It is one type, so that hyper's client is compiled once.
pub type OutgoingBody = Relayed<RequestBody>;

impl From<RequestBody> for OutgoingBody {
    /// What was read is sent in pieces.
    fn from(body: RequestBody) -> Self {
        match body {
            RequestBody::Read(bytes) => Self::whole(bytes.unwrap_or_default()),
            RequestBody::Live(_) | RequestBody::Boxed(_) => Self::untouched(body),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn what_was_read_is_sent_in_pieces() {
        let mut body = OutgoingBody::from(RequestBody::Read(Some(Bytes::from(vec![7; 1 << 20]))));
        let mut pieces = Vec::new();
        while let Some(frame) = body.frame().await {
            pieces.push(frame.unwrap().into_data().unwrap().len());
        }
        assert!(pieces.len() > 1 && pieces.iter().sum::<usize>() == 1 << 20, "{pieces:?}");
    }
}
