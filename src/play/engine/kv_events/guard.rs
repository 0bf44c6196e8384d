//! Connections from outside, held to what a subscriber has to say.
//!
//! The library reserves memory for frames as long as a peer announces them: a few bytes would end the program. So its sockets listen on this
//! machine only, and what they are reached through is here: peers' bytes are passed on frame by frame, answers as they are.
//!
//! Limits: who is on this machine reaches the sockets themselves.
//!
//! See docs/decisions/0099-peers-of-zeromq-are-bounded.md.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

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

/// Time for a greeting.
const PATIENCE: Duration = Duration::from_secs(10);

/// Length of a greeting.
const GREETING: usize = 64;

/// Bits of a frame's first byte: more frames follow; its length takes 8 bytes.
const MORE: u8 = 1;
const LONG: u8 = 2;

/// Passes connections on for ever.
pub(super) async fn serve(listener: TcpListener, to: SocketAddr) {
    let places = Arc::new(Semaphore::new(MOST_PEERS));
    loop {
        let Ok((peer, _)) = listener.accept().await else {
            // There are no more descriptors, for now.
            tokio::time::sleep(PATIENCE / 10).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        tokio::spawn(async move {
            if let Err(error) = pass(peer, to).await {
                tracing::debug!(%error, "a connection for KV events ends");
            }
            drop(place);
        });
    }
}

/// Passes one connection on until either side ends it.
async fn pass(mut peer: TcpStream, to: SocketAddr) -> io::Result<()> {
    let mut socket = TcpStream::connect(to).await?;
    peer.set_nodelay(true)?;
    socket.set_nodelay(true)?;
    let (mut from_peer, mut to_peer) = peer.split();
    let (mut from_socket, mut to_socket) = socket.split();
    select! {
        ended = frames(&mut from_peer, &mut to_socket) => ended,
        ended = copy(&mut from_socket, &mut to_peer) => ended.map(|_| ()),
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
}
