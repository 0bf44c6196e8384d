//! Messages that go to the real server, because no record answers them.
//!
//! What a client sends after such a request and no record concerns goes there too: its replies to that server, its cancellations.
//!
//! Limits: nothing of a list of messages is forwarded; a request in one that was not recorded is a miss.
//!
//! See docs/decisions/0092-novel-calls-go-to-the-real-server.md.

use serde_json::Value;

use super::{Out, Session, Step};
use crate::mcp::{
    message::Id,
    miss::{Miss, Why},
};
use recording::canonical::Identity;

/// The first id of requests to a client beside those of a real server, which count from 0.
pub(super) const FIRST_ASK: u64 = 1 << 40;

/// What is known of the session with the real server.
#[derive(Debug, Default)]
pub(super) struct Upstream {
    /// Parameters of the client's `initialize`.
    opening: Value,
    /// Something went there.
    is_used: bool,
    /// A list of messages is being answered.
    pub(super) is_batch: bool,
}

impl Session {
    /// Parameters of the client's `initialize`, with which a session with the real server can be opened.
    pub(in crate::mcp) fn opening(&self) -> &Value {
        &self.upstream.opening
    }

    /// Notes the parameters of an `initialize`.
    pub(super) fn opens(&mut self, method: &str, params: &Value) {
        if method == "initialize" && self.policy.on_novel.forwards() {
            self.upstream.opening = params.clone();
        }
    }

    /// Whether a request without a record goes to the real server.
    pub(super) fn forwards(&self) -> bool {
        self.policy.on_novel.forwards() && !self.upstream.is_batch
    }

    /// Forwards a request; `miss` is why no record answers it, where that counts.
    pub(super) fn forward(&mut self, canonical: &Value, miss: Option<&'static str>, out: &mut Out) {
        self.account.forwarded += 1;
        self.upstream.is_used = true;
        self.note_forwarded(canonical, miss);
        out.steps.push(Step::Forward(out.stream));
    }

    /// Forwards what is no request, if the real server knows what it is about.
    pub(super) fn forward_further(&self, out: &mut Out) {
        if self.forwards() && self.upstream.is_used {
            out.steps.push(Step::Forward(out.stream));
        }
    }

    /// Answers a request that no record can answer: with an error, or by the real server.
    pub(super) fn miss(&mut self, id: &Id, method: &str, identity: &Identity, why: Why, out: &mut Out) {
        if !self.forwards() {
            let answer = self.missed(id, method, identity, why);
            return out.answer(answer);
        }
        let index = std::sync::Arc::clone(&self.index);
        let miss: Miss<'_> = self.explain(&index, method, identity, why);
        let (reason, detail) = (miss.reason(), self.policy.counts_forwarded.then(|| miss.detail()));
        if let Some(detail) = detail {
            self.account.novel.keep(detail);
            *self.account.misses.entry(reason).or_default() += 1;
        }
        self.forward(&identity.fields, Some(reason), out);
    }
}
