//! `cassette convert` where what is converted is the log of an MCP connection that another tool wrote.

use std::{fs, io::Read, path::Path, process::ExitCode};

use super::{
    args::ConvertArgs,
    failure::{Exit, Failure},
    output, secret_args,
};
use crate::{
    recording::canonical::is_server_name,
    recording::cassette::{CassetteWriter, Header, WriteMode},
    replay::mcp::{Imported, Unrecorded, import, is_log},
    replay::player::redact_exchange,
};

/// Bytes from the beginning of a file by which a log is recognised.
const HEAD: u64 = 64 << 10;

/// Returns whether a file is such a log.
pub(super) fn takes(path: &Path) -> bool {
    let name = path.to_string_lossy();
    let mut head = Vec::new();
    let is_read = fs::File::open(path).and_then(|file| file.take(HEAD).read_to_end(&mut head)).is_ok();
    let is_named = name.ends_with(".json") || name.ends_with(".jsonl");
    is_named && is_read && is_log(&String::from_utf8_lossy(&head))
}

/// Converts the log to a cassette.
///
/// # Errors
/// When the log cannot be read, or the cassette not be written.
pub(super) fn run(args: &ConvertArgs) -> Result<ExitCode, Failure> {
    if args.to.exists() {
        return Err(Failure::usage(format!("{} exists", args.to.display())));
    }
    let from = args.from.display();
    let rules = secret_args::rules(&args.redaction)?;
    let text =
        fs::read_to_string(&args.from).map_err(|error| Failure::new(Exit::BadInput, format!("{from}: {error}")))?;
    let imported = import(&text, &name(args)?);
    let Imported { exchanges, left_out, unrecorded } =
        imported.map_err(|error| Failure::new(Exit::BadInput, format!("{from}, {error}")))?;
    if exchanges.is_empty() {
        output::note(&format!("error: {from} holds no message of a client: {} is not written\n", args.to.display()));
        return Ok(Exit::No.into());
    }
    let mut writer = CassetteWriter::create(&args.to, &Header::default(), WriteMode::Replace)?;
    let mut unsearched = 0;
    for mut exchange in exchanges {
        if redact_exchange(&rules, &mut exchange) {
            writer.add(exchange);
        } else {
            unsearched += 1;
        }
    }
    let records = writer.finish()?;
    output::note(&format!("{}: {records} records\n", args.to.display()));
    let Unrecorded { unreadable, unmatched, early } = unrecorded;
    for (count, what) in [
        (left_out + unreadable, "entries were no messages and are left out"),
        (unmatched, "responses had no request and are left out"),
        (early, "messages of the server came before the client's first and are left out"),
        (unsearched, "exchanges are left out: too much work to search them for secrets"),
    ] {
        if count > 0 {
            output::note(&format!("  {count} {what}\n"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The server's name: the one that was typed, else that of the log.
fn name(args: &ConvertArgs) -> Result<String, Failure> {
    let of_file = || args.from.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let name = args.name.clone().unwrap_or_else(of_file);
    if is_server_name(&name) {
        return Ok(name);
    }
    Err(Failure::usage(format!("`{}` cannot name a server", name.escape_debug())).hint("give it one: --name NAME"))
}
