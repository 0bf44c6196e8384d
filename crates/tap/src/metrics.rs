//! Counters of the tap, and its page for Prometheus.
//!
//! Requests and outcomes are counted as they happen. Times are those of recorded exchanges, measured where the client's
//! bytes pass, and enter their histograms when the recorder takes the exchange.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use super::{counts::RecorderCounts, filter::Skipped, observed_exchange::ObservedExchange};
use base::stats::{
    exposition::{
        ByLabel, Exposition, MetricFamily, NumberFormat, counter, counter_by, gauge, histogram, labelled, read,
    },
    histogram::Histogram,
};
use recording::{recorder::RecorderState, trace::Outcome};

const SECONDS: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0];

#[derive(Debug)]
pub(super) struct TapMetrics {
    pub(super) requests: AtomicU64,
    pub(super) upgraded: AtomicU64,
    /// One for each distinct URL.
    upstreams: Vec<UpstreamCounts>,
    /// Index into `upstreams` by the upstream's place in the configuration, where a URL may occur several times.
    places: Vec<usize>,
    skipped: [AtomicU64; Skipped::ALL.len()],
    outcomes: [AtomicU64; Outcome::ALL.len()],
    /// The number of choices of those exchanges, which is the number of their records.
    choices: [AtomicU64; Outcome::ALL.len()],
    streams: AtomicU64,
    /// Informational responses dropped because their client did not read.
    pub(super) informational_dropped: AtomicU64,
    pub(super) in_flight: AtomicU32,
    ttft: Histogram,
    itl: Histogram,
    e2e: Histogram,
    pub(super) recorder: RecorderCounts,
}

#[derive(Debug, Default)]
struct UpstreamCounts {
    url: String,
    sent: AtomicU64,
    /// Requests that it did not answer.
    failed: AtomicU64,
}

/// Guard of a request whose body is being received; dropped before [`came`](Self::came), it counts the request as incomplete.
#[derive(Debug)]
pub(super) struct Awaited<'m>(pub(super) Option<&'m TapMetrics>);

impl Awaited<'_> {
    /// Ends the guard: the body was received, or its request is counted elsewhere.
    pub(super) fn came(mut self) {
        self.0 = None;
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if let Some(metrics) = self.0 {
            metrics.skip(Skipped::Incomplete);
        }
    }
}

impl TapMetrics {
    /// Creates counters for these upstreams, by place, and those of a recorder that waits so long for its disk.
    pub(super) fn new(upstreams: Vec<String>, disk_timeout: Duration) -> Self {
        let mut names: Vec<String> = Vec::new();
        let mut places = Vec::with_capacity(upstreams.len());
        for name in upstreams {
            places.push(names.iter().position(|other| *other == name).unwrap_or(names.len()));
            if places.last() == Some(&names.len()) {
                names.push(name);
            }
        }
        Self {
            requests: AtomicU64::new(0),
            upgraded: AtomicU64::new(0),
            informational_dropped: AtomicU64::new(0),
            upstreams: names.into_iter().map(|url| UpstreamCounts { url, ..Default::default() }).collect(),
            places,
            skipped: Default::default(),
            outcomes: Default::default(),
            choices: Default::default(),
            streams: AtomicU64::new(0),
            in_flight: AtomicU32::new(0),
            ttft: Histogram::seconds(&SECONDS),
            itl: Histogram::seconds(&SECONDS),
            e2e: Histogram::seconds(&SECONDS),
            recorder: RecorderCounts::new(disk_timeout),
        }
    }

    /// Counts a request that is not recorded.
    pub(super) fn skip(&self, reason: Skipped) {
        for (counter, skipped) in self.skipped.iter().zip(Skipped::ALL) {
            if skipped == reason {
                counter.fetch_add(1, Relaxed);
            }
        }
    }

    fn upstream(&self, place: usize) -> Option<&UpstreamCounts> {
        self.upstreams.get(*self.places.get(place)?)
    }

    pub(super) fn sent(&self, upstream: usize) {
        if let Some(counts) = self.upstream(upstream) {
            counts.sent.fetch_add(1, Relaxed);
        }
    }

    /// Counts a request that an upstream did not answer.
    pub(super) fn unanswered(&self, upstream: usize) {
        if let Some(counts) = self.upstream(upstream) {
            counts.failed.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn ended(&self, observed: &ObservedExchange) {
        for ((exchanges, choices), outcome) in self.outcomes.iter().zip(&self.choices).zip(Outcome::ALL) {
            if Some(outcome) == observed.outcome {
                exchanges.fetch_add(1, Relaxed);
                choices.fetch_add(observed.records(), Relaxed);
            }
        }
        self.streams.fetch_add(u64::from(observed.facts.stream), Relaxed);
    }

    /// Returns the number of records due for exchanges that ended.
    pub(super) fn records_due(&self) -> u64 {
        self.choices.iter().map(RecorderCounts::get).sum()
    }

    /// Adds the times of an exchange that the recorder has taken.
    pub(super) fn observe(&self, observed: &ObservedExchange) {
        self.e2e.time(observed.e2e);
        if !observed.facts.stream {
            return;
        }
        for choice in observed.choices.iter() {
            let mut gaps = choice.meter.gaps();
            gaps.next().into_iter().for_each(|first| self.ttft.time(first));
            gaps.for_each(|gap| self.itl.time(gap));
        }
    }

    /// Renders all counters in Prometheus' text format.
    pub(super) fn page(&self) -> String {
        let mut page = Exposition::new(NumberFormat::Whole, 8192);
        page.families(&FAMILIES, &[(&[], self)], None);
        page.into_text()
    }

    fn by_upstream(&self, count: fn(&UpstreamCounts) -> &AtomicU64) -> ByLabel<'_> {
        labelled(self.upstreams.iter().map(|upstream| (upstream.url.as_str(), read(count(upstream)))))
    }
}

/// Reads the counters of outcomes.
fn by_outcome(counts: &[AtomicU64; Outcome::ALL.len()]) -> ByLabel<'static> {
    labelled(Outcome::ALL.iter().zip(counts).map(|(outcome, count)| (outcome.name(), read(count))))
}

fn size(count: usize) -> f64 {
    count as f64
}

/// All families, in the order of the page.
const FAMILIES: [MetricFamily<TapMetrics>; 24] = [
    counter("vcr_requests", "Requests received.", |tap| read(&tap.requests)),
    counter_by("vcr_upstream_requests", "Requests sent to an upstream.", "upstream", |tap| {
        tap.by_upstream(|upstream| &upstream.sent)
    }),
    counter_by("vcr_upstream_failures", "Requests that an upstream did not answer.", "upstream", |tap| {
        tap.by_upstream(|upstream| &upstream.failed)
    }),
    counter_by("vcr_requests_not_recorded", "Requests that are not recorded, by reason.", "reason", |tap| {
        labelled(Skipped::ALL.iter().zip(&tap.skipped).map(|(reason, count)| (reason.name(), read(count))))
    }),
    counter_by("vcr_exchanges", "Recorded exchanges that ended, by outcome.", "outcome", |tap| {
        by_outcome(&tap.outcomes)
    }),
    counter_by("vcr_choices", "Choices of recorded exchanges that ended: one record each.", "outcome", |tap| {
        by_outcome(&tap.choices)
    }),
    counter("vcr_streams", "Recorded exchanges whose client asked for a stream.", |tap| read(&tap.streams)),
    counter("vcr_upgrades", "Connections that became another protocol.", |tap| read(&tap.upgraded)),
    counter(
        "vcr_informational_dropped",
        "Informational responses (1xx) dropped because their client did not read.",
        |tap| read(&tap.informational_dropped),
    ),
    gauge("vcr_exchanges_in_flight", "Recorded exchanges in progress.", |tap| tap.in_flight.load(Relaxed).into()),
    histogram("vcr_time_to_first_token_seconds", "Request to first token, as the client saw it.", |tap| &tap.ttft),
    histogram("vcr_inter_token_latency_seconds", "Gap between chunks of tokens, as the client saw it.", |tap| &tap.itl),
    histogram("vcr_e2e_seconds", "Request to last byte, as the client saw it.", |tap| &tap.e2e),
    gauge("vcr_recorder_queue_length", "Exchanges that wait to be written.", |tap| {
        size(tap.recorder.progress.queued())
    }),
    gauge("vcr_recorder_queue_capacity", "Exchanges that can wait.", |tap| size(tap.recorder.progress.capacity.items)),
    gauge("vcr_recording", "Whether a trace is being written.", |tap| {
        f64::from(u8::from(tap.recorder.progress.state() == RecorderState::Recording))
    }),
    counter("vcr_records_written", "Records safely written.", |tap| read(&tap.recorder.written)),
    counter_by("vcr_records_dropped", "Records that are missing, by reason.", "reason", |tap| {
        labelled([
            ("queue_full", read(&tap.recorder.progress.queue_full)),
            ("queue_bytes", read(&tap.recorder.progress.queue_bytes)),
            ("write_failed", read(&tap.recorder.write_failed)),
            ("broken", read(&tap.recorder.broken)),
        ])
    }),
    counter("vcr_choices_left_out", "Choices without a record, because their request has too many.", |tap| {
        read(&tap.recorder.choices_left_out)
    }),
    counter("vcr_records_redacted", "Records in which a secret was redacted.", |tap| read(&tap.recorder.redacted)),
    counter(
        "vcr_exchanges_unsearched",
        "Exchanges recorded without content: to search it for secrets would have taken too much work.",
        |tap| read(&tap.recorder.unsearched),
    ),
    counter("vcr_records_repaired", "Records that broke a rule of the format: what broke it was left out.", |tap| {
        read(&tap.recorder.repaired)
    }),
    counter("vcr_trace_emptied", "Times that another program emptied the trace; it was begun again.", |tap| {
        read(&tap.recorder.emptied)
    }),
    gauge("vcr_trace_files", "Trace files begun.", |tap| tap.recorder.files.load(Relaxed).into()),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_what_prometheus_reads() {
        let metrics = TapMetrics::new(vec!["http://a\"b".to_owned()], Duration::ZERO);
        metrics.sent(0);
        metrics.skip(Skipped::Sample);
        let page = metrics.page();
        assert!(page.contains("vcr_upstream_requests_total{upstream=\"http://a\\\"b\"} 1\n"), "{page}");
        assert!(page.contains("vcr_requests_not_recorded_total{reason=\"sample\"} 1\n"), "{page}");
        for reason in ["queue_full", "queue_bytes", "write_failed", "broken"] {
            assert!(page.contains(&format!("vcr_records_dropped_total{{reason=\"{reason}\"}} 0\n")), "{page}");
        }
        let upstreams = ["http://a", "http://b", "http://a"].map(str::to_owned).to_vec();
        let twice = TapMetrics::new(upstreams, Duration::ZERO);
        twice.sent(0);
        twice.sent(2);
        let page_of_two = twice.page();
        assert_eq!(
            page_of_two.matches("vcr_upstream_requests_total{upstream=\"http://a\"} 2\n").count(),
            1,
            "{page_of_two}"
        );
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok() && name.starts_with("vcr_"), "{line}");
        }
    }
}
