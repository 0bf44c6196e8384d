//! The progress of a long load, as a line on a terminal's stderr.

use std::{
    fmt::Write,
    io::{self, IsTerminal},
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    cli::output,
    recording::trace::{Loaded, Progress},
};

/// A load that takes no longer is not worth a line.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two states of the line.
const STEP: Duration = Duration::from_millis(200);

/// Runs `load`, and shows its progress on a terminal.
pub(in crate::cli) fn watched<T>(progress: &Progress, load: impl FnOnce() -> T) -> T {
    if !io::stderr().is_terminal() || std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb") {
        return load();
    }
    thread::scope(|scope| {
        let (running, over) = channel::<()>();
        scope.spawn(move || {
            let start = Instant::now();
            let mut wait = PATIENCE;
            while over.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = STEP;
                output::replace_line(&line(&progress.now(), start.elapsed()));
            }
            if wait == STEP {
                output::replace_line("");
            }
        });
        let loaded = load();
        drop(running);
        loaded
    })
}

/// Formats the progress after this time, shorter than any terminal is wide.
#[allow(clippy::cast_precision_loss)] // for people
fn line(loaded: &Loaded, elapsed: Duration) -> String {
    let rate = loaded.json as f64 / 1e6 / elapsed.as_secs_f64();
    let mut text = format!("loading: {} records, {rate:.0} MB/s", loaded.records);
    if let Some(size) = loaded.size.filter(|_| loaded.read > 0) {
        let part = (loaded.read as f64 / size as f64).min(1.0);
        let left = elapsed.as_secs_f64() * (1.0 - part) / part;
        let _ = write!(text, ", {:.0} %, {left:.0} s left", part * 100.0);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_what_is_known() {
        let loaded = Loaded { size: Some(2_000_000_000), read: 500_000_000, json: 1_200_000_000, records: 250_000 };
        let elapsed = Duration::from_secs(2);
        assert_eq!(line(&loaded, elapsed), "loading: 250000 records, 600 MB/s, 25 %, 6 s left");
        assert_eq!(line(&Loaded { size: None, ..loaded }, elapsed), "loading: 250000 records, 600 MB/s");
        assert_eq!(line(&Loaded { size: Some(9), ..Loaded::default() }, elapsed), "loading: 0 records, 0 MB/s");
    }
}
