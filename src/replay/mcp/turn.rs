//! One record on its way to a client: what was sent of it, and for what it waits.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{
    era::Era,
    message::{Id, call, response},
};
use crate::recording::mcp::{Broken, McpEvent, McpRecord};

/// The entry of `_meta` that names the subscription of a message.
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// Ids of subscriptions as they were recorded, as JSON, and those of the client.
pub(super) type Subscriptions = HashMap<String, Value>;

/// A record that is being sent.
#[derive(Debug)]
pub(super) struct Turn {
    /// Its place on the tape; `None` where nothing was recorded.
    pub(super) at: Option<usize>,
    /// The next of its events.
    next: usize,
    /// The stream that brought the message.
    pub(super) stream: u64,
    /// The request that it answers; `None` for a notification.
    pub(super) caller: Option<Id>,
    /// The era of that request.
    pub(super) era: Era,
    /// The progress token of that request.
    token: Option<Value>,
    is_answered: bool,
}

/// What comes next of a record.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    /// This message.
    Send(Value),
    /// A request to the client; its reply is waited for where one was recorded.
    Ask {
        /// The message.
        message: Value,
        /// The recorded reply.
        reply: Option<Map<String, Value>>,
        /// The event's method.
        method: String,
    },
    /// The server ended here.
    Ended,
    /// Nothing.
    Nothing,
}

impl Turn {
    pub(super) fn new(at: Option<usize>, (stream, caller): (u64, Option<Id>), params: &Value, era: Era) -> Self {
        Self { at, next: 0, stream, caller, era, token: token_of(params).cloned(), is_answered: false }
    }

    /// Whether what comes next does not belong to a request without its answer.
    pub(super) fn is_unsolicited(&self) -> bool {
        self.is_answered || self.caller.is_none()
    }

    /// The next message of the record; `ask` is the id of a request to the client, `change` is made to an answer before it is sent.
    pub(super) fn next(
        &mut self,
        record: &McpRecord,
        ask: &Id,
        subscriptions: &mut Subscriptions,
        change: impl FnOnce(&mut Map<String, Value>),
    ) -> Next {
        while let Some(event) = record.events.get(self.next) {
            self.next += 1;
            match (event, &self.caller) {
                (McpEvent::Answer(recorded), Some(caller)) => {
                    let mut recorded = recorded.clone();
                    change(&mut recorded);
                    self.is_answered = true;
                    return Next::Send(response(Some(caller), recorded));
                }
                (McpEvent::Answer(_), None) => {}
                (McpEvent::Notify { method, params }, _) => {
                    if let Some(params) = self.rewritten((method, params), record, subscriptions) {
                        return Next::Send(call(None, method, params));
                    }
                }
                (McpEvent::Ask { method, params, reply }, _) => {
                    let message = call(Some(ask), method, params.clone());
                    return Next::Ask { message, reply: reply.clone(), method: method.clone() };
                }
            }
        }
        if record.broken == Some(Broken::ServerEnded) { Next::Ended } else { Next::Nothing }
    }

    /// The parameters of a notification with the caller's own token and ids; `None` where it is about progress that the caller did
    /// not ask for.
    fn rewritten(
        &self,
        (method, params): (&str, &Value),
        record: &McpRecord,
        subscriptions: &mut Subscriptions,
    ) -> Option<Value> {
        let mut params = params.clone();
        if method == "notifications/progress" {
            let is_of_another = token_of(&record.params).is_some_and(|own| params.get("progressToken") != Some(own));
            let token = self.token.clone().filter(|_| !is_of_another)?;
            params.as_object_mut()?.insert("progressToken".to_owned(), token);
        }
        if let Some(subscription) = params.pointer_mut(&pointer(SUBSCRIPTION)) {
            let recorded = subscription.to_string();
            if let Some(caller) = self.caller.as_ref().filter(|_| record.method == "subscriptions/listen") {
                subscriptions.insert(recorded.clone(), caller.value());
            }
            subscriptions.get(&recorded).into_iter().for_each(|own| *subscription = own.clone());
        }
        Some(params)
    }
}

fn pointer(name: &str) -> String {
    format!("/_meta/{}", name.replace('~', "~0").replace('/', "~1"))
}

fn token_of(params: &Value) -> Option<&Value> {
    params.get("_meta")?.get("progressToken")
}
