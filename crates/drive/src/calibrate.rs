//! The ceiling of this client: what it reaches at a server that answers at once.
//!
//! Requests with the prompt and output lengths of the run are sent in a closed loop for a few seconds. The server is on this machine, and what it
//! computes is not there for the client: the ceiling is what the client would reach with that time too, if its threads can use it.
//!
//! Limits: connections are plain HTTP over loopback. TLS, and the work of a network card, are not in the ceiling, so that it is rather too high.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use recording::trace::Record;
use replay::meter::Slo;
use serde::Serialize;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::{
    Drive, DriveError, Driven, Plan, Results, Workload,
    numbers::float,
    plan::{Session, Start, Turn},
    results::ResultsReport,
    run::drive,
    verdict::Reason,
    workload::WorkloadRequest,
};

/// Duration for which requests are sent.
const LENGTH: Duration = Duration::from_secs(3);

/// Maximum of that duration, where no response has ended by then.
const LONGEST: Duration = Duration::from_secs(30);

/// Interval of checks for the end of the first response.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The fewest requests that are on their way: enough for every thread to have something to do.
const FEWEST_AT_ONCE: usize = 64;

const MOST_AT_ONCE: usize = 1024;

/// Requests whose lengths are taken, evenly spread over the run.
const SHAPES: usize = 1024;

/// Share of the ceiling from which the client is taken to be the bottleneck.
const MAX_SHARE: f64 = 0.8;

/// Figures of a client at a server that answers at once.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ceiling {
    /// Requests a second, of the lengths of the run.
    pub requests_per_s: f64,
    /// Output tokens a second.
    pub tokens_per_s: f64,
}

/// Requests with the lengths of a run's, each a session of its own.
#[derive(Debug)]
pub struct Shapes {
    workload: Workload,
    at_once: usize,
}

impl Shapes {
    /// Takes the lengths of a run's requests.
    #[must_use]
    pub fn of(workload: &Workload, plan: &Plan) -> Self {
        let planned = || plan.sessions.iter().flat_map(|session| &session.turns);
        let step = planned().count().div_ceil(SHAPES).max(1);
        let records = planned().step_by(step).filter_map(|turn| workload.requests.get(turn.request));
        let request = |(number, request): (usize, &WorkloadRequest)| WorkloadRequest {
            record: shape(&request.record),
            number,
            at: Duration::ZERO,
            session: number,
        };
        Self {
            workload: Workload {
                name: workload.name.clone(),
                block_size: workload.block_size,
                requests: records.enumerate().map(request).collect(),
                ..Workload::default()
            },
            at_once: plan.at_once.unwrap_or_default().clamp(FEWEST_AT_ONCE, MOST_AT_ONCE),
        }
    }

    /// Returns the longest prompt and output together, in tokens.
    #[must_use]
    pub fn longest(&self) -> u32 {
        let records = self.workload.requests.iter().map(|request| &request.record);
        records.map(|record| record.prompt_tokens.saturating_add(record.output_tokens)).max().unwrap_or_default()
    }

    fn plan(&self) -> Plan {
        let session = |request| Session {
            begin: None,
            turns: vec![Turn { request, start: Start::Since(Duration::ZERO), waits: Vec::new() }],
        };
        let sessions = (0..self.workload.requests.len()).map(session).collect();
        Plan { sessions, at_once: Some(self.at_once), repeats: true }
    }

    fn tokens_per_request(&self) -> f64 {
        let tokens: u64 = self.workload.requests.iter().map(|request| u64::from(request.record.output_tokens)).sum();
        float(tokens) / float(u64::try_from(self.workload.requests.len()).unwrap_or(u64::MAX)).max(1.0)
    }
}

/// What decides how much work a request is: its lengths, its blocks, and whether its response is a stream.
fn shape(record: &Record) -> Record {
    Record {
        prompt_tokens: record.prompt_tokens,
        output_tokens: record.output_tokens.max(1),
        block_hashes: record.block_hashes.clone(),
        prompt_hash: record.prompt_hash,
        stream: record.stream,
        ..Record::default()
    }
}

/// Sends requests of these shapes for some seconds, longer where no response ends in them, or until `stopped` completes, to the target of `configuration`, a server that answers at once.
/// `server_time` returns the processor time of that server, in this process, once it has ended.
///
/// # Errors
/// When the requests cannot be sent.
pub async fn calibrate(
    configuration: Drive,
    shapes: Shapes,
    mut stopped: watch::Receiver<bool>,
    server_time: impl AsyncFnOnce() -> Duration,
) -> Result<Option<Ceiling>, DriveError> {
    let (plan, per_request, threads) = (shapes.plan(), shapes.tokens_per_request(), configuration.threads);
    let results = Arc::new(Results::new(&shapes.workload, Slo::default(), Duration::ZERO, false));
    let (stop, over) = watch::channel(false);
    // On a busy machine long responses take more than the time: what is measured is at least one of them.
    let measured = async {
        sleep(LENGTH).await;
        let one = async {
            while results.live().ended == 0 {
                sleep(LOOK_EVERY).await;
            }
        };
        let _longest = timeout(LONGEST.saturating_sub(LENGTH), one).await;
    };
    let timer = async {
        tokio::select! {
            () = measured => {}
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
        let _ended = stop.send(true);
    };
    let driving = drive(configuration, Arc::new(shapes.workload), plan, Arc::clone(&results), over);
    let (driven, ()) = tokio::join!(driving, timer);
    let (driven, server) = (driven?, server_time().await);
    Ok(Ceiling::of(results.report().output_throughput, &driven, server, threads, per_request))
}

impl Ceiling {
    /// Computes it from what was reached beside a server that computed for so long; `None` where nothing came.
    fn of(
        tokens_per_s: f64,
        driven: &Driven,
        server: Duration,
        threads: NonZeroUsize,
        tokens_per_request: f64,
    ) -> Option<Self> {
        let client = driven.spent.cpu.saturating_sub(server).as_secs_f64();
        let could = float(u64::try_from(threads.get()).unwrap_or(u64::MAX)) * driven.spent.took.as_secs_f64();
        // It gets the server's time too, but no more than its threads can have.
        let more = (driven.spent.cpu.as_secs_f64() / client).min(could / client);
        let more = if more.is_finite() { more.max(1.0) } else { 1.0 };
        let tokens_per_s = tokens_per_s * more;
        (tokens_per_s > 0.0).then(|| Self { requests_per_s: tokens_per_s / tokens_per_request.max(1.0), tokens_per_s })
    }

    /// Returns the share of it that a run reached, in requests or in tokens.
    #[must_use]
    pub fn reached(&self, requests_per_s: f64, tokens_per_s: f64) -> f64 {
        (requests_per_s / self.requests_per_s).max(tokens_per_s / self.tokens_per_s)
    }

    /// Returns the reason not to believe a run that came too close to it.
    #[must_use]
    pub fn reason(&self, report: &ResultsReport) -> Option<Reason> {
        self.bounds(report.request_throughput, report.output_throughput)
    }

    /// Returns the same for a run of this throughput.
    pub(crate) fn bounds(&self, requests_per_s: f64, tokens_per_s: f64) -> Option<Reason> {
        let share = self.reached(requests_per_s, tokens_per_s);
        (share > MAX_SHARE).then_some(Reason::ClientBound { share, ceiling: *self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driven(cpu_ms: u64, took_ms: u64) -> Driven {
        Driven {
            lag: base::stats::Durations::default(),
            start: tokio::time::Instant::now(),
            spent: crate::run::TimeSpent {
                took: Duration::from_millis(took_ms),
                cpu: Duration::from_millis(cpu_ms),
                ..Default::default()
            },
            stopped: true,
            sent: 0,
            history: crate::history::HistoryCounts::default(),
            errors: std::collections::BTreeMap::new(),
            recorder: tap::RecorderReport::default(),
        }
    }

    fn ceiling(cpu_ms: u64, server_ms: u64, threads: usize) -> f64 {
        let threads = NonZeroUsize::new(threads).unwrap();
        let server = Duration::from_millis(server_ms);
        Ceiling::of(1000.0, &driven(cpu_ms, 1000), server, threads, 10.0).unwrap().tokens_per_s
    }

    #[test]
    fn the_servers_time_is_the_clients_as_far_as_its_threads_can_use_it() {
        // Two cores, of which the server had one: the client would be twice as fast with two threads, with one it is not.
        assert!((ceiling(2000, 1000, 2) - 2000.0).abs() < 1e-6);
        assert!((ceiling(2000, 1000, 1) - 1000.0).abs() < 1e-6);
        // A tenth of a core, of which the server had half.
        assert!((ceiling(100, 50, 2) - 2000.0).abs() < 1e-6);
        // The threads computed all the time, and the recorder's beside them.
        assert!((ceiling(1500, 0, 1) - 1000.0).abs() < 1e-6);
        let ceiling = Ceiling::of(1000.0, &driven(100, 1000), Duration::ZERO, NonZeroUsize::MIN, 10.0).unwrap();
        assert!((ceiling.requests_per_s - 100.0).abs() < 1e-6);
        assert_eq!(Ceiling::of(0.0, &driven(100, 1000), Duration::ZERO, NonZeroUsize::MIN, 10.0), None);
    }

    #[test]
    fn a_run_above_four_fifths_of_it_is_bound_by_the_client() {
        let ceiling = Ceiling { requests_per_s: 100.0, tokens_per_s: 1000.0 };
        let mut report = Results::new(&Workload::default(), Slo::default(), Duration::ZERO, false).report();
        (report.request_throughput, report.output_throughput) = (50.0, 790.0);
        assert_eq!(ceiling.reason(&report), None);
        report.output_throughput = 810.0;
        assert_eq!(ceiling.reason(&report), Some(Reason::ClientBound { share: 0.81, ceiling }));
        (report.request_throughput, report.output_throughput) = (90.0, 100.0);
        assert_eq!(ceiling.reason(&report), Some(Reason::ClientBound { share: 0.9, ceiling }));
    }

    #[test]
    fn shapes_are_those_of_the_whole_run_and_begin_again() {
        let request = |number: u32| WorkloadRequest {
            record: Record {
                prompt_tokens: number,
                output_tokens: number % 10,
                session: Some("one".to_owned()),
                request: Some(serde_json::json!({"secret": 1})),
                ..Record::default()
            },
            number: usize::try_from(number).unwrap(),
            at: Duration::ZERO,
            session: usize::try_from(number).unwrap(),
        };
        let workload = Workload { requests: (0..5000).map(request).collect(), ..Workload::default() };
        let plan = Plan::of(&workload, crate::Load::Closed(3), &crate::Selection::default());
        let shapes = Shapes::of(&workload, &plan);
        assert_eq!((shapes.workload.requests.len(), shapes.at_once, shapes.longest()), (1000, 64, 5000));
        assert!(shapes.workload.requests.iter().all(|request| request.record.request.is_none()));
        let plan = shapes.plan();
        assert_eq!((plan.place(999), plan.place(1000), plan.place(2001)), (Some(999), Some(0), Some(1)));
    }
}
