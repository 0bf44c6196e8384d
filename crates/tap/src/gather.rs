//! Bodies that are received whole before they are forwarded, up to a limit of each and of all together.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, request::Parts};
use http_body_util::BodyExt;
use hyper::body::Body;

use base::held_bytes::{HeldBytes, HeldShare};
use net::upstream::OutgoingBody;
use net::{server::BodyError, upstream::Relayed};

/// Maximum size of a request's or JSON response's body that is decoded, in bytes; a longer one passes as it comes.
const MAX_DECODED_BODY: usize = 64 << 20;

/// Maximum size of all such bodies together, in bytes, as long as anything holds them; what comes then passes as it comes.
pub(super) const MAX_BODIES: u64 = 512 << 20;

/// Size of a body that is not counted among all, in bytes.
const SHORT: usize = 16 << 10;

struct GatheredBody {
    bytes: Bytes,
    _reserved: HeldShare,
}

impl AsRef<[u8]> for GatheredBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A body that was received whole, and its trailers.
#[derive(Debug)]
pub(super) struct ReceivedBody {
    pub(super) bytes: Bytes,
    pub(super) trailers: Option<Box<HeaderMap>>,
}

impl ReceivedBody {
    /// Returns the request that a client sent, with its body unchanged.
    pub(super) fn into_request(self, parts: Parts) -> Request<OutgoingBody> {
        Request::from_parts(parts, self.into_body())
    }

    /// Converts it into a body that can be sent.
    pub(super) fn into_body<R>(self) -> Relayed<R> {
        Relayed::whole(self.bytes).with_trailers(self.trailers)
    }
}

pub(super) enum Gathered<R> {
    /// All of it.
    Whole(ReceivedBody),
    /// The body is over its limit, or all bodies are over theirs together: its beginning, then the rest as it comes.
    TooLarge { body: Relayed<R>, is_together: bool },
    /// The body ended early.
    Broken(BodyError),
}

/// Receives a body, up to the limits.
pub(super) async fn gather<R>(mut body: Relayed<R>, bodies: &HeldBytes) -> Gathered<R>
where
    R: Body<Data = Bytes, Error: Into<BodyError>> + Unpin,
{
    if body.size_hint().lower() > MAX_DECODED_BODY as u64 {
        return Gathered::TooLarge { body, is_together: false };
    }
    let (mut gathered, mut trailers) = (BytesMut::new(), None);
    let mut reserved = bodies.share();
    while let Some(frame) = body.frame().await {
        let data = match frame.map(http_body::Frame::into_data) {
            Ok(Ok(data)) => data,
            Ok(Err(other)) => {
                trailers = other.into_trailers().ok().map(Box::new);
                continue;
            }
            Err(error) => return Gathered::Broken(error),
        };
        let has_room = reserved.add(data.len() as u64);
        if gathered.is_empty() && body.is_end_stream() {
            // It came in one piece, which is there already. Most are short, and not worth a count of their own.
            let bytes = if data.len() > SHORT { held(data, reserved) } else { data };
            return Gathered::Whole(ReceivedBody { bytes, trailers: None });
        }
        if gathered.is_empty() {
            gathered.reserve(data.len() + usize::try_from(body.size_hint().lower()).unwrap_or_default());
        }
        gathered.extend_from_slice(&data);
        let is_too_large = gathered.len() > MAX_DECODED_BODY;
        if is_too_large || !has_room {
            let body = Relayed::resumed(held(gathered.freeze(), reserved), body);
            return Gathered::TooLarge { body, is_together: !is_too_large };
        }
    }
    Gathered::Whole(ReceivedBody { bytes: held(frozen(gathered), reserved), trailers })
}

/// A body as it is kept: one that grew without an announced length has up to twice its bytes.
fn frozen(gathered: BytesMut) -> Bytes {
    let spare = gathered.capacity() - gathered.len();
    if spare > gathered.len() / 8 { Bytes::copy_from_slice(&gathered) } else { gathered.freeze() }
}

/// Bytes that give their reservation back with their last clone.
fn held(bytes: Bytes, reserved: HeldShare) -> Bytes {
    Bytes::from_owner(GatheredBody { bytes, _reserved: reserved })
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    #[test]
    fn a_body_that_grew_keeps_its_bytes_only() {
        let mut grown = BytesMut::with_capacity(1000);
        grown.extend_from_slice(&[7; 600]);
        let kept = frozen(grown);
        assert_eq!((kept.len(), kept.try_into_mut().unwrap().capacity()), (600, 600));
    }

    /// A body of this many frames of 100 bytes.
    fn body(frames: usize) -> Relayed<impl Body<Data = Bytes, Error = BodyError> + Unpin> {
        let frame = || Ok(Frame::data(Bytes::from(vec![1; 100])));
        Relayed::untouched(StreamBody::new(stream::iter((0..frames).map(move |_| frame()))))
    }

    #[tokio::test]
    async fn bodies_together_are_bounded_and_what_is_over_passes_whole() {
        let bodies = HeldBytes::new(1000);
        let Gathered::Whole(first) = gather(body(6), &bodies).await else { panic!("there is room") };
        let clone = first.bytes.clone();
        drop(first);
        let Gathered::TooLarge { body: passed, is_together: true } = gather(body(50), &bodies).await else {
            panic!("there is no room")
        };
        assert!(bodies.held() <= 1100, "what passes is not gathered further");
        assert_eq!(passed.collect().await.unwrap().to_bytes().len(), 5000);
        assert_eq!(bodies.held(), 600);
        drop(clone);
        let Gathered::Whole(next) = gather(body(10), &bodies).await else { panic!("there is room again") };
        assert_eq!((next.bytes.len(), bodies.held()), (1000, 1000));
        drop(next);
        assert_eq!(bodies.held(), 0);
    }
}
