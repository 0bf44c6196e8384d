//! Everything that can be typed. What it means is decided by each tool's conversion, next to its arguments.

use std::env;

use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum, builder::BoolishValueParser};

use crate::cli::{
    answers::AnswersCommand,
    bench::BenchArgs,
    build,
    cassette::CassetteCommand,
    conform::ConformArgs,
    doctor::DoctorArgs,
    drift::DriftArgs,
    flags::with_tags,
    fork::ForkArgs,
    health::HealthArgs,
    inspect::InspectCommand,
    mcp::{play::McpPlayArgs, tap::McpTapArgs},
    play::{self, args::PlayArgs},
    prove::ProveArgs,
    replay::ReplayArgs,
    sweep::SweepArgs,
    tap::{self, args::TapArgs},
};

/// Prefix of an environment variable's name; the flag's name follows in capitals.
const ENV_PREFIX: &str = "VLLM_VCR_";

/// Flags without a variable: VLLM_VCR_MODE and VLLM_VCR_URL of a wrapped command tell of the server around it, not of those that it starts.
const WITHOUT_VARIABLE: [&str; 2] = ["mode", "url"];

const EXAMPLES: &str = "\
Examples:
  Serve the built-in trace on port 8000:
    vllm-vcr play

  Record what a real engine streams, then play it without the engine:
    vllm-vcr tap --upstream http://gpu-box:8000 --trace-out day.jsonl.gz --record-tokens
    vllm-vcr play --replay-tokens day.jsonl.gz --tokenizer ./tokenizer

  Record the requests of an agent, then test it without the engine:
    vllm-vcr tap --upstream http://gpu-box:8000 --cassette agent.yaml -- python agent.py
    vllm-vcr play --cassette agent.yaml --strict -- python agent.py

  Talk to a server:
    curl localhost:8000/v1/chat/completions -H 'content-type: application/json' \\
        -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'

  See what a trace holds and whether it is valid:
    vllm-vcr inspect summary day.jsonl.gz
    vllm-vcr inspect check day.jsonl.gz

Flags but --mode and --url can also be set by environment variables (--time-scale is
VLLM_VCR_TIME_SCALE), and all in a TOML file given by --config. The command line takes precedence over the
environment, the environment over the file.

Exit codes: 0 done, 1 the check failed, 2 usage, 3 bad input data, 4 environment.";

/// Record the token streams of a real LLM engine once and replay them forever, without a GPU.
#[derive(Debug, Parser)]
#[command(name = "vllm-vcr", version, long_version = build::LONG_VERSION, after_long_help = EXAMPLES, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
pub(in crate::cli) struct Cli {
    #[command(flatten)]
    pub(in crate::cli) global: GlobalArgs,
    #[command(subcommand)]
    pub(in crate::cli) command: Command,
}

/// Flags of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(in crate::cli) struct GlobalArgs {
    /// Reads flags from a TOML file: global flags at the top level, a command's flags in a table of its name.
    #[arg(long, global = true, value_name = "FILE")]
    pub(in crate::cli) config: Option<std::path::PathBuf>,
    /// Logs more; -vv logs everything.
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    pub(in crate::cli) verbose: u8,
    /// Prints only warnings and errors, without greeting and report; -qq prints only errors.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(in crate::cli) quiet: u8,
    /// Log filter, such as `debug` or `vllm_vcr::tap=trace,warn`.
    #[arg(long, global = true, value_name = "LEVEL", conflicts_with_all = ["verbose", "quiet"])]
    pub(in crate::cli) log: Option<tracing_subscriber::EnvFilter>,
    /// Format of log lines on stderr.
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    pub(in crate::cli) log_format: LogFormat,
    /// When to use colors.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(in crate::cli) color: Color,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum LogFormat {
    /// Plain text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Whether output is colored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Color {
    /// When stderr is a terminal and NO_COLOR is not set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The commands; those without a word here are described at their arguments.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Command {
    Tap(Box<TapArgs>),
    Play(Box<PlayArgs>),
    Replay(Box<ReplayArgs>),
    Prove(Box<ProveArgs>),
    Sweep(Box<SweepArgs>),
    Conform(Box<ConformArgs>),
    Drift(Box<DriftArgs>),
    Fork(Box<ForkArgs>),
    McpTap(Box<McpTapArgs>),
    McpPlay(Box<McpPlayArgs>),
    Doctor(Box<DoctorArgs>),
    Bench(BenchArgs),
    /// Serve canned events with nothing around them, for `bench`.
    #[command(hide = true)]
    BenchFloor {
        /// Arguments as `play` has them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Summarize, check, compare, convert or simulate traces.
    #[command(
        arg_required_else_help = true,
        after_long_help = "Examples:\n  vllm-vcr inspect summary day.jsonl.gz\n  vllm-vcr inspect check day.jsonl.gz\n  \
                           vllm-vcr inspect compare monday.jsonl.gz tuesday.jsonl.gz"
    )]
    Inspect {
        /// What to do with it.
        #[command(subcommand)]
        command: InspectCommand,
    },
    /// Check, write, compare or redact cassettes.
    #[command(
        arg_required_else_help = true,
        after_long_help = "Examples:\n  vllm-vcr cassette validate agent.yaml\n  vllm-vcr cassette diff old.yaml new.yaml\n  \
                           vllm-vcr cassette redact agent.yaml"
    )]
    Cassette {
        /// What to do with them.
        #[command(subcommand)]
        command: CassetteCommand,
    },
    /// Check files of answers, the rules of `play --answers`.
    #[command(arg_required_else_help = true, after_long_help = "Example:\n  vllm-vcr answers check guard.yaml")]
    Answers {
        /// What to do with them.
        #[command(subcommand)]
        command: AnswersCommand,
    },
    Health(HealthArgs),
    /// Print the completions of a shell.
    #[command(after_long_help = "Example:\n  vllm-vcr completions bash > /etc/bash_completion.d/vllm-vcr")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the man page of the program or of one command.
    #[command(after_long_help = "Examples:\n  vllm-vcr man | man -l -\n  vllm-vcr man play | man -l -")]
    Man {
        /// The command, such as `play` or `inspect check`.
        command: Vec<String>,
    },
    /// Print the reference of every command in Markdown.
    #[command(hide = true)]
    Reference,
}

/// The whole table of commands and flags, with their environment variables.
#[must_use]
pub fn command() -> clap::Command {
    with_environment(Cli::command())
}

/// The environment variable of a flag's name.
pub(in crate::cli) fn variable(name: &str) -> String {
    format!("{ENV_PREFIX}{}", name.to_ascii_uppercase().replace('-', "_"))
}

fn with_environment(command: clap::Command) -> clap::Command {
    let tags = play::sources::tags().chain(tap::TAGS.iter().copied());
    with_tags(command, tags).mut_args(with_variable).mut_subcommands(with_environment)
}

/// Gives a flag its variable, of its names the first one that is set; an empty variable counts as not set.
fn with_variable(arg: clap::Arg) -> clap::Arg {
    let names = arg.get_long_and_visible_aliases().unwrap_or_default().into_iter();
    let variables = names.filter(|name| !WITHOUT_VARIABLE.contains(name)).map(variable);
    let usable: Vec<String> =
        variables.filter(|name| env::var_os(name).is_none_or(|value| !value.is_empty())).collect();
    let arg = match usable.iter().find(|name| env::var_os(name).is_some()).or(usable.first()) {
        Some(name) => arg.env(name).hide_env(true),
        None => arg,
    };
    match arg.get_action() {
        ArgAction::SetTrue => arg.value_parser(BoolishValueParser::new()),
        _ => arg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_has_a_variable() {
        let command = command();
        let play = command.find_subcommand("play").unwrap();
        let scale = play.get_arguments().find(|arg| arg.get_long() == Some("time-scale")).unwrap();
        assert_eq!(scale.get_env().unwrap(), "VLLM_VCR_TIME_SCALE");
    }
}
