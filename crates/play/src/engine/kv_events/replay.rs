//! Batches that subscribers missed: the last ones are kept, and sent again on request.
//!
//! A request is `["", first sequence number]`, of 8 big-endian bytes. The answer is all batches that are kept from there on, each as
//! `["", topic, sequence number, payload]`, and an end with the number -1 and no payload.
//!
//! This is the ROUTER's side of ZMTP 3.0 with the mechanism NULL, on connections of its own: one request of a client is read at a time and
//! answered batch by batch as the client reads, so that nothing waits for one that does not, and nobody waits with it.
//!
//! See docs/decisions/0099-peers-of-zeromq-are-bounded.md.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::{Buf, Bytes};
use engine_core::zmtp::{COMMAND, Frames, HANDSHAKE_TIMEOUT, MORE, check_greeting, greeting, put_frame};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

use super::{EventBatch, MOST_BYTES, PublisherState, guard::OF_PEERS};

use base::lock::Lock;

/// Sequence number after the last batch of an answer.
const END: [u8; 8] = (-1_i64).to_be_bytes();

/// Command that ends the handshake.
const READY: &[u8] = b"\x05READY\x0bSocket-Type\0\0\0\x06ROUTER";

#[derive(Debug)]
pub(super) struct KeptBatches {
    most: usize,
    batches: Lock<BatchQueue>,
}

#[derive(Debug, Default)]
struct BatchQueue {
    /// In the order of their numbers.
    queue: VecDeque<EventBatch>,
    bytes: usize,
}

impl KeptBatches {
    /// Room for so many.
    pub(super) fn new(most: usize) -> Self {
        Self { most, batches: Lock::default() }
    }

    /// Forgets them.
    pub(super) fn clear(&self) {
        *self.batches.lock() = BatchQueue::default();
    }

    /// Adds the newest one; where a fault cuts them, no more than so many stay.
    pub(super) fn add(&self, batch: EventBatch, cut: Option<usize>) {
        let mut batches = self.batches.lock();
        batches.bytes += batch.payload.len();
        batches.queue.push_back(batch);
        let most = cut.map_or(self.most, |cut| cut.min(self.most));
        while batches.queue.len() > most || batches.bytes > MOST_BYTES {
            let Some(oldest) = batches.queue.pop_front() else { break };
            batches.bytes -= oldest.payload.len();
        }
    }

    /// The first one from a sequence number on.
    fn from(&self, first: u64) -> Option<EventBatch> {
        let batches = self.batches.lock();
        let at = batches.queue.partition_point(|batch| batch.seq < first);
        batches.queue.get(at).cloned()
    }

    /// The number of the newest one.
    fn last(&self) -> Option<u64> {
        self.batches.lock().queue.back().map(|batch| batch.seq)
    }
}

/// Answers the requests of one client until it is gone, or does not read.
pub(super) async fn answer(
    from: impl AsyncRead + Unpin,
    to: impl AsyncWrite + Unpin,
    kept: Arc<KeptBatches>,
    shared: Arc<PublisherState>,
) -> io::Result<()> {
    let mut frames = Frames::new(from, OF_PEERS);
    let mut client = ReplayClient { to, shared: &shared, patience: HANDSHAKE_TIMEOUT };
    client.write(&greeting()[..]).await?;
    check_greeting(&frames.greeting().await?)?;
    let mut ready = Vec::new();
    put_frame(&mut ready, COMMAND, READY.len());
    ready.extend_from_slice(READY);
    client.write(&ready[..]).await?;
    loop {
        let Some(first) = request(&mut frames).await? else {
            tracing::debug!("a request for KV events is no request");
            continue;
        };
        let topic = shared.topic.get().cloned().unwrap_or_default();
        // Batches that come meanwhile are not part of the answer, which has an end so.
        let last = kept.last();
        let mut next = kept.from(first);
        while let Some(EventBatch { seq, payload }) = next.filter(|batch| last.is_some_and(|last| batch.seq <= last)) {
            client.send(&topic, seq.to_be_bytes(), payload).await?;
            next = kept.from(seq.saturating_add(1));
        }
        client.send(&[], END, Bytes::new()).await?;
    }
}

/// Reads the next message; the number that it requests, `None` where it is no request. Commands are ignored.
async fn request(frames: &mut Frames<impl AsyncRead + Unpin>) -> io::Result<Option<u64>> {
    let (mut count, mut has_delimiter) = (0_usize, false);
    loop {
        let flags = frames.next().await?;
        if flags & COMMAND != 0 {
            continue;
        }
        count = count.saturating_add(1);
        has_delimiter |= count == 1 && frames.body.is_empty();
        if flags & MORE == 0 {
            return Ok(number(&frames.body).filter(|_| count == 2 && has_delimiter));
        }
    }
}

/// A client's connection, with the time that it has to read.
struct ReplayClient<'a, W> {
    to: W,
    shared: &'a PublisherState,
    patience: Duration,
}

impl<W: AsyncWrite + Unpin> ReplayClient<'_, W> {
    async fn send(&mut self, topic: &[u8], seq: [u8; 8], payload: Bytes) -> io::Result<()> {
        let mut head = Vec::new();
        for frame in [&[], topic, &seq] {
            put_frame(&mut head, MORE, frame.len());
            head.extend_from_slice(frame);
        }
        put_frame(&mut head, 0, payload.len());
        self.write(Bytes::from(head).chain(payload)).await
    }

    async fn write(&mut self, mut bytes: impl Buf) -> io::Result<()> {
        while bytes.has_remaining() {
            let Ok(written) = timeout(self.patience, self.to.write_buf(&mut bytes)).await else {
                self.shared.disconnected.fetch_add(1, Relaxed);
                return Err(io::Error::other("a client of replayed KV events does not read them"));
            };
            if written? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

/// A number of any length, big-endian; `None` beyond 64 bits.
fn number(bytes: &[u8]) -> Option<u64> {
    bytes.iter().try_fold(0_u64, |number, byte| number.checked_mul(256)?.checked_add(u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use engine_core::zmtp::GREETING;

    use super::*;

    #[test]
    fn the_last_batches_are_kept() {
        let kept = KeptBatches::new(3);
        (0..5).for_each(|seq| kept.add(EventBatch { seq, payload: Bytes::from_static(b"x") }, None));
        let from = |first| kept.from(first).map(|batch| batch.seq);
        assert_eq!((from(0), from(3), from(4), from(5)), (Some(2), Some(3), Some(4), None));
        assert_eq!((kept.last(), kept.batches.lock().bytes), (Some(4), 3));
        let none = KeptBatches::new(0);
        none.add(EventBatch { seq: 0, payload: Bytes::new() }, None);
        kept.add(EventBatch { seq: 5, payload: Bytes::from_static(b"x") }, Some(1));
        assert_eq!((from(0), from(6), kept.batches.lock().bytes), (Some(5), None, 1));
        kept.clear();
        assert_eq!((from(0), kept.batches.lock().bytes), (None, 0));
        assert!(none.from(0).is_none() && none.last().is_none());
    }

    #[test]
    fn numbers_are_read_at_any_length() {
        assert_eq!(number(b""), Some(0));
        assert_eq!(number(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 2]), Some(258));
        assert_eq!(number(&[1, 0, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(number(&u64::MAX.to_be_bytes()), Some(u64::MAX));
    }

    /// A greeting and some requests for all batches, as a DEALER sends them.
    fn requests(count: usize) -> Vec<u8> {
        let request = b"\x01\x00\x00\x08\0\0\0\0\0\0\0\0";
        let ready = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER";
        [greeting().as_slice(), ready, &request.repeat(count)].concat()
    }

    fn kept(count: u64) -> Arc<KeptBatches> {
        let kept = KeptBatches::new(1000);
        (0..count).for_each(|seq| kept.add(EventBatch { seq, payload: Bytes::from(vec![7; 300]) }, None));
        Arc::new(kept)
    }

    #[tokio::test]
    async fn each_request_is_answered_whole_and_what_is_none_is_passed_over() {
        let (shared, mut out) = (Arc::<PublisherState>::default(), Vec::new());
        shared.topic.set(Bytes::from_static(b"kv")).unwrap();
        let sent = [requests(0).as_slice(), b"\x00\x08\0\0\0\0\0\0\0\0\x01\0\0\x01\x02\x01\0\0\x01\x09"].concat();
        let gone = answer(sent.as_slice(), &mut out, kept(4), shared).await.unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::UnexpectedEof);
        let mut expected = [greeting().as_slice(), &[COMMAND, u8::try_from(READY.len()).unwrap()], READY].concat();
        for seq in [2, 3] {
            expected.extend(*b"\x01\0\x01\x02kv\x01\x08\0\0\0\0\0\0\0");
            expected.extend([seq, 2, 0, 0, 0, 0, 0, 0, 1, 44]);
            expected.extend([7; 300]);
        }
        let end = b"\x01\0\x01\0\x01\x08\xff\xff\xff\xff\xff\xff\xff\xff\0\0";
        expected.extend(end.repeat(2));
        assert!(out == expected, "{out:?}");
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_is_left_and_counted() {
        let (shared, (own, _client)) = (PublisherState::default(), tokio::io::duplex(4096));
        let mut client = ReplayClient { to: own, shared: &shared, patience: Duration::from_millis(10) };
        let ended = client.send(b"kv", [0; 8], Bytes::from(vec![7; 5000])).await;
        assert!(ended.unwrap_err().to_string().contains("does not read"));
        assert_eq!(shared.disconnected.load(Relaxed), 1);
    }

    #[tokio::test]
    async fn no_more_requests_are_read_than_are_answered() {
        let (own, mut client) = tokio::io::duplex(4096);
        let (from, to) = tokio::io::split(own);
        let answering = tokio::spawn(answer(from, to, kept(10), Arc::default()));
        let sent = requests(10_000);
        let written = timeout(Duration::from_millis(100), client.write_all(&sent)).await;
        assert!(written.is_err(), "the rest waits for the client, which reads nothing");
        answering.abort();
    }

    #[tokio::test]
    async fn who_does_not_speak_the_protocol_is_left() {
        for wrong in [b"GET / HTTP/1.1".repeat(5), [&greeting()[..10], &[1; 54]].concat(), vec![0; GREETING]] {
            let ended = answer(wrong.as_slice(), &mut Vec::new(), kept(1), Arc::default()).await;
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::Other);
        }
    }
}
