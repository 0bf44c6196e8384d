//! The account of a trace as it is shown: its sessions and records.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use super::{SessionConsumption, TraceSession};
use crate::load::trace::LoadedTrace;
use recording::redaction::Redactor;
use replay::account::{DEFAULT_SESSION, Ledger, Report, SessionRecording, SessionReport, session_name};

impl LoadedTrace {
    pub(crate) fn served_records(&self) -> usize {
        self.matcher.servable().len() + self.recordings.all().len()
    }

    fn is_served(&self, record: usize) -> bool {
        self.matcher.is_servable(record) || self.recordings.serves(record)
    }

    /// The records that can be served, in replay order.
    fn to_serve(&self) -> Vec<u32> {
        let mut records = [self.matcher.servable(), self.recordings.all()].concat();
        records.sort_unstable();
        records
    }

    fn session_report(&self, session: &SessionConsumption) -> SessionReport {
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
            matching: Some(totals.matching),
            ..SessionReport::default()
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

    fn shown_record(&self, at: usize, session: Option<&str>) -> Option<Value> {
        let record = self.records.get(at)?;
        let slot = self.account.some(Some(session.unwrap_or(DEFAULT_SESSION))).pop();
        let served = slot.map_or(0, |(_, slot)| slot.with(|session| session.times(at)));
        Some(json!({"index": at, "record": self.record_name(at), "model": record.model(), "served": served,
            "servable": self.is_served(at), "prompt_tokens": record.prompt_tokens(),
            "output_tokens": record.output_tokens(), "status": record.status()}))
    }
}

impl Ledger for LoadedTrace {
    fn report(&self, session: Option<&str>) -> Report {
        let of_slot =
            |(name, slot): (String, Arc<TraceSession>)| (name, slot.with(|session| self.session_report(session)));
        // A default session that was never used is not shown.
        let is_shown = |(name, slot): &(String, Arc<TraceSession>)| {
            session.is_some() || name != DEFAULT_SESSION || slot.with(|it| it.totals().prompts > 0)
        };
        let mut sessions: BTreeMap<String, SessionReport> =
            self.account.some(session).into_iter().filter(is_shown).map(of_slot).collect();
        if sessions.is_empty() {
            let report = self.account.default.with(|session| self.session_report(session));
            sessions.insert(DEFAULT_SESSION.to_owned(), report);
        }
        let earlier = || self.account.earlier.lock().reports();
        Report { sessions, earlier: if session.is_none() { earlier() } else { BTreeMap::new() }, ..Report::default() }
    }

    fn misses(&self, session: Option<&str>) -> Vec<Value> {
        let kept = |session: &SessionConsumption| session.misses.lock().list().to_vec();
        self.account.some(session).iter().flat_map(|(_, slot)| slot.with(kept)).collect()
    }

    fn reset(&self, session: Option<&str>) {
        self.account.some(session).iter().for_each(|(_, slot)| self.account.reset(slot, &self.matcher));
    }

    fn records(&self, session: Option<&str>) -> Vec<Value> {
        (0..self.records.len()).filter_map(|at| self.shown_record(at, session)).collect()
    }

    fn record(&self, at: usize, session: Option<&str>) -> Option<Value> {
        self.shown_record(at, session)
    }

    fn sessions(&self) -> Vec<String> {
        self.account.all().into_iter().map(|(name, _)| name).collect()
    }

    fn open(&self, requested: &Value) -> Result<String, String> {
        let name = match requested.get("name") {
            None | Some(Value::Null) => "",
            Some(Value::String(name)) => name,
            Some(_) => return Err("`name` has to be a text".to_owned()),
        };
        let other = requested.as_object().and_then(|fields| fields.keys().find(|name| *name != "name"));
        if let Some(other) = other {
            return Err(format!("a session of a trace takes a `name` only, not `{other}`"));
        }
        let name = session_name(name, &self.secrets).map_err(|error| error.to_string())?;
        if name == DEFAULT_SESSION {
            self.reset(Some(&name));
            return Ok(name);
        }
        let slot = self.account.named(&name, &self.matcher).map_err(|error| error.to_string())?;
        self.account.reset(&slot, &self.matcher);
        Ok(name)
    }

    fn end(&self, name: &str, _recorded: SessionRecording) -> Result<bool, String> {
        if name == DEFAULT_SESSION {
            self.reset(Some(name));
            return Ok(true);
        }
        let slot = self.account.named.lock().remove(name);
        slot.iter().for_each(|slot| self.account.reset(slot, &self.matcher));
        Ok(slot.is_some())
    }

    fn shown(&self, text: &str) -> String {
        Redactor::new(&self.secrets).text(text).unwrap_or_else(|| text.to_owned())
    }
}
