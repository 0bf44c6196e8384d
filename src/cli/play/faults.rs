//! Flags of `play` about faults, and what they mean.

use std::{path::PathBuf, sync::Arc};

use clap::Args;

use crate::{
    cli::failure::Failure,
    faults::Fault,
    play::{FaultLines, ServerFaults},
};

/// Faults.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Faults")]
pub(in crate::cli) struct FaultArgs {
    /// Lets something go wrong: KIND[:ARGUMENTS] [at PLACE] [where CONDITIONS], such as '429:retry-after=2s where first=2', 'reset at
    /// event 3 where rate=0.1' or 'stall:30s at token 12 where prompt=weather'. /vcr/faults/catalog and the guide list the kinds.
    #[arg(long, group = "@any", value_name = "FAULT")]
    pub(in crate::cli) fault: Vec<Fault>,
    /// A YAML file of faults: `seed`, `include` and `faults`, a list of lines as --fault takes them.
    #[arg(long, group = "@any", value_name = "FILE")]
    pub(in crate::cli) faults: Option<PathBuf>,
    /// Seed of faults with a rate: the same seed and the same requests give the same faults.
    #[arg(long, group = "@any", value_name = "N")]
    pub(in crate::cli) fault_seed: Option<u64>,
    /// Lets requests name faults of their own: X-VCR-Fault: FAULT, or X-Return-Error: 429.
    #[arg(long, group = "@any")]
    pub(in crate::cli) fault_headers: bool,
}

/// The faults that a server starts with.
pub(in crate::cli) fn config(args: &FaultArgs) -> Result<Arc<ServerFaults>, Failure> {
    Ok(Arc::new(ServerFaults::new(lines(args)?, args.fault_headers)))
}

/// The faults that were typed, after those of the file.
pub(in crate::cli) fn lines(args: &FaultArgs) -> Result<FaultLines, Failure> {
    let mut lines = match &args.faults {
        Some(path) => FaultLines::read(path).map_err(Failure::input)?,
        None => FaultLines::default(),
    };
    lines.faults.extend(args.fault.iter().cloned());
    lines.seed = args.fault_seed.unwrap_or(lines.seed);
    Ok(lines)
}
