//! HTTP requests by path, method and status, as the engine's server counts them.

use std::{
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use http::Method;

use super::process::unix_time;
use api::endpoints::{Handler, Route, route};
use base::stats::{
    exposition::{Exposition, Labels, MetricFamily, histogram, read},
    histogram::Histogram,
};

/// Methods with a series of their own; others are counted together, so that clients cannot make up series.
const METHODS: [&str; 9] = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "QUERY"];

/// Statuses by their first digit.
const CLASSES: [&str; 10] = ["0xx", "1xx", "2xx", "3xx", "4xx", "5xx", "6xx", "7xx", "8xx", "9xx"];

const FINE: [f64; 21] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0,
];
const COARSE: [f64; 3] = [0.1, 0.5, 1.0];

/// The name under which requests are counted that nothing serves.
pub(super) const NONE: &str = "none";

const WITH_IDS: [&str; 2] = ["/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel"];

/// The name under which requests of an endpoint are counted; `None` for those that are not.
pub(super) fn handler(endpoint: Option<&'static str>) -> Option<&'static str> {
    let Some(path) = endpoint else { return Some(NONE) };
    match route(path) {
        Some(Route { handler: Handler::Path, .. }) => Some(path),
        Some(Route { handler: Handler::Uncounted, .. }) => None,
        Some(Route { handler: Handler::Unnamed, .. }) => Some(NONE),
        None => Some(if WITH_IDS.contains(&path) { path } else { NONE }),
    }
}

/// Checks whether requests of an endpoint count as load.
pub(super) fn is_load(path: &str) -> bool {
    route(path).is_some_and(|route| route.is_load) || WITH_IDS.contains(&path)
}

/// A request that was answered.
#[derive(Debug)]
pub(super) struct HttpRequest {
    pub(super) handler: &'static str,
    pub(super) method: Method,
    pub(super) status: u16,
    pub(super) request_bytes: u64,
    pub(super) response_bytes: u64,
    pub(super) took: Duration,
}

base::with_defaults! {
    /// All that were answered.
    #[derive(Debug)]
    pub(super) struct HttpRequests {
        pub(super) load: AtomicU64,
        fine: Histogram = Histogram::seconds(&FINE),
        requests: Series<3, AtomicU64> = Series::of(["handler", "method", "status"]),
        request_bytes: Series<1, Bytes> = Series::of(["handler"]),
        response_bytes: Series<1, Bytes> = Series::of(["handler"]),
        took: Series<2, Histogram> = Series::of(["handler", "method"]),
    }
}

#[derive(Debug, Default)]
struct Bytes {
    count: AtomicU64,
    sum: AtomicU64,
}

impl Bytes {
    fn add(&self, bytes: u64) {
        self.count.fetch_add(1, Relaxed);
        self.sum.fetch_add(bytes, Relaxed);
    }

    fn append(&self, page: &mut Exposition, name: &str, labels: Labels<'_>) {
        page.sample(&format!("{name}_count"), labels, read(&self.count));
        page.sample(&format!("{name}_sum"), labels, read(&self.sum));
    }
}

/// The family of all requests' times together.
const FINE_TIMES: [MetricFamily<HttpRequests>; 1] = [histogram(
    "http_request_duration_highr_seconds",
    "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. ",
    |requests| &requests.fine,
)];

impl HttpRequests {
    pub(super) fn record(&self, request: &HttpRequest) {
        let handler = request.handler;
        let method = METHODS.iter().find(|known| **known == request.method.as_str()).copied().unwrap_or("other");
        let class = CLASSES.get(usize::from(request.status / 100)).copied().unwrap_or("none");
        self.requests.get([handler, method, class], AtomicU64::default).fetch_add(1, Relaxed);
        self.request_bytes.get([handler], Bytes::default).add(request.request_bytes);
        self.response_bytes.get([handler], Bytes::default).add(request.response_bytes);
        self.took.get([handler, method], || Histogram::seconds(&COARSE)).time(request.took);
        self.fine.time(request.took);
    }

    /// Appends the families to a page; `since` is when counting began, in seconds since 1970.
    pub(super) fn append(&self, page: &mut Exposition, since: f64) {
        let help = "Total number of requests by method, status and handler.";
        self.requests.append(page, ("http_requests", "_total"), "counter", help, |page, labels, count| {
            page.sample("http_requests_total", labels, read(count));
        });
        let sizes = [
            ("request", "incoming requests", &self.request_bytes),
            ("response", "outgoing responses", &self.response_bytes),
        ];
        for (name, of, bytes) in sizes {
            let name = format!("http_{name}_size_bytes");
            let help = format!(
                "Content length of {of} by handler. Only value of header is respected. Otherwise ignored. No percentile calculated. "
            );
            bytes.append(page, (&name, ""), "summary", &help, |page, labels, bytes| bytes.append(page, &name, labels));
        }
        page.families(&FINE_TIMES, &[(&[], self)], Some(since));
        let (name, help) = (
            "http_request_duration_seconds",
            "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. ",
        );
        self.took.append(page, (name, ""), "histogram", help, |page, labels, took| page.histogram(name, labels, took));
    }
}

/// One of a kind for each combination of label values, in the order of their first use, with the time of that. A lock is written to only
/// then.
#[derive(Debug)]
struct Series<const N: usize, T> {
    labels: [&'static str; N],
    series: RwLock<Vec<LabelledEntry<N, T>>>,
}

/// Values of the labels, what is counted, and since when, in seconds since 1970.
type LabelledEntry<const N: usize, T> = ([&'static str; N], Arc<T>, f64);

impl<const N: usize, T> Series<N, T> {
    fn of(labels: [&'static str; N]) -> Self {
        Self { labels, series: RwLock::new(Vec::new()) }
    }

    fn get(&self, key: [&'static str; N], make: impl FnOnce() -> T) -> Arc<T> {
        let find = |series: &[LabelledEntry<N, T>]| {
            series.iter().find(|(known, ..)| *known == key).map(|(_, found, _)| Arc::clone(found))
        };
        if let Some(found) = find(&self.series.read().unwrap_or_else(PoisonError::into_inner)) {
            return found;
        }
        let mut series = self.series.write().unwrap_or_else(PoisonError::into_inner);
        find(&series).unwrap_or_else(|| {
            let made = Arc::new(make());
            series.push((key, Arc::clone(&made), unix_time()));
            made
        })
    }

    /// Appends a family, and the one of when each of its series began.
    fn append(
        &self,
        page: &mut Exposition,
        (name, suffix): (&str, &str),
        kind: &str,
        help: &str,
        put: impl Fn(&mut Exposition, Labels<'_>, &T),
    ) {
        let series = self.series.read().unwrap_or_else(PoisonError::into_inner);
        let labelled = || series.iter().map(|(key, value, since)| (zip(self.labels, *key), value, since));
        page.family(&format!("{name}{suffix}"), kind, help);
        labelled().for_each(|(labels, value, _)| put(page, &labels, value));
        let created = format!("{name}_created");
        page.family(&created, "gauge", help);
        labelled().for_each(|(labels, _, since)| page.sample(&created, &labels, *since));
    }
}

fn zip<'a, const N: usize>(names: [&'a str; N], values: [&'a str; N]) -> [(&'a str, &'a str); N] {
    let mut values = values.into_iter();
    names.map(|name| (name, values.next().unwrap_or_default()))
}
