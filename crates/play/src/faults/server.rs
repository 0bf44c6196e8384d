//! The faults of a server as they are now.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use http::{HeaderMap, Method};
use tokio::sync::watch;

use super::{file::FaultLines, observed::ServedLog};
use ::faults::{Fault, FaultKind, FaultSet, FaultSyntaxError, ServedNames};
use api::ApiError;
use base::lock::Lock;
use recording::cassette::{CassetteError, FaultReader, RecordFault};
use replay::{account::DEFAULT_SESSION, player::FailedTries};

/// Maximum number of faults that a request may name itself.
const MOST_OF_REQUEST: usize = 32;

/// The faults of a server, which may be replaced while it runs; replicas share them.
#[derive(Debug, Default)]
pub struct ServerFaults {
    set: Lock<Arc<FaultSet>>,
    is_active: AtomicBool,
    changes: watch::Sender<()>,
    /// Those that were given, without those of hand-written records.
    lines: Lock<FaultLines>,
    /// Those of hand-written records, which are tried after all others.
    of_records: Lock<Vec<Fault>>,
    /// Those of the cassettes that sessions have of their own, which only their requests get.
    of_sessions: Lock<HashMap<String, Vec<Fault>>>,
    scripted: OnceLock<Vec<Fault>>,
    /// What can be of requests, once it serves.
    served: OnceLock<ServedNames>,
    /// Whether requests name faults of their own.
    by_header: bool,
    /// Failures in llm-d-inference-sim's words and as faults, which are tried between the lines and those of records.
    failures: Lock<(InjectedFailures, Vec<Fault>)>,
    log: Option<Arc<ServedLog>>,
    /// Requests that a fault answered before a record could.
    pub(super) failed: Lock<FailedTries>,
}

impl ServerFaults {
    /// The faults that a server starts with; `by_header` lets requests name others in `X-VCR-Fault` and `X-Return-Error`.
    #[must_use]
    pub fn new(lines: FaultLines, by_header: bool) -> Self {
        let faults = Self { by_header, ..Self::default() };
        faults.replace(lines);
        faults
    }

    /// Notes in a log what is served, with or without faults, and no longer prints each fault.
    pub fn observed(mut self, log: Arc<ServedLog>) -> Self {
        self.log = Some(log);
        self.is_active = AtomicBool::new(true);
        self
    }

    pub(super) fn log(&self) -> Option<&Arc<ServedLog>> {
        self.log.as_ref()
    }

    /// Replaces the faults. Responses in progress keep theirs; what was counted is forgotten, and what happened stays listed. While it
    /// serves, those are named that no request can get.
    pub fn replace(&self, lines: FaultLines) {
        for (fault, why) in self.unmatched(&lines) {
            tracing::warn!("--fault '{fault}' happens to no request that is served: {why}");
        }
        let (of_failures, of_records) = (self.failures.lock().1.clone(), self.of_records.lock().clone());
        let mut lines = lines;
        // A list that was shown has these too.
        let shown: Vec<String> = of_failures.iter().chain(&of_records).map(ToString::to_string).collect();
        lines.faults.retain(|fault| !shown.contains(&fault.to_string()));
        *self.lines.lock() = lines.clone();
        lines.faults.extend(of_failures.into_iter().chain(of_records));
        let (set, before) = (FaultSet::new(lines.faults, lines.seed), self.current());
        // What a log notes of each response is not listed too: that list would grow with each replacement.
        *self.set.lock() = Arc::new(if self.log.is_some() { set } else { set.after(&before) });
        self.activate();
        self.changes.send_replace(());
    }

    pub(crate) fn failures(&self) -> InjectedFailures {
        self.failures.lock().0.clone()
    }

    /// Replaces the failures; other faults stay.
    ///
    /// # Errors
    /// A type of failure that is none; nothing changes then.
    pub fn fail(&self, failures: InjectedFailures) -> Result<(), String> {
        let new = failures.lines()?;
        *self.failures.lock() = (failures, new);
        self.renew();
        Ok(())
    }

    /// Takes the same lines again, with what stands behind them.
    fn renew(&self) {
        let lines = self.lines.lock().clone();
        self.replace(lines);
    }

    /// Notes whether there is anything to do.
    fn activate(&self) {
        let is_active = self.has_of_requests() || !self.current().is_empty();
        self.is_active.store(is_active, Ordering::Release);
    }

    /// Returns true if requests may bring faults of their own, or are noted.
    fn has_of_requests(&self) -> bool {
        self.by_header || self.log.is_some() || !self.of_sessions.lock().is_empty()
    }

    /// The faults that no request can get, each with the reason, as far as that is certain.
    fn unmatched<'a>(&self, lines: &'a FaultLines) -> Vec<(&'a Fault, String)> {
        let Some(served) = self.served.get() else { return Vec::new() };
        let faults = lines.faults.iter();
        faults.filter_map(|fault| fault.unmatched(served).map(|why| (fault, why))).collect()
    }

    /// Checks faults that come while it serves.
    /// Errors: one that never happens to an engine core.
    pub(crate) fn check(&self, lines: &FaultLines) -> Result<(), String> {
        let is_engine_core = self.served.get().is_some_and(|served| served.is_engine_core);
        let refused = lines.faults.iter().filter(|_| is_engine_core).find_map(Fault::without_http);
        refused.map_or(Ok(()), Err)
    }

    /// Lets the times of the faults begin now, with those of a script, which are tried after them.
    pub fn begin(&self, script: Vec<Fault>, served: ServedNames) {
        self.scripted.get_or_init(|| script);
        self.served.get_or_init(|| served);
        *self.set.lock() = Arc::default();
        let lines = self.lines.lock().clone();
        self.reload(lines);
    }

    /// Replaces the faults by what files have now. Those of the script stay after them, and all times start again.
    pub fn reload(&self, lines: FaultLines) {
        let FaultLines { mut faults, seed } = lines;
        faults.extend(self.scripted.get().into_iter().flatten().cloned());
        self.replace(FaultLines { faults, seed });
    }

    /// Lines in which what stands for secrets of the faults as they are has become these secrets.
    /// Errors: what stands for a secret that no fault has.
    pub(crate) fn with_secrets(&self, mut lines: FaultLines) -> Result<FaultLines, String> {
        let current = self.current();
        let known = current.counts().map(|(fault, _)| &fault.selection).collect::<Vec<_>>();
        for fault in &mut lines.faults {
            fault.selection.restore_secrets(&known)?;
        }
        Ok(lines)
    }

    /// Notifies of each replacement.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// The faults as they are now.
    #[must_use]
    pub fn current(&self) -> Arc<FaultSet> {
        Arc::clone(&self.set.lock())
    }

    /// Returns true if a request may get a fault: it asks for work, or a fault names its path.
    pub(super) fn takes(&self, method: &Method, path: &str) -> bool {
        if !self.is_active.load(Ordering::Acquire) || path.starts_with("/vcr/") {
            return false;
        }
        let set = self.current();
        let has_answers = set.concerns_answers() || self.has_of_requests();
        (*method == Method::POST && has_answers) || set.concerns_path(path)
    }

    /// The faults of the cassette that a session has of its own; `None` for the session without a name.
    pub(super) fn of_session(&self, session: Option<&str>) -> Vec<Fault> {
        self.of_sessions.lock().get(session.unwrap_or(DEFAULT_SESSION)).cloned().unwrap_or_default()
    }

    /// Takes them in the place of those of before, whose counts are forgotten.
    fn take_of_session(&self, session: &str, mut faults: Vec<Fault>) {
        let named = Some(session).filter(|session| *session != DEFAULT_SESSION);
        for fault in &mut faults {
            fault.selection.session = fault.selection.session.take().or(named.map(str::to_owned));
        }
        let mut of_sessions = self.of_sessions.lock();
        let before = of_sessions.remove(session);
        if before.is_none() && faults.is_empty() {
            return;
        }
        if !faults.is_empty() {
            of_sessions.insert(session.to_owned(), faults);
        }
        drop(of_sessions);
        self.current().forget_records_of(named);
        self.activate();
    }

    /// The faults that a request names itself, after those of the server.
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

impl FaultReader for ServerFaults {
    fn take(&self, session: Option<&str>, faults: &[RecordFault]) -> Result<(), Vec<CassetteError>> {
        let read = |written: &RecordFault| fault_of_record(written).map_err(|why| written.wrong(&why));
        let (read, wrong): (Vec<_>, Vec<_>) = faults.iter().map(read).partition(Result::is_ok);
        if !wrong.is_empty() {
            return Err(wrong.into_iter().filter_map(Result::err).collect());
        }
        let read: Vec<Fault> = read.into_iter().flatten().collect();
        if let Some(session) = session {
            self.take_of_session(session, read);
            return Ok(());
        }
        let before = std::mem::replace(&mut *self.of_records.lock(), read.clone());
        if !(before.is_empty() && read.is_empty()) {
            self.renew();
        }
        Ok(())
    }
}

/// The fault of a hand-written record: of the answers of this record.
///
/// # Errors
/// What is wrong with its words.
pub fn fault_of_record(written: &RecordFault) -> Result<Fault, String> {
    let mut fault: Fault = written.text.parse().map_err(|error: FaultSyntaxError| error.to_string())?;
    if !fault.row.stage.is_of_answers() || matches!(fault.kind, FaultKind::Quota(_)) {
        return Err(format!("`{}` is no fault of an answer", fault.what()));
    }
    if fault.selection.record.is_some() {
        return Err("`record=` is the record that it stands in: leave it out".to_owned());
    }
    fault.selection.record = Some(written.record.clone());
    fault.selection.is_of_record = true;
    Ok(fault)
}

/// Kinds of failures by their names in llm-d-inference-sim, which are kinds of faults too, and what each is.
pub const FAILURE_TYPES: [(&str, &str); 6] = [
    ("rate_limit", "429"),
    ("invalid_api_key", "401"),
    ("context_length", "400: the prompt is too long"),
    ("server_error", "503"),
    ("invalid_request", "400: a parameter is out of its range"),
    ("model_not_found", "404"),
];

/// Requests that fail, and how, in the words of llm-d-inference-sim: a percentage of them, and the kinds that they have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InjectedFailures {
    /// Percentage of requests.
    pub percent: u8,
    /// Names of [`FAILURE_TYPES`], each as often as the others; empty for all.
    pub types: Vec<String>,
}

impl InjectedFailures {
    /// The lines that stand for them. Each kind has the same share of the requests: a line sees only those that no line before it took.
    ///
    /// # Errors
    /// A type that there is not.
    pub fn lines(&self) -> Result<Vec<Fault>, String> {
        let all = FAILURE_TYPES.map(|(name, _)| name.to_owned());
        let types = if self.types.is_empty() { all.as_slice() } else { self.types.as_slice() };
        if let Some(other) = types.iter().find(|name| !all.contains(name)) {
            return Err(format!("{other} is no type of failure: there are {}", all.join(", ")));
        }
        let share = f64::from(self.percent) / 100.0 / types.iter().map(|_| 1.0).sum::<f64>();
        let mut left = 1.0;
        let mut lines = Vec::new();
        for name in types.iter().filter(|_| self.percent > 0) {
            let line = format!("{name} where rate={}", (share / left).min(1.0));
            lines.push(line.parse::<Fault>().map_err(|error| error.to_string())?);
            left -= share;
        }
        Ok(lines)
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
    fn failures_are_those_that_were_set_last() {
        let failures = |percent| InjectedFailures { percent, types: vec!["rate_limit".to_owned()] };
        let faults = ServerFaults::new(lines("503"), false);
        let shown = || faults.current().counts().map(|(fault, _)| fault.to_string()).collect::<Vec<_>>();
        let (only, both) = (["503"], ["503", "rate_limit where rate=0.5"]);
        faults.fail(failures(50)).unwrap();
        assert_eq!(shown(), both);
        faults.reload(lines("503"));
        assert_eq!((shown(), faults.failures()), (both.map(str::to_owned).to_vec(), failures(50)));
        let listed = both.map(|line| line.parse().unwrap()).to_vec();
        faults.replace(FaultLines { faults: listed, seed: 3 });
        assert_eq!(shown(), both);
        faults.fail(failures(0)).unwrap();
        faults.reload(lines("503"));
        assert_eq!((shown(), faults.failures()), (only.map(str::to_owned).to_vec(), failures(0)));
    }

    #[test]
    fn what_no_request_can_get_is_named() {
        let served =
            ServedNames { models: Some(vec!["m".to_owned(), "k".to_owned()]), replicas: 2, ..ServedNames::default() };
        for (condition, part) in [
            ("model=x", "no model `x` is served, but m, k"),
            ("path=v1/completions", "paths begin with `/`"),
            ("path=/v1/models?a=1", "the query is no part"),
            ("\"header:x-a= b\"", "no header `x-a` has this value"),
            ("first=2 nth=3", "not among the `first`"),
            ("replica=2", "there is no replica 2: 2 are counted"),
        ] {
            let lines = lines(&format!("429 where {condition}"));
            let faults = ServerFaults::new(FaultLines::default(), false);
            assert_eq!(faults.unmatched(&lines).len(), 0, "before it serves");
            faults.begin(Vec::new(), served.clone());
            let [(_, why)] = faults.unmatched(&lines).try_into().unwrap();
            assert!(why.contains(part), "{condition}: {why}");
        }
        let faults = ServerFaults::new(FaultLines::default(), false);
        faults.begin(Vec::new(), served);
        let lines_of_events = lines("kv-drop at event 7");
        let [(_, why)] = faults.unmatched(&lines_of_events).try_into().unwrap();
        assert_eq!(why, "no KV events are published without --enable-kv-cache-events");
        let faults = ServerFaults::new(FaultLines::default(), false);
        let engine = ServedNames { replicas: 1, publishes: true, ..ServedNames::default() };
        faults.begin(Vec::new(), engine.clone());
        assert_eq!(faults.unmatched(&lines("kv-drop")).len(), 0);
        for condition in ["model=x", "path=*", "path=/v1/*", "header:x-a=b", "first=2 nth=2", "replica=0"] {
            assert_eq!(faults.unmatched(&lines(&format!("429 where {condition}"))).len(), 0, "{condition}");
        }
        let faults = ServerFaults::new(FaultLines::default(), false);
        faults.begin(Vec::new(), ServedNames { is_engine_core: true, ..engine });
        for line in ["503", "reset at event 1", "empty", "metrics-nan", "not-ready", "quota:requests=1"] {
            let (why, lines) = (faults.check(&lines(line)).unwrap_err(), lines(line));
            assert!(why.contains(&format!("`{line}` has no effect with --engine-core: it happens")), "{why}");
            assert_eq!(faults.unmatched(&lines).iter().map(|(_, why)| why).collect::<Vec<_>>(), [&why]);
        }
        for line in ["die", "kv-drop", "slower:2"] {
            assert_eq!((faults.check(&lines(line)), faults.unmatched(&lines(line)).len()), (Ok(()), 0));
        }
    }

    #[test]
    fn a_script_stays_when_files_are_read_again_and_goes_when_all_are_replaced() {
        let faults = ServerFaults::new(lines("429"), false);
        let shown = || faults.current().counts().map(|(fault, _)| fault.to_string()).collect::<Vec<_>>();
        faults.begin(lines("die where from=1s").faults, ServedNames::default());
        assert_eq!(shown(), ["429", "die where from=1s"]);
        faults.reload(lines("503"));
        assert_eq!((shown(), faults.current().seed()), (vec!["503".into(), "die where from=1s".into()], 3));
        faults.replace(lines("404"));
        assert_eq!(shown(), ["404"]);
    }
}
