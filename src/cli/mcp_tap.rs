//! `mcp-tap`: records an MCP server for a client over stdio.

use std::{process::ExitCode, sync::Arc};

use http::{HeaderName, HeaderValue};
use serde_json::Map;

use super::{
    args::{McpMode, McpTapArgs},
    conclude,
    failure::{Exit, Failure},
    mcp_tapped, output, runtime,
    secret_args::{self, RedactWhat},
    signals, stdio,
};
use crate::{
    net::upstream::{Authorities, EndpointUrl, UpstreamOptions},
    recording::canonical::is_server_name,
    recording::cassette::{self, CassetteError, Header, WriteMode},
    tap::mcp::{McpTapError, RecordingTarget, StdioTap, UrlTap},
};

impl From<McpTapError> for Failure {
    fn from(error: McpTapError) -> Self {
        match error {
            McpTapError::Cassette(error) => error.into(),
            McpTapError::Command { .. } => Self::new(Exit::Environment, error),
        }
    }
}

/// Runs a server behind the tap, or calls one; ends with the server's exit code.
///
/// # Errors
/// When the server cannot be started, or the cassette not be written.
pub(super) fn run(mut args: McpTapArgs) -> Result<ExitCode, Failure> {
    mcp_tapped::hide_headers(&args.upstream_header, &mut args.redaction);
    let secrets = secret_args::rules(&args.redaction)?;
    let mode = mode(&args)?;
    let what = RedactWhat::of(&args.redaction)?;
    let is_off = what.is_off;
    let target = RecordingTarget {
        server: name(&args)?,
        header: header(&args, mode, &what),
        cassette: args.cassette.clone(),
        mode,
        secrets,
    };
    let url = args.url.clone().map(|url| url_tap(&args, url)).transpose()?;
    runtime::run(|shutdown| async move {
        signals::outlive_file_limits();
        let (input, output) = stdio::open()?;
        let ended = match url {
            None => StdioTap { command: args.command, target }.run(input, output, shutdown.requested()).await?,
            Some((url, headers, reach)) => {
                UrlTap { url, headers, reach, target }.run(input, output, shutdown.requested()).await?
            }
        };
        let recorded = ended.recorded.map_err(|error: CassetteError| {
            let hint =
                format!("what was recorded is in {}.partial, as far as it could be written", args.cassette.display());
            Failure::new(Exit::Environment, error).hint(hint)
        });
        match recorded {
            Ok(recorded) => {
                let unredacted = if is_off { conclude::unredacted_text(&args.cassette) } else { String::new() };
                output::summary(&(mcp_tapped::text(&recorded) + &unredacted));
            }
            // The server's own failure is shown first.
            Err(failure) if ended.code == 0 => return Err(failure),
            Err(failure) => drop(failure.report()),
        }
        Ok(ended.code.into())
    })
}

type Called = (EndpointUrl, Vec<(HeaderName, HeaderValue)>, UpstreamOptions);

/// The server to call, and how.
fn url_tap(args: &McpTapArgs, url: EndpointUrl) -> Result<Called, Failure> {
    let authorities = args.upstream_ca.as_deref().map(Authorities::read).transpose();
    let authorities = authorities.map_err(|error| Failure::new(Exit::BadInput, error))?.map(Arc::new);
    Ok((
        url,
        mcp_tapped::headers(&args.upstream_header)?,
        UpstreamOptions { authorities, ..UpstreamOptions::default() },
    ))
}

fn mode(args: &McpTapArgs) -> Result<WriteMode, Failure> {
    match args.mode {
        None if args.cassette.exists() => {
            let message = format!("{} exists", args.cassette.display());
            Err(Failure::usage(message).hint("choose --mode all (replaces it) or new-episodes (adds to it)"))
        }
        None | Some(McpMode::All) => Ok(WriteMode::Replace),
        Some(McpMode::NewEpisodes) => Ok(WriteMode::Append),
    }
}

/// The server's name: the one that was typed, else that of the file.
fn name(args: &McpTapArgs) -> Result<String, Failure> {
    let of_file = || args.cassette.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let name = args.name.clone().unwrap_or_else(of_file);
    if is_server_name(&name) {
        return Ok(name);
    }
    let message = format!("`{}` cannot name a server", name.escape_debug());
    Err(Failure::usage(message).hint("give it one: --name NAME"))
}

/// The top of a new cassette; what people wrote into one that is replaced stays.
fn header(args: &McpTapArgs, mode: WriteMode, what: &RedactWhat) -> Header {
    let old =
        (mode == WriteMode::Replace && args.cassette.exists()).then(|| cassette::load(&args.cassette).ok()).flatten();
    if let Some(old) = &old {
        output::note(&format!("{}: {} records will be replaced\n", args.cassette.display(), old.records.len()));
    }
    let mut header = old.map(|old| old.header).unwrap_or_default();
    header.recorded = Map::new();
    header.recorded.insert("by".to_owned(), concat!("vllm-vcr ", env!("CARGO_PKG_VERSION")).into());
    let redact = &mut header.redact;
    redact.is_off = what.is_off;
    for (list, typed) in [
        (&mut redact.keys, &args.redaction.redact_key),
        (&mut redact.patterns, &args.redaction.redact_pattern),
        (&mut redact.places, &what.places),
        (&mut redact.shapes, &what.shapes),
    ] {
        list.extend(typed.iter().filter(|text| !list.contains(text)).cloned().collect::<Vec<_>>());
    }
    header
}
