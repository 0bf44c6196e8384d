//! The closest record of a request without one, and the places in which they differ.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    matching::requests::RequestMatch,
    miss::{Comparison, RecordLocation},
    player::{CassettePlayer, incoming::IncomingRequest, secrets},
};
use recording::{
    canonical::{BodyDifference, Identity, Operation, differences},
    cassette::CassetteRecord,
    redaction::Redactor,
};

/// Compares a request with a record.
pub(super) fn compared(
    player: &CassettePlayer,
    request: &IncomingRequest,
    at: usize,
    is_consumed: bool,
) -> Option<Comparison> {
    let (cassette, record) = player.records.get(at)?;
    let identity = player.index.identity(at)?;
    let file = &player.config.cassette(*cassette).display().to_string();
    let chain = &player.config.matching.chain;
    let is_exact = chain.contains(&RequestMatch::Exact) && !chain.contains(&RequestMatch::Canonical);
    let as_it_came = || secrets::shown_body(&mut Redactor::new(&player.config.secrets), &record.compared(), None).0;
    let (recorded, received) = match is_exact {
        true => (as_it_came().value(), request.shown.value()),
        false => (identity.body(), request.identity.body()),
    };
    let mut found = differences(&recorded, &received);
    reordered_tools(&recorded, &received, &mut found);
    found.extend(queries(query_of(&identity.route), query_of(&request.identity.route)));
    if is_exact {
        found.extend(order(found.is_empty(), identity, &request.identity));
    } else {
        found.extend(headers(player, record, request));
    }
    let (name, id, line) = (player.name_of(at), record.id, record.line);
    let place = RecordLocation { name, file, id, line, is_consumed };
    Some(Comparison {
        is_alike: player.index.is_alike(&request.identity, at),
        is_canonical: is_exact && identity.key == request.identity.key,
        ..Comparison::new(place, &recorded, (&recorded, &received), found)
    })
}

/// Makes the differences of tools that are the same in another order one.
fn reordered_tools(recorded: &Value, received: &Value, found: &mut Vec<BodyDifference>) {
    for field in ["tools", "functions"] {
        let of = |body: &Value| body.get(field).and_then(Value::as_array).cloned();
        let (Some(a), Some(b)) = (of(recorded), of(received)) else { continue };
        let sorted = |list: &[Value]| {
            let mut texts: Vec<String> = list.iter().map(Value::to_string).collect();
            texts.sort_unstable();
            texts
        };
        if a == b || a.len() != b.len() || sorted(&a) != sorted(&b) {
            continue;
        }
        let names = |list: &[Value]| {
            let name = |tool: &Value| tool.pointer("/function/name").or_else(|| tool.get("name")).cloned();
            let names = list.iter().filter_map(name).filter_map(|name| name.as_str().map(str::to_owned));
            Some(Value::from(names.collect::<Vec<_>>().join(", ")))
        };
        let within = format!("$.{field}[");
        found.retain(|difference| !difference.path.starts_with(&within));
        let only = if found.is_empty() { "only " } else { "" };
        found.push(difference(format!("{only}the order of {field}"), Operation::Replace, names(&a), names(&b)));
    }
}

/// Bodies that are equal as JSON are spelled in another way.
fn order(is_equal: bool, recorded: &Identity, received: &Identity) -> Option<BodyDifference> {
    let differs = is_equal && recorded.exact != received.exact;
    let other = || Some(Value::from("another one"));
    differs.then(|| difference("the order of fields".to_owned(), Operation::Replace, other(), other()))
}

/// The headers that count and differ.
fn headers<'a>(
    player: &'a CassettePlayer,
    record: &CassetteRecord,
    request: &'a IncomingRequest,
) -> impl Iterator<Item = BodyDifference> + use<'a> {
    let recorded = secrets::headers_by(&mut Redactor::new(&player.config.secrets), record.headers.clone());
    let of = |headers: &[(String, String)], name: &str| {
        headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.clone())
    };
    let names = player.config.rules.headers.iter();
    names.filter_map(move |name| sided(format!("header {name}"), of(&recorded, name), of(&request.counted, name)))
}

fn query_of(route: &str) -> &str {
    route.split_once('?').map_or("", |(_, query)| query)
}

/// The parameters of two queries that differ.
fn queries(recorded: &str, received: &str) -> Vec<BodyDifference> {
    let of = |query: &str| -> BTreeMap<String, String> {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        pairs
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .collect()
    };
    let (recorded, mut received) = (of(recorded), of(received));
    let mut found: Vec<BodyDifference> = Vec::new();
    for (name, value) in recorded {
        let other = received.remove(&name);
        found.extend(sided(format!("query {name}"), Some(value), other));
    }
    found.extend(received.into_iter().filter_map(|(name, value)| sided(format!("query {name}"), None, Some(value))));
    found
}

/// The difference of two texts, either of which may be missing.
fn sided(path: String, recorded: Option<String>, received: Option<String>) -> Option<BodyDifference> {
    let operation = match (&recorded, &received) {
        (None, None) => return None,
        (Some(a), Some(b)) if a == b => return None,
        (Some(_), Some(_)) => Operation::Replace,
        (Some(_), None) => Operation::Remove,
        (None, Some(_)) => Operation::Add,
    };
    let value = |text: Option<String>| text.map(Value::from);
    Some(difference(path, operation, value(recorded), value(received)))
}

fn difference(path: String, operation: Operation, recorded: Option<Value>, received: Option<Value>) -> BodyDifference {
    BodyDifference { path, operation, recorded, received, at: None }
}
