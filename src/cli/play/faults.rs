//! Flags of `play` about faults, and what they mean.

use std::{path::PathBuf, sync::Arc};

use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser},
    value_parser,
};

use crate::{
    cli::failure::Failure,
    faults::Fault,
    play::{FAILURE_TYPES, FaultLines, InjectedFailures, ServerFaults},
};

/// Faults.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Faults")]
pub(in crate::cli) struct FaultArgs {
    /// Injects a fault: KIND[:ARGUMENTS] [at PLACE] [where CONDITIONS], such as '429:retry-after=2s where first=2', 'reset at event 3 where
    /// rate=0.1' or 'stall:30s at token 12 where prompt=weather'. /vcr/faults/catalog and the guide list the kinds.
    #[arg(long, group = "@any", value_name = "FAULT")]
    pub(in crate::cli) fault: Vec<Fault>,
    /// A YAML file of faults: `seed`, `include` and `faults`, a list in the form of --fault.
    #[arg(long, group = "@any", value_name = "FILE")]
    pub(in crate::cli) faults: Option<PathBuf>,
    /// Seed of faults with a rate: the same seed and requests give the same faults.
    #[arg(long, group = "@any", value_name = "N")]
    pub(in crate::cli) fault_seed: Option<u64>,
    /// Lets requests ask for faults: X-VCR-Fault: FAULT, or X-Return-Error: 429.
    #[arg(long, group = "@any")]
    pub(in crate::cli) fault_headers: bool,
    /// Percentage of requests that fail, each with one of --failure-types, as in llm-d-inference-sim.
    #[arg(long, group = "@any", value_name = "PERCENT", value_parser = value_parser!(u8).range(0..=100))]
    pub(in crate::cli) failure_injection_rate: Option<u8>,
    /// Kinds of the failures of --failure-injection-rate, by llm-d-inference-sim's names, all equally often. Default: all kinds.
    #[arg(long, group = "@any", value_delimiter = ',', value_name = "TYPES", value_parser = failure_types())]
    pub(in crate::cli) failure_types: Vec<String>,
}

fn failure_types() -> PossibleValuesParser {
    PossibleValuesParser::new(FAILURE_TYPES.map(|(name, help)| PossibleValue::new(name).help(help)))
}

pub(in crate::cli) fn config(args: &FaultArgs) -> Result<Arc<ServerFaults>, Failure> {
    let faults = ServerFaults::new(lines(args)?, args.fault_headers);
    let percent = args.failure_injection_rate.unwrap_or_default();
    faults.fail(InjectedFailures { percent, types: args.failure_types.clone() }).map_err(Failure::input)?;
    Ok(Arc::new(faults))
}

/// The faults that were typed, after those of the file; without the failures, which change while the server runs.
pub(in crate::cli) fn lines(args: &FaultArgs) -> Result<FaultLines, Failure> {
    let mut lines = match &args.faults {
        Some(path) => FaultLines::read(path).map_err(Failure::input)?,
        None => FaultLines::default(),
    };
    lines.faults.extend(args.fault.iter().cloned());
    lines.seed = args.fault_seed.unwrap_or(lines.seed);
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::{FaultRequest, FaultSet};

    #[test]
    fn failures_take_their_percentage_in_equal_shares() {
        let set = FaultSet::new(InjectedFailures { percent: 30, types: Vec::new() }.lines().unwrap(), 5);
        let mut counts = [0_u32; 6];
        for number in 0..20_000 {
            let body = format!("{{\"n\":{number}}}");
            let headers = http::HeaderMap::new();
            let request = FaultRequest {
                path: "/v1/completions",
                headers: &headers,
                body: body.as_bytes(),
                session: None,
                replica: 0,
            };
            // The first one answers.
            if let Some(first) = set.choose(&request).first() {
                counts[first.rule.unwrap()] += 1;
            }
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
