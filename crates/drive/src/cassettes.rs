//! Cassettes as workloads: their records become those of a trace, as `cassette convert` makes them, with values in place of placeholders.
//!
//! Records of one conversation are one session: a record belongs to that of the record whose messages it goes on with. Left out are messages
//! to MCP servers, hand-written records (they have no request) and what is no posted JSON.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use recording::{
    cassette::{self, Cassette, CassetteError, RecordTokens, bases},
    trace::{JoinedTimeline, THINK_MS, zeros},
};
use replay::player::{Counts, SuppliedSecrets, ToTrace, restore_requests, to_trace};

use crate::workload::{Workload, WorkloadError};

impl Workload {
    /// Reads cassettes. Those with the time of their recording are placed by that, any other begins where the ones before it end.
    ///
    /// # Errors
    /// When a file cannot be read, or no record of any is a request.
    pub fn read_cassettes(paths: &[PathBuf], supplied: &SuppliedSecrets) -> Result<Self, WorkloadError> {
        let name = match paths {
            [] => String::new(),
            [one] => one.display().to_string(),
            [first, others @ ..] => format!("{} and {} further files", first.display(), others.len()),
        };
        let mut workload = Self { name, ..Self::default() };
        let made = paths.iter().map(|path| workload.convert(path, supplied)).collect::<Result<Vec<_>, _>>()?;
        let metas: Vec<_> = made.iter().map(|made| made.meta.clone()).collect();
        let meta = metas.iter().find(|meta| meta.block_size.is_some()).cloned().unwrap_or_default();
        let mut timeline = JoinedTimeline::default();
        for (made, zero) in made.into_iter().zip(zeros(&metas)) {
            timeline.begin(zero);
            for mut record in made.records {
                record.arrival = timeline.place(record.arrival, record.e2e);
                workload.push(record);
            }
        }
        workload.in_order(&meta, true)
    }

    /// Converts one cassette, and notes what is left out of it and what else its reader should know.
    fn convert(&mut self, path: &Path, supplied: &SuppliedSecrets) -> Result<ToTrace, CassetteError> {
        let mut cassette = cassette::load(path)?;
        self.notes.append(&mut cassette.warnings);
        let all = cassette.records.len();
        cassette.records.retain(|record| record.mcp_call().is_none());
        self.leave_out("messages to MCP servers", all - cassette.records.len());
        let all = cassette.records.len();
        cassette.records.retain(|record| !record.is_fixture);
        self.leave_out("hand-written records (`match`), which hold no request", all - cassette.records.len());
        let io = |source| CassetteError::Io { path: path.to_owned(), source };
        let mut made = to_trace(&cassette, &RecordTokens::read(path).map_err(io)?, None, Counts::WhereKnown);
        self.leave_out("records that are no posted JSON", made.refused.len());
        let requests = made.records.iter_mut().zip(&made.origins);
        let requests = requests.filter_map(|(record, at)| Some((*at, record.request.as_mut()?)));
        self.notes.append(&mut restore_requests(&cassette, requests, supplied));
        self.rules = supplied.rules(self.rules.clone(), &cassette);
        name_sessions(&cassette, &mut made);
        Ok(made)
    }
}

/// Names the session of each record by the first record of its conversation.
fn name_sessions(cassette: &Cassette, made: &mut ToTrace) {
    let bases = bases(&cassette.records);
    let mut first_of: BTreeMap<usize, usize> = BTreeMap::new();
    for (at, base) in bases.iter().enumerate() {
        let first = base.and_then(|base| first_of.get(&base).copied()).unwrap_or(at);
        first_of.insert(at, first);
    }
    let file = cassette.path.file_stem().unwrap_or_default().to_string_lossy();
    for (record, at) in made.records.iter_mut().zip(&made.origins) {
        // Without recorded times nothing else shows that it comes after the turn that it continues.
        if record.e2e.is_none() && bases.get(*at).is_some_and(Option::is_some) {
            record.extra.insert(THINK_MS.to_owned(), 0.into());
        }
        let first = first_of.get(at).and_then(|first| cassette.records.get(*first));
        record.session = first.map(|first| format!("{file}-{}", first.id));
    }
}
