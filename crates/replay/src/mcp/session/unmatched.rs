//! Choice of the record for a request, and what a request gets that has none.

use std::{collections::HashSet, sync::Arc};

use serde_json::{Map, Value, json};

use super::{Out, Session, made_up};
use crate::mcp::{
    era::Era,
    message::Id,
    miss::{Miss, Why},
    policy::{OnNovel, OnUsedUp},
    record_index::RecordIndex,
};
use recording::canonical::Identity;

impl Session {
    /// Chooses the record that answers a request.
    pub(super) fn choose(&mut self, method: &str, identity: &Identity) -> Option<usize> {
        if let Some(at) = self.consumption.next(&self.index, identity.key) {
            return Some(at);
        }
        // A task is asked after until it is done, however often that was.
        let repeats = self.policy.on_used_up == OnUsedUp::Last || method == "tasks/get";
        if let Some(last) = self.index.of_key(identity.key).last() {
            if repeats {
                *self.account.again.entry("exhausted").or_default() += 1;
            }
            return repeats.then_some(*last);
        }
        if self.policy.on_novel != OnNovel::Closest {
            return None;
        }
        let at = self.nearest(identity).filter(|at| may_answer(&self.index, *at, identity))?;
        *self.account.loose.entry("closest").or_default() += 1;
        let detail = self.explain(&Arc::clone(&self.index), method, identity, Why::NoMatch(Some(at))).detail();
        self.account.novel.keep(detail);
        Some(at)
    }

    /// The record of the same method that is closest to a request.
    pub(super) fn nearest(&self, identity: &Identity) -> Option<usize> {
        let served = self.consumption.served().collect();
        self.index.requests().closest(identity, &served, 1).first().copied()
    }

    /// Answers a request for which there is no record, or none left.
    pub(super) fn unmatched(&mut self, id: &Id, (era, method): (Era, &str), identity: &Identity, out: &mut Out) {
        let index = Arc::clone(&self.index);
        let is_novel = index.of_key(identity.key).is_empty();
        let made = made_in_place(self.policy.on_novel, method, identity).filter(|_| is_novel);
        if let Some((way, result)) = made {
            let why = Why::NoMatch(self.nearest(identity));
            let detail = self.explain(&index, method, identity, why).detail();
            self.account.novel.keep(detail);
            *self.account.loose.entry(way).or_default() += 1;
            self.note_stub(&identity.fields);
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
        Why::Exhausted(known.iter().map(|at| (*at, self.consumption.served_to(*at).to_vec())).collect())
    }

    /// Counts a miss and answers it.
    pub(super) fn missed(&mut self, id: &Id, method: &str, identity: &Identity, why: Why) -> Value {
        let index = Arc::clone(&self.index);
        let miss = self.explain(&index, method, identity, why);
        let detail = miss.detail();
        let (answer, reason, log) = (miss.response(id, &detail), miss.reason(), miss.log());
        tracing::warn!("{log}");
        self.account.novel.keep(detail);
        *self.account.misses.entry(reason).or_default() += 1;
        self.note_missed(&identity.fields, reason);
        answer
    }

    pub(super) fn explain<'a>(
        &'a self,
        index: &'a RecordIndex,
        method: &'a str,
        identity: &'a Identity,
        why: Why,
    ) -> Miss<'a> {
        let (request, over_http) = (self.account.requests, self.policy.over_http);
        let is_consumed = matches!(why, Why::NoMatch(Some(at)) if self.consumption.has_served(at));
        let server = &self.server;
        Miss { index, request, server, method, identity, why, is_consumed, over_http, closest: None }.compared()
    }
}

/// Returns true if a record may answer in place of one that was not recorded: of the same tool, with at least half of the names of all
/// arguments in common.
fn may_answer(index: &RecordIndex, at: usize, identity: &Identity) -> bool {
    let recorded = index.requests().identity(at);
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
fn made_in_place(on_novel: OnNovel, method: &str, identity: &Identity) -> Option<(&'static str, Value)> {
    let tool = name_of(identity).filter(|_| method == "tools/call")?;
    match on_novel {
        OnNovel::Stub => {
            let key = identity.key.to_string();
            let short: String = key.chars().rev().take(6).collect();
            let text = format!("<novel: {tool}#{short}>");
            Some(("stub", json!({"content": [{"type": "text", "text": text}], "isError": false})))
        }
        OnNovel::Null => Some(("null", Value::Null)),
        OnNovel::Error | OnNovel::Closest | OnNovel::Upstream | OnNovel::Record => None,
    }
}
