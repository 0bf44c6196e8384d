//! Requests of this process, sent and recorded as those of a connection: the load client's way in.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use tokio::time::Instant;

use super::{Tap, body::ProxyBody, gather::ReceivedBody, proxy::Proxy};
use net::server::BodyError;
use recording::trace::Endpoint;

/// Sends requests through a tap. Its connections belong to the runtime that it first sends on, so each runtime has a client of its own.
#[derive(Debug)]
pub struct Client {
    proxy: Arc<Proxy>,
}

/// A response on its way; its exchange ends with it.
#[derive(Debug)]
pub struct ClientBody(ProxyBody);

impl ClientBody {
    /// Tokens of the first choice that have come; 0 where the response is not a stream of tokens.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        match &self.0 {
            ProxyBody::ObservedStream(stream) => {
                stream.inner().map_or(0, super::observed_stream::ObservedStream::tokens)
            }
            _ => 0,
        }
    }

    /// Ends the exchange of a stream that is given up because nothing comes of it.
    pub fn time_out(&mut self) {
        if let ProxyBody::ObservedStream(stream) = &mut self.0 {
            stream.inner_mut().into_iter().for_each(super::observed_stream::ObservedStream::time_out);
        }
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.get_mut().0).poll_frame(cx)
    }
}

impl Client {
    /// Sends a request to the upstream of this index (the default one is 0, then those of the routes in order) and returns when the head
    /// of its response is there. An upstream that does not answer is recorded, and becomes a response with status 502 or 504.
    pub async fn send(&self, upstream: usize, request: Request<Bytes>) -> Response<ClientBody> {
        let (parts, bytes) = request.into_parts();
        let endpoint = Endpoint::of_path(parts.uri.path());
        let body = ReceivedBody { bytes, trailers: None };
        self.proxy.record_at(Some(upstream), endpoint, parts, body, None).await.map(ClientBody)
    }
}

impl Tap {
    /// Builds a client with connections of its own.
    #[must_use]
    pub fn client(&self) -> Client {
        Client { proxy: Arc::new(self.proxy.apart()) }
    }

    /// Zero of the arrivals of its records.
    #[must_use]
    pub fn zero(&self) -> Instant {
        self.proxy.shared.zero
    }

    /// Marks what is still on its way as cut, from now on.
    pub fn begin_cutting(&self) {
        self.proxy.begin_cutting();
    }
}
