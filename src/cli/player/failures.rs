//! Errors of cassettes and of their player as those of the program.

use std::io::ErrorKind::{NotFound, Unsupported};

use crate::{
    cli::{
        cassette::convert,
        failure::{Failure, quoting},
    },
    recording::cassette::CassetteError,
    replay::player::CassettePlayerError,
};

impl From<CassetteError> for Failure {
    fn from(error: CassetteError) -> Self {
        match &error {
            CassetteError::Wrong { path, .. } => {
                let failure = quoting(&error);
                let hint = "another tool wrote it: `vllm-vcr cassette convert FROM TO` converts it to a cassette";
                if convert::is_of_another_tool(path) { failure.hint(hint) } else { failure }
            }
            CassetteError::Object { .. } => Self::usage(error),
            CassetteError::Io { source, .. } if matches!(source.kind(), NotFound | Unsupported) => Self::input(error),
            CassetteError::Io { .. }
            | CassetteError::Busy { .. }
            | CassetteError::Unfinished { .. }
            | CassetteError::Changed { .. } => Self::environment(error),
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
