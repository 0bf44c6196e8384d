//! Informational responses (1xx), sent before the final response. hyper cannot send them, so they are written below it, at a
//! moment when everything that hyper had to write is written.
//!
//! Limits: HTTP/1.1 only.

use std::{
    future::{Future, poll_fn},
    io,
    pin::Pin,
    sync::{Arc, MutexGuard},
    task::{Context, Poll, Waker, ready},
};

use bytes::BytesMut;
use http::{HeaderMap, StatusCode};
use tokio::io::AsyncWrite;

use super::connection_stream::poll_write_all;
use base::lock::Lock;
use base::rate_limited_log::RateLimitedLog;

/// Bytes of informational responses that wait for a client that does not read; further ones are dropped, which HTTP allows.
const MAX_PENDING: usize = 64 << 10;

/// Warnings of clients that do not read.
static DROPPED: RateLimitedLog = RateLimitedLog::new();

/// The informational responses of one connection; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Informational(Arc<Lock<InformationalState>>);

#[derive(Debug, Default)]
struct InformationalState {
    /// Encoded responses that are not written.
    pending: BytesMut,
    /// Responses that were dropped because too many waited.
    dropped: u64,
    /// The task that answers the request.
    service: Option<Waker>,
}

impl Informational {
    /// Queues an informational response; false if too many wait, and it is dropped.
    pub fn send(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        let reason = status.canonical_reason().unwrap_or_default();
        let mut head = format!("HTTP/1.1 {} {reason}\r\n", status.as_str()).into_bytes();
        for (name, value) in headers {
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                head.extend_from_slice(part);
            }
        }
        head.extend_from_slice(b"\r\n");
        let mut state = self.0.lock();
        if !state.pending.is_empty() && state.pending.len() + head.len() > MAX_PENDING {
            state.dropped += 1;
            if state.dropped == 1
                && let Some(held) = DROPPED.due()
            {
                tracing::warn!(
                    held,
                    "a client does not read its informational responses (1xx); further ones are dropped"
                );
            }
            return false;
        }
        state.pending.extend_from_slice(&head);
        wake(state);
        true
    }

    /// Awaits the final response, and delays it until every informational response that was queued before is written.
    pub(crate) async fn send_before<T>(&self, mut responding: Pin<&mut impl Future<Output = T>>) -> T {
        let mut response = None;
        poll_fn(|context| {
            if response.is_none()
                && let Poll::Ready(ready) = responding.as_mut().poll(context)
            {
                response = Some(ready);
            }
            let mut state = self.0.lock();
            if state.pending.is_empty()
                && let Some(response) = response.take()
            {
                state.service = None;
                return Poll::Ready(response);
            }
            if !state.service.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                state.service = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    pub(super) fn poll_write<I: AsyncWrite + Unpin>(
        &self,
        stream: &mut I,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        if !state.pending.is_empty() {
            ready!(poll_write_all(stream, context, &mut state.pending))?;
            state.pending = BytesMut::new();
            wake(state);
        }
        Poll::Ready(Ok(()))
    }
}

/// Wakes the service, after the lock is released: its task may run at once and take it.
fn wake(mut state: MutexGuard<'_, InformationalState>) {
    let service = state.service.take();
    drop(state);
    if let Some(service) = service {
        service.wake();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    #[tokio::test]
    async fn a_response_waits_for_the_informational_ones_before_it() {
        let informational = Informational::default();
        let (mut server, mut client) = duplex(7);
        let sender = informational.clone();
        let responding = std::pin::pin!(async move {
            let mut headers = HeaderMap::new();
            headers.insert("link", "</a>".parse().unwrap());
            assert!(sender.send(StatusCode::EARLY_HINTS, &headers));
            7
        });
        let responding = informational.send_before(responding);
        let writing = async {
            tokio::task::yield_now().await;
            poll_fn(|context| informational.poll_write(&mut server, context)).await.unwrap();
            drop(server);
        };
        let mut read = String::new();
        let (response, (), count) = tokio::join!(responding, writing, client.read_to_string(&mut read));
        assert_eq!((response, read.as_str()), (7, "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"));
        assert_eq!(count.unwrap(), read.len());
    }

    #[test]
    fn what_waits_for_a_client_that_does_not_read_is_bounded() {
        let informational = Informational::default();
        let headers = HeaderMap::from_iter([(http::header::LINK, "a".repeat(1000).parse().unwrap())]);
        let sent = (0..10_000).filter(|_| informational.send(StatusCode::EARLY_HINTS, &headers)).count();
        let state = informational.0.lock();
        assert!(state.pending.len() <= 64 << 10 && state.pending.ends_with(b"\r\n\r\n"), "{}", state.pending.len());
        let whole = state.pending.len() / (1000 + b"HTTP/1.1 103 Early Hints\r\nlink: \r\n\r\n".len());
        assert_eq!((sent, state.dropped), (whole, 10_000 - whole as u64));
    }
}
