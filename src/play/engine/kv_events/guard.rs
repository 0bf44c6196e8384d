//! Connections from outside, held to what a subscriber has to say.
//!
//! The library reserves memory for frames as long as a peer announces them: a few bytes would end the program. So its sockets listen on this
//! machine only, and what they are reached through is here: peers' bytes are passed on frame by frame, answers as they are.
//! For a subscriber that does not read, the library keeps 100,000 messages of any length. So what is published is taken from it at once and
//! waits here, in bytes that are counted; who is too far behind is left, comes again, and sees a gap in the numbers.
//!
//! Limits: who is on this machine reaches the sockets themselves. Replayed batches wait in the library.
//!
//! See docs/decisions/0099-peers-of-zeromq-are-bounded.md.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
    select,
    sync::Semaphore,
    time::timeout,
};

/// Bytes of a message that a peer may send, over all of its frames: a topic, a number, a greeting.
const MOST_BYTES: u64 = 64 << 10;

/// Bytes that a connection may send in all; a peer that sends more connects again.
const MOST_IN_ALL: u64 = 64 << 20;

/// Connections at once.
const MOST_PEERS: usize = 1000;

/// Bytes that wait for one subscriber.
const MOST_WAITING: usize = 64 << 20;

/// Bytes that wait for all subscribers together, beyond [`FREE`] for each.
const MOST_WAITING_IN_ALL: usize = 256 << 20;

/// Bytes that may always wait for a subscriber.
const FREE: usize = 1 << 20;

/// Bytes that are taken from the library in one go.
const PORTION: usize = 64 << 10;

/// Time for a greeting.
const PATIENCE: Duration = Duration::from_secs(10);

/// Length of a greeting.
const GREETING: usize = 64;

/// Bits of a frame's first byte: more frames follow; its length takes 8 bytes.
const MORE: u8 = 1;
const LONG: u8 = 2;

/// What happens to bytes that a peer does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    /// They wait in the library.
    Stays,
    /// They wait here, and a peer for which many wait is left.
    Waits,
}

/// Passes connections on for ever.
pub(super) async fn serve(listener: TcpListener, to: SocketAddr, unread: Unread) {
    let waiting = (unread == Unread::Waits).then(Arc::<AtomicUsize>::default);
    let places = Arc::new(Semaphore::new(MOST_PEERS));
    loop {
        let Ok((peer, _)) = listener.accept().await else {
            // There are no more descriptors, for now.
            tokio::time::sleep(PATIENCE / 10).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let waiting = waiting.clone();
        tokio::spawn(async move {
            if let Err(error) = pass(peer, to, waiting).await {
                tracing::debug!(%error, "a connection for KV events ends");
            }
            drop(place);
        });
    }
}

/// Passes one connection on until either side ends it.
async fn pass(mut peer: TcpStream, to: SocketAddr, in_all: Option<Arc<AtomicUsize>>) -> io::Result<()> {
    let mut socket = TcpStream::connect(to).await?;
    peer.set_nodelay(true)?;
    socket.set_nodelay(true)?;
    let (mut from_peer, mut to_peer) = peer.split();
    let (mut from_socket, mut to_socket) = socket.split();
    select! {
        ended = frames(&mut from_peer, &mut to_socket) => ended,
        ended = answers(&mut from_socket, &mut to_peer, in_all) => ended,
    }
}

/// Bytes that wait for a subscriber, counted among those of all.
struct Waiting {
    bytes: BytesMut,
    in_all: Arc<AtomicUsize>,
}

impl Waiting {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.in_all.fetch_add(bytes.len(), Relaxed);
    }

    /// An error where they are too many.
    fn check(&self) -> io::Result<()> {
        let (own, all) = (self.bytes.len(), self.in_all.load(Relaxed));
        if own <= FREE || (own <= MOST_WAITING && all <= MOST_WAITING_IN_ALL) {
            return Ok(());
        }
        Err(io::Error::other(format!("{own} bytes wait for a subscriber that does not read them, {all} for all")))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.in_all.fetch_sub(self.bytes.len(), Relaxed);
    }
}

/// Passes on what the library sends. With a count of what waits for all peers, what the peer does not read waits here.
async fn answers(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    in_all: Option<Arc<AtomicUsize>>,
) -> io::Result<()> {
    let Some(in_all) = in_all else { return copy(from, to).await.map(|_| ()) };
    let mut waiting = Waiting { bytes: BytesMut::new(), in_all };
    let mut portion = vec![0; PORTION];
    loop {
        waiting.check()?;
        select! {
            read = from.read(&mut portion) => match read? {
                0 => return to.write_all(&waiting.bytes).await,
                count => waiting.add(portion.get(..count).unwrap_or_default()),
            },
            written = to.write_buf(&mut waiting.bytes), if !waiting.bytes.is_empty() => {
                waiting.in_all.fetch_sub(written?, Relaxed);
            }
        }
    }
}

/// Passes a greeting and frames on, as long as they are short.
async fn frames(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let mut greeting = [0; GREETING];
    timeout(PATIENCE, from.read_exact(&mut greeting)).await??;
    to.write_all(&greeting).await?;
    let (mut of_message, mut in_all) = (0_u64, 0_u64);
    let mut frame = Vec::new();
    loop {
        let flags = from.read_u8().await?;
        let length = if flags & LONG == 0 { u64::from(from.read_u8().await?) } else { from.read_u64().await? };
        // A frame takes memory for itself too.
        let cost = length.saturating_add(32);
        of_message = of_message.saturating_add(cost);
        in_all = in_all.saturating_add(cost);
        if of_message > MOST_BYTES || in_all > MOST_IN_ALL {
            return Err(io::Error::other("a peer sends more than a subscriber has to say"));
        }
        if flags & MORE == 0 {
            of_message = 0;
        }
        frame.clear();
        frame.push(flags);
        if flags & LONG == 0 {
            frame.push(u8::try_from(length).unwrap_or(u8::MAX));
        } else {
            frame.extend_from_slice(&length.to_be_bytes());
        }
        (&mut *from).take(length).read_to_end(&mut frame).await?;
        to.write_all(&frame).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn passed(sent: &[u8]) -> (Vec<u8>, io::ErrorKind) {
        let mut out = Vec::new();
        let ended = frames(&mut &*sent, &mut out).await;
        (out, ended.unwrap_err().kind())
    }

    #[tokio::test]
    async fn frames_are_passed_on_as_they_are() {
        let mut sent = vec![0xff; GREETING];
        sent.extend_from_slice(b"\x04\x03abc\x01\x00\x00\x02\x01k\x02\x00\x00\x00\x00\x00\x00\x01\x00");
        sent.extend_from_slice(&[7; 256]);
        assert_eq!(passed(&sent).await, (sent.clone(), io::ErrorKind::UnexpectedEof));
    }

    #[tokio::test]
    async fn long_frames_and_endless_messages_end_a_connection() {
        let greeting = [0xff; GREETING];
        for length in [MOST_BYTES, 1 << 45, 1 << 61, u64::MAX] {
            let sent = [greeting.as_slice(), &[LONG], &length.to_be_bytes(), b"x"].concat();
            assert_eq!(passed(&sent).await, (greeting.to_vec(), io::ErrorKind::Other), "{length}");
        }
        let endless = [greeting.as_slice(), &[MORE, 0].repeat(10_000)].concat();
        let (out, kind) = passed(&endless).await;
        assert_eq!(kind, io::ErrorKind::Other);
        assert!(out.len() < 2 * 2100, "{}", out.len());
    }

    #[tokio::test]
    async fn a_subscriber_that_does_not_read_is_left_and_gives_its_bytes_back() {
        let all = Arc::<AtomicUsize>::default();
        let (mut library, mut inside) = tokio::io::duplex(PORTION);
        let (mut outside, subscriber) = tokio::io::duplex(PORTION);
        let counted = Arc::clone(&all);
        let passing = tokio::spawn(async move { answers(&mut inside, &mut outside, Some(counted)).await });
        let batch = vec![7; PORTION];
        let mut published = 0;
        while library.write_all(&batch).await.is_ok() {
            published += batch.len();
            assert!(published <= MOST_WAITING + 16 * PORTION, "nobody has read anything");
        }
        assert!(published >= MOST_WAITING, "{published}");
        assert_eq!(passing.await.unwrap().unwrap_err().kind(), io::ErrorKind::Other);
        assert_eq!(all.load(Relaxed), 0);
        drop(subscriber);
    }

    #[tokio::test]
    async fn what_waits_arrives_in_order_and_little_may_wait_however_much_does_elsewhere() {
        let all = Arc::new(AtomicUsize::new(MOST_WAITING_IN_ALL + 1));
        let sent: Vec<u8> = (0..FREE / 2).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let (mut outside, mut subscriber) = tokio::io::duplex(PORTION);
        let source = sent.clone();
        let counted = Arc::clone(&all);
        let passing = tokio::spawn(async move { answers(&mut source.as_slice(), &mut outside, Some(counted)).await });
        let mut arrived = Vec::new();
        subscriber.read_to_end(&mut arrived).await.unwrap();
        passing.await.unwrap().unwrap();
        assert!(arrived == sent);
        assert_eq!(all.load(Relaxed), MOST_WAITING_IN_ALL + 1);
    }
}
