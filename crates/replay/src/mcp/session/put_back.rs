//! Values in place of the placeholders of what is sent, as for models.

use std::sync::Arc;

use serde_json::Value;

use super::Session;
use crate::mcp::{era::Era, message::Id, record_index::IndexedRecord, turn::Turn};
use recording::redaction::Values;

impl Session {
    /// Begins to send a record for a message, with the values that its placeholders stand for. Counts records that have some still.
    pub(super) fn turn(
        &mut self,
        at: Option<usize>,
        sender: (u64, Option<Id>),
        (method, params): (&str, &Value),
        era: Era,
    ) -> Turn {
        let values = at.map(|at| self.values(at, method, params)).unwrap_or_default();
        Turn::new(at, sender, params, era).with(values)
    }

    fn values(&mut self, at: usize, method: &str, params: &Value) -> Values {
        let index = Arc::clone(&self.index);
        let Some(source) = index.records().get(at).map(IndexedRecord::source) else { return Values::default() };
        let (plan, is_source) = (index.plans().of(source), index.plans().is_source(source));
        if plan.is_none() && !is_source {
            return Values::default();
        }
        let (_, seen) = index.redacted(method, params);
        let values = plan.map(|plan| plan.values(&seen, &self.earlier)).unwrap_or_default();
        self.account.placeholders += u64::from(plan.is_some_and(|plan| plan.leaves_any(&values)));
        if is_source {
            self.earlier.insert(source, seen);
        }
        values
    }
}
