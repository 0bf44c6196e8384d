//! The closest record of a request without one, and the places in which they differ.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    super::{CassettePlayer, request::IncomingRequest, secrets},
    edit::excerpt,
};
use crate::{
    recording::canonical::{Difference, Identity, Operation, differences},
    recording::cassette::Record,
    recording::redaction::Redactor,
    replay::matching::requests::RequestMatch,
};

/// Maximum number of differences that are shown.
pub(super) const MAX_DIFFERENCES: usize = 20;

/// Characters that are shown of a message that was added or left out.
const TEXT: usize = 40;

/// The closest record and its differences from a request.
pub(super) struct Comparison {
    /// Its file's name and its number, as `agent.yaml#3`.
    pub(super) name: String,
    /// Its number, file and line, as `#3 (agent.yaml:57)`.
    pub(super) place: String,
    /// The record as the error's JSON shows it, with its request.
    pub(super) record: Value,
    pub(super) differences: Vec<Difference>,
    /// Number of differences, those that are not kept too.
    pub(super) total: usize,
    /// Description of the numbers of messages, where they differ.
    pub(super) counts: Option<String>,
    /// Whether the record's request is about the same.
    pub(super) is_alike: bool,
    /// Whether only the exact form differs, so that a canonical comparison would match.
    pub(super) is_canonical: bool,
}

impl Comparison {
    pub(super) fn new(player: &CassettePlayer, asked: &IncomingRequest, at: usize, consumed: bool) -> Option<Self> {
        let (cassette, record) = player.records.get(at)?;
        let identity = player.index.identity(at)?;
        let file = player.config.cassettes.get(*cassette).map(|cassette| cassette.path.display().to_string())?;
        let is_exact = compares_exactly(&player.config.matching.chain);
        let (recorded, received) = match is_exact {
            true => (as_it_came(player, record), asked.shown.value()),
            false => (identity.body(), asked.identity.body()),
        };
        let mut found = differences(&recorded, &received);
        found.extend(queries(query_of(&identity.route), query_of(&asked.identity.route)));
        if is_exact {
            found.extend(order(found.is_empty(), identity, &asked.identity));
        } else {
            found.extend(headers(player, record, asked));
        }
        let total = found.len();
        found.truncate(MAX_DIFFERENCES);
        Some(Self {
            name: player.name_of(at),
            place: format!("#{} ({file}:{})", record.id, record.line),
            counts: counts(&recorded, &received, &found),
            record: json!({"record": record.id, "file": file, "line": record.line, "consumed": consumed,
                "request": recorded}),
            differences: found,
            total,
            is_alike: player.index.is_alike(&asked.identity, at),
            is_canonical: is_exact && identity.key == asked.identity.key,
        })
    }
}

/// Returns whether only requests match that are the same in every field.
fn compares_exactly(chain: &[RequestMatch]) -> bool {
    chain.contains(&RequestMatch::Exact) && !chain.contains(&RequestMatch::Canonical)
}

/// The body of a record as it was sent, without secrets.
fn as_it_came(player: &CassettePlayer, record: &Record) -> Value {
    secrets::shown_body(&mut Redactor::new(&player.config.secrets), &record.compared(), None).0.value()
}

/// Bodies that are equal as JSON are spelled in another way.
fn order(is_equal: bool, recorded: &Identity, received: &Identity) -> Option<Difference> {
    let differs = is_equal && recorded.exact != received.exact;
    let spelled = |text: &str| Some(Value::from(text));
    differs.then(|| Difference {
        path: "the order of fields".to_owned(),
        operation: Operation::Replace,
        recorded: spelled("another one"),
        received: spelled("another one"),
        at: None,
    })
}

/// The headers that count and differ.
fn headers<'a>(
    player: &'a CassettePlayer,
    record: &Record,
    asked: &'a IncomingRequest,
) -> impl Iterator<Item = Difference> + use<'a> {
    let recorded = secrets::headers_by(&mut Redactor::new(&player.config.secrets), record.headers.clone());
    let of = |headers: &[(String, String)], name: &str| {
        headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.clone())
    };
    let names = player.config.rules.headers.iter();
    names.filter_map(move |name| sided(format!("header {name}"), of(&recorded, name), of(&asked.counted, name)))
}

fn query_of(route: &str) -> &str {
    route.split_once('?').map_or("", |(_, query)| query)
}

/// The parameters of two queries that differ.
fn queries(recorded: &str, received: &str) -> Vec<Difference> {
    let of = |query: &str| -> BTreeMap<String, String> {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        pairs
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .collect()
    };
    let (recorded, mut received) = (of(recorded), of(received));
    let mut found: Vec<Difference> = Vec::new();
    for (name, value) in recorded {
        let other = received.remove(&name);
        found.extend(sided(format!("query {name}"), Some(value), other));
    }
    found.extend(received.into_iter().filter_map(|(name, value)| sided(format!("query {name}"), None, Some(value))));
    found
}

/// The difference of two texts, either of which may be missing.
fn sided(path: String, recorded: Option<String>, received: Option<String>) -> Option<Difference> {
    let operation = match (&recorded, &received) {
        (None, None) => return None,
        (Some(a), Some(b)) if a == b => return None,
        (Some(_), Some(_)) => Operation::Replace,
        (Some(_), None) => Operation::Remove,
        (None, Some(_)) => Operation::Add,
    };
    let value = |text: Option<String>| text.map(Value::from);
    Some(Difference { path, operation, recorded: value(recorded), received: value(received), at: None })
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
        let field = |name: &str| message.as_ref().and_then(|message| message.get(name)).and_then(Value::as_str);
        let kind = field("role").map(|role| format!("role {role}")).or(field("type").map(str::to_owned));
        let kind = kind.unwrap_or_else(|| "item".to_owned());
        let text = message
            .as_ref()
            .and_then(|message| text_of(message, TEXT))
            .map(|text| format!(" {text}"))
            .unwrap_or_default();
        let place = first.path.strip_prefix("$.").and_then(|path| path.strip_prefix(name)).unwrap_or_default();
        (recorded.len() != received.len()).then(|| {
            let (had, has) = (recorded.len(), received.len());
            format!("{name}: recorded has {had}, received {has}; first {word} at {place} ({kind}){text}")
        })
    })
}

/// The text of a message in a few words, whole or the first of its parts.
pub(super) fn text_of(message: &Value, most: usize) -> Option<String> {
    let content = message.get("content")?;
    let part = || content.as_array()?.iter().find_map(|part| part.get("text"));
    let text = if content.is_string() { content } else { part()? };
    Some(excerpt(&Some(text.clone()), None, most)).filter(|text| text != "''")
}

/// Returns whether a path is that of an item of a list.
pub(super) fn is_item(path: &str, list: &str) -> bool {
    path.strip_prefix(list).is_some_and(|rest| rest.ends_with(']') && !rest.contains('.'))
}
