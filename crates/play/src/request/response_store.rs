//! Responses that are kept (vLLM's `VLLM_ENABLE_RESPONSES_API_STORE=1`): what they came to, the messages that they answer,
//! and what of them is still being made.
//!
//! The engine keeps everything for ever. Here the oldest are forgotten beyond [`MOST_RESPONSES`] responses or
//! [`MOST_BYTES`] bytes of their texts; the newest one always stays. The events of a response that is being made are
//! counted when it is over.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use futures_util::{Stream, stream};
use serde_json::Value;
use tokio::{sync::watch, task::AbortHandle};

use api::{
    ApiError,
    responses::{cancelled, history, not_cancellable, not_found},
};
use base::lock::Lock;

/// Responses that are kept at most.
const MOST_RESPONSES: usize = 1_000;

/// Bytes that are kept at most, unless a single response has more: 64 MiB.
const MOST_BYTES: usize = 64 * 1024 * 1024;

/// The events of a response in the background, as far as they were sent.
#[derive(Debug, Default)]
struct EventLog {
    events: Vec<Bytes>,
    is_over: bool,
}

/// Writes a response's events down. Those who read them end when this is dropped.
#[derive(Debug, Default)]
pub(in super::super) struct EventLogWriter(watch::Sender<EventLog>);

impl EventLogWriter {
    pub(in super::super) fn write(&self, event: Bytes) {
        self.0.send_modify(|log| log.events.push(event));
    }

    /// No event follows the last one.
    pub(in super::super) fn end(&self) {
        self.0.send_modify(|log| log.is_over = true);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseProgress {
    Queued,
    Over,
    Cancelled,
}

#[derive(Debug)]
struct StoredResponse {
    body: String,
    messages: Arc<[Value]>,
    /// Bytes of the messages as JSON.
    messages_size: usize,
    progress: ResponseProgress,
    events: Option<watch::Receiver<EventLog>>,
    task: Option<AbortHandle>,
}

impl StoredResponse {
    fn size(&self) -> usize {
        let logged = self.events.as_ref().filter(|_| self.progress != ResponseProgress::Queued);
        let logged = logged.map_or(0, |events| events.borrow().events.iter().map(Bytes::len).sum());
        self.body.len() + self.messages_size + logged
    }
}

#[derive(Debug, Default)]
pub(in super::super) struct StoredResponses(Lock<StoreState>);

#[derive(Debug, Default)]
struct StoreState {
    entries: HashMap<String, (usize, StoredResponse)>,
    /// Oldest first.
    order: VecDeque<String>,
    bytes: usize,
}

impl StoreState {
    fn put(&mut self, id: &str, entry: StoredResponse) {
        self.remove(id);
        let size = entry.size();
        self.bytes += size;
        self.order.push_back(id.to_owned());
        self.entries.insert(id.to_owned(), (size, entry));
        while self.order.len() > 1 && (self.order.len() > MOST_RESPONSES || self.bytes > MOST_BYTES) {
            let Some(oldest) = self.order.pop_front() else { break };
            self.forget(&oldest);
        }
    }

    fn remove(&mut self, id: &str) -> Option<StoredResponse> {
        self.order.retain(|known| known != id);
        self.forget(id)
    }

    fn forget(&mut self, id: &str) -> Option<StoredResponse> {
        let (size, entry) = self.entries.remove(id)?;
        self.bytes -= size;
        Some(entry)
    }
}

impl StoredResponses {
    /// A response as it is now.
    pub(in super::super) fn body(&self, id: &str) -> Result<String, ApiError> {
        self.0.lock().entries.get(id).map(|(_, entry)| entry.body.clone()).ok_or_else(|| not_found(id))
    }

    /// The conversation that goes on after a response.
    pub(in super::super) fn conversation(&self, id: &str) -> Result<Vec<Value>, ApiError> {
        let (body, messages) = {
            let inside = self.0.lock();
            let (_, entry) = inside.entries.get(id).ok_or_else(|| not_found(id))?;
            (entry.body.clone(), Arc::clone(&entry.messages))
        };
        Ok(history(&messages, &body))
    }

    /// The events of a response from a place on; a negative place counts from the end, as the engine's do. They end where
    /// no more will come, where the engine's reader would wait for ever; a response that was no stream has none.
    pub(in super::super) fn events(
        &self,
        id: &str,
        from: i64,
    ) -> Result<impl Stream<Item = Bytes> + Send + 'static, ApiError> {
        let events = match self.0.lock().entries.get(id) {
            Some((_, entry)) => entry.events.clone(),
            None => return Err(not_found(id)),
        };
        Ok(stream::unfold((events, from), |(mut events, at)| async move {
            let log = events.as_mut()?;
            loop {
                {
                    let log = log.borrow_and_update();
                    let length = i64::try_from(log.events.len()).unwrap_or(i64::MAX);
                    let place = usize::try_from(if at < 0 { at.checked_add(length)? } else { at }).ok()?;
                    if let Some(event) = log.events.get(place) {
                        let next = if place + 1 == log.events.len() && log.is_over { i64::MAX } else { at + 1 };
                        let event = event.clone();
                        drop(log);
                        return Some((event, (events, next)));
                    }
                    if log.is_over {
                        return None;
                    }
                }
                log.changed().await.ok()?;
            }
        }))
    }

    /// Names what makes a response, so that it can be ended.
    pub(in super::super) fn made_by(&self, id: &str, task: AbortHandle) {
        match self.0.lock().entries.get_mut(id) {
            Some((_, entry)) if entry.progress == ResponseProgress::Queued => entry.task = Some(task),
            Some((_, entry)) if entry.progress == ResponseProgress::Cancelled => task.abort(),
            Some(_) | None => {}
        }
    }

    /// Ends a response in the background, and gives it as it is then.
    /// Errors: one that is not kept, or is over.
    pub(in super::super) fn cancel(&self, id: &str) -> Result<String, ApiError> {
        let mut inside = self.0.lock();
        let (_, entry) = inside.entries.get_mut(id).ok_or_else(|| not_found(id))?;
        if entry.progress != ResponseProgress::Queued {
            return Err(not_cancellable());
        }
        if let Some(task) = entry.task.take() {
            task.abort();
        }
        let Some(mut entry) = inside.remove(id) else { return Err(not_found(id)) };
        entry.body = cancelled(&entry.body);
        entry.progress = ResponseProgress::Cancelled;
        let body = entry.body.clone();
        inside.put(id, entry);
        Ok(body)
    }
}

/// A response that will be kept.
#[derive(Debug, Clone)]
pub(in super::super) struct ResponseStore {
    kept: Arc<StoredResponses>,
    id: String,
    messages: Arc<[Value]>,
}

impl ResponseStore {
    pub(in super::super) fn new(kept: &Arc<StoredResponses>, id: &str, messages: Vec<Value>) -> Self {
        Self { kept: Arc::clone(kept), id: id.to_owned(), messages: messages.into() }
    }

    fn entry(&self, body: String, progress: ResponseProgress) -> StoredResponse {
        let messages_size = self.messages.iter().map(|message| message.to_string().len()).sum();
        let messages = Arc::clone(&self.messages);
        StoredResponse { body, messages, messages_size, progress, events: None, task: None }
    }

    /// Keeps a response that is over, unless it was cancelled.
    pub(in super::super) fn keep(&self, body: String) {
        let mut entry = self.entry(body, ResponseProgress::Over);
        let mut inside = self.kept.0.lock();
        match inside.entries.get(&self.id) {
            Some((_, earlier)) if earlier.progress == ResponseProgress::Cancelled => return,
            Some((_, earlier)) if earlier.progress == ResponseProgress::Queued => {
                entry.events.clone_from(&earlier.events)
            }
            Some(_) | None => {}
        }
        inside.put(&self.id, entry);
    }

    /// Keeps a response that is about to be made in the background.
    pub(in super::super) fn queue(&self, body: String, events: Option<&EventLogWriter>) {
        let events = events.map(|log| log.0.subscribe());
        let entry = StoredResponse { events, ..self.entry(body, ResponseProgress::Queued) };
        self.kept.0.lock().put(&self.id, entry);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use serde_json::json;

    use super::*;

    fn keeper(kept: &Arc<StoredResponses>, id: &str) -> ResponseStore {
        ResponseStore::new(kept, id, vec![json!({"role": "user", "content": "Hi"})])
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let kept = Arc::new(StoredResponses::default());
        for number in 0..=MOST_RESPONSES {
            keeper(&kept, &number.to_string()).keep("{}".to_owned());
        }
        assert!(kept.body("0").is_err());
        assert!(kept.body("1").is_ok());
        let large = "x".repeat(MOST_BYTES);
        keeper(&kept, "large").keep(large);
        assert!(kept.body("1000").is_err());
        assert!(kept.body("large").is_ok());
        keeper(&kept, "last").keep("{}".to_owned());
        assert!(kept.body("large").is_err());
        let inside = kept.0.lock();
        assert_eq!((inside.order.len(), inside.entries.len()), (1, 1));
        assert_eq!(inside.bytes, inside.entries["last"].1.size());
    }

    #[test]
    fn what_was_cancelled_stays_so() {
        let kept = Arc::new(StoredResponses::default());
        let keeper = keeper(&kept, "r");
        keeper.queue(r#"{"status":"queued"}"#.to_owned(), None);
        assert_eq!(kept.cancel("r").unwrap(), r#"{"status":"cancelled"}"#);
        keeper.keep(r#"{"status":"completed"}"#.to_owned());
        assert_eq!(kept.body("r").unwrap(), r#"{"status":"cancelled"}"#);
        assert_eq!(kept.cancel("r").unwrap_err().status, 400);
    }

    #[tokio::test]
    async fn events_are_read_from_any_place() {
        let kept = Arc::new(StoredResponses::default());
        let log = EventLogWriter::default();
        keeper(&kept, "r").queue("{}".to_owned(), Some(&log));
        for event in ["a", "b", "c"] {
            log.write(Bytes::from(event));
        }
        log.end();
        for (from, expected) in [(0, "abc"), (2, "c"), (3, ""), (-2, "bc"), (-9, ""), (i64::MAX, "")] {
            let events: Vec<Bytes> = kept.events("r", from).unwrap().collect().await;
            assert_eq!(events.concat(), expected.as_bytes(), "{from}");
        }
    }

    #[tokio::test]
    async fn readers_end_with_the_writer() {
        let kept = Arc::new(StoredResponses::default());
        let log = EventLogWriter::default();
        keeper(&kept, "r").queue("{}".to_owned(), Some(&log));
        log.write(Bytes::from("a"));
        let events = kept.events("r", 0).unwrap();
        drop(log);
        assert_eq!(events.collect::<Vec<_>>().await.concat(), b"a");
    }
}
