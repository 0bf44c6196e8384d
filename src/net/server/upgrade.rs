//! Upgrades (HTTP/1.1): after a response with status 101 is written, the service receives the raw connection.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
};

/// A connection after its upgrade; its bytes are not interpreted.
pub type RawConnection = Box<dyn RawStream>;

/// A stream of bytes in both directions.
pub trait RawStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<I: AsyncRead + AsyncWrite + Send + Unpin> RawStream for I {}

/// The receiver of an upgraded connection, put into the extensions of a response with status 101.
#[derive(Clone)]
pub struct Upgrade {
    receiver: Arc<Mutex<Option<oneshot::Sender<RawConnection>>>>,
}

impl Upgrade {
    /// Builds an upgrade and the channel that receives its connection. The channel closes without one when the connection
    /// ends first.
    #[must_use]
    pub fn new() -> (Self, oneshot::Receiver<RawConnection>) {
        let (sender, receiver) = oneshot::channel();
        (Self { receiver: Arc::new(Mutex::new(Some(sender))) }, receiver)
    }

    /// Passes the connection to the receiver.
    pub(super) fn complete(&self, connection: RawConnection) {
        let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(receiver) = receiver {
            let _dropped_by_service = receiver.send(connection);
        }
    }
}

impl fmt::Debug for Upgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upgrade").finish_non_exhaustive()
    }
}
