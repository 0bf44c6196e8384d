//! Log lines, on stderr.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use crate::cli::{
    args::{Color, GlobalArgs, LogFormat},
    escape::{LineStyle, LogWriter},
    output,
};

/// Starts logging as asked. A second start in one process changes nothing.
pub(in crate::cli) fn start(global: &GlobalArgs) {
    if global.quiet > 0 {
        output::be_quiet();
    }
    let is_coloured = wants_color(global.color);
    let lines = match global.log_format {
        LogFormat::Json => LineStyle::Json,
        LogFormat::Text if is_coloured => LineStyle::Coloured,
        LogFormat::Text => LineStyle::Plain,
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(global))
        .log_internal_errors(false)
        .with_writer(move || LogWriter { output: io::stderr(), lines })
        .with_target(global.verbose > 0)
        .with_ansi(is_coloured);
    let _already_started = match global.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}

fn filter(global: &GlobalArgs) -> EnvFilter {
    if let Some(filter) = &global.log {
        return filter.clone();
    }
    EnvFilter::new(match (global.verbose, global.quiet) {
        (0, 0) => "vllm_vcr=info,warn",
        (1, 0) => "vllm_vcr=debug,info",
        (_, 0) => "trace",
        (_, 1) => "warn",
        (_, _) => "error",
    })
}

fn wants_color(color: Color) -> bool {
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    }
}
