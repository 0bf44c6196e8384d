//! The progress of reading traces, as a line on a terminal's stderr.

use std::{fmt::Write, sync::Arc, time::Duration};

use crate::{
    base::one_line::counted,
    cli::progress::ProgressLine,
    recording::trace::{LoadCounts, LoadProgress},
};

/// Runs `load`, and shows its progress on a terminal.
pub(in crate::cli) fn watched<T>(progress: &Arc<LoadProgress>, load: impl FnOnce() -> T) -> T {
    let progress = Arc::clone(progress);
    let _shown = ProgressLine::on_terminal(move |elapsed| line(&progress.now(), elapsed));
    load()
}

/// Formats the progress after this time, shorter than any terminal is wide.
fn line(loaded: &LoadCounts, elapsed: Duration) -> String {
    let rate = loaded.json as f64 / 1e6 / elapsed.as_secs_f64();
    let mut text = format!("loading: {}, {rate:.0} MB/s", counted(loaded.records, "record"));
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
        let loaded = LoadCounts { size: Some(2_000_000_000), read: 500_000_000, json: 1_200_000_000, records: 250_000 };
        let elapsed = Duration::from_secs(2);
        assert_eq!(line(&loaded, elapsed), "loading: 250000 records, 600 MB/s, 25 %, 6 s left");
        assert_eq!(line(&LoadCounts { size: None, ..loaded }, elapsed), "loading: 250000 records, 600 MB/s");
        assert_eq!(line(&LoadCounts { size: Some(9), ..LoadCounts::default() }, elapsed), "loading: 0 records, 0 MB/s");
    }
}
