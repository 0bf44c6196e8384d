//! `inspect compare`: its arguments, and a comparison as text, JSON, JUnit or Markdown.

use std::{fs, path::PathBuf, process::ExitCode};

use clap::Args;

use crate::{
    base::one_line::one_line,
    cli::{
        escape,
        failure::Failure,
        junit::{self, JunitCase},
        output,
    },
    drive::steady::Interval,
    inspect::{ComparedMetric, GateResult, Judgement, MetricGate, MetricUnit, TraceComparison, compare},
};

/// Two traces, and what may differ between them.
#[derive(Debug, Args)]
pub(in crate::cli) struct CompareArgs {
    /// The earlier trace.
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The later trace.
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Limits in a TOML file, a table for each metric; exit code 1 if one is exceeded or its metric is missing.
    #[arg(long, value_name = "FILE")]
    gate: Option<PathBuf>,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Writes the results of the gate as JUnit XML.
    #[arg(long, value_name = "FILE", requires = "gate")]
    junit: Option<PathBuf>,
    /// Writes the comparison as a Markdown table.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// Compares the traces; exit code 1 where the gate does not let the later one pass.
pub(super) fn run(args: &CompareArgs) -> Result<ExitCode, Failure> {
    if [&args.a, &args.b].iter().all(|path| path.as_os_str() == "-") {
        return Err(Failure::usage("standard input can be one of the two traces, not both"));
    }
    let gate = match &args.gate {
        None => MetricGate::default(),
        Some(path) => {
            let named = |error: String| Failure::input(format!("{}: {error}", path.display()));
            MetricGate::read(&fs::read_to_string(path).map_err(|error| named(error.to_string()))?).map_err(named)?
        }
    };
    let comparison = compare(&args.a, &args.b, &gate)?;
    for path in [&args.junit, &args.markdown].into_iter().flatten() {
        if output::is_same_file(path, &args.a) || output::is_same_file(path, &args.b) {
            return Err(Failure::usage(format!("{}: this is one of the traces", path.display())));
        }
    }
    for (path, text) in [(&args.junit, junit(&comparison)), (&args.markdown, markdown(&comparison))] {
        let Some(path) = path else { continue };
        output::save(path, &text)?;
    }
    output::verdict(comparison.passes(), args.json, || &comparison, || text(&comparison))
}

/// The cells of a row: name, both values, change, interval and what it shows.
fn cells(name: &str, compared: &ComparedMetric) -> [String; 6] {
    let (factor, unit) = match compared.unit {
        MetricUnit::Ms => (1.0, " ms"),
        MetricUnit::Share => (100.0, " %"),
        MetricUnit::PerSecond => (1.0, " /s"),
        MetricUnit::Tokens | MetricUnit::Requests => (1.0, ""),
    };
    let decimals = if compared.unit == MetricUnit::Requests { 0 } else { 2 };
    let value = |value: Option<f64>| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{:.decimals$}{unit}", value * factor))
    };
    let change = compared.change_percent.map_or_else(String::new, |change| format!("{change:+.1} %"));
    let interval = compared.interval.map_or_else(String::new, |Interval { low, high }| {
        format!("{:+.2} … {:+.2}{unit}", low * factor, high * factor)
    });
    let shows = compared.judgement.map_or("", |judgement| match judgement {
        Judgement::Better => "better",
        Judgement::Worse => "worse",
        Judgement::Other => "changed",
        Judgement::NoChange => "no change shown",
    });
    [name.to_owned(), value(compared.a), value(compared.b), change, interval, shows.to_owned()]
}

fn text(comparison: &TraceComparison) -> String {
    let mut lines: Vec<String> =
        comparison.warnings.iter().map(|warning| format!("warning: {}", one_line(warning))).collect();
    lines.push(
        format!("{:20}{:>14}{:>14}{:>12}  {:27}", "", "A", "B", "change", "95 % of the difference")
            .trim_end()
            .to_owned(),
    );
    for (name, compared) in &comparison.metrics {
        let [name, a, b, change, interval, shows] = cells(name, compared);
        lines.push(format!("{name:20}{a:>14} {b:>13} {change:>11}  {interval:27}{shows}").trim_end().to_owned());
    }
    lines.extend(
        comparison.gate.iter().map(|result| format!("gate {}: {}", one_line(&result.metric), described(result))),
    );
    lines.join("\n") + "\n"
}

fn described(result: &GateResult) -> &str {
    result.failure.as_deref().unwrap_or("within its limits")
}

/// A table, and a list of the gate's results.
fn markdown(comparison: &TraceComparison) -> String {
    let mut lines = vec![
        "| metric | A | B | change | 95 % of the difference | |".to_owned(),
        "|---|--:|--:|--:|---|---|".to_owned(),
    ];
    let row = |(name, compared): &(String, ComparedMetric)| format!("| {} |", cells(name, compared).join(" | "));
    lines.extend(comparison.metrics.iter().map(row));
    if !(comparison.gate.is_empty() && comparison.warnings.is_empty()) {
        lines.push(String::new());
    }
    lines.extend(comparison.gate.iter().map(|result| {
        let passes = if result.failure.is_none() { "pass" } else { "**fail**" };
        format!("- {passes} `{}`: {}", one_line(&result.metric), described(result))
    }));
    lines.extend(comparison.warnings.iter().map(|warning| format!("- warning: {}", one_line(warning))));
    escape::text(&(lines.join("\n") + "\n")).into_owned()
}

fn junit(comparison: &TraceComparison) -> String {
    let cases = comparison.gate.iter();
    let cases = cases.map(|result| JunitCase { name: result.metric.clone(), failure: result.failure.clone() });
    junit::junit("vllm-vcr inspect compare", &cases.collect::<Vec<_>>())
}
