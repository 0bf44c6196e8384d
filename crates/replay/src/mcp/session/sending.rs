//! Records on their way to the client: event by event, with values in place of placeholders, up to a reply of the client that is waited
//! for; and how its replies differ from the recorded ones.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value};

use super::{MOST_ASKS, McpSession, MessageSteps, PendingReply, SentMessage, SessionStep};
use crate::{
    matching::named_later::has_same_form,
    mcp::{
        era::Era,
        message::Id,
        playback::{Playback, PlaybackStep},
        record_index::IndexedRecord,
    },
    miss::{edits, one},
};
use base::one_line::clipped;
use recording::{canonical::differences, mcp::Broken, redaction::PlaceholderValues};

/// Longest wait for a further call that the recorded server's end cut off.
const CUT_WITHIN: Duration = Duration::from_secs(5);

impl McpSession {
    /// Begins to send a record for a message, with the values that its placeholders stand for. Counts records that have some still.
    pub(super) fn playback(
        &mut self,
        at: Option<usize>,
        sender: (u64, Option<Id>),
        (method, params): (&str, &Value),
        era: Era,
    ) -> Playback {
        let values = at.map(|at| self.values(at, method, params)).unwrap_or_default();
        Playback::new(at, sender, params, era, values)
    }

    fn values(&mut self, at: usize, method: &str, params: &Value) -> PlaceholderValues {
        let Some(source) = self.index.records().get(at).map(IndexedRecord::source) else {
            return PlaceholderValues::default();
        };
        let (plan, is_source) = (self.index.plans.of(source), self.index.plans.is_source(source));
        if plan.is_none() && !is_source {
            return PlaceholderValues::default();
        }
        let (_, seen) = self.index.identify_with_secrets(method, params);
        let values = plan.map(|plan| plan.values(&seen, &self.earlier)).unwrap_or_default();
        self.account.counts.placeholders += u64::from(plan.is_some_and(|plan| plan.leaves_any(&values)));
        if is_source {
            self.earlier.insert(source, seen);
        }
        values
    }

    /// Sends what is next of a record, up to a reply that is waited for.
    pub(super) fn go_on(&mut self, mut playback: Playback, out: &mut MessageSteps) {
        let index = Arc::clone(&self.index);
        let Some(indexed) = playback.at.and_then(|at| index.records().get(at)) else { return };
        let method = indexed.record.method.as_str();
        let version = (method == "initialize").then(|| self.version.clone());
        let (era, stream) = (playback.era, playback.stream);
        loop {
            let is_unsolicited = playback.is_unsolicited();
            let is_held = playback.is_held(&indexed.record);
            let mut send = |message| out.steps.push(SessionStep::Send(SentMessage { stream, message, is_unsolicited }));
            let ask = Id::from(self.asks);
            let change = |answer: &mut Map<String, Value>| {
                era.convert(method, answer);
                let result = answer.get_mut("result").and_then(Value::as_object_mut);
                if let (Some(version), Some(result)) = (&version, result) {
                    result.insert("protocolVersion".to_owned(), version.as_str().into());
                }
            };
            match playback.next(&indexed.record, &ask, &mut self.subscriptions, change) {
                PlaybackStep::Send(message) => send(message),
                PlaybackStep::Ended if self.awaits_cut(playback.at) => {
                    self.ends_at = Some(out.now.saturating_add(CUT_WITHIN));
                    return;
                }
                PlaybackStep::Ended => return out.steps.push(SessionStep::End),
                PlaybackStep::SendTo(stream, message) => {
                    out.steps.push(SessionStep::Send(SentMessage { stream, message, is_unsolicited: false }));
                }
                PlaybackStep::Nothing if is_held => return self.hold(stream, playback.caller),
                PlaybackStep::Nothing => return out.steps.push(SessionStep::Done(stream)),
                PlaybackStep::Ask { message, reply, method } => {
                    let id = self.asks;
                    self.asks += 1;
                    send(message);
                    let Some(reply) = reply.filter(|_| self.waiting.len() < MOST_ASKS) else { continue };
                    let until = out.now.saturating_add(self.policy.reply_within);
                    self.waiting.insert(id, PendingReply { playback, method, reply, until });
                    return;
                }
            }
        }
    }

    /// Whether the end of the recorded server cut off other calls of this connection too, which the client has not sent yet. Over HTTP
    /// each has a stream of its own that ends.
    fn awaits_cut(&self, at: Option<usize>) -> bool {
        let records = self.index.records();
        let opened = |at| records.iter().take(at + 1).filter(|it| it.record.method == "initialize").count();
        let opened_here = at.filter(|_| !self.policy.over_http).map(opened);
        let is_left = |at: usize| self.consumption.times(at) == 0 && Some(opened(at)) == opened_here;
        records.iter().enumerate().any(|(at, it)| it.record.broken == Some(Broken::ServerEnded) && is_left(at))
    }

    /// The time at which a reply, or a call that the server's end cut off, is no longer waited for.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        // All wait equally long, and their ids count up.
        let waiting = self.waiting.values().next().map(|waiting| waiting.until);
        waiting.into_iter().chain(self.ends_at).min()
    }

    /// Goes on without the replies that are due by now, and ends where that is due.
    pub fn expire(&mut self, now: Duration) -> Vec<SessionStep> {
        let late = self.waiting.iter().take_while(|(_, waiting)| waiting.until <= now).map(|(id, _)| *id);
        let late: Vec<u64> = late.collect();
        let mut out = MessageSteps::new(0, now);
        for id in late {
            let Some(waiting) = self.waiting.remove(&id) else { continue };
            self.note_reply(&waiting, None);
            self.go_on(waiting.playback, &mut out);
        }
        if self.ends_at.take_if(|at| *at <= now).is_some() {
            out.steps.push(SessionStep::End);
        }
        out.steps
    }

    /// Takes a client's answer to a request of the server, and goes on with the record.
    pub(super) fn reply(&mut self, id: Option<&Id>, answer: &Map<String, Value>, out: &mut MessageSteps) {
        let waiting = id.and_then(|id| self.waiting.remove(&id.value().as_u64()?));
        match waiting {
            Some(waiting) => {
                self.note_reply(&waiting, Some(answer));
                self.go_on(waiting.playback, out);
            }
            None => self.forward_further(out),
        }
    }

    fn note_reply(&mut self, waiting: &PendingReply, answer: Option<&Map<String, Value>>) {
        let recorded = self.index.without_secrets(waiting.reply.clone().into());
        let received = answer.map(|answer| self.index.without_secrets(answer.clone().into()));
        let now = match received {
            None => "none".to_owned(),
            Some(received) if has_same_form(&recorded, &received) => return,
            Some(received) => {
                let found = differences(&recorded, &received);
                let listed: Vec<String> = edits(&found).iter().take(3).map(one).collect();
                format!("{} ({})", short(&received), listed.join("; "))
            }
        };
        let indexed = waiting.playback.at.and_then(|at| self.index.records().get(at));
        let name = format!("{} {}", indexed.map(|indexed| indexed.name()).unwrap_or_default(), waiting.method);
        self.account.note_reply(name, short(&recorded), now);
    }
}

fn short(value: &Value) -> String {
    clipped(&value.to_string(), 200)
}
