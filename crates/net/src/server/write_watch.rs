//! What is known of a connection's writes: whether the client holds them up, when all is written, and the pace of a slow head.
//!
//! A body that breaks waits here until what it gave before is written. hyper flushes at the end of each turn of a connection, so two
//! flushes from now on have all of it: the first one may have begun before.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use base::lock::Lock;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::{
    io::AsyncWrite,
    time::{Sleep, sleep},
};

/// Flushes after which what was given to a connection before is written.
const FLUSHES: u8 = 2;

/// Finder of the end of a message's head in bytes that come piece by piece: how many bytes of that end were last.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HeadEnd(usize);

impl HeadEnd {
    /// Returns the number of bytes up to the end of the head; `None` where it does not end in these.
    pub(crate) fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        const END: &[u8] = b"\r\n\r\n";
        for (count, byte) in (1..).zip(bytes) {
            self.0 = match END.get(self.0) {
                Some(expected) if expected == byte => self.0 + 1,
                _ => usize::from(*byte == b'\r'),
            };
            if self.0 == END.len() {
                self.0 = 0;
                return Some(count);
            }
        }
        None
    }
}

/// The head of a response leaves in pieces; an extension of the response.
///
/// Over HTTP/2, where a head is one frame among those of others, it leaves whole, after the time that its pieces would have taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowHead {
    /// Bytes of a piece.
    pub bytes: usize,
    /// Time between pieces.
    pub every: Duration,
}

impl SlowHead {
    pub(super) fn time(self, headers: &HeaderMap) -> Duration {
        let size = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + 4;
        let pieces = headers.iter().map(size).sum::<usize>() / self.bytes.max(1);
        self.every.saturating_mul(u32::try_from(pieces).unwrap_or(u32::MAX))
    }
}

/// A head that leaves slowly.
#[derive(Debug)]
struct PacedHead {
    pace: SlowHead,
    pause: Option<Pin<Box<Sleep>>>,
    end: HeadEnd,
}

impl PacedHead {
    /// Writes the next piece; returns whether the head has ended too.
    fn poll_write<I: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut I,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<(usize, bool)>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        let piece = bytes.get(..self.pace.bytes.max(1)).unwrap_or(bytes);
        let mut end = self.end;
        let piece = end.find(piece).and_then(|of_head| piece.get(..of_head)).unwrap_or(piece);
        let written = ready!(Pin::new(stream).poll_write(context, piece))?;
        let is_over = self.end.find(piece.get(..written).unwrap_or(piece)).is_some();
        self.pause = Some(Box::pin(sleep(self.pace.every)));
        Poll::Ready(Ok((written, is_over)))
    }
}

/// A wait until all is written.
#[derive(Debug, Default)]
pub(super) struct WriteWait(Option<u64>);

#[derive(Debug)]
struct Waiting {
    id: u64,
    left: u8,
    waker: Waker,
}

#[derive(Debug, Default)]
struct WriteState {
    /// The last write waits for the client.
    is_held_up: AtomicBool,
    is_awaited: AtomicBool,
    is_paced: AtomicBool,
    rare: Lock<RareWrites>,
}

/// State that few connections need.
#[derive(Debug, Default)]
struct RareWrites {
    /// Lets the connection have a turn, where its bodies are not polled in its own.
    connection: Option<Waker>,
    waiting: Vec<Waiting>,
    begun: u64,
    head: Option<PacedHead>,
}

/// The writes of a connection; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct WriteWatch(Arc<WriteState>);

impl WriteWatch {
    /// Returns true if the last write waits for the client.
    pub(super) fn is_held_up(&self) -> bool {
        self.0.is_held_up.load(Ordering::Relaxed)
    }

    pub(super) fn observe<T>(&self, written: Poll<T>) -> Poll<T> {
        self.0.is_held_up.store(written.is_pending(), Ordering::Relaxed);
        written
    }

    /// Notes the task that serves the connection.
    pub(super) fn served_by(&self, context: &Context<'_>) {
        let mut rare = self.0.rare.lock();
        if !rare.connection.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            rare.connection = Some(context.waker().clone());
        }
    }

    /// Notes that all that the connection had was written.
    pub(super) fn flushed(&self, context: &Context<'_>) {
        if !self.0.is_awaited.load(Ordering::Acquire) {
            return;
        }
        let mut rare = self.0.rare.lock();
        rare.waiting.retain_mut(|waiting| {
            waiting.left = waiting.left.saturating_sub(1);
            if waiting.left == 0 {
                waiting.waker.wake_by_ref();
            }
            waiting.left > 0
        });
        if rare.waiting.is_empty() {
            self.0.is_awaited.store(false, Ordering::Release);
        } else {
            context.waker().wake_by_ref();
        }
    }

    /// Polls for the time when all that was given to the connection before the first poll is written.
    pub(super) fn poll_written(&self, wait: &mut WriteWait, context: &Context<'_>) -> Poll<()> {
        let mut rare = self.0.rare.lock();
        let Some(id) = wait.0 else {
            rare.begun += 1;
            let id = rare.begun;
            wait.0 = Some(id);
            rare.waiting.push(Waiting { id, left: FLUSHES, waker: context.waker().clone() });
            self.0.is_awaited.store(true, Ordering::Release);
            if let Some(connection) = &rare.connection {
                connection.wake_by_ref();
            }
            return Poll::Pending;
        };
        match rare.waiting.iter_mut().find(|waiting| waiting.id == id) {
            Some(waiting) => {
                waiting.waker.clone_from(context.waker());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }

    /// Lets the next head leave in pieces.
    pub(super) fn pace(&self, pace: SlowHead) {
        self.0.rare.lock().head = Some(PacedHead { pace, pause: None, end: HeadEnd::default() });
        self.0.is_paced.store(true, Ordering::Release);
    }

    /// Writes the next piece of a slow head; `None` where there is none.
    pub(super) fn poll_paced<I: AsyncWrite + Unpin>(
        &self,
        stream: &mut I,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Option<Poll<io::Result<usize>>> {
        if !self.0.is_paced.load(Ordering::Acquire) {
            return None;
        }
        let mut rare = self.0.rare.lock();
        let polled = rare.head.as_mut()?.poll_write(stream, context, bytes);
        if matches!(polled, Poll::Ready(Ok((_, true)))) {
            rare.head = None;
            self.0.is_paced.store(false, Ordering::Release);
        }
        Some(polled.map_ok(|(written, _)| written))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[test]
    fn a_head_ends_wherever_it_is_cut() {
        let head = b"HTTP/1.1 200 OK\r\na: \r\r\n\r\nbody\r\n\r\n";
        let end = head.len() - 8;
        for cut in 1..end {
            let mut head_end = HeadEnd::default();
            assert_eq!(head_end.find(&head[..cut]), None);
            assert_eq!(head_end.find(&head[cut..]), Some(end - cut), "{cut}");
        }
    }

    #[tokio::test]
    async fn the_pieces_of_a_head_have_pauses_between_them_and_the_body_has_none() {
        let (mut server, mut client) = duplex(4096);
        let watch = WriteWatch::default();
        watch.pace(SlowHead { bytes: 10, every: Duration::from_millis(7) });
        let message = b"HTTP/1.1 200 OK\r\na: b\r\n\r\nbody";
        let mut sizes = Vec::new();
        let mut left = &message[..];
        while !left.is_empty() {
            let Some(written) = poll_fn(|context| match watch.poll_paced(&mut server, context, left) {
                Some(polled) => polled.map(|written| Some(written.unwrap())),
                None => Poll::Ready(None),
            })
            .await
            else {
                server.write_all(left).await.unwrap();
                break;
            };
            sizes.push(written);
            left = &left[written..];
        }
        drop(server);
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, message);
        assert_eq!(sizes, [10, 10, 5]);
    }

    #[tokio::test]
    async fn what_was_given_is_written_after_two_flushes() {
        let watch = WriteWatch::default();
        let mut wait = WriteWait::default();
        poll_fn(|context| {
            assert!(watch.poll_written(&mut wait, context).is_pending());
            watch.flushed(context);
            assert!(watch.poll_written(&mut wait, context).is_pending());
            watch.flushed(context);
            watch.poll_written(&mut wait, context)
        })
        .await;
        assert!(!watch.0.is_awaited.load(Ordering::Relaxed) && watch.0.rare.lock().waiting.is_empty());
    }
}
