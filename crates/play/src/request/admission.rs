//! What the development endpoints change of a server: the admission of work (`/pause`, `/sleep`, `/abort_requests`), which answers on
//! their way wait for, which memory is given away, and the version of the weights.
//!
//! A paused server still validates requests; accepted ones wait. Requests that had begun go on, unless everything is held:
//! then all that is still due moves on by as long as the pause took. Limits: an answer that is aborted ends at its next
//! event, so one whose client does not read ends late.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, atomic::AtomicBool},
};

use tokio::{
    select,
    sync::watch,
    time::{Duration, Instant, sleep_until},
};

use crate::metrics::{Metrics, Queued};
use ::engine::scheduler::PauseState;
use base::lock::Lock;
use replay::{
    delivery::{AbortedBy, Gate, Waited, step_or_comment, until},
    timing::Pacer,
};

/// State that the development endpoints change.
#[derive(Debug, Default)]
pub(crate) struct Development {
    pub(crate) gate: Arc<Admission>,
    pub(crate) engine: Lock<DevEngine>,
    /// Whether new requests of a front end of vLLM end with an error while it is paused: `pause_generation` of 0.33.
    pub(crate) refuses_requests: AtomicBool,
}

base::with_defaults! {
    /// Memory that is given away, and what was set of the weights.
    #[derive(Debug)]
    pub(crate) struct DevEngine {
        pub(crate) asleep: Vec<&'static str>,
        weight_version: String = "default".to_owned(),
    }
}

impl Development {
    pub(crate) fn is_paused(&self) -> bool {
        self.gate.pause() != PauseState::None
    }

    /// Checks whether the engine is paused, or memory given away.
    pub(crate) fn is_asleep(&self) -> bool {
        self.is_paused() || !self.engine.lock().asleep.is_empty()
    }

    pub(crate) fn weight_version(&self) -> String {
        self.engine.lock().weight_version.clone()
    }

    pub(crate) fn set_weight_version(&self, version: &str) {
        version.clone_into(&mut self.engine.lock().weight_version);
    }
}

/// The gate of a server.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    pause: watch::Sender<PauseState>,
    inside: Lock<OpenAnswers>,
}

/// The answers on their way, by number.
#[derive(Debug, Default)]
struct OpenAnswers {
    next: u64,
    answers: HashMap<u64, OpenAnswer>,
}

/// An answer, as it can be aborted.
#[derive(Debug)]
struct OpenAnswer {
    id: String,
    choices: u32,
    aborted: Option<AbortedBy>,
}

impl Admission {
    /// Sets which answers have to wait from now on.
    pub(crate) fn set(&self, pause: PauseState) {
        self.pause.send_replace(pause);
    }

    /// Answers that have to wait.
    pub(crate) fn pause(&self) -> PauseState {
        *self.pause.borrow()
    }

    /// Aborts every answer on its way, and returns how many choices they had.
    pub(crate) fn abort_all(&self, by: AbortedBy) -> u32 {
        self.abort(by, |_| true)
    }

    /// Ends the answers of these ids.
    pub(crate) fn abort_named(&self, ids: &[String]) {
        self.abort(AbortedBy::Server, |known| ids.contains(&known.id));
    }

    fn abort(&self, by: AbortedBy, meant: impl Fn(&OpenAnswer) -> bool) -> u32 {
        let mut choices = 0;
        for known in self.inside.lock().answers.values_mut().filter(|known| meant(known)) {
            known.aborted.get_or_insert(by);
            choices += known.choices;
        }
        // Wakes all that wait.
        self.pause.send_modify(|_| {});
        choices
    }

    /// An answer of some choices sets out.
    pub(crate) fn enter(self: &Arc<Self>, id: String, choices: u32, metrics: &Arc<Metrics>) -> Hold {
        let mut inside = self.inside.lock();
        let number = inside.next;
        inside.next += 1;
        inside.answers.insert(number, OpenAnswer { id, choices, aborted: None });
        Hold {
            gate: Arc::clone(self),
            number,
            pause: self.pause.subscribe(),
            metrics: Arc::clone(metrics),
            choices,
            begun: false,
            aborted: false,
            stepped: false,
            behind: Duration::ZERO,
        }
    }

    fn aborted(&self, number: u64) -> Option<AbortedBy> {
        self.inside.lock().answers.get(&number)?.aborted
    }
}

/// Admission of an answer on its way.
#[derive(Debug)]
pub(crate) struct Hold {
    gate: Arc<Admission>,
    number: u64,
    pause: watch::Receiver<PauseState>,
    metrics: Arc<Metrics>,
    choices: u32,
    begun: bool,
    aborted: bool,
    /// Whether its steps come from the simulated engine, which is paused itself.
    stepped: bool,
    /// Time for which it was held.
    behind: Duration,
}

impl Gate for Hold {
    async fn wait(&mut self, pacer: &Pacer, due: Instant, comment: Option<Instant>) -> Waited {
        loop {
            if self.aborted {
                return Waited::Due(Instant::now());
            }
            let pause = *self.pause.borrow_and_update();
            if let Some(by) = self.gate.aborted(self.number) {
                self.aborted = true;
                return Waited::Aborted(by);
            }
            if !self.stepped && (pause == PauseState::All || (pause == PauseState::New && !self.begun)) {
                if !self.held(comment).await {
                    return Waited::Comment;
                }
                continue;
            }
            self.begun = true;
            let due = due + self.behind;
            let comment = comment.filter(|at| *at < due);
            select! {
                biased;
                _ = self.pause.changed() => {}
                () = until(pacer, comment.unwrap_or(due)) => {
                    return if comment.is_some() { Waited::Comment } else { Waited::Due(due) };
                }
            }
        }
    }

    async fn wait_for(&mut self, step: impl Future<Output = ()> + Send, comment: Option<Instant>) -> Waited {
        let mut step = pin!(step);
        self.stepped = true;
        loop {
            self.pause.borrow_and_update();
            if let Some(by) = self.gate.aborted(self.number).filter(|_| !self.aborted) {
                self.aborted = true;
                return Waited::Aborted(by);
            }
            select! {
                biased;
                _ = self.pause.changed() => {}
                waited = step_or_comment(&mut step, comment) => return waited,
            }
        }
    }
}

impl Hold {
    /// Checks whether something changed before the comment was due.
    async fn held(&mut self, comment: Option<Instant>) -> bool {
        let since = Instant::now();
        let _queued = (!self.begun).then(|| Queued::new(&self.metrics, self.choices));
        let commented = async {
            match comment {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let has_changed = select! {
            biased;
            _ = self.pause.changed() => true,
            () = commented => false,
        };
        self.behind += since.elapsed();
        has_changed
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.gate.inside.lock().answers.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_deadline_moves_on_by_the_time_that_everything_is_held() {
        let (gate, pacer) = (Arc::new(Admission::default()), Pacer::coarse());
        let mut hold = gate.enter("cmpl-a".to_owned(), 1, &Arc::new(Metrics::new(64)));
        let due = Instant::now();
        assert_eq!(hold.wait(&pacer, due, None).await, Waited::Due(due));
        gate.set(PauseState::All);
        let pause = Duration::from_millis(20);
        let resume = async {
            tokio::time::sleep(pause).await;
            gate.set(PauseState::None);
        };
        let (waited, ()) = tokio::join!(hold.wait(&pacer, due, None), resume);
        let moved = hold.behind;
        assert!(moved >= pause, "{moved:?}");
        assert_eq!(waited, Waited::Due(due + moved));
        assert_eq!(hold.wait(&pacer, due, None).await, Waited::Due(due + moved), "it is not held again");
    }
}
