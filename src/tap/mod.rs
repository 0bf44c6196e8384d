//! A transparent reverse proxy that writes down what an engine streams.
//!
//! Every method and path is forwarded. Answers of `/v1/chat/completions` and `/v1/completions` are also looked at, and
//! each of their choices becomes one record of a trace. The client's bytes are forwarded first and its request never
//! waits for the recorder, nor fails because of it.
//!
//! To know exact token ids without a tokenizer, the tap may ask the engine for more than its client did
//! (`return_token_ids`, `stream_options.include_usage`; `amend`) and takes that out of the answer again (`restore`), so
//! that the client receives the bytes it would have received without the tap. When the engine refuses an amended request
//! (status 400 or 422), the client's own bytes are sent instead, so that error texts are exact too.
//!
//! One exchange, in order: `proxy` receives it, `request` reads what it asks for, `amend` decides what to add, `body`
//! passes the answer on and shows it to `exchange`, which ends in exactly one outcome and hands its findings to
//! `recorder`, whose thread makes records of them (`assemble`) and writes them. What one answer teaches about the upstream
//! is kept in `learned`.
//!
//! Limits: HTTP/1.1 without TLS; a request body over the limit is forwarded but not amended.

mod amend;
mod assemble;
mod body;
mod event;
mod exchange;
mod learned;
mod proxy;
mod recorder;
mod request;
mod restore;

use std::{future::Future, path::PathBuf, sync::Arc, time::Duration};

use tokio::{net::TcpListener, time::sleep};

use crate::{
    prompt::{BlockHash, Tokenizer},
    serve,
    trace::{CreateMode, TraceError},
    upstream::UpstreamUrl,
};

pub use recorder::RecorderReport;

/// What a tap does, fully decided.
#[derive(Debug, Clone)]
pub struct Config {
    /// The server to record.
    pub upstream: UpstreamUrl,
    /// The trace to write (`-` is stdout).
    pub trace_out: PathBuf,
    /// What to do when the trace is already there.
    pub create: CreateMode,
    /// Whether the ids that came out are recorded. Prompts are recorded as block hashes only, either way.
    pub record_tokens: bool,
    /// Hashes prompts of engines that do not give their ids; `None` leaves such records without hashes.
    pub tokenizer: Option<Tokenizer>,
    /// Hash algorithm of prompt blocks.
    pub block_hash: BlockHash,
    /// Prompt tokens per hashed block.
    pub block_size: u32,
    /// How long requests in flight may go on after shutdown begins.
    pub drain: Duration,
}

/// What a tap did, told at its end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Requests that were forwarded, recorded ones included.
    pub forwarded: u64,
    /// What became of the recorded ones.
    pub recorder: RecorderReport,
    /// Connections that were cut at the drain's deadline.
    pub cut: usize,
}

/// A tap that cannot start or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The trace cannot be created.
    #[error("cannot write the trace")]
    Trace(#[from] TraceError),
    /// The recorder's thread cannot be started or did not end properly.
    #[error("the recorder failed: {0}")]
    Recorder(String),
}

/// A client that leaves so shortly before the drain's deadline counts as cut.
const CUT_MARGIN: Duration = Duration::from_millis(5);

/// A tap whose trace is open.
#[derive(Debug)]
pub struct Tap {
    proxy: Arc<proxy::Proxy>,
    drain: Duration,
}

impl Tap {
    /// Creates the trace and starts its recorder.
    ///
    /// # Errors
    /// When the trace cannot be created.
    pub async fn start(config: Config) -> Result<Self, TapError> {
        let drain = config.drain;
        Ok(Self { proxy: Arc::new(proxy::Proxy::start(config).await?), drain })
    }

    /// Proxies what arrives at `listener` until `shutdown`, drains, and closes the trace.
    ///
    /// # Errors
    /// When the trace's last lines cannot be written.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> Result<Report, TapError> {
        let Self { proxy, drain } = self;
        proxy.learn_version();
        let service = {
            let proxy = Arc::clone(&proxy);
            move |request, _peer| {
                let proxy = Arc::clone(&proxy);
                async move { proxy.forward(request).await }
            }
        };
        let ending = {
            let proxy = Arc::clone(&proxy);
            async move {
                shutdown.await;
                tokio::spawn(async move {
                    sleep(drain.saturating_sub(CUT_MARGIN)).await;
                    proxy.begin_cutting();
                });
            }
        };
        let drained = serve::run(listener, service, ending, drain).await;
        let forwarded = proxy.forwarded();
        let recorder = tokio::task::spawn_blocking(move || proxy.finish())
            .await
            .map_err(|error| TapError::Recorder(error.to_string()))??;
        Ok(Report { forwarded, recorder, cut: drained.cut })
    }
}
