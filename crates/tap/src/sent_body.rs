//! Bodies of forwarded requests.

use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;

use net::{
    server::RequestBody,
    upstream::{Relayed, UpstreamBody},
};

/// A request's body on its way to the upstream.
pub(super) type SentBody = Relayed<Incoming>;

pub(super) type TapResponseBody = UpstreamBody<SentBody>;

/// Builds the body of a request that the player does not answer.
pub(super) fn unread_body(body: RequestBody, idle: Option<Duration>) -> SentBody {
    match body {
        RequestBody::Live(body) => Relayed::untouched(body).within(idle),
        RequestBody::Read(bytes) => Relayed::whole(bytes.unwrap_or_default()),
        // Boxed bodies come from a router, and the tap has none before it.
        RequestBody::Boxed(_) => Relayed::whole(Bytes::new()),
    }
}
