//! Failures of the program: an exit code, a chain of causes, a hint.

use std::{error::Error, fmt::Display, io, process::ExitCode};

use crate::{
    base::{causes::causes, one_line::clipped},
    cli::{config_file::ConfigError, output, redaction::shown},
    conform::ConformError,
    net::{server::BindError, upstream::without_userinfo},
    recording::{cassette::AnswersError, formats::FormatError, redaction::RulesError, trace::TraceError},
    replay::{mcp::McpRecordError, player::HeaderRulesError},
    text::prompt::{HashKeyError, PromptError},
};

/// Characters of a line that are printed: it may repeat what a file holds, of any length.
const MOST_SHOWN: usize = 2000;

/// Exit code other than 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Exit {
    /// The check failed.
    No = 1,
    /// The command line, an environment variable or the configuration file is wrong.
    Usage = 2,
    /// Input data is missing or breaks its format's rules.
    BadInput = 3,
    /// The environment does not allow it: a port in use, a file that cannot be written, an upstream that is down.
    Environment = 4,
}

impl Exit {
    /// The exit code of a check: success where it holds.
    pub(in crate::cli) fn unless(holds: bool) -> ExitCode {
        if holds { ExitCode::SUCCESS } else { Self::No.into() }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Reason why the program failed.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    error: Box<dyn Error + Send + Sync>,
    hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { exit, error: error.into(), hint: None }
    }

    /// Something that was typed is wrong.
    pub(crate) fn usage(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(Exit::Usage, error)
    }

    /// Input data is missing or broken.
    pub(super) fn input(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let error = error.into();
        // The URL of an object is a mistake of usage where the program was built without object storage.
        let is_unsupported = causes(&*error).any(|cause| {
            cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::Unsupported)
        });
        Self::new(if is_unsupported { Exit::Usage } else { Exit::BadInput }, error)
    }

    /// The environment does not allow it.
    pub(super) fn environment(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(Exit::Environment, error)
    }

    /// The same failure with advice on what to do.
    #[must_use]
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Writes the failure to stderr, and gives its exit code.
    pub(in crate::cli) fn report(&self) -> ExitCode {
        output::warn(&self.text());
        self.exit.into()
    }

    /// The error and its causes; a cause that an error's own text ends with is not repeated.
    pub(in crate::cli) fn chain(&self) -> Vec<String> {
        let mut chain: Vec<String> = causes(&*self.error).map(|cause| without_userinfo(&cause.to_string())).collect();
        chain.dedup_by(|cause, error| error.ends_with(&*cause));
        chain
    }

    /// Formats the chain of causes.
    pub(in crate::cli) fn text(&self) -> String {
        let mut text = format!("error: {}\n", self.chain().join("\n  caused by: "));
        if let Some(hint) = &self.hint {
            text.push_str(&format!("hint: {}\n", without_userinfo(hint)));
        }
        text.split_terminator('\n').map(|line| clipped(line, MOST_SHOWN) + "\n").collect()
    }
}

impl From<BindError> for Failure {
    fn from(error: BindError) -> Self {
        let BindError::InUse(address) = &error else { return Self::environment(error) };
        let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let hint = if has_port { "choose another port, or port 0 for any free one" } else { "choose another path" };
        Self::environment(error).hint(hint)
    }
}

/// Requests that were to be read or written.
impl From<FormatError> for Failure {
    fn from(error: FormatError) -> Self {
        match error {
            FormatError::Trace(error) => error.into(),
            FormatError::NotWritten { .. } => Self::usage(error),
            FormatError::Temporary { .. } => Self::environment(error),
            error => Self::input(error),
        }
    }
}

/// A trace that was to be read or written.
impl From<TraceError> for Failure {
    fn from(error: TraceError) -> Self {
        match &error {
            TraceError::Exists(_) => Self::usage(error),
            TraceError::Io { doing: "create" | "write", source, .. } if source.kind() != io::ErrorKind::Unsupported => {
                Self::environment(error)
            }
            _ => Self::input(error),
        }
    }
}

/// Errors that end the program in one way, whatever they are about.
macro_rules! failures {
    ($($way:path: $($error:ty),+;)+) => {$($(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                $way(error)
            }
        }
    )+)+};
}

failures! {
    Failure::usage: ConfigError, RulesError;
    Failure::input: HashKeyError, PromptError;
    Failure::environment: ConformError;
    quoting: AnswersError, HeaderRulesError, McpRecordError;
}

/// Bad input that the error quotes: secrets in it are not shown.
pub(in crate::cli) fn quoting(error: impl Display) -> Failure {
    Failure::input(shown(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_and_hint_are_printed() {
        let source = io::Error::other("no such interface");
        let failure = Failure::from(BindError::Other { address: "h:1".into(), source }).hint("try h:2");
        assert_eq!(failure.text(), "error: cannot listen on h:1\n  caused by: no such interface\nhint: try h:2\n");
        assert_eq!(failure.exit, Exit::Environment);
        for (address, hint) in
            [("[::1]:80", "choose another port, or port 0 for any free one"), ("./s", "choose another path")]
        {
            let failure = Failure::from(BindError::InUse(address.to_owned()));
            assert_eq!(failure.hint.as_deref(), Some(hint), "{address}");
        }
        let long = Failure::input(format!("{}\nsecond", "k".repeat(5_000_000))).text();
        assert_eq!((long.len(), long.ends_with("k…\nsecond\n")), (MOST_SHOWN + "…\nsecond\n".len(), true));
    }
}
