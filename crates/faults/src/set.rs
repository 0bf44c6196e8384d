//! The faults of a server: which of them a request gets, and what happened.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use base::lock::Lock;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    fault::Fault,
    hit::{FaultHistory, FaultHit, HitOf, NotedHit, UnappliedFault, line},
    kind::FaultKind,
    request::{FaultRequest, SelectionFacts},
    rule::{FaultRule, RecordCondition, count},
    selection::{FaultSelection, SequenceKey},
    stage::{FaultStage, is_path},
};

/// Maximum number of lines of requests' own faults whose sequences are counted; of later ones each request is the first.
const MOST_OWN: usize = 10_000;

/// A fault for a request.
#[derive(Debug, Clone)]
pub struct ChosenFault {
    /// The fault.
    pub fault: Arc<Fault>,
    /// Its number in the set; `None` for one that the request named itself.
    pub rule: Option<usize>,
    /// Hash of the request.
    pub request: u64,
    /// How often the same request came, from 1.
    pub nth: u64,
    /// Number of the replica that it was sent to.
    pub(crate) replica: u32,
    /// Whose quota it takes from.
    pub(crate) account: u64,
    /// Its condition about the record, where it has one.
    of_record: Option<Arc<RecordCondition>>,
}

impl ChosenFault {
    /// Returns true if it concerns an answer of this record, `None` for one of no record. What `first` and `nth` of a fault with `record=`
    /// count is the requests for which this was asked with its record, each once.
    #[must_use]
    pub fn concerns_record(&self, record: Option<&str>) -> bool {
        self.of_record.as_ref().is_none_or(|condition| condition.holds_for(record))
    }

    /// Returns true if it concerns the answer whatever record that is of, or was found to.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.of_record.as_ref().is_none_or(|condition| condition.has_held())
    }

    /// A number that depends on the seed, the request and the fault.
    pub(crate) fn draw(&self, of: u64) -> u64 {
        draw(self.request, self.nth, of)
    }
}

fn draw(request: u64, nth: u64, of: u64) -> u64 {
    let mut bytes = [0; 16];
    let (first, second) = bytes.split_at_mut(8);
    first.copy_from_slice(&request.to_le_bytes());
    second.copy_from_slice(&nth.to_le_bytes());
    xxh3_64_with_seed(&bytes, of)
}

/// Number of times that a fault was chosen, by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultCounts {
    /// How often it happened.
    pub happened: u64,
    /// How often it could not be applied to a response.
    pub unapplied: u64,
}

/// Faults in the order in which they are tried, and what is counted for them.
#[derive(Debug)]
pub struct FaultSet {
    pub(crate) rules: Vec<Arc<FaultRule>>,
    /// Faults that requests named themselves and that concern some of a sequence, by their lines.
    own: Lock<HashMap<String, Arc<FaultRule>>>,
    seed: u64,
    pub(crate) start: Instant,
    /// Whether one is about KV events.
    pub(crate) has_events: bool,
    /// Whether one is about answers to requests.
    has_answers: bool,
    /// How often each request came.
    seen: Lock<HashMap<u64, u64>>,
    /// What happened, with these faults and with those before them.
    history: Arc<FaultHistory>,
}

impl Default for FaultSet {
    fn default() -> Self {
        Self::new(Vec::new(), 0)
    }
}

impl FaultSet {
    /// Faults in this order; `seed` decides about rates.
    #[must_use]
    pub fn new(faults: Vec<Fault>, seed: u64) -> Self {
        let rules: Vec<Arc<FaultRule>> = faults.into_iter().map(|fault| Arc::new(FaultRule::new(fault))).collect();
        let has_events = rules.iter().any(|rule| rule.fault.row.stage == FaultStage::Events);
        let has_answers = rules.iter().any(|rule| rule.fault.row.stage.is_of_answers());
        Self {
            rules,
            own: Lock::default(),
            seed,
            start: Instant::now(),
            has_events,
            has_answers,
            seen: Lock::default(),
            history: Arc::default(),
        }
    }

    /// The same in the place of others: what happened with those stays listed.
    #[must_use]
    pub fn after(self, before: &Self) -> Self {
        Self { history: Arc::clone(&before.history), ..self }
    }

    /// What decides about rates.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// How long there are these faults or those before them; times of hits count from its start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.history.elapsed()
    }

    /// Returns true if there is no fault.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns true if a fault may concern requests that ask for work; those of metrics, KV events and whole servers do not.
    #[must_use]
    pub fn concerns_answers(&self) -> bool {
        self.has_answers
    }

    /// Returns true if a fault may concern requests that post nothing: it names their path, or is about what they ask for.
    #[must_use]
    pub fn concerns_path(&self, path: &str) -> bool {
        self.rules.iter().any(|rule| {
            let is_signal = matches!(rule.fault.row.stage, FaultStage::Metrics | FaultStage::Health);
            let named = rule.fault.selection.path.as_deref();
            (is_signal && rule.fault.row.stage.concerns(path, false)) || named.is_some_and(|named| is_path(named, path))
        })
    }

    /// Chooses the faults of a request, in their order. Those with a condition about the record are among them; see
    /// [`ChosenFault::concerns_record`].
    #[must_use]
    pub fn choose(&self, request: &FaultRequest<'_>) -> Vec<ChosenFault> {
        self.choose_with(request, Vec::new())
    }

    /// The same, and behind them those of the faults that the request names itself. They are counted as requests of this set, so that the
    /// line of one repeats it among the same requests.
    #[must_use]
    pub fn choose_with(&self, request: &FaultRequest<'_>, own: Vec<Fault>) -> Vec<ChosenFault> {
        let hash = request.hash();
        let nth = count(&self.seen, hash);
        let mut facts = SelectionFacts::new(request, hash, nth);
        let mut chosen = self.chosen(&self.rules, &mut facts);
        if !own.is_empty() {
            let own: Vec<_> = own.into_iter().map(|fault| self.own_rule(fault)).collect();
            chosen.extend(self.chosen(&own, &mut facts).into_iter().map(|it| ChosenFault { rule: None, ..it }));
        }
        chosen
    }

    /// The rule of a fault that a request names itself.
    fn own_rule(&self, fault: Fault) -> Arc<FaultRule> {
        let (line, rule) = (fault.to_string(), FaultRule::new(fault));
        if !rule.counts() {
            return Arc::new(rule);
        }
        let mut own = self.own.lock();
        if let Some(known) = own.get(&line) {
            return Arc::clone(known);
        }
        let rule = Arc::new(rule);
        if own.len() < MOST_OWN {
            own.insert(line, Arc::clone(&rule));
        }
        rule
    }

    /// Counts the requests of a session from the start for faults of records that `choose_with` was given; `None` for the session without a name.
    pub fn forget_records_of(&self, session: Option<&str>) {
        let is_of = |selection: &FaultSelection| selection.is_of_record && selection.session.as_deref() == session;
        self.own.lock().retain(|_, rule| !is_of(&rule.fault.selection));
    }

    fn chosen(&self, rules: &[Arc<FaultRule>], facts: &mut SelectionFacts<'_>) -> Vec<ChosenFault> {
        let mut chosen = Vec::new();
        for (number, rule) in rules.iter().enumerate() {
            if !self.fulfils(number, rule, facts) {
                continue;
            }
            let selection = &rule.fault.selection;
            let of_record = selection.record.is_some().then(|| Arc::new(RecordCondition::new(rule, facts)));
            // Before its record is known, no place in a sequence is taken.
            if of_record.is_none() && !rule.takes_next(facts) {
                continue;
            }
            let has_accounts = matches!(rule.fault.kind, FaultKind::Quota(_)) && selection.per != SequenceKey::Request;
            let account = if has_accounts { facts.sequence(&selection.per) } else { 0 };
            let (fault, rule, replica) = (rule.fault.clone(), Some(number), facts.request.replica);
            chosen.push(ChosenFault { fault, rule, request: facts.hash, nth: facts.nth, replica, account, of_record });
        }
        chosen
    }

    /// Checks the conditions but those of a sequence and of a record.
    fn fulfils(&self, number: usize, rule: &FaultRule, facts: &mut SelectionFacts<'_>) -> bool {
        let selection = &rule.fault.selection;
        let elapsed = self.start.elapsed();
        let is_about = rule.fault.row.stage.concerns(facts.request.path, selection.path.is_some());
        is_about
            && selection.is_in_time(elapsed)
            && !is_up(&rule.fault, elapsed)
            && facts.fulfil(selection)
            && selection.rate.is_none_or(|rate| self.is_drawn(rate, number, (facts.hash, facts.nth)))
    }

    /// Draws whether a fault of a rate concerns what these numbers name.
    pub(crate) fn is_drawn(&self, rate: f64, number: usize, (first, second): (u64, u64)) -> bool {
        let number = u64::try_from(number).unwrap_or_default();
        let seed = self.seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let drawn = (draw(first, second, seed) >> 11) as f64 / (1_u64 << 53) as f64;
        drawn < rate
    }

    /// Notes that a fault happened, and returns the line that repeats it.
    pub fn happened(&self, chosen: &ChosenFault) -> String {
        let ChosenFault { rule, request, nth, replica, .. } = *chosen;
        self.note_hit(&chosen.fault, rule, HitOf::Request { request, nth, replica })
    }

    /// Notes that a fault of this number happened; the line that repeats it, `None` where there is no such fault.
    pub(crate) fn note(&self, number: usize, of: HitOf) -> Option<String> {
        self.rules.get(number).map(|rule| self.note_hit(&rule.fault, Some(number), of))
    }

    fn note_hit(&self, fault: &Arc<Fault>, rule: Option<usize>, of: HitOf) -> String {
        if let Some(rule) = rule.and_then(|rule| self.rules.get(rule)) {
            rule.happened.fetch_add(1, Ordering::Relaxed);
        }
        self.history.add_hit(NotedHit { fault: fault.clone(), rule, of, at: self.elapsed() });
        of.line(fault)
    }

    /// Notes that a request did not get a fault, and returns the line that chooses it.
    pub fn note_unapplied(&self, chosen: &ChosenFault, reason: &str) -> String {
        if let Some(rule) = chosen.rule.and_then(|rule| self.rules.get(rule)) {
            rule.unapplied.fetch_add(1, Ordering::Relaxed);
        }
        let (line, rule, at) = (line(&chosen.fault, chosen.request, chosen.nth), chosen.rule, self.elapsed());
        let unapplied = UnappliedFault { line: line.clone(), rule, at, reason: reason.to_owned() };
        self.history.add_unapplied(chosen.fault.clone(), unapplied);
        line
    }

    /// The faults, and how often each was chosen.
    pub fn counts(&self) -> impl Iterator<Item = (&Fault, FaultCounts)> {
        let counts = |rule: &FaultRule| FaultCounts {
            happened: rule.happened.load(Ordering::Relaxed),
            unapplied: rule.unapplied.load(Ordering::Relaxed),
        };
        self.rules.iter().map(move |rule| (&*rule.fault, counts(rule.as_ref())))
    }

    /// The number that a fault has here; `None` where it was of a set before.
    fn own_number(&self, rule: Option<usize>, fault: &Arc<Fault>) -> Option<usize> {
        rule.filter(|rule| self.rules.get(*rule).is_some_and(|rule| Arc::ptr_eq(&rule.fault, fault)))
    }

    /// Faults that could not be applied, oldest first, at most so many of the latest.
    #[must_use]
    pub fn unapplied(&self, most: usize) -> Vec<UnappliedFault> {
        let noted = self.history.unapplied(most).into_iter();
        noted.map(|(fault, it)| UnappliedFault { rule: self.own_number(it.rule, &fault), ..it }).collect()
    }

    /// What happened, oldest first, at most so many of the latest.
    #[must_use]
    pub fn hits(&self, most: usize) -> Vec<FaultHit> {
        let shown = |NotedHit { fault, rule, of, at }: NotedHit| FaultHit {
            line: of.line(&fault),
            rule: self.own_number(rule, &fault),
            replica: of.replica(),
            at,
        };
        self.history.hits(most).into_iter().map(shown).collect()
    }
}

/// Returns true while a server that is not ready from time to time is.
fn is_up(fault: &Fault, elapsed: Duration) -> bool {
    let FaultKind::NotReady { down, up } = fault.kind else { return false };
    let since = elapsed.saturating_sub(fault.selection.from.unwrap_or_default()).as_nanos();
    let period = down.saturating_add(up).as_nanos();
    let at = if up.is_zero() { since } else { since.checked_rem(period).unwrap_or(since) };
    at >= down.as_nanos()
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    fn set(lines: &[&str], seed: u64) -> FaultSet {
        FaultSet::new(lines.iter().map(|line| line.parse().unwrap()).collect(), seed)
    }

    fn chosen(set: &FaultSet, body: &str) -> Vec<usize> {
        with_headers(set, body, &HeaderMap::new())
    }

    fn request<'a>(body: &'a str, headers: &'a HeaderMap) -> FaultRequest<'a> {
        FaultRequest { path: "/v1/chat/completions", headers, body: body.as_bytes(), session: None, replica: 0 }
    }

    fn with_headers(set: &FaultSet, body: &str, headers: &HeaderMap) -> Vec<usize> {
        set.choose(&request(body, headers)).iter().filter_map(|chosen| chosen.rule).collect()
    }

    #[test]
    fn the_first_two_of_each_request() {
        let set = set(&["429 where first=2"], 0);
        for body in ["{\"a\":1}", "{\"a\":2}"] {
            let got: Vec<usize> = (0..5).map(|_| chosen(&set, body).len()).collect();
            assert_eq!(got, [1, 1, 0, 0, 0]);
        }
    }

    #[test]
    fn sequences_by_header_and_model() {
        let set = set(&["429 where first=1 per=header:idempotency-key", "503 where nth=2 per=model"], 0);
        let headers = |key: &str| HeaderMap::from_iter([("idempotency-key".parse().unwrap(), key.parse().unwrap())]);
        assert_eq!(with_headers(&set, "{\"model\":\"m\"}", &headers("a")), [0]);
        assert_eq!(with_headers(&set, "{\"model\":\"m\",\"n\":1}", &headers("a")), [1]);
        assert_eq!(with_headers(&set, "{\"model\":\"k\"}", &headers("b")), [0]);
    }

    #[test]
    fn sequences_by_session_and_key() {
        let set = set(&["429 where first=1 per=session", "503 where first=1 per=key"], 0);
        let headers = |key: &str| HeaderMap::from_iter([(http::header::AUTHORIZATION, key.parse().unwrap())]);
        let chosen = |body: &str, session: Option<&str>, key: &str| -> Vec<usize> {
            let headers = headers(key);
            let request = FaultRequest { session, ..request(body, &headers) };
            set.choose(&request).iter().filter_map(|chosen| chosen.rule).collect()
        };
        assert_eq!(chosen("1", Some("s"), "Bearer a"), [0, 1]);
        assert_eq!(chosen("2", Some("s"), "Bearer b"), [1]);
        assert_eq!(chosen("3", Some("t"), "Bearer a"), [0]);
        assert_eq!(chosen("4", None, "Bearer b"), [0]);
    }

    #[test]
    fn the_same_seed_chooses_the_same_whatever_the_order() {
        let bodies: Vec<String> = (0..2000).map(|number| format!("{{\"n\":{number}}}")).collect();
        let choose = |seed: u64, is_backward: bool| {
            let set = set(&["reset where rate=0.3"], seed);
            let mut lines: Vec<usize> = Vec::new();
            let order: Vec<usize> = if is_backward { (0..2000).rev().collect() } else { (0..2000).collect() };
            for number in order {
                if !chosen(&set, &bodies[number]).is_empty() {
                    lines.push(number);
                }
            }
            lines.sort_unstable();
            lines
        };
        let first = choose(7, false);
        assert_eq!(first, choose(7, true));
        assert_ne!(first, choose(8, false));
        assert!((500..700).contains(&first.len()), "{}", first.len());
    }

    #[test]
    fn a_listed_line_chooses_that_request_alone() {
        let headers = HeaderMap::new();
        let many = set(&["stall:1s at token 3 where rate=0.5"], 1);
        let bodies: Vec<String> = (0..40).map(|number| format!("{{\"n\":{}}}", number % 20)).collect();
        for body in &bodies {
            many.choose(&request(body, &headers)).iter().for_each(|chosen| drop(many.happened(chosen)));
        }
        let hits = many.hits(1000);
        assert!(!hits.is_empty());
        let alone = set(&[&hits[0].line], 99);
        let found = bodies.iter().filter(|body| !alone.choose(&request(body, &headers)).is_empty());
        assert_eq!(found.count(), 1);
    }

    #[test]
    fn a_listed_line_keeps_the_replica_that_the_fault_names() {
        let headers = HeaderMap::new();
        let to = |replica| FaultRequest { replica, ..request("{}", &headers) };
        let set = set(&["503 where replica=1"], 0);
        assert!(set.choose(&to(0)).is_empty());
        for chosen in set.choose(&to(1)) {
            set.happened(&chosen);
        }
        let [hit] = set.hits(9).try_into().unwrap();
        assert!(hit.line.ends_with(" nth=2 replica=1") && hit.replica == 1, "{hit:?}");
        let alone = FaultSet::new(vec![hit.line.parse().unwrap()], 0);
        let counts = [1, 1].map(|replica| alone.choose(&to(replica)).len());
        assert_eq!(counts, [0, 1]);
    }

    #[test]
    fn a_sequence_has_the_requests_that_fulfil_all_conditions() {
        let of_key = |key: &str| HeaderMap::from_iter([("x-a".parse().unwrap(), key.parse().unwrap())]);
        let (some, others) = (of_key("1"), of_key("2"));
        for per in ["", " per=all"] {
            for conditions in ["first=1", "nth=1"] {
                let set = set(&[&format!("429 where {conditions}{per} header:x-a=1")], 0);
                let got = [&others, &others, &some, &some].map(|headers| with_headers(&set, "{}", headers).len());
                assert_eq!(got, [0, 0, 1, 0], "{conditions}{per}");
            }
        }
        let drawn = set(&["429 where rate=0.5 first=3 per=all"], 0);
        let got = (0..100).filter(|number| !chosen(&drawn, &format!("{{\"n\":{number}}}")).is_empty());
        assert_eq!(got.count(), 3);
    }

    #[test]
    fn a_sequence_of_a_record_has_the_requests_that_it_answers() {
        for line in ["429 where record=a#1 first=2 per=all", "429 where record=a#1 first=2"] {
            let (set, headers) = (set(&[line], 0), HeaderMap::new());
            let answered = |record: Option<&str>| {
                let chosen = set.choose(&request("{}", &headers)).pop().unwrap();
                // However often it is asked for one request, that has one place.
                let is_certain = chosen.is_certain();
                let got = [chosen.concerns_record(record), chosen.clone().concerns_record(record)];
                assert_eq!((is_certain, got[0], chosen.is_certain()), (false, got[1], got[1]), "{line}");
                got[0]
            };
            let records = [Some("a#0"), None, Some("a#0"), Some("a#1"), Some("a#0"), Some("a#1"), Some("a#1")];
            assert_eq!(records.map(answered), [false, false, false, true, false, true, false], "{line}");
        }
    }

    #[test]
    fn what_happened_with_faults_that_are_gone_stays_listed_without_their_numbers() {
        let (before, headers) = (set(&["503 where first=1"], 0), HeaderMap::new());
        let hit = |set: &FaultSet| set.happened(&set.choose(&request("{}", &headers))[0]);
        let late = before.choose(&request("{}", &headers)).remove(0);
        before.note_unapplied(&late, "why");
        let after = set(&["404"], 0).after(&before);
        // A response in progress keeps its faults.
        let lines = [before.happened(&late), hit(&after)];
        let hits = after.hits(9).into_iter().map(|hit| (hit.line, hit.rule)).collect::<Vec<_>>();
        let [gone, current] = lines;
        assert_eq!(hits, [(gone, None), (current, Some(0))]);
        assert_eq!(after.unapplied(9).iter().map(|it| it.rule).collect::<Vec<_>>(), [None]);
        assert_eq!((before.hits(9)[0].rule, after.counts().next().unwrap().1.happened), (Some(0), 1));
    }

    #[test]
    fn own_faults_of_requests_are_counted_by_their_lines() {
        let (set, headers) = (set(&[], 0), HeaderMap::new());
        let own = |line: &str, body: &str| {
            let chosen = set.choose_with(&request(body, &headers), vec![line.parse().unwrap()]);
            assert!(chosen.iter().all(|chosen| chosen.rule.is_none()));
            chosen.len()
        };
        let line = "429 where first=2 per=all";
        assert_eq!(
            [own(line, "1"), own(line, "2"), own("503 where first=2 per=all", "3"), own(line, "4")],
            [1, 1, 1, 0]
        );
        // The line of a hit names the request by its number among the same ones.
        assert_eq!([own("429", "5"), own("429 where nth=2", "5"), own("429 where nth=2", "5")], [1, 1, 0]);
    }

    #[test]
    fn a_condition_is_written_once() {
        let error = "503 where model=a model=b".parse::<Fault>().unwrap_err().to_string();
        assert!(error.contains("`model=b`: there is one `model` already"), "{error}");
        assert!("503 where header:x-a=b header:x-c=d rate=0.5".parse::<Fault>().is_ok());
    }

    #[test]
    fn conditions_look_into_the_body() {
        let set =
            set(&["400 where model=m", "401 where prompt=secret", "404 where turn=1", "500 where path=/v1/chat*"], 0);
        let body = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a secret"}]},{"role":"assistant","content":""}]}"#;
        assert_eq!(chosen(&set, body), [0, 1, 2, 3]);
        assert_eq!(chosen(&set, "no json"), [3]);
    }
}
