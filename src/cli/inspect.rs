//! `inspect`: prints what was found in a trace, as text or as JSON.

use std::process::ExitCode;

use serde::Serialize;

use super::{
    args::{AuditArgs, InspectArgs, InspectCommand},
    failure::{Exit, Failure},
    output, tap_setup,
};
use crate::{
    inspect,
    recording::trace::{Checked, Finding, Sources, Warning},
};

/// Runs one of the inspections.
///
/// # Errors
/// When the trace cannot be read, or stdout not be written.
pub(super) fn run(command: InspectCommand) -> Result<ExitCode, Failure> {
    match command {
        InspectCommand::Summary(args) => summary(&args),
        InspectCommand::Check(args) => check(&args),
        InspectCommand::Audit(args) => audit(&args),
    }
}

/// Exits with [`Exit::No`] when something looks like a secret, or could not be looked into.
fn audit(args: &AuditArgs) -> Result<ExitCode, Failure> {
    let report = inspect::audit(&args.file, &tap_setup::rules(&args.redaction)?)?;
    output::print(if args.json { json(&report)? } else { report.to_string() }.as_bytes())?;
    Ok(if report.secrets_found == 0 && report.bad_lines.is_empty() { ExitCode::SUCCESS } else { Exit::No.into() })
}

fn summary(args: &InspectArgs) -> Result<ExitCode, Failure> {
    let report = inspect::summary(&Sources::gather(&args.paths)?)?;
    output::print(if args.json { json(&report)? } else { report.to_string() }.as_bytes())
}

/// Exits with [`Exit::No`] when a rule is broken.
fn check(args: &InspectArgs) -> Result<ExitCode, Failure> {
    let sources = Sources::gather(&args.paths)?;
    let mut reports = Vec::new();
    for path in sources.paths() {
        let Checked { findings, warnings } = inspect::check(path)?;
        let warnings = warnings.iter().map(Warning::to_string).collect();
        reports.push(Report { file: path.display().to_string(), findings, warnings });
    }
    let is_sound = reports.iter().all(|report| report.findings.is_empty());
    let text = match reports.as_slice() {
        [alone] if args.json => json(alone)?,
        all if args.json => json(&all)?,
        all => all.iter().map(Report::text).collect(),
    };
    output::print(text.as_bytes())?;
    Ok(if is_sound { ExitCode::SUCCESS } else { Exit::No.into() })
}

/// Result of a check, as JSON.
#[derive(Serialize)]
struct Report {
    file: String,
    findings: Vec<Finding>,
    warnings: Vec<String>,
}

impl Report {
    fn text(&self) -> String {
        let findings = self.findings.iter().map(|finding| format!("{}:{finding}\n", self.file));
        let warnings = self.warnings.iter().map(|warning| format!("{}: warning: {warning}\n", self.file));
        let last = match self.findings.len() {
            0 => format!("{}: sound\n", self.file),
            1 => "1 defect\n".to_owned(),
            many => format!("{many} defects\n"),
        };
        findings.chain(warnings).chain([last]).collect()
    }
}

fn json(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::new(Exit::Environment, error))?;
    Ok(text + "\n")
}
