//! Places for exchanges that are put together elsewhere, such as those of MCP servers.

use super::{EntryContent, Ticket};
use crate::player::CassettePlayer;
use recording::cassette::RecordedExchange;

/// Place of one exchange among the records, taken when its request came. Dropped unfilled, it holds nothing up any more.
#[derive(Debug)]
pub struct RecordPlace(Ticket<super::ExchangeSink>);

impl RecordPlace {
    /// Submits the exchange; `weight` is the bytes that it holds.
    pub fn fill(self, recorded: RecordedExchange, weight: usize) {
        self.0.submit(EntryContent::Replayed(Box::new(recorded)), weight);
    }
}

impl CassettePlayer {
    /// Returns whether anything is recorded.
    pub fn is_recording(&self) -> bool {
        self.recorder.is_some()
    }

    /// Takes the next place in the cassette that is written; `None` where none is.
    pub fn place(&self) -> Option<RecordPlace> {
        self.recorder.as_ref().map(|recorder| RecordPlace(recorder.ticket()))
    }
}
