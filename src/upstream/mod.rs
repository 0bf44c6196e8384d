//! The one HTTP client: connections to the server that is being recorded.
//!
//! It follows no redirects, adds no headers of its own beyond `host`, sets no time limits unless told to and keeps
//! connections alive. HTTP/1.1 over TCP, TLS or a Unix socket; HTTP/2 where TLS agrees on it, or by prior knowledge
//! (`h2c://`).
//!
//! Limits: interim answers (1xx) other than 101 are not passed on, since the HTTP library has no way to; HTTP/2 has no
//! upgrades.

mod connector;
mod headers;
mod url;

use std::{error::Error, sync::Arc, time::Duration};

use http::{
    Request, Response,
    header::{self, HeaderValue},
};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::time::timeout;

use self::connector::Connector;
pub use self::{
    connector::{Authorities, AuthoritiesError},
    headers::{protocol_asked_for, remove},
    url::{UpstreamUrl, UrlError},
};

/// How a server is reached.
#[derive(Debug, Clone, Default)]
pub struct Reach {
    /// How long a connection may take to be made; `None` for as long as the system allows.
    pub connect_within: Option<Duration>,
    /// How long the head of an answer may take; `None` for ever.
    pub answer_within: Option<Duration>,
    /// Who signs the certificates of `https` servers; `None` for the authorities that browsers trust.
    pub authorities: Option<Arc<Authorities>>,
}

/// A request that the upstream did not answer.
#[derive(Debug, thiserror::Error)]
#[error("the upstream at {upstream} did not answer")]
pub struct UpstreamError {
    upstream: String,
    #[source]
    source: Cause,
}

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error(transparent)]
    Client(#[from] hyper_util::client::legacy::Error),
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
}

impl UpstreamError {
    /// Whether no connection could be made at all.
    #[must_use]
    pub fn is_connect(&self) -> bool {
        matches!(&self.source, Cause::Client(error) if error.is_connect())
    }

    /// Whether a time limit ended it.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        let mut causes = std::iter::successors(Some(&self.source as &dyn Error), |cause| (*cause).source());
        matches!(self.source, Cause::TimedOut(_)) || causes.any(|cause| cause.is::<connector::ConnectTimeout>())
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
    client: Client<Connector, B>,
    answer_within: Option<Duration>,
}

impl<B> Clone for Upstream<B> {
    fn clone(&self) -> Self {
        Self { url: self.url.clone(), client: self.client.clone(), answer_within: self.answer_within }
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
    pub fn new(url: UpstreamUrl, reach: &Reach) -> Self {
        let connector = Connector::new(&url, reach);
        let mut builder = Client::builder(TokioExecutor::new());
        if url.has_prior_knowledge() {
            builder.http2_only(true);
        }
        Self { client: builder.build(connector), answer_within: reach.answer_within, url }
    }

    /// Where the upstream is.
    #[must_use]
    pub fn url(&self) -> &UpstreamUrl {
        &self.url
    }

    /// Sends a request to the upstream: its path and query are kept, hop-by-hop headers are dropped, `host` is the
    /// upstream's. A request to become another protocol is passed on as such. Returns when the head of the answer is
    /// there.
    ///
    /// # Errors
    /// When the upstream cannot be reached, breaks off before the head of its answer, or takes too long.
    pub async fn send(&self, mut request: Request<B>) -> Result<Response<Incoming>, UpstreamError> {
        *request.uri_mut() = self.url.target(request.uri());
        *request.version_mut() =
            if self.url.has_prior_knowledge() { http::Version::HTTP_2 } else { http::Version::HTTP_11 };
        headers::prepare_request(request.headers_mut());
        if let Ok(host) = HeaderValue::from_str(self.url.host()) {
            request.headers_mut().insert(header::HOST, host);
        }
        let failed = |source| UpstreamError { upstream: self.url.to_string(), source };
        let answered = self.client.request(request);
        let answered = match self.answer_within {
            Some(limit) => timeout(limit, answered).await.map_err(|_| failed(Cause::TimedOut(limit)))?,
            None => answered.await,
        };
        let mut response = answered.map_err(|source| failed(source.into()))?;
        headers::prepare_response(response.status(), response.headers_mut());
        Ok(response)
    }
}
