//! Counters of the tap, and its page for Prometheus.
//!
//! Requests and outcomes are counted as they happen. Times are those of recorded exchanges, measured where the client's
//! bytes pass, and enter their histograms when the recorder takes the exchange.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use super::{counts::RecorderCounts, exchange::ObservedExchange, filter::Skipped};
use base::stats::histogram::{Histogram, number};
use recording::{recorder::RecorderState, trace::Outcome};

const SECONDS: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0];

const OUTCOMES: [(Outcome, &str); 6] = [
    (Outcome::Finished, "finished"),
    (Outcome::Error, "error"),
    (Outcome::ClientGone, "client_gone"),
    (Outcome::UpstreamFailed, "upstream_failed"),
    (Outcome::TimedOut, "timed_out"),
    (Outcome::Cut, "cut"),
];

/// Counters of the tap.
#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) requests: AtomicU64,
    pub(super) upgraded: AtomicU64,
    /// One for each distinct URL.
    upstreams: Vec<UpstreamCounts>,
    /// Index into `upstreams` by the upstream's place in the configuration, where a URL may occur several times.
    places: Vec<usize>,
    skipped: [AtomicU64; Skipped::NAMES.len()],
    outcomes: [AtomicU64; OUTCOMES.len()],
    /// The number of choices of those exchanges, which is the number of their records.
    choices: [AtomicU64; OUTCOMES.len()],
    streams: AtomicU64,
    /// Informational responses dropped because their client did not read.
    pub(super) informational_dropped: AtomicU64,
    pub(super) in_flight: AtomicU32,
    ttft: Histogram,
    itl: Histogram,
    e2e: Histogram,
    pub(super) recorder: RecorderCounts,
}

/// Counters of one upstream.
#[derive(Debug)]
struct UpstreamCounts {
    url: String,
    /// Requests sent to it.
    sent: AtomicU64,
    /// Requests that it did not answer.
    failed: AtomicU64,
}

impl UpstreamCounts {
    fn new(url: String) -> Self {
        Self { url, sent: AtomicU64::new(0), failed: AtomicU64::new(0) }
    }
}

/// Guard of a request whose body is being received; dropped before [`came`](Self::came), it counts the request as incomplete.
#[derive(Debug)]
pub(super) struct Awaited<'m>(Option<&'m Metrics>);

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

impl Metrics {
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
            upstreams: names.into_iter().map(UpstreamCounts::new).collect(),
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
        for (counter, (name, _)) in self.skipped.iter().zip(Skipped::NAMES) {
            if name == reason {
                counter.fetch_add(1, Relaxed);
            }
        }
    }

    /// Counts an informational response whose client did not read.
    pub(super) fn drop_informational(&self) {
        self.informational_dropped.fetch_add(1, Relaxed);
    }

    /// Begins to wait for a request's body.
    pub(super) fn awaits_body(&self) -> Awaited<'_> {
        Awaited(Some(self))
    }

    fn upstream(&self, place: usize) -> Option<&UpstreamCounts> {
        self.upstreams.get(*self.places.get(place)?)
    }

    /// Counts a request that is sent to an upstream.
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

    /// Counts an exchange that has ended.
    pub(super) fn ended(&self, observed: &ObservedExchange) {
        for ((exchanges, choices), (outcome, _)) in self.outcomes.iter().zip(&self.choices).zip(OUTCOMES) {
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
        let mut page = Page::default();
        page.counter("vcr_requests", "Requests received.", &[("", &self.requests)]);
        let by_upstream = |count: fn(&UpstreamCounts) -> &AtomicU64| {
            self.upstreams.iter().map(move |upstream| (label("upstream", &upstream.url), count(upstream)))
        };
        page.labelled("vcr_upstream_requests", "Requests sent to an upstream.", by_upstream(|upstream| &upstream.sent));
        page.labelled(
            "vcr_upstream_failures",
            "Requests that an upstream did not answer.",
            by_upstream(|upstream| &upstream.failed),
        );
        let skipped = self.skipped.iter().zip(Skipped::NAMES).map(|(count, (_, name))| (label("reason", name), count));
        page.labelled("vcr_requests_not_recorded", "Requests that are not recorded, by reason.", skipped);
        let outcomes = self.outcomes.iter().zip(OUTCOMES).map(|(count, (_, name))| (label("outcome", name), count));
        page.labelled("vcr_exchanges", "Recorded exchanges that ended, by outcome.", outcomes);
        let choices = self.choices.iter().zip(OUTCOMES).map(|(count, (_, name))| (label("outcome", name), count));
        page.labelled("vcr_choices", "Choices of recorded exchanges that ended: one record each.", choices);
        page.counter("vcr_streams", "Recorded exchanges whose client asked for a stream.", &[("", &self.streams)]);
        page.counter("vcr_upgrades", "Connections that became another protocol.", &[("", &self.upgraded)]);
        page.counter(
            "vcr_informational_dropped",
            "Informational responses (1xx) dropped because their client did not read.",
            &[("", &self.informational_dropped)],
        );
        page.gauge("vcr_exchanges_in_flight", "Recorded exchanges in progress.", self.in_flight.load(Relaxed).into());
        page.histogram("vcr_time_to_first_token_seconds", "Request to first token, as the client saw it.", &self.ttft);
        page.histogram(
            "vcr_inter_token_latency_seconds",
            "Gap between chunks of tokens, as the client saw it.",
            &self.itl,
        );
        page.histogram("vcr_e2e_seconds", "Request to last byte, as the client saw it.", &self.e2e);
        self.recorder_page(&mut page);
        page.text
    }

    /// Renders the counters of the recorder.
    fn recorder_page(&self, page: &mut Page) {
        let recorder = &self.recorder;
        page.gauge(
            "vcr_recorder_queue_length",
            "Exchanges that wait to be written.",
            recorder.progress.queued() as u64,
        );
        page.gauge(
            "vcr_recorder_queue_capacity",
            "Exchanges that can wait.",
            recorder.progress.capacity().items as u64,
        );
        let is_recording = recorder.progress.state() == RecorderState::Recording;
        page.gauge("vcr_recording", "Whether a trace is being written.", is_recording.into());
        page.counter("vcr_records_written", "Records safely written.", &[("", &recorder.written)]);
        let dropped = [
            (label("reason", "queue_full"), recorder.progress.queue_full()),
            (label("reason", "queue_bytes"), recorder.progress.queue_bytes()),
            (label("reason", "write_failed"), &recorder.write_failed),
            (label("reason", "broken"), &recorder.broken),
        ];
        page.labelled("vcr_records_dropped", "Records that are missing, by reason.", dropped.into_iter());
        page.counter(
            "vcr_choices_left_out",
            "Choices without a record, because their request has too many.",
            &[("", &recorder.choices_left_out)],
        );
        page.counter("vcr_records_redacted", "Records in which a secret was redacted.", &[("", &recorder.redacted)]);
        page.counter(
            "vcr_exchanges_unsearched",
            "Exchanges recorded without content: to search it for secrets would have taken too much work.",
            &[("", &recorder.unsearched)],
        );
        page.counter(
            "vcr_records_repaired",
            "Records that broke a rule of the format: what broke it was left out.",
            &[("", &recorder.repaired)],
        );
        page.counter(
            "vcr_trace_emptied",
            "Times that another program emptied the trace; it was begun again.",
            &[("", &recorder.emptied)],
        );
        page.gauge("vcr_trace_files", "Trace files begun.", recorder.files.load(Relaxed).into());
    }
}

fn label(name: &str, value: &str) -> String {
    format!("{{{name}=\"{}\"}}", value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn counter(&mut self, name: &str, help: &str, samples: &[(&str, &AtomicU64)]) {
        self.labelled(name, help, samples.iter().map(|(label, count)| ((*label).to_owned(), *count)));
    }

    fn labelled<'a>(&mut self, name: &str, help: &str, samples: impl Iterator<Item = (String, &'a AtomicU64)>) {
        self.head(&format!("{name}_total"), help, "counter");
        for (label, count) in samples {
            let _ = writeln!(self.text, "{name}_total{label} {}", count.load(Relaxed));
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, help, "gauge");
        let _ = writeln!(self.text, "{name} {value}");
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, help, "histogram");
        for (bound, count) in histogram.cumulated() {
            let _ = writeln!(self.text, "{name}_bucket{{le=\"{bound}\"}} {}", number(count));
        }
        let _ =
            writeln!(self.text, "{name}_sum {}\n{name}_count {}", number(histogram.sum()), number(histogram.total()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_what_prometheus_reads() {
        let metrics = Metrics::new(vec!["http://a\"b".to_owned()], Duration::ZERO);
        metrics.sent(0);
        metrics.skip(Skipped::Sample);
        let page = metrics.page();
        assert!(page.contains("vcr_upstream_requests_total{upstream=\"http://a\\\"b\"} 1\n"), "{page}");
        assert!(page.contains("vcr_requests_not_recorded_total{reason=\"sample\"} 1\n"), "{page}");
        for reason in ["queue_full", "queue_bytes", "write_failed", "broken"] {
            assert!(page.contains(&format!("vcr_records_dropped_total{{reason=\"{reason}\"}} 0\n")), "{page}");
        }
        let upstreams = ["http://a", "http://b", "http://a"].map(str::to_owned).to_vec();
        let twice = Metrics::new(upstreams, Duration::ZERO);
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
