//! The account of a trace as it is shown: its sessions and records.

use serde_json::{Value, json};

use super::SessionConsumption;
use crate::{
    play::load::LoadedTrace,
    replay::account::{DEFAULT_SESSION, SessionReport, ToolDrift},
};

impl LoadedTrace {
    /// Counts the records that can be served.
    pub(in crate::play) fn served_records(&self) -> usize {
        self.matcher.servable().len() + self.recordings.all().len()
    }

    /// Checks whether a record can be served.
    fn is_served(&self, record: usize) -> bool {
        self.matcher.is_servable(record) || self.recordings.serves(record)
    }

    /// The records that can be served, in replay order.
    fn to_serve(&self) -> Vec<u32> {
        let mut records = [self.matcher.servable(), self.recordings.all()].concat();
        records.sort_unstable();
        records
    }

    pub(super) fn session_report(&self, session: &SessionConsumption) -> SessionReport {
        let totals = session.totals();
        let is_loose = |name: &str| ["prefix", "next"].contains(&name);
        let loose = totals.matching.found.iter().filter(|(name, _)| is_loose(name));
        let unconsumed = self.unconsumed(session);
        SessionReport {
            records: self.served_records(),
            requests: totals.prompts,
            served: session.consumed(),
            unserved: unconsumed.len(),
            begun_unconsumed: unconsumed.clone(),
            unconsumed,
            misses: totals.missed,
            loose: loose.map(|(name, count)| (*name, *count)).collect(),
            again: totals.again,
            by_hand: 0,
            placeholders: 0,
            forwarded: 0,
            tools: ToolDrift::default(),
            matching: Some(totals.matching),
            compared: None,
            novel: Vec::new(),
            is_beside_miss: false,
        }
    }

    /// The records that were not served, neighbours in one text: `day.jsonl#3-9`.
    fn unconsumed(&self, session: &SessionConsumption) -> Vec<String> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        let mut is_next = false;
        for record in &self.to_serve() {
            let is_left = session.times(*record as usize) == 0;
            match runs.last_mut() {
                Some((_, last)) if is_left && is_next => *last = *record,
                _ if is_left => runs.push((*record, *record)),
                _ => {}
            }
            is_next = is_left;
        }
        let shown = |(first, last): (u32, u32)| match first == last {
            true => self.record_name(first as usize),
            false => format!("{}-{last}", self.record_name(first as usize)),
        };
        runs.into_iter().map(shown).collect()
    }

    fn record_name(&self, at: usize) -> String {
        let file = std::path::Path::new(&self.name).file_name().map(|file| file.to_string_lossy().into_owned());
        format!("{}#{at}", file.unwrap_or_default())
    }

    pub(super) fn shown_record(&self, at: usize, session: Option<&str>) -> Option<Value> {
        let record = self.records.get(at)?;
        let slot = self.account.some(Some(session.unwrap_or(DEFAULT_SESSION))).pop();
        let served = slot.map_or(0, |(_, slot)| slot.with(|session| session.times(at)));
        Some(json!({"index": at, "record": self.record_name(at), "model": record.model(), "served": served,
            "servable": self.is_served(at), "prompt_tokens": record.prompt_tokens(),
            "output_tokens": record.output_tokens(), "status": record.status()}))
    }
}
