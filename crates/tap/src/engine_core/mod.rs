//! A tap between a front end of vLLM and its engine cores: it records requests as they reach the engine, with the prompt's ids, and what each
//! step of the engine gave them.
//!
//! Engines connect here in place of the front end (`vllm serve --headless --data-parallel-address HOST --data-parallel-rpc-port PORT`), and
//! each of their connections becomes one to the front end. Messages pass as they are, but for the addresses that the front end names in its
//! handshake (`relay`). A copy of the bytes becomes requests and steps (`observer`), of which the recorder of HTTP exchanges makes records.
//!
//! | record | HTTP tap | here |
//! |---|---|---|
//! | request id | `x-request-id`, else the response's id | the front end's name of it |
//! | model | that of the request | the adapter's, else the one that was configured |
//! | prompt | the ids that the engine returns | the request's ids |
//! | times | when bytes pass | when an engine's message passes; also of answers that go out whole |
//! | choices of one request | its choices | requests named `0_ID`, `1_ID` and so on |
//! | status | that of the response | none |
//! | abort | the client's connection ends | the front end's message |
//!
//! See docs/decisions/0142-the-engine-core-tap-relays-bytes.md.

mod addresses;
mod decode;
mod observer;
mod relay;

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{net::TcpListener, sync::watch, time::sleep};

use super::{
    Handle, Setup, TapError, TapReport, capabilities::Capabilities, metrics::TapMetrics, shared_state::SharedState,
};
use addresses::SocketRole;
use observer::CoreObserver;
use relay::{CoreRelay, RelayedSocket};

/// How often the end looks whether requests are still in progress.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Configuration of a tap at the engine core.
#[derive(Debug, Clone)]
pub struct EngineCoreSetup {
    /// What is recorded and where. Its HTTP upstreams, connection options and MCP servers mean nothing here.
    pub setup: Setup,
    /// `HOST:PORT` at which the front end waits for engines.
    pub front_end: String,
    /// Name of the model, which the protocol does not have; requests for an adapter have the adapter's.
    pub model: Option<String>,
}

/// A tap at the engine core whose trace is open.
#[derive(Debug)]
pub struct EngineCoreTap {
    shared: Arc<SharedState>,
    observer: Arc<CoreObserver>,
    front_end: String,
    drain: Duration,
}

impl EngineCoreTap {
    /// Creates the trace and starts its recorder.
    ///
    /// # Errors
    /// When the trace cannot be created.
    pub fn start(config: EngineCoreSetup) -> Result<Self, TapError> {
        let EngineCoreSetup { setup, front_end, model } = config;
        let metrics = Arc::new(TapMetrics::new(vec![format!("tcp://{front_end}")], setup.disk_timeout));
        let capabilities = Arc::new(Capabilities::never_amended());
        let shared = Arc::new(SharedState::start(&setup, (true, Arc::clone(&capabilities)), metrics)?);
        let observer = Arc::new(CoreObserver::new(Arc::clone(&shared), capabilities, setup.filter, model));
        Ok(Self { shared, observer, front_end, drain: setup.config.drain })
    }

    /// Returns a handle to rotate the trace and read the counters while the tap serves.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.shared))
    }

    /// Relays engines that connect to `listener` until `shutdown`, waits for requests in progress for a time, and closes the trace.
    ///
    /// # Errors
    /// When the recorder failed.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> Result<TapReport, TapError> {
        let (stop, stopped) = watch::channel(false);
        let relay = Arc::new(CoreRelay::new(Arc::clone(&self.observer), stopped));
        let handshake = RelayedSocket { role: SocketRole::Handshake, address: self.front_end };
        let serving = tokio::spawn(relay.serve(listener, handshake));
        shutdown.await;
        let mut left = self.drain;
        while !left.is_zero() && self.observer.in_progress() > 0 {
            sleep(LOOK_EVERY.min(left)).await;
            left = left.saturating_sub(LOOK_EVERY);
        }
        self.shared.begin_cutting();
        let cut = self.observer.in_progress();
        self.observer.cut();
        // Nobody waits for the connections: without a listener here the engines' sockets have no one to talk to.
        stop.send_replace(true);
        let _ended = serving.await;
        let shared = Arc::clone(&self.shared);
        let recorder = tokio::task::spawn_blocking(move || shared.finish())
            .await
            .map_err(|error| TapError::Recorder(error.to_string()))??;
        let forwarded = self.shared.metrics.requests.load(std::sync::atomic::Ordering::Relaxed);
        Ok(TapReport { forwarded, recorder, cut, ..TapReport::default() })
    }
}
