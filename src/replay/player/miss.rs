//! The error for a request without a record: the closest record and the differences.
//!
//! The status is 422 and no retry is asked for: client libraries repeat 408, 409, 429 and what the server is at fault for, and
//! agents read meanings into 400 and 404.

use http::Response;
use serde_json::{Map, Value, json};

use super::{CassettePlayer, Config, request::IncomingRequest};
use crate::{
    net::server::ResponseBody,
    recording::canonical::{Difference, Operation, differences},
    replay::account::http::{put, whole},
    replay::matching::requests::Lookup,
};

/// Maximum number of differences shown.
const MAX_DIFFERENCES: usize = 20;
/// Maximum number of characters shown of each value.
const LONGEST: usize = 200;

/// Detail of a miss for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissDetail {
    /// The closest record, the differences, both requests.
    #[default]
    Full,
    /// The message only.
    Summary,
    /// That there was none.
    None,
}

/// Reason for which no record answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    NoMatch,
    Exhausted,
    NoRecords,
    Frozen,
}

impl Reason {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::NoMatch => "no_match",
            Self::Exhausted => "exhausted",
            Self::NoRecords => "no_records_for_boundary",
            Self::Frozen => "frozen",
        }
    }
}

/// A request without a record, with its explanation.
pub(super) struct Miss {
    reason: Reason,
    /// Path of the request, which decides the form of the error.
    path: String,
    message: String,
    param: Option<String>,
    detail: Map<String, Value>,
    /// The place of the closest record of the same boundary.
    pub(super) closest: Option<usize>,
}

impl Miss {
    pub(super) fn new(
        cassette_player: &CassettePlayer,
        asked: &IncomingRequest,
        reason: Reason,
        lookup: &Lookup,
    ) -> Self {
        // The search holds no lock.
        let served = cassette_player.lock().get(&asked.session).map(|state| state.session.served()).unwrap_or_default();
        let near = match reason {
            Reason::Exhausted => Vec::new(),
            _ => cassette_player.index.closest(&asked.identity, &served, 3),
        };
        let (consumed, is_consumed) = (served.len(), near.first().is_some_and(|at| served.contains(at)));
        let found = Closest::of(cassette_player, asked, &near, is_consumed);
        let mut text = MissMessage { cassette_player, asked, reason, lines: Vec::new(), hints: Vec::new() };
        text.opening(consumed, lookup);
        let unserved = cassette_player.index.unserved(asked.identity.key).filter(|_| reason != Reason::Exhausted);
        unserved.into_iter().for_each(|at| text.unserved(at));
        if let Some(found) = &found {
            text.closest(found);
        }
        text.advice(found.as_ref());
        let MissMessage { lines, hints, .. } = text;
        let mut detail = Map::new();
        let mut put = |name: &str, value: Value| drop(detail.insert(name.to_owned(), value));
        put("reason", reason.name().into());
        put("boundary", asked.identity.boundary.clone().into());
        put("session", asked.session.clone().into());
        put("mode", cassette_player.config.mode.name().into());
        put("match", cassette_player.config.matching.chain.iter().map(|by| by.name()).collect());
        put("received", asked.identity.body());
        put("received_key", asked.identity.key.to_string().into());
        if let Lookup::Exhausted { records, served_to, .. } = lookup {
            put("records", records.iter().map(|at| cassette_player.name_of(*at)).collect());
            put("served_to", served_to.clone().into());
        }
        if let Some(at) = unserved {
            put("unserved", cassette_player.name_of(at).into());
        }
        if let Some(found) = &found {
            put("closest", found.record.clone());
            put("diffs", found.differences.iter().map(shown).collect());
            put("diffs_total", found.total.into());
            put("near_misses", near.iter().map(|at| cassette_player.name_of(*at)).collect());
        }
        put("hints", hints.into());
        let param = found.as_ref().and_then(|found| found.differences.first()).map(|first| named(first).to_owned());
        let is_of_boundary =
            |at: &usize| cassette_player.index.identity(*at).is_some_and(|it| it.boundary == asked.identity.boundary);
        let closest = near.first().copied().filter(is_of_boundary);
        Self { reason, path: asked.path().to_owned(), message: lines.join("\n"), param, detail, closest }
    }

    /// Returns the message for people.
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the JSON body.
    pub(super) fn body(&self) -> Value {
        self.envelope(self.param.as_deref(), &self.message, Some(&self.detail))
    }

    fn envelope(&self, param: Option<&str>, message: &str, detail: Option<&Map<String, Value>>) -> Value {
        let mut error = if self.path.starts_with("/v1/messages") {
            json!({"type": "error", "error": {"type": "vcr_miss", "message": message}})
        } else {
            json!({"error": {"message": message, "type": "vcr_miss", "param": param, "code": self.reason.name()}})
        };
        if let (Some(detail), Some(inner)) = (detail, error.get_mut("error").and_then(Value::as_object_mut)) {
            inner.insert("vcr".to_owned(), detail.clone().into());
        }
        error
    }

    pub(super) fn response(&self, config: &Config) -> Response<ResponseBody> {
        let body = match config.miss_detail {
            MissDetail::Full => self.body(),
            MissDetail::Summary => self.envelope(self.param.as_deref(), &self.message, None),
            MissDetail::None => self.envelope(None, "No recorded answer matched this request.", None),
        };
        let mut response = whole(config.miss_status, "application/json", body.to_string());
        put(response.headers_mut(), "x-should-retry", "false");
        put(response.headers_mut(), "x-vcr-miss", self.reason.name());
        response
    }
}

/// The closest record and how it differs.
struct Closest {
    name: String,
    record: Value,
    differences: Vec<Difference>,
    total: usize,
    /// Description of the numbers of messages, where they differ.
    counts: Option<String>,
}

impl Closest {
    fn of(cassette_player: &CassettePlayer, asked: &IncomingRequest, near: &[usize], consumed: bool) -> Option<Self> {
        let at = *near.first()?;
        let (cassette, record) = cassette_player.records.get(at)?;
        let identity = cassette_player.index.identity(at)?;
        let file =
            cassette_player.config.cassettes.get(*cassette).map(|cassette| cassette.path.display().to_string())?;
        let (recorded, received) = (identity.body(), asked.identity.body());
        let mut found = differences(&recorded, &received);
        let total = found.len();
        found.truncate(MAX_DIFFERENCES);
        Some(Self {
            name: format!("#{} ({file}:{})", record.id, record.line),
            counts: counts(&recorded, &received, &found),
            record: json!({"record": record.id, "file": file, "line": record.line, "consumed": consumed,
                "request": recorded}),
            differences: found,
            total,
        })
    }
}

/// Describes a message that was added or left out.
fn counts(recorded: &Value, received: &Value, found: &[Difference]) -> Option<String> {
    ["messages", "input"].iter().find_map(|name| {
        let (recorded, received) = (recorded.get(*name)?.as_array()?, received.get(*name)?.as_array()?);
        let list = format!("$.{name}[");
        let first = found.iter().find(|it| it.operation != Operation::Replace && is_item(&it.path, &list))?;
        let (word, message) = match first.operation {
            Operation::Add => ("extra", &first.received),
            Operation::Remove | Operation::Replace => ("missing", &first.recorded),
        };
        let role = message.as_ref().and_then(|message| message.get("role")).and_then(Value::as_str).unwrap_or("item");
        let place = first.path.strip_prefix("$.").and_then(|path| path.strip_prefix(name)).unwrap_or_default();
        (recorded.len() != received.len()).then(|| {
            let (had, has) = (recorded.len(), received.len());
            format!("{name}: recorded has {had}, received {has}; first {word} at {place} (role {role})")
        })
    })
}

fn is_item(path: &str, list: &str) -> bool {
    path.strip_prefix(list).is_some_and(|rest| rest.ends_with(']') && !rest.contains('.'))
}

/// Lines of the message, and hints for programs.
struct MissMessage<'a> {
    cassette_player: &'a CassettePlayer,
    asked: &'a IncomingRequest,
    reason: Reason,
    lines: Vec<String>,
    hints: Vec<&'static str>,
}

impl MissMessage<'_> {
    fn opening(&mut self, consumed: usize, lookup: &Lookup) {
        let (cassette_player, asked) = (self.cassette_player, self.asked);
        let boundary = &asked.identity.boundary;
        let request = format!("{boundary}, {}", asked.identity.route);
        self.lines.push(match (self.reason, lookup) {
            (Reason::Exhausted, Lookup::Exhausted { records, served_to, .. }) => {
                let names: Vec<String> = records.iter().take(5).map(|at| cassette_player.name_of(*at)).collect();
                let served: Vec<String> = served_to.iter().take(10).map(u64::to_string).collect();
                format!(
                    "This request ({request}) matched {} (recorded {} times), and all of them were already served (to requests {} of this session).",
                    names.join(", "), records.len(), served.join(", ")
                )
            }
            (Reason::NoRecords, _) => format!(
                "Nothing was recorded for {boundary} ({request}). Recorded: {}.",
                cassette_player.index.boundaries().join(", ")
            ),
            (Reason::Frozen, _) => format!("No recorded interaction matched this request ({request}), and it may not go upstream."),
            _ => format!("No recorded interaction matched this request ({request})."),
        });
        let files: Vec<String> =
            cassette_player.config.cassettes.iter().map(|cassette| cassette.path.display().to_string()).collect();
        let ways: Vec<&str> = cassette_player.config.matching.chain.iter().map(|by| by.name()).collect();
        self.lines.push(format!(
            "Cassette: {} ({} records, {} unconsumed)  Mode: {}  Match: {}",
            files.join(", "),
            cassette_player.index.len(),
            cassette_player.index.len().saturating_sub(consumed),
            cassette_player.config.mode.name(),
            ways.join(",")
        ));
    }

    /// Adds that the request was recorded in a record that is not played.
    fn unserved(&mut self, at: usize) {
        let why = match self.cassette_player.records.get(at).and_then(|(_, record)| record.aborted) {
            Some(events) => format!("its client left after {events} events"),
            None => "it is another try of a request that was answered".to_owned(),
        };
        let place = self.cassette_player.line_of(at);
        self.lines.push(format!("It was recorded, but that record is never played, since {why}: {place}"));
    }

    fn closest(&mut self, found: &Closest) {
        let differences = if found.total == 1 { "difference" } else { "differences" };
        self.lines.push(format!("Closest recorded request: {}, {} {differences}:", found.name, found.total));
        self.lines.extend(found.counts.iter().map(|counts| format!("  - {counts}")));
        for difference in found.differences.iter().take(MAX_DIFFERENCES) {
            let place = named(difference);
            let (recorded, received) =
                (excerpt(difference, &difference.recorded), excerpt(difference, &difference.received));
            self.lines.push(match (difference.operation, difference.at) {
                (Operation::Add, _) => format!("  - {place}: not recorded, received {received}"),
                (Operation::Remove, _) => format!("  - {place}: recorded {recorded}, not received"),
                (Operation::Replace, Some(at)) => {
                    format!("  - {place}: recorded {recorded} received {received} (first difference at char {at})")
                }
                (Operation::Replace, None) => format!("  - {place}: recorded {recorded} received {received}"),
            });
        }
    }

    fn advice(&mut self, found: Option<&Closest>) {
        self.lines.push("How to fix:".to_owned());
        if self.reason == Reason::Exhausted {
            self.hints.extend(["on_exhausted", "rerecord"]);
            self.lines
                .push("  * serve the last one again with --on-exhausted last, or record the extra call".to_owned());
            return;
        }
        self.hints.push("rerecord");
        self.lines.push("  * intended change: re-record with `vllm-vcr tap --mode new-episodes ...`".to_owned());
        let edited = found.and_then(|found| found.differences.iter().find(|it| it.operation == Operation::Replace));
        // Of bytes, and of a body that is another one altogether, no place can be left out.
        let is_field = |it: &&Difference| self.asked.raw.is_none() && it.path != "$";
        if let Some(first) = edited.filter(is_field) {
            self.hints.push("scrub");
            self.lines.push(format!("  * volatile text: add --scrub or --ignore {}", in_shell(&first.path)));
        }
        self.hints.push("live");
        let boundary = in_shell(&self.asked.identity.boundary);
        self.lines.push(format!("  * run it for real: --live {boundary} --upstream URL"));
    }
}

/// Quotes a word for a shell.
fn in_shell(word: &str) -> String {
    let is_plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '@' | '%' | '+' | '=');
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn named(difference: &Difference) -> &str {
    difference.path.strip_prefix("$.").unwrap_or(&difference.path)
}

/// Shortens a value; a long text to the surroundings of its first difference.
fn excerpt(difference: &Difference, value: &Option<Value>) -> String {
    match value {
        Some(Value::String(text)) => {
            let start = difference.at.unwrap_or(0).saturating_sub(20);
            let chars: Vec<char> = text.chars().skip(start).take(LONGEST).collect();
            let before = if start > 0 { "…" } else { "" };
            let after = if start + chars.len() < text.chars().count() { "…" } else { "" };
            let shown: String = chars.into_iter().collect();
            format!("'{before}{}{after}'", shown.replace('\n', "\\n"))
        }
        Some(value) => clipped(&value.to_string()),
        None => "nothing".to_owned(),
    }
}

fn clipped(text: &str) -> String {
    let short: String = text.chars().take(LONGEST).collect();
    if short.len() < text.len() { short + "…" } else { short }
}

/// Encodes a difference as JSON.
fn shown(difference: &Difference) -> Value {
    let mut shown = json!({"path": difference.path, "op": difference.operation.name()});
    if let Some(fields) = shown.as_object_mut() {
        for (name, value) in [("recorded", &difference.recorded), ("received", &difference.received)] {
            let value = value.as_ref().map(|value| match value {
                Value::String(text) => Value::String(clipped(text)),
                Value::Array(_) | Value::Object(_) => Value::String(clipped(&value.to_string())),
                scalar => scalar.clone(),
            });
            fields.extend(value.map(|value| (name.to_owned(), value)));
        }
        fields.extend(difference.at.map(|at| ("at".to_owned(), at.into())));
    }
    shown
}
