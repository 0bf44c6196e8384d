//! What the tap has learnt about its upstream from the answers that went by.
//!
//! See docs/decisions/0005-a-refused-amended-request-is-sent-again.md.

use std::{
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use super::facts::Facts;

/// So many answers without ids in a row, and the engine is not asked for them any more.
const SILENT_ANSWERS: u32 = 3;

/// Facts about one upstream. Shared by all requests; every method is cheap.
#[derive(Debug, Default)]
pub(super) struct Capabilities {
    is_left_alone: bool,
    refuses: AtomicBool,
    /// Complete answers in a row that named no id though asked to.
    silent: AtomicU32,
    /// Whether an answer had another number of ids than the engine counted tokens.
    miscounts: AtomicBool,
    forced_usage: AtomicBool,
    fingerprint: Mutex<Option<Fingerprint>>,
    facts: Mutex<EngineFacts>,
    inquiry_ended: Condvar,
    is_wanted: Notify,
}

/// State of the inquiry after an engine's version, models and settings.
#[derive(Debug, Default)]
enum EngineFacts {
    /// It has not answered yet.
    #[default]
    Pending,
    /// It answers, without any.
    Unavailable,
    Known(Facts),
}

/// What the last event of a stream without usage carries as `system_fingerprint`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fingerprint {
    /// The key is not there.
    Absent,
    /// This text.
    Is(String),
}

impl Capabilities {
    /// What is known of an upstream that is never to be asked for more than its clients ask.
    pub(super) fn left_alone() -> Self {
        Self { is_left_alone: true, refuses: AtomicBool::new(true), ..Self::default() }
    }

    /// Whether the upstream takes requests with added fields and heeds them, as far as is known.
    pub(super) fn accepts_amendments(&self) -> bool {
        !self.refuses.load(Ordering::Relaxed) && self.silent.load(Ordering::Relaxed) < SILENT_ANSWERS
    }

    /// A complete answer named ids, or did not, though asked to. One may have its reasons, several have one.
    pub(super) fn answered(&self, named_ids: bool) {
        if named_ids {
            self.silent.store(0, Ordering::Relaxed);
        } else if self.silent.fetch_add(1, Ordering::Relaxed) + 1 == SILENT_ANSWERS {
            tracing::info!("the upstream tells no token ids: it is not asked for them any more");
        }
    }

    /// An answer had another number of ids than the engine counted tokens.
    pub(super) fn miscounted(&self) {
        self.miscounts.store(true, Ordering::Relaxed);
    }

    /// Whether any answer had.
    pub(super) fn miscounts(&self) -> bool {
        self.miscounts.load(Ordering::Relaxed)
    }

    /// The upstream refused a request with added fields and took it without them. True the first time.
    pub(super) fn refused_amendments(&self) -> bool {
        !self.refuses.swap(true, Ordering::Relaxed)
    }

    /// Whether usage can be asked for and its traces removed: the fingerprint of streams without usage is known, and
    /// the upstream does not send usage unasked (then there is nothing to ask for).
    pub(super) fn usage_may_be_added(&self) -> bool {
        !self.forced_usage.load(Ordering::Relaxed) && self.fingerprint().is_some()
    }

    /// The upstream went away: what comes back may be another engine. Who is never to be asked stays so.
    pub(super) fn forget(&self) {
        if !self.is_left_alone {
            self.refuses.store(false, Ordering::Relaxed);
            self.silent.store(0, Ordering::Relaxed);
        }
    }

    /// A stream without usage ended with this fingerprint on its last event.
    pub(super) fn saw_fingerprint(&self, fingerprint: Option<&str>) {
        let seen = fingerprint.map_or(Fingerprint::Absent, |text| Fingerprint::Is(text.to_owned()));
        *self.fingerprint.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
    }

    /// The usage event that we asked for carried this fingerprint. If it is not the one that was put on the stream's
    /// last event, the upstream has changed: what was learnt is forgotten.
    pub(super) fn compare_fingerprint(&self, seen: Option<&str>) {
        let mut known = self.fingerprint.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Fingerprint::Is(text)) = known.as_ref()
            && Some(text.as_str()) != seen
        {
            tracing::warn!("the upstream's system_fingerprint changed; was it restarted?");
            *known = None;
        }
    }

    /// The upstream sends usage to clients that did not ask for it.
    pub(super) fn saw_forced_usage(&self) {
        self.forced_usage.store(true, Ordering::Relaxed);
    }

    /// The fingerprint of streams without usage, once one was seen.
    pub(super) fn fingerprint(&self) -> Option<Fingerprint> {
        self.fingerprint.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The engine's version, models and settings, once it answered with them.
    pub(super) fn facts(&self) -> Option<Facts> {
        match &*self.engine_facts() {
            EngineFacts::Known(facts) => Some(facts.clone()),
            EngineFacts::Pending | EngineFacts::Unavailable => None,
        }
    }

    /// Whether the engine has answered the inquiry, be it without facts.
    pub(super) fn has_answered(&self) -> bool {
        !matches!(&*self.engine_facts(), EngineFacts::Pending)
    }

    /// The engine answered, with these facts or without any.
    pub(super) fn set_facts(&self, facts: Option<Facts>) {
        *self.engine_facts() = facts.map_or(EngineFacts::Unavailable, EngineFacts::Known);
        self.inquiry_ended.notify_all();
    }

    /// Waits for the answer to the inquiry, at most so long, and has it repeated at once. Blocks its thread.
    pub(super) fn wait_for_facts(&self, at_most: Duration) {
        self.is_wanted.notify_one();
        let is_pending = |facts: &mut EngineFacts| matches!(facts, EngineFacts::Pending);
        let _answered = self.inquiry_ended.wait_timeout_while(self.engine_facts(), at_most, is_pending);
    }

    /// Completes when somebody waits for the facts.
    pub(super) async fn is_wanted(&self) {
        self.is_wanted.notified().await;
    }

    fn engine_facts(&self) -> MutexGuard<'_, EngineFacts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this engine is known to name every id of every stream: vLLM from 0.20 on. Older ones lose ids while a
    /// tool or reasoning parser buffers.
    pub(super) fn ids_are_exact(&self) -> bool {
        let facts = self.engine_facts();
        let EngineFacts::Known(Facts { version, .. }) = &*facts else { return false };
        let mut numbers = version.split('.').map(|part| part.parse::<u32>().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(0), Some(minor)) => minor >= 20,
            (Some(major), _) => major >= 1,
            (None, _) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_fingerprint_is_forgotten() {
        let learned = Capabilities::default();
        learned.saw_fingerprint(Some("a"));
        learned.compare_fingerprint(Some("a"));
        assert!(learned.usage_may_be_added());
        learned.compare_fingerprint(Some("b"));
        assert!(!learned.usage_may_be_added());
    }

    #[test]
    fn an_engine_that_names_no_ids_is_soon_not_asked() {
        let learned = Capabilities::default();
        for named in [false, false, true, false, false] {
            learned.answered(named);
            assert!(learned.accepts_amendments());
        }
        learned.answered(false);
        assert!(!learned.accepts_amendments() && !Capabilities::left_alone().accepts_amendments());
    }

    #[test]
    fn versions_tell_whether_ids_are_exact() {
        for (version, exact) in
            [("0.32.0", true), ("0.19.1", false), ("1.2", true), ("0.20.0rc1", true), ("dev", false)]
        {
            let learned = Capabilities::default();
            learned.set_facts(Some(Facts { version: version.to_owned(), ..Facts::default() }));
            assert_eq!(learned.ids_are_exact(), exact, "{version}");
        }
    }
}
