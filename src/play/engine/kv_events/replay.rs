//! Batches that subscribers missed: the last ones are kept, and sent again on request.
//!
//! A request is `[identity, "", first sequence number]`, of 8 big-endian bytes. The answer is all kept batches from there on, each as
//! `[identity, "", topic, sequence number, payload]`, and an end with the number -1 and no payload.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::timeout;
use zeromq::{RouterSocket, SocketRecv, SocketSend, ZmqMessage};

use super::{Batch, MOST_BYTES, Shared};

/// Sequence number after the last batch of an answer.
const END: [u8; 8] = (-1_i64).to_be_bytes();

/// Time that a client has to take a message.
const PATIENCE: Duration = Duration::from_secs(10);

/// The last batches.
#[derive(Debug)]
pub(super) struct Kept {
    most: usize,
    batches: Mutex<Batches>,
}

#[derive(Debug, Default)]
struct Batches {
    queue: VecDeque<Batch>,
    bytes: usize,
}

impl Kept {
    /// Room for so many.
    pub(super) fn new(most: usize) -> Self {
        Self { most, batches: Mutex::default() }
    }

    /// Adds the newest one.
    pub(super) fn add(&self, batch: Batch) {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        batches.bytes += batch.payload.len();
        batches.queue.push_back(batch);
        while batches.queue.len() > self.most || batches.bytes > MOST_BYTES {
            let Some(oldest) = batches.queue.pop_front() else { break };
            batches.bytes -= oldest.payload.len();
        }
    }

    /// Those from a sequence number on.
    fn from(&self, first: u64) -> Vec<Batch> {
        let batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        batches.queue.iter().filter(|batch| batch.seq >= first).cloned().collect()
    }
}

/// Answers requests for ever. A client that takes nothing gets no more, and delays others until then.
pub(super) async fn answer(socket: RouterSocket, kept: Arc<Kept>, shared: Arc<Shared>) {
    let (mut replies, mut requests) = socket.split();
    while let Ok(request) = requests.recv().await {
        let [client, delimiter, first] = request.into_vec().try_into().unwrap_or_default();
        let Some(first) = number(&first).filter(|_| !client.is_empty() && delimiter.is_empty()) else {
            tracing::debug!("a request for KV events is no request");
            continue;
        };
        let topic = shared.topic.get().cloned().unwrap_or_default();
        let batches = kept.from(first).into_iter();
        let replayed = batches.map(|Batch { seq, payload }| [topic.clone(), number_of(seq), payload]);
        for frames in replayed.chain([[Bytes::new(), Bytes::from_static(&END), Bytes::new()]]) {
            let message = message(&[client.clone(), Bytes::new()], frames);
            if !matches!(timeout(PATIENCE, replies.send(message)).await, Ok(Ok(()))) {
                tracing::debug!("a client of replayed KV events is gone");
                break;
            }
        }
    }
}

/// The message of an envelope and the frames of a batch.
pub(super) fn message(envelope: &[Bytes], frames: [Bytes; 3]) -> ZmqMessage {
    let mut frames = envelope.iter().cloned().chain(frames);
    let mut message = ZmqMessage::from(frames.next().unwrap_or_default());
    frames.for_each(|frame| message.push_back(frame));
    message
}

/// The frame of a sequence number.
pub(super) fn number_of(seq: u64) -> Bytes {
    Bytes::copy_from_slice(&seq.to_be_bytes())
}

/// A number of any length, big-endian; `None` beyond 64 bits.
fn number(bytes: &[u8]) -> Option<u64> {
    bytes.iter().try_fold(0_u64, |number, byte| number.checked_mul(256)?.checked_add(u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_batches_are_kept() {
        let kept = Kept::new(3);
        (0..5).for_each(|seq| kept.add(Batch { seq, payload: Bytes::from_static(b"x") }));
        let from = |first| kept.from(first).iter().map(|batch| batch.seq).collect::<Vec<_>>();
        assert_eq!((from(0), from(3), from(9)), (vec![2, 3, 4], vec![3, 4], vec![]));
        assert_eq!(kept.batches.lock().unwrap().bytes, 3);
        let none = Kept::new(0);
        none.add(Batch { seq: 0, payload: Bytes::new() });
        assert!(none.from(0).is_empty());
    }

    #[test]
    fn numbers_are_read_at_any_length() {
        assert_eq!(number(b""), Some(0));
        assert_eq!(number(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 2]), Some(258));
        assert_eq!(number(&[1, 0, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(number(&number_of(u64::MAX)), Some(u64::MAX));
    }
}
