//! The faults of a server as they are now.

use std::sync::{
    Arc, Mutex, OnceLock, PoisonError, RwLock,
    atomic::{AtomicBool, Ordering},
};

use http::{HeaderMap, Method};
use tokio::sync::watch;

use super::{failures::InjectedFailures, file::FaultLines, observed::ServedLog};
use crate::{
    api::ApiError,
    faults::{Fault, FaultKind, FaultSet},
};

/// Most faults that a request may name itself.
const MOST_OF_REQUEST: usize = 32;

/// The faults of a server, which may be replaced while it runs; replicas share them.
#[derive(Debug)]
pub struct ServerFaults {
    set: RwLock<Arc<FaultSet>>,
    is_active: AtomicBool,
    changes: watch::Sender<()>,
    /// Those of a script.
    scripted: OnceLock<Vec<Fault>>,
    /// Whether requests name faults of their own.
    by_header: bool,
    /// InjectedFailures among the lines, in llm-d-inference-sim's words.
    failures: Mutex<InjectedFailures>,
    log: Option<Arc<ServedLog>>,
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
        let (set, is_active) = (RwLock::default(), AtomicBool::new(false));
        let (changes, scripted) = (watch::Sender::default(), OnceLock::new());
        let failures = Mutex::default();
        let faults = Self { set, is_active, changes, scripted, by_header, failures, log: None };
        faults.replace(lines);
        faults
    }

    /// Notes in a log what is served, with or without faults, and no longer prints each fault.
    #[must_use]
    pub fn observed(mut self, log: Arc<ServedLog>) -> Self {
        self.log = Some(log);
        self.is_active = AtomicBool::new(true);
        self
    }

    /// The log of what is served.
    pub(super) fn log(&self) -> Option<&Arc<ServedLog>> {
        self.log.as_ref()
    }

    /// Replaces the faults. Responses in progress keep theirs; what was counted is forgotten.
    pub fn replace(&self, lines: FaultLines) {
        let set = FaultSet::new(lines.faults, lines.seed);
        let is_active = self.by_header || self.log.is_some() || !set.is_empty();
        *self.set.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(set);
        self.is_active.store(is_active, Ordering::Release);
        self.changes.send_replace(());
    }

    /// Notes which failures are among the lines.
    #[must_use]
    pub fn with_failures(mut self, failures: InjectedFailures) -> Self {
        *self.failures.get_mut().unwrap_or_else(PoisonError::into_inner) = failures;
        self
    }

    /// The failures among the lines.
    pub(in crate::play) fn failures(&self) -> InjectedFailures {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the failures; other faults stay.
    ///
    /// # Errors
    /// A type of failure that is none; nothing changes then.
    pub(in crate::play) fn fail(&self, failures: InjectedFailures) -> Result<(), String> {
        let new = failures.lines()?;
        let mut known = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let old: Vec<String> = known.lines()?.iter().map(ToString::to_string).collect();
        let current = self.current();
        let others = current.counts().map(|(fault, _)| fault).filter(|fault| !old.contains(&fault.to_string()));
        let faults = others.cloned().chain(new).collect();
        self.replace(FaultLines { faults, seed: current.seed() });
        *known = failures;
        Ok(())
    }

    /// Lets the times of the faults begin now, with those of a script, which are tried after them.
    pub fn begin(&self, script: Vec<Fault>) {
        self.scripted.get_or_init(|| script);
        let current = self.current();
        let faults = current.counts().map(|(fault, _)| fault.clone()).collect();
        self.reload(FaultLines { faults, seed: current.seed() });
    }

    /// Replaces the faults by what files have now. Those of the script stay after them, and all times begin anew.
    pub fn reload(&self, lines: FaultLines) {
        let FaultLines { mut faults, seed } = lines;
        faults.extend(self.scripted.get().into_iter().flatten().cloned());
        self.replace(FaultLines { faults, seed });
    }

    /// Lines in which what stands for secrets of the faults as they are has become these secrets.
    ///
    /// # Errors
    /// What stands for a secret that no fault has.
    pub(in crate::play) fn with_secrets(&self, mut lines: FaultLines) -> Result<FaultLines, String> {
        let current = self.current();
        let known = current.counts().map(|(fault, _)| &fault.selection).collect::<Vec<_>>();
        for fault in &mut lines.faults {
            fault.selection.restore_secrets(&known)?;
        }
        Ok(lines)
    }

    /// Tells of each replacement.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// The faults as they are now.
    #[must_use]
    pub fn current(&self) -> Arc<FaultSet> {
        self.set.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true if a request may get a fault: it asks for work, or a fault names its path.
    pub(super) fn takes(&self, method: &Method, path: &str) -> bool {
        if !self.is_active.load(Ordering::Acquire) || path.starts_with("/vcr/") {
            return false;
        }
        let set = self.current();
        let has_answers = self.by_header || self.log.is_some() || set.concerns_answers();
        (*method == Method::POST && has_answers) || set.concerns_path(path)
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
                let fault = line.parse::<Fault>().map_err(wrong)?;
                if !fault.row.stage.is_of_answers() || matches!(fault.kind, FaultKind::Quota(_)) {
                    let what = fault.what();
                    return Err(ApiError::bad_request(format!("{name}: `{what}` is no fault of a single request")));
                }
                Ok(fault)
            })
        };
        let faults: Vec<Fault> = read("x-vcr-fault").chain(read("x-return-error")).collect::<Result<_, _>>()?;
        if faults.len() > MOST_OF_REQUEST {
            let message = format!("a request may name {MOST_OF_REQUEST} faults, and this one names {}", faults.len());
            return Err(ApiError::bad_request(message));
        }
        Ok(faults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(line: &str) -> FaultLines {
        FaultLines { faults: vec![line.parse().unwrap()], seed: 3 }
    }

    #[test]
    fn a_list_that_was_shown_can_be_given_back_with_its_secrets() {
        let written = "429 where key=sk-1 header:x-api-key=sk-2 header:x-a=b";
        let faults = ServerFaults::new(lines(written), false);
        let shown =
            |faults: &ServerFaults| faults.current().counts().map(|(fault, _)| fault.to_string()).next().unwrap();
        let first = shown(&faults);
        assert!(!first.contains("sk-") && first.contains("header:x-a=b"), "{first}");
        faults.replace(faults.with_secrets(lines(&first)).unwrap());
        let current = faults.current();
        let (fault, _) = current.counts().next().unwrap();
        assert_eq!((fault.selection.key.as_deref(), shown(&faults)), (Some("sk-1"), first));
        let error = faults.with_secrets(lines("429 where key=…00000000")).unwrap_err();
        assert!(error.contains("write the secret itself"), "{error}");
    }

    #[test]
    fn a_script_stays_when_files_are_read_again_and_goes_when_all_are_replaced() {
        let faults = ServerFaults::new(lines("429"), false);
        let shown = || faults.current().counts().map(|(fault, _)| fault.to_string()).collect::<Vec<_>>();
        faults.begin(lines("die where from=1000000us").faults);
        assert_eq!(shown(), ["429", "die where from=1000000us"]);
        faults.reload(lines("503"));
        assert_eq!((shown(), faults.current().seed()), (vec!["503".into(), "die where from=1000000us".into()], 3));
        faults.replace(lines("404"));
        assert_eq!(shown(), ["404"]);
    }
}
