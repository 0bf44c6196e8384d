//! A tap for tests that want more than the least of it.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};
use vllm_vcr::{
    net::server::Listener,
    recording::trace::{CreateMode, Record, Trace, read},
    tap::{Handle, Setup, Tap, TapConfig, TapError, TapReport},
    text::prompt::BlockHashAlgorithm,
};

use super::public_reader;

pub(crate) struct Tapping {
    pub(crate) address: SocketAddr,
    pub(crate) handle: Handle,
    pub(crate) folder: TempDir,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<TapReport, TapError>>,
}

/// The least of a tap before `upstream`, which writes to `folder`.
pub(crate) fn setup(upstream: &str, folder: &Path) -> Setup {
    Setup::from(TapConfig {
        upstream: upstream.parse().unwrap(),
        trace_out: folder.join("trace.jsonl.gz"),
        create: CreateMode::New,
        record_tokens: true,
        tokenizer: None,
        block_hash: BlockHashAlgorithm::Xxh3_64,
        block_size: 2,
        drain: Duration::from_millis(500),
    })
}

impl Tapping {
    pub(crate) async fn start(upstream: impl std::fmt::Display, change: impl FnOnce(&mut Setup)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Self::behind(listener, address, &format!("http://{upstream}"), change).await
    }

    /// A tap that has a fifth of a second to end its streams.
    pub(crate) async fn before(upstream: SocketAddr) -> Self {
        Self::start(upstream, |setup| setup.config.drain = Duration::from_millis(200)).await
    }

    pub(crate) async fn behind(
        listener: impl Into<Listener>,
        address: SocketAddr,
        upstream: &str,
        change: impl FnOnce(&mut Setup),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut setup = setup(upstream, folder.path());
        change(&mut setup);
        Self::serve(listener.into(), address, folder, setup).await
    }

    /// One copy of this code for all callers: what is spawned is compiled anew for each type.
    async fn serve(listener: Listener, address: SocketAddr, folder: TempDir, setup: Setup) -> Self {
        let tap = Tap::start(setup).await.unwrap();
        let handle = tap.handle();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(tap.serve(listener, async {
            let _stopped = stopped.await;
        }));
        Self { address, handle, folder, stop, task }
    }

    pub(crate) async fn stop(self) -> (TapReport, Vec<Trace>) {
        self.stop.send(()).unwrap();
        let report = self.task.await.unwrap().unwrap();
        (report, traces(self.folder.path()))
    }

    /// The report, and the records of the one file, which has no defect and a right end.
    pub(crate) async fn sound(self) -> (TapReport, Vec<Record>) {
        let (report, mut traces) = self.stop().await;
        let trace = traces.pop().unwrap();
        assert!(traces.is_empty() && trace.warnings.is_empty(), "{:?}", trace.warnings);
        assert_eq!(trace.end.unwrap().records, trace.records.len() as u64);
        (report, trace.records)
    }

    /// The report, and the records of all files.
    pub(crate) async fn records(self) -> (TapReport, Vec<Record>) {
        let (report, traces) = self.stop().await;
        (report, traces.into_iter().flat_map(|trace| trace.records).collect())
    }

    /// The value of a metric, its labels included in the name.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.handle.metrics();
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not in {page}")).parse().unwrap()
    }

    /// The value of a counter.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let page = self.handle.metrics();
        page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok()).unwrap()
    }

    /// Waits until a metric has this value or more.
    pub(crate) async fn until(&self, name: &str, value: f64) {
        self.until_metric(name, value, |now| now >= value).await;
    }

    /// Waits until a metric has this value.
    pub(crate) async fn until_is(&self, name: &str, value: f64) {
        self.until_metric(name, value, |now| (now - value).abs() < f64::EPSILON).await;
    }

    async fn until_metric(&self, name: &str, value: f64, is_reached: impl Fn(f64) -> bool) {
        for _ in 0..1500 {
            if is_reached(self.metric(name)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{name} is {} and not {value}", self.metric(name));
    }
}

/// Every trace in a folder, by name.
pub(crate) fn traces(folder: &Path) -> Vec<Trace> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.to_string_lossy().contains(".jsonl") && path.is_file());
    paths.sort();
    paths.iter().map(|path| load(path)).collect()
}

/// One trace, which the public reader takes too.
pub(crate) fn load(path: &Path) -> Trace {
    let trace = read(path).unwrap();
    let (_, records) = public_reader::load(path).unwrap();
    assert_eq!(records.len(), trace.records.len());
    trace
}
