//! `inspect compare`: its arguments, and a comparison as text, JSON, JUnit or Markdown.

use std::{fs, path::PathBuf, process::ExitCode};

use clap::Args;

use crate::{
    cli::{
        failure::{Exit, Failure},
        output,
    },
    inspect::{Compared, Comparison, Gate, compare},
};

/// Two traces, and what may differ between them.
#[derive(Debug, Args)]
pub(in crate::cli) struct CompareArgs {
    /// The earlier trace.
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The later one.
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Limits in a TOML file, a table for each metric; exit code 1 where one is exceeded, or its metric is missing.
    #[arg(long, value_name = "FILE")]
    gate: Option<PathBuf>,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Writes what the gate said as JUnit's XML.
    #[arg(long, value_name = "FILE", requires = "gate")]
    junit: Option<PathBuf>,
    /// Writes the comparison as a table in Markdown.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// Compares the traces; exit code 1 where the gate does not let the later one pass.
pub(super) fn run(args: &CompareArgs) -> Result<ExitCode, Failure> {
    let gate = match &args.gate {
        None => Gate::default(),
        Some(path) => {
            let named = |error: String| Failure::input(format!("{}: {error}", path.display()));
            Gate::read(&fs::read_to_string(path).map_err(|error| named(error.to_string()))?).map_err(named)?
        }
    };
    let comparison = compare(&args.a, &args.b, &gate)?;
    for (path, text) in [(&args.junit, junit(&comparison)), (&args.markdown, markdown(&comparison))] {
        let Some(path) = path else { continue };
        fs::write(path, text).map_err(|error| Failure::environment(format!("{}: {error}", path.display())))?;
    }
    if args.json {
        output::print_json(&comparison)?;
    } else {
        output::print(&text(&comparison))?;
    }
    Ok(if comparison.passes() { ExitCode::SUCCESS } else { Exit::No.into() })
}

/// The cells of a row: name, both values, change, interval and whether it has changed.
fn cells(name: &str, compared: &Compared) -> [String; 6] {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    let change = compared.change_percent.map_or_else(String::new, |change| format!("{change:+.1} %"));
    let interval = compared.interval.map_or_else(String::new, |at| format!("{:+.2} … {:+.2}", at.low, at.high));
    let changed = match compared.has_changed {
        Some(true) if compared.interval.is_some_and(|at| at.low > 0.0) => "slower",
        Some(true) => "faster",
        Some(false) => "no change shown",
        None => "",
    };
    [name.to_owned(), number(compared.a), number(compared.b), change, interval, changed.to_owned()]
}

fn text(comparison: &Comparison) -> String {
    let mut lines = vec![format!("{:20}{:>12}{:>12}{:>11}  95 % of the difference", "", "A", "B", "change")];
    for (name, compared) in &comparison.metrics {
        let [name, a, b, change, interval, changed] = cells(name, compared);
        lines.push(format!("{name:20}{a:>12}{b:>12}{change:>11}  {interval:22}{changed}").trim_end().to_owned());
    }
    for result in &comparison.gate {
        let said = result.failure.as_deref().unwrap_or("within its limits");
        lines.push(format!("gate {}: {said}", result.metric));
    }
    lines.join("\n") + "\n"
}

fn markdown(comparison: &Comparison) -> String {
    let mut lines = vec![
        "| metric | A | B | change | 95 % of the difference | |".to_owned(),
        "|---|---|---|---|---|---|".to_owned(),
    ];
    lines
        .extend(comparison.metrics.iter().map(|(name, compared)| format!("| {} |", cells(name, compared).join(" | "))));
    for result in comparison.gate.iter().filter(|result| result.failure.is_some()) {
        lines.push(format!("\n**{}**: {}", result.metric, result.failure.as_deref().unwrap_or_default()));
    }
    lines.join("\n") + "\n"
}

fn junit(comparison: &Comparison) -> String {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
    let cases = comparison.gate.iter().map(|result| match &result.failure {
        None => format!("  <testcase name=\"{}\"/>\n", escaped(&result.metric)),
        Some(failure) => {
            format!(
                "  <testcase name=\"{}\"><failure message=\"{}\"/></testcase>\n",
                escaped(&result.metric),
                escaped(failure)
            )
        }
    });
    let failures = comparison.gate.iter().filter(|result| result.failure.is_some()).count();
    let cases: String = cases.collect();
    let tests = comparison.gate.len();
    format!(
        "<testsuite name=\"vllm-vcr inspect compare\" tests=\"{tests}\" failures=\"{failures}\">\n{cases}</testsuite>\n"
    )
}
