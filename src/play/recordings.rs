//! Recorded responses, found by their requests: those of records that no token ids stand for.
//!
//! A record is found by its index, where the request's id names one, or by its request in canonical form: the first that was
//! not served yet, else what [`OnExhausted`] says, the last one without it. Who asks for a stream gets a recorded stream first.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use crate::{identity, matching::OnExhausted, prompt::BlockHasher, trace::Store};

/// The responses of a trace.
#[derive(Debug, Default)]
pub(super) struct Recordings {
    paths: HashSet<Box<str>>,
    by_request: HashMap<Box<str>, Same>,
}

/// The records of one request, in replay order.
#[derive(Debug, Default)]
struct Same {
    recordings: Vec<Recording>,
    /// Turns taken since all were served.
    turns: AtomicUsize,
}

#[derive(Debug)]
struct Recording {
    record: usize,
    stream: bool,
    served: AtomicBool,
}

/// What a request finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// This record, which was served before or not.
    Record { record: usize, again: bool },
    /// Records that were all served and must not be served again.
    Exhausted,
    /// None.
    Nothing,
}

impl Recordings {
    /// The responses among these records, which are in replay order.
    pub(super) fn of(records: &Store) -> Self {
        let mut recordings = Self::default();
        for (record, kept) in records.iter().enumerate().filter(|(_, kept)| kept.response().is_some()) {
            recordings.paths.extend(kept.path().map(Box::from));
            let Some(key) = kept.request_key() else { continue };
            let recording = Recording { record, stream: kept.stream() == Some(true), served: AtomicBool::new(false) };
            recordings.by_request.entry(key.into()).or_default().recordings.push(recording);
        }
        recordings
    }

    /// Whether there are any of this path.
    pub(super) fn has(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    /// The record of a request by what it asks for.
    pub(super) fn by_request(
        &self,
        hasher: &BlockHasher,
        (target, body): (&str, &[u8]),
        on_exhausted: Option<OnExhausted>,
    ) -> Found {
        let key = hasher.request_key(identity::request_key(target, body).number());
        let Some(same) = key.and_then(|key| self.by_request.get(key.as_str())) else { return Found::Nothing };
        let wants_stream = asks_for_stream(body);
        let (alike, others): (Vec<&Recording>, Vec<&Recording>) =
            same.recordings.iter().partition(|recording| recording.stream == wants_stream);
        let mut all = alike.iter().chain(&others);
        if let Some(fresh) = all.find(|recording| !recording.served.swap(true, Relaxed)) {
            return Found::Record { record: fresh.record, again: false };
        }
        let choices = if alike.is_empty() { &others } else { &alike };
        let again = match on_exhausted {
            Some(OnExhausted::Error) => return Found::Exhausted,
            Some(OnExhausted::Cycle) => {
                choices.iter().cycle().nth(same.turns.fetch_add(1, Relaxed) % choices.len().max(1))
            }
            Some(OnExhausted::Last) | None => choices.last(),
        };
        again.map_or(Found::Nothing, |recording| Found::Record { record: recording.record, again: true })
    }
}

/// Whether a request wants a stream.
pub(super) fn asks_for_stream(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Asked {
        #[serde(default)]
        stream: Option<bool>,
    }
    serde_json::from_slice::<Asked>(body).is_ok_and(|asked| asked.stream == Some(true))
}
