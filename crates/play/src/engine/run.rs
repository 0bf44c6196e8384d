//! The answer's side of its requests: the ends of their steps, as they come.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use super::{inbox::Inbox, relay::Sleeper};
use ::engine::scheduler::RequestId;
use base::lock::Lock;

/// Tokens of a choice, at the end of the step that computed them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Emission {
    pub(in super::super) choice: u32,
    pub(in super::super) tokens: u32,
    pub(in super::super) at: Instant,
}

/// Scheduling of a choice, known since its first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in super::super) struct Scheduled {
    /// Time from its arrival until it ran.
    pub(in super::super) queued: Duration,
    /// Time from then until its first token.
    pub(in super::super) prefill: Duration,
    /// Tokens of its prompt that were not computed here: found in the cache, or transferred.
    pub(in super::super) cached: u32,
    /// Those of them that were transferred.
    pub(in super::super) external: u32,
    /// How often it was preempted.
    pub(in super::super) preemptions: u32,
}

/// Ends of steps that an answer has not taken yet.
#[derive(Debug)]
pub(super) struct EmissionQueue(Lock<EmissionQueueState>);

#[derive(Debug)]
struct EmissionQueueState {
    emissions: VecDeque<Emission>,
    scheduled: Vec<Scheduled>,
    /// Where the blocks of choices are kept, as JSON; empty without any.
    kept: HashMap<u32, Arc<str>>,
    sleeper: Option<Sleeper>,
    /// Whether nothing more comes: the engine has ended, or refuses a request.
    is_closed: bool,
}

impl EmissionQueue {
    pub(super) fn new(choices: usize) -> Self {
        let scheduled = vec![Scheduled::default(); choices];
        let (emissions, kept) = (VecDeque::new(), HashMap::new());
        Self(Lock::new(EmissionQueueState { emissions, scheduled, kept, sleeper: None, is_closed: false }))
    }

    /// Adds the token of a choice; who waits for it is to be woken.
    pub(super) fn push(&self, emission: Emission, scheduled: Scheduled) -> Option<Sleeper> {
        let mut outgoing = self.0.lock();
        if let Some(known) = outgoing.scheduled.get_mut(usize::try_from(emission.choice).unwrap_or(usize::MAX)) {
            *known = scheduled;
        }
        outgoing.emissions.push_back(emission);
        outgoing.sleeper.take()
    }

    /// Notes where the blocks of a choice are kept, before its last token comes.
    pub(super) fn keep(&self, choice: u32, params: String) {
        self.0.lock().kept.insert(choice, params.into());
    }

    /// Ends it, and wakes who waits.
    pub(super) fn close(&self) {
        let mut outgoing = self.0.lock();
        outgoing.is_closed = true;
        let sleeper = outgoing.sleeper.take();
        drop(outgoing);
        sleeper.into_iter().for_each(|sleeper| sleeper.waker.wake());
    }
}

/// The requests of one answer. Those that have not ended are aborted when this is dropped.
#[derive(Debug)]
pub(in super::super) struct EngineRun {
    emissions: Arc<EmissionQueue>,
    /// Those of the server's ranks.
    inboxes: Arc<[Arc<Inbox>]>,
    /// Emissions that were taken and not used yet.
    taken: VecDeque<Emission>,
    choices: Vec<RunningChoice>,
    live: usize,
    /// Tokens of the prompt that were cached in the engine that computed it.
    pub(in super::super) remote_cached: Option<u32>,
}

/// A request of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Submitted {
    pub(super) rank: usize,
    pub(super) id: RequestId,
}

#[derive(Debug, Clone, Copy, Default)]
struct RunningChoice {
    /// Its request; `None` once it has ended, and for a choice without tokens.
    request: Option<Submitted>,
    /// Tokens that came since its last step.
    arrived: u32,
    /// Tokens that come yet, and all of them.
    left: usize,
    planned: usize,
}

impl EngineRun {
    /// Choices of so many tokens each, before any is submitted.
    pub(super) fn new(emissions: Arc<EmissionQueue>, inboxes: Arc<[Arc<Inbox>]>, tokens: &[usize]) -> Self {
        let choices = tokens
            .iter()
            .map(|left| RunningChoice { request: None, arrived: 0, left: *left, planned: *left })
            .collect();
        Self { emissions, inboxes, taken: VecDeque::new(), choices, live: 0, remote_cached: None }
    }

    pub(super) fn submitted(&mut self, choice: u32, request: Submitted) {
        if let Some(choice) = self.choices.get_mut(usize::try_from(choice).unwrap_or(usize::MAX)) {
            choice.request = Some(request);
            self.live += 1;
        }
    }

    /// The rank that runs a choice; `None` for one that none runs.
    pub(in super::super) fn rank(&self, choice: usize) -> Option<usize> {
        self.choices.get(choice)?.request.map(|request| request.rank)
    }

    /// Checks whether tokens come yet.
    pub(in super::super) fn is_live(&self) -> bool {
        self.live > 0
    }

    /// Checks whether a choice waits for the engine.
    pub(in super::super) fn has(&self, choice: usize) -> bool {
        self.choices.get(choice).is_some_and(|choice| choice.request.is_some())
    }

    /// Polls for the next token of any choice; `None` where nothing more comes.
    pub(in super::super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Emission>> {
        if self.taken.is_empty() {
            let mut outgoing = self.emissions.0.lock();
            if outgoing.emissions.is_empty() {
                if outgoing.is_closed {
                    return Poll::Ready(None);
                }
                if !outgoing.sleeper.as_ref().is_some_and(|sleeper| sleeper.waker.will_wake(context.waker())) {
                    outgoing.sleeper = Some(Sleeper::here(context.waker()));
                }
                return Poll::Pending;
            }
            std::mem::swap(&mut self.taken, &mut outgoing.emissions);
        }
        self.taken.pop_front().map_or(Poll::Pending, |emission| Poll::Ready(Some(emission)))
    }

    /// Counts tokens of a choice; how many there are, once they are as many as its next step needs.
    pub(in super::super) fn arrive(&mut self, choice: usize, tokens: u32, needed: u32) -> Option<u32> {
        let choice = self.choices.get_mut(choice).filter(|choice| choice.request.is_some())?;
        choice.arrived = choice.arrived.saturating_add(tokens);
        choice.left = choice.left.saturating_sub(usize::try_from(tokens).unwrap_or(usize::MAX));
        (choice.arrived >= needed).then(|| std::mem::take(&mut choice.arrived))
    }

    /// Checks whether a choice has its first or its last token, with which the engine knows more of it.
    pub(in super::super) fn is_news(&self, choice: usize, is_known: bool) -> bool {
        !is_known || self.choices.get(choice).is_some_and(|choice| choice.left == 0)
    }

    /// What the engine knows of a choice since its first token.
    pub(in super::super) fn scheduled(&self, choice: usize) -> Scheduled {
        self.emissions.0.lock().scheduled.get(choice).copied().unwrap_or_default()
    }

    /// Where the blocks of a choice are kept since its last token, as JSON.
    pub(in super::super) fn kept(&self, choice: usize) -> Option<Arc<str>> {
        self.emissions.0.lock().kept.get(&u32::try_from(choice).ok()?).cloned()
    }

    /// Ends a choice after so many tokens; where the engine would go on with it, or has had more, it is aborted.
    pub(in super::super) fn finish(&mut self, choice: usize, produced: u32) {
        let Some(choice) = self.choices.get_mut(choice) else { return };
        let Some(Submitted { rank, id }) = choice.request.take() else { return };
        self.live -= 1;
        if choice.left > 0 || usize::try_from(produced).is_ok_and(|produced| produced < choice.planned) {
            self.inboxes.get(rank).into_iter().for_each(|inbox| inbox.abort([id]));
        }
    }

    /// Ends a choice whose last token came.
    pub(in super::super) fn finish_if_over(&mut self, choice: usize) {
        if self.choices.get(choice).is_some_and(|choice| choice.left == 0) {
            self.finish(choice, u32::MAX);
        }
    }

    /// Ends all choices, and gives those that had not ended.
    pub(in super::super) fn cancel(&mut self) -> Vec<usize> {
        let cancelled: Vec<usize> = (0..self.choices.len()).filter(|choice| self.has(*choice)).collect();
        let unfinished = self.choices.iter().filter(|choice| choice.left > 0).filter_map(|choice| choice.request);
        let unfinished: Vec<Submitted> = unfinished.collect();
        for (rank, inbox) in self.inboxes.iter().enumerate() {
            let ids = || unfinished.iter().filter(|request| request.rank == rank).map(|request| request.id);
            if ids().next().is_some() {
                inbox.abort(ids());
            }
        }
        self.choices.iter_mut().for_each(|choice| choice.request = None);
        self.live = 0;
        self.taken.clear();
        cancelled
    }
}

impl Drop for EngineRun {
    fn drop(&mut self) {
        if self.live > 0 {
            self.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::engine::inbox::Mail;

    fn noop() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    fn aborted(inbox: &Inbox) -> Vec<RequestId> {
        let mut mail = Mail::default();
        inbox.take(&mut mail, false, None).unwrap();
        mail.aborts
    }

    fn run(tokens: &[usize]) -> (EngineRun, Arc<EmissionQueue>, Arc<Inbox>) {
        let (emissions, inbox) = (Arc::new(EmissionQueue::new(tokens.len())), Arc::new(Inbox::default()));
        let mut run = EngineRun::new(Arc::clone(&emissions), [Arc::clone(&inbox)].into(), tokens);
        let with_tokens = tokens.iter().zip(0..).filter(|(tokens, _)| **tokens > 0);
        for ((_, choice), id) in with_tokens.zip(10..) {
            run.submitted(choice, Submitted { rank: 0, id });
        }
        (run, emissions, inbox)
    }

    #[test]
    fn tokens_come_in_order_and_a_step_waits_for_all_that_it_needs() {
        let (mut run, emissions, _inbox) = run(&[3, 0, 2]);
        assert!(run.poll_next(&mut noop()).is_pending());
        let at = Instant::now();
        for choice in [0, 2, 0] {
            emissions
                .push(Emission { choice, tokens: 1, at }, Scheduled { cached: choice + 16, ..Scheduled::default() });
        }
        let mut came = Vec::new();
        while let Poll::Ready(Some(emission)) = run.poll_next(&mut noop()) {
            let choice = usize::try_from(emission.choice).unwrap();
            came.push((choice, run.arrive(choice, emission.tokens, 2)));
        }
        assert_eq!(came, [(0, None), (2, None), (0, Some(2))]);
        assert_eq!((run.scheduled(2).cached, run.has(1), run.has(2)), (18, false, true));
    }

    #[test]
    fn what_is_dropped_is_aborted_and_what_has_ended_is_not() {
        let (mut run, _outbox, inbox) = run(&[1, 5, 0, 7]);
        run.arrive(0, 1, 1);
        run.finish(0, 1);
        assert!(aborted(&inbox).is_empty());
        run.finish(1, 0);
        assert_eq!(aborted(&inbox), [11]);
        drop(run);
        assert_eq!(aborted(&inbox), [12]);
    }

    #[test]
    fn an_engine_that_ends_wakes_its_answers() {
        let (mut run, emissions, _inbox) = run(&[4]);
        assert!(run.poll_next(&mut noop()).is_pending());
        emissions.close();
        assert_eq!(run.poll_next(&mut noop()), Poll::Ready(None));
        assert_eq!((run.cancel(), run.is_live()), (vec![0], false));
    }
}
