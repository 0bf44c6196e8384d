//! Transparent reverse proxy that records the exchanges of an engine.
//!
//! Every method and path is forwarded. Responses of the generation endpoints are also observed, and each of their choices
//! becomes one record of a trace; the record of any other posted JSON has shape, status and times. The
//! client's bytes are forwarded first and its request never waits for the recorder, nor fails because of it.
//!
//! To get exact token ids without a tokenizer, the tap may add fields to a request
//! (`return_token_ids`, `stream_options.include_usage`; `amend`) and removes their effects from the response (`restore`), so
//! that the client receives the bytes it would have received without the tap. If the engine refuses an amended request
//! (status 400, 403, 422 or 501), the client's own bytes are sent instead, so that error texts are exact too.
//!
//! One exchange, in order:
//! - `proxy` receives it, `filter` decides whether it is recorded, `upstreams` chooses its upstream and `forward` sends it there.
//! - `request` reads its fields, `amend` adds to them.
//! - `response` and `body` pass the response on. `observed_stream` decodes a stream's events (by `pattern`, else by `event`, or by `other_apis`) for
//!   `observed_exchange` and its `observed_choice`s. A response without ids is copied ([`capture`](recording::capture)).
//! - `exchange` ends in exactly one outcome and goes to the `recorder`, whose thread makes records (`records`, `assemble`, `logprobs`, `retokenize`, `redact`) and
//!   writes them (`trace_sink`).
//!
//! `shared_state` decides which content of responses is kept; `capabilities` and `facts` have what is known of an upstream; `metrics` and `counts` count,
//! and `admin` serves the counters.
//!
//! A cassette may be recorded in place of a trace: then a [player](replay::player) matches each request first, and a request
//! without a record is forwarded in the same way; the copy of its response goes to the cassette's recorder.
//!
//! Images, audio and video of chats are recorded as hashes, made before the request is forwarded.
//!
//! Limits: informational responses (1xx) are not passed on over HTTP/2; a request body over the limit is forwarded but not amended, nor is one
//! with trailers or a digest; an amended request does not ask for compression.

mod admin;
mod amend;
mod assemble;
mod body;
mod capabilities;
mod cassette;
mod channels;
mod client;
mod core_facts;
mod counts;
mod echo;
pub mod engine_core;
mod event;
mod exchange;
mod facts;
mod filter;
mod forward;
mod gather;
mod logprobs;
pub mod mcp;
mod metrics;
mod observed_choice;
mod observed_choices;
mod observed_exchange;
mod observed_stream;
mod other_apis;
mod output_frames;
mod pattern;
mod proxy;
mod recorder;
mod records;
mod redact;
mod refusal;
mod request;
mod response;
mod restore;
mod retokenize;
mod setup;
mod shared_state;
mod trace_sink;
mod upstreams;
mod weight;

use std::{future::Future, num::NonZeroUsize, sync::Arc, time::Duration};

use axum::body::Body;
use futures_util::future::BoxFuture;
use tokio::time::sleep;

use net::server::{self, Listener, Peer, Workers};
use replay::player::CassettePlayer;

pub use admin::Handle;
pub use assemble::{CONTINUOUS_USAGE, COUNTED_BY};
pub use client::{Client, ClientBody};
pub use facts::engine_meta;
pub use filter::Filter;
pub use mcp::{McpCommand, McpRecorded};
pub use recorder::{RecorderReport, TapError};
pub use setup::{ContentRecording, Deployment, RecordHook, Setup, TapConfig, UpstreamRoute, UpstreamSelector};

/// Counts of a tap that has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TapReport {
    /// Requests that were forwarded, recorded ones included.
    pub forwarded: u64,
    /// Counts of the recorded ones.
    pub recorder: RecorderReport,
    /// Informational responses (1xx) dropped because their client did not read.
    pub informational_dropped: u64,
    /// Number of connections that were cut at the drain's deadline.
    pub cut: usize,
    /// Counts of what was recorded of MCP servers.
    pub mcp: Option<McpRecorded>,
}

/// Time before the drain's deadline from which a client that leaves counts as cut.
const CUT_MARGIN: Duration = Duration::from_millis(5);

/// A tap whose trace is open.
///
/// ```no_run
/// use std::time::Duration;
/// use recording::trace::CreateMode;
/// use text::prompt::BlockHashAlgorithm;
/// use vllm_vcr_tap::{Tap, TapConfig};
///
/// # async fn record() -> Result<(), Box<dyn std::error::Error>> {
/// let tap = Tap::start(TapConfig {
///     upstream: "http://localhost:8000".parse()?,
///     trace_out: "day.jsonl.gz".into(),
///     create: CreateMode::New,
///     record_tokens: true,
///     tokenizer: None,
///     block_hash: BlockHashAlgorithm::Xxh3_64,
///     block_size: 16,
///     drain: Duration::from_secs(5),
/// })
/// .await?;
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:8001").await?;
/// let report = tap.serve(listener, async { drop(tokio::signal::ctrl_c().await) }).await?;
/// println!("{} requests forwarded", report.forwarded);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Tap {
    proxy: Arc<proxy::Proxy>,
    drain: Duration,
    threads: Option<NonZeroUsize>,
}

impl Tap {
    /// Creates the trace and starts its recorder.
    ///
    /// # Errors
    /// When the trace cannot be created.
    pub async fn start(setup: impl Into<Setup>) -> Result<Self, TapError> {
        Self::start_with(setup.into(), None).await
    }

    /// Plays and records the cassettes of a player, in place of a trace: it is asked for a record first, and what it does not
    /// answer is forwarded and recorded as it decides.
    ///
    /// # Errors
    /// None so far.
    pub async fn start_player(setup: Setup, player: Arc<CassettePlayer>) -> Result<Self, TapError> {
        Self::start_with(setup, Some(player)).await
    }

    async fn start_with(setup: Setup, player: Option<Arc<CassettePlayer>>) -> Result<Self, TapError> {
        let (drain, threads) = (setup.config.drain, setup.threads);
        Ok(Self { proxy: Arc::new(proxy::Proxy::start(setup, player).await?), drain, threads })
    }

    /// Returns a handle to rotate the trace and read the counters while the tap serves.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.proxy.shared))
    }

    /// Proxies what arrives at `listener` until `shutdown`, drains, and closes the trace.
    ///
    /// # Errors
    /// When the recorder failed.
    pub async fn serve(
        self,
        listener: impl Into<Listener>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<TapReport, TapError> {
        self.serve_until(listener.into(), Box::pin(shutdown)).await
    }

    /// Without the future's type the proxy is compiled here; with it, in each crate that serves.
    fn serve_until<'a>(
        self,
        listener: Listener,
        shutdown: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<TapReport, TapError>> {
        Box::pin(self.served(listener, shutdown))
    }

    async fn served(self, listener: Listener, shutdown: BoxFuture<'_, ()>) -> Result<TapReport, TapError> {
        let Self { proxy, drain, threads } = self;
        proxy.learn_facts();
        let make = || {
            let proxy = Arc::new(proxy.apart());
            move |request, peer: Peer| {
                let proxy = Arc::clone(&proxy);
                async move { proxy.forward(request, peer.informational).await.map(Body::new) }
            }
        };
        let workers = Workers::new(threads);
        let ending = {
            let proxy = Arc::clone(&proxy);
            async move {
                shutdown.await;
                proxy.mcp.end_streams();
                tokio::spawn(async move {
                    sleep(drain.saturating_sub(CUT_MARGIN)).await;
                    proxy.begin_cutting();
                });
            }
        };
        let drained = server::run_on(&workers, listener, make, ending, drain).await;
        Self::ended(proxy, drained.cut).await
    }

    /// Closes the trace of a tap that [clients](Client) alone have used.
    ///
    /// # Errors
    /// When the recorder failed.
    pub async fn finish(self) -> Result<TapReport, TapError> {
        Self::ended(self.proxy, 0).await
    }

    async fn ended(proxy: Arc<proxy::Proxy>, cut: usize) -> Result<TapReport, TapError> {
        proxy.completed().await;
        proxy.mcp.end().await;
        let metrics = &proxy.metrics;
        let [forwarded, informational_dropped] =
            [&metrics.requests, &metrics.informational_dropped].map(counts::RecorderCounts::get);
        let finish = move || (proxy.mcp.finish(), proxy.shared.finish());
        let (mcp, recorder) =
            tokio::task::spawn_blocking(finish).await.map_err(|error| TapError::Recorder(error.to_string()))?;
        Ok(TapReport { forwarded, recorder: recorder?, informational_dropped, cut, mcp })
    }
}
