//! Cut of an answer into events, with their times.

use serde::Serialize;

use net::wire::EventBuffer;

/// An event of a stream with its time in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedEvent {
    /// When it is due.
    pub ms: f64,
    /// Its `event` field.
    pub name: Option<String>,
    /// Its data: JSON, or `[DONE]`.
    pub data: String,
}

/// Destination of a stream's named events, whose data is JSON.
pub(crate) trait EventSink {
    fn put_event(&mut self, name: &'static str, data: &impl Serialize);
}

impl EventSink for EventBuffer {
    fn put_event(&mut self, name: &'static str, data: &impl Serialize) {
        self.put_named(name, data);
    }
}

/// Events that are not yet framed.
pub(super) type UnframedEvents = Vec<(&'static str, String)>;

impl EventSink for UnframedEvents {
    #[expect(clippy::expect_used, reason = "data with texts as keys is always JSON")]
    fn put_event(&mut self, name: &'static str, data: &impl Serialize) {
        self.push((name, serde_json::to_string(data).expect("invariant: event data has texts as keys")));
    }
}

/// Cut of an answer into events.
#[derive(Debug, Clone, Default)]
pub struct Cut {
    /// Times of the events that it came in, in milliseconds; empty where it came as a body.
    pub times: Vec<f64>,
    /// When it was complete.
    pub end: f64,
    /// True where a stream of choices ends with token counts.
    pub usage: bool,
    /// The pieces of a choice's texts, each by its field of the message, one for each time; empty where they are cut here.
    pub parts: Vec<(&'static str, String)>,
}

impl Cut {
    /// The number of events with text, where it is known.
    pub(super) fn pieces(&self) -> Option<usize> {
        // The role, the end of the choice and the end of the stream have no text.
        (!self.times.is_empty()).then(|| self.times.len().saturating_sub(3).max(1))
    }

    /// The time of one event of so many: recorded times are stretched over them. A role has that of the first part, and what follows the
    /// parts that of the last one.
    pub(super) fn at(&self, index: usize, of: usize) -> f64 {
        if !self.parts.is_empty() {
            let last = self.times.len().saturating_sub(1);
            return self.times.get(index.saturating_sub(1).min(last)).copied().unwrap_or(0.0);
        }
        let place = index.saturating_mul(self.times.len().saturating_sub(1)).checked_div(of.saturating_sub(1).max(1));
        self.times.get(place.unwrap_or(0)).copied().unwrap_or(0.0)
    }

    /// Spreads the recorded times over named events; all are due at the end where no times are known.
    pub(super) fn spread(&self, write: impl FnOnce(&mut UnframedEvents)) -> Vec<TimedEvent> {
        let mut events = UnframedEvents::new();
        write(&mut events);
        let count = events.len();
        let event = |(at, (name, data)): (usize, (&str, String))| TimedEvent {
            ms: if self.times.is_empty() { self.end } else { self.at(at, count) },
            name: Some(name.to_owned()),
            data,
        };
        events.into_iter().enumerate().map(event).collect()
    }
}

/// Cuts a text into so many pieces of about the same length, or into words. Empty texts have none.
pub(super) fn split(text: &str, pieces: Option<usize>) -> Vec<String> {
    let Some(pieces) = pieces else { return text.split_inclusive(' ').map(str::to_owned).collect() };
    let chars: Vec<char> = text.chars().collect();
    let size = chars.len().div_ceil(pieces.max(1)).max(1);
    chars.chunks(size).map(|piece| piece.iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_add_up_to_the_text() {
        for text in ["", "a", "one two  three", "naïve 日本語 text"] {
            for pieces in [None, Some(1), Some(3), Some(100)] {
                let split = split(text, pieces);
                assert_eq!(split.concat(), text);
                assert!(split.iter().all(|piece| !piece.is_empty()));
                assert!(pieces.is_none_or(|pieces| split.len() <= pieces));
            }
        }
    }

    #[test]
    fn times_are_stretched_over_other_events() {
        let cut = Cut { times: vec![0.0, 10.0, 20.0, 30.0], end: 30.0, usage: false, parts: Vec::new() };
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(|at| cut.at(at, 7)), [0.0, 0.0, 10.0, 10.0, 20.0, 20.0, 30.0]);
        assert_eq!((cut.at(0, 1), cut.at(1, 2)), (0.0, 30.0));
        assert_eq!(Cut::default().at(3, 4), 0.0);
    }
}
