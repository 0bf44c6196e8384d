//! The progress of what takes long, on stderr: a line of the terminal that is replaced, or a line each second where that is wanted without one.

use std::{
    io::{self, IsTerminal},
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::time::Instant;

use crate::cli::output;

/// What takes no longer is not worth a line, and without a terminal there is none more often.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two states of a terminal's line.
const STEP: Duration = Duration::from_millis(200);

/// Shows progress until it is dropped.
#[derive(Debug)]
pub(in crate::cli) struct ProgressLine {
    /// The thread, and what is closed to end it.
    shows: Option<(Sender<()>, JoinHandle<()>)>,
}

impl ProgressLine {
    /// Shows the line of each moment, made of the time so far, on a terminal only. It is to be shorter than any terminal is wide.
    pub(in crate::cli) fn on_terminal(line: impl Fn(Duration) -> String + Send + 'static) -> Self {
        Self::start(false, line)
    }

    /// Shows it on a terminal, else prints it each second.
    pub(in crate::cli) fn anywhere(line: impl Fn(Duration) -> String + Send + 'static) -> Self {
        Self::start(true, line)
    }

    fn start(without_terminal: bool, line: impl Fn(Duration) -> String + Send + 'static) -> Self {
        let is_terminal =
            io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb");
        if output::is_quiet() || !(is_terminal || without_terminal) {
            return Self { shows: None };
        }
        let (running, over) = channel::<()>();
        let shows = thread::spawn(move || {
            let (start, mut wait) = (Instant::now(), PATIENCE);
            while over.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                let line = line(start.elapsed());
                if is_terminal {
                    wait = STEP;
                    output::replace_line(&line);
                } else {
                    output::note(&format!("{line}\n"));
                }
            }
            if is_terminal && wait == STEP {
                output::replace_line("");
            }
        });
        Self { shows: Some((running, shows)) }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if let Some((running, shows)) = self.shows.take() {
            drop(running);
            // A panic in it is shown already.
            let _ended = shows.join();
        }
    }
}
