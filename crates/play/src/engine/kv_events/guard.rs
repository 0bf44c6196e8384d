//! Connections from outside, limited to what a subscriber sends.
//!
//! The library reserves memory for frames as long as a peer announces them: a few bytes would end the program. So its socket listens on this
//! machine only, and what it is reached through is here: peers' bytes are passed on frame by frame, what is published as it is.
//! For a subscriber that does not read, the library keeps 100,000 messages of any length. So what is published is taken from it at once and
//! waits here, in bytes that are counted; who is too far behind is left, comes again, and sees a gap in the numbers.
//!
//! Limits: who is on this machine reaches the socket itself.
//!
//! See docs/decisions/0099-peers-of-zeromq-are-bounded.md.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use bytes::BytesMut;
use engine_core::zmtp::{FrameLimits, Frames, HANDSHAKE_TIMEOUT, put_frame};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    select,
    sync::Semaphore,
};

use super::PublisherState;

/// Bytes that a peer may send: a topic, a number, a greeting. One that sends more in all connects again.
pub(super) const OF_PEERS: FrameLimits = FrameLimits { message: 64 << 10, in_all: 64 << 20 };

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

/// Serves each connection for ever, a limited number at once.
pub(super) async fn serve<S>(listener: TcpListener, connection: impl Fn(TcpStream) -> S)
where
    S: Future<Output = io::Result<()>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(MOST_PEERS));
    loop {
        let Ok((peer, _)) = listener.accept().await else {
            // There are no more descriptors, for now.
            tokio::time::sleep(HANDSHAKE_TIMEOUT / 10).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let served = connection(peer);
        tokio::spawn(async move {
            if let Err(error) = served.await {
                tracing::debug!(%error, "a connection for KV events ends");
            }
            drop(place);
        });
    }
}

/// Passes a subscriber's connection on to the library's socket until either side ends it.
pub(super) async fn pass(mut peer: TcpStream, to: SocketAddr, shared: Arc<PublisherState>) -> io::Result<()> {
    let mut socket = TcpStream::connect(to).await?;
    peer.set_nodelay(true)?;
    socket.set_nodelay(true)?;
    let (from_peer, mut to_peer) = peer.split();
    let (mut from_socket, mut to_socket) = socket.split();
    select! {
        ended = requests(from_peer, &mut to_socket) => ended,
        ended = published(&mut from_socket, &mut to_peer, shared) => ended,
    }
}

/// Bytes that wait for a subscriber, counted among those of all.
struct WaitingBytes {
    bytes: BytesMut,
    shared: Arc<PublisherState>,
}

impl WaitingBytes {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.shared.waiting_bytes.fetch_add(bytes.len(), Relaxed);
    }

    /// An error where they are too many.
    fn check(&self) -> io::Result<()> {
        let (own, all) = (self.bytes.len(), self.shared.waiting_bytes.load(Relaxed));
        if own <= FREE || (own <= MOST_WAITING && all <= MOST_WAITING_IN_ALL) {
            return Ok(());
        }
        self.shared.disconnected.fetch_add(1, Relaxed);
        Err(io::Error::other(format!("{own} bytes wait for a subscriber that does not read them, {all} for all")))
    }
}

impl Drop for WaitingBytes {
    fn drop(&mut self) {
        self.shared.waiting_bytes.fetch_sub(self.bytes.len(), Relaxed);
    }
}

/// Passes on what the library publishes; what the peer does not read waits here.
async fn published(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    shared: Arc<PublisherState>,
) -> io::Result<()> {
    let mut waiting = WaitingBytes { bytes: BytesMut::new(), shared };
    let mut portion = vec![0; PORTION];
    loop {
        waiting.check()?;
        select! {
            read = from.read(&mut portion) => match read? {
                0 => return to.write_all(&waiting.bytes).await,
                count => waiting.add(portion.get(..count).unwrap_or_default()),
            },
            written = to.write_buf(&mut waiting.bytes), if !waiting.bytes.is_empty() => {
                waiting.shared.waiting_bytes.fetch_sub(written?, Relaxed);
            }
        }
    }
}

/// Passes a greeting and frames on, as long as they are short.
async fn requests(from: impl AsyncRead + Unpin, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let mut frames = Frames::new(from, OF_PEERS);
    to.write_all(&frames.greeting().await?).await?;
    let mut bytes = Vec::new();
    loop {
        let flags = frames.next().await?;
        bytes.clear();
        put_frame(&mut bytes, flags, frames.body.len());
        bytes.extend_from_slice(&frames.body);
        to.write_all(&bytes).await?;
    }
}

#[cfg(test)]
mod tests {
    use engine_core::zmtp::{GREETING, LONG, MORE};

    use super::*;

    async fn passed(sent: &[u8]) -> (Vec<u8>, io::ErrorKind) {
        let mut out = Vec::new();
        let ended = requests(sent, &mut out).await;
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
        for length in [OF_PEERS.message, 1 << 45, 1 << 61, u64::MAX] {
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
        let shared = Arc::<PublisherState>::default();
        let (mut library, mut inside) = tokio::io::duplex(PORTION);
        let (mut outside, subscriber) = tokio::io::duplex(PORTION);
        let counted = Arc::clone(&shared);
        let passing = tokio::spawn(async move { published(&mut inside, &mut outside, counted).await });
        let batch = vec![7; PORTION];
        let mut written = 0;
        while library.write_all(&batch).await.is_ok() {
            written += batch.len();
            assert!(written <= MOST_WAITING + 16 * PORTION, "nobody has read anything");
        }
        assert!(written >= MOST_WAITING, "{written}");
        assert_eq!(passing.await.unwrap().unwrap_err().kind(), io::ErrorKind::Other);
        assert_eq!((shared.waiting_bytes.load(Relaxed), shared.disconnected.load(Relaxed)), (0, 1));
        drop(subscriber);
    }

    #[tokio::test]
    async fn what_waits_arrives_in_order_and_little_may_wait_however_much_does_elsewhere() {
        let shared = Arc::<PublisherState>::default();
        shared.waiting_bytes.store(MOST_WAITING_IN_ALL + 1, Relaxed);
        let sent: Vec<u8> = (0..FREE / 2).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let (mut outside, mut subscriber) = tokio::io::duplex(PORTION);
        let source = sent.clone();
        let counted = Arc::clone(&shared);
        let passing = tokio::spawn(async move { published(&mut source.as_slice(), &mut outside, counted).await });
        let mut arrived = Vec::new();
        subscriber.read_to_end(&mut arrived).await.unwrap();
        passing.await.unwrap().unwrap();
        assert!(arrived == sent);
        assert_eq!(shared.waiting_bytes.load(Relaxed), MOST_WAITING_IN_ALL + 1);
    }
}
