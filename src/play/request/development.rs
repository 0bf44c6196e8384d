//! What the development endpoints change of a server: who is let in, which memory is given away, the version of the weights.

use std::sync::{Arc, atomic::AtomicBool};

use crate::{
    base::lock::Lock,
    play::request::admission::{Admission, Pause},
};

/// State that the development endpoints change.
#[derive(Debug)]
pub(in crate::play) struct Development {
    pub(in crate::play) gate: Arc<Admission>,
    pub(in crate::play) engine: Lock<DevEngine>,
    /// Whether new requests of a front end of vLLM end with an error while it is paused: `pause_generation` of 0.33.
    pub(in crate::play) refuses_requests: AtomicBool,
}

#[derive(Debug)]
pub(in crate::play) struct DevEngine {
    /// Memory that is given away.
    pub(in crate::play) asleep: Vec<&'static str>,
    weight_version: String,
}

impl Development {
    pub(in crate::play) fn new() -> Self {
        let engine = DevEngine { asleep: Vec::new(), weight_version: "default".to_owned() };
        Self { gate: Arc::new(Admission::new()), engine: Lock::new(engine), refuses_requests: AtomicBool::new(false) }
    }

    pub(in crate::play) fn is_paused(&self) -> bool {
        self.gate.pause() != Pause::None
    }

    /// Checks whether the engine is paused, or memory given away.
    pub(in crate::play) fn is_asleep(&self) -> bool {
        self.is_paused() || !self.engine.lock().asleep.is_empty()
    }

    pub(in crate::play) fn weight_version(&self) -> String {
        self.engine.lock().weight_version.clone()
    }

    pub(in crate::play) fn set_weight_version(&self, version: &str) {
        version.clone_into(&mut self.engine.lock().weight_version);
    }
}
