//! From cassettes to a tape: every record is searched for secrets and identified, on all cores.

use std::{collections::HashSet, num::NonZero, path::PathBuf, thread};

use super::{
    Config, Secrets,
    secrets::{self, Leak, around},
};
use crate::{
    cassette::{CassetteError, Record},
    identity::{Call, Identity},
    matching::requests::{Servable, Tape},
    redaction::Redactor,
};

/// Fewer records are not worth a thread.
const FEWEST: usize = 256;

/// Why there is no deck.
#[derive(Debug, thiserror::Error)]
pub enum DeckError {
    /// The cassette that is to be written cannot be.
    #[error(transparent)]
    Cassette(#[from] CassetteError),
    /// Cassettes hold secrets.
    #[error("there are {} secrets in what is to be played:\n  {}", .0.len(), listed(.0))]
    Secrets(Vec<String>),
}

fn listed(found: &[String]) -> String {
    found.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n  ")
}

/// What is known of a record before it is played.
struct Known {
    identity: Identity,
    secrets: Vec<Leak>,
    is_edited: bool,
}

/// Everything that can be played.
pub(super) struct Ready {
    pub(super) tape: Tape,
    /// In the order of the tape: the cassette and its record.
    pub(super) records: Vec<(usize, Record)>,
    /// Whose answers were edited, by their places.
    pub(super) edited: Vec<usize>,
}

/// Moves the records out of the cassettes and makes their tape.
pub(super) fn ready(config: &mut Config) -> Result<Ready, DeckError> {
    let mut records: Vec<(usize, Record)> = Vec::new();
    for (at, cassette) in config.cassettes.iter_mut().enumerate() {
        records.extend(std::mem::take(&mut cassette.records).into_iter().map(|record| (at, record)));
    }
    let (mut tape, mut found, mut edited) = (Tape::default(), Vec::new(), Vec::new());
    let servable = servable(&records);
    for ((at, known), servable) in known(config, &records).into_iter().enumerate().zip(servable) {
        found.extend(known.secrets);
        edited.extend(known.is_edited.then_some(at));
        tape.push(known.identity, servable);
    }
    if config.leaks == Secrets::Refused {
        config.cassettes.iter().for_each(|cassette| around(&config.secrets, cassette, &mut found));
    }
    if found.is_empty() {
        Ok(Ready { tape, records, edited })
    } else {
        Err(DeckError::Secrets(found.iter().map(Leak::to_string).collect()))
    }
}

/// Exchanges whose client left are not played, and another try only where the first one is not: who is played a record needs no
/// other try.
fn servable(records: &[(usize, Record)]) -> Vec<Servable> {
    let mut whole: HashSet<(usize, u64)> = HashSet::new();
    let of_record = |(cassette, record): &(usize, Record)| {
        let is_told = record.retry_of.is_some_and(|first| whole.contains(&(*cassette, first)));
        if record.aborted.is_some() || is_told {
            return Servable::No;
        }
        whole.insert((*cassette, record.id));
        // A third try names the first one too.
        whole.extend(record.retry_of.map(|first| (*cassette, first)));
        Servable::Yes
    };
    records.iter().map(of_record).collect()
}

fn known(config: &Config, records: &[(usize, Record)]) -> Vec<Known> {
    let of_some = |some: &[(usize, Record)]| {
        let mut redactor = Redactor::new(&config.secrets);
        some.iter().map(|(at, record)| one(config, &mut redactor, *at, record)).collect::<Vec<_>>()
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let share = records.len().div_ceil(threads).max(FEWEST);
    thread::scope(|scope| {
        let working: Vec<_> = records.chunks(share).map(|some| (some, scope.spawn(move || of_some(some)))).collect();
        // A thread that ended badly has its share done here.
        working.into_iter().flat_map(|(some, work)| work.join().unwrap_or_else(|_| of_some(some))).collect()
    })
}

fn one(config: &Config, redactor: &mut Redactor<'_>, cassette: usize, record: &Record) -> Known {
    let Record { method, headers, .. } = record;
    redactor.begin_another();
    let (path, body) = secrets::shown_by(redactor, &record.path, &record.body);
    let body = record.raw.as_deref().map_or(body, |raw| secrets::shown_bytes(redactor, raw));
    let headers = &secrets::headers_by(redactor, headers.clone());
    let identity = config.rules.identify(&Call { method, path: &path, headers, body: &body });
    let secrets = match config.leaks {
        Secrets::Refused => {
            let file = config.cassettes.get(cassette).map_or_else(PathBuf::new, |cassette| cassette.path.clone());
            secrets::found_in(redactor, record, &file)
        }
        Secrets::Allowed => Vec::new(),
    };
    Known { identity, secrets, is_edited: record.side.is_some() && !record.is_as_recorded() }
}
