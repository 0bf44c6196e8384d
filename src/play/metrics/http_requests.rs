//! HTTP requests by path, method and status, as the engine's server counts them.

use std::{
    fmt::Write,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use http::Method;

use super::{
    histogram::{Histogram, float, number},
    process::unix_time,
};
use crate::api::endpoints::{Handler, Route, route};

/// Methods with a series of their own; others are counted together, so that clients cannot make up series.
const METHODS: [&str; 9] = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "QUERY"];

const FINE: [f64; 21] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0,
];
const COARSE: [f64; 3] = [0.1, 0.5, 1.0];

/// The name under which requests are counted that nothing serves.
pub(super) const NONE: &str = "none";

/// Paths with an id in them.
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

/// All that were answered.
#[derive(Debug)]
pub(super) struct HttpRequests {
    pub(super) load: AtomicU64,
    fine: Histogram,
    requests: Series<(&'static str, &'static str, u16), AtomicU64>,
    request_bytes: Series<&'static str, Bytes>,
    response_bytes: Series<&'static str, Bytes>,
    took: Series<(&'static str, &'static str), Histogram>,
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
}

impl Default for HttpRequests {
    fn default() -> Self {
        Self {
            load: AtomicU64::new(0),
            fine: Histogram::seconds(&FINE),
            requests: Series::default(),
            request_bytes: Series::default(),
            response_bytes: Series::default(),
            took: Series::default(),
        }
    }
}

impl HttpRequests {
    pub(super) fn load(&self) -> u64 {
        self.load.load(Relaxed)
    }

    pub(super) fn fine(&self) -> &Histogram {
        &self.fine
    }

    pub(super) fn record(&self, visit: &HttpRequest) {
        let handler = visit.handler;
        let method = METHODS.iter().find(|known| **known == visit.method.as_str()).copied().unwrap_or("other");
        self.requests.get((handler, method, visit.status / 100), AtomicU64::default).fetch_add(1, Relaxed);
        self.request_bytes.get(handler, Bytes::default).add(visit.request_bytes);
        self.response_bytes.get(handler, Bytes::default).add(visit.response_bytes);
        self.took.get((handler, method), || Histogram::seconds(&COARSE)).time(visit.took);
        self.fine.time(visit.took);
    }

    /// The samples of a family, one per line.
    pub(super) fn write(&self, family: &str, page: &mut String) {
        let requests = |page: &mut String, is_created: bool| {
            self.requests.each(|(handler, method, class), count, since| {
                let value = number(if is_created { since } else { float(count.load(Relaxed)) });
                let labels = format!("{{handler=\"{handler}\",method=\"{method}\",status=\"{class}xx\"}}");
                let _ = writeln!(page, "{family}{labels} {value}");
            });
        };
        match family {
            "http_requests_total" => requests(page, false),
            "http_requests_created" => requests(page, true),
            "http_request_size_bytes" => self.request_bytes.write_bytes(family, page),
            "http_response_size_bytes" => self.response_bytes.write_bytes(family, page),
            "http_request_size_bytes_created" => self.request_bytes.write_created(family, page),
            "http_response_size_bytes_created" => self.response_bytes.write_created(family, page),
            "http_request_duration_seconds" => self.took.write_times(family, page),
            "http_request_duration_seconds_created" => self.took.each(|(handler, method), _, since| {
                let labels = format!("{{handler=\"{handler}\",method=\"{method}\"}}");
                let _ = writeln!(page, "{family}{labels} {}", number(since));
            }),
            _ => {}
        }
    }
}

/// One of a kind per key, in the order of their first use, with the time of that. A lock is written to only then.
#[derive(Debug)]
struct Series<K, T>(RwLock<Vec<(K, Arc<T>, f64)>>);

impl<K, T> Default for Series<K, T> {
    fn default() -> Self {
        Self(RwLock::new(Vec::new()))
    }
}

impl<K: Copy + PartialEq, T> Series<K, T> {
    fn get(&self, key: K, make: impl FnOnce() -> T) -> Arc<T> {
        let find = |series: &[(K, Arc<T>, f64)]| {
            series.iter().find(|(known, ..)| *known == key).map(|(_, found, _)| Arc::clone(found))
        };
        if let Some(found) = find(&self.0.read().unwrap_or_else(PoisonError::into_inner)) {
            return found;
        }
        let mut series = self.0.write().unwrap_or_else(PoisonError::into_inner);
        find(&series).unwrap_or_else(|| {
            let made = Arc::new(make());
            series.push((key, Arc::clone(&made), unix_time()));
            made
        })
    }

    fn each(&self, mut see: impl FnMut(K, &T, f64)) {
        for (key, value, since) in self.0.read().unwrap_or_else(PoisonError::into_inner).iter() {
            see(*key, value, *since);
        }
    }
}

impl Series<&'static str, Bytes> {
    fn write_bytes(&self, family: &str, page: &mut String) {
        self.each(|handler, bytes, _| {
            let (count, sum) = (float(bytes.count.load(Relaxed)), float(bytes.sum.load(Relaxed)));
            let _ = writeln!(page, "{family}_count{{handler=\"{handler}\"}} {}", number(count));
            let _ = writeln!(page, "{family}_sum{{handler=\"{handler}\"}} {}", number(sum));
        });
    }

    fn write_created(&self, family: &str, page: &mut String) {
        self.each(|handler, _, since| {
            let _ = writeln!(page, "{family}{{handler=\"{handler}\"}} {}", number(since));
        });
    }
}

impl Series<(&'static str, &'static str), Histogram> {
    fn write_times(&self, family: &str, page: &mut String) {
        self.each(|(handler, method), took, _| {
            for (bound, count) in took.cumulated() {
                let labels = format!("{{handler=\"{handler}\",le=\"{bound}\",method=\"{method}\"}}");
                let _ = writeln!(page, "{family}_bucket{labels} {}", number(count));
            }
            let labels = format!("{{handler=\"{handler}\",method=\"{method}\"}}");
            let _ = writeln!(page, "{family}_count{labels} {}", number(took.total()));
            let _ = writeln!(page, "{family}_sum{labels} {}", number(took.sum()));
        });
    }
}
