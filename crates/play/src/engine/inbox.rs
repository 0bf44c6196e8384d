//! Between the threads of connections and that of the engine: what arrives, and what is aborted.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, PoisonError},
};

use tokio::{sync::oneshot, time::Instant};

use super::{
    balancer::InFlight,
    check::Snapshot,
    connector::{Notice, Transfer},
    run::EmissionQueue,
};
use ::engine::{
    recorded_timings::RecordedTimes,
    scheduler::{PauseState, Request, RequestId},
};
use base::lock::Lock;

/// Requests that may wait between two steps. More are refused; vLLM's queue is `--max-num-queued-reqs`.
const MOST_ARRIVALS: usize = 65_536;

/// Notices of other engines that may wait between two steps. More are dropped, as the network may do.
const MOST_NOTICES: usize = 65_536;

/// Recorded times of a request that arrives.
#[derive(Debug)]
pub(super) struct RecordedArrival {
    /// The zero of its times.
    pub(super) arrived: Instant,
    pub(super) times: RecordedTimes,
}

/// Command of an operator.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Control {
    /// Requests are not scheduled from now on; done once none runs.
    Pause {
        /// Which ones.
        state: PauseState,
        /// Whether all requests end first.
        aborts: bool,
        /// Whether the prefix cache is forgotten once none runs.
        clears: bool,
    },
    /// Requests are scheduled again.
    Resume,
    /// The prefix cache is forgotten; replies whether it was.
    Reset {
        /// Whether running requests lose their blocks for it.
        preempts_running: bool,
    },
}

/// Something to be done, and where its reply goes.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) control: Control,
    pub(super) reply: oneshot::Sender<bool>,
}

/// A request on its way into the scheduler.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) request: Request,
    /// Where the ends of its steps go, and the choice that it is there.
    pub(super) emissions: Arc<EmissionQueue>,
    pub(super) choice: u32,
    /// When it was submitted.
    pub(super) queued: Instant,
    /// Its recorded times, where it is served at them.
    pub(super) recorded: Option<Box<RecordedArrival>>,
    /// Its part in transfers between engines, where it has one.
    pub(super) transfer: Option<Box<Transfer>>,
    /// Its place among the requests of its rank, where there are several ranks.
    pub(super) in_flight: Option<InFlight>,
}

/// A bounded queue of arrivals, with the aborts, of which there are no more than there were arrivals.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    state: Lock<InboxState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct InboxState {
    /// What came since the engine took its mail last. Aborts of requests among the arrivals stay until these are taken.
    mail: Mail,
    next_id: RequestId,
    is_closed: bool,
    /// Whether the engine waits for something to do.
    is_idle: bool,
}

/// Messages to the engine, between two of its steps.
#[derive(Debug, Default)]
pub(super) struct Mail {
    /// In the order of their ids.
    pub(super) arrivals: VecDeque<Arrived>,
    pub(super) aborts: Vec<RequestId>,
    pub(super) requested: Vec<oneshot::Sender<Snapshot>>,
    /// What an operator wants.
    pub(super) orders: Vec<Order>,
    /// Notices of other engines.
    pub(super) notices: Vec<Notice>,
}

impl Mail {
    fn is_empty(&self) -> bool {
        let Self { arrivals, aborts, requested, orders, notices } = self;
        arrivals.is_empty() && aborts.is_empty() && requested.is_empty() && orders.is_empty() && notices.is_empty()
    }

    /// Takes the aborts of requests that were taken. No abort is taken before its request: it would find none, and the request would
    /// then run to its end with nobody waiting for it.
    fn take_aborts(&mut self, aborts: &mut Vec<RequestId>) {
        aborts.clear();
        match self.arrivals.front().map(|arrived| arrived.request.id) {
            Some(first) => aborts.extend(self.aborts.extract_if(.., |id| *id < first)),
            None => std::mem::swap(aborts, &mut self.aborts),
        }
    }
}

impl Inbox {
    /// Adds requests, all or none, after giving them their ids; the first of these. `None` where too many wait.
    pub(super) fn submit(&self, mut arrivals: Vec<Arrived>) -> Option<RequestId> {
        let mut state = self.state.lock();
        if state.is_closed || state.mail.arrivals.len().saturating_add(arrivals.len()) > MOST_ARRIVALS {
            return None;
        }
        let first = state.next_id;
        for arrived in &mut arrivals {
            arrived.request.id = state.next_id;
            state.next_id += 1;
        }
        state.mail.arrivals.extend(arrivals);
        self.wake(&mut state);
        Some(first)
    }

    /// Asks for the end of requests. Those that have ended are none.
    pub(super) fn abort(&self, ids: impl IntoIterator<Item = RequestId>) {
        self.add(|mail| mail.aborts.extend(ids));
    }

    /// Asks for a snapshot after the next step.
    pub(super) fn ask(&self) -> oneshot::Receiver<Snapshot> {
        let (sender, receiver) = oneshot::channel();
        self.add(|mail| mail.requested.push(sender));
        receiver
    }

    /// Gives an order between two steps; its reply comes once it is carried out.
    pub(super) fn order(&self, control: Control) -> oneshot::Receiver<bool> {
        let (reply, receiver) = oneshot::channel();
        self.add(|mail| mail.orders.push(Order { control, reply }));
        receiver
    }

    /// Adds a notice of another engine.
    pub(super) fn notify(&self, notice: Notice) {
        self.add(|mail| {
            if mail.notices.len() < MOST_NOTICES {
                mail.notices.push(notice);
            }
        });
    }

    /// Adds to what the engine takes next; one that has ended takes nothing.
    fn add(&self, put: impl FnOnce(&mut Mail)) {
        let mut state = self.state.lock();
        if !state.is_closed {
            put(&mut state.mail);
            self.wake(&mut state);
        }
    }

    /// Checks whether the engine has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Ends the engine.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Takes what came; `None` once it is closed. Where the engine has nothing else to do until a time, waits for it, and takes the first arrival
    /// only: vLLM's engine is on its first step before the other choices of a request have reached it.
    pub(super) fn take(&self, mail: &mut Mail, is_idle: bool, until: Option<Instant>) -> Option<()> {
        let mut state = self.state.lock();
        while is_idle && !state.is_closed && state.mail.is_empty() {
            state.is_idle = true;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            state = match left {
                Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        state.is_idle = false;
        if state.is_closed {
            return None;
        }
        mail.arrivals.clear();
        let came = &mut state.mail;
        mail.requested.append(&mut came.requested);
        mail.orders.append(&mut came.orders);
        mail.notices.append(&mut came.notices);
        if is_idle {
            mail.arrivals.extend(came.arrivals.pop_front());
        } else {
            std::mem::swap(&mut mail.arrivals, &mut came.arrivals);
        }
        came.take_aborts(&mut mail.aborts);
        Some(())
    }

    /// Takes the aborts only.
    pub(super) fn take_aborts(&self, aborts: &mut Vec<RequestId>) {
        self.state.lock().mail.take_aborts(aborts);
    }

    /// Lets who sleeps look whether its sleep is over.
    pub(super) fn look_again(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    /// Waits for an instant, or until the sleep is over before; gives when it was. `None` where the engine is closed before.
    pub(super) fn sleep_until(&self, deadline: Instant, is_over: impl Fn() -> bool) -> Option<Instant> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return None;
            }
            let now = Instant::now();
            let left = deadline.saturating_duration_since(now);
            if left.is_zero() || is_over() {
                return Some(deadline.min(now));
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn wake(&self, state: &mut InboxState) {
        if std::mem::take(&mut state.is_idle) {
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrived(count: usize) -> Vec<Arrived> {
        let emissions = Arc::new(EmissionQueue::new(count));
        let one = |choice| Arrived {
            request: Request::default(),
            emissions: Arc::clone(&emissions),
            choice,
            queued: Instant::now(),
            recorded: None,
            transfer: None,
            in_flight: None,
        };
        (0..u32::try_from(count).unwrap()).map(one).collect()
    }

    #[test]
    fn what_is_submitted_together_arrives_together_with_ids_of_its_own() {
        let inbox = Inbox::default();
        assert_eq!((inbox.submit(arrived(3)), inbox.submit(arrived(2))), (Some(0), Some(3)));
        inbox.abort([1, 7]);
        let mut mail = Mail::default();
        let ids = |mail: &Mail| mail.arrivals.iter().map(|arrived| arrived.request.id).collect::<Vec<_>>();
        inbox.take(&mut mail, true, None).unwrap();
        assert_eq!((ids(&mail), &mail.aborts), (vec![0], &vec![]), "an idle engine begins with the first");
        inbox.take(&mut mail, false, None).unwrap();
        assert_eq!((ids(&mail), &mail.aborts), (vec![1, 2, 3, 4], &vec![1, 7]));
        inbox.take(&mut mail, false, None).unwrap();
        assert!(mail.arrivals.is_empty() && mail.aborts.is_empty());
    }

    #[test]
    fn no_abort_is_taken_before_its_request() {
        let (inbox, mut mail) = (Inbox::default(), Mail::default());
        inbox.submit(arrived(2));
        inbox.take(&mut mail, false, None).unwrap();
        // In the middle of a step one request leaves that runs, and two that have come since.
        inbox.submit(arrived(3));
        inbox.abort([2, 0, 4]);
        inbox.take_aborts(&mut mail.aborts);
        assert_eq!(mail.aborts, [0]);
        let mut aborted = Vec::new();
        for is_idle in [true, false] {
            inbox.take(&mut mail, is_idle, None).unwrap();
            aborted.push((mail.arrivals.len(), mail.aborts.clone()));
        }
        assert_eq!(aborted, [(1, vec![2]), (2, vec![4])]);
    }

    #[test]
    fn who_waits_for_a_time_wakes_then_and_when_another_engine_speaks() {
        let (inbox, mut mail) = (Inbox::default(), Mail::default());
        inbox.take(&mut mail, true, Some(Instant::now())).unwrap();
        let notice = Notice { kind: crate::engine::connector::NoticeKind::Read, digest: 7 };
        inbox.notify(notice);
        inbox.take(&mut mail, true, None).unwrap();
        assert_eq!(mail.notices, [notice]);
    }

    #[test]
    fn a_full_inbox_refuses_and_a_closed_one_ends() {
        let inbox = Inbox::default();
        assert!(inbox.submit(arrived(MOST_ARRIVALS)).is_some());
        assert_eq!(inbox.submit(arrived(1)), None);
        inbox.close();
        assert!(inbox.is_closed() && inbox.ask().blocking_recv().is_err(), "nobody waits for an engine that has ended");
        assert!(inbox.take(&mut Mail::default(), true, None).is_none());
        let late = Instant::now() + std::time::Duration::from_secs(3600);
        assert!(inbox.sleep_until(late, || false).is_none());
        assert!(Inbox::default().sleep_until(late, || true).unwrap() < late);
    }
}
