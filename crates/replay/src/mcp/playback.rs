//! One record on its way to a client: what was sent of it, and for what it waits.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{
    era::Era,
    message::{Id, call, response},
};
use recording::{
    mcp::{Broken, McpEvent, McpRecord},
    redaction::PlaceholderValues,
};

/// The entry of `_meta` that names the subscription of a message.
pub(super) const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// Subscriptions of a client: the id of its own request, and the stream that brought it.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    /// By the recorded id, as JSON.
    recorded: HashMap<String, (Value, u64)>,
    /// The one that gets what was recorded without a subscription.
    latest: Option<(Value, u64)>,
}

impl Subscriptions {
    /// Begins one, in place of the recorded one of this id.
    pub(super) fn begin(&mut self, recorded: Option<String>, own: Value, stream: u64) {
        self.latest = Some((own.clone(), stream));
        self.recorded.extend(recorded.map(|recorded| (recorded, (own, stream))));
    }

    pub(super) fn end(&mut self, stream: u64) {
        self.recorded.retain(|_, (_, of)| *of != stream);
        self.latest.take_if(|(_, of)| *of == stream);
    }
}

#[derive(Debug)]
pub(super) struct Playback {
    /// Its place in the recording; `None` where nothing was recorded.
    pub(super) at: Option<usize>,
    next: usize,
    pub(super) stream: u64,
    /// The request that it answers; `None` for a notification.
    pub(super) caller: Option<Id>,
    pub(super) era: Era,
    token: Option<Value>,
    is_answered: bool,
    /// What stands in the messages in place of placeholders.
    values: PlaceholderValues,
}

#[derive(Debug, PartialEq)]
pub(super) enum PlaybackStep {
    Send(Value),
    /// This message, to the stream of a subscription.
    SendTo(u64, Value),
    /// A request to the client; its reply is waited for where one was recorded.
    Ask {
        message: Value,
        reply: Option<Map<String, Value>>,
        method: String,
    },
    Ended,
    Nothing,
}

impl Playback {
    pub(super) fn new(
        at: Option<usize>,
        (stream, caller): (u64, Option<Id>),
        params: &Value,
        era: Era,
        values: PlaceholderValues,
    ) -> Self {
        Self { at, next: 0, stream, caller, era, token: token_of(params).cloned(), is_answered: false, values }
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
    ) -> PlaybackStep {
        while let Some(event) = record.events.get(self.next) {
            self.next += 1;
            match (event, &self.caller) {
                (McpEvent::Answer(recorded), Some(caller)) => {
                    let mut recorded = recorded.clone();
                    self.values.fields(&mut recorded);
                    change(&mut recorded);
                    self.is_answered = true;
                    return PlaybackStep::Send(response(Some(caller), recorded));
                }
                (McpEvent::Answer(_), None) => {}
                (McpEvent::Notify { method, params }, _) => {
                    let Some((params, stream)) = self.rewritten((method, params), record, subscriptions) else {
                        continue;
                    };
                    let message = call(None, method, params);
                    return match stream.filter(|stream| *stream != self.stream) {
                        Some(stream) => PlaybackStep::SendTo(stream, message),
                        None => PlaybackStep::Send(message),
                    };
                }
                (McpEvent::Ask { method, params, reply }, _) => {
                    let mut params = params.clone();
                    self.values.json(&mut params);
                    let message = call(Some(ask), method, params);
                    return PlaybackStep::Ask { message, reply: reply.clone(), method: method.clone() };
                }
            }
        }
        if record.broken == Some(Broken::ServerEnded) { PlaybackStep::Ended } else { PlaybackStep::Nothing }
    }

    /// The parameters of a notification with the caller's own token and ids, and the stream of its subscription; `None` where it is
    /// about progress that the caller did not ask for.
    fn rewritten(
        &self,
        (method, params): (&str, &Value),
        record: &McpRecord,
        subscriptions: &mut Subscriptions,
    ) -> Option<(Value, Option<u64>)> {
        let mut params = params.clone();
        self.values.json(&mut params);
        if method == "notifications/progress" {
            let is_of_another = token_of(&record.params).is_some_and(|own| params.get("progressToken") != Some(own));
            let token = self.token.clone().filter(|_| !is_of_another)?;
            params.as_object_mut()?.insert("progressToken".to_owned(), token);
        }
        let Some(subscription) = params.pointer_mut(&pointer(SUBSCRIPTION)) else {
            return Some(self.announced(method, params, subscriptions));
        };
        let recorded = subscription.to_string();
        if let Some(caller) = self.caller.as_ref().filter(|_| record.method == "subscriptions/listen") {
            subscriptions.begin(Some(recorded.clone()), caller.value(), self.stream);
        }
        let own = subscriptions.recorded.get(&recorded);
        own.into_iter().for_each(|(own, _)| *subscription = own.clone());
        Some((params, own.map(|(_, stream)| *stream)))
    }

    /// The parameters of what a server announces, for the subscription of a modern client where there is one.
    fn announced(&self, method: &str, mut params: Value, subscriptions: &Subscriptions) -> (Value, Option<u64>) {
        let subscription = subscriptions.latest.as_ref().filter(|_| is_announced(method) && self.era == Era::Modern);
        let Some((own, stream)) = subscription else { return (params, None) };
        if params.is_null() {
            params = Value::Object(Map::new());
        }
        if let Some(fields) = params.as_object_mut() {
            let meta = fields.entry("_meta").or_insert_with(|| Value::Object(Map::new()));
            meta.as_object_mut().into_iter().for_each(|meta| drop(meta.insert(SUBSCRIPTION.to_owned(), own.clone())));
        }
        (params, Some(*stream))
    }

    /// Whether its request has no answer in the record, because the client went away before there was one.
    pub(super) fn is_held(&self, record: &McpRecord) -> bool {
        self.caller.is_some() && !self.is_answered && record.broken == Some(Broken::Cancelled)
    }
}

/// Returns whether a notification is one that clients subscribe to in the modern era.
pub(super) fn is_announced(method: &str) -> bool {
    method.ends_with("/list_changed") || method == "notifications/resources/updated"
}

fn pointer(name: &str) -> String {
    format!("/_meta/{}", name.replace('~', "~0").replace('/', "~1"))
}

fn token_of(params: &Value) -> Option<&Value> {
    params.get("_meta")?.get("progressToken")
}
