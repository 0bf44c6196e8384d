//! A body in chunks (RFC 9112, section 7.1) read straight from its connection, for streams of events.
//!
//! It holds no buffer while it waits. Every chunk is a frame of its own, or several where it arrived in parts. What is
//! refused is what the HTTP library refuses, so that it does not matter who reads a body.
//!
//! Limits: extensions of chunks are skipped, up to 16 KB of them; trailers may have 16 KB.
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

use super::received::ReceivedError;

/// So much is read at once.
const AT_ONCE: usize = 16 << 10;

/// Extensions of chunks, and trailers, may be so long.
const MOST_ASIDE: usize = 16 << 10;

/// More trailers than this are refused.
const MOST_TRAILERS: usize = 100;

/// The body of an answer, and the connection that it comes over.
#[derive(Debug)]
pub(super) struct Chunked<I> {
    stream: I,
    /// What arrived and is not decoded.
    unread: Bytes,
    expected: Expected,
    /// Bytes of extensions so far.
    extensions: usize,
    /// The trailers so far, as they arrived.
    trailers: Vec<u8>,
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// The first digit of a chunk's size.
    Size,
    /// More digits, or what ends them.
    Digits(u64),
    /// Only blanks until the end of the size, or an extension.
    Blanks(u64),
    Extension(u64),
    /// The line feed after a size.
    SizeEnd(u64),
    Data(u64),
    /// The carriage return after a chunk, then its line feed.
    DataReturn,
    DataEnd,
    Trailers,
    Nothing,
}

impl<I> Chunked<I> {
    /// The body that begins with `unread` and goes on over `stream`.
    pub(super) fn new(stream: I, unread: Bytes) -> Self {
        Self { stream, unread, expected: Expected::Size, extensions: 0, trailers: Vec::new() }
    }

    pub(super) fn is_over(&self) -> bool {
        self.expected == Expected::Nothing
    }

    /// The connection, when the body is over and nothing came after it.
    pub(super) fn into_idle(self) -> Option<I> {
        (self.is_over() && self.unread.is_empty()).then_some(self.stream)
    }

    /// The next frame of what arrived; `None` where more has to be read, or the body is over.
    fn decode(&mut self) -> Result<Option<Frame<Bytes>>, ReceivedError> {
        while !self.is_over() {
            if let Expected::Data(left) = self.expected {
                if self.unread.is_empty() {
                    return Ok(None);
                }
                let here = usize::try_from(left).unwrap_or(usize::MAX).min(self.unread.len());
                let data = self.unread.split_to(here);
                let left = left - here as u64;
                self.expected = if left == 0 { Expected::DataReturn } else { Expected::Data(left) };
                return Ok(Some(Frame::data(data)));
            }
            let Some(byte) = self.unread.first().copied() else { return Ok(None) };
            self.unread.advance(1);
            self.expected = self.after(byte)?;
        }
        if self.trailers.len() <= b"\r\n".len() {
            return Ok(None);
        }
        Ok(Some(Frame::trailers(read_trailers(&std::mem::take(&mut self.trailers))?)))
    }

    /// What is expected after a byte that is no data.
    fn after(&mut self, byte: u8) -> Result<Expected, ReceivedError> {
        use Expected::{Blanks, Data, DataEnd, DataReturn, Digits, Extension, Nothing, Size, SizeEnd, Trailers};
        let bad = |what| Err(ReceivedError::BadChunk(what));
        Ok(match (self.expected, byte) {
            (Size, _) => match digit(byte) {
                Some(digit) => Digits(digit),
                None => return bad("a size without digits"),
            },
            (Digits(size) | Blanks(size), b' ' | b'\t') => Blanks(size),
            (Digits(size) | Blanks(size), b';') => Extension(size),
            (Digits(size) | Blanks(size) | Extension(size), b'\r') => SizeEnd(size),
            (Digits(size), _) => match (digit(byte), size.checked_mul(16)) {
                (Some(digit), Some(size)) => Digits(size | digit),
                (Some(_), None) => return bad("a size that no chunk has"),
                (None, _) => return bad("a size that is no number"),
            },
            (Blanks(_), _) => return bad("words after a size"),
            (Extension(_), b'\n') => return bad("a line that ends without carriage return"),
            (Extension(size), _) => {
                self.extensions += 1;
                if self.extensions > MOST_ASIDE {
                    return bad("extensions without end");
                }
                Extension(size)
            }
            (SizeEnd(0), b'\n') => Trailers,
            (SizeEnd(size), b'\n') => Data(size),
            (DataReturn, b'\r') => DataEnd,
            (DataEnd, b'\n') => Size,
            (SizeEnd(_) | DataReturn | DataEnd, _) => return bad("no end of a line where one belongs"),
            (Trailers, _) if byte != b'\n' && self.trailers.last() == Some(&b'\r') => {
                return bad("no end of a line where one belongs");
            }
            (Trailers, _) => {
                self.trailers.push(byte);
                if self.trailers == b"\r\n" || self.trailers.ends_with(b"\r\n\r\n") {
                    Nothing
                } else if self.trailers.len() > MOST_ASIDE {
                    return bad("trailers without end");
                } else {
                    Trailers
                }
            }
            (Data(_) | Nothing, _) => self.expected,
        })
    }
}

impl<I: AsyncRead + Unpin> Chunked<I> {
    /// The next frame; `None` at the end.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ReceivedError>>> {
        loop {
            if let Some(frame) = self.decode().transpose() {
                return Poll::Ready(Some(frame));
            }
            if self.is_over() {
                return Poll::Ready(None);
            }
            let mut room = [const { MaybeUninit::uninit() }; AT_ONCE];
            let mut read = ReadBuf::uninit(&mut room);
            if let Err(error) = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read)) {
                return Poll::Ready(Some(Err(ReceivedError::Broken(error))));
            }
            if read.filled().is_empty() {
                return Poll::Ready(Some(Err(ReceivedError::Broken(io::ErrorKind::UnexpectedEof.into()))));
            }
            self.unread = Bytes::copy_from_slice(read.filled());
        }
    }
}

fn digit(byte: u8) -> Option<u64> {
    char::from(byte).to_digit(16).map(u64::from)
}

fn read_trailers(lines: &[u8]) -> Result<HeaderMap, ReceivedError> {
    let mut found = [httparse::EMPTY_HEADER; MOST_TRAILERS];
    let bad = || ReceivedError::BadChunk("trailers that are no headers");
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

    /// A connection over which these bytes come after a request, in parts of a size, and which then ends.
    fn coming(request: &'static [u8], bytes: &[u8], part: usize) -> DuplexStream {
        let (here, mut there) = duplex(part);
        let bytes = bytes.to_vec();
        tokio::spawn(async move {
            let mut asked = Vec::new();
            while !asked.ends_with(request) {
                asked.push(there.read_u8().await.unwrap());
            }
            let _nobody_reads = there.write_all(&bytes).await;
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

    async fn ours(bytes: &[u8], part: usize) -> Read {
        let mut body = Chunked::new(coming(b"", bytes, part), Bytes::new());
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

    async fn the_library_s(bytes: &[u8], part: usize) -> Read {
        let whole = [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", bytes].concat();
        let (mut sender, connection) = http1::handshake(TokioIo::new(coming(b"\r\n\r\n", &whole, part))).await.unwrap();
        tokio::spawn(connection);
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
            let found = ours(bytes, part).await;
            assert_eq!(found, the_library_s(bytes, part).await, "{:?}", String::from_utf8_lossy(bytes));
            found
        })
    }

    #[test]
    fn bodies_are_read_as_the_library_reads_them() {
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
        fn any_nonsense_is_read_as_the_library_reads_it(bytes in "[0-9a-f]?[0-3 ;x\t]{0,2}\r?\n?[0-3ax:\r\n]{0,24}", part in 1_usize..9) {
            compare(bytes.as_bytes(), part);
        }
    }
}
