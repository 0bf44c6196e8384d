//! `inspect`: prints what was found in a trace, or decided for a workload, as text or as JSON.

use std::process::ExitCode;

use serde::Serialize;

use super::{
    args::{AuditArgs, FitArgs, InspectArgs, InspectCommand, ScheduleArgs},
    failure::{Exit, Failure},
    inspect_simulate, output, secret_args,
};
use crate::{
    base::one_line::one_line,
    inspect::{self, Predicted, Workload},
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
        InspectCommand::Schedule(args) => schedule(&args),
        InspectCommand::Fit(args) => fit(&args),
        InspectCommand::Simulate(args) => inspect_simulate::run(&args),
    }
}

/// Exits with [`Exit::No`] when something looks like a secret, or could not be looked into.
fn audit(args: &AuditArgs) -> Result<ExitCode, Failure> {
    let report = inspect::audit(&args.file, &secret_args::rules_of_audit(&args.redaction)?)?;
    let printed = if args.json { output::print_json(&report) } else { output::print(&report.to_string()) };
    printed?;
    Ok(if report.secrets_found == 0 && report.bad_lines.is_empty() { ExitCode::SUCCESS } else { Exit::No.into() })
}

fn schedule(args: &ScheduleArgs) -> Result<ExitCode, Failure> {
    let workload = Workload::read(&args.workload).map_err(|error| Failure::new(Exit::BadInput, error))?;
    output::stream(|out| workload.write_steps(out))
}

fn fit(args: &FitArgs) -> Result<ExitCode, Failure> {
    let size = |count: std::num::NonZeroU32| usize::try_from(count.get()).unwrap_or(usize::MAX);
    let wanted = args.predict.as_ref().map(|path| Predicted {
        path: path.clone(),
        max_num_seqs: size(args.max_num_seqs),
        max_num_batched_tokens: size(args.max_num_batched_tokens),
        num_gpu_blocks: args.num_gpu_blocks_override.get(),
        seed: args.seed,
    });
    let report = inspect::fit(&Sources::gather(&args.paths)?, wanted.as_ref())
        .map_err(|error| Failure::new(Exit::BadInput, error))?;
    if args.json { output::print_json(&report) } else { output::print(&report.to_string()) }
}

fn summary(args: &InspectArgs) -> Result<ExitCode, Failure> {
    let report = inspect::summary(&Sources::gather(&args.paths)?)?;
    if args.json { output::print_json(&report) } else { output::print(&report.to_string()) }
}

/// Exits with [`Exit::No`] when a rule is broken.
fn check(args: &InspectArgs) -> Result<ExitCode, Failure> {
    let sources = Sources::gather(&args.paths)?;
    let mut reports = Vec::new();
    for path in sources.paths() {
        let Checked { count, findings, warnings } = inspect::check(path)?;
        let warnings = warnings.iter().map(Warning::to_string).collect();
        reports.push(Report { file: path.display().to_string(), count, findings, warnings });
    }
    let is_sound = reports.iter().all(|report| report.findings.is_empty());
    match reports.as_slice() {
        [alone] if args.json => output::print_json(alone),
        all if args.json => output::print_json(&all),
        all => output::print(&all.iter().map(Report::text).collect::<String>()),
    }?;
    Ok(if is_sound { ExitCode::SUCCESS } else { Exit::No.into() })
}

/// Result of a check, as JSON.
#[derive(Serialize)]
struct Report {
    file: String,
    /// Number of defects, of which `findings` has the first.
    count: u64,
    findings: Vec<Finding>,
    warnings: Vec<String>,
}

impl Report {
    fn text(&self) -> String {
        let findings =
            self.findings.iter().map(|finding| format!("{}:{}\n", self.file, one_line(&finding.to_string())));
        let warnings = self.warnings.iter().map(|warning| format!("{}: warning: {}\n", self.file, one_line(warning)));
        let rest = self.count.saturating_sub(self.findings.len() as u64);
        let last = match self.count {
            0 => format!("{}: sound\n", self.file),
            1 => "1 defect\n".to_owned(),
            many if rest > 0 => format!("{many} defects, of which {rest} are not shown\n"),
            many => format!("{many} defects\n"),
        };
        findings.chain(warnings).chain([last]).collect()
    }
}
