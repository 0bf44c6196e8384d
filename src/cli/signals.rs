//! SIGINT and SIGTERM: the first one asks the tool to finish, the second one ends the program at once.

use std::{future::Future, io, process::ExitCode};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};

/// Exit code of a program ended by SIGINT.
const INTERRUPTED: u8 = 130;

/// Exit code of a program ended by SIGTERM.
const TERMINATED: u8 = 143;

/// Runs `tool` with a future that completes at the first signal. At a second one the tool is dropped and `Err` holds the
/// exit code to end with.
///
/// # Errors
/// `Ok(Err(code))` is not an error of this function: it fails only when signals cannot be listened to.
pub(super) async fn run<F: Future>(tool: impl FnOnce(Shutdown) -> F) -> io::Result<Result<F::Output, ExitCode>> {
    let mut signals = Signals { int: signal(SignalKind::interrupt())?, term: signal(SignalKind::terminate())? };
    let (stop, stopped) = oneshot::channel();
    let twice = async {
        let first = signals.next().await;
        tracing::info!("shutting down; a second signal ends at once");
        let _tool_is_done = stop.send(first == INTERRUPTED);
        signals.next().await
    };
    Ok(tokio::select! {
        output = tool(Shutdown(stopped)) => Ok(output),
        code = twice => Err(code.into()),
    })
}

/// A file that may not grow any more is a full disk, not the end: without a handler the system would end the program.
pub(super) fn outlive_file_limits() {
    let too_large = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    if let Err(error) = signal(too_large) {
        tracing::debug!(%error, "a limit on file sizes would end the program");
    }
}

/// Completes at the first signal.
#[derive(Debug)]
pub(super) struct Shutdown(oneshot::Receiver<bool>);

impl Shutdown {
    /// Waits for the signal.
    pub(super) async fn requested(self) {
        self.by_interrupt().await;
    }

    /// Waits for the signal; true for SIGINT, which Ctrl-C sends.
    pub(super) async fn by_interrupt(self) -> bool {
        self.0.await.unwrap_or_default()
    }
}

struct Signals {
    int: Signal,
    term: Signal,
}

impl Signals {
    /// The exit code that the next signal stands for.
    async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.int.recv() => INTERRUPTED,
            _ = self.term.recv() => TERMINATED,
        }
    }
}
