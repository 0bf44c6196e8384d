//! Bodies that are received whole before they are forwarded, up to a limit.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, request::Parts};
use http_body_util::BodyExt;
use hyper::body::Body;

use super::body::{BodyError, Relayed, Sent};

/// Maximum size of a request's or JSON response's body that is decoded, in bytes; a longer one passes as it comes.
const MAX_DECODED_BODY: usize = 64 << 20;

/// A body that was received whole, and its trailers.
#[derive(Debug)]
pub(super) struct ReceivedBody {
    pub(super) bytes: Bytes,
    pub(super) trailers: Option<Box<HeaderMap>>,
}

impl ReceivedBody {
    /// Returns the request that a client sent, with its body unchanged.
    pub(super) fn into_request(self, parts: Parts) -> Request<Sent> {
        Request::from_parts(parts, self.into_body())
    }

    /// Converts it into a body that can be sent.
    pub(super) fn into_body<R>(self) -> Relayed<R> {
        Relayed::whole(self.bytes).with_trailers(self.trailers)
    }
}

/// Result of receiving a body.
pub(super) enum Gathered<R> {
    /// All of it.
    Whole(ReceivedBody),
    /// The body is over the limit: its beginning, then the rest as it comes.
    TooLarge(Relayed<R>),
    /// The body ended early.
    Broken(BodyError),
}

/// Receives a body, up to the limit.
pub(super) async fn gather<R>(mut body: Relayed<R>) -> Gathered<R>
where
    R: Body<Data = Bytes, Error: Into<BodyError>> + Unpin,
{
    if body.size_hint().lower() > MAX_DECODED_BODY as u64 {
        return Gathered::TooLarge(body);
    }
    let (mut gathered, mut trailers) = (BytesMut::new(), None);
    while let Some(frame) = body.frame().await {
        let data = match frame.map(http_body::Frame::into_data) {
            Ok(Ok(data)) => data,
            Ok(Err(other)) => {
                trailers = other.into_trailers().ok().map(Box::new);
                continue;
            }
            Err(error) => return Gathered::Broken(error),
        };
        if gathered.is_empty() && body.is_end_stream() {
            return Gathered::Whole(ReceivedBody { bytes: data, trailers: None });
        }
        gathered.extend_from_slice(&data);
        if gathered.len() > MAX_DECODED_BODY {
            return Gathered::TooLarge(Relayed::resumed(gathered.freeze(), body));
        }
    }
    Gathered::Whole(ReceivedBody { bytes: gathered.freeze(), trailers })
}
