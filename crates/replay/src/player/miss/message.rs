//! Facts of a cassette and a request in the message of a miss.

use crate::{
    matching::requests::Lookup,
    miss::{Advice, Comparison, Edit, Explanation, NAME, SHORT, summary},
    player::{CassettePlayer, incoming::IncomingRequest, miss::NoRecordReason},
};
use base::one_line::{clipped, counted};

pub(super) struct MissFacts<'a> {
    pub(super) player: &'a CassettePlayer,
    pub(super) incoming: &'a IncomingRequest,
    pub(super) reason: NoRecordReason,
    pub(super) lookup: &'a Lookup,
    /// Number of records that were consumed.
    pub(super) consumed: usize,
    /// The record of the same request that is never played.
    pub(super) unserved: Option<usize>,
    pub(super) found: Option<&'a Comparison>,
    /// Why no hand-written record answers, a line for each.
    pub(super) by_hand: &'a [String],
    /// Where both requests are to be had.
    pub(super) address: Option<&'a str>,
}

impl MissFacts<'_> {
    pub(super) fn explanation<'e>(&'e self, edits: &'e [Edit<'e>], advice: &'e Advice) -> Explanation<'e> {
        let unplayed = |at| format!("It was recorded, but that record is never played, since {}", self.unplayed(at));
        // The first one is in the headline where nothing was recorded.
        let shown = if self.found.is_none() { 1 } else { 0 };
        Explanation {
            headline: self.headline(edits),
            found: self.found,
            edits,
            advice,
            before: self.unserved.map(unplayed),
            after: self.by_hand.iter().skip(shown).map(|reason| format!("Hand-written {reason}")).collect(),
            circumstances: self.circumstances(),
            address: self.address,
            is_of_nothing: self.reason == NoRecordReason::NoRecords,
        }
    }

    /// Describes what is missing, or how the request differs from the closest record.
    fn headline(&self, edits: &[Edit<'_>]) -> String {
        if let Some(missing) = &self.player.config.missing_cassette {
            return missing.clone();
        }
        let boundary = clipped(&self.incoming.identity.boundary, NAME);
        let request = format!("{boundary}, {}", clipped(&self.incoming.identity.route, NAME));
        match (self.reason, self.lookup, self.found) {
            (NoRecordReason::Exhausted, Lookup::Exhausted { records, served_to }, _) => {
                let names: Vec<String> = records.iter().take(5).map(|at| self.player.name_of(*at)).collect();
                let served: Vec<String> = served_to.iter().take(10).map(u64::to_string).collect();
                format!(
                    "No recorded interaction is left for this request: it matched {} (recorded {}), and all of them were already served (to requests {} of this session).",
                    names.join(", "),
                    counted(records.len(), "time"),
                    served.join(", ")
                )
            }
            (NoRecordReason::NoRecords, ..) if self.player.records.is_empty() && self.by_hand.is_empty() => {
                format!("No record and no rule is for this request ({request}).")
            }
            (NoRecordReason::NoRecords, ..) if self.by_hand.is_empty() => {
                let known = self.player.index.boundaries();
                let more = if known.len() > 5 { ", …" } else { "" };
                let known: Vec<String> = known.iter().take(5).map(|name| clipped(name, SHORT)).collect();
                format!("Nothing was recorded for {boundary} ({request}). Recorded: {}{more}.", known.join(", "))
            }
            (NoRecordReason::Frozen, ..) => {
                format!("No recorded interaction matched this request ({request}), and it may not go upstream.")
            }
            (NoRecordReason::NoMatch | NoRecordReason::NoRecords, _, None) if !self.by_hand.is_empty() => {
                let first = self.by_hand.first().map(|reason| clipped(reason, NAME * 2)).unwrap_or_default();
                format!("No record answers this request ({request}); {first}.")
            }
            (_, _, Some(found)) if self.unserved.is_none() && found.is_alike && !edits.is_empty() => {
                format!("No recorded interaction matched: {}.", summary(found, edits))
            }
            (_, _, Some(found)) if self.unserved.is_none() && !found.is_alike => {
                format!("No recorded interaction matched this request ({request}), and none is about the same.")
            }
            _ => format!("No recorded interaction matched this request ({request})."),
        }
    }

    /// Why a record is never played, and its place.
    fn unplayed(&self, at: usize) -> String {
        let why = match self.player.records.get(at).and_then(|(_, record)| record.aborted) {
            Some(events) => format!("its client left after {}", counted(events, "event")),
            None => "it is another try of a request that was answered".to_owned(),
        };
        format!("{why}: {}", self.player.line_of(at))
    }

    fn circumstances(&self) -> String {
        let (player, identity) = (self.player, &self.incoming.identity);
        let files = &player.config.cassettes;
        let first = files.first().map(|cassette| clipped(&cassette.path.display().to_string(), NAME));
        let more = if files.len() > 1 { format!(" and {} more", files.len() - 1) } else { String::new() };
        let ways: Vec<&str> = player.config.matching.chain.iter().map(|by| by.name()).collect();
        format!(
            "Request: {}, {}  Cassette: {}{more} ({}, {} unconsumed)  Mode: {}  Match: {}",
            clipped(&identity.boundary, NAME),
            clipped(&identity.route, NAME),
            first.unwrap_or_else(|| "none".to_owned()),
            counted(player.index.len(), "record"),
            player.index.len().saturating_sub(self.consumed),
            player.config.mode.name(),
            ways.join(",")
        )
    }
}
