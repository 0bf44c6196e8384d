//! Runs an asynchronous tool until it is done or a signal stops it.

use std::{future::Future, process::ExitCode};

use tokio::runtime::Builder;

use super::{
    failure::{Exit, Failure},
    signals::{self, Shutdown},
};

/// Runs `tool` on a runtime of its own. At a second signal its tasks are abandoned, which has its own exit code.
///
/// # Errors
/// What the tool fails with; or that threads or signals cannot be had.
pub(super) fn run<F>(tool: impl FnOnce(Shutdown) -> F) -> Result<ExitCode, Failure>
where
    F: Future<Output = Result<ExitCode, Failure>>,
{
    let system = |error| Failure::new(Exit::Environment, error);
    let runtime = Builder::new_multi_thread().enable_all().build().map_err(system)?;
    let ended = runtime.block_on(signals::run(tool));
    runtime.shutdown_background();
    match ended.map_err(system)? {
        Ok(outcome) => outcome,
        Err(code) => Ok(code),
    }
}
