//! Connections that become another protocol: once the answer that says so is written, the service gets the connection.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
};

/// A connection whose bytes nobody interprets.
pub type RawConnection = Box<dyn RawStream>;

/// Bytes both ways.
pub trait RawStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<I: AsyncRead + AsyncWrite + Send + Unpin> RawStream for I {}

/// In the extensions of an answer with status 101: who gets the connection after it. HTTP/1.1 only.
#[derive(Clone)]
pub struct Handover {
    taker: Arc<Mutex<Option<oneshot::Sender<RawConnection>>>>,
}

impl Handover {
    /// A handover, and where the connection arrives; nothing does when the connection ends before.
    #[must_use]
    pub fn new() -> (Self, oneshot::Receiver<RawConnection>) {
        let (taker, taken) = oneshot::channel();
        (Self { taker: Arc::new(Mutex::new(Some(taker))) }, taken)
    }

    /// Hands the connection over.
    pub(super) fn give(&self, connection: RawConnection) {
        let taker = self.taker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(taker) = taker {
            let _nobody_waits = taker.send(connection);
        }
    }
}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handover").finish_non_exhaustive()
    }
}
