//! The error for a request that has no record, or none that is left.

use std::path::Path;

use serde_json::{Value, json};

use super::{
    message::{Id, error},
    record_index::{IndexedRecord, RecordIndex},
};
use crate::{
    matching::requests::RequestConsumption,
    miss::{
        Advice, Comparison, Edit, Explanation, FOR_CLIENTS, FOR_LOG, NAME, RecordLocation, edits, file_in_shell,
        in_shell, only_flags, summary,
    },
};
use base::one_line::clipped;
use recording::{
    canonical::{Identity, differences, mcp_summary},
    redaction::Placeholder,
};

/// Code of the error for a request that was not recorded.
pub const NO_MATCH: i64 = 40400;

/// Code of the error for a request that was recorded less often.
pub const EXHAUSTED: i64 = 41000;

/// Records that an error lists.
const MOST: usize = 20;

/// Characters of a request in an error.
const LONGEST: usize = 200;

/// A request without a record that can be served.
#[derive(Debug)]
pub(super) struct McpMiss<'t> {
    pub index: &'t RecordIndex,
    pub request: u64,
    pub server: &'t str,
    pub method: &'t str,
    /// What counts of the request, without secrets.
    pub identity: &'t Identity,
    pub why: Why,
    /// The records that were served.
    pub consumption: &'t RequestConsumption,
    pub over_http: bool,
    pub closest: Option<Comparison>,
}

#[derive(Debug)]
pub(super) enum Why {
    /// No record is of this request; the one that is most like it.
    NoMatch(Option<usize>),
    /// All of these records were served, each with the requests that it was served to.
    Exhausted(Vec<(usize, Vec<u64>)>),
    /// This record is of the other era of the protocol, and has what the client's era cannot express.
    Era(usize, &'static str),
}

impl McpMiss<'_> {
    pub(super) fn reason(&self) -> &'static str {
        match self.why {
            Why::NoMatch(_) => "no_match",
            Why::Exhausted(_) => "exhausted",
            Why::Era(..) => "era",
        }
    }

    /// The response to its request, with its [`detail`](Self::detail).
    pub(super) fn response(&self, id: &Id, detail: &Value) -> Value {
        let code = match self.why {
            Why::NoMatch(_) | Why::Era(..) => NO_MATCH,
            Why::Exhausted(_) => EXHAUSTED,
        };
        error(Some(id), code, &self.text(FOR_CLIENTS), Some(json!({"vcr": detail})))
    }

    /// The error as people read it in lists of misses.
    pub(super) fn shown(&self) -> Value {
        json!({"message": self.text(FOR_CLIENTS)})
    }

    /// The message for the log: its first line, since the client has all of it.
    pub(super) fn log(&self) -> String {
        self.text(FOR_LOG).lines().next().unwrap_or_default().to_owned()
    }

    /// What is missing, how it differs from what was recorded, and what to do, in at most so many characters.
    fn text(&self, most: usize) -> String {
        let found = self.closest.as_ref();
        let edits = found.map(|found| edits(&found.differences)).unwrap_or_default();
        let explanation = Explanation {
            headline: self.headline(found, &edits),
            found,
            edits: &edits,
            advice: &self.advice(found, &edits),
            before: Some(format!("Request: {}", self.requested())),
            after: Vec::new(),
            circumstances: format!("Cassette: {}", self.file().unwrap_or_default()),
            address: None,
            is_of_nothing: false,
        };
        explanation.text(most)
    }

    fn requested(&self) -> String {
        let params = self.identity.fields.get("params").unwrap_or(&Value::Null);
        clipped(&format!("{} {}", self.server, mcp_summary(self.method, params)), LONGEST)
    }

    fn record(&self, at: usize) -> Option<&IndexedRecord> {
        self.index.records().get(at)
    }

    /// A record's name without folders, as `time.yaml#3`.
    fn name(&self, at: usize) -> String {
        self.record(at).map(IndexedRecord::short_name).unwrap_or_default()
    }

    /// The file of the records, as far as there is only one.
    fn file(&self) -> Option<String> {
        let first = &self.record(0)?.file;
        let is_one = self.index.records().iter().all(|indexed| indexed.file == *first);
        is_one.then(|| clipped(first, NAME))
    }

    /// The record that is most like the request beside it, where none is of it.
    pub(super) fn comparison(&self) -> Option<Comparison> {
        let Why::NoMatch(Some(at)) = self.why else { return None };
        let (indexed, recorded) = (self.record(at)?, self.index.requests.identity(at)?);
        let found = differences(&recorded.fields, &self.identity.fields);
        let (name, file, is_consumed) = (self.name(at), &*indexed.file, self.consumption.times(at) > 0);
        let place = RecordLocation { name, file, id: indexed.id, line: indexed.line, is_consumed };
        let compared =
            Comparison::new(place, &short(&recorded.fields), (&recorded.fields, &self.identity.fields), found);
        Some(Comparison { is_alike: recorded.boundary == self.identity.boundary, ..compared })
    }

    fn headline(&self, found: Option<&Comparison>, edits: &[Edit<'_>]) -> String {
        let requested = self.requested();
        match (&self.why, found) {
            (Why::Exhausted(records), _) => {
                let often = if records.len() == 1 { "once".to_owned() } else { format!("{} times", records.len()) };
                let first = records.first().map(|(at, _)| self.name(*at)).unwrap_or_default();
                format!(
                    "No recorded interaction is left for this request ({requested}): it was recorded {often} ({first}), and was sent more often."
                )
            }
            (Why::Era(at, why), _) => {
                format!("The recorded interaction {} cannot answer this request ({requested}): {why}.", self.name(*at))
            }
            (Why::NoMatch(_), Some(found)) if found.is_alike => {
                format!("No recorded interaction matched: {}.", summary(found, edits))
            }
            (Why::NoMatch(_), Some(_)) => {
                format!("No recorded interaction matched this request ({requested}), and none is of this tool.")
            }
            (Why::NoMatch(_), None) => {
                format!("No recorded interaction matched this request ({requested}), and none has its method.")
            }
        }
    }

    fn advice(&self, found: Option<&Comparison>, edits: &[Edit<'_>]) -> Advice {
        let mut advice = Advice::default();
        match &self.why {
            Why::Exhausted(_) => return Advice::exhausted(&self.command()),
            Why::Era(..) => advice.add("rerecord", format!("Record it with this client: {}", self.command())),
            Why::NoMatch(_) => {
                let is_alike = found.is_some_and(|found| found.is_alike);
                if is_alike && only_flags(edits) {
                    advice.by_flags(edits);
                }
                found
                    .filter(|_| is_alike)
                    .into_iter()
                    .for_each(|found| advice.by_secrets(found, edits, |it| self.source(it)));
                advice.add("rerecord", format!("If intended, record it: {}", self.command()));
                if is_alike {
                    advice.by_flags(edits);
                }
            }
        }
        advice
    }

    /// The last record of this session from whose answer, and not its own request, the client has a placeholder.
    fn source(&self, placeholder: &Placeholder) -> Option<String> {
        let placeholder = placeholder.to_string();
        let served = self.consumption.records().filter(|at| {
            let Some(indexed) = self.record(*at) else { return false };
            let answer = indexed.record.clone().record().answer.shown();
            answer.to_string().contains(&placeholder) && !indexed.record.params.to_string().contains(&placeholder)
        });
        served.last().map(|at| self.name(at))
    }

    fn command(&self) -> String {
        if let Some(command) = &self.index.command {
            return command.to_string();
        }
        let file = self.record(0).map(|first| Path::new(&*first.file)).filter(|_| self.file().is_some());
        let (file, server) = (file_in_shell(file), in_shell(self.server));
        if self.over_http {
            format!("vllm-vcr play --cassette {file} --mcp-on-miss record --mcp-upstream {server}=URL")
        } else {
            format!("vllm-vcr mcp-tap --mode new-episodes --cassette {file} --name {server} -- COMMAND")
        }
    }

    pub(super) fn detail(&self) -> Value {
        let mut detail = json!({"reason": self.reason(), "request": self.request, "server": self.server, "method": self.method,
            "received": short(&self.identity.fields), "received_key": self.identity.key.to_string()});
        let Some(fields) = detail.as_object_mut() else { return detail };
        match &self.why {
            Why::NoMatch(_) => {
                if let Some(found) = &self.closest {
                    fields.insert("closest".to_owned(), found.record.clone());
                    fields.insert("diffs".to_owned(), found.json());
                    fields.insert("diffs_total".to_owned(), found.total.into());
                }
            }
            Why::Era(at, why) => {
                fields.insert("why".to_owned(), (*why).into());
                fields.insert("record".to_owned(), self.record(*at).map(|indexed| indexed.id).into());
            }
            Why::Exhausted(records) => {
                let named = records.iter().filter_map(|(at, served_to)| Some((self.record(*at)?, served_to)));
                let named = named.map(|(indexed, served_to)| {
                    json!({"record": indexed.id, "file": &*indexed.file, "line": indexed.line, "served_to": served_to})
                });
                fields.insert("records".to_owned(), named.take(MOST).collect());
            }
        }
        detail
    }
}

/// The value, or as much of its text as errors may have.
fn short(value: &Value) -> Value {
    let text = value.to_string();
    if text.chars().count() <= LONGEST { value.clone() } else { clipped(&text, LONGEST).into() }
}
