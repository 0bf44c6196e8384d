//! The client in front of a gateway: posts a request and keeps what comes, read by read.
//!
//! Limits: a response is kept up to 32 MiB, and up to ten times as long as it may be silent; a read is what arrived together, over TLS or HTTP/2 at most a chunk or a frame.

use std::{error::Error, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, header};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout};

use crate::{
    base::causes::causes,
    net::upstream::{OutgoingBody, Upstream, UpstreamOptions, UpstreamUrl},
};

/// Maximum size of a response, in bytes.
const LARGEST_RESPONSE: usize = 32 << 20;

/// Maximum duration of a response, as a multiple of the allowed silence.
const LONGEST_RESPONSE: u32 = 10;

/// A client of one gateway; clones share their connections.
#[derive(Debug, Clone)]
pub struct StreamClient {
    gateway: Upstream,
    headers: HeaderMap,
    silence: Duration,
}

/// A response as it arrived.
#[derive(Debug, Clone, Default)]
pub struct ReceivedStream {
    /// The status; 0 where there was no response.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// The body.
    pub reads: Vec<StreamRead>,
    /// How it ended.
    pub end: ReceivedEnd,
    /// From the request to the end.
    pub took: Duration,
}

/// Bytes that arrived together.
#[derive(Debug, Clone)]
pub struct StreamRead {
    /// When, from the request.
    pub after: Duration,
    /// They.
    pub bytes: Bytes,
}

/// End of a response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ReceivedEnd {
    /// The body was complete.
    #[default]
    Proper,
    /// The connection broke in its middle, for this reason.
    Broken(String),
    /// Nothing came for too long.
    Silent,
    /// It was too large, or took too long.
    TooLarge,
    /// There was no response, for this reason.
    Unanswered(String),
}

impl StreamClient {
    /// A client that sends these headers, and gives a response up after so long without a byte.
    #[must_use]
    pub fn new(gateway: UpstreamUrl, options: &UpstreamOptions, headers: HeaderMap, silence: Duration) -> Self {
        Self { gateway: Upstream::new(gateway, options), headers, silence }
    }

    /// The same client with another patience.
    pub(crate) fn with_silence(&self, silence: Duration) -> Self {
        Self { silence, ..self.clone() }
    }

    pub(crate) fn gateway(&self) -> &UpstreamUrl {
        self.gateway.url()
    }

    /// Posts JSON and receives what comes, to its end.
    pub async fn post(&self, path: &'static str, body: Bytes) -> ReceivedStream {
        let start = Instant::now();
        let mut request = Request::new(OutgoingBody::whole(body));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = http::Uri::from_static(path);
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        let mut received = ReceivedStream::default();
        received.end = match timeout(self.silence, self.gateway.send(request)).await {
            Err(_) => ReceivedEnd::Silent,
            Ok(Err(error)) => ReceivedEnd::Unanswered(chain(&error)),
            Ok(Ok(response)) => {
                let (parts, mut body) = response.into_parts();
                (received.status, received.headers) = (parts.status.as_u16(), parts.headers);
                let (mut size, reads) = (0, &mut received.reads);
                loop {
                    match timeout(self.silence, body.frame()).await {
                        Err(_) => break ReceivedEnd::Silent,
                        Ok(None) => break ReceivedEnd::Proper,
                        Ok(Some(Err(error))) => break ReceivedEnd::Broken(chain(&error)),
                        Ok(Some(Ok(frame))) => {
                            let Ok(bytes) = frame.into_data() else { continue };
                            size += bytes.len();
                            reads.push(StreamRead { after: start.elapsed(), bytes });
                        }
                    }
                    if size > LARGEST_RESPONSE || start.elapsed() > self.silence.saturating_mul(LONGEST_RESPONSE) {
                        break ReceivedEnd::TooLarge;
                    }
                }
            }
        };
        received.took = start.elapsed();
        received
    }
}

impl ReceivedStream {
    /// The whole body.
    #[must_use]
    pub fn body(&self) -> Bytes {
        let parts: Vec<&[u8]> = self.reads.iter().map(|read| &*read.bytes).collect();
        parts.concat().into()
    }
}

/// An error and its causes in one line.
fn chain(error: &(dyn Error + 'static)) -> String {
    causes(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
