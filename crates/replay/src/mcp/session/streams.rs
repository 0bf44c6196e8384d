//! Streams that a connection has open: requests that are not answered, subscriptions, and those that end early.

use std::{mem::take, sync::Arc};

use serde_json::{Value, json};

use super::{MOST_ASKS, McpSession, MessageSteps, SessionStep};
use crate::{
    matching::requests::RequestConsumption,
    mcp::{
        message::{Id, call},
        playback::SUBSCRIPTION,
    },
};

impl McpSession {
    pub(crate) fn was_used(&self) -> bool {
        self.account.counts.requests > 0 || !self.consumption.is_empty()
    }

    /// Bytes that it takes beside the recording, about.
    pub(crate) fn bytes(&self) -> usize {
        /// Of an empty session, of a record that was served, and of a stream that waits.
        const OF_EACH: [usize; 3] = [2048, 160, 512];
        let [own, served, waiting] = OF_EACH;
        own + served * (self.consumption.len() + self.earlier.len()) + waiting * (self.waiting.len() + self.open.len())
    }

    /// Forgets what was served and what waits; the negotiated version stays.
    pub(crate) fn rewind(&mut self) {
        let fresh = Self::new(Arc::clone(&self.index), &self.server, self.policy);
        let (version, upstream, round) = (take(&mut self.version), take(&mut self.upstream), self.round.take());
        if let Some(round) = &round {
            *round.lock() = RequestConsumption::default();
        }
        *self = Self { version, asks: self.asks, upstream, round, account: self.account.rewound(), ..fresh };
    }

    /// Ends what is sent for a request that the client cancelled; without an id, of all.
    pub(super) fn cancel(&mut self, id: Option<&Id>, out: &mut MessageSteps) {
        let is_it = |caller: Option<&Id>| id.is_none() || caller == id;
        let waiting = self.waiting.values().filter(|waiting| is_it(waiting.playback.caller.as_ref()));
        let mut ended: Vec<u64> = waiting.map(|waiting| waiting.playback.stream).collect();
        self.waiting.retain(|_, waiting| !is_it(waiting.playback.caller.as_ref()));
        ended.extend(self.open.extract_if(.., |_, caller| is_it(Some(caller))).map(|(stream, _)| stream));
        out.steps.extend(ended.into_iter().map(SessionStep::Done));
    }

    /// Forgets what would be sent on a stream that the client closed; in the modern era it cancelled its request by that.
    pub(crate) fn closed(&mut self, stream: u64, is_modern: bool) {
        if is_modern {
            self.waiting.retain(|_, waiting| waiting.playback.stream != stream);
        }
        self.open.remove(&stream);
        self.subscriptions.end(stream);
    }

    /// Forgets everything that is still to be sent; its streams.
    pub(crate) fn end_streams(&mut self) -> Vec<u64> {
        let waiting = take(&mut self.waiting).into_values().map(|waiting| waiting.playback.stream);
        waiting.chain(take(&mut self.open).into_keys()).collect()
    }

    /// Keeps a stream open: its request has no answer.
    pub(super) fn hold(&mut self, stream: u64, caller: Option<Id>) {
        if self.open.len() < MOST_ASKS {
            self.open.extend(caller.map(|caller| (stream, caller)));
        }
    }

    /// Acknowledges a subscription to a server that was recorded without any; what it announces goes there.
    pub(super) fn listen(&mut self, id: Id, params: &Value, out: &mut MessageSteps) {
        let filter = params.get("notifications").cloned().unwrap_or_else(|| json!({}));
        let params = json!({"notifications": filter, "_meta": {SUBSCRIPTION: id.value()}});
        let message = call(None, "notifications/subscriptions/acknowledged", params);
        out.send(message);
        self.subscriptions.begin(None, id.value(), out.stream);
        self.hold(out.stream, Some(id));
    }
}
