//! `cassette diff`: records of equal requests are compared, what is left in the order of its boundary.

use std::{
    collections::{HashMap, VecDeque},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;

use crate::{
    base::one_line::{clipped, one_line},
    cli::{
        failure::{Exit, Failure},
        output,
    },
    recording::{
        canonical::{BodyDifference, CanonicalRules, Identity, differences},
        cassette::{self, CassetteRecord, Identified, identified, shown_by_order},
        mcp::McpRecord,
    },
    replay::mcp::{ParamRules, tool_changes},
};

/// Two cassettes.
#[derive(Debug, Args)]
pub(in crate::cli) struct DiffArgs {
    /// The old one.
    #[arg(value_name = "OLD")]
    pub(in crate::cli) old: PathBuf,
    /// The new one.
    #[arg(value_name = "NEW")]
    pub(in crate::cli) new: PathBuf,
    /// What is compared.
    #[arg(long = "type", value_name = "WHAT", default_value = "run")]
    pub(in crate::cli) what: DiffWhat,
}

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum DiffWhat {
    /// Requests and answers.
    Run,
    /// Requests.
    Prompt,
    /// Answers.
    Output,
    /// The tools of requests.
    Tools,
}

/// Prints the differences of two cassettes.
pub(in crate::cli) fn run(args: &DiffArgs) -> Result<ExitCode, Failure> {
    let found = args.differing()?;
    output::print(&args.text(&found))?;
    Ok(Exit::unless(found.is_empty()))
}

/// Two records that differ, or one that has no other.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct DifferingRecords {
    /// Its line in the old cassette.
    old_line: Option<usize>,
    /// Its line in the new one.
    new_line: Option<usize>,
    request: String,
    differences: Vec<String>,
}

impl DiffArgs {
    pub(in crate::cli) fn differing(&self) -> Result<Vec<DifferingRecords>, Failure> {
        let (old, new) = (load(&self.old)?, load(&self.new)?);
        let found = |(old, new): (Option<&DiffRecord>, Option<&DiffRecord>)| {
            let known = new.or(old)?;
            let differences = match (old, new) {
                (Some(old), Some(new)) => differing(old, new, self.what),
                (_, None) => vec![format!("only in {}: {}", self.old.display(), known.0.summary())],
                (None, _) => vec![format!("only in {}: {}", self.new.display(), known.0.summary())],
            };
            let (old_line, new_line) = (old.map(|old| old.0.line), new.map(|new| new.0.line));
            let request = known.0.summary();
            (!differences.is_empty()).then_some(DifferingRecords { old_line, new_line, request, differences })
        };
        Ok(pairs(&old, &new).into_iter().filter_map(found).collect())
    }

    pub(in crate::cli) fn text(&self, found: &[DifferingRecords]) -> String {
        let mut text = String::new();
        for DifferingRecords { old_line, new_line, request, differences } in found {
            if let (Some(old), Some(new)) = (old_line, new_line) {
                let (a, b) = (self.old.display(), self.new.display());
                text.push_str(&format!("{a}:{old} -> {b}:{new} {}\n", one_line(request)));
            }
            differences.iter().for_each(|line| text.push_str(&format!("  {}\n", one_line(line))));
        }
        text
    }
}

/// A record and what is compared of its request.
struct DiffRecord(CassetteRecord, ComparedRequest);

/// Part of a request that is compared.
enum ComparedRequest {
    Http(Identified),
    /// A message to an MCP server.
    Mcp(McpRecord, Identity),
}

impl DiffRecord {
    fn new(record: CassetteRecord, identified: Identified) -> Self {
        let compared = match McpRecord::read(&record) {
            Some(Ok(mcp)) => {
                let identity = ParamRules::default().identify(&mcp.server, &mcp.method, &mcp.params);
                ComparedRequest::Mcp(mcp, identity)
            }
            Some(Err(_)) | None => ComparedRequest::Http(identified),
        };
        Self(record, compared)
    }

    fn identity(&self) -> &Identity {
        match &self.1 {
            ComparedRequest::Http(identified) => &identified.identity,
            ComparedRequest::Mcp(_, identity) => identity,
        }
    }

    /// Records of one boundary are compared where no other is left that is equal.
    fn boundary(&self) -> String {
        let named = |identity: &Identity| identity.fields.pointer("/params/name").map(Value::to_string);
        match &self.1 {
            ComparedRequest::Http(identified) => identified.identity.boundary.clone(),
            ComparedRequest::Mcp(_, identity) => format!("{} {}", identity.route, named(identity).unwrap_or_default()),
        }
    }

    /// The user's messages, and how many there are of anyone. Which request of a run this is shows in them, whatever the system's say.
    fn user_messages(&self) -> String {
        let Some(messages) = self.0.body.messages() else { return String::new() };
        let is_of_user = |message: &&Value| message.get("role").is_some_and(|role| role == "user");
        let texts: Vec<String> = messages.iter().filter(is_of_user).map(Value::to_string).collect();
        format!(" {} {}", messages.len(), texts.join(" "))
    }
}

fn load(path: &Path) -> Result<Vec<DiffRecord>, Failure> {
    let records = cassette::load(path)?.records;
    let identified: Vec<Identified> = identified(&CanonicalRules::default(), &records).collect();
    Ok(records.into_iter().zip(identified).map(|(record, identified)| DiffRecord::new(record, identified)).collect())
}

/// The records that are compared: those of equal requests, then those in which the user says the same, then those of one boundary.
fn pairs<'a>(old: &'a [DiffRecord], new: &'a [DiffRecord]) -> Vec<(Option<&'a DiffRecord>, Option<&'a DiffRecord>)> {
    let ways: [fn(&DiffRecord) -> String; 3] = [
        |known| known.identity().key.to_string(),
        |known| known.boundary() + &known.user_messages(),
        DiffRecord::boundary,
    ];
    let mut partner: Vec<Option<usize>> = vec![None; new.len()];
    let mut left: Vec<usize> = (0..old.len()).collect();
    for name in ways {
        let mut places: HashMap<String, VecDeque<usize>> = HashMap::new();
        for at in left {
            old.get(at).into_iter().for_each(|known| places.entry(name(known)).or_default().push_back(at));
        }
        for (known, partner) in new.iter().zip(&mut partner).filter(|(_, partner)| partner.is_none()) {
            *partner = places.get_mut(&name(known)).and_then(VecDeque::pop_front);
        }
        left = places.into_values().flatten().collect();
        left.sort_unstable();
    }
    let paired = new.iter().zip(partner).map(|(known, partner)| (partner.and_then(|at| old.get(at)), Some(known)));
    paired.chain(left.into_iter().map(|at| (old.get(at), None))).collect()
}

fn differing(old: &DiffRecord, new: &DiffRecord, what: DiffWhat) -> Vec<String> {
    let tools = |known: &DiffRecord| known.0.body.get("tools").cloned().unwrap_or_default();
    let prompt = || line("request", requests(old, new));
    let output = || match (&old.1, &new.1) {
        (ComparedRequest::Mcp(old, _), ComparedRequest::Mcp(new, _)) if new.method == "tools/list" => listed(old, new),
        _ if what == DiffWhat::Tools => line("tools", differences(&tools(old), &tools(new))),
        _ => line("answer", answers(&old.0, &new.0)),
    };
    match what {
        DiffWhat::Run => [prompt(), output()].concat(),
        DiffWhat::Prompt => prompt(),
        DiffWhat::Output | DiffWhat::Tools => output(),
    }
}

fn line(kind: &str, found: Vec<BodyDifference>) -> Vec<String> {
    let value =
        |value: Option<Value>| value.map_or_else(|| "nothing".to_owned(), |value| clipped(&value.to_string(), 120));
    let line = |it: BodyDifference| format!("{kind} {}: {} -> {}", it.path, value(it.recorded), value(it.received));
    found.into_iter().map(line).collect()
}

/// The differences of two requests; equal keys are equal requests.
fn requests(old: &DiffRecord, new: &DiffRecord) -> Vec<BodyDifference> {
    match (&old.1, &new.1) {
        _ if old.identity().key == new.identity().key => Vec::new(),
        (ComparedRequest::Http(old), ComparedRequest::Http(new)) => {
            differences(&old.identity.body(), &new.identity.body())
        }
        (ComparedRequest::Mcp(_, old), ComparedRequest::Mcp(_, new)) => differences(&old.fields, &new.fields),
        (ComparedRequest::Http(_), ComparedRequest::Mcp(..)) | (ComparedRequest::Mcp(..), ComparedRequest::Http(_)) => {
            differences(&old.0.body.value(), &new.0.body.value())
        }
    }
}

/// The changes of the tools that two servers list, and what else differs in their answers.
fn listed(old: &McpRecord, new: &McpRecord) -> Vec<String> {
    let result =
        |record: &McpRecord| record.answer().and_then(|answer| answer.get("result")).cloned().unwrap_or_default();
    let (mut old, mut new) = (result(old), result(new));
    let changes = tool_changes(&old, &new);
    let changes = changes.into_iter().map(|change| format!("tool {}: {change}", change.tool));
    for result in [&mut old, &mut new] {
        result.as_object_mut().into_iter().for_each(|fields| drop(fields.shift_remove("tools")));
    }
    changes.chain(line("answer", differences(&old, &new))).collect()
}

/// The differences of two answers, in which the names of ids do not count.
fn answers(old: &CassetteRecord, new: &CassetteRecord) -> Vec<BodyDifference> {
    let found = differences(&old.answer.shown(), &new.answer.shown());
    if found.is_empty() { found } else { differences(&shown_by_order(old), &shown_by_order(new)) }
}
