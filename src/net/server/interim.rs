//! Interim answers (1xx): what a service says before its answer. hyper has no way to send them, so they are written beneath
//! it, at a moment when everything that it was given is written.
//!
//! Limits: HTTP/1.1 only.

use std::{
    future::{Future, poll_fn},
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use http::{HeaderMap, StatusCode};
use tokio::io::AsyncWrite;

/// The interim answers of one connection; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Interim(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    words: Vec<u8>,
    written: usize,
    /// Who answers the request.
    service: Option<Waker>,
}

impl Interim {
    /// Says something before the answer.
    pub fn say(&self, status: StatusCode, headers: &HeaderMap) {
        let mut state = self.lock();
        let reason = status.canonical_reason().unwrap_or_default();
        state.words.extend_from_slice(format!("HTTP/1.1 {} {reason}\r\n", status.as_str()).as_bytes());
        for (name, value) in headers {
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                state.words.extend_from_slice(part);
            }
        }
        state.words.extend_from_slice(b"\r\n");
        let service = state.service.take();
        drop(state);
        service.into_iter().for_each(Waker::wake);
    }

    /// Makes an answer; it is there once everything that was said before it is written.
    pub async fn before<T>(&self, mut answering: Pin<&mut impl Future<Output = T>>) -> T {
        let mut answer = None;
        poll_fn(|context| {
            if answer.is_none()
                && let Poll::Ready(ready) = answering.as_mut().poll(context)
            {
                answer = Some(ready);
            }
            let mut state = self.lock();
            if state.words.is_empty()
                && let Some(answer) = answer.take()
            {
                state.service = None;
                return Poll::Ready(answer);
            }
            if !state.service.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                state.service = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Writes what was said.
    pub(super) fn poll_write<I: AsyncWrite + Unpin>(
        &self,
        stream: &mut I,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        while let Some(rest) = state.words.get(state.written..).filter(|rest| !rest.is_empty()) {
            let written = ready!(Pin::new(&mut *stream).poll_write(context, rest))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            state.written += written;
        }
        if state.written > 0 {
            (state.words, state.written) = (Vec::new(), 0);
            let service = state.service.take();
            drop(state);
            service.into_iter().for_each(Waker::wake);
        }
        Poll::Ready(Ok(()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    #[tokio::test]
    async fn an_answer_waits_for_what_was_said_before_it() {
        let interim = Interim::default();
        let (mut server, mut client) = duplex(7);
        let saying = interim.clone();
        let answering = std::pin::pin!(async move {
            let mut headers = HeaderMap::new();
            headers.insert("link", "</a>".parse().unwrap());
            saying.say(StatusCode::EARLY_HINTS, &headers);
            7
        });
        let answering = interim.before(answering);
        let writing = async {
            tokio::task::yield_now().await;
            poll_fn(|context| interim.poll_write(&mut server, context)).await.unwrap();
            drop(server);
        };
        let mut read = String::new();
        let (answer, (), count) = tokio::join!(answering, writing, client.read_to_string(&mut read));
        assert_eq!((answer, read.as_str()), (7, "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"));
        assert_eq!(count.unwrap(), read.len());
    }
}
