//! Bodies that a proxy passes on, and observers of their frames.
//!
//! See docs/decisions/0041-one-forwarding.md and docs/decisions/0060-large-bodies-are-held-once.md.

use std::{
    collections::VecDeque,
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Version, header};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use super::headers;
use crate::server::{BodyError, Informational};

/// Calls `listener` with each informational response (1xx) to a request, over HTTP/1.1 only. 100 is left out: each server on
/// the way sends its own.
fn on_informational<B>(request: &mut Request<B>, listener: impl Fn(StatusCode, &HeaderMap) + Send + Sync + 'static) {
    hyper::ext::on_informational(request, move |response| {
        if response.status() != StatusCode::CONTINUE {
            let mut headers = response.headers().clone();
            headers::prepare_response(response.status(), &mut headers);
            listener(response.status(), &headers);
        }
    });
}

/// Sends a request by `respond` and passes informational responses (1xx) on to the client, before the response; HTTP/1.1 only. Calls
/// `dropped` for each that is dropped because the client does not read.
pub async fn pass_informational<B, F: Future>(
    mut request: Request<B>,
    informational: &Informational,
    dropped: impl Fn() + Send + Sync + 'static,
    respond: impl FnOnce(Request<B>) -> F,
) -> F::Output {
    if request.version() != Version::HTTP_11 {
        return respond(request).await;
    }
    let to_client = informational.clone();
    on_informational(&mut request, move |status, headers| {
        if !to_client.send(status, headers) {
            dropped();
        }
    });
    informational.send_before(pin!(respond(request))).await
}

/// Bytes of a frame of what was already received. The transport may copy a frame to write it, so that one of a whole body would be held
/// twice for as long as the receiver takes.
const PIECE: usize = 256 << 10;

/// A body that is passed on: bytes that were already received, then the rest as it arrives.
#[derive(Debug)]
pub struct Relayed<R> {
    /// Pieces that were already received.
    first: VecDeque<Bytes>,
    rest: Option<R>,
    /// The trailers of a body that was received whole.
    trailers: Option<Box<HeaderMap>>,
    idle: Option<Box<PauseLimit>>,
    /// The error that ended it, held back until the server has written what arrived before.
    broken: Option<BodyError>,
}

/// A limit of the pause between two frames.
#[derive(Debug)]
struct PauseLimit {
    limit: Duration,
    /// Runs while nothing arrives.
    pause: Option<Pin<Box<Sleep>>>,
}

impl<R> Relayed<R> {
    /// Builds a body from all its bytes.
    #[must_use]
    pub fn whole(bytes: Bytes) -> Self {
        Self::pieces(VecDeque::from([bytes]))
    }

    /// Builds a body from its pieces.
    #[must_use]
    pub fn pieces(pieces: VecDeque<Bytes>) -> Self {
        Self { first: pieces, rest: None, trailers: None, idle: None, broken: None }
    }

    /// Sets the trailers that follow it.
    #[must_use]
    pub fn with_trailers(self, trailers: Option<Box<HeaderMap>>) -> Self {
        Self { trailers, ..self }
    }

    /// Builds a body of which nothing was read.
    pub fn untouched(body: R) -> Self {
        Self { first: VecDeque::new(), rest: Some(body), trailers: None, idle: None, broken: None }
    }

    /// Puts `first`, which was read of it, before the rest of a body.
    #[must_use]
    pub fn resumed(first: Bytes, mut rest: Self) -> Self {
        rest.first.push_front(first);
        rest
    }

    /// Limits pauses between its frames; a longer one ends it with [`BodyError::Idle`].
    #[must_use]
    pub fn within(self, limit: Option<Duration>) -> Self {
        Self { idle: limit.map(|limit| Box::new(PauseLimit { limit, pause: None })), ..self }
    }

    /// Takes the next bytes of what was already received.
    fn next_piece(&mut self) -> Option<Bytes> {
        loop {
            let first = self.first.front_mut()?;
            let piece = first.split_to(first.len().min(PIECE));
            if first.is_empty() {
                self.first.pop_front();
            }
            if !piece.is_empty() {
                return Some(piece);
            }
        }
    }
}

impl PauseLimit {
    /// Begins or continues a pause and returns whether it is too long.
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        let limit = self.limit;
        self.pause.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(cx).is_ready()
    }
}

impl<R: Body<Data = Bytes, Error: Into<BodyError>> + Unpin> Body for Relayed<R> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(error) = self.broken.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if let Some(piece) = self.next_piece() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let Some(rest) = self.rest.as_mut() else {
            return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(*trailers))));
        };
        let polled = Pin::new(rest).poll_frame(cx);
        if let Some(idle) = &mut self.idle {
            if polled.is_ready() {
                idle.pause = None;
            } else if idle.is_over(cx) {
                let limit = idle.limit;
                self.rest = None;
                return Poll::Ready(Some(Err(BodyError::Idle(limit))));
            }
        }
        match polled {
            Poll::Ready(Some(Err(error))) => {
                // The server writes what it has when nothing more is ready, and not any more after an error.
                (self.rest, self.broken) = (None, Some(error.into()));
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            polled => polled.map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.iter().all(Bytes::is_empty)
            && self.trailers.is_none()
            && self.broken.is_none()
            && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        // Trailers need a body of unknown length.
        let nothing = || if self.trailers.is_some() { SizeHint::default() } else { SizeHint::with_exact(0) };
        let mut hint = self.rest.as_ref().map_or_else(nothing, Body::size_hint);
        let first = self.first.iter().map(Bytes::len).sum::<usize>() as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + first);
        }
        hint.set_lower(hint.lower() + first);
        hint
    }
}

/// An observer of a body that is passed on.
pub trait BodyObserver {
    /// Takes the bytes of the next data frame.
    fn data(&mut self, bytes: &Bytes);

    /// Takes the end of the body, once; with the error that ended it early.
    fn end(&mut self, error: Option<&BodyError>);

    /// Returns true if the body so far is all that its observer needs.
    fn has_all(&self) -> bool {
        false
    }
}

/// A body whose frames are observed on their way. A body that is dropped before its end drops its observer without a call.
#[derive(Debug)]
pub struct Observed<R, O> {
    body: Relayed<R>,
    observer: O,
    has_ended: bool,
}

impl<R, O: BodyObserver> Observed<R, O> {
    /// Builds a body with its observer.
    pub fn new(body: Relayed<R>, observer: O) -> Self {
        Self { body, observer, has_ended: false }
    }

    pub(super) fn into_body(self) -> Relayed<R> {
        self.body
    }

    /// Observes the body of a response. One without bytes is given back as it is; its observer takes its end at once.
    pub fn of(response: Response<R>, mut observer: O) -> Response<Result<Self, R>>
    where
        R: Body,
    {
        let has_no_bytes = response.headers().get(header::CONTENT_LENGTH).is_some_and(|length| length == "0");
        if has_no_bytes || response.body().is_end_stream() {
            observer.end(None);
            return response.map(Err);
        }
        response.map(|body| Ok(Self::new(Relayed::untouched(body), observer)))
    }

    /// Returns true if the body so far is all that its observer needs.
    pub fn has_all(&self) -> bool {
        self.observer.has_all()
    }

    fn end(&mut self, error: Option<&BodyError>) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.observer.end(error);
        }
    }
}

impl<R: Body<Data = Bytes, Error: Into<BodyError>> + Unpin, O: BodyObserver + Unpin> Body for Observed<R, O> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &polled {
            Some(Ok(frame)) => {
                if let Some(bytes) = frame.data_ref() {
                    self.observer.data(bytes);
                }
                // The transport may never poll for the end of a body whose length it knows.
                if self.body.is_end_stream() {
                    self.end(None);
                }
            }
            Some(Err(error)) => self.end(Some(error)),
            None => self.end(None),
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, combinators::UnsyncBoxBody};

    use super::*;

    #[tokio::test]
    async fn what_was_received_passes_in_pieces_that_share_its_bytes() {
        let bytes = Bytes::from(vec![7; 3 * PIECE + 1]);
        let pieces = VecDeque::from([Bytes::new(), bytes.clone(), Bytes::from_static(b"end")]);
        let mut body: Relayed<UnsyncBoxBody<Bytes, BodyError>> = Relayed::pieces(pieces);
        assert_eq!(body.size_hint().exact(), Some(bytes.len() as u64 + 3));
        let mut passed: Vec<Bytes> = Vec::new();
        while !body.is_end_stream() {
            passed.push(body.frame().await.unwrap().unwrap().into_data().unwrap());
        }
        assert!(body.frame().await.is_none());
        assert_eq!(passed.iter().map(Bytes::len).collect::<Vec<_>>(), [PIECE, PIECE, PIECE, 1, 3]);
        assert!(
            passed
                .iter()
                .take(4)
                .zip([0, PIECE, 2 * PIECE, 3 * PIECE])
                .all(|(piece, at)| piece.as_ptr() == bytes[at..].as_ptr())
        );
        assert_eq!(passed.concat(), [&bytes[..], b"end"].concat());
    }
}
