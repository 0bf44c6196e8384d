//! Sends the requests of a plan.
//!
//! Each worker is a thread with a runtime, connections and a timer of its own, and takes every nth session. A session is a task: it waits for the start
//! of each of its requests, sends it, and reads the response to its end.

mod worker;

use std::{
    collections::BTreeMap,
    io, iter,
    num::NonZeroUsize,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use base::{
    lock::Lock,
    one_line::{clipped, one_line},
    stats::Durations,
};
use http::HeaderName;
use net::{
    server::Workers,
    upstream::{UpstreamOptions, UpstreamUrl},
};
use recording::{
    cassette::Moment,
    redaction::{RedactionRules, Redactor},
    trace::{AGENT, CreateMode, INTENDED_MS, Outcome, Record, ResponseContent},
};
use replay::timing::Pacer;
use rustix::time::ClockId;
use serde_json::json;
use tap::{ContentRecording, RecordHook, RecorderReport, Setup, Tap, TapConfig, TapError, UpstreamRoute};
use text::prompt::BlockHashAlgorithm;
use tokio::{sync::watch, task::JoinSet, time::Instant};

use self::worker::Worker;
use crate::{
    history::{History, HistoryCounts},
    numbers::{float, millis, processor_time},
    plan::Plan,
    prompt::{Prompts, REQUEST_ID},
    results::{Results, TARGET},
    workload::Workload,
};

/// Characters of an error response that are shown.
const MOST_SHOWN: usize = 200;

/// Text of an error response that cannot be read.
const UNREAD: &str = "a response that cannot be read: it has a content encoding, or is too large";

/// Time between the plan and the first request, in which the workers begin.
const LEAD: Duration = Duration::from_millis(50);

/// Configuration of a run.
#[derive(Debug, Clone)]
pub struct Drive {
    /// The servers; requests go to them in turn, those of a session to the same one.
    pub targets: Vec<UpstreamUrl>,
    /// Connection options and timeouts.
    pub reach: UpstreamOptions,
    /// Longest pause of a response; `None` for no limit.
    pub idle: Option<Duration>,
    /// Makes the requests.
    pub prompts: Prompts,
    /// The trace to write; `None` for none.
    pub out: Option<PathBuf>,
    /// Commit that this program was built from, for the trace.
    pub commit: Option<String>,
    /// Texts of responses are recorded.
    pub content: bool,
    /// What is a secret in these texts.
    pub rules: RedactionRules,
    /// No session begins later than this after the start.
    pub duration: Option<Duration>,
    /// Number of threads that send.
    pub threads: NonZeroUsize,
    /// What later turns of a session repeat of earlier ones.
    pub history: History,
    /// When the run starts; `None` for at once.
    pub start_at: Option<SystemTime>,
}

/// A run that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The results cannot be recorded.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// A thread or a runtime cannot be had.
    #[error("cannot start a thread that sends")]
    Thread(#[from] io::Error),
    /// No server is named.
    #[error("no target: name the server to drive")]
    NoTarget,
    /// The time at which the run was to start is over.
    #[error("the run was to start {:.0} s ago: name a time that leaves all machines the time to get ready", .0.as_secs_f64())]
    StartIsOver(Duration),
    /// The time at which the run is to start is not within this clock.
    #[error("the run is to start too far in the future")]
    StartIsTooFar,
    /// The tokenizer has no chat template.
    #[error(
        "the tokenizer has no template for chats: name one with a chat template, or none, so that the server is asked"
    )]
    NoTemplate,
    /// The server does not report the tokens of a prompt.
    #[error(
        "{path} of the first target answered with status {status} and without a count of the prompt (`usage`), so the lengths of prompts of text cannot be measured: name its tokenizer with --tokenizer, or send token ids"
    )]
    NoLength {
        /// The endpoint.
        path: &'static str,
        /// What it answered; 0 for nothing.
        status: u16,
    },
}

/// Outcome of a run.
#[derive(Debug)]
pub struct Driven {
    /// How late the threads that send woke up when they had nothing else to do.
    pub lag: Durations,
    /// Its start: the zero of all times of its results.
    pub start: Instant,
    /// Time that it took.
    pub spent: TimeSpent,
    /// It was stopped before all requests were sent.
    pub stopped: bool,
    /// Requests that were sent.
    pub sent: u64,
    /// Answers that later turns repeated.
    pub history: HistoryCounts,
    /// The beginning of the first response of each status that was an error or no answer of a model, without secrets; by the outcome, why there was no
    /// response.
    pub errors: BTreeMap<String, String>,
    /// Counts of their records.
    pub recorder: RecorderReport,
}

/// Time from the first thread's start to the last one's end.
#[derive(Debug, Clone, Copy, Default)]
pub struct TimeSpent {
    /// By the monotonic clock.
    pub took: Duration,
    /// Processor time of this process.
    pub cpu: Duration,
    /// Processor time, as a share of what the threads could have had.
    pub cpu_share: f64,
    /// How far the system's clock was set meanwhile.
    pub clock_step: Duration,
}

/// State that all workers share.
struct DrivenRun {
    workload: Arc<Workload>,
    plan: Plan,
    prompts: Prompts,
    history: History,
    targets: Vec<String>,
    /// The place of each request's session in the plan, by which its target is chosen.
    chains: Vec<usize>,
    rules: RedactionRules,
    start: Instant,
    /// Longest pause of a response.
    idle: Option<Duration>,
    /// When each request was to be sent, in nanoseconds from the start.
    intended: Vec<AtomicU64>,
    /// No session begins after this.
    until: Option<Instant>,
    counts: SharedCounts,
}

/// Counts of all workers, as [`Driven`] has them.
#[derive(Default)]
struct SharedCounts {
    sent: AtomicU64,
    next_session: AtomicUsize,
    lag: Lock<Durations>,
    history: Lock<HistoryCounts>,
    errors: Lock<BTreeMap<String, String>>,
}

/// Sends a plan's requests and waits for their ends, or until `stopped` completes; what is on its way then is cut off and counts as cut.
///
/// # Errors
/// When the results cannot be recorded, or threads cannot be started.
pub async fn drive(
    drive: Drive,
    workload: Arc<Workload>,
    plan: Plan,
    results: Arc<Results>,
    mut stopped: watch::Receiver<bool>,
) -> Result<Driven, DriveError> {
    let workers = Workers::start(drive.threads)?;
    let seen = Arc::new(OnceLock::new());
    let tap =
        Tap::start(setup(&drive, workload.block_size, hook(Arc::clone(&seen), results), drive.out.clone())?).await?;
    let start = start(drive.start_at)?;
    tokio::select! {
        () = tokio::time::sleep_until(start - LEAD) => {}
        _ = stopped.wait_for(|stopped| *stopped) => {}
    }
    let run = Arc::new(DrivenRun {
        until: drive.duration.map(|duration| start + duration),
        intended: iter::repeat_with(AtomicU64::default).take(workload.requests.len()).collect(),
        targets: drive.targets.iter().map(ToString::to_string).collect(),
        chains: chains(&plan, workload.requests.len()),
        rules: drive.rules,
        idle: drive.idle,
        start,
        counts: SharedCounts::default(),
        prompts: drive.prompts,
        history: drive.history,
        workload,
        plan,
    });
    let _first = seen.set((Arc::clone(&run), run.start.saturating_duration_since(tap.zero())));
    let (mut sending, threads) = (JoinSet::new(), drive.threads.get());
    let (mut probes, began) = (JoinSet::new(), Began::now());
    for (number, (handle, (client, pacer))) in (0..).zip(workers.in_each(|| (tap.client(), Pacer::precise()))) {
        let worker = Arc::new(Worker { run: Arc::clone(&run), client, pacer });
        probes.spawn_on(Arc::clone(&worker).probe(), &handle);
        match run.plan.at_once {
            None => drop(sending.spawn_on(worker.open_loop(number, threads), &handle)),
            Some(places) => (number..places.min(run.plan.sessions.len())).step_by(threads).for_each(|_| {
                sending.spawn_on(Arc::clone(&worker).closed_loop(), &handle);
            }),
        }
    }
    let was_stopped = tokio::select! {
        () = async { while sending.join_next().await.is_some() {} } => false,
        _ = stopped.wait_for(|stopped| *stopped) => {
            tap.begin_cutting();
            sending.shutdown().await;
            true
        }
    };
    let spent = began.until_now(threads);
    probes.shutdown().await;
    // The last records come with it, and their errors.
    let recorder = tap.finish().await?.recorder;
    let SharedCounts { sent, lag, history, errors, .. } = &run.counts;
    let (sent, lag, history, errors) = (sent.load(Relaxed), lag.lock().clone(), *history.lock(), errors.lock().clone());
    Ok(Driven { lag, start, spent, stopped: was_stopped, sent, history, errors, recorder })
}

/// The place of each request's session.
fn chains(plan: &Plan, requests: usize) -> Vec<usize> {
    let mut chains = vec![0; requests];
    for (place, session) in plan.sessions.iter().enumerate() {
        for turn in &session.turns {
            chains.get_mut(turn.request).into_iter().for_each(|chain| *chain = place);
        }
    }
    chains
}

impl DrivenRun {
    fn target_of(&self, index: usize) -> Option<&str> {
        let target = self.chains.get(index)?.checked_rem(self.targets.len())?;
        self.targets.get(target).map(String::as_str)
    }

    /// Keeps the beginning of the first error of this kind, without its secrets.
    fn add_error(&self, kind: &str, text: &[u8]) {
        let mut errors = self.counts.errors.lock();
        errors.entry(kind.to_owned()).or_insert_with(|| beginning(text, &self.rules, &self.prompts.headers));
    }
}

/// Text of a response that failed, though not by its status: where it leads or its type, and its body or the event with the error.
fn error_text(record: &Record) -> Option<Vec<u8>> {
    let Some(response) = &record.response else {
        let body = record.error.as_ref().and_then(|error| error.body.as_deref());
        return Some(body.or((record.output_tokens == 0).then_some(UNREAD))?.into());
    };
    let data = match &response.content {
        ResponseContent::Body(body) => body.as_slice(),
        ResponseContent::Events(events) => {
            let mut data = events.iter().filter_map(|Moment(_, data, _)| data.as_deref());
            let error = data.clone().rfind(|data| data.contains(r#""error""#));
            error.or_else(|| data.next()).unwrap_or_default().as_bytes()
        }
    };
    let place = response.header("location").map(|place| format!("location {place}"));
    let kind = response.header("content-type").unwrap_or("no content type");
    Some([place.as_deref().unwrap_or(kind).as_bytes(), b": ", data].concat())
}

/// The beginning of a body in a line, without secrets: those of a run's own headers too.
fn beginning(body: &[u8], rules: &RedactionRules, headers: &[(HeaderName, String)]) -> String {
    let mut redactor = Redactor::new(rules);
    headers.iter().for_each(|(name, value)| redactor.learn_named(name.as_str(), value.trim_start_matches("Bearer ")));
    let body = redactor.body(body).unwrap_or_else(|| body.to_owned());
    clipped(&one_line(String::from_utf8_lossy(&body).trim()), MOST_SHOWN)
}

fn start(at: Option<SystemTime>) -> Result<Instant, DriveError> {
    let Some(at) = at else { return Ok(Instant::now() + LEAD) };
    let wait = at.duration_since(SystemTime::now()).map_err(|over| DriveError::StartIsOver(over.duration()))?;
    Instant::now().checked_add(wait).ok_or(DriveError::StartIsTooFar)
}

/// Builds the tap that requests are sent through.
pub(crate) fn setup(
    drive: &Drive,
    block_size: u32,
    hook: RecordHook,
    out: Option<PathBuf>,
) -> Result<Setup, DriveError> {
    let discards = out.is_none();
    let (first, others) = drive.targets.split_first().ok_or(DriveError::NoTarget)?;
    let config = TapConfig {
        upstream: first.clone(),
        trace_out: out.unwrap_or_default(),
        create: CreateMode::New,
        record_tokens: true,
        tokenizer: None,
        block_hash: BlockHashAlgorithm::Xxh3_64,
        block_size,
        drain: Duration::ZERO,
    };
    // Their upstreams are chosen by index; a selector that no request fits keeps them from anything else.
    let routes = others.iter().map(|upstream| UpstreamRoute { selector: None, upstream: upstream.clone() }).collect();
    let (text, rules) = (drive.content, drive.rules.clone());
    // What an error quotes is of the trace that is replayed.
    let content = ContentRecording { text, errors: true, incomplete_ids: text, rules, ..ContentRecording::default() };
    let setup = Setup {
        routes,
        reach: drive.reach.clone(),
        idle: drive.idle,
        content,
        commit: drive.commit.clone(),
        counts_tokens: true,
        hook: Some(hook),
        discards,
        ..Setup::from(config)
    };
    Ok(setup)
}

/// The hook that adds records to the results, once the run is known: with it comes the time from the zero of the tap to its start.
fn hook(run: Arc<OnceLock<(Arc<DrivenRun>, Duration)>>, results: Arc<Results>) -> RecordHook {
    RecordHook(Arc::new(move |record: &mut Record| {
        let Some((run, lead)) = run.get() else { return };
        let number = record.request_id.as_deref().and_then(|id| id.strip_prefix(REQUEST_ID)?.parse::<usize>().ok());
        let Some(index) = number.and_then(|number| run.workload.index_of(number)) else { return };
        let (Some(request), Some(intended)) = (run.workload.requests.get(index), run.intended.get(index)) else {
            return;
        };
        let sent = record.arrival.unwrap_or_default().saturating_sub(*lead);
        let intended = Duration::from_nanos(intended.load(Relaxed));
        record.extra.insert(INTENDED_MS.to_owned(), json!(millis(intended)));
        record.session.clone_from(&request.record.session);
        record.extra.extend(request.record.agent().map(|agent| (AGENT.to_owned(), json!(agent))));
        let target = run.target_of(index).filter(|_| run.targets.len() > 1);
        record.extra.extend(target.map(|target| (TARGET.to_owned(), json!(target))));
        results.add(index, request, intended, sent, record);
        if let (Some(Outcome::Error | Outcome::UpstreamFailed), Some(status @ ..400), None | Some(0)) =
            (record.outcome, record.status, record.choice)
        {
            error_text(record).into_iter().for_each(|text| run.add_error(&status.to_string(), &text));
        }
    }))
}

/// The clocks at the start of a run.
struct Began {
    monotonic: Instant,
    system: SystemTime,
    processor: Duration,
}

impl Began {
    fn now() -> Self {
        Self {
            monotonic: Instant::now(),
            system: SystemTime::now(),
            processor: processor_time(ClockId::ProcessCPUTime),
        }
    }

    /// Returns what passed since then, in so many threads.
    fn until_now(&self, threads: usize) -> TimeSpent {
        let now = Self::now();
        let (took, cpu) = (now.monotonic - self.monotonic, now.processor.saturating_sub(self.processor));
        let by_system = now.system.duration_since(self.system).unwrap_or_default();
        let cpu_share = cpu.as_secs_f64() / (took.as_secs_f64() * float(threads)).max(1e-9);
        TimeSpent { took, cpu, cpu_share, clock_step: by_system.abs_diff(took) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_shown_in_a_line_without_the_runs_own_secrets() {
        let headers = [(http::header::AUTHORIZATION, "Bearer my-own-key-7".to_owned())];
        let shown = |body: &str| beginning(body.as_bytes(), &RedactionRules::default(), &headers);
        assert_eq!(shown(" no\nsuch model "), "no\\nsuch model");
        assert!(shown("wrong key my-own-key-7").starts_with("wrong key "));
        assert!(!shown("wrong key my-own-key-7").contains("my-own-key-7"));
        assert_eq!(shown(&"x".repeat(1000)).chars().count(), MOST_SHOWN + 1);
    }
}
