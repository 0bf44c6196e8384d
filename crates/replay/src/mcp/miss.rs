//! The error for a request that has no record, or none that is left.

use serde_json::{Map, Value, json};

use super::{
    message::{Id, error},
    nearest::Nearest,
    params::ParamKey,
    record_index::RecordIndex,
};
use crate::recording::canonical::{Difference, Operation, mcp_summary};

/// Code of the error for a request that was not recorded.
pub const NO_MATCH: i64 = 40400;

/// Code of the error for a request that was recorded less often.
pub const EXHAUSTED: i64 = 41000;

/// Differences that an error lists, and those in its message.
const MOST: usize = 20;
const IN_MESSAGE: usize = 3;

/// Characters of a value in an error, and in its message.
const LONGEST: usize = 200;
const IN_LINE: usize = 80;

/// A request without a record that can be served.
#[derive(Debug)]
pub(super) struct Miss<'t> {
    /// The records.
    pub index: &'t RecordIndex,
    /// Number of the request, from 1.
    pub request: u64,
    /// Server's name.
    pub server: &'t str,
    /// The request's method.
    pub method: &'t str,
    /// What counts of the request, without secrets.
    pub canonical: &'t Value,
    /// The hash of that.
    pub key: ParamKey,
    /// Why there is none.
    pub why: Why<'t>,
}

/// Reason of a miss.
#[derive(Debug)]
pub(super) enum Why<'t> {
    /// No record is of this request; the one that is most like it.
    NoMatch(Option<Nearest<'t>>),
    /// All of these records were served, each with the requests that it was served to.
    Exhausted(Vec<(usize, Vec<u64>)>),
    /// This record is of the other era of the protocol, and says what the client's has no words for.
    Era(usize, &'static str),
}

impl Miss<'_> {
    /// Its name in reports.
    #[must_use]
    pub(super) fn reason(&self) -> &'static str {
        match self.why {
            Why::NoMatch(_) => "no_match",
            Why::Exhausted(_) => "exhausted",
            Why::Era(..) => "era",
        }
    }

    /// The response to its request.
    #[must_use]
    pub(super) fn response(&self, id: &Id) -> Value {
        let code = match self.why {
            Why::NoMatch(_) | Why::Era(..) => NO_MATCH,
            Why::Exhausted(_) => EXHAUSTED,
        };
        error(Some(id), code, &self.message(), Some(json!({"vcr": self.detail()})))
    }

    fn params(&self) -> &Value {
        self.canonical.get("params").unwrap_or(&Value::Null)
    }

    /// For people: what is missing, how it differs from what was recorded, and what to do.
    #[must_use]
    pub(super) fn message(&self) -> String {
        let asked = clipped(&format!("{} {}", self.server, mcp_summary(self.method, self.params())), LONGEST);
        match &self.why {
            Why::Exhausted(records) => {
                let times = records.len();
                let first = records.first().and_then(|(at, _)| self.index.records().get(*at));
                let name = first.map(|indexed| indexed.name()).unwrap_or_default();
                let often = if times == 1 { "once".to_owned() } else { format!("{times} times") };
                format!(
                    "No recorded interaction is left for this request ({asked}): it was recorded {often} ({name}), and was sent more often. Use --on-exhausted last, or record the further call."
                )
            }
            Why::Era(at, why) => {
                let name = self.index.records().get(*at).map(|indexed| indexed.name()).unwrap_or_default();
                format!(
                    "The recorded interaction {name} cannot answer this request ({asked}): {why}. Record it with this client."
                )
            }
            Why::NoMatch(None) => format!(
                "No recorded interaction matched this request ({asked}), and none has its method. Record it: vllm-vcr mcp-tap --mode new-episodes."
            ),
            Why::NoMatch(Some(nearest)) => {
                let mut text = format!(
                    "No recorded interaction matched this request ({asked}). Closest: {} ({}:{})",
                    nearest.indexed.name(),
                    nearest.indexed.file,
                    nearest.indexed.line
                );
                for difference in nearest.differences.iter().take(IN_MESSAGE) {
                    text.push_str(&format!("\n  - {}", line(difference)));
                }
                match nearest.differences.len().saturating_sub(IN_MESSAGE) {
                    0 => {}
                    more => text.push_str(&format!("\n  - and {more} more")),
                }
                text
            }
        }
    }

    /// For programs.
    #[must_use]
    pub(super) fn detail(&self) -> Value {
        let mut detail = json!({"reason": self.reason(), "request": self.request, "server": self.server, "method": self.method,
            "received": short(self.canonical), "received_key": self.key.to_string()});
        let Some(fields) = detail.as_object_mut() else { return detail };
        match &self.why {
            Why::NoMatch(nearest) => nearest.iter().for_each(|nearest| add_nearest(fields, nearest)),
            Why::Era(at, why) => {
                fields.insert("why".to_owned(), (*why).into());
                fields.insert("record".to_owned(), self.index.records().get(*at).map(|indexed| indexed.id).into());
            }
            Why::Exhausted(records) => {
                let named =
                    records.iter().filter_map(|(at, served_to)| Some((self.index.records().get(*at)?, served_to)));
                let named = named.map(|(indexed, served_to)| {
                    json!({"record": indexed.id, "file": &*indexed.file, "line": indexed.line, "served_to": served_to})
                });
                fields.insert("records".to_owned(), named.take(MOST).collect());
            }
        }
        detail
    }
}

fn add_nearest(fields: &mut Map<String, Value>, nearest: &Nearest<'_>) {
    let indexed = nearest.indexed;
    let closest = json!({"record": indexed.id, "file": &*indexed.file, "line": indexed.line, "request": short(&indexed.canonical)});
    fields.insert("closest".to_owned(), closest);
    let listed = nearest.differences.iter().take(MOST).map(difference_json);
    fields.insert("diffs".to_owned(), listed.collect());
    fields.insert("diffs_total".to_owned(), nearest.differences.len().into());
}

fn difference_json(difference: &Difference) -> Value {
    let mut fields = Map::new();
    fields.insert("path".to_owned(), difference.path.clone().into());
    fields.insert("op".to_owned(), difference.operation.name().into());
    for (name, value) in [("recorded", &difference.recorded), ("received", &difference.received)] {
        fields.extend(value.as_ref().map(|value| (name.to_owned(), short(value))));
    }
    fields.extend(difference.at.map(|at| ("at".to_owned(), at.into())));
    fields.into()
}

/// A difference in one line.
#[must_use]
pub(super) fn line(difference: &Difference) -> String {
    let value =
        |value: &Option<Value>| value.as_ref().map(|value| clipped(&value.to_string(), IN_LINE)).unwrap_or_default();
    let (place, recorded, received) = (&difference.path, value(&difference.recorded), value(&difference.received));
    match difference.operation {
        Operation::Add => format!("{place} was not recorded: {received}"),
        Operation::Remove => format!("{place} is missing, recorded {recorded}"),
        Operation::Replace => format!("{place} is {received}, recorded {recorded}"),
    }
}

/// The value, or as much of its text as errors may have.
fn short(value: &Value) -> Value {
    let text = value.to_string();
    if text.chars().count() <= LONGEST { value.clone() } else { clipped(&text, LONGEST).into() }
}

fn clipped(text: &str, most: usize) -> String {
    let short: String = text.chars().take(most).collect();
    if short.len() < text.len() { short + "…" } else { short }
}
