//! The faults of a server as they are now.

use std::sync::{
    Arc, PoisonError, RwLock,
    atomic::{AtomicBool, Ordering},
};

use http::{HeaderMap, Method};

use super::file::FaultLines;
use crate::{
    api::ApiError,
    faults::{Fault, FaultSet},
};

/// The faults of a server, which may be replaced while it runs; replicas share them.
#[derive(Debug)]
pub struct ServerFaults {
    set: RwLock<Arc<FaultSet>>,
    is_active: AtomicBool,
    /// Whether requests name faults of their own.
    by_header: bool,
}

impl Default for ServerFaults {
    fn default() -> Self {
        Self::new(FaultLines::default(), false)
    }
}

impl ServerFaults {
    /// The faults that a server starts with; `by_header` lets requests name others in `X-VCR-Fault` and `X-Return-Error`.
    #[must_use]
    pub fn new(lines: FaultLines, by_header: bool) -> Self {
        let faults = Self { set: RwLock::default(), is_active: AtomicBool::new(false), by_header };
        faults.replace(lines);
        faults
    }

    /// Replaces the faults. Responses in progress keep theirs; what was counted is forgotten.
    pub fn replace(&self, lines: FaultLines) {
        let set = FaultSet::new(lines.faults, lines.seed);
        let is_active = self.by_header || !set.is_empty();
        *self.set.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(set);
        self.is_active.store(is_active, Ordering::Release);
    }

    /// The faults as they are now.
    #[must_use]
    pub fn current(&self) -> Arc<FaultSet> {
        self.set.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true if a request may get a fault: it asks for work, or a fault names its path.
    pub(super) fn takes(&self, method: &Method, path: &str) -> bool {
        let is_active = self.is_active.load(Ordering::Acquire) && !path.starts_with("/vcr/");
        is_active && (*method == Method::POST || self.current().names_path(path))
    }

    /// The faults that a request names itself, after those of the server.
    ///
    /// # Errors
    /// A header that is no fault.
    pub(super) fn of_headers(&self, headers: &HeaderMap) -> Result<Vec<Fault>, ApiError> {
        if !self.by_header {
            return Ok(Vec::new());
        }
        let read = |name: &'static str| {
            headers.get_all(name).iter().map(move |value| {
                let line = value.to_str().map_err(|_| ApiError::bad_request(format!("{name} is no text")))?;
                let wrong = |error| ApiError::bad_request(format!("{name}: {error}"));
                line.parse::<Fault>().map_err(wrong)
            })
        };
        read("x-vcr-fault").chain(read("x-return-error")).collect()
    }
}
