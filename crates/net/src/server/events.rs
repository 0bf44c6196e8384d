//! Streams of events as HTTP/1.1 chunks.
//!
//! All frames that the body has ready leave in one write; while the stream waits it holds only its body and a small buffer. A
//! client that does not read stops the polling of the body, and one that disconnects ends the stream.
//!
//! Limits: at most [`READ_AHEAD`] bytes that the client sends during the stream are read, for its next request.
//!
//! See docs/decisions/0015-hyper-lends-streams-out.md and
//! docs/decisions/0020-events-share-one-buffer.md.

use std::{
    error::Error,
    fmt::Write as _,
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::SystemTime,
};

use axum_core::body::Body;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{Response, header, response};
use http_body::Body as _;
use httpdate::HttpDate;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{connection_stream::poll_write_all, ending::ConnectionEnd};

/// Maximum number of bytes of later requests that are read during a stream.
const READ_AHEAD: usize = 512;

/// Size in bytes from which on the buffer is written before more frames are added.
const WRITE_SIZE: usize = 64 * 1024;

/// Capacity in bytes above which a buffer is freed while a stream waits.
const KEPT_CAPACITY: usize = 1024;

const HEX: &[u8; 16] = b"0123456789ABCDEF";

#[derive(Debug)]
pub(super) enum StreamEnd {
    /// The stream was sent to its end; these bytes of the next request were read already.
    Whole(Bytes),
    /// The body failed, and all that it gave before was sent; the connection ends like this, or it is dropped.
    Broken(Option<ConnectionEnd>),
    /// The client disconnected; the connection cannot be used again.
    Cut,
}

pub(super) async fn send<I: AsyncRead + AsyncWrite + Unpin>(wire: &mut I, response: Response<Body>) -> StreamEnd {
    let (parts, mut body) = response.into_parts();
    let mut stream = StreamBuffer { out: head(&parts), ahead: Vec::new(), is_over: false, broken: None };
    drop(parts);
    match poll_fn(|context| stream.poll(context, wire, &mut body)).await {
        Ok(()) => match stream.broken {
            None => StreamEnd::Whole(stream.ahead.into()),
            Some(end) => StreamEnd::Broken(end),
        },
        Err(error) => {
            tracing::debug!(%error, "a stream of events ended early");
            StreamEnd::Cut
        }
    }
}

struct StreamBuffer {
    out: BytesMut,
    /// Bytes that the client sent during the stream.
    ahead: Vec<u8>,
    is_over: bool,
    /// The body failed, and this is how the connection ends.
    broken: Option<Option<ConnectionEnd>>,
}

impl StreamBuffer {
    fn poll<I: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        context: &mut Context<'_>,
        wire: &mut I,
        body: &mut Body,
    ) -> Poll<io::Result<()>> {
        self.poll_client(context, wire)?;
        loop {
            let is_waiting = self.gather(context, body);
            ready!(poll_write_all(wire, context, &mut self.out))?;
            ready!(Pin::new(&mut *wire).poll_flush(context))?;
            if self.out.capacity() > KEPT_CAPACITY {
                self.out = BytesMut::new();
            }
            if self.is_over {
                return Poll::Ready(Ok(()));
            }
            if is_waiting {
                return Poll::Pending;
            }
        }
    }

    /// Encodes the frames that the body has ready; returns whether the body is pending.
    fn gather(&mut self, context: &mut Context<'_>, body: &mut Body) -> bool {
        while !self.is_over && self.out.len() < WRITE_SIZE {
            match Pin::new(&mut *body).poll_frame(context) {
                Poll::Pending => return true,
                Poll::Ready(None) => {
                    self.is_over = true;
                    self.out.put_slice(b"0\r\n\r\n");
                }
                Poll::Ready(Some(Err(error))) => {
                    self.is_over = true;
                    let error: Box<dyn Error + Send + Sync> = error.into();
                    tracing::debug!(error = %error, "the body of a stream of events failed");
                    self.broken = Some(ConnectionEnd::of(&*error));
                }
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        chunk(&mut self.out, data);
                    }
                }
            }
        }
        false
    }

    /// Reads what the client sends; fails when it has disconnected.
    fn poll_client<I: AsyncRead + Unpin>(&mut self, context: &mut Context<'_>, wire: &mut I) -> io::Result<()> {
        while self.ahead.len() < READ_AHEAD {
            let mut bytes = [0; READ_AHEAD];
            let mut read = ReadBuf::new(bytes.get_mut(self.ahead.len()..).unwrap_or_default());
            match Pin::new(&mut *wire).poll_read(context, &mut read) {
                Poll::Pending => return Ok(()),
                Poll::Ready(read) => read?,
            }
            if read.filled().is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.ahead.extend_from_slice(read.filled());
        }
        Ok(())
    }
}

fn chunk(out: &mut BytesMut, data: impl Buf) {
    // An empty chunk would end the body.
    if data.has_remaining() {
        out.reserve(data.remaining() + 20);
        put_hex(out, data.remaining());
        out.put_slice(b"\r\n");
        out.put(data);
        out.put_slice(b"\r\n");
    }
}

/// Writes a number in hexadecimal digits, without the machinery of formats, which costs as much as an event.
fn put_hex(out: &mut BytesMut, number: usize) {
    let digits = (usize::BITS - number.leading_zeros()).div_ceil(4).max(1);
    out.extend((0..digits).rev().filter_map(|place| HEX.get((number >> (4 * place)) & 0xf)));
}

/// Encodes the head of a response as hyper does.
fn head(parts: &response::Parts) -> BytesMut {
    let mut head = BytesMut::with_capacity(512);
    head.put_slice(b"HTTP/1.1 200 OK\r\n");
    for (name, value) in &parts.headers {
        head.put_slice(name.as_str().as_bytes());
        head.put_slice(b": ");
        head.put_slice(value.as_bytes());
        head.put_slice(b"\r\n");
    }
    head.put_slice(b"transfer-encoding: chunked\r\n");
    if !parts.headers.contains_key(header::DATE) {
        let _ = write!(head, "date: {}\r\n", HttpDate::from(SystemTime::now()));
    }
    head.put_slice(b"\r\n");
    head
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, time::Duration};

    use http::HeaderValue;
    use http_body::Frame;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;
    use crate::server::BodyError;

    /// A body of these frames; `None` is pending once, and `broken` an error.
    struct Chunks(VecDeque<Option<&'static str>>);

    impl http_body::Body for Chunks {
        type Data = Bytes;
        type Error = BodyError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
            match self.0.pop_front() {
                Some(Some("broken")) => Poll::Ready(Some(Err(BodyError::Broken(ConnectionEnd::HalfClose)))),
                Some(Some(text)) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(text.as_bytes()))))),
                Some(None) => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
                None => Poll::Ready(None),
            }
        }
    }

    fn response(chunks: &[Option<&'static str>]) -> Response<Body> {
        let mut response = Response::new(Body::new(Chunks(chunks.iter().copied().collect())));
        response.headers_mut().insert("content-type", HeaderValue::from_static("text/event-stream"));
        response.headers_mut().insert("date", HeaderValue::from_static("then"));
        response
    }

    const HEAD: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ndate: then\r\ntransfer-encoding: chunked\r\n\r\n";

    #[test]
    fn sizes_are_hexadecimal() {
        for size in [0, 1, 0xf, 0x10, 0xff, 0x100, 0xabc0, 0x12_3456, usize::MAX] {
            let mut out = BytesMut::new();
            put_hex(&mut out, size);
            assert_eq!(out, format!("{size:X}"));
        }
    }

    #[tokio::test]
    async fn chunks_are_framed_however_small_the_pipe_is() {
        for room in [1, 7, 4096] {
            let (mut server, mut client) = duplex(room);
            let long = "0123456789abcdefghijklmnop";
            let sending = tokio::spawn(async move {
                let sent = send(&mut server, response(&[Some("a"), None, Some(""), Some(long)])).await;
                matches!(sent, StreamEnd::Whole(unread) if unread.is_empty())
            });
            let mut all = String::new();
            client.read_to_string(&mut all).await.unwrap();
            assert_eq!(all, format!("{HEAD}1\r\na\r\n1A\r\n{long}\r\n0\r\n\r\n"));
            assert!(sending.await.unwrap());
        }
    }

    #[tokio::test]
    async fn what_a_broken_body_gave_is_sent_first() {
        for room in [1, 4096] {
            let (mut server, mut client) = duplex(room);
            let sending =
                tokio::spawn(
                    async move { send(&mut server, response(&[Some("a"), Some("bc"), Some("broken")])).await },
                );
            let mut all = String::new();
            client.read_to_string(&mut all).await.unwrap();
            assert_eq!(all, format!("{HEAD}1\r\na\r\n2\r\nbc\r\n"));
            assert!(matches!(sending.await.unwrap(), StreamEnd::Broken(Some(ConnectionEnd::HalfClose))));
        }
    }

    #[tokio::test]
    async fn bytes_that_the_client_sends_during_a_stream_are_kept() {
        let (mut server, mut client) = duplex(4096);
        client.write_all(&[b'x'; READ_AHEAD + 10]).await.unwrap();
        let StreamEnd::Whole(unread) = send(&mut server, response(&[Some("a"), None])).await else { panic!("cut") };
        assert_eq!(unread, [b'x'; READ_AHEAD].as_slice());
        let mut rest = [0; 10];
        server.read_exact(&mut rest).await.unwrap();
    }

    #[tokio::test]
    async fn a_disconnect_ends_a_waiting_stream() {
        let (mut server, client) = duplex(4096);
        let endless: Vec<_> = vec![None; 1000];
        drop(client);
        let sent = tokio::time::timeout(Duration::from_secs(10), send(&mut server, response(&endless))).await.unwrap();
        assert!(matches!(sent, StreamEnd::Cut));
    }
}
