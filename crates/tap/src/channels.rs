//! Channels of a choice's text: content, reasoning, a refusal, the arguments of each call. A record has them as one text, in the order
//! in which they came; a secret is searched in each, since pieces of several channels may come by turns.
//!
//! See docs/decisions/0072-secrets-in-pieces.md.

use std::collections::BTreeMap;

pub(super) const PLAIN: u64 = 0;

pub(super) type ChannelText = (u64, String);

/// The channels of a text: runs of bytes, one after the other.
#[derive(Debug, Default)]
pub(super) struct Channels {
    runs: Vec<ByteRun>,
}

#[derive(Debug, Clone, Copy)]
struct ByteRun {
    channel: u64,
    bytes: usize,
}

struct Split {
    /// Pieces of each channel.
    pieces: BTreeMap<u64, Vec<String>>,
    /// For each piece in the order of the text its place there and its channel.
    order: Vec<(usize, u64)>,
}

impl Channels {
    /// Adds so many bytes of a channel.
    pub(super) fn push(&mut self, channel: u64, bytes: usize) {
        match self.runs.last_mut() {
            _ if bytes == 0 => {}
            Some(last) if last.channel == channel => last.bytes += bytes,
            _ => self.runs.push(ByteRun { channel, bytes }),
        }
    }

    /// Returns the bytes that it holds beside its own size.
    pub(super) fn heap(&self) -> usize {
        self.runs.capacity() * size_of::<ByteRun>()
    }

    /// Returns the text of each channel.
    pub(super) fn texts(&self, text: &[String]) -> Vec<String> {
        if self.runs.len() < 2 {
            return vec![text.concat()];
        }
        self.split(text).pieces.into_values().map(|pieces| pieces.concat()).collect()
    }

    /// Redacts the pieces of each channel of a text that has several. True where `redact` found anything.
    pub(super) fn redact(&self, text: &mut [String], mut redact: impl FnMut(&mut [String]) -> bool) -> bool {
        if self.runs.len() < 2 {
            return false;
        }
        let mut split = self.split(text);
        let found = split.pieces.values_mut().filter_map(|pieces| redact(pieces).then_some(())).count() > 0;
        if found {
            split.join(text);
        }
        found
    }

    fn split(&self, text: &[String]) -> Split {
        let mut split = Split { pieces: BTreeMap::new(), order: Vec::new() };
        let mut runs = self.runs.iter().copied();
        let mut run = runs.next();
        for (at, mut rest) in text.iter().map(String::as_str).enumerate() {
            while !rest.is_empty() {
                let ByteRun { channel, bytes } = run.unwrap_or(ByteRun { channel: PLAIN, bytes: rest.len() });
                let (piece, after) = rest.split_at_checked(bytes).unwrap_or((rest, ""));
                split.pieces.entry(channel).or_default().push(piece.to_owned());
                split.order.push((at, channel));
                run = match bytes.saturating_sub(piece.len()) {
                    0 => runs.next(),
                    bytes => Some(ByteRun { channel, bytes }),
                };
                rest = after;
            }
        }
        split
    }
}

impl Split {
    /// Puts the pieces back where they were.
    fn join(self, text: &mut [String]) {
        let mut pieces: BTreeMap<u64, _> =
            self.pieces.into_iter().map(|(channel, pieces)| (channel, pieces.into_iter())).collect();
        text.iter_mut().for_each(String::clear);
        for (at, channel) in self.order {
            let piece = pieces.get_mut(&channel).and_then(Iterator::next);
            if let (Some(text), Some(piece)) = (text.get_mut(at), piece) {
                text.push_str(&piece);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_each_channel_are_found_and_put_back() {
        let mut channels = Channels::default();
        for (channel, text) in [(0, "a"), (0, "b"), (7, "one"), (0, ""), (0, "cé"), (7, "two"), (9, "z")] {
            channels.push(channel, text.len());
        }
        assert_eq!(channels.runs.len(), 5);
        let mut text = ["ab", "onec", "", "étwoz"].map(str::to_owned);
        assert_eq!(channels.texts(&text), ["abcé", "onetwo", "z"]);
        let mut seen = Vec::new();
        assert!(!channels.redact(&mut text, |pieces| {
            seen.push(pieces.concat());
            false
        }));
        assert_eq!(seen, ["abcé", "onetwo", "z"]);
        channels.redact(&mut text, |pieces| {
            pieces.iter_mut().for_each(|piece| *piece = piece.to_uppercase());
            pieces.concat() == "ONETWO"
        });
        assert_eq!(text, ["AB", "ONEC", "", "ÉTWOZ"]);
    }
}
