//! Choice of the record for a request, and what a request gets that has none.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Out, Session, made_up};
use crate::replay::mcp::{
    era::Era,
    message::Id,
    miss::{Miss, Why},
    nearest::{Asked, alike, name_of, nearest},
    params::ParamKey,
    policy::{OnNovel, OnUsedUp},
    record_index::RecordIndex,
};

impl Session {
    /// Chooses the record that answers a request.
    pub(super) fn choose(&mut self, method: &str, canonical: &Value, key: ParamKey) -> Option<usize> {
        if let Some(at) = self.consumption.next(&self.index, key) {
            return Some(at);
        }
        // A task is asked after until it is done, however often that was.
        let repeats = self.policy.on_used_up == OnUsedUp::Last || method == "tasks/get";
        if let Some(last) = self.index.of_key(key).last() {
            if repeats {
                *self.account.again.entry("exhausted").or_default() += 1;
            }
            return repeats.then_some(*last);
        }
        if self.policy.on_novel != OnNovel::Closest {
            return None;
        }
        let found = alike(&self.index, Asked { method, canonical }, |at| self.consumption.has_served(at))?;
        *self.account.loose.entry("closest").or_default() += 1;
        let miss = self.explain(&self.index, method, canonical, (key, Why::NoMatch(Some(found))));
        let (detail, at) = (miss.detail(), place_of(&miss));
        self.account.novel.keep(detail);
        at
    }

    /// Answers a request for which there is no record, or none left.
    pub(super) fn unmatched(
        &mut self,
        id: &Id,
        (era, method): (Era, &str),
        canonical: &Value,
        key: ParamKey,
        out: &mut Out,
    ) {
        let index = Arc::clone(&self.index);
        let known = index.of_key(key);
        let is_novel = known.is_empty();
        if let Some(stub) = stub(method, canonical, key).filter(|_| is_novel && self.policy.on_novel == OnNovel::Stub) {
            let found = nearest(&index, Asked { method, canonical }, |at| self.consumption.has_served(at));
            let detail = self.explain(&index, method, canonical, (key, Why::NoMatch(found))).detail();
            self.account.novel.keep(detail);
            *self.account.loose.entry("stub").or_default() += 1;
            self.note_stub(canonical);
            return out.answer(made_up(id, era, method, stub));
        }
        let why = if is_novel {
            // What is forwarded without being a miss needs no explanation.
            let is_explained = !self.forwards() || self.policy.counts_forwarded && self.account.novel.has_room();
            let found = || nearest(&index, Asked { method, canonical }, |at| self.consumption.has_served(at));
            Why::NoMatch(is_explained.then(found).flatten())
        } else {
            Why::Exhausted(known.iter().map(|at| (*at, self.consumption.served_to(*at).to_vec())).collect())
        };
        self.miss(id, method, canonical, (key, why), out);
    }

    /// Counts a miss and answers it.
    pub(super) fn missed(
        &mut self,
        id: &Id,
        method: &str,
        canonical: &Value,
        (key, why): (ParamKey, Why<'_>),
    ) -> Value {
        let index = Arc::clone(&self.index);
        let miss = self.explain(&index, method, canonical, (key, why));
        let (answer, detail, reason, message) = (miss.response(id), miss.detail(), miss.reason(), miss.message());
        tracing::warn!("{message}");
        self.account.novel.keep(detail);
        *self.account.misses.entry(reason).or_default() += 1;
        self.note_missed(canonical, reason);
        answer
    }

    pub(super) fn explain<'a>(
        &'a self,
        index: &'a RecordIndex,
        method: &'a str,
        canonical: &'a Value,
        (key, why): (ParamKey, Why<'a>),
    ) -> Miss<'a> {
        Miss { index, request: self.account.requests, server: &self.server, method, canonical, key, why }
    }
}

fn place_of(miss: &Miss<'_>) -> Option<usize> {
    match &miss.why {
        Why::NoMatch(Some(nearest)) => Some(nearest.at),
        Why::NoMatch(None) | Why::Exhausted(_) | Why::Era(..) => None,
    }
}

/// The result of a tool that was not recorded; `None` for other methods.
fn stub(method: &str, canonical: &Value, key: ParamKey) -> Option<Value> {
    let tool = name_of(canonical).filter(|_| method == "tools/call")?;
    let key = key.to_string();
    let short: String = key.chars().rev().take(6).collect();
    Some(json!({"content": [{"type": "text", "text": format!("<novel: {tool}#{short}>")}], "isError": false}))
}
