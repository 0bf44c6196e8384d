//! A transparent reverse proxy that writes down what an engine streams.
//!
//! Every method and path is forwarded. Answers of the generation endpoints are also looked at, and each of their choices
//! becomes one record of a trace; of everything else that is posted JSON the record holds shape, status and times. The
//! client's bytes are forwarded first and its request never waits for the recorder, nor fails because of it.
//!
//! To know exact token ids without a tokenizer, the tap may ask the engine for more than its client did
//! (`return_token_ids`, `stream_options.include_usage`; `amend`) and takes that out of the answer again (`restore`), so
//! that the client receives the bytes it would have received without the tap. When the engine refuses an amended request
//! (status 400 or 422), the client's own bytes are sent instead, so that error texts are exact too.
//!
//! One exchange, in order: `proxy` receives it and chooses its upstream (`upstreams`), `filter` says whether it is recorded,
//! `request` reads what it asks for, `amend` decides what to add, `body` passes the answer on and `observed_stream` shows a stream's
//! events to `exchange` (recognised by `pattern`, else read by `event`, or by `other_answers` for other APIs; each choice in `observed_choice`), which ends in exactly
//! one outcome and is submitted to the `recorder`, whose thread makes records of what was observed (`assemble`) and
//! writes them (`trace_sink`). What is kept of answers is said in the `shared_state` that they share; log probabilities are kept in `logprobs`. Where no ids stand for an
//! answer it is copied as the client gets it ([`capture`](crate::recording::capture)), and becomes ids where a tokenizer gives them with certainty (`retokenize`). What answers teach about an
//! upstream, and what it tells of itself (`facts`), is kept in
//! `capabilities`; `metrics` and `counts` count, and `admin` shows the counts.
//!
//! In place of a trace a cassette may be recorded: then a [player](crate::replay::player) is asked for a record first, and what it
//! does not answer is forwarded in the same way; the copy of its response goes to the cassette's recorder.
//!
//! Images, audio and video of chats are recorded as hashes, made before the request is forwarded.
//!
//! Limits: informational responses (1xx) are not passed on over HTTP/2; a request body over the limit is forwarded but not amended, nor is one
//! with trailers or a digest; an amended request does not ask for compression.

mod admin;
mod amend;
mod answer;
mod assemble;
mod body;
mod capabilities;
mod cassette;
mod counts;
mod echo;
mod event;
mod exchange;
mod facts;
mod filter;
mod logprobs;
mod metrics;
mod observed_choice;
mod observed_stream;
mod other_answers;
mod pattern;
mod proxy;
mod recorder;
mod refusal;
mod request;
mod restore;
mod retokenize;
mod setup;
mod shared_state;
mod trace_sink;
mod tunnel;
mod upstreams;

use std::{future::Future, num::NonZeroUsize, sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::{
    net::server::{self, Listener, Peer, Workers},
    recording::trace::TraceError,
    replay::player::CassettePlayer,
};

pub use admin::Handle;
pub use filter::Filter;
pub use recorder::RecorderReport;
pub use setup::{Asking, Config, Content, Deployment, Route, Selector, Setup, Starting};

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
///
/// ```no_run
/// use std::time::Duration;
/// use vllm_vcr::{recording::trace::CreateMode, tap::{Config, Tap}, text::prompt::BlockHash};
///
/// # async fn record() -> Result<(), Box<dyn std::error::Error>> {
/// let tap = Tap::start(Config {
///     upstream: "http://localhost:8000".parse()?,
///     trace_out: "day.jsonl.gz".into(),
///     create: CreateMode::New,
///     record_tokens: true,
///     tokenizer: None,
///     block_hash: BlockHash::Xxh3_64,
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

    /// Something to rotate its trace and to see its counts with, while it serves.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.proxy))
    }

    /// Proxies what arrives at `listener` until `shutdown`, drains, and closes the trace.
    ///
    /// # Errors
    /// When the recorder failed.
    pub async fn serve(
        self,
        listener: impl Into<Listener>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Report, TapError> {
        let Self { proxy, drain, threads } = self;
        proxy.learn_facts();
        let make = || {
            let proxy = Arc::new(proxy.apart());
            move |request, peer: Peer| {
                let proxy = Arc::clone(&proxy);
                async move { proxy.forward(request, peer.informational).await }
            }
        };
        let workers = Workers::new(threads);
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
        let drained = server::run_on(&workers, listener, make, ending, drain).await;
        let forwarded = proxy.forwarded();
        let recorder = tokio::task::spawn_blocking(move || proxy.finish())
            .await
            .map_err(|error| TapError::Recorder(error.to_string()))??;
        Ok(Report { forwarded, recorder, cut: drained.cut })
    }
}
