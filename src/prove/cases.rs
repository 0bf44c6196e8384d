//! The cases: how a stream is cut and edited on its way to the gateway.

use bytes::Bytes;
use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};
use serde_json::Value;

use super::ground_truth::{GroundStream, answer_events};
use crate::{
    api::{Endpoint, answers::Answer},
    faults::{Fault, FaultSyntaxError},
    recording::cassette::SseEvent,
};

/// More events than a stream has.
const ALL_EVENTS: &str = "merge:10000";

/// Edits that a client must not notice, each alone and some together.
const RECUTS: [&[&str]; 20] = [
    &[],
    &[ALL_EVENTS],
    &["merge:2"],
    &["split"],
    &["split:utf8"],
    &["split:end"],
    &["split:byte,every=0ms"],
    &["drip:1,every=0ms"],
    &["drip:64,every=1ms"],
    &["crlf"],
    &["crlf", "split:end"],
    &["crlf", "split:byte,every=0ms"],
    &["no-space"],
    &["comments"],
    &["bom at event 0"],
    &["keep-alive:20 at event 2"],
    &["huge-line:20000 at event 2"],
    &["huge-line:1000000 at event 2"],
    &["crlf", "no-space", "comments"],
    &["no-space", "split:utf8"],
];

/// Edits that random cuts are combined with; most have none.
const EDITS: [&[&str]; 8] = [&[], &[], &[], &[], &["crlf"], &["no-space"], &["comments"], &["crlf", "no-space"]];

/// Faults of which none may look like the end of an answer, at a place.
const FAILURES: [&str; 5] = ["error-event", "reset", "truncate", "close", "stall"];

/// Faults before an answer.
const REFUSALS: [&str; 3] = ["500", "503", "429:retry-after=1s"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CaseKind {
    /// The same stream in other writes.
    Recut,
    /// The stream fails.
    Failure,
    /// Many streams at once.
    Isolation,
}

/// A stream, and what is done to it before it reaches the gateway.
#[derive(Debug, Clone)]
pub(crate) struct ProveCase {
    /// Number of the stream of ground truth.
    pub stream: usize,
    /// Endpoint of the gateway that is asked.
    pub endpoint: Endpoint,
    /// What it is about.
    pub kind: CaseKind,
    /// Faults without conditions, in their order.
    pub edits: Vec<String>,
    /// With places, all events are one piece that is cut after these bytes.
    pub cuts: Option<Vec<u64>>,
}

impl ProveCase {
    /// A case of a stream with the places that its edits have.
    pub(super) fn new((stream, endpoint): (usize, Endpoint), kind: CaseKind, edits: &[impl ToString]) -> Self {
        Self { stream, endpoint, kind, edits: edits.iter().map(ToString::to_string).collect(), cuts: None }
    }

    /// The lines that make it happen, as [`Fault`] takes them, without conditions. Cuts are so long after each other.
    pub(crate) fn lines(&self, pause_ms: u64) -> Vec<String> {
        let mut lines = self.edits.clone();
        if let Some(cuts) = &self.cuts {
            lines.push(ALL_EVENTS.to_owned());
            if !cuts.is_empty() {
                let cuts: Vec<String> = cuts.iter().map(ToString::to_string).collect();
                lines.push(format!("split-at:{},every={pause_ms}ms", cuts.join(",")));
            }
        }
        lines
    }

    /// The faults of the case, for the request with this marker.
    pub(crate) fn faults(&self, marker: &str, pause_ms: u64) -> Result<Vec<Fault>, FaultSyntaxError> {
        self.lines(pause_ms).iter().map(|line| format!("{line} where prompt={marker}").parse()).collect()
    }

    /// Edits that are not about where writes end.
    pub(crate) fn edits_of_bytes(&self) -> Vec<String> {
        let is_cut = |edit: &&String| ["split", "merge", "drip", "split-at"].contains(&edit_kind(edit));
        self.edits.iter().filter(|edit| !is_cut(edit)).cloned().collect()
    }

    /// Returns true if something happens at a place of the stream, between its events.
    pub(crate) fn has_places(&self) -> bool {
        let is_placed =
            |edit: &String| FAILURES.iter().chain(&["huge-line", "keep-alive"]).any(|name| edit.starts_with(name));
        self.edits.iter().any(is_placed)
    }

    /// Returns true if it ends only when the client gives up: a stall for ever.
    pub(crate) fn stalls(&self) -> bool {
        self.edits.iter().any(|edit| edit.starts_with("stall at"))
    }

    /// The kinds of its edits, which distinguish cases of one sort from others.
    pub(crate) fn sort(&self) -> String {
        let cut = self.cuts.as_ref().map(|_| "split-at");
        let kinds: Vec<&str> = self.edits.iter().map(|edit| edit_kind(edit)).chain(cut).collect();
        if kinds.is_empty() { "as it is".to_owned() } else { kinds.join("+") }
    }
}

/// The kind of a fault, by its line.
pub(super) fn edit_kind(edit: &str) -> &str {
    edit.split([':', ' ']).next().unwrap_or_default()
}

/// Every recut of every stream once.
pub(super) fn recuts(streams: &[GroundStream]) -> Vec<ProveCase> {
    let of_all =
        |edits: &&[&str]| pairs(streams).map(|pair| ProveCase::new(pair, CaseKind::Recut, edits)).collect::<Vec<_>>();
    RECUTS.iter().flat_map(of_all).collect()
}

/// Every failure of every stream, before it, after its first event and in its middle.
pub(super) fn failures(streams: &[GroundStream]) -> Vec<ProveCase> {
    let mut cases = Vec::new();
    for (stream, ground) in streams.iter().enumerate() {
        for (endpoint, events) in &ground.by_endpoint {
            let last = finish_place(*endpoint, events);
            let mut places = vec![0, 1, last / 2, last];
            places.dedup();
            let placed = places.iter().filter(|place| **place <= last);
            let placed = placed.flat_map(|place| FAILURES.iter().map(move |name| format!("{name} at event {place}")));
            let edits = placed.chain(REFUSALS.map(str::to_owned));
            cases.extend(edits.map(|edit| ProveCase::new((stream, *endpoint), CaseKind::Failure, &[edit])));
        }
    }
    cases
}

pub(super) fn pairs(streams: &[GroundStream]) -> impl Iterator<Item = (usize, Endpoint)> {
    let with_numbers = streams.iter().enumerate();
    with_numbers.flat_map(|(number, stream)| stream.by_endpoint.iter().map(move |(endpoint, _)| (number, *endpoint)))
}

/// Number of events before the one with the finish reason.
fn finish_place(endpoint: Endpoint, events: &[SseEvent]) -> usize {
    let has_finish = |event: &SseEvent| finish_of(endpoint, &event.data).is_some();
    events.iter().position(has_finish).unwrap_or(events.len().saturating_sub(1))
}

/// The reason that an event gives for the end of an answer.
pub(super) fn finish_of(endpoint: Endpoint, event: &Value) -> Option<String> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    match endpoint {
        Endpoint::Messages => text(event.pointer("/delta/stop_reason")),
        Endpoint::Responses => {
            let kind = event.get("type")?.as_str()?;
            let ends = ["response.completed", "response.incomplete"].contains(&kind);
            ends.then(|| kind.trim_start_matches("response.").to_owned())
        }
        _ => event.get("choices")?.as_array()?.iter().find_map(|choice| text(choice.get("finish_reason"))),
    }
}

pub(super) fn answer_of(endpoint: Endpoint, events: &[SseEvent]) -> Option<Answer> {
    Answer::accumulate(endpoint, &answer_events(events))
}

/// Random cuts: one to four places, half of them where something may break.
#[derive(Debug)]
pub(super) struct RandomCuts {
    random: Xoshiro256PlusPlus,
}

impl RandomCuts {
    /// The same seed gives the same cuts.
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Xoshiro256PlusPlus::seed_from_u64(seed) }
    }

    /// A case of one of these streams, each with its bytes as they are served.
    pub(super) fn next(&mut self, served: &[((usize, Endpoint), Bytes)]) -> Option<ProveCase> {
        let ((stream, endpoint), bytes) = served.get(self.random.random_range(0..served.len().max(1)))?;
        let edits = EDITS.get(self.random.random_range(0..EDITS.len())).copied().unwrap_or_default();
        let edited = edited(bytes, edits);
        let delicate = delicate_places(&edited);
        let mut cuts = Vec::new();
        for _ in 0..self.random.random_range(1..=4) {
            let any = self.random.random_range(1..edited.len().max(2));
            let at = self.random.random_range(0..delicate.len().max(1) * 2);
            cuts.push(u64::try_from(*delicate.get(at).unwrap_or(&any)).ok()?);
        }
        cuts.sort_unstable();
        cuts.dedup();
        Some(ProveCase { cuts: Some(cuts), ..ProveCase::new((*stream, *endpoint), CaseKind::Recut, edits) })
    }
}

/// The bytes that edits leave, for the places of cuts.
fn edited(bytes: &Bytes, edits: &[&str]) -> Vec<u8> {
    let mut text = String::from_utf8_lossy(bytes).into_owned();
    for edit in edits {
        text = match *edit {
            "crlf" => text.replace('\n', "\r\n"),
            "no-space" => text.replace("data: ", "data:"),
            "comments" => text.replace("\n\n", "\n\n: comment\n\n"),
            _ => text,
        };
    }
    text.into_bytes()
}

/// Places at which readers break: within characters, ends of lines, names of fields and escapes.
pub(super) fn delicate_places(bytes: &[u8]) -> Vec<usize> {
    let pairs = bytes.windows(2).enumerate().filter(|(_, pair)| match pair {
        [before, after] => {
            *after & 0xc0 == 0x80
                || *before == b'\r'
                || *before == b'\n'
                || *after == b'\n'
                || *before == b'\\'
                || (*before == b'a' && *after == b':')
                || (*before == b':' && *after == b' ')
        }
        _ => false,
    });
    pairs.map(|(at, _)| at + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_made_of_faults() {
        for edits in RECUTS.iter().chain(&EDITS) {
            let edits = edits.iter().map(|edit| (*edit).to_owned()).collect();
            let case =
                ProveCase { stream: 0, endpoint: Endpoint::Chat, kind: CaseKind::Recut, edits, cuts: Some(vec![3, 7]) };
            assert!(case.faults("prove-s00000-c00000001", 2).is_ok());
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_cuts() {
        let served = [((0, Endpoint::Chat), Bytes::from("data: {\"a\":\"ü\"}\n\ndata: [DONE]\n\n"))];
        let draw = |seed| {
            let mut random = RandomCuts::new(seed);
            (0..20).map(|_| random.next(&served).unwrap().lines(2)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn delicate_places_are_in_characters_and_line_ends() {
        assert_eq!(delicate_places("ü\r\n".as_bytes()), [1, 3]);
        assert_eq!(delicate_places(b"a: b"), [1, 2]);
    }
}
