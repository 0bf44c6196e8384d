//! Audit of a trace: what it reveals, and whether secrets are in it.

use std::{fmt, path::Path, sync::Arc};

use serde::Serialize;

use crate::{
    base::one_line::{clipped, counted, one_line},
    recording::cassette::Moment,
    recording::redaction::{Find, RedactionRules, Redactor},
    recording::trace::{BadLines, Meta, Record, Response, ResponseContent, TraceError, TraceReader, Warning},
    replay::player::redact_response,
};

/// Secrets that are listed; the others are counted.
const LISTED: usize = 100;

/// Content that a trace reveals. [`Display`](fmt::Display) formats it for people.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct AuditReport {
    /// The file, as it was named.
    pub path: String,
    /// Records in it.
    pub records: u64,
    /// Lines that break a rule of the format and were not audited.
    pub bad_lines: BadLines,
    /// Notes on the file, such as that it was cut: what it lacks was not audited.
    pub warnings: Vec<Warning>,
    /// Kinds of content in the records, the harmless first.
    pub reveals: Vec<Revealed>,
    /// Secrets that were found, the first hundred.
    pub secrets: Vec<SecretFinding>,
    /// Number of secrets found.
    pub secrets_found: u64,
}

/// One kind of content.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Revealed {
    /// Name of the content.
    pub what: &'static str,
    /// Knowledge that a reader gains from it.
    pub meaning: &'static str,
    /// Number of records that have it.
    pub records: u64,
    /// The first of them; cut where it is long.
    pub example: Option<String>,
}

/// Something that looks like a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SecretFinding {
    /// The line it is in, from 1.
    pub line: u64,
    /// The field, and the place in its JSON.
    pub place: String,
    /// Kind of the secret.
    pub kind: String,
    /// Its beginning and its length.
    pub example: String,
}

/// Looks through a trace; `-` is standard input.
///
/// # Errors
/// When the file cannot be read to its end; a file that was cut is no error.
pub fn audit(path: &Path, rules: &RedactionRules) -> Result<AuditReport, TraceError> {
    let mut reader = TraceReader::open(path)?;
    let mut tally = AuditTally::of(reader.meta());
    let mut report = AuditReport { path: path.display().to_string(), ..AuditReport::default() };
    while let Some((line, mut record)) = reader.next_sound(&mut report.bad_lines)? {
        report.records += 1;
        let found = redact(&mut record, rules);
        tally.add(&record);
        for (field, find) in found {
            report.secrets_found += 1;
            if report.secrets.len() < LISTED {
                let place = format!("{field}{}", find.place.strip_prefix('$').unwrap_or(&find.place));
                report.secrets.push(SecretFinding { line, place, kind: find.kind, example: find.example });
            }
        }
    }
    report.warnings = reader.warnings().to_vec();
    report.reveals = tally.0.into_iter().filter(|revealed| revealed.records > 0).collect();
    Ok(report)
}

/// Redacts a record, so that none of it is shown, and gives every secret with the field it was in.
fn redact(record: &mut Record, rules: &RedactionRules) -> Vec<(&'static str, Find)> {
    let mut redactor = Redactor::new(rules);
    let mut found = Vec::new();
    let mut note = |redactor: &mut Redactor<'_>, field: &'static str| {
        found.extend(redactor.take_finds().into_iter().map(|find| (field, find)));
    };
    if let Some(request) = &mut record.request {
        redactor.json(request);
        note(&mut redactor, "request");
    }
    redactor.of_answer(true);
    if let Some(text) = &mut record.text {
        redactor.json_pieces(text);
        note(&mut redactor, "text");
    }
    if record.token_texts().iter_mut().filter_map(|tokens| redactor.json_pieces(tokens).then_some(())).count() > 0 {
        (record.logprobs, record.prompt_logprobs) = (None, None);
    }
    note(&mut redactor, "logprobs");
    for event in record.events.iter_mut().flatten() {
        if let Some(clean) = redactor.body(event.as_bytes()) {
            *event = String::from_utf8_lossy(&clean).into_owned();
        }
        note(&mut redactor, "events");
    }
    if let Some(error) = &mut record.error {
        let texts = error.headers.values_mut().chain(&mut error.body);
        for text in texts {
            if let Some(clean) = redactor.body(text.as_bytes()) {
                *text = String::from_utf8_lossy(&clean).into_owned();
            }
        }
        note(&mut redactor, "error");
    }
    if let Some(response) = &mut record.response {
        redact_response(&mut redactor, Arc::make_mut(response));
        note(&mut redactor, "response");
    }
    let is_of_id = |group: &String| record.request_id.as_ref().is_some_and(|id| group.starts_with(id.as_str()));
    if record.group.as_ref().is_some_and(is_of_id) {
        record.group = None;
    }
    for (field, text) in record.names_mut() {
        if let Some(clean) = text.as_ref().and_then(|text| redactor.text(text)) {
            *text = Some(clean);
        }
        note(&mut redactor, field);
    }
    for (field, values) in [("params", &mut record.params), ("", &mut record.extra)] {
        redactor.fields(values);
        note(&mut redactor, field);
    }
    found
}

struct AuditTally([Revealed; 14]);

impl AuditTally {
    fn of(meta: &Meta) -> Self {
        let hashes = if meta.hash_key_id.is_some() {
            ("keyed block hashes", "which prompts share a beginning; a guess needs the key to be checked")
        } else {
            ("block hashes", "which prompts share a beginning, and a reader who guesses a prompt can check the guess")
        };
        let ids = if meta.has_permuted_ids() {
            ("permuted token ids", "which tokens repeat; the key, or much patience with frequencies, gives the text")
        } else {
            ("token ids", "the answers' text, by the model's tokenizer")
        };
        let new = |(what, meaning)| Revealed { what, meaning, records: 0, example: None };
        Self([
            new(("lengths and times", "load")),
            new(("models", "what was asked for")),
            new(("parameters", "the limits, temperatures and seeds that clients chose")),
            new(("paths", "which other endpoints were called, with whatever clients put into their paths")),
            new(("request ids", "whatever clients or the engine put into them")),
            new(hashes),
            new(ids),
            new(("text", "the answers")),
            new(("requests", "the prompts and everything else that clients sent")),
            new(("events", "the answers, verbatim")),
            new(("log probabilities", "the tokens of answers and prompts, and others that could have been")),
            new((
                "errors",
                "what the engine refused and why; bodies may repeat what clients sent where content was recorded",
            )),
            new((
                "request keys",
                "which requests are equal; without a key, a reader who guesses one can check the guess",
            )),
            new(("responses", "the answers, verbatim, with headers of their content")),
        ])
    }

    fn add(&mut self, record: &Record) {
        let contents = [
            Some(String::new()),
            record.model.clone(),
            (!record.params.is_empty()).then(|| serde_json::Value::Object(record.params.clone()).to_string()),
            record.extra.get("path").and_then(serde_json::Value::as_str).map(str::to_owned),
            record.request_id.clone(),
            record.prompt_hash.or(record.block_hashes.first().copied()).map(|hash| hash.to_string()),
            record.output_token_ids.as_ref().map(|ids| format!("{:?}", ids.get(..8).unwrap_or(ids))),
            record.text.as_ref().map(|text| text.concat()),
            record.request.as_ref().map(ToString::to_string),
            record.events.as_ref().map(|events| events.concat()),
            logprobs_text(record),
            record.error.as_ref().map(|error| error.body.clone().unwrap_or_default()),
            record.request_key.clone(),
            record.response.as_ref().map(|response| content(response)),
        ];
        for (revealed, content) in self.0.iter_mut().zip(contents) {
            let Some(content) = content else { continue };
            revealed.records += 1;
            if revealed.example.is_none() && !content.is_empty() {
                revealed.example = Some(one_line(&clipped(&content, 60)).into_owned());
            }
        }
    }
}

/// Returns the tokens that have log probabilities.
fn logprobs_text(record: &Record) -> Option<String> {
    let output = record.logprobs.iter().flat_map(|logprobs| logprobs.prompt.iter().chain(&logprobs.tokens));
    let prompt =
        record.prompt_logprobs.iter().flat_map(|logprobs| &logprobs.tokens).filter_map(|place| place.0.first());
    let has_some = record.logprobs.is_some() || record.prompt_logprobs.is_some();
    let texts = output.map(|token| &token.text).chain(prompt.map(|own| &own.text));
    has_some.then(|| texts.flatten().map(String::as_str).collect())
}

fn content(response: &Response) -> String {
    match &response.content {
        ResponseContent::Body(body) => String::from_utf8_lossy(body).into_owned(),
        ResponseContent::Events(events) => events.iter().filter_map(|Moment(_, data, _)| data.as_deref()).collect(),
    }
}

impl fmt::Display for AuditReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.records == 1 { "reveals" } else { "reveal" };
        writeln!(f, "{}: {} {verb}", self.path, counted(self.records, "record"))?;
        for revealed in &self.reveals {
            let records = counted(revealed.records, "record");
            write!(f, "  {:<20} of {records:>16}: {}", revealed.what, revealed.meaning)?;
            match &revealed.example {
                Some(example) => writeln!(f, "; such as {example}")?,
                None => writeln!(f)?,
            }
        }
        for warning in &self.warnings {
            writeln!(f, "warning: {}", one_line(&warning.to_string()))?;
        }
        for finding in &self.bad_lines.first {
            writeln!(f, "  {}:{}", self.path, one_line(&finding.to_string()))?;
        }
        if !self.bad_lines.is_empty() {
            writeln!(f, "{} not searched", counted(self.bad_lines.count, "invalid line"))?;
        }
        if self.secrets_found == 0 {
            return writeln!(f, "no secrets found");
        }
        writeln!(f, "{} found", counted(self.secrets_found, "secret"))?;
        for secret in &self.secrets {
            let SecretFinding { line, place, kind, example } = secret;
            writeln!(f, "  {}:{line}: {}: {kind}: {}", self.path, one_line(place), one_line(example))?;
        }
        let more = self.secrets_found.saturating_sub(self.secrets.len() as u64);
        if more > 0 { writeln!(f, "  and {more} more") } else { Ok(()) }
    }
}
