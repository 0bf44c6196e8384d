//! Where the messages of one process go.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, Sender as Queue, channel};

/// Messages that wait for a client to read them.
const MOST_QUEUED: usize = 64;

/// Bytes of messages that wait for the stream of a GET; the oldest are dropped for later ones.
const MOST_WAITING: usize = 4 << 20;

#[derive(Debug, Default)]
pub(super) struct Routes {
    next: u64,
    /// Responses that are not complete, in the order of their requests.
    responses: BTreeMap<u64, ResponseStream>,
    /// Those that wait for an answer, by the id as JSON. Clients use ids twice at a time.
    awaited: HashMap<String, VecDeque<u64>>,
    listener: Option<Queue<Bytes>>,
    waiting: VecDeque<Bytes>,
    waiting_bytes: usize,
    has_ended: bool,
}

#[derive(Debug)]
struct ResponseStream {
    queue: Queue<Bytes>,
    token: Option<Value>,
    takes_events: bool,
}

impl Routes {
    /// Opens the response to a request; `None` where the process has ended.
    pub(super) fn open(&mut self, id: &str, token: Option<Value>, takes_events: bool) -> Option<Receiver<Bytes>> {
        if self.has_ended {
            return None;
        }
        let (queue, messages) = channel(MOST_QUEUED);
        let number = self.next;
        self.next += 1;
        self.responses.insert(number, ResponseStream { queue, token, takes_events });
        self.awaited.entry(id.to_owned()).or_default().push_back(number);
        Some(messages)
    }

    /// Opens the stream of what belongs to no request, in place of the one before, and gives what waited for it.
    pub(super) fn listen(&mut self) -> (Receiver<Bytes>, Queue<Bytes>, VecDeque<Bytes>) {
        let (queue, messages) = channel(MOST_QUEUED);
        self.listener = (!self.has_ended).then(|| queue.clone());
        self.waiting_bytes = 0;
        (messages, queue, std::mem::take(&mut self.waiting))
    }

    /// Chooses the stream of a message; `None` where none is open. An answer is the last message of its stream.
    pub(super) fn of(&mut self, message: &Value) -> Option<Queue<Bytes>> {
        let method = message.get("method").and_then(Value::as_str);
        if method.is_none() {
            let id = message.get("id")?.to_string();
            let numbers = self.awaited.get_mut(&id)?;
            let number = numbers.pop_front();
            if numbers.is_empty() {
                self.awaited.remove(&id);
            }
            return self.responses.remove(&number?).map(|response| response.queue);
        }
        let token = message.get("params").and_then(|params| params.get("progressToken"));
        let open = || self.responses.values().rev().filter(|it| it.takes_events && !it.queue.is_closed());
        let of_token = token.and_then(|token| open().find(|response| response.token.as_ref() == Some(token)));
        let response = of_token.or_else(|| open().next()).map(|response| response.queue.clone());
        response.or_else(|| self.listener.clone().filter(|listener| !listener.is_closed()))
    }

    /// Keeps a message until a client listens.
    pub(super) fn wait(&mut self, message: Bytes) {
        self.waiting_bytes += message.len();
        self.waiting.push_back(message);
        while self.waiting_bytes > MOST_WAITING {
            let Some(dropped) = self.waiting.pop_front() else { break };
            self.waiting_bytes -= dropped.len();
        }
    }

    pub(super) fn end(&mut self) {
        *self = Self { has_ended: true, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn send(routes: &mut Routes, message: &Value) -> bool {
        let sent = routes.of(message).is_some_and(|queue| queue.try_send(Bytes::from(message.to_string())).is_ok());
        if !sent {
            routes.wait(Bytes::from(message.to_string()));
        }
        sent
    }

    fn received(messages: &mut Receiver<Bytes>) -> Vec<Value> {
        std::iter::from_fn(|| messages.try_recv().ok())
            .map(|message| serde_json::from_slice(&message).unwrap())
            .collect()
    }

    #[test]
    fn messages_go_to_the_streams_that_they_belong_to() {
        let mut routes = Routes::default();
        let note = |text: &str| json!({"method": "notifications/message", "params": {"data": text}});
        let progress = json!({"method": "notifications/progress", "params": {"progressToken": 1}});
        assert!(!send(&mut routes, &note("early")));
        let mut first = routes.open("1", Some(json!(1)), true).unwrap();
        let mut second = routes.open("1", None, true).unwrap();
        let mut silent = routes.open("\"1\"", None, false).unwrap();
        for message in [
            &note("a"),
            &progress,
            &json!({"id": 1, "result": 1}),
            &json!({"id": "1", "result": 2}),
            &json!({"id": 1, "result": 3}),
        ] {
            assert!(send(&mut routes, message), "{message}");
        }
        assert_eq!(received(&mut first), [progress, json!({"id": 1, "result": 1})]);
        assert_eq!(received(&mut second), [note("a"), json!({"id": 1, "result": 3})]);
        assert_eq!(received(&mut silent), [json!({"id": "1", "result": 2})]);
        assert!(!send(&mut routes, &note("late")) && first.is_closed());
        let (mut listened, _, waited) = routes.listen();
        assert_eq!(waited.len(), 2);
        assert!(send(&mut routes, &note("now")));
        assert_eq!(received(&mut listened), [note("now")]);
        routes.end();
        assert!(routes.open("2", None, true).is_none());
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut routes = Routes::default();
        (0..10).for_each(|_| routes.wait(Bytes::from(vec![0; 1 << 20])));
        assert_eq!((routes.waiting.len(), routes.waiting_bytes), (4, 4 << 20));
    }
}
