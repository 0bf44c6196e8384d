//! A fault of a response in progress: when it is due, and which events it concerns.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    edits::EventEdit,
    fault::FaultPlace,
    kind::{FaultKind, StreamFault},
    piece::FaultedForm,
    set::ChosenFault,
};

/// Called with a fault when it happens.
pub type OnFault = Arc<dyn Fn(&ChosenFault) + Send + Sync>;

#[derive(Debug, Default)]
pub(crate) struct BodyProgress {
    pub(crate) events: u64,
    pub(crate) tokens: u64,
    pub(crate) bytes: u64,
    /// The last event with output, where it may be needed.
    pub(crate) output: Bytes,
}

impl BodyProgress {
    /// Bytes that have passed after these too.
    pub(crate) fn after(&self, bytes: &[u8]) -> u64 {
        self.bytes.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX))
    }
}

/// A fault that has not happened yet, or goes on.
pub(crate) struct ActiveFault {
    pub(crate) chosen: ChosenFault,
    place: FaultPlace,
    pub(crate) fault: StreamFault,
    /// Events that it concerns still.
    pub(crate) left: u64,
    pub(crate) has_happened: bool,
    /// Events that wait for others.
    pub(crate) held: Vec<Bytes>,
    /// Their bytes, where they are put together.
    pub(crate) held_bytes: usize,
}

impl ActiveFault {
    /// `None` for a fault that does not happen in a body of this form.
    pub(crate) fn new(chosen: ChosenFault, form: FaultedForm) -> Option<Self> {
        let FaultKind::Stream(fault) = chosen.fault.kind.clone() else { return None };
        let mut place = chosen.fault.place.or_else(|| chosen.fault.kind.own_place())?;
        let is_blank = matches!(fault, StreamFault::KeepAlive { .. } | StreamFault::HugeLine(_));
        if form == FaultedForm::Whole && (is_blank || matches!(fault, StreamFault::Edit { .. })) {
            // White space is harmless at its beginning only, and there is one event.
            place = match place {
                FaultPlace::Byte(_) | FaultPlace::Time(_) if !is_blank => place,
                _ => FaultPlace::Event(0),
            };
        }
        if form == FaultedForm::Whole && matches!(fault, StreamFault::Repeat { .. }) {
            // What repeats is the body, once it has come.
            place = FaultPlace::Event(0);
        }
        let is_at_byte = matches!(place, FaultPlace::Byte(_));
        let left = match fault {
            StreamFault::Edit { count: Some(count), .. } => count,
            StreamFault::Edit { edit: EventEdit::Split(..), count: None } if is_at_byte => 1,
            _ => u64::MAX,
        };
        Some(Self { chosen, place, fault, left, has_happened: false, held: Vec::new(), held_bytes: 0 })
    }

    /// Takes the events that wait.
    pub(crate) fn take_held(&mut self) -> Vec<Bytes> {
        self.held_bytes = 0;
        std::mem::take(&mut self.held)
    }

    pub(crate) fn note(&mut self, on_fault: &OnFault) {
        if !self.has_happened {
            self.has_happened = true;
            on_fault(&self.chosen);
        }
    }

    /// Puts a place after the start of a body without events into its middle.
    pub(crate) fn know_size(&mut self, size: usize) {
        if matches!(self.place, FaultPlace::Event(1..) | FaultPlace::Token(1..)) {
            self.place = FaultPlace::Byte(u64::try_from(size / 2).unwrap_or_default());
        }
    }

    /// Returns true if its place has been reached.
    pub(crate) fn is_due(&self, seen: &BodyProgress, elapsed: Duration) -> bool {
        if self.repeats() && seen.output.is_empty() {
            return false;
        }
        match self.place {
            FaultPlace::Event(count) => seen.events >= count,
            FaultPlace::Token(count) => seen.tokens >= count,
            FaultPlace::Byte(count) => seen.bytes >= count,
            FaultPlace::Time(time) => elapsed >= time,
        }
    }

    /// Returns true if it happens at one place, and not to events from there on.
    pub(crate) fn is_point(&self) -> bool {
        !matches!(
            self.fault,
            StreamFault::Edit { .. } | StreamFault::Drip { .. } | StreamFault::SplitAt { .. } | StreamFault::Jitter(_)
        )
    }

    /// Returns true if it needs the last output.
    pub(crate) fn repeats(&self) -> bool {
        matches!(self.fault, StreamFault::Repeat { .. })
    }

    /// The byte before `end` at which it happens. One that has been reached counts only where the fault happens there now, so that one
    /// that waits for something else stops nothing.
    pub(crate) fn point_inside(&self, end: u64, seen: &BodyProgress) -> Option<u64> {
        let FaultPlace::Byte(at) = self.place else { return None };
        let is_to_come = at < end && !self.has_happened && !matches!(self.fault, StreamFault::Edit { .. });
        let happens_now = || self.is_point() && self.is_due(seen, Duration::ZERO);
        (is_to_come && (at > seen.bytes || happens_now())).then_some(at)
    }

    pub(crate) fn time_to_come(&self) -> Option<Duration> {
        match self.place {
            FaultPlace::Time(time) if self.is_point() && !self.has_happened => Some(time),
            _ => None,
        }
    }

    /// Returns true if this edit concerns an event.
    pub(crate) fn takes_event(
        &self,
        edit: EventEdit,
        event: &[u8],
        form: FaultedForm,
        seen: &BodyProgress,
        elapsed: Duration,
    ) -> bool {
        let is_due = match self.place {
            // The event that has this byte is the first one.
            FaultPlace::Byte(at) => seen.after(event) > at,
            _ => self.is_due(seen, elapsed),
        };
        self.left > 0 && is_due && edit.concerns(event, form)
    }

    /// Where its byte is in the event that comes.
    pub(crate) fn offset_in_event(&self, seen: &BodyProgress) -> Option<usize> {
        match self.place {
            FaultPlace::Byte(at) => at.checked_sub(seen.bytes).and_then(|offset| usize::try_from(offset).ok()),
            _ => None,
        }
    }
}
