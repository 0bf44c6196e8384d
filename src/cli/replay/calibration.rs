//! `--calibrate`: a server that answers at once, for what the client itself reaches, and for `doctor`.

use std::{
    io,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use rustix::time::ClockId;
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
    sync::{oneshot, watch},
};

use crate::{
    cli::{failure::Failure, output},
    drive::{
        Ceiling, Drive, History, Plan, Workload,
        calibrate::{self, Shapes},
        numbers::processor_time,
        prompt::Prompts,
    },
    net::upstream::UpstreamOptions,
    play::{Config, Player, Source, Synthetic, TokenizerSource},
    recording::redaction::RedactionRules,
    replay::timing::Pacing,
    text::prompt::Tokenizer,
};

/// Distance of tokens: each is an event of its own in a write of its own, as from an engine, and due long before it can leave.
const DISTANCE: Duration = Duration::from_micros(1);

/// Longest wait for the end of the server's threads.
const END_WITHIN: Duration = Duration::from_secs(2);

/// Measures what the client of a run reaches; warns if it could not.
pub(super) async fn ceiling(
    run: &Drive,
    workload: &Workload,
    plan: &Plan,
    stopped: watch::Receiver<bool>,
) -> Result<Option<Ceiling>, Failure> {
    let shapes = Shapes::of(workload, plan);
    let server = Server::start(shapes.longest()).await?;
    let configuration = Drive {
        targets: vec![server.url.parse().map_err(Failure::environment)?],
        reach: UpstreamOptions::default(),
        idle: run.idle,
        prompts: Prompts::default(),
        out: None,
        content: false,
        duration: None,
        commit: None,
        history: History::Recorded,
        rules: RedactionRules::default(),
        start_at: None,
        threads: run.threads,
    };
    let ceiling = calibrate::calibrate(configuration, shapes, stopped, || server.end()).await?;
    if ceiling.is_none() {
        output::warn("no response ended while the client was calibrated: its ceiling is not known\n");
    }
    Ok(ceiling)
}

/// A server on threads of its own.
pub(in crate::cli) struct Server {
    pub(in crate::cli) url: String,
    /// `None` once it has ended.
    runtime: Option<Runtime>,
    stop: Option<oneshot::Sender<()>>,
    /// Processor time of its threads that have ended, in nanoseconds.
    cpu: Arc<AtomicU64>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // A runtime must not be waited for among asynchronous tasks.
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl Server {
    /// Starts a server that takes requests of so many tokens.
    pub(in crate::cli) async fn start(longest: u32) -> Result<Self, Failure> {
        let player = Player::load(Config {
            source: Source::Synthetic(Synthetic::Random),
            pacing: Pacing::Fixed { ttft: Duration::ZERO, itl: DISTANCE },
            tokenizer: TokenizerSource::Loaded(tokenizer()?),
            max_model_len: Some(longest.saturating_add(1)),
            block_size: NonZeroU32::new(16),
            drain: Duration::ZERO,
            ..Config::default()
        })?;
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(Failure::environment)?;
        let url = format!("http://{}", listener.local_addr().map_err(Failure::environment)?);
        let cpu = Arc::new(AtomicU64::new(0));
        let runtime = runtime(Arc::clone(&cpu)).map_err(Failure::environment)?;
        let (stop, stopped) = oneshot::channel::<()>();
        runtime.spawn(async move { player.serve(listener, async { drop(stopped.await) }).await });
        Ok(Self { url, runtime: Some(runtime), stop: Some(stop), cpu })
    }

    /// Ends it and returns the processor time of its threads.
    pub(in crate::cli) async fn end(mut self) -> Duration {
        drop(self.stop.take());
        let runtime = self.runtime.take();
        let ending = move || runtime.into_iter().for_each(|runtime| runtime.shutdown_timeout(END_WITHIN));
        let _ended = tokio::task::spawn_blocking(ending).await;
        Duration::from_nanos(self.cpu.load(Relaxed))
    }
}

/// The built-in tokenizer with its tables, so that they are not made while the client is measured.
fn tokenizer() -> Result<Tokenizer, Failure> {
    let tokenizer = Player::builtin_tokenizer()?;
    let _known = tokenizer.token_id("hello");
    Ok(tokenizer)
}

fn runtime(cpu: Arc<AtomicU64>) -> io::Result<Runtime> {
    let note = move || {
        let spent = processor_time(ClockId::ThreadCPUTime);
        cpu.fetch_add(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    };
    Builder::new_multi_thread().enable_all().thread_name("calibrate").on_thread_stop(note).build()
}
