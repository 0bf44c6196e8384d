//! `inspect report`: its arguments, and the file of the page.

use std::{fs, path::PathBuf, process::ExitCode, sync::Arc};

use clap::Args;

use crate::{
    cli::{failure::Failure, loading, output},
    inspect::{ReportError, report},
};

/// Traces, and where the page goes.
#[derive(Debug, Args)]
pub(in crate::cli) struct ReportArgs {
    /// The traces, side by side: each a file, a directory of its parts, or the first file of a rotated capture; - is stdin.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The HTML file to write, which needs no other file; an existing one is replaced.
    #[arg(short, long, value_name = "FILE.html")]
    output: PathBuf,
}

pub(super) fn run(args: &ReportArgs) -> Result<ExitCode, Failure> {
    let path = args.output.display();
    let is_page = args.output.extension().is_some_and(|suffix| suffix.eq_ignore_ascii_case("html"));
    if !is_page {
        // A trace that stands where the page should would be lost.
        return Err(Failure::usage(format!("--output {path}: the name of a page ends in .html")));
    }
    let progress = Arc::default();
    let report = loading::watched(&progress, || report(&args.files, &progress)).map_err(|error| match error {
        ReportError::Trace(error) => Failure::input(error),
        error => Failure::usage(error),
    })?;
    let page = report.html().map_err(Failure::environment)?;
    fs::write(&args.output, &page).map_err(|error| Failure::environment(format!("{path}: {error}")))?;
    output::note(&format!("{path}: {} kB\n", page.len().div_ceil(1000)));
    Ok(ExitCode::SUCCESS)
}
