//! A part of an event on its way to the client.

use std::time::Duration;

use bytes::Bytes;

use crate::steps::BodyPace;

/// Form of a body: events, or bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultedForm {
    Events,
    /// It is one JSON text, or something else.
    Whole,
}

/// A part of an event, and how it leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BodyPiece {
    pub(crate) bytes: Bytes,
    /// Pause before it.
    pub(crate) pause: Option<Duration>,
    /// In still smaller pieces.
    pub(crate) pace: Option<BodyPace>,
    /// In a write of its own.
    pub(crate) is_alone: bool,
}

impl BodyPiece {
    pub(crate) fn of(bytes: Bytes) -> Self {
        Self { bytes, pause: None, pace: None, is_alone: false }
    }

    pub(crate) fn alone(bytes: Bytes) -> Self {
        Self { pause: Some(Duration::ZERO), is_alone: true, ..Self::of(bytes) }
    }

    /// The same with other bytes.
    pub(crate) fn with(&self, bytes: Bytes) -> Self {
        Self { bytes, ..self.clone() }
    }
}
