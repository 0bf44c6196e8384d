//! Parts of a recorded response that wait for the tokens of an engine.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;

use super::EngineToken;
use crate::timing::{TokenChunk, TokensDue};

/// Parts without deadlines, and what they wait for.
///
/// An event is due with its last token, and one without tokens with the event before it; those before the first token come with
/// that. What follows the last chunk, and a body, waits for all tokens.
#[derive(Debug)]
pub(super) struct HeldParts {
    /// With deadlines of their own, by which they follow their tokens.
    parts: VecDeque<(Duration, Bytes)>,
    /// Number of the first of them.
    first: usize,
    /// Chunks that lack tokens, in the order of their events.
    chunks: VecDeque<TokenChunk>,
    /// Tokens of each choice that came and are in no chunk yet.
    arrived: Vec<u32>,
    is_body: bool,
    /// The own deadline of what came with the last chunk.
    latest: Duration,
}

impl HeldParts {
    pub(super) fn events(parts: VecDeque<(Duration, Bytes)>, chunks: &[TokenChunk]) -> Self {
        let chunks = chunks.iter().filter(|chunk| chunk.event < parts.len()).copied().collect();
        Self { parts, first: 0, chunks, arrived: Vec::new(), is_body: false, latest: Duration::ZERO }
    }

    /// A body, whose last token has this deadline of its own.
    pub(super) fn body(parts: VecDeque<(Duration, Bytes)>, latest: Duration) -> Self {
        Self { parts, first: 0, chunks: VecDeque::new(), arrived: Vec::new(), is_body: true, latest }
    }

    /// Takes a token, and gives what is due with it; true once nothing is left.
    pub(super) fn arrive(
        &mut self,
        token: EngineToken,
        is_last: bool,
        parts: &mut VecDeque<(Duration, Bytes)>,
        tokens: &mut VecDeque<TokensDue>,
    ) -> bool {
        let EngineToken { choice, due } = token;
        if self.arrived.len() <= choice {
            self.arrived.resize(choice + 1, 0);
        }
        self.arrived.get_mut(choice).into_iter().for_each(|arrived| *arrived += 1);
        while let Some(TokenChunk { event, choice, tokens: needed, .. }) = self.chunks.front().copied() {
            let arrived = self.arrived.get_mut(choice).filter(|arrived| **arrived >= needed);
            let Some(arrived) = arrived else { break };
            *arrived -= needed;
            self.chunks.pop_front();
            let own = event.checked_sub(self.first).and_then(|at| self.parts.get(at));
            self.latest = own.map_or(self.latest, |(own, _)| *own);
            tokens.push_back(TokensDue { due, choice, tokens: needed });
            let next = self.chunks.front().map_or(event + 1, |next| next.event);
            self.release(next, due, parts);
        }
        if is_last || self.is_body {
            let arrived = self.arrived.iter_mut().map(std::mem::take).enumerate().filter(|(_, arrived)| *arrived > 0);
            tokens.extend(arrived.map(|(choice, tokens)| TokensDue { due, choice, tokens }));
        }
        if is_last {
            self.release(usize::MAX, due, parts);
        }
        self.parts.is_empty()
    }

    /// Gives the parts before one a deadline.
    fn release(&mut self, before: usize, due: Duration, parts: &mut VecDeque<(Duration, Bytes)>) {
        while self.first < before
            && let Some((own, part)) = self.parts.pop_front()
        {
            parts.push_back((due.saturating_add(own.saturating_sub(self.latest)), part));
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A millisecond, the numbers of the parts that are due then, and the tokens counted then.
    type Released = (u32, Vec<u8>, Vec<(usize, u32)>);

    fn released(mut held: HeldParts, tokens: &[(usize, u32)]) -> Vec<Released> {
        let mut out = Vec::new();
        for (at, (choice, ms)) in tokens.iter().enumerate() {
            let (mut parts, mut counted) = (VecDeque::new(), VecDeque::new());
            let token = EngineToken { choice: *choice, due: *ms * MS };
            let is_over = held.arrive(token, at + 1 == tokens.len(), &mut parts, &mut counted);
            assert!(parts.iter().all(|(due, _)| *due == *ms * MS));
            assert!(is_over || at + 1 < tokens.len());
            let counted = counted.iter().map(|counted| (counted.choice, counted.tokens)).collect();
            out.push((*ms, parts.iter().map(|(_, part)| part[0]).collect(), counted));
        }
        out
    }

    fn parts(count: u8) -> VecDeque<(Duration, Bytes)> {
        (0..count).map(|number| (Duration::ZERO, Bytes::from(vec![number]))).collect()
    }

    fn chunk(event: usize, choice: usize, tokens: u32) -> TokenChunk {
        TokenChunk { event, at: Duration::ZERO, choice, tokens }
    }

    #[test]
    fn events_come_with_their_last_token_and_the_end_with_the_last_of_all() {
        // A role, two tokens, an empty event, one token, a finish reason, the end; one more token is in no event.
        let held = HeldParts::events(parts(6), &[chunk(1, 0, 2), chunk(3, 0, 1)]);
        let found = released(held, &[(0, 5), (0, 6), (0, 7), (0, 8)]);
        let expected = [
            (5, vec![], vec![]),
            (6, vec![0, 1, 2], vec![(0, 2)]),
            (7, vec![3], vec![(0, 1)]),
            (8, vec![4, 5], vec![(0, 1)]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn events_of_several_choices_keep_their_order() {
        let held = HeldParts::events(parts(3), &[chunk(0, 0, 1), chunk(1, 1, 1), chunk(2, 0, 1)]);
        let found = released(held, &[(0, 1), (0, 2), (1, 3)]);
        let due = [(1, vec![0], vec![(0, 1)]), (2, vec![], vec![]), (3, vec![1, 2], vec![(1, 1), (0, 1)])];
        assert_eq!(found, due);
    }

    #[test]
    fn an_event_with_tokens_of_two_choices_waits_for_both() {
        let held = HeldParts::events(parts(2), &[chunk(0, 0, 1), chunk(0, 1, 1)]);
        assert_eq!(released(held, &[(1, 1), (0, 4)]), [(1, vec![], vec![]), (4, vec![0, 1], vec![(0, 1), (1, 1)])]);
    }

    #[test]
    fn a_stream_that_is_cut_has_the_tokens_of_its_events() {
        let held = HeldParts::events(parts(3), &[chunk(1, 0, 1), chunk(7, 0, 9)]);
        assert_eq!(released(held, &[(0, 1)]), [(1, vec![0, 1, 2], vec![(0, 1)])]);
    }

    #[test]
    fn what_has_deadlines_of_its_own_follows_its_tokens_as_it_did() {
        let own = [40, 50, 55, 60, 61].map(|ms| (ms * MS, Bytes::new()));
        let mut held = HeldParts::events(own.into(), &[chunk(1, 0, 1), chunk(3, 0, 1)]);
        let (mut parts, mut tokens) = (VecDeque::new(), VecDeque::new());
        held.arrive(EngineToken { choice: 0, due: 150 * MS }, false, &mut parts, &mut tokens);
        held.arrive(EngineToken { choice: 0, due: 170 * MS }, true, &mut parts, &mut tokens);
        let dues: Vec<u128> = parts.iter().map(|(due, _)| due.as_millis()).collect();
        assert_eq!(dues, [150, 150, 155, 170, 171]);
        let mut body = HeldParts::body([(90 * MS, Bytes::new())].into(), 80 * MS);
        parts.clear();
        body.arrive(EngineToken { choice: 0, due: 200 * MS }, true, &mut parts, &mut tokens);
        assert_eq!(parts[0].0, 210 * MS);
    }

    #[test]
    fn a_body_waits_for_all_and_its_tokens_are_counted_as_they_come() {
        let found = released(HeldParts::body(parts(1), Duration::ZERO), &[(0, 1), (1, 1), (0, 2)]);
        let expected = [(1, vec![], vec![(0, 1)]), (1, vec![], vec![(1, 1)]), (2, vec![0], vec![(0, 1)])];
        assert_eq!(found, expected);
    }
}
