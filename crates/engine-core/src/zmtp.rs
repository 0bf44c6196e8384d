//! ZMTP 3.0 with the mechanism NULL: greeting, frames and messages of one connection, on either side of it.
//!
//! A length that a peer announces reserves no memory, and a message has a limit. Commands other than READY are ignored: a peer of 3.0 is
//! sent no `PING`. There is no queue, no reconnecting and no distribution among peers here: who holds the connections has those.
//!
//! See docs/decisions/0134-the-engine-core-protocol-is-read-by-tables.md and 0099-peers-of-zeromq-are-bounded.md.

use std::{io, time::Duration};

use base::held_bytes::{HeldBytes, HeldShare};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout,
};

/// Time limit for a greeting.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Length of a greeting.
pub const GREETING: usize = 64;

/// Bytes of a frame that are read in one go.
const PIECE: u64 = 1 << 20;

/// Bit of a frame's first byte: more frames follow.
pub const MORE: u8 = 1;
/// Bit of a frame's first byte: its length takes 8 bytes.
pub const LONG: u8 = 2;
/// Bit of a frame's first byte: it is a command.
pub const COMMAND: u8 = 4;

/// Bytes that a frame costs beside its own when they are counted, so that endless empty frames have an end.
pub const FRAME_COST: u64 = 32;

/// Bytes that a peer may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameLimits {
    /// In a message, with [`FRAME_COST`] for each of its frames.
    pub message: u64,
    /// In all.
    pub in_all: u64,
}

/// Bytes of a message between a front end and an engine: a prompt of a million tokens takes 5 MB, images more.
pub const MESSAGES: FrameLimits = FrameLimits { message: 256 << 20, in_all: u64::MAX };

/// A greeting of ZMTP 3.0.
#[must_use]
pub fn greeting() -> [u8; GREETING] {
    let mut greeting = [0; GREETING];
    let used = [0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0].into_iter().chain(*b"NULL");
    greeting.iter_mut().zip(used).for_each(|(byte, used)| *byte = used);
    greeting
}

/// Checks whether a greeting is that of ZMTP 3.0 or later, without authentication.
///
/// # Errors
/// Where it is not.
pub fn check_greeting(greeting: &[u8; GREETING]) -> io::Result<()> {
    match greeting {
        [0xff, _, _, _, _, _, _, _, _, 0x7f, 3..=u8::MAX, _, b'N', b'U', b'L', b'L', 0, ..] => Ok(()),
        _ => Err(io::Error::other("a peer does not use ZMTP 3 without authentication")),
    }
}

/// Appends what stands before a frame of so many bytes.
pub fn put_frame(bytes: &mut Vec<u8>, flags: u8, length: usize) {
    match u8::try_from(length) {
        Ok(short) => bytes.extend([flags & !LONG, short]),
        Err(_) => {
            bytes.push(flags | LONG);
            bytes.extend((length as u64).to_be_bytes());
        }
    }
}

/// Appends a message.
pub fn put_message(bytes: &mut Vec<u8>, frames: &[impl AsRef<[u8]>]) {
    for (at, frame) in (1..).zip(frames) {
        put_frame(bytes, if at < frames.len() { MORE } else { 0 }, frame.as_ref().len());
        bytes.extend_from_slice(frame.as_ref());
    }
}

/// Reader of a peer's frames, within limits.
#[derive(Debug)]
pub struct Frames<R> {
    from: R,
    limits: FrameLimits,
    of_message: u64,
    in_all: u64,
    held: HeldShare,
    /// The last frame, without what stands before it.
    pub body: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    /// A reader of a connection before its greeting.
    pub fn new(from: R, limits: FrameLimits) -> Self {
        let held = HeldBytes::new(u64::MAX).share();
        Self { from, limits, of_message: 0, in_all: 0, held, body: Vec::new() }
    }

    /// Shares a limit with other connections.
    pub(crate) fn within(&mut self, held: &HeldBytes) {
        self.held = held.share();
    }

    /// Reads the greeting, before all frames.
    ///
    /// # Errors
    /// Where none comes.
    pub async fn greeting(&mut self) -> io::Result<[u8; GREETING]> {
        let mut greeting = [0; GREETING];
        timeout(HANDSHAKE_TIMEOUT, self.from.read_exact(&mut greeting)).await??;
        Ok(greeting)
    }

    /// Reads the next frame, and gives its flags. A message counts as held until the next one is asked for.
    ///
    /// # Errors
    /// Where the peer is gone, or sends too much.
    pub async fn next(&mut self) -> io::Result<u8> {
        if self.of_message == 0 {
            self.held.clear();
        }
        let flags = self.from.read_u8().await?;
        let length =
            if flags & LONG == 0 { u64::from(self.from.read_u8().await?) } else { self.from.read_u64().await? };
        let cost = length.saturating_add(FRAME_COST);
        self.of_message = self.of_message.saturating_add(cost);
        self.in_all = self.in_all.saturating_add(cost);
        if self.of_message > self.limits.message || self.in_all > self.limits.in_all {
            return Err(io::Error::other("a peer sends more bytes than its limit"));
        }
        self.body.clear();
        self.hold(FRAME_COST)?;
        let mut left = length;
        while left > 0 {
            let piece = left.min(PIECE);
            self.hold(piece)?;
            let read = (&mut self.from).take(piece).read_to_end(&mut self.body).await?;
            if read as u64 != piece {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            left -= piece;
        }
        if flags & MORE == 0 {
            self.of_message = 0;
        }
        Ok(flags)
    }

    fn hold(&mut self, bytes: u64) -> io::Result<()> {
        let is_within = self.held.add(bytes);
        is_within.then_some(()).ok_or_else(|| io::Error::other("unfinished messages of all peers exceed their limit"))
    }

    /// Reads the next message: its frames. It is not to be cancelled within one.
    ///
    /// # Errors
    /// Where the peer is gone, or sends too much.
    pub async fn message(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let mut frames = Vec::new();
        loop {
            let flags = self.next().await?;
            // Within a message it would begin what is counted anew.
            if flags & COMMAND != 0 && !frames.is_empty() {
                return Err(io::Error::other("a peer sends a command within a message"));
            }
            if flags & COMMAND != 0 {
                continue;
            }
            frames.push(std::mem::take(&mut self.body));
            if flags & MORE == 0 {
                return Ok(frames);
            }
        }
    }
}

base::named! {
    /// Type of a socket, as the handshake names it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SocketType {
        /// Of an engine, for requests.
        Dealer = "DEALER",
        /// Of a front end, for requests.
        Router = "ROUTER",
        /// Of an engine, for outputs.
        Push = "PUSH",
        /// Of a front end, for outputs.
        Pull = "PULL",
        /// Of an engine, for the coordinator's messages.
        XSub = "XSUB",
        /// Of a coordinator.
        XPub = "XPUB",
        /// Of a reader of KV events.
        Sub = "SUB",
    }
}

impl SocketType {
    fn takes(self, peer: &[u8]) -> bool {
        let peers: &[&str] = match self {
            Self::Dealer => &["ROUTER", "DEALER", "REP"],
            Self::Router => &["DEALER", "ROUTER", "REQ"],
            Self::Push => &["PULL"],
            Self::Pull => &["PUSH"],
            Self::XSub | Self::Sub => &["PUB", "XPUB"],
            Self::XPub => &["SUB", "XSUB"],
        };
        peers.iter().any(|name| name.as_bytes() == peer)
    }
}

/// Writer of messages.
#[derive(Debug)]
pub struct FrameWriter(OwnedWriteHalf);

impl FrameWriter {
    /// Writes a message; returns once the system has it.
    ///
    /// # Errors
    /// Where the peer is gone.
    pub async fn send(&mut self, frames: &[&[u8]]) -> io::Result<()> {
        let mut bytes = Vec::new();
        put_message(&mut bytes, frames);
        self.0.write_all(&bytes).await?;
        self.0.flush().await
    }
}

/// A connection after its handshake.
#[derive(Debug)]
pub struct ZmtpConnection {
    /// What the peer sends.
    pub reader: Frames<OwnedReadHalf>,
    /// What is sent to it.
    pub writer: FrameWriter,
    /// The peer's identity; empty where it has none.
    pub peer_identity: Vec<u8>,
}

impl ZmtpConnection {
    /// Connects to `tcp://HOST:PORT`.
    ///
    /// # Errors
    /// Where nobody listens there, or the peer is another kind of socket.
    pub async fn connect(endpoint: &str, socket: SocketType, identity: &[u8]) -> io::Result<Self> {
        let address = endpoint.strip_prefix("tcp://").ok_or_else(|| {
            io::Error::other(format!(
                "{endpoint} is no tcp://HOST:PORT; run the front end with --data-parallel-size-local 0"
            ))
        })?;
        Self::open(TcpStream::connect(address).await?, socket, identity).await
    }

    /// Greets the peer of a connection, whoever opened it.
    ///
    /// # Errors
    /// Where it does not greet in time, or is another kind of socket.
    pub async fn open(stream: TcpStream, socket: SocketType, identity: &[u8]) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let (from, mut to) = stream.into_split();
        let mut reader = Frames::new(from, MESSAGES);
        to.write_all(&greeting()).await?;
        check_greeting(&reader.greeting().await?)?;
        let ready = ready(socket, identity);
        let mut bytes = Vec::new();
        put_frame(&mut bytes, COMMAND, ready.len());
        bytes.extend_from_slice(&ready);
        to.write_all(&bytes).await?;
        let flags = timeout(HANDSHAKE_TIMEOUT, reader.next()).await??;
        let properties = reader.body.strip_prefix(b"\x05READY").filter(|_| flags & COMMAND != 0);
        let properties =
            properties.ok_or_else(|| io::Error::other("a peer ends the handshake of ZMTP with no READY"))?;
        let peer = property(properties, b"socket-type").unwrap_or_default();
        if !socket.takes(peer) {
            let peer = String::from_utf8_lossy(peer);
            return Err(io::Error::other(format!("a peer of a {} socket is a {peer} socket", socket.name())));
        }
        let peer_identity = property(properties, b"identity").unwrap_or_default().to_vec();
        Ok(Self { reader, writer: FrameWriter(to), peer_identity })
    }
}

/// The command that ends the handshake.
fn ready(socket: SocketType, identity: &[u8]) -> Vec<u8> {
    let mut ready = b"\x05READY".to_vec();
    for (name, value) in [("Socket-Type", socket.name().as_bytes()), ("Identity", identity)] {
        ready.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        ready.extend_from_slice(name.as_bytes());
        ready.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_be_bytes());
        ready.extend_from_slice(value);
    }
    ready
}

/// A property of READY; names have no case.
fn property<'a>(mut properties: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    loop {
        let (length, rest) = properties.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        let (length, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        properties = rest;
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn pair(client: SocketType, server: SocketType) -> (io::Result<ZmtpConnection>, io::Result<ZmtpConnection>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
        let accepted = async { ZmtpConnection::open(listener.accept().await.unwrap().0, server, b"").await };
        tokio::join!(ZmtpConnection::connect(&endpoint, client, b"\x01\x00"), accepted)
    }

    #[tokio::test]
    async fn messages_pass_in_both_directions_and_the_identity_is_known() {
        let (client, server) = pair(SocketType::Dealer, SocketType::Router).await;
        let (mut client, mut server) = (client.unwrap(), server.unwrap());
        assert_eq!(server.peer_identity, b"\x01\x00");
        let long = vec![7; 70_000];
        let reading = tokio::spawn(async move { server.reader.message().await.map(|read| (read, server)) });
        client.writer.send(&[b"", &long, b"x"]).await.unwrap();
        let (read, mut server) = reading.await.unwrap().unwrap();
        assert_eq!(read, [b"".to_vec(), long, b"x".to_vec()]);
        server.writer.send(&[b"answer"]).await.unwrap();
        assert_eq!(client.reader.message().await.unwrap(), [b"answer"]);
        drop(server);
        assert!(client.reader.message().await.is_err(), "who is gone is noticed");
    }

    #[tokio::test]
    async fn sockets_that_do_not_fit_are_refused_by_name() {
        let (client, _server) = pair(SocketType::Push, SocketType::Router).await;
        assert_eq!(client.unwrap_err().to_string(), "a peer of a PUSH socket is a ROUTER socket");
        let ipc = ZmtpConnection::connect("ipc:///tmp/x", SocketType::Dealer, b"").await.unwrap_err();
        assert!(ipc.to_string().contains("--data-parallel-size-local 0"));
    }

    #[tokio::test]
    async fn a_frame_that_is_announced_reserves_nothing_and_endless_messages_end() {
        let endless = [MORE, 0].repeat(100);
        for sent in [[&[LONG], &(1_u64 << 61).to_be_bytes()[..]].concat(), endless] {
            let mut frames = Frames::new(sent.as_slice(), FrameLimits { message: 1000, in_all: u64::MAX });
            assert_eq!(frames.message().await.unwrap_err().kind(), io::ErrorKind::Other);
        }
        let commands = [MORE, 0, COMMAND, 0].repeat(100);
        let mut between = Frames::new(commands.as_slice(), FrameLimits { message: 1000, in_all: u64::MAX });
        assert_eq!(between.message().await.unwrap_err().kind(), io::ErrorKind::Other);
        let mut short = Frames::new(&b"\x00\x05ab"[..], MESSAGES);
        assert_eq!(short.message().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn messages_without_an_end_share_a_limit() {
        let held = HeldBytes::new(5 << 20);
        let begun = [&[MORE | LONG], &(2_u64 << 20).to_be_bytes()[..], &vec![0; 2 << 20]].concat();
        let mut readers: Vec<_> = std::iter::repeat_with(|| Frames::new(begun.as_slice(), MESSAGES)).take(3).collect();
        readers.iter_mut().for_each(|reader| reader.within(&held));
        assert!(readers[0].next().await.is_ok() && readers[1].next().await.is_ok());
        assert_eq!(readers[2].next().await.unwrap_err().kind(), io::ErrorKind::Other);
        readers.clear();
        // Frames without bytes are held too.
        let empty = [MORE, 0].repeat(100_000);
        let mut readers = [(); 2].map(|()| Frames::new(empty.as_slice(), MESSAGES));
        readers.iter_mut().for_each(|reader| reader.within(&held));
        let [first, second] = &mut readers;
        assert_eq!(first.message().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(second.message().await.unwrap_err().kind(), io::ErrorKind::Other);
        drop(readers);
        // So is a whole message until the next one is asked for.
        let whole = [&[LONG], &(3_u64 << 20).to_be_bytes()[..], &vec![0; 3 << 20]].concat();
        let mut readers = [(); 3].map(|()| Frames::new(whole.as_slice(), MESSAGES));
        readers.iter_mut().for_each(|reader| reader.within(&held));
        let [mut first, mut second, mut third] = readers;
        assert!(first.message().await.is_ok() && second.message().await.is_err());
        drop(second);
        assert!(first.message().await.is_err() && third.message().await.is_ok());
        drop(third);
        let mut next = Frames::new(begun.as_slice(), MESSAGES);
        next.within(&held);
        assert!(next.next().await.is_ok(), "it is given back");
    }

    #[test]
    fn damaged_properties_are_none() {
        for bytes in [&b""[..], b"\x05ab", b"\x01a\x00\x00\x00\x09x", b"\x01a\xff\xff\xff\xffx"] {
            assert_eq!(property(bytes, b"identity"), None);
        }
        assert_eq!(property(&ready(SocketType::Pull, b"id")[6..], b"identity"), Some(&b"id"[..]));
    }
}
