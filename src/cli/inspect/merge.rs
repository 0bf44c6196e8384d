//! `inspect merge`: its arguments, and the figures of the whole.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use clap::Args;

use crate::{
    cli::{failure::Failure, loading, output},
    inspect::{self, MergeError},
    recording::trace::Sources,
};

/// Traces that become one.
#[derive(Debug, Args)]
pub(in crate::cli) struct TraceMergeArgs {
    /// The traces: files, directories of traces, or the first file of a rotated capture.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// The new trace, compressed if the name ends in .gz.
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &TraceMergeArgs) -> Result<ExitCode, Failure> {
    let (sources, progress) = (Sources::gather(&args.paths)?, Arc::default());
    let merged = loading::watched(&progress, || inspect::merge(&sources, &args.out, &progress));
    let report = merged.map_err(|error| match error {
        MergeError::Trace(error) => error.into(),
        error @ MergeError::NoStart(_) => {
            Failure::input(error).hint("traces that `tap` and `replay --out` write have it; leave this one out")
        }
    })?;
    if args.json { output::print_json(&report) } else { output::print(&report.to_string()) }
}
