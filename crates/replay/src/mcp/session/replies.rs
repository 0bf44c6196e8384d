//! Replies of a client to requests of the server: what waits for them, and how they differ from the recorded ones.

use std::time::Duration;

use serde_json::{Map, Value};

use super::{Out, Session, Step, Waiting};
use crate::{
    mcp::message::Id,
    miss::{edits, one},
};
use base::one_line::clipped;
use recording::canonical::differences;

impl Session {
    /// The time at which a reply is no longer waited for.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        // All wait equally long, and their ids count up.
        self.waiting.values().next().map(|waiting| waiting.until)
    }

    /// Goes on without the replies that are due by now.
    pub fn expire(&mut self, now: Duration) -> Vec<Step> {
        let late = self.waiting.iter().take_while(|(_, waiting)| waiting.until <= now).map(|(id, _)| *id);
        let late: Vec<u64> = late.collect();
        let mut out = Out::new(0);
        for id in late {
            let Some(waiting) = self.waiting.remove(&id) else { continue };
            self.note_reply(&waiting, None);
            self.go_on(waiting.turn, now, &mut out);
        }
        out.steps
    }

    /// Takes a client's answer to a request of the server, and goes on with the record.
    pub(super) fn reply(&mut self, id: Option<&Id>, answer: &Map<String, Value>, now: Duration, out: &mut Out) {
        let waiting = id.and_then(|id| self.waiting.remove(&id.value().as_u64()?));
        match waiting {
            Some(waiting) => {
                self.note_reply(&waiting, Some(answer));
                self.go_on(waiting.turn, now, out);
            }
            None => self.forward_further(out),
        }
    }

    fn note_reply(&mut self, waiting: &Waiting, answer: Option<&Map<String, Value>>) {
        let recorded = self.index.without_secrets(waiting.reply.clone().into());
        let received = answer.map(|answer| self.index.without_secrets(answer.clone().into()));
        let name = || {
            let indexed = waiting.turn.at.and_then(|at| self.index.records().get(at));
            format!("{} {}", indexed.map(|indexed| indexed.name()).unwrap_or_default(), waiting.method)
        };
        let (recorded, now) = match received {
            None => (short(&recorded), "none".to_owned()),
            Some(received) if received == recorded => return,
            Some(received) => {
                let found = differences(&recorded, &received);
                let listed: Vec<String> = edits(&found).iter().take(3).map(one).collect();
                (short(&recorded), format!("{} ({})", short(&received), listed.join("; ")))
            }
        };
        let name = name();
        self.account.note_reply(&name, recorded, now);
    }
}

fn short(value: &Value) -> String {
    clipped(&value.to_string(), 200)
}
