//! The server behind a gateway: `play` in this process, with what it was asked and what it sent.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

use crate::{
    faults::Fault,
    net::upstream::UrlError,
    play::{Config, FaultLines, PlayError, Player, ServedKey, ServedLog, ServedResponse, ServerFaults},
    recording::cassette::CassetteError,
    replay::{player::CassettePlayerError, timing::Pacing},
};

/// A `play` behind a gateway; it stops when this is dropped.
#[derive(Debug)]
pub struct BehindServer {
    /// Where it listens: what the gateway has as its upstream.
    pub address: SocketAddr,
    faults: Arc<ServerFaults>,
    log: Arc<ServedLog>,
    _stop: oneshot::Sender<()>,
    _served: JoinHandle<()>,
}

impl BehindServer {
    /// Serves on a bound listener, at once and without a limit of time. `key` distinguishes requests by their bodies, since gateways
    /// replace headers; what is served to requests with a key is kept until it is taken.
    ///
    /// # Errors
    /// As [`Player::load`], or when the listener has no address.
    pub fn start(listener: TcpListener, config: Config, key: ServedKey) -> Result<Self, GroundTruthError> {
        let log = Arc::new(ServedLog::new(key));
        let faults = Arc::new(ServerFaults::default().observed(Arc::clone(&log)));
        let config = Config { faults: Arc::clone(&faults), pacing: Pacing::Instant, drain: Duration::ZERO, ..config };
        let player = Player::load(config)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(async move {
            player.serve(listener, async { drop(stopped.await) }).await;
        });
        Ok(Self { address, faults, log, _stop: stop, _served: served })
    }

    /// Replaces the faults; responses in progress keep theirs. With `where prompt=KEY` a fault is for the request with that key alone.
    pub(crate) fn set_faults(&self, faults: Vec<Fault>, seed: u64) {
        self.faults.replace(FaultLines { faults, seed });
    }

    /// Takes what was served to requests of this key, in the order of their arrival: one, where the gateway passed a request on once.
    pub(crate) fn take(&self, key: &str) -> Vec<ServedResponse> {
        self.log.take(key)
    }
}

/// Ground truth that cannot be made, or not be served.
#[derive(Debug, thiserror::Error)]
pub enum GroundTruthError {
    /// What a server serves cannot be loaded.
    #[error(transparent)]
    Play(#[from] PlayError),
    /// Cassettes cannot be played.
    #[error(transparent)]
    Player(#[from] CassettePlayerError),
    /// The scenarios, or what was made of a recording, are no cassette.
    #[error(transparent)]
    Cassette(#[from] CassetteError),
    /// The system's error.
    #[error("the server behind the gateway cannot be started")]
    Io(#[from] std::io::Error),
    /// An address is no URL.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// A recording has no stream.
    #[error("{0} has no stream of a chat, completion, message or response")]
    Empty(String),
}
