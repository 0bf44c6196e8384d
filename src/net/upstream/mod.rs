//! The one HTTP client: connections to the server that is being recorded.
//!
//! It follows no redirects, adds no headers of its own beyond `host`, sets no time limits unless told to and keeps
//! connections alive. HTTP/1.1 over TCP, TLS or a Unix socket; HTTP/2 where TLS agrees on it, or by prior knowledge
//! (`h2c://`).
//!
//! A plain HTTP/1.1 connection is driven by whoever waits for its answer, not by a task of its own ([`Received`]): what
//! arrived together is passed on together, without a change of tasks in between. All others, and those that become
//! another protocol, have tasks of the HTTP library.
//!
//! Limits: HTTP/2 has no upgrades and tells of no interim answers; an answer over HTTP/1.1 has at most 100 headers, the
//! library's limit, which costs time on every answer to move.

mod chunked;
mod connection;
mod connector;
mod gate;
mod headers;
mod pinned;
mod pool;
mod received;
mod url;

use std::{error::Error, io, sync::Arc, time::Duration};

use http::{
    HeaderMap, Request, Response, StatusCode, Uri,
    header::{self, HeaderValue},
};
use http_body::Body;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::time::timeout;

use self::{
    connection::{Coming, Connection},
    connector::{ConnectTimeout, Connector},
    pool::Pool,
    url::Way,
};
pub use self::{
    connector::{Authorities, AuthoritiesError},
    headers::{protocol_asked_for, remove},
    received::{Received, ReceivedError},
    url::{UpstreamUrl, UrlError, without_secrets},
};

/// Tells of the interim answers (1xx) that come for a request before its answer, but for 100, which is the next server's
/// own affair, and of none over HTTP/2.
pub fn on_interim<B>(request: &mut Request<B>, told: impl Fn(StatusCode, &HeaderMap) + Send + Sync + 'static) {
    hyper::ext::on_informational(request, move |interim| {
        if interim.status() != StatusCode::CONTINUE {
            let mut headers = interim.headers().clone();
            headers::prepare_response(interim.status(), &mut headers);
            told(interim.status(), &headers);
        }
    });
}

/// The body of a request.
pub trait OutgoingBody: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static {}

impl<B> OutgoingBody for B where B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static {}

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
    source: Failure,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// No connection could be made.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// No connection was made in time.
    #[error("cannot connect")]
    Slow(#[from] ConnectTimeout),
    /// The connection broke, or what came over it is not HTTP.
    #[error("the connection broke")]
    Http(#[source] hyper::Error),
    /// Either, over a connection of the library's.
    #[error(transparent)]
    Client(#[from] hyper_util::client::legacy::Error),
    /// The answer did not begin in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
}

impl UpstreamError {
    /// Whether no connection could be made at all.
    #[must_use]
    pub fn is_connect(&self) -> bool {
        match &self.source {
            Failure::Connect(_) | Failure::Slow(_) => true,
            Failure::Client(error) => error.is_connect(),
            Failure::Http(_) | Failure::TimedOut(_) => false,
        }
    }

    /// What broke the request's own body, where that ended it.
    #[must_use]
    pub fn caused_by<E: Error + 'static>(&self) -> Option<&E> {
        let mut causes = std::iter::successors(Some(&self.source as &dyn Error), |cause| (*cause).source());
        causes.find_map(|cause| cause.downcast_ref::<E>())
    }

    /// Whether a time limit ended it.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        let mut causes = std::iter::successors(Some(&self.source as &dyn Error), |cause| (*cause).source());
        matches!(self.source, Failure::TimedOut(_)) || causes.any(|cause| cause.is::<ConnectTimeout>())
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
pub struct Upstream<B: OutgoingBody> {
    url: UpstreamUrl,
    pool: Arc<Pool<B>>,
    client: Client<Connector, B>,
    reach: Reach,
}

impl<B: OutgoingBody> Clone for Upstream<B> {
    fn clone(&self) -> Self {
        Self {
            url: self.url.clone(),
            pool: Arc::clone(&self.pool),
            client: self.client.clone(),
            reach: self.reach.clone(),
        }
    }
}

impl<B: OutgoingBody> Upstream<B> {
    /// A client for `url`. Connects when the first request is sent.
    #[must_use]
    pub fn new(url: UpstreamUrl, reach: &Reach) -> Self {
        let connector = Connector::new(&url, reach);
        let mut builder = Client::builder(TokioExecutor::new());
        builder.http2_only(*url.way() == Way::PriorKnowledge).pool_max_idle_per_host(pool::MOST_IDLE);
        Self { client: builder.build(connector), pool: Arc::new(Pool::default()), reach: reach.clone(), url }
    }

    /// Another client for the same upstream, with connections of its own. A connection belongs to the runtime that made
    /// it, so each runtime does best with a client of its own.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self::new(self.url.clone(), &self.reach)
    }

    /// Where the upstream is.
    #[must_use]
    pub fn url(&self) -> &UpstreamUrl {
        &self.url
    }

    /// Sends a request to the upstream: its path and query are kept, hop-by-hop headers are dropped, `host` is the
    /// upstream's. A request to become another protocol is passed on as such. Returns when the head of the answer is
    /// there. A request that met a connection which the upstream had just closed is sent again over another.
    ///
    /// # Errors
    /// When the upstream cannot be reached, breaks off before the head of its answer, or takes too long.
    pub async fn send(&self, mut request: Request<B>) -> Result<Response<Received<B>>, UpstreamError> {
        let becomes_other = headers::prepare_request(request.headers_mut());
        if let Ok(host) = HeaderValue::from_str(self.url.host()) {
            request.headers_mut().insert(header::HOST, host);
        }
        let is_driven = !becomes_other && matches!(self.url.way(), Way::Http | Way::Unix(_));
        // What is rare is boxed: it would take room in every request's future, which is moved about.
        let answered = match self.reach.answer_within {
            None if is_driven => self.drive(request).await,
            None => Box::pin(self.delegate(request)).await,
            Some(limit) => Box::pin(self.in_time(limit, request, is_driven)).await,
        };
        let mut response = answered.map_err(|source| UpstreamError { upstream: self.url.to_string(), source })?;
        headers::prepare_response(response.status(), response.headers_mut());
        Ok(response)
    }

    async fn in_time(
        &self,
        limit: Duration,
        request: Request<B>,
        is_driven: bool,
    ) -> Result<Response<Received<B>>, Failure> {
        let answered = async { if is_driven { self.drive(request).await } else { self.delegate(request).await } };
        timeout(limit, answered).await.map_err(|_| Failure::TimedOut(limit))?
    }

    /// Sends over a connection that the answer's reader drives.
    async fn drive(&self, mut request: Request<B>) -> Result<Response<Received<B>>, Failure> {
        *request.uri_mut() = Uri::from(self.url.path(request.uri()));
        *request.version_mut() = http::Version::HTTP_11;
        while let Some(connection) = self.pool.take() {
            match connection.send(request).await {
                Ok(response) => return Ok(self.received(response)),
                Err(unsent) => request = unsent.request.ok_or(Failure::Http(unsent.error))?,
            }
        }
        let opened = Box::pin(Connection::open(&self.url));
        let connection = match self.reach.connect_within {
            Some(limit) => timeout(limit, opened).await.map_err(|_| ConnectTimeout(limit))??,
            None => opened.await?,
        };
        match connection.send(request).await {
            Ok(response) => Ok(self.received(response)),
            Err(unsent) => Err(Failure::Http(unsent.error)),
        }
    }

    /// Sends over a connection of the library's.
    async fn delegate(&self, mut request: Request<B>) -> Result<Response<Received<B>>, Failure> {
        *request.uri_mut() = self.url.target(request.uri());
        *request.version_mut() = match self.url.way() {
            Way::PriorKnowledge => http::Version::HTTP_2,
            Way::Http | Way::Https | Way::Unix(_) => http::Version::HTTP_11,
        };
        Ok(self.received(self.client.request(request).await?.map(|body| Coming::Library(body, None))))
    }

    fn received(&self, response: Response<Coming<B>>) -> Response<Received<B>> {
        response.map(|body| Received::new(body, &self.pool))
    }
}
