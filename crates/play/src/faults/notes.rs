//! Notes of faults that happened, and of those that could not.

use std::sync::Arc;

use ::faults::{ChosenFault, FaultSet};

/// Counts and prints faults, unless the client that chose them can see what is served.
#[derive(Clone)]
pub(super) struct FaultNotes {
    pub(super) set: Arc<FaultSet>,
    pub(super) is_quiet: bool,
}

impl FaultNotes {
    pub(super) fn happened(&self, chosen: &ChosenFault) {
        self.print(&format!("fault: --fault '{}'", self.set.happened(chosen)));
    }

    /// The same of one that a request does not get.
    pub(super) fn unapplied(&self, chosen: &ChosenFault, reason: &str) {
        self.print(&format!("fault not applied: --fault '{}': {reason}", self.set.note_unapplied(chosen, reason)));
    }

    fn print(&self, text: &str) {
        if self.is_quiet {
            tracing::debug!("{text}");
        } else {
            tracing::info!("{text}");
        }
    }
}
