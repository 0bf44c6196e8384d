//! Decoder of chunked bodies (RFC 9112, section 7.1) that reads straight from the connection, for streams of events.
//!
//! It holds no buffer while it waits. Every chunk becomes one frame, or several where it arrived in parts. It refuses what
//! hyper refuses, so that a body is read alike by both; a property test compares them.
//!
//! Limits: up to 16 KB of chunk extensions, which are skipped, and 16 KB of trailers.
//!
//! See docs/decisions/0015-hyper-lends-streams-out.md.

use std::{
    io,
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Frame;
use tokio::io::{AsyncRead, ReadBuf};

use super::error::UpstreamBodyError;

/// Size of a read in bytes.
const READ_SIZE: usize = 16 << 10;

/// Maximum size of all chunk extensions, and of the trailers, in bytes.
const MAX_EXTRA: usize = 16 << 10;

/// Maximum number of trailers.
const MAX_TRAILERS: usize = 100;

/// The chunked body of a response, with its connection.
#[derive(Debug)]
pub(super) struct Chunked<I> {
    stream: I,
    /// Bytes that arrived and are not decoded.
    unread: Bytes,
    state: ChunkedState,
    /// Size of the extensions so far, in bytes.
    extensions: usize,
    /// The trailers so far, as they arrived.
    trailers: Vec<u8>,
}

/// The next expected byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkedState {
    /// The first digit of a chunk's size.
    Size,
    /// More digits, or the end of the size.
    Digits(u64),
    /// Blanks before the end of the size or an extension.
    Blanks(u64),
    Extension(u64),
    /// The line feed after a size.
    SizeEnd(u64),
    Data(u64),
    /// The carriage return after a chunk, then its line feed.
    DataReturn,
    DataEnd,
    Trailers,
    Done,
}

impl<I> Chunked<I> {
    /// Builds a body that begins with `unread` and continues on `stream`.
    pub(super) fn new(stream: I, unread: Bytes) -> Self {
        Self { stream, unread, state: ChunkedState::Size, extensions: 0, trailers: Vec::new() }
    }

    pub(super) fn is_over(&self) -> bool {
        self.state == ChunkedState::Done
    }

    /// Returns the connection when the body is over and no bytes follow it.
    pub(super) fn into_idle(self) -> Option<I> {
        (self.is_over() && self.unread.is_empty()).then_some(self.stream)
    }

    /// Decodes the next frame from the bytes that arrived; `None` where more are needed or the body is over.
    fn decode(&mut self) -> Result<Option<Frame<Bytes>>, UpstreamBodyError> {
        while !self.is_over() {
            if let ChunkedState::Data(left) = self.state {
                if self.unread.is_empty() {
                    return Ok(None);
                }
                let available = usize::try_from(left).unwrap_or(usize::MAX).min(self.unread.len());
                let data = self.unread.split_to(available);
                let left = left - available as u64;
                self.state = if left == 0 { ChunkedState::DataReturn } else { ChunkedState::Data(left) };
                return Ok(Some(Frame::data(data)));
            }
            let Some(byte) = self.unread.first().copied() else { return Ok(None) };
            self.unread.advance(1);
            self.state = self.next_state(byte)?;
        }
        if self.trailers.len() <= b"\r\n".len() {
            return Ok(None);
        }
        Ok(Some(Frame::trailers(read_trailers(&std::mem::take(&mut self.trailers))?)))
    }

    /// Computes the state after a byte of framing.
    fn next_state(&mut self, byte: u8) -> Result<ChunkedState, UpstreamBodyError> {
        use ChunkedState::{Blanks, Data, DataEnd, DataReturn, Digits, Done, Extension, Size, SizeEnd, Trailers};
        let bad = |reason| Err(UpstreamBodyError::BadChunk(reason));
        Ok(match (self.state, byte) {
            (Size, _) => match digit(byte) {
                Some(digit) => Digits(digit),
                None => return bad("a chunk size has no digits"),
            },
            (Digits(size) | Blanks(size), b' ' | b'\t') => Blanks(size),
            (Digits(size) | Blanks(size), b';') => Extension(size),
            (Digits(size) | Blanks(size) | Extension(size), b'\r') => SizeEnd(size),
            (Digits(size), _) => match (digit(byte), size.checked_mul(16)) {
                (Some(digit), Some(size)) => Digits(size | digit),
                (Some(_), None) => return bad("a chunk size exceeds 64 bits"),
                (None, _) => return bad("a chunk size is not a hexadecimal number"),
            },
            (Blanks(_), _) => return bad("unexpected bytes after a chunk size"),
            (Extension(_), b'\n') => return bad("a line ends without carriage return"),
            (Extension(size), _) => {
                self.extensions += 1;
                if self.extensions > MAX_EXTRA {
                    return bad("chunk extensions exceed 16 KB");
                }
                Extension(size)
            }
            (SizeEnd(0), b'\n') => Trailers,
            (SizeEnd(size), b'\n') => Data(size),
            (DataReturn, b'\r') => DataEnd,
            (DataEnd, b'\n') => Size,
            (SizeEnd(_) | DataReturn | DataEnd, _) => return bad("CRLF expected"),
            (Trailers, _) if byte != b'\n' && self.trailers.last() == Some(&b'\r') => {
                return bad("CRLF expected");
            }
            (Trailers, _) => {
                self.trailers.push(byte);
                if self.trailers == b"\r\n" || self.trailers.ends_with(b"\r\n\r\n") {
                    Done
                } else if self.trailers.len() > MAX_EXTRA {
                    return bad("trailers exceed 16 KB");
                } else {
                    Trailers
                }
            }
            (Data(_) | Done, _) => self.state,
        })
    }
}

impl<I: AsyncRead + Unpin> Chunked<I> {
    /// Polls for the next frame; `None` at the end.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UpstreamBodyError>>> {
        loop {
            if let Some(frame) = self.decode().transpose() {
                return Poll::Ready(Some(frame));
            }
            if self.is_over() {
                return Poll::Ready(None);
            }
            // On the stack, so that a stream that waits holds no buffer.
            let mut buffer = [const { MaybeUninit::uninit() }; READ_SIZE];
            let mut read = ReadBuf::uninit(&mut buffer);
            if let Err(error) = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read)) {
                return Poll::Ready(Some(Err(UpstreamBodyError::Broken(error))));
            }
            if read.filled().is_empty() {
                return Poll::Ready(Some(Err(UpstreamBodyError::Broken(io::ErrorKind::UnexpectedEof.into()))));
            }
            self.unread = Bytes::copy_from_slice(read.filled());
        }
    }
}

fn digit(byte: u8) -> Option<u64> {
    char::from(byte).to_digit(16).map(u64::from)
}

fn read_trailers(lines: &[u8]) -> Result<HeaderMap, UpstreamBodyError> {
    let mut found = [httparse::EMPTY_HEADER; MAX_TRAILERS];
    let bad = || UpstreamBodyError::BadChunk("a trailer is not a header line");
    let Ok(httparse::Status::Complete((_, found))) = httparse::parse_headers(lines, &mut found) else {
        return Err(bad());
    };
    let mut trailers = HeaderMap::with_capacity(found.len());
    for header in found {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| bad())?;
        trailers.append(name, HeaderValue::from_bytes(header.value).map_err(|_| bad())?);
    }
    Ok(trailers)
}

#[cfg(test)]
mod tests {
    use std::{fmt::Write as _, future::poll_fn};

    use http::Request;
    use http_body_util::{BodyExt, Empty};
    use hyper::client::conn::http1;
    use hyper_util::rt::TokioIo;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// Builds a connection that sends `bytes` in parts after a request, and then ends.
    fn connection(request: &'static [u8], bytes: &[u8], part: usize) -> DuplexStream {
        let (here, mut there) = duplex(part);
        let bytes = bytes.to_vec();
        tokio::spawn(async move {
            let mut received = Vec::new();
            while !received.ends_with(request) {
                received.push(there.read_u8().await.unwrap());
            }
            let _closed_early = there.write_all(&bytes).await;
            let _closed = there.shutdown().await;
        });
        here
    }

    /// Data and trailers of a body, and whether it ended well.
    type Read = (Vec<u8>, Option<HeaderMap>, bool);

    fn add(read: &mut Read, frame: Frame<Bytes>) {
        match frame.into_data() {
            Ok(data) => read.0.extend_from_slice(&data),
            Err(frame) => read.1 = frame.into_trailers().ok(),
        }
    }

    async fn read_by_us(bytes: &[u8], part: usize) -> Read {
        let mut body = Chunked::new(connection(b"", bytes, part), Bytes::new());
        let mut read = Read::default();
        loop {
            match poll_fn(|cx| body.poll_frame(cx)).await {
                Some(Ok(frame)) => add(&mut read, frame),
                Some(Err(_)) => return read,
                None => {
                    read.2 = true;
                    return read;
                }
            }
        }
    }

    async fn read_by_hyper(bytes: &[u8], part: usize) -> Read {
        let whole = [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", bytes].concat();
        let io = TokioIo::new(connection(b"\r\n\r\n", &whole, part));
        let (mut sender, driver) = http1::handshake(io).await.unwrap();
        tokio::spawn(driver);
        let mut body = sender.send_request(Request::new(Empty::<Bytes>::new())).await.unwrap().into_body();
        let mut read = Read::default();
        loop {
            match body.frame().await {
                Some(Ok(frame)) => add(&mut read, frame),
                Some(Err(_)) => return read,
                None => {
                    read.2 = true;
                    return read;
                }
            }
        }
    }

    fn compare(bytes: &[u8], part: usize) -> Read {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let found = read_by_us(bytes, part).await;
            assert_eq!(found, read_by_hyper(bytes, part).await, "{:?}", String::from_utf8_lossy(bytes));
            found
        })
    }

    #[test]
    fn bodies_are_read_as_hyper_reads_them() {
        let ends_well = [
            "0\r\n\r\n",
            "3\r\nabc\r\n0\r\n\r\n",
            "3 \t\r\nabc\r\n00\r\n\r\n",
            "a;name=value\r\n0123456789\r\n1\r\nx\r\n0;last\r\n\r\n",
            "1\r\nx\r\n0\r\nx-a: 1\r\nX-B:2\r\nx-a: 3\r\n\r\n",
            "1\r\n\r\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n",
        ];
        let breaks_off = [
            "",
            "3\r\nab",
            "3\r\nabc\r\n",
            "3\nabc\r\n0\r\n\r\n",
            "3\r\nabcd\r\n0\r\n\r\n",
            "3 4\r\nabc\r\n0\r\n\r\n",
            "g\r\n",
            "11111111111111111\r\n",
            "ffffffffffffffff\r\nabc",
            "1;a\nb\r\nx\r\n0\r\n\r\n",
            "1\r\nx\r\n0\r\nno header\r\n\r\n",
            "1\r\nx\r\n0\r\na: b\r\n",
            "0\r\n\n\r\r\n\r\n",
        ];
        for part in [1, 2, 3, 4096] {
            for body in ends_well {
                assert!(compare(body.as_bytes(), part).2, "{body:?}");
            }
            for body in breaks_off {
                assert!(!compare(body.as_bytes(), part).2, "{body:?}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn any_chunks_come_back_however_they_are_cut(
            chunks in prop::collection::vec("[a-z\r\n0-9]{1,40}", 0..6), part in 1_usize..50
        ) {
            let mut bytes = String::new();
            for chunk in &chunks {
                write!(bytes, "{:x}\r\n{chunk}\r\n", chunk.len()).unwrap();
            }
            let read = compare(format!("{bytes}0\r\n\r\n").as_bytes(), part);
            prop_assert_eq!(read, (chunks.concat().into_bytes(), None, true));
        }

        #[test]
        fn any_bytes_are_read_as_hyper_reads_them(bytes in "[0-9a-f]?[0-3 ;x\t]{0,2}\r?\n?[0-3ax:\r\n]{0,24}", part in 1_usize..9) {
            compare(bytes.as_bytes(), part);
        }
    }
}
