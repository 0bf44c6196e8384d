//! What was served to which request, before and after faults: for programs that know what a gateway in front of the server should show.
//!
//! Limits: a log keeps what it was given until it is taken, without a bound; it is not for servers that run for long.

use std::{
    collections::HashMap,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::Body as AxumBody;
use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::Instant;

use base::lock::Lock;
use net::server::BodyError;

/// A response as it was served.
#[derive(Debug, Clone)]
pub struct ServedResponse {
    /// Path of the request.
    pub path: String,
    /// Body of the request.
    pub request: Bytes,
    /// When the request had arrived.
    pub arrived: Instant,
    /// The status; 0 where there was no response yet.
    pub status: u16,
    /// The body before faults.
    pub body: Vec<Bytes>,
    /// The body after faults, chunk by chunk.
    pub chunks: Vec<ServedChunk>,
    /// How the body ended; `None` while it has not.
    pub end: Option<ServedEnd>,
}

/// A chunk of a response.
#[derive(Debug, Clone)]
pub struct ServedChunk {
    /// When it was handed to the connection.
    pub at: Instant,
    /// Its bytes.
    pub bytes: Bytes,
    /// Whether it leaves in the write of the one before.
    pub is_joined: bool,
}

/// End of a served body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServedEnd {
    /// The body was complete.
    Proper,
    /// It broke off.
    Broken,
    /// The client left before.
    Dropped,
}

/// Reads the key of a request from its body; a request without a key is not kept.
pub type ServedKey = fn(&[u8]) -> Option<String>;

pub(super) type SharedResponse = Arc<Lock<ServedResponse>>;

/// Responses to the requests that have a key.
#[derive(Debug)]
pub struct ServedLog {
    key: ServedKey,
    served: Lock<HashMap<String, Vec<SharedResponse>>>,
}

impl ServedLog {
    /// An empty log of requests that `key` finds.
    #[must_use]
    pub fn new(key: ServedKey) -> Self {
        Self { key, served: Lock::default() }
    }

    /// Takes what was served to requests of this key, in the order of their arrival, as it is now.
    pub fn take(&self, key: &str) -> Vec<ServedResponse> {
        let taken = self.served.lock().remove(key).unwrap_or_default();
        taken.iter().map(|response| response.lock().clone()).collect()
    }

    /// Adds a request that has arrived.
    pub(super) fn begin(&self, path: &str, request: &Bytes) -> Option<SharedResponse> {
        let key = (self.key)(request)?;
        let response = Arc::new(Lock::new(ServedResponse {
            path: path.to_owned(),
            request: request.clone(),
            arrived: Instant::now(),
            status: 0,
            body: Vec::new(),
            chunks: Vec::new(),
            end: None,
        }));
        self.served.lock().entry(key).or_default().push(Arc::clone(&response));
        Some(response)
    }
}

/// Side of the faults on which a body is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObservedSide {
    Before,
    After,
}

/// A body whose frames are noted.
#[derive(Debug)]
pub(super) struct ServedBody {
    inner: AxumBody,
    side: ObservedSide,
    response: SharedResponse,
    has_waited: bool,
}

impl ServedBody {
    pub(super) fn observe(inner: AxumBody, side: ObservedSide, response: &SharedResponse) -> AxumBody {
        AxumBody::new(Self { inner, side, response: Arc::clone(response), has_waited: true })
    }

    fn ends(&self, end: ServedEnd) {
        if self.side == ObservedSide::After {
            self.response.lock().end.get_or_insert(end);
        }
    }
}

impl Body for ServedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(context) else {
            this.has_waited = true;
            return Poll::Pending;
        };
        match &frame {
            None => this.ends(ServedEnd::Proper),
            Some(Err(_)) => this.ends(ServedEnd::Broken),
            Some(Ok(frame)) => {
                if let Some(bytes) = frame.data_ref().cloned() {
                    let mut response = this.response.lock();
                    match this.side {
                        ObservedSide::Before => response.body.push(bytes),
                        ObservedSide::After => {
                            let is_joined = !mem::take(&mut this.has_waited);
                            response.chunks.push(ServedChunk { at: Instant::now(), bytes, is_joined });
                        }
                    }
                }
            }
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BodyError::broken)))
    }
}

impl Drop for ServedBody {
    fn drop(&mut self) {
        self.ends(ServedEnd::Dropped);
    }
}
