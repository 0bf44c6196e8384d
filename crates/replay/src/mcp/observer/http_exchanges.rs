//! Observing HTTP: exchanges are numbered, and ids are unique in their exchange only.
//!
//! A stream carries what belongs to the request that was posted for it. A stream that is only listened to, and that of a
//! subscription, carries what belongs to other requests: it is not the exchange of what comes in it.

use serde_json::Value;

use super::{McpExchange, Observer, RpcLine, RpcMessage, SUBSCRIPTION, Sender, broken_by};
use recording::cassette::RecordedExchange;

/// Notification that a subscription begins with.
const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

/// Circumstances of a message.
#[derive(Debug, Clone, Copy)]
pub struct MessageOrigin {
    /// Its sender.
    pub sender: Sender,
    /// Number of the HTTP exchange that it was part of; `None` where it was part of none, or of one that is only listened to.
    pub http_exchange: Option<u64>,
    /// Milliseconds from the beginning.
    pub at: f64,
}

/// An exchange to which nothing can be added.
#[derive(Debug)]
pub struct FinishedExchange {
    /// The HTTP exchange that it began in.
    pub http_exchange: Option<u64>,
    /// Bytes of its messages.
    pub weight: usize,
    /// What is recorded.
    pub exchange: RecordedExchange,
}

impl Observer {
    /// Returns the message of the client that a message of the server belongs to, by its HTTP exchange or its progress token.
    pub(super) fn owner(&self, http_exchange: Option<u64>, method: &str, params: &Value) -> Option<u64> {
        let token = params.get("progressToken").filter(|_| method == "notifications/progress");
        let has_token = |exchange: &&McpExchange| token.is_some() && exchange.token.as_ref() == token;
        let Some(http_exchange) = http_exchange else {
            return self.exchanges.iter().rev().find(has_token).map(|found| found.number);
        };
        let of_http_exchange =
            || self.exchanges.iter().rev().filter(|exchange| exchange.http_exchange == Some(http_exchange));
        if let Some(subscription) = of_http_exchange().find(|exchange| exchange.record.method == SUBSCRIPTION) {
            return (method == ACKNOWLEDGED).then_some(subscription.number);
        }
        let found =
            of_http_exchange().find(has_token).or_else(|| of_http_exchange().find(|exchange| exchange.is_open()));
        found.or_else(|| of_http_exchange().next()).map(|found| found.number)
    }

    /// Returns whether a request of an HTTP exchange has no answer yet.
    pub(crate) fn has_open(&self, http_exchange: u64) -> bool {
        self.exchanges.iter().any(|exchange| exchange.http_exchange == Some(http_exchange) && exchange.is_open())
    }

    pub(crate) fn is_subscription(&self, http_exchange: u64) -> bool {
        self.exchanges
            .iter()
            .any(|exchange| exchange.http_exchange == Some(http_exchange) && exchange.record.method == SUBSCRIPTION)
    }

    /// Ends an HTTP exchange whose requests get no answer any more; `left` is the side that ended it.
    pub fn cut(&mut self, http_exchange: u64, left: Sender) {
        for exchange in self.exchanges.iter_mut().filter(|exchange| exchange.http_exchange == Some(http_exchange)) {
            if exchange.is_open() {
                (exchange.is_cancelled, exchange.record.broken) = (true, Some(broken_by(left)));
            }
        }
        self.close_all(http_exchange);
    }

    /// Leaves out what began in an HTTP exchange and has no answer: it did not come to an MCP server. Returns how many messages that are.
    pub fn forget(&mut self, http_exchange: u64) -> u64 {
        let is_kept = |exchange: &McpExchange| {
            exchange.http_exchange != Some(http_exchange) || exchange.record.answer().is_some()
        };
        let count = self.keep(is_kept);
        self.close_all(http_exchange);
        count
    }

    /// Leaves out the request that a line would answer which is not the server's. Returns how many messages that are.
    pub fn forget_answered_by(&mut self, line: &[u8]) -> u64 {
        let Ok(RpcLine::One(RpcMessage::Response { id: Some(id), .. })) = RpcLine::read(line) else { return 0 };
        self.close(&id, None).map_or(0, |number| self.keep(|exchange| exchange.number != number))
    }

    /// Leaves out all other exchanges; returns how many.
    fn keep(&mut self, is_kept: impl Fn(&McpExchange) -> bool) -> u64 {
        let left_out = self.exchanges.iter().filter(|exchange| !is_kept(exchange));
        let (mut count, mut weight, mut was_last) = (0, 0, false);
        for exchange in left_out {
            count += 1;
            weight += exchange.weight;
            was_last |= self.last == Some(exchange.number);
        }
        self.exchanges.retain(|exchange| is_kept(exchange));
        self.waiting = self.waiting.saturating_sub(weight);
        if was_last {
            self.last = None;
        }
        count
    }

    fn close_all(&mut self, http_exchange: u64) {
        self.open.retain(|_, open| {
            open.retain(|(_, of)| *of != Some(http_exchange));
            !open.is_empty()
        });
    }
}
