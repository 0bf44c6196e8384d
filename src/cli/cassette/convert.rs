//! `cassette convert`: a trace of a cassette, a cassette of a trace or of what another tool wrote.

use std::{
    fmt::Display,
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use crate::{
    base::one_line::counted,
    cli::{
        cassette::{new_cassette, tokens_of},
        failure::{Exit, Failure},
        mcp::servers::{self, server_name},
        output,
        redaction::{self, RedactionArgs},
    },
    play::load_tokenizer,
    recording::{
        cassette::{self, CassetteWriter, Header, WriteMode, is_cassette},
        redaction::NamedValues,
        storage,
        trace::{CaptureEnd, CreateMode, TraceError, TraceReader, TraceWriter},
    },
    replay::{
        mcp::{Imported, Unrecorded, import, is_log},
        player::{
            self, ConvertedFixtures, Counts, HttpLog, aimock, http_log, is_aimock, is_http_log, redact_cassette,
            redact_exchange, redact_named,
        },
    },
    text::prompt::Tokenizer,
};

/// What is to be made of what.
#[derive(Debug, Args)]
pub(in crate::cli) struct ConvertArgs {
    /// A cassette, .yaml, or a trace, .jsonl or .jsonl.gz; a cassette of vcrpy, .yaml or .json, a HAR, or fixtures of aimock, .json; or the
    /// log of an MCP connection, .jsonl of mcp-cassette or .json of MCP Inspector.
    #[arg(value_name = "FROM")]
    pub(in crate::cli) from: PathBuf,
    /// The file to write; it must not exist.
    #[arg(value_name = "TO")]
    pub(in crate::cli) to: PathBuf,
    /// The MCP server's name in the cassette. Default: the name of the log.
    #[arg(long, value_name = "NAME", value_parser = server_name)]
    pub(in crate::cli) name: Option<String>,
    /// Tokenizer directory: decodes ids if a trace has no text; counts and hashes the prompts of a cassette.
    #[arg(long, value_name = "DIR")]
    pub(in crate::cli) tokenizer: Option<String>,
    /// Leaves out what cannot be converted; by default nothing is written then.
    #[arg(long)]
    pub(in crate::cli) skip: bool,
    #[command(flatten)]
    pub(in crate::cli) redaction: RedactionArgs,
}

/// Converts in the direction that the names of the files give.
pub(in crate::cli) fn run(args: &ConvertArgs) -> Result<ExitCode, Failure> {
    if args.from != Path::new("-") && !storage::is_url(&args.from) && !args.from.exists() {
        return Err(Failure::input(format!("{}: no such file", args.from.display())));
    }
    let tokenizer = args.tokenizer.as_deref().map(load_tokenizer).transpose()?;
    if is_cassette(&args.to) {
        let head = head(&args.from);
        if is_aimock(&head) || is_http_log(&head) || !is_cassette(&args.from) && is_log(&head) {
            new_cassette(&args.to, "name another file")?;
            let text = fs::read_to_string(&args.from).map_err(|error| wrong(args, ": ", error))?;
            return if is_aimock(&head) { from_fixtures(args, &text) } else { from_log(args, &text) };
        }
    }
    match (is_cassette(&args.from), is_cassette(&args.to)) {
        (true, false) if is_trace(&args.to) => to_trace(args, tokenizer.as_ref()),
        (false, true) if is_trace(&args.from) => from_trace(args, tokenizer.as_ref()),
        (true, _) => {
            Err(not_taken(&args.to, "not a trace", "if FROM is a cassette, TO is a trace (.jsonl, .jsonl.gz)"))
        }
        (false, false) => Err(not_taken(&args.to, "not a cassette", "if FROM is not a cassette, TO is one (.yaml)")),
        (false, true) => Err(not_taken(
            &args.from,
            "not a file that can be converted to a cassette",
            "FROM is a trace (.jsonl, .jsonl.gz), a cassette of vcrpy (.yaml, .json), a HAR (.har), fixtures of aimock (.json) or a log of an MCP connection (.jsonl of mcp-cassette, .json of MCP Inspector)",
        )),
    }
}

/// What is wrong with the file that is converted.
fn wrong(args: &ConvertArgs, place: &str, error: impl Display) -> Failure {
    Failure::input(format!("{}{place}{error}", args.from.display()))
}

fn not_taken(path: &Path, what: &str, taken: &str) -> Failure {
    Failure::usage(format!("{}: this is {what}", path.display())).hint(taken)
}

fn is_trace(path: &Path) -> bool {
    let name = path.to_string_lossy();
    name.ends_with(".jsonl") || name.ends_with(".jsonl.gz") || name == "-"
}

fn to_trace(args: &ConvertArgs, tokenizer: Option<&Tokenizer>) -> Result<ExitCode, Failure> {
    let cassette = cassette::load(&args.from)?;
    cassette.warnings.iter().for_each(|warning| output::note(&format!("{warning}\n")));
    let made = player::to_trace(&cassette, &tokens_of(&args.from)?, tokenizer, Counts::Needed);
    refuse(args, &made.refused)?;
    if made.records.is_empty() {
        return Ok(nothing_written(args));
    }
    let mut writer = TraceWriter::create(&args.to, &made.meta, CreateMode::New)?;
    for (at, record) in made.records.iter().enumerate() {
        for defect in writer.append(record)? {
            output::note(&format!("record {}: repaired: {defect}\n", at + 1));
        }
    }
    let records = writer.records();
    writer.finish(CaptureEnd { records, ..CaptureEnd::default() })?;
    concluded(args, records, made.refused.len())
}

fn from_trace(args: &ConvertArgs, tokenizer: Option<&Tokenizer>) -> Result<ExitCode, Failure> {
    new_cassette(&args.to, "name another file")?;
    let mut reader = TraceReader::open(&args.from)?;
    let records = (&mut reader).collect::<Result<Vec<_>, TraceError>>()?;
    reader.warnings().iter().for_each(|warning| output::note(&format!("{warning}\n")));
    let rules = redaction::rules(&args.redaction)?;
    let made = player::from_trace((reader.meta(), records), &rules, tokenizer, (&args.to, args.skip))?;
    refuse_named(args, &made.refused)?;
    if made.records == 0 {
        return Ok(nothing_written(args));
    }
    concluded(args, made.records as u64, made.refused.len())
}

/// Does the same, and names the file.
fn refuse_named(args: &ConvertArgs, refused: &[impl Display]) -> Result<(), Failure> {
    refuse(args, &refused.iter().map(|why| format!("{}, {why}", args.from.display())).collect::<Vec<_>>())
}

fn refuse(args: &ConvertArgs, refused: &[String]) -> Result<(), Failure> {
    let listed = refused.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n  ");
    let what = format!("{} cannot be converted:\n  {listed}", counted(refused.len(), "record"));
    if refused.is_empty() {
        return Ok(());
    }
    if args.skip {
        output::note(&format!("{what}\n"));
        return Ok(());
    }
    Err(Failure::input(what).hint("leave them out with --skip"))
}

/// Notes that there is no record to write, which is a no.
fn nothing_written(args: &ConvertArgs) -> ExitCode {
    let (from, to) = (args.from.display(), args.to.display());
    output::note(&format!("error: nothing of {from} was converted: {to} is not written\n"));
    Exit::No.into()
}

fn concluded(args: &ConvertArgs, records: u64, skipped: usize) -> Result<ExitCode, Failure> {
    let left_out = if skipped > 0 { format!(", {skipped} left out") } else { String::new() };
    output::note(&format!("{}: {}{left_out}\n", args.to.display(), counted(records, "record")));
    Ok(ExitCode::SUCCESS)
}

/// Bytes from the beginning of a file by which a log is recognised.
const HEAD: u64 = 64 << 10;

/// The beginning of a file that another tool may have written; empty for any other, and for one that cannot be read.
fn head(path: &Path) -> String {
    let mut head = Vec::new();
    if [".json", ".jsonl", ".har", ".yaml", ".yml"].iter().any(|ending| path.to_string_lossy().ends_with(ending)) {
        let _unread = fs::File::open(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// Returns true for a file from which `cassette convert` makes a cassette, by its beginning.
pub(in crate::cli) fn is_of_another_tool(path: &Path) -> bool {
    let head = head(path);
    is_http_log(&head) || is_aimock(&head)
}

fn from_fixtures(args: &ConvertArgs, text: &str) -> Result<ExitCode, Failure> {
    let rules = redaction::rules(&args.redaction)?;
    let ConvertedFixtures { text, records, refused } = aimock(text).map_err(|error| wrong(args, ", ", error))?;
    refuse_named(args, &refused)?;
    if records == 0 {
        return Ok(nothing_written(args));
    }
    let mut cassette = cassette::parse(&args.to, &text)?;
    redact_cassette(&rules, &mut cassette);
    cassette::rewrite(&cassette)?;
    concluded(args, records as u64, refused.len())
}

fn from_log(args: &ConvertArgs, text: &str) -> Result<ExitCode, Failure> {
    let rules = redaction::rules(&args.redaction)?;
    let (imported, preflights) = if is_http_log(text) {
        let HttpLog { exchanges, preflights, refused } = http_log(text).map_err(|error| wrong(args, ", ", error))?;
        refuse_named(args, &refused)?;
        (Imported { exchanges, left_out: 0, unrecorded: Unrecorded::default() }, preflights)
    } else {
        let name = servers::name(args.name.as_deref(), &args.from)?;
        (import(text, &name).map_err(|error| wrong(args, ", ", error))?, 0)
    };
    let Imported { exchanges, left_out, unrecorded } = imported;
    let preflights = [(preflights, "CORS preflight", "(OPTIONS) left out")];
    if exchanges.is_empty() {
        let code = nothing_written(args);
        output::note(&output::counts(&preflights));
        return Ok(code);
    }
    let mut writer = CassetteWriter::create(&args.to, &Header::default(), WriteMode::Replace)?;
    let (mut unsearched, mut named) = (0, NamedValues::default());
    for mut exchange in exchanges {
        if let Some(seen) = redact_exchange(&rules, &mut exchange) {
            named.add(&seen);
            writer.add(exchange);
        } else {
            unsearched += 1;
        }
    }
    if !named.is_empty() {
        writer.mend(|whole| redact_named(&rules, &named, whole))?;
    }
    let records = writer.finish()?;
    output::note(&format!("{}: {}\n", args.to.display(), counted(records, "record")));
    let Unrecorded { unreadable, unmatched, early } = unrecorded;
    output::note(&output::counts(&preflights));
    output::note(&output::counts(&[
        (left_out + unreadable, "line", "left out: not a message"),
        (unmatched, "response", "left out: without a request"),
        (early, "message", "of the server left out: before the client's first"),
        (unsearched, "exchange", "left out: too much work to search for secrets"),
    ]));
    Ok(ExitCode::SUCCESS)
}
