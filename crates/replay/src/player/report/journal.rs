//! What becomes of each request, for the [`Journal`](crate::account::Journal).

use serde_json::{Map, Value};
use time::OffsetDateTime;

use crate::{
    account::{JournalEntry, LARGEST_BODY},
    player::{CassettePlayer, Decision, incoming::IncomingRequest},
};

/// Reason in the extensions of a request, or of its response, for which no record answered it; with its number where it is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MissCause(pub(in crate::player) &'static str, pub(in crate::player) Option<u64>);

impl MissCause {
    fn fields(&self) -> impl Iterator<Item = (String, Value)> {
        let Self(reason, number) = *self;
        let page = number.map(|number| ("miss".to_owned(), format!("/vcr/misses/{number}").into()));
        [Some(("reason".to_owned(), reason.into())), page].into_iter().flatten()
    }
}

impl CassettePlayer {
    /// The number and the entry of a request whose outcome is not known.
    pub(crate) fn begin_entry(&self, incoming: &IncomingRequest) -> (u64, JournalEntry) {
        let body_bytes = incoming.bytes.len();
        let is_kept = body_bytes > 0 && body_bytes <= LARGEST_BODY;
        let entry = JournalEntry {
            at: Some(OffsetDateTime::now_utc()),
            session: incoming.session.clone(),
            request: incoming.identity.route.clone(),
            boundary: incoming.identity.boundary.clone(),
            body: is_kept.then(|| incoming.shown.to_string()),
            body_bytes,
            ..JournalEntry::default()
        };
        (self.shared.journal.begin(), entry)
    }

    /// Keeps the entry of a request whose outcome is decided.
    pub(crate) fn end_entry(&self, (number, entry): (u64, JournalEntry), decision: &Decision) {
        let (outcome, why) = outcome(decision);
        self.shared.journal.keep(number, JournalEntry { outcome, why, ..entry });
    }
}

fn outcome(decision: &Decision) -> (&'static str, Map<String, Value>) {
    let mut why = Map::new();
    let mut put = |name: &str, value: Value| drop(why.insert(name.to_owned(), value));
    let outcome = match decision {
        Decision::Answer(response) => {
            let cause = response.extensions().get::<MissCause>();
            let replaced = response.headers().get("x-vcr-record").and_then(|name| name.to_str().ok());
            put("status", response.status().as_u16().into());
            replaced.into_iter().for_each(|record| put("record", record.into()));
            why.extend(cause.into_iter().flat_map(MissCause::fields));
            match (cause, replaced) {
                (Some(_), _) => "missed",
                (None, Some(_)) => "faulted",
                (None, None) => "refused",
            }
        }
        Decision::Replay(response) => {
            let texts = [("record", "x-vcr-record"), ("match", "x-vcr-match")];
            let known = texts.into_iter().filter_map(|(name, header)| Some((name, response.own(header)?)));
            known.for_each(|(name, text)| put(name, text.into()));
            put("status", response.status().into());
            if response.own("x-vcr-record").is_some() { "replayed" } else { "stubbed" }
        }
        Decision::Forward(forward) => {
            why.extend(forward.request.extensions().get().into_iter().flat_map(MissCause::fields));
            let compared =
                forward.pending.as_ref().map(|pending| pending.with.as_ref().map(|with| with.record.as_str()));
            if let Some(Some(record)) = compared {
                why.insert("record".to_owned(), record.into());
            }
            match compared {
                Some(Some(_)) => "compared",
                Some(None) => "recorded",
                None => "forwarded",
            }
        }
        Decision::Pass(request) => {
            why.extend(request.extensions().get().into_iter().flat_map(MissCause::fields));
            "passed"
        }
    };
    (outcome, why)
}
