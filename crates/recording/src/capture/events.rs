//! Events of a copied stream, packed: of an event that is like an earlier one, as most of a stream are, only its own bytes are held.
//!
//! Limits: an event is compared with the last one that was held as a whole.

use std::time::Duration;

use crate::cassette::Moment;
use base::units::Millis;

/// Bytes that are compared at once.
const STEP: usize = 32;

/// Events that have data, apart from their framing, in their order.
#[derive(Debug, Default)]
pub(super) struct CapturedEvents {
    /// Names of events, and the bytes of data that an event does not share.
    bytes: Vec<u8>,
    list: Vec<Captured>,
    /// The last event that shares nothing.
    whole: usize,
}

/// An event: its name, and its data as those of another event around bytes of its own.
#[derive(Debug, Clone, Copy)]
struct Captured {
    at: Duration,
    /// The event whose data begins and ends as its own.
    like: usize,
    start: usize,
    name: Option<u32>,
    /// Bytes at the beginning and at the end that are those of the other event.
    shared: (u32, u32),
}

impl CapturedEvents {
    /// Bytes that an event takes beside its data.
    pub(super) const EACH: usize = size_of::<Captured>();

    pub(super) fn push(&mut self, at: Duration, name: Option<&[u8]>, data: &[u8]) {
        let shared = self.shared_with_last(data);
        let (like, start) = (if shared == (0, 0) { self.list.len() } else { self.whole }, self.bytes.len());
        self.whole = like;
        self.bytes.extend_from_slice(name.unwrap_or_default());
        let own = data.get(count(shared.0)..data.len() - count(shared.1)).unwrap_or_default();
        self.bytes.extend_from_slice(own);
        let name = name.map(|name| u32::try_from(name.len()).unwrap_or(u32::MAX));
        self.list.push(Captured { at, like, start, name, shared });
    }

    /// Counts the bytes at both ends that are those of the last whole event; none where they are less than half.
    fn shared_with_last(&self, data: &[u8]) -> (u32, u32) {
        let Some((_, base)) = self.own(self.whole) else { return (0, 0) };
        let before = common_start(data, base);
        let after = common_end(data.get(before..).unwrap_or_default(), base.get(before..).unwrap_or_default());
        match (u32::try_from(before), u32::try_from(after)) {
            (Ok(before), Ok(after)) if count(before) + count(after) > data.len() / 2 => (before, after),
            _ => (0, 0),
        }
    }

    /// Returns an event's name and its own bytes.
    fn own(&self, at: usize) -> Option<(Option<&[u8]>, &[u8])> {
        let event = self.list.get(at)?;
        let end = self.list.get(at + 1).map_or(self.bytes.len(), |next| next.start);
        let (name, own) = self.bytes.get(event.start..end)?.split_at_checked(count(event.name.unwrap_or_default()))?;
        Some((event.name.map(|_| name), own))
    }

    /// Returns an event's name and its data.
    fn get(&self, at: usize) -> Option<(Option<&[u8]>, Vec<u8>)> {
        let Captured { like, shared: (before, after), .. } = *self.list.get(at)?;
        let (name, own) = self.own(at)?;
        if like == at {
            return Some((name, own.to_vec()));
        }
        let (_, base) = self.own(like)?;
        let (start, end) = (base.get(..count(before))?, base.get(base.len().checked_sub(count(after))?..)?);
        Some((name, [start, own, end].concat()))
    }

    pub(super) fn last(&self) -> Option<Vec<u8>> {
        Some(self.get(self.list.len().checked_sub(1)?)?.1)
    }

    /// Returns the bytes that are used of those that it holds.
    pub(super) fn used(&self) -> usize {
        self.bytes.len() + self.list.len() * Self::EACH
    }

    /// Returns the bytes that it holds.
    pub(super) fn heap(&self) -> usize {
        self.bytes.capacity() + self.list.capacity() * Self::EACH
    }

    pub(super) fn moments(&self) -> Vec<Moment> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let moment = |(at, event): (usize, &Captured)| {
            let (name, data) = self.get(at)?;
            let data = String::from_utf8(data).unwrap_or_else(|error| text(error.as_bytes()));
            Some(Moment(Millis::from(event.at).0, Some(data), name.map(text)))
        };
        self.list.iter().enumerate().filter_map(moment).collect()
    }
}

/// Counts the bytes with which both texts begin, whole steps first.
fn common_start(one: &[u8], other: &[u8]) -> usize {
    let steps = one.chunks_exact(STEP).zip(other.chunks_exact(STEP));
    let same = steps.take_while(|(one, other)| one == other).count() * STEP;
    let rest = one.iter().skip(same).zip(other.iter().skip(same));
    same + rest.take_while(|(one, other)| one == other).count()
}

/// Counts the bytes with which both texts end.
fn common_end(one: &[u8], other: &[u8]) -> usize {
    let steps = one.rchunks_exact(STEP).zip(other.rchunks_exact(STEP));
    let same = steps.take_while(|(one, other)| one == other).count() * STEP;
    let rest = one.iter().rev().skip(same).zip(other.iter().rev().skip(same));
    same + rest.take_while(|(one, other)| one == other).count()
}

fn count(bytes: u32) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn captured(events: &[(Option<&str>, Vec<u8>)]) -> CapturedEvents {
        let mut captured = CapturedEvents::default();
        for (name, data) in events {
            captured.push(Duration::from_millis(3), name.map(str::as_bytes), data);
        }
        captured
    }

    #[test]
    fn of_events_that_are_alike_the_difference_is_held() {
        let event = |text: &str| {
            format!(
                r#"{{"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{{"delta":{{"content":"{text}"}},"index":0}}]}}"#
            )
        };
        let texts = ["Hello", ",", " world", "", "d"];
        let events: Vec<_> = (0..1000).map(|at| (None, event(texts[at % 5]).into_bytes())).collect();
        let packed = captured(&events);
        assert!(packed.used() < 1000 * (CapturedEvents::EACH + 8), "{} bytes", packed.used());
        let data: Vec<_> = packed.moments().into_iter().map(|Moment(_, data, _)| data.unwrap().into_bytes()).collect();
        assert!(data.iter().eq(events.iter().map(|(_, data)| data)));
    }

    proptest! {
        #[test]
        fn events_come_back_as_they_were(
            events in prop::collection::vec((prop::option::of("[ab]{0,3}"), "[ab]{0,3}(abba){0,40}[abé]{0,3}(ab){0,40}"), 0..20)
        ) {
            let events: Vec<_> = events.iter().map(|(name, data)| (name.as_deref(), data.clone().into_bytes())).collect();
            let packed = captured(&events);
            prop_assert_eq!(packed.last(), events.last().map(|(_, data)| data.clone()));
            let moments = packed.moments();
            prop_assert_eq!(moments.len(), events.len());
            for (Moment(ms, data, name), (expected, bytes)) in moments.iter().zip(&events) {
                prop_assert_eq!(*ms, 3.0);
                prop_assert_eq!(data.as_ref().unwrap().as_bytes(), &bytes[..]);
                prop_assert_eq!(name.as_deref(), *expected);
            }
        }
    }
}
