//! How a connection ends in the middle of a response, or before it.
//!
//! A body reports it by its error ([`BodyError::Broken`](super::BodyError::Broken)), a service by an extension of its response, of which
//! then no byte leaves. What a body gave before is written first: `events` does so itself, and [`WrittenFirst`] holds the error back from
//! hyper, which drops what it has buffered.
//!
//! Limits: over HTTP/2 the stream is reset in each case, with `INTERNAL_ERROR`: its connection is others' too. A Unix socket cannot be
//! reset. What a client has not taken from the system's buffers is lost with a reset, as with any.
//!
//! See docs/decisions/0133-bodies-say-how-connections-end.md.

use std::{
    error::Error,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum_core::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::{
    connection_stream::ConnectionStream,
    write_watch::{WriteWait, WriteWatch},
};
use base::causes::causes;

/// Time in which a client has to take the end of a connection, and to end its own side of one that is half closed.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// End of a connection before the end of its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionEnd {
    /// It is reset (RST).
    #[error("the connection is reset")]
    Reset,
    /// It is closed (FIN).
    #[error("the connection is closed")]
    Close,
    /// The server ends its own side (FIN), and reads on until the client ends the other.
    #[error("the connection is half closed")]
    HalfClose,
}

impl ConnectionEnd {
    /// Finds it among an error and its sources.
    pub(super) fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        causes(error).find_map(|cause| cause.downcast_ref::<Self>()).copied()
    }

    pub(super) async fn end<I: ConnectionStream>(self, mut wire: I) {
        let ends = async {
            match self {
                Self::Reset => {
                    wire.reset_when_dropped();
                    return Ok(());
                }
                Self::Close => wire.shutdown().await?,
                Self::HalfClose => {
                    wire.shutdown().await?;
                    let mut unread = [0; 512];
                    while wire.read(&mut unread).await? > 0 {}
                }
            }
            std::io::Result::Ok(())
        };
        match timeout(ENDS_WITHIN, ends).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the client ended the connection first"),
            Err(_) => tracing::debug!("the client did not end its side of the connection"),
        }
    }
}

/// A body whose error comes once all that it gave before is written.
pub(super) struct WrittenFirst {
    body: Body,
    writes: WriteWatch,
    broken: Option<(axum_core::Error, WriteWait)>,
}

impl WrittenFirst {
    pub(super) fn new(body: Body, writes: WriteWatch) -> Self {
        Self { body, writes, broken: None }
    }
}

impl http_body::Body for WrittenFirst {
    type Data = Bytes;
    type Error = axum_core::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum_core::Error>>> {
        let this = self.get_mut();
        if this.broken.is_none() {
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Err(error)) => this.broken = Some((error, WriteWait::default())),
                frame => return Poll::Ready(frame),
            }
        }
        if let Some((_, wait)) = &mut this.broken {
            ready!(this.writes.poll_written(wait, context));
        }
        Poll::Ready(this.broken.take().map(|(error, _)| Err(error)))
    }

    fn is_end_stream(&self) -> bool {
        self.broken.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
