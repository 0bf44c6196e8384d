//! `inspect convert`: its arguments, and what the conversion kept.

use std::{num::NonZeroU32, path::PathBuf, process::ExitCode};

use clap::Args;

use crate::{
    cli::{
        failure::Failure,
        output,
        stepping::count,
        values::{one_of, one_of_those},
    },
    inspect,
    play::load_tokenizer,
    recording::formats::{ConversionTarget, FormatError, ReadOptions, TraceFormat},
};

/// A file of requests, and the one that is made of it.
#[derive(Debug, Args)]
pub(in crate::cli) struct TraceConvertArgs {
    /// The file: .jsonl or .json, gzipped or not; - is stdin.
    #[arg(value_name = "IN")]
    pub(in crate::cli) input: PathBuf,
    /// The file to write, .jsonl or .jsonl.gz; it must not exist; - is stdout.
    #[arg(long, short, value_name = "OUT")]
    pub(in crate::cli) output: PathBuf,
    /// Format of IN. Default: detected from its first object.
    #[arg(long, value_name = "KIND", value_parser = one_of::<TraceFormat>())]
    pub(in crate::cli) from: Option<TraceFormat>,
    /// Format of OUT. Default: as in its name (NAME.weka.jsonl), else trace.
    #[arg(long, value_name = "KIND", value_parser = one_of_those(|kind: &TraceFormat| kind.is_written()))]
    pub(in crate::cli) to: Option<TraceFormat>,
    /// Tokens per block of IN, if the file does not say it.
    #[arg(long, value_name = "N", value_parser = count)]
    pub(in crate::cli) hash_block_size: Option<NonZeroU32>,
    /// Tokens per block of OUT. Default: those of IN; 512 for mooncake, 64 for weka.
    #[arg(long, value_name = "N", value_parser = count)]
    pub(in crate::cli) block_size: Option<NonZeroU32>,
    /// Tokenizer directory: counts and hashes the texts of IN.
    #[arg(long, value_name = "DIR")]
    pub(in crate::cli) tokenizer: Option<String>,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

/// Prints what was kept, on stderr where the requests go to stdout.
pub(in crate::cli) fn run(args: &TraceConvertArgs) -> Result<ExitCode, Failure> {
    let tokenizer = args.tokenizer.as_deref().map(load_tokenizer).transpose()?;
    let options = ReadOptions { kind: args.from, block_size: args.hash_block_size.map(NonZeroU32::get), tokenizer };
    let target = ConversionTarget {
        path: args.output.clone(),
        kind: args.to.unwrap_or_else(|| TraceFormat::of_name(&args.output)),
        block_size: args.block_size.map(NonZeroU32::get),
    };
    let report = match inspect::convert(&args.input, &options, &target) {
        Err(FormatError::Trace(error)) if output::is_closed_pipe(&error) => return Ok(ExitCode::SUCCESS),
        converted => converted?,
    };
    match args.output.as_os_str() == "-" {
        true => {
            output::note(&report.to_string());
            Ok(ExitCode::SUCCESS)
        }
        false if args.json => output::print_json(&report),
        false => output::print(&report.to_string()),
    }
}
