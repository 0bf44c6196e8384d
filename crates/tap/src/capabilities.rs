//! Capabilities of an upstream, learnt from its responses.
//!
//! See docs/decisions/0005-a-refused-amended-request-is-sent-again.md.

use std::{
    sync::{
        Condvar,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use super::{
    amend::{Wanted, WantedUsage},
    facts::EngineSettings,
};
use base::lock::Lock;

/// Number of successive responses without ids after which the tap stops requesting them.
const MAX_RESPONSES_WITHOUT_IDS: u32 = 3;

/// Facts about one upstream. Shared by all requests; every method is cheap.
#[derive(Debug, Default)]
pub(super) struct Capabilities {
    is_never_amended: bool,
    /// Tokens are to be counted in the best way that the upstream knows; nobody wants its bytes as they were.
    counts_tokens: bool,
    /// An upstream whose tokens are counted accepted what was added.
    has_accepted: AtomicBool,
    named_ids: AtomicBool,
    refused: Lock<Refused>,
    refuses: AtomicBool,
    /// Number of successive complete responses that had no ids although they were requested.
    missing_choices: AtomicU32,
    /// The engine's token count once differed from the number of ids.
    miscounts: AtomicBool,
    forced_usage: AtomicBool,
    fingerprint: Lock<Option<StreamFingerprint>>,
    facts: Lock<EngineFacts>,
    inquiry_ended: Condvar,
    is_wanted: Notify,
}

/// What an upstream whose tokens are counted refused, until it accepted a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Refused {
    #[default]
    Nothing,
    Ids,
    /// Ids, and counts with every event.
    Continuous,
    /// These, and counts at the end.
    Usage,
}

/// State of the inquiry after an engine's version, models and settings.
#[derive(Debug, Default)]
enum EngineFacts {
    /// The engine has not answered yet.
    #[default]
    Pending,
    /// The engine answers without a version.
    Unavailable,
    Known(EngineSettings),
}

/// `system_fingerprint` on the last event of a stream without usage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StreamFingerprint {
    /// The key is not there.
    Absent,
    /// This text.
    Is(String),
}

impl Capabilities {
    /// Capabilities of an upstream whose requests are never amended.
    pub(super) fn never_amended() -> Self {
        Self { is_never_amended: true, refuses: AtomicBool::new(true), ..Self::default() }
    }

    /// Capabilities of an upstream whose tokens are to be counted as well as it can.
    pub(super) fn counting() -> Self {
        Self { counts_tokens: true, ..Self::default() }
    }

    /// Returns the fields that a request is to have; `None` if it is to be sent as it is.
    pub(super) fn wanted(&self) -> Option<Wanted> {
        if self.counts_tokens {
            return self.wanted_after(*self.refused.lock());
        }
        let usage = if self.usage_may_be_added() { WantedUsage::AtEnd } else { WantedUsage::AsRequested };
        self.accepts_amendments().then_some(Wanted { ids: true, usage })
    }

    /// Returns the fields that a request is to have after the upstream refused one with these; `None` if it is to be sent as it is.
    pub(super) fn wanted_instead(&self, of: Wanted) -> Option<Wanted> {
        // What it accepted before is not the reason.
        if !self.counts_tokens || self.has_accepted.load(Ordering::Relaxed) {
            return None;
        }
        let refused = match of {
            Wanted { ids: true, .. } => Refused::Ids,
            Wanted { usage: WantedUsage::Continuous, .. } => Refused::Continuous,
            Wanted { .. } => Refused::Usage,
        };
        self.wanted_after(refused)
    }

    fn wanted_after(&self, refused: Refused) -> Option<Wanted> {
        let ids =
            refused == Refused::Nothing && self.missing_choices.load(Ordering::Relaxed) < MAX_RESPONSES_WITHOUT_IDS;
        let usage = match refused {
            Refused::Nothing | Refused::Ids if ids && self.named_ids.load(Ordering::Relaxed) => WantedUsage::AtEnd,
            Refused::Nothing | Refused::Ids => WantedUsage::Continuous,
            Refused::Continuous => WantedUsage::AtEnd,
            Refused::Usage => return None,
        };
        Some(Wanted { ids, usage })
    }

    /// Notes that the upstream accepted a request with these fields; `None` for one as the client sent it, after refusals.
    pub(super) fn accepted(&self, wanted: Option<Wanted>) {
        if !self.counts_tokens || self.has_accepted.swap(true, Ordering::Relaxed) {
            return;
        }
        let refused = match wanted {
            Some(Wanted { ids: true, .. }) => Refused::Nothing,
            Some(Wanted { usage: WantedUsage::Continuous, .. }) => Refused::Ids,
            Some(_) => Refused::Continuous,
            None => Refused::Usage,
        };
        *self.refused.lock() = refused;
    }

    /// Returns true unless requests are to be sent as their clients wrote them.
    pub(super) fn may_be_amended(&self) -> bool {
        !self.is_never_amended
    }

    /// Returns true unless the upstream is known to refuse or to ignore added fields.
    pub(super) fn accepts_amendments(&self) -> bool {
        !self.refuses.load(Ordering::Relaxed)
            && self.missing_choices.load(Ordering::Relaxed) < MAX_RESPONSES_WITHOUT_IDS
    }

    /// Notes whether a complete response had the requested ids. One without them may be an exception, several are not.
    pub(super) fn observe_response(&self, named_ids: bool) {
        if named_ids {
            self.named_ids.store(true, Ordering::Relaxed);
            self.missing_choices.store(0, Ordering::Relaxed);
        } else if self.missing_choices.fetch_add(1, Ordering::Relaxed) + 1 == MAX_RESPONSES_WITHOUT_IDS {
            tracing::info!("the upstream returns no token ids: they are not requested any more");
        }
    }

    /// Notes a response whose token count differs from the number of its ids.
    pub(super) fn miscounted(&self) {
        self.miscounts.store(true, Ordering::Relaxed);
    }

    /// Returns true once a response's token count differed from the number of its ids.
    pub(super) fn miscounts(&self) -> bool {
        self.miscounts.load(Ordering::Relaxed)
    }

    /// Notes that the upstream refused a request with added fields and accepted it without them. True the first time.
    pub(super) fn refused_amendments(&self) -> bool {
        !self.refuses.swap(true, Ordering::Relaxed)
    }

    /// Returns true if usage can be requested and its effects removed: the fingerprint of streams without usage is known, and
    /// the upstream does not send usage unrequested.
    pub(super) fn usage_may_be_added(&self) -> bool {
        !self.forced_usage.load(Ordering::Relaxed) && self.fingerprint().is_some()
    }

    /// Forgets refusals: the upstream went away, and another engine may come back.
    pub(super) fn forget(&self) {
        if !self.is_never_amended {
            self.refuses.store(false, Ordering::Relaxed);
            self.has_accepted.store(false, Ordering::Relaxed);
            *self.refused.lock() = Refused::Nothing;
            self.missing_choices.store(0, Ordering::Relaxed);
        }
    }

    /// Notes the fingerprint on the last event of a stream without usage.
    pub(super) fn observe_fingerprint(&self, fingerprint: Option<&str>) {
        let seen = fingerprint.map_or(StreamFingerprint::Absent, |text| StreamFingerprint::Is(text.to_owned()));
        *self.fingerprint.lock() = Some(seen);
    }

    /// Compares the fingerprint of an added usage event with the known one. If it is not the one that was put on the stream's
    /// last event, the upstream has changed and the known one is dropped.
    pub(super) fn compare_fingerprint(&self, seen: Option<&str>) {
        let mut known = self.fingerprint.lock();
        if let Some(StreamFingerprint::Is(text)) = known.as_ref()
            && Some(text.as_str()) != seen
        {
            tracing::warn!("the upstream's system_fingerprint changed; was it restarted?");
            *known = None;
        }
    }

    /// Notes that the upstream sends usage unrequested.
    pub(super) fn observe_forced_usage(&self) {
        self.forced_usage.store(true, Ordering::Relaxed);
    }

    /// Returns the fingerprint of streams without usage, once one was observed.
    pub(super) fn fingerprint(&self) -> Option<StreamFingerprint> {
        self.fingerprint.lock().clone()
    }

    /// Returns the engine's version, models and settings, once it answered with them.
    pub(super) fn facts(&self) -> Option<EngineSettings> {
        match &*self.facts.lock() {
            EngineFacts::Known(facts) => Some(facts.clone()),
            EngineFacts::Pending | EngineFacts::Unavailable => None,
        }
    }

    /// Returns true once the engine has answered the inquiry, even without facts.
    pub(super) fn has_answered(&self) -> bool {
        !matches!(&*self.facts.lock(), EngineFacts::Pending)
    }

    /// Sets the engine's answer to the inquiry.
    pub(super) fn set_facts(&self, facts: Option<EngineSettings>) {
        *self.facts.lock() = facts.map_or(EngineFacts::Unavailable, EngineFacts::Known);
        self.inquiry_ended.notify_all();
    }

    /// Requests the inquiry at once and waits for its answer, for at most this time. Blocks the thread.
    pub(super) fn wait_for_facts(&self, at_most: Duration) {
        self.is_wanted.notify_one();
        let is_pending = |facts: &mut EngineFacts| matches!(facts, EngineFacts::Pending);
        let _answered = self.inquiry_ended.wait_timeout_while(self.facts.lock(), at_most, is_pending);
    }

    /// Completes when a thread waits for the facts.
    pub(super) async fn is_wanted(&self) {
        self.is_wanted.notified().await;
    }

    /// Returns true if the engine is known to return every id of every stream: vLLM from 0.20 on. Older ones lose ids while a
    /// tool or reasoning parser buffers.
    pub(super) fn ids_are_exact(&self) -> bool {
        let facts = self.facts.lock();
        let EngineFacts::Known(EngineSettings { version, .. }) = &*facts else { return false };
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
        let capabilities = Capabilities::default();
        capabilities.observe_fingerprint(Some("a"));
        capabilities.compare_fingerprint(Some("a"));
        assert!(capabilities.usage_may_be_added());
        capabilities.compare_fingerprint(Some("b"));
        assert!(!capabilities.usage_may_be_added());
    }

    #[test]
    fn an_engine_that_names_no_ids_is_soon_not_asked() {
        let capabilities = Capabilities::default();
        for named in [false, false, true, false, false] {
            capabilities.observe_response(named);
            assert!(capabilities.accepts_amendments());
        }
        capabilities.observe_response(false);
        assert!(!capabilities.accepts_amendments() && !Capabilities::never_amended().accepts_amendments());
    }

    #[test]
    fn tokens_are_counted_in_the_best_way_that_is_accepted() {
        let want = |ids, usage| Some(Wanted { ids, usage });
        let capabilities = Capabilities::counting();
        let mut tried = vec![capabilities.wanted()];
        while let Some(Some(refused)) = tried.last().copied() {
            tried.push(capabilities.wanted_instead(refused));
        }
        let (continuous, at_end) = (want(false, WantedUsage::Continuous), want(false, WantedUsage::AtEnd));
        assert_eq!(tried, [want(true, WantedUsage::Continuous), continuous, at_end, None]);
        for accepted in tried {
            let capabilities = Capabilities::counting();
            capabilities.accepted(accepted);
            assert_eq!(capabilities.wanted(), accepted);
            // A later refusal has another reason.
            assert_eq!(accepted.and_then(|accepted| capabilities.wanted_instead(accepted)), None);
        }
    }

    #[test]
    fn counts_with_every_event_are_wanted_where_no_ids_come() {
        let (naming, silent) = (Capabilities::counting(), Capabilities::counting());
        naming.observe_response(true);
        assert_eq!(naming.wanted(), Some(Wanted { ids: true, usage: WantedUsage::AtEnd }));
        (0..MAX_RESPONSES_WITHOUT_IDS).for_each(|_| silent.observe_response(false));
        assert_eq!(silent.wanted(), Some(Wanted { ids: false, usage: WantedUsage::Continuous }));
    }

    #[test]
    fn versions_tell_whether_ids_are_exact() {
        for (version, exact) in
            [("0.32.0", true), ("0.19.1", false), ("1.2", true), ("0.20.0rc1", true), ("dev", false)]
        {
            let capabilities = Capabilities::default();
            capabilities.set_facts(Some(EngineSettings { version: version.to_owned(), ..EngineSettings::default() }));
            assert_eq!(capabilities.ids_are_exact(), exact, "{version}");
        }
    }
}
