//! Runs an asynchronous tool until it is done or a signal stops it: the first SIGINT or SIGTERM asks the tool to finish, the second one
//! ends the program at once.

use std::{fs, future::Future, io, os::fd::AsFd, pin::Pin, process::ExitCode};

use tokio::{
    fs::File,
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    task::block_in_place,
};

use crate::cli::failure::Failure;

/// Exit code of a program ended by SIGINT.
const INTERRUPTED: u8 = 130;

/// Exit code of a program ended by SIGTERM.
const TERMINATED: u8 = 143;

/// Runs `tool` on a runtime of its own, with a future that completes at the first signal. At a second signal its tasks are abandoned,
/// which has its own exit code.
pub(in crate::cli) fn run<F>(tool: impl FnOnce(Shutdown) -> F) -> Result<ExitCode, Failure>
where
    F: Future<Output = Result<ExitCode, Failure>>,
{
    let (stop, stopped) = oneshot::channel();
    run_until(stop, Box::pin(tool(Shutdown(stopped))))
}

/// A tool without its type: the runtime is compiled once for all of them.
type ToolFuture<'a> = Pin<Box<dyn Future<Output = Result<ExitCode, Failure>> + 'a>>;

fn run_until(stop: oneshot::Sender<bool>, tool: ToolFuture<'_>) -> Result<ExitCode, Failure> {
    let system = Failure::environment;
    let runtime = Builder::new_multi_thread().enable_all().build().map_err(system)?;
    let ended = runtime.block_on(async {
        let mut signals = Signals::listen().map_err(system)?;
        let twice = async {
            let first = signals.next().await;
            tracing::info!("shutting down; a second signal ends at once");
            let _tool_is_done = stop.send(first == INTERRUPTED);
            signals.next().await
        };
        tokio::select! {
            outcome = tool => outcome,
            code = twice => Ok(code.into()),
        }
    });
    runtime.shutdown_background();
    ended
}

/// A file that may not grow any more is a full disk, not the end: without a handler the system would end the program.
pub(in crate::cli) fn outlive_file_limits() {
    let too_large = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    if let Err(error) = signal(too_large) {
        tracing::debug!(%error, "a limit on file sizes would end the program");
    }
}

/// Does something at each SIGHUP, which no longer ends the program. It may block.
pub(in crate::cli) fn at_hangups(mut act: impl FnMut() + Send + 'static) -> Result<(), Failure> {
    let mut hangups = signal(SignalKind::hangup()).map_err(Failure::environment)?;
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            block_in_place(&mut act);
        }
    });
    Ok(())
}

/// Completes at the first signal.
#[derive(Debug)]
pub(in crate::cli) struct Shutdown(oneshot::Receiver<bool>);

impl Shutdown {
    /// Waits for the signal; true for SIGINT, which Ctrl-C sends.
    pub(in crate::cli) async fn by_interrupt(self) -> bool {
        self.0.await.unwrap_or_default()
    }

    /// Waits for the signal.
    pub(in crate::cli) async fn requested(self) {
        self.by_interrupt().await;
    }

    /// Waits for work that is worth nothing before its end: `end` says what a signal prevents.
    pub(in crate::cli) async fn unless_requested<T, E>(
        self,
        work: impl Future<Output = Result<T, E>>,
        end: &str,
    ) -> Result<T, Failure>
    where
        Failure: From<E>,
    {
        tokio::select! {
            done = work => Ok(done?),
            () = self.requested() => Err(stopped_before(end)),
        }
    }
}

/// The failure of work that a signal ended: `end` says what it prevented.
pub(in crate::cli) fn stopped_before(end: &str) -> Failure {
    Failure::environment(format!("stopped before {end}"))
}

struct Signals {
    int: Signal,
    term: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self { int: signal(SignalKind::interrupt())?, term: signal(SignalKind::terminate())? })
    }

    /// The exit code that the next signal stands for.
    async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.int.recv() => INTERRUPTED,
            _ = self.term.recv() => TERMINATED,
        }
    }
}

/// Opens standard input and output as streams of bytes.
pub(in crate::cli) fn stdin_and_stdout() -> Result<(File, File), Failure> {
    fn stream(standard: impl AsFd) -> io::Result<File> {
        Ok(File::from_std(fs::File::from(standard.as_fd().try_clone_to_owned()?)))
    }
    let both = || -> io::Result<(File, File)> { Ok((stream(io::stdin())?, stream(io::stdout())?)) };
    both().map_err(|error| Failure::environment(format!("cannot use stdin and stdout: {error}")))
}
