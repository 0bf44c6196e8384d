//! `cassette convert`: a trace of a cassette, a cassette of a trace or of the log of another tool.

use std::{path::Path, process::ExitCode};

use super::{
    args::ConvertArgs,
    cassette_import,
    failure::{Exit, Failure},
    output, secret_args,
};
use crate::{
    play::load_tokenizer,
    recording::cassette::{self, CassetteError, Tokens, is_cassette},
    recording::trace::{CreateMode, End, Reader, TraceError, Writer},
    replay::player::{self, Refused},
    text::prompt::Tokenizer,
};

/// Converts in the direction that the names of the files give.
///
/// # Errors
/// When a file cannot be read or written, or one of its records cannot be converted and is not to be left out.
pub(super) fn run(args: &ConvertArgs) -> Result<ExitCode, Failure> {
    let tokenizer = args.tokenizer.as_deref().map(load_tokenizer).transpose()?;
    if !is_cassette(&args.from) && is_cassette(&args.to) && cassette_import::takes(&args.from) {
        return cassette_import::run(args);
    }
    match (is_cassette(&args.from), is_cassette(&args.to)) {
        (true, false) if is_trace(&args.to) => to_trace(args, tokenizer.as_ref()),
        (false, true) if is_trace(&args.from) => from_trace(args, tokenizer.as_ref()),
        _ => Err(Failure::usage(
            "one of the two has to be a cassette (.yaml), the other one a trace (.jsonl, .jsonl.gz); or the first one a log of an MCP connection (.jsonl of mcp-cassette, .json of MCP Inspector)",
        )),
    }
}

fn is_trace(path: &Path) -> bool {
    let name = path.to_string_lossy();
    name.ends_with(".jsonl") || name.ends_with(".jsonl.gz") || name == "-"
}

fn to_trace(args: &ConvertArgs, tokenizer: Option<&Tokenizer>) -> Result<ExitCode, Failure> {
    let cassette = cassette::load(&args.from)?;
    cassette.warnings.iter().for_each(|warning| output::note(&format!("{warning}\n")));
    let io = |source| Failure::from(CassetteError::Io { path: args.from.clone(), source });
    let made = player::to_trace(&cassette, &Tokens::read(&args.from).map_err(io)?, tokenizer);
    refuse(args, &made.refused)?;
    if made.records.is_empty() {
        return Ok(nothing_written(args));
    }
    let mut writer = Writer::create(&args.to, &made.meta, CreateMode::New)?;
    for (at, record) in made.records.iter().enumerate() {
        for defect in writer.append(record)? {
            output::note(&format!("record {}: repaired: {defect}\n", at + 1));
        }
    }
    let records = writer.records();
    writer.finish(End { records, ..End::default() })?;
    concluded(args, records, made.refused.len())
}

fn from_trace(args: &ConvertArgs, tokenizer: Option<&Tokenizer>) -> Result<ExitCode, Failure> {
    if args.to.exists() {
        return Err(Failure::usage(format!("{} exists", args.to.display())));
    }
    let mut reader = Reader::open(&args.from)?;
    let records = (&mut reader).collect::<Result<Vec<_>, TraceError>>()?;
    reader.warnings().iter().for_each(|warning| output::note(&format!("{warning}\n")));
    let rules = secret_args::rules(&args.redaction)?;
    let refused = if args.skip { Refused::LeaveOut } else { Refused::Stop };
    let made = player::from_trace((reader.meta(), records), &rules, tokenizer, (&args.to, refused))?;
    let named: Vec<String> = made.refused.iter().map(|why| format!("{}, {why}", args.from.display())).collect();
    refuse(args, &named)?;
    if made.records == 0 {
        return Ok(nothing_written(args));
    }
    concluded(args, made.records as u64, named.len())
}

/// Names what cannot be converted.
fn refuse(args: &ConvertArgs, refused: &[String]) -> Result<(), Failure> {
    let listed = refused.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n  ");
    let what = format!("{} records cannot be converted:\n  {listed}", refused.len());
    if refused.is_empty() {
        return Ok(());
    }
    if args.skip {
        output::note(&format!("{what}\n"));
        return Ok(());
    }
    Err(Failure::new(Exit::BadInput, what).hint("leave them out with --skip"))
}

/// Notes that there is no record to write, which is a no.
fn nothing_written(args: &ConvertArgs) -> ExitCode {
    let (from, to) = (args.from.display(), args.to.display());
    output::note(&format!("error: nothing of {from} was converted: {to} is not written\n"));
    Exit::No.into()
}

fn concluded(args: &ConvertArgs, records: u64, skipped: usize) -> Result<ExitCode, Failure> {
    let left_out = if skipped > 0 { format!(", {skipped} left out") } else { String::new() };
    output::note(&format!("{}: {records} records{left_out}\n", args.to.display()));
    Ok(ExitCode::SUCCESS)
}
