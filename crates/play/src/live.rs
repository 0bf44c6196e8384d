//! The latest requests and those in progress, for people who look at a page.
//!
//! Nothing is noted until the page is viewed, nor when nobody has for a while: a server under load has nobody before it.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use axum::{extract::Request, response::Response};
use serde::Serialize;
use tokio::time::Instant;

use crate::{faults::FaultsOf, http::header_text};
use base::lock::Lock;

/// Maximum number of requests that are kept.
const KEPT: usize = 500;

/// Time for which requests are noted after the page was viewed, in milliseconds.
const LOOKED_FOR: u64 = 60_000;

/// What load balancers and Prometheus ask for all the time, which would leave no room for requests.
const PROBES: [&str; 5] = ["/health", "/health/ready", "/ready", "/ping", "/metrics"];

#[derive(Debug, Clone, Serialize)]
pub(crate) struct ShownRequest {
    number: u64,
    /// Milliseconds since 1970.
    at_ms: u64,
    request: String,
    session: Option<String>,
    /// `None` until there is a head.
    status: Option<u16>,
    record: Option<String>,
    #[serde(rename = "match")]
    found: Option<String>,
    miss: Option<String>,
    faults: Vec<String>,
    /// Until its last byte, or its client left; `None` while it is in progress.
    took_ms: Option<u64>,
}

base::with_defaults! {
    #[derive(Debug)]
    pub(crate) struct LiveRequests {
        start: Instant = Instant::now(),
        /// Until when requests are noted, in milliseconds from `start`.
        until: AtomicU64,
        requests: Lock<VecDeque<ShownRequest>>,
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct LiveNumber(u64);

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl LiveRequests {
    /// Notes a request if the page is viewed.
    pub(crate) fn begin(&self, request: &Request) -> Option<LiveNumber> {
        let path = request.uri().path();
        if path.starts_with("/vcr")
            || PROBES.contains(&path)
            || millis(self.start.elapsed()) >= self.until.load(Relaxed)
        {
            return None;
        }
        let mut requests = self.requests.lock();
        let number = requests.back().map_or(0, |last| last.number + 1);
        if requests.len() == KEPT {
            requests.pop_front();
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        requests.push_back(ShownRequest {
            number,
            at_ms: millis(now),
            request: format!("{} {}", request.method(), request.uri().path()),
            session: header_text(request.headers(), "x-vcr-session").map(str::to_owned),
            status: None,
            record: None,
            found: None,
            miss: None,
            faults: Vec::new(),
            took_ms: None,
        });
        Some(LiveNumber(number))
    }

    fn change(&self, LiveNumber(number): LiveNumber, change: impl FnOnce(&mut ShownRequest)) {
        let mut requests = self.requests.lock();
        let first = requests.front().map_or(0, |first| first.number);
        let place = number.checked_sub(first).and_then(|place| usize::try_from(place).ok());
        if let Some(request) = place.and_then(|place| requests.get_mut(place)) {
            change(request);
        }
    }

    /// Notes the fields that a response has of itself.
    pub(crate) fn answered(&self, number: LiveNumber, response: &Response) {
        let text = |name: &str| header_text(response.headers(), name).map(str::to_owned);
        let faults = response.extensions().get::<FaultsOf>();
        let faults = faults.iter().flat_map(|FaultsOf(faults)| faults).map(|fault| fault.what()).collect();
        self.change(number, |request| {
            request.status = Some(response.status().as_u16());
            request.session = text("x-vcr-session").or(request.session.take());
            request.record = text("x-vcr-record");
            request.found = text("x-vcr-match");
            request.miss = text("x-vcr-miss");
            request.faults = faults;
        });
    }

    pub(crate) fn ended(&self, number: LiveNumber, took: Duration) {
        self.change(number, |request| request.took_ms = Some(millis(took)));
    }

    /// The requests, the latest first; from now on they are noted for a while.
    pub(crate) fn look(&self) -> Vec<ShownRequest> {
        self.until.store(millis(self.start.elapsed()).saturating_add(LOOKED_FOR), Relaxed);
        self.requests.lock().iter().rev().cloned().collect()
    }
}
