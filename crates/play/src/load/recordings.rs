//! What a trace holds of responses that no token ids stand for, and of errors, by the keys of their requests.

use std::collections::{HashMap, HashSet};

use crate::load::account::SessionConsumption;
use base::lock::Lock;
use recording::trace::{RecordRef, Store};
use replay::matching::{Keys, Matcher, OnExhausted};

/// The responses of a trace.
#[derive(Debug, Default)]
pub(crate) struct Recordings {
    paths: HashSet<Box<str>>,
    /// The records of one request that has a response, in replay order.
    by_request: HashMap<Box<str>, Vec<ServableRecord>>,
    /// All records with a response, and the others of their requests, in replay order.
    all: Vec<u32>,
    /// Records of further choices, whose content is in the response of the first: by that.
    further: HashMap<usize, Vec<usize>>,
    /// The record with the response of each of those.
    response_of: HashMap<usize, usize>,
}

#[derive(Debug)]
struct ServableRecord {
    record: usize,
    stream: bool,
    /// False for token ids and for an error, which an endpoint serves.
    is_response: bool,
}

impl ServableRecord {
    fn new(record: usize, kept: RecordRef<'_>) -> Self {
        Self { record, stream: kept.stream() == Some(true), is_response: kept.response().is_some() }
    }
}

/// Number of times that each response was served in one session.
#[derive(Debug, Default)]
pub(crate) struct ServedResponses(Lock<HashMap<usize, u64>>);

impl ServedResponses {
    /// Notes that a record was served not so often after all.
    pub(crate) fn give_back(&self, record: usize, further: &[usize]) {
        let mut served = self.0.lock();
        for record in std::iter::once(record).chain(further.iter().copied()) {
            if let Some(times) = served.get_mut(&record) {
                *times -= 1;
            }
            if served.get(&record) == Some(&0) {
                served.remove(&record);
            }
        }
    }

    pub(crate) fn times(&self, record: usize) -> u64 {
        self.0.lock().get(&record).copied().unwrap_or(0)
    }

    /// Counts the records that were served at least once.
    pub(crate) fn consumed(&self) -> usize {
        self.0.lock().len()
    }
}

/// Result of a search by the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseSearch {
    /// This record, which was served before or not.
    Record { record: usize, again: bool },
    /// Records that were all served and must not be served again.
    Exhausted,
    /// None.
    Nothing,
}

impl Recordings {
    /// The responses among these records, which are in replay order.
    pub(crate) fn of(records: &Store) -> Self {
        let mut recordings = Self::default();
        for (record, kept) in records.iter().enumerate().filter(|(_, kept)| kept.response().is_some()) {
            recordings.paths.extend(kept.path().map(Box::from));
            recordings.all.extend(u32::try_from(record));
            let Some(key) = kept.request_key() else { continue };
            recordings.by_request.entry(key.into()).or_default().push(ServableRecord::new(record, kept));
        }
        recordings.add_further_choices(records);
        recordings.add_turns(records);
        recordings
    }

    /// Finds the other records of the same requests, which take turns with their responses.
    fn add_turns(&mut self, records: &Store) {
        for (record, kept) in records.iter().enumerate().filter(|(_, kept)| kept.choice().unwrap_or(0) == 0) {
            let is_other = kept.response().is_none() && self.keys(record, kept).servable;
            let same = kept.request_key().filter(|_| is_other).and_then(|key| self.by_request.get_mut(key));
            same.into_iter().for_each(|same| same.push(ServableRecord::new(record, kept)));
        }
        self.by_request.values_mut().for_each(|same| same.sort_unstable_by_key(|recording| recording.record));
    }

    /// Finds the records whose content is in the response of another choice of their request.
    fn add_further_choices(&mut self, records: &Store) {
        let group_of = |record: &u32| Some((records.get(*record as usize)?.group()?, *record as usize));
        let groups: HashMap<&str, usize> = self.all.iter().filter_map(group_of).collect();
        if groups.is_empty() {
            return;
        }
        for (record, kept) in records.iter().enumerate() {
            let holder = kept.group().and_then(|group| groups.get(group)).copied();
            if let Some(holder) = holder.filter(|_| kept.response().is_none() && kept.ids().is_none()) {
                self.further.entry(holder).or_default().push(record);
                self.response_of.insert(record, holder);
                self.all.extend(u32::try_from(record));
            }
        }
        self.all.sort_unstable();
    }

    pub(crate) fn first(&self) -> Option<usize> {
        self.all.iter().map(|record| *record as usize).find(|record| !self.response_of.contains_key(record))
    }

    /// Checks whether the content of a record is in a response.
    pub(crate) fn serves(&self, record: usize) -> bool {
        u32::try_from(record).is_ok_and(|record| self.all.binary_search(&record).is_ok())
    }

    /// Keys of a record, servable where its prompt or its index finds it.
    pub(crate) fn keys<'a>(&self, record: usize, kept: RecordRef<'a>) -> Keys<'a> {
        let keys = Keys::from(kept);
        Keys { servable: keys.servable && !self.response_of.contains_key(&record), ..keys }
    }

    /// The record with the response that a record is of; most are of their own.
    pub(crate) fn holder(&self, record: usize) -> usize {
        self.response_of.get(&record).copied().unwrap_or(record)
    }

    pub(crate) fn further(&self, record: usize) -> &[usize] {
        self.further.get(&record).map_or(&[], Vec::as_slice)
    }

    /// Notes that a response was served. True when it was served before.
    pub(crate) fn take(&self, served: &ServedResponses, record: usize) -> bool {
        self.take_of(&mut served.0.lock(), record)
    }

    fn take_of(&self, served: &mut HashMap<usize, u64>, record: usize) -> bool {
        let times = served.entry(record).or_default();
        *times += 1;
        let again = *times > 1;
        self.further(record).iter().for_each(|further| *served.entry(*further).or_default() += 1);
        again
    }

    /// Checks whether there are any of this path.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    /// The records whose content is in a response, in replay order.
    pub(crate) fn all(&self) -> &[u32] {
        &self.all
    }

    /// Finds the record of a request by its key and consumes it. One without a response is left to an endpoint.
    pub(crate) fn by_request(
        &self,
        session: &SessionConsumption,
        matcher: &Matcher,
        key: Option<&str>,
        wants_stream: bool,
    ) -> ResponseSearch {
        let Some(same) = key.and_then(|key| self.by_request.get(key)) else {
            return ResponseSearch::Nothing;
        };
        let (alike, others): (Vec<&ServableRecord>, Vec<&ServableRecord>) =
            same.iter().partition(|recording| recording.stream == wants_stream);
        let mut served = session.responses.0.lock();
        let times =
            |record: usize| served.get(&record).copied().unwrap_or_default() + session.consumption.times(record);
        let fresh = alike.iter().chain(&others).map(|recording| recording.record).find(|record| times(*record) == 0);
        let record = fresh.or_else(|| {
            let choices = if alike.is_empty() { &others } else { &alike };
            let on_exhausted = matcher.rules().on_exhausted.unwrap_or(OnExhausted::Last);
            on_exhausted.choose(choices.iter().map(|recording| recording.record), times)
        });
        let Some(record) = record else { return ResponseSearch::Exhausted };
        if same.iter().any(|recording| recording.record == record && recording.is_response) {
            self.take_of(&mut served, record);
        } else {
            matcher.consume(&session.consumption, record);
        }
        ResponseSearch::Record { record, again: fresh.is_none() }
    }
}

/// The errors of a trace by the keys of their requests.
#[derive(Debug, Default)]
pub(crate) struct RecordedErrors(pub(crate) HashMap<Box<str>, Vec<usize>>);

impl RecordedErrors {
    /// The errors among these records, which are in replay order.
    pub(crate) fn of(records: &Store) -> Self {
        let mut errors = Self::default();
        let is_error = |status: Option<u16>| status.is_some_and(|status| status >= 400);
        for (record, kept) in records.iter().enumerate() {
            let is_found_otherwise = kept.response().is_some() || kept.prompt_hash().is_some();
            if let Some(key) = kept.request_key().filter(|_| !is_found_otherwise && is_error(kept.status())) {
                errors.0.entry(key.into()).or_default().push(record);
            }
        }
        errors
    }
}
