//! Choice of the record for a request, and what a request gets that has none: an error, something made up, or the answer of the real
//! server.
//!
//! What a client sends after a request that went to the real server and no record concerns goes there too: its replies to that server, its
//! cancellations.
//!
//! Limits: nothing of a list of messages is forwarded; a request in one that was not recorded is a miss.
//!
//! See docs/decisions/0092-novel-calls-go-to-the-real-server.md.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{McpSession, MessageSteps, OnNovel, OnUsedUp, SessionStep, made_up};
use crate::mcp::{
    era::Era,
    message::Id,
    miss::{McpMiss, Why},
    params::is_list,
    record_index::RecordIndex,
    stub,
};
use recording::canonical::Identity;

/// The first id of requests to a client beside those of a real server, which count from 0.
pub(super) const FIRST_ASK: u64 = 1 << 40;

/// Requests that are named for one record.
const MOST_NAMED: usize = 10;

/// State of the session with the real server.
#[derive(Debug, Default)]
pub(super) struct UpstreamSession {
    pub(super) opening: Value,
    is_used: bool,
    pub(super) is_batch: bool,
}

impl McpSession {
    /// Parameters of the client's `initialize`, with which a session with the real server can be opened.
    pub(crate) fn opening(&self) -> &Value {
        &self.upstream.opening
    }

    pub(super) fn choose(&mut self, method: &str, identity: &Identity) -> Option<usize> {
        if let Some(at) = self.fresh(identity.key) {
            return Some(at);
        }
        // A task is asked after until it is done, however often that was.
        let is_again = self.policy.on_used_up == OnUsedUp::Last || method == "tasks/get";
        let repeats = is_again || self.repeats(method);
        if let Some(last) = self.index.of_key(identity.key).last() {
            if is_again {
                *self.account.counts.again.entry("exhausted").or_default() += 1;
            }
            return repeats.then_some(*last);
        }
        if self.policy.on_novel != OnNovel::Closest {
            return None;
        }
        let at = self.nearest(identity).filter(|at| may_answer(&self.index, *at, identity))?;
        let detail = self.explain(method, identity, Why::NoMatch(Some(at))).detail();
        self.account.loose("closest", detail);
        Some(at)
    }

    /// Whether requests of a method are answered however often they come.
    pub(super) fn repeats(&self, method: &str) -> bool {
        self.policy.repeats_lists && is_list(method)
    }

    /// The record of the same method that is closest to a request.
    fn nearest(&self, identity: &Identity) -> Option<usize> {
        let served = self.consumption.records().collect();
        self.index.requests.closest(identity, &served, 1).first().copied()
    }

    /// Answers a request for which there is no record, or none left.
    pub(super) fn unmatched(
        &mut self,
        id: &Id,
        (era, method): (Era, &str),
        identity: &Identity,
        out: &mut MessageSteps,
    ) {
        let is_novel = self.index.of_key(identity.key).is_empty();
        let made = || made_in_place((&self.index, self.policy.on_novel), method, identity);
        let made = if is_novel { made() } else { None };
        if let Some((way, result)) = made {
            let detail = self.explain(method, identity, Why::NoMatch(self.nearest(identity))).detail();
            self.account.loose(way, detail);
            self.note(&identity.fields, "stubbed", None);
            return out.answer(made_up(id, era, method, result));
        }
        // What is forwarded without being a miss needs no explanation.
        let is_explained = !self.forwards() || self.policy.counts_forwarded && self.account.novel.has_room();
        let why = self.why(identity, is_explained);
        self.miss(id, method, identity, why, out);
    }

    /// Why no record answers a request; with the closest one, where that is wanted.
    pub(super) fn why(&self, identity: &Identity, is_explained: bool) -> Why {
        let known = self.index.of_key(identity.key);
        if known.is_empty() {
            return Why::NoMatch(is_explained.then(|| self.nearest(identity)).flatten());
        }
        let served_to = |at: &usize| self.consumption.served_to(*at).iter().take(MOST_NAMED).copied().collect();
        Why::Exhausted(known.iter().map(|at| (*at, served_to(at))).collect())
    }

    pub(super) fn explain<'a>(&'a self, method: &'a str, identity: &'a Identity, why: Why) -> McpMiss<'a> {
        let (request, over_http) = (self.account.counts.requests, self.policy.over_http);
        let (index, server, consumption) = (&self.index, &self.server, &self.consumption);
        let miss = McpMiss { index, request, server, method, identity, why, consumption, over_http, closest: None };
        McpMiss { closest: miss.comparison(), ..miss }
    }

    /// Answers a request that no record can answer: with an error, or by the real server.
    pub(super) fn miss(&mut self, id: &Id, method: &str, identity: &Identity, why: Why, out: &mut MessageSteps) {
        let miss = self.explain(method, identity, why);
        let reason = miss.reason();
        if self.forwards() {
            if let Some(detail) = self.policy.counts_forwarded.then(|| miss.detail()) {
                self.account.miss(reason, detail);
            }
            return self.forward(&identity.fields, Some(reason), out);
        }
        let mut detail = miss.detail();
        tracing::warn!("{}", miss.log());
        out.answer(miss.response(id, &detail));
        // Where misses of a model have it.
        detail.as_object_mut().into_iter().for_each(|fields| drop(fields.insert("error".to_owned(), miss.shown())));
        self.account.miss(reason, detail);
        self.note(&identity.fields, "missed", Some(("reason", reason)));
    }

    /// Whether a request without a record goes to the real server.
    pub(super) fn forwards(&self) -> bool {
        self.policy.on_novel.forwards() && !self.upstream.is_batch
    }

    /// Forwards a request; `miss` is why no record answers it, where that counts.
    pub(super) fn forward(&mut self, canonical: &Value, miss: Option<&'static str>, out: &mut MessageSteps) {
        self.account.counts.forwarded += 1;
        self.upstream.is_used = true;
        let outcome = if self.policy.on_novel == OnNovel::Record { "recorded" } else { "forwarded" };
        self.note(canonical, outcome, miss.map(|reason| ("reason", reason)));
        out.steps.push(SessionStep::Forward(out.stream));
    }

    /// Forwards what is no request, if the real server knows what it is about.
    pub(super) fn forward_further(&self, out: &mut MessageSteps) {
        if self.forwards() && self.upstream.is_used {
            out.steps.push(SessionStep::Forward(out.stream));
        }
    }
}

/// Returns true if a record may answer in place of one that was not recorded: of the same tool, with at least half of the names of all
/// arguments in common.
fn may_answer(index: &RecordIndex, at: usize, identity: &Identity) -> bool {
    let recorded = index.requests.identity(at);
    recorded.is_some_and(|recorded| {
        let (a, b) = (argument_names(recorded), argument_names(identity));
        let both = a.intersection(&b).count();
        let is_same = name_of(recorded) == name_of(identity);
        is_same && 2 * both >= a.union(&b).count()
    })
}

/// The tool or prompt that a request names.
fn name_of(identity: &Identity) -> Option<&str> {
    identity.fields.get("params")?.get("name")?.as_str()
}

/// Names of the arguments of a call; of other requests those of the parameters.
fn argument_names(identity: &Identity) -> HashSet<&String> {
    let params = identity.fields.get("params").unwrap_or(&Value::Null);
    let named = if params.get("name").is_some() { params.get("arguments") } else { Some(params) };
    named.and_then(Value::as_object).map(Map::keys).into_iter().flatten().collect()
}

/// The result of a tool that was not recorded, where one is made up, and the name of that in reports; `None` for other methods.
fn made_in_place(
    (index, on_novel): (&RecordIndex, OnNovel),
    method: &str,
    identity: &Identity,
) -> Option<(&'static str, Value)> {
    let tool = name_of(identity).filter(|_| method == "tools/call")?;
    match on_novel {
        OnNovel::Stub => Some(("stub", stub::result(index, tool, &identity.key.to_string()))),
        OnNovel::Null => Some(("null", Value::Null)),
        OnNovel::Error | OnNovel::Closest | OnNovel::Upstream | OnNovel::Record => None,
    }
}
