//! Runs cases: many at once through the gateway, each found again behind it by its marker.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, future::join_all, stream};

use super::{
    behind::BehindServer,
    cases::{CaseKind, ProveCase},
    checks::{CompareRules, FailedCheck, ProveCheck, TrueStream, is_silent_cut},
    client::{ReceivedEnd, ReceivedStream, StreamClient},
    events::ReadEvents,
    ground_truth::{ECHO, GroundStream, request},
    marker::marker,
};
use crate::{
    api::Endpoint,
    faults::FaultSyntaxError,
    play::{ServedEnd, ServedResponse},
};

/// A gateway under test, with both of its sides.
#[derive(Debug)]
pub struct Prover {
    /// The server behind it.
    pub behind: BehindServer,
    /// The client in front of it.
    pub client: StreamClient,
    /// The streams that are known.
    pub streams: Vec<GroundStream>,
    /// How streams are compared.
    pub rules: CompareRules,
    /// Cases at once.
    pub concurrency: usize,
    /// Milliseconds between writes of a cut stream.
    pub pause_ms: u64,
    /// Time without a byte after which a stream that is to stall is given up.
    pub stall: Duration,
    /// Seed of what is drawn.
    pub seed: u64,
    /// Cases so far.
    pub counter: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct CaseRun {
    /// The case.
    pub case: ProveCase,
    /// Its marker.
    pub marker: String,
    /// The request that the client sent.
    pub request: Bytes,
    /// What came out of the gateway.
    pub received: ReceivedStream,
    /// What went in, the last time it was asked for.
    pub served: Option<ServedResponse>,
    /// Checks that failed.
    pub failed: Vec<FailedCheck>,
    /// The stream failed, and what came looks like a short answer, without an end.
    pub is_silent_cut: bool,
}

impl Prover {
    /// Runs cases at once, and checks them.
    pub(crate) async fn run(&self, cases: &[ProveCase]) -> Result<Vec<CaseRun>, FaultSyntaxError> {
        let mut runs = Vec::new();
        for batch in cases.chunks(self.concurrency.max(1)) {
            let marked: Vec<(ProveCase, String)> =
                batch.iter().map(|case| (case.clone(), self.next_marker(case.stream))).collect();
            let mut faults = Vec::new();
            for (case, marker) in &marked {
                faults.extend(case.faults(marker, self.pause_ms)?);
            }
            self.behind.set_faults(faults, self.seed);
            runs.extend(join_all(marked.into_iter().map(|(case, marker)| self.run_one(case, marker))).await);
        }
        Ok(runs)
    }

    /// Runs so many streams at once, of which each has its own marker in its events. Returns how many were in progress together.
    pub(crate) async fn isolation(
        &self,
        count: usize,
        edits: &[&str],
        endpoints: &[Endpoint],
    ) -> Result<(Vec<CaseRun>, usize), FaultSyntaxError> {
        let faults =
            edits.iter().map(|edit| format!("{edit} where prompt={}", super::marker::stream_marker(ECHO)).parse());
        self.behind.set_faults(faults.collect::<Result<_, _>>()?, self.seed);
        let running = endpoints.iter().cycle().take(count).map(|endpoint| {
            let case = ProveCase::new((ECHO, *endpoint), CaseKind::Isolation, edits);
            self.run_one(case, self.next_marker(ECHO))
        });
        let runs: Vec<CaseRun> = stream::iter(running).buffer_unordered(count.max(1)).collect().await;
        let together = most_together(&runs);
        Ok((runs, together))
    }

    fn next_marker(&self, stream: usize) -> String {
        marker(stream, self.counter.fetch_add(1, Ordering::Relaxed))
    }

    async fn run_one(&self, case: ProveCase, marker: String) -> CaseRun {
        let ground = self.streams.get(case.stream);
        let extras = ground.map(|ground| ground.extras.clone()).unwrap_or_default();
        let request = Bytes::from(request(case.endpoint, &self.rules.model, &marker, &extras).to_string());
        let client = if case.stalls() { self.client.with_silence(self.stall) } else { self.client.clone() };
        let received = client.post(case.endpoint.path().unwrap_or("/"), request.clone()).await;
        let served = self.behind.take(&marker).pop();
        let mut run = CaseRun { case, marker, request, received, served, failed: Vec::new(), is_silent_cut: false };
        self.check(&mut run);
        run
    }

    fn check(&self, run: &mut CaseRun) {
        let Some(served) = &run.served else {
            // An error that the gateway gives itself, such as that of a circuit breaker, is one.
            if run.case.kind == CaseKind::Failure && run.received.status != 200 {
                return;
            }
            let what = match &run.received.end {
                ReceivedEnd::Unanswered(why) => format!("the gateway did not answer: {why}"),
                _ => format!("the gateway did not pass the request on: status {}", run.received.status),
            };
            run.failed = vec![FailedCheck { check: ProveCheck::Stream, what }];
            return;
        };
        let truth = ReadEvents::of(&served.body.concat().into());
        let truth = TrueStream { endpoint: Endpoint::of_path(&served.path), events: &truth.events };
        let (endpoint, received) = (run.case.endpoint, &run.received);
        run.failed = match run.case.kind {
            CaseKind::Recut => self.rules.same(endpoint, truth, received),
            CaseKind::Failure => self.rules.stays_error(endpoint, truth, received),
            CaseKind::Isolation => self.rules.isolated(endpoint, &run.marker, truth, received),
        };
        run.is_silent_cut = run.case.kind == CaseKind::Failure
            && run.failed.is_empty()
            && served.end != Some(ServedEnd::Proper)
            && is_silent_cut(received);
    }
}

impl CaseRun {
    pub(crate) fn failure_of(&self, check: ProveCheck) -> Option<&FailedCheck> {
        self.failed.iter().find(|failed| failed.check == check)
    }

    /// Places, in bytes, at which the chunks of what was served end.
    pub(crate) fn chunk_ends(&self) -> Vec<u64> {
        let mut sent = 0;
        let chunks = self.served.iter().flat_map(|served| &served.chunks);
        let ends = chunks.map(|chunk| {
            sent += u64::try_from(chunk.bytes.len()).unwrap_or_default();
            sent
        });
        let mut ends: Vec<u64> = ends.collect();
        ends.pop();
        ends
    }

    /// What was served, write by write.
    pub(crate) fn writes(&self) -> Vec<Bytes> {
        let mut writes: Vec<Vec<u8>> = Vec::new();
        for chunk in self.served.iter().flat_map(|served| &served.chunks) {
            match writes.last_mut().filter(|_| chunk.is_joined) {
                Some(write) => write.extend_from_slice(&chunk.bytes),
                None => writes.push(chunk.bytes.to_vec()),
            }
        }
        writes.into_iter().map(Bytes::from).collect()
    }
}

/// The most streams that were between the arrival of their request behind the gateway and their end at the same time.
fn most_together(runs: &[CaseRun]) -> usize {
    let mut changes: Vec<(tokio::time::Instant, bool)> = Vec::new();
    for served in runs.iter().filter_map(|run| run.served.as_ref()) {
        let end = served.chunks.last().map_or(served.arrived, |chunk| chunk.at);
        changes.extend([(served.arrived, true), (end, false)]);
    }
    changes.sort_unstable();
    let (mut now, mut most) = (0_usize, 0);
    for (_, begins) in changes {
        now = if begins { now + 1 } else { now.saturating_sub(1) };
        most = most.max(now);
    }
    most
}
