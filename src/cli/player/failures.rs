//! Errors of cassettes and of their player as those of the program.

use crate::{
    cli::{
        cassette::convert,
        failure::{Exit, Failure},
        redaction::shown,
    },
    recording::cassette::CassetteError,
    replay::player::CassettePlayerError,
};

impl From<CassetteError> for Failure {
    fn from(error: CassetteError) -> Self {
        let exit = match &error {
            CassetteError::Wrong { .. } => Exit::BadInput,
            CassetteError::Object { .. } => Exit::Usage,
            CassetteError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Exit::BadInput,
            // Without object storage.
            CassetteError::Io { source, .. } if source.kind() == std::io::ErrorKind::Unsupported => Exit::Usage,
            CassetteError::Io { .. }
            | CassetteError::Busy { .. }
            | CassetteError::Unfinished { .. }
            | CassetteError::Changed { .. } => Exit::Environment,
        };
        match &error {
            // It may quote what is wrong.
            CassetteError::Wrong { path, .. } => {
                let failure = Self::new(exit, shown(&error.to_string()));
                let hint = "another tool wrote it: `vllm-vcr cassette convert FROM TO` converts it to a cassette";
                if convert::is_of_another_tool(path) { failure.hint(hint) } else { failure }
            }
            _ => Self::new(exit, error),
        }
    }
}

impl From<CassettePlayerError> for Failure {
    fn from(error: CassettePlayerError) -> Self {
        match error {
            // Those that are played were read before: this one is to be written.
            CassettePlayerError::Cassette(error @ CassetteError::Io { .. }) => Self::environment(error),
            CassettePlayerError::Cassette(error) => error.into(),
            CassettePlayerError::Mcp(error) => error.into(),
            CassettePlayerError::Fork { records: 0, .. } => Self::input(error).hint("record some first: vllm-vcr tap"),
            CassettePlayerError::Fork { records, .. } => {
                Self::usage(error).hint(format!("choose one from 1 to {records}"))
            }
            // A cassette that is committed is published.
            CassettePlayerError::Secrets(_) => Self::input(error)
                .hint("remove them with `vllm-vcr cassette redact FILE`, or play them with --allow-secrets"),
        }
    }
}
