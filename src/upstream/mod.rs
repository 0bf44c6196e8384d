//! The one HTTP client: connections to the server that is being recorded.
//!
//! It follows no redirects, adds no headers of its own beyond `host`, sets no time limits and keeps connections alive.
//! Plain HTTP/1.1 only for now.
//!
//! A connection is driven by whoever waits for its answer, not by a task of its own ([`Received`]): what arrived together
//! is passed on together, without a change of tasks in between.

mod connection;
mod headers;
mod pool;
mod received;
mod url;

use std::{error::Error, io, sync::Arc};

use http::{Request, Response, header, header::HeaderValue};
use http_body::Body;

use self::{connection::Connection, headers::strip_hop_by_hop, pool::Pool};
pub use self::{
    headers::remove,
    received::Received,
    url::{UpstreamUrl, UrlError},
};

/// A request that the upstream did not answer.
#[derive(Debug, thiserror::Error)]
#[error("the upstream at {upstream} did not answer")]
pub struct UpstreamError {
    upstream: String,
    source: Failure,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// No connection could be made.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// The connection broke, or what came over it is not HTTP.
    #[error("the connection broke")]
    Http(#[source] hyper::Error),
}

impl UpstreamError {
    /// Whether no connection could be made at all.
    #[must_use]
    pub fn is_connect(&self) -> bool {
        matches!(self.source, Failure::Connect(_))
    }

    /// The innermost cause, in the system's words.
    #[must_use]
    pub fn cause(&self) -> String {
        let mut cause: &dyn Error = &self.source;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        cause.to_string()
    }
}

/// A client for one upstream; clones share their connections.
#[derive(Debug)]
pub struct Upstream<B> {
    url: UpstreamUrl,
    pool: Arc<Pool<B>>,
}

impl<B> Clone for Upstream<B> {
    fn clone(&self) -> Self {
        Self { url: self.url.clone(), pool: Arc::clone(&self.pool) }
    }
}

impl<B> Upstream<B>
where
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    /// A client for `url`. Connects when the first request is sent.
    #[must_use]
    pub fn new(url: UpstreamUrl) -> Self {
        Self { url, pool: Arc::new(Pool::default()) }
    }

    /// Sends a request to the upstream: its path and query are kept, hop-by-hop headers are dropped, `host` is the
    /// upstream's. Returns when the head of the answer is there. A request that met a connection which the upstream had
    /// just closed is sent again over another.
    ///
    /// # Errors
    /// When the upstream cannot be reached or breaks off before the head of its answer.
    pub async fn send(&self, mut request: Request<B>) -> Result<Response<Received<B>>, UpstreamError> {
        *request.uri_mut() = self.url.target(request.uri());
        *request.version_mut() = http::Version::HTTP_11;
        strip_hop_by_hop(request.headers_mut());
        if let Ok(host) = HeaderValue::from_str(self.url.authority()) {
            request.headers_mut().insert(header::HOST, host);
        }
        let mut response =
            self.answer(request).await.map_err(|source| UpstreamError { upstream: self.url.to_string(), source })?;
        strip_hop_by_hop(response.headers_mut());
        Ok(response)
    }

    async fn answer(&self, mut request: Request<B>) -> Result<Response<Received<B>>, Failure> {
        while let Some(connection) = self.pool.take() {
            match connection.send(request).await {
                Ok((response, connection)) => return Ok(self.received(response, connection)),
                Err(unsent) => request = unsent.request.ok_or(Failure::Http(unsent.error))?,
            }
        }
        let connection = Connection::open(self.url.address()).await?;
        match connection.send(request).await {
            Ok((response, connection)) => Ok(self.received(response, connection)),
            Err(unsent) => Err(Failure::Http(unsent.error)),
        }
    }

    fn received(
        &self,
        response: Response<hyper::body::Incoming>,
        connection: Option<Connection<B>>,
    ) -> Response<Received<B>> {
        response.map(|body| Received::new(body, connection, &self.pool))
    }
}
