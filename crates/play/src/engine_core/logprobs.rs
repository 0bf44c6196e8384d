//! Log probabilities as an engine sends them: for each token a row of the token itself and its likeliest alternatives, of equal length.

use engine_core::outputs::LogprobsTensors;

use api::{CandidateToken, Position};

/// Value of an alternative that is not known.
const UNKNOWN: f32 = f32::NEG_INFINITY;

/// The rows of these tokens with so many alternatives. `named` are ids in place of the likeliest ones.
pub(super) fn tensors(positions: &[Position], alternatives: usize, is_named: bool) -> LogprobsTensors {
    let width = alternatives.saturating_add(1);
    let mut tensors = LogprobsTensors { width, ..LogprobsTensors::default() };
    for position in positions {
        let (own, others) = match position.scored.split_first() {
            Some((own, others)) => (Some(own), others),
            None => (None, &[][..]),
        };
        let rank = own.map_or(1, |own| rank_of(own, others));
        let mut row: Vec<(u32, f32)> = Vec::with_capacity(width);
        row.push((position.id, own.map_or(UNKNOWN, value)));
        row.extend(others.iter().map(|other| (other.id, value(other))));
        if let Some(own) = own.filter(|_| !is_named && others.len() < alternatives) {
            // It is one of the likeliest itself.
            let place = usize::try_from(rank).unwrap_or(usize::MAX).clamp(1, row.len());
            row.insert(place, (own.id, value(own)));
        }
        // A front end keeps the last of each id: what fills the row has the same of the token as its beginning.
        row.resize(width, (position.id, own.map_or(UNKNOWN, value)));
        tensors.token_ids.extend(row.iter().map(|(id, _)| *id));
        tensors.logprobs.extend(row.iter().map(|(_, value)| *value));
        tensors.ranks.push(rank);
    }
    tensors
}

/// Its place among all tokens, from 1: as it is known, else among these.
fn rank_of(own: &CandidateToken, others: &[CandidateToken]) -> u32 {
    let likelier = others.iter().filter(|other| other.logprob > own.logprob).count();
    if own.rank > 0 { own.rank } else { u32::try_from(likelier).unwrap_or(u32::MAX).saturating_add(1) }
}

#[allow(clippy::cast_possible_truncation)] // of 32 bits in vLLM
fn value(token: &CandidateToken) -> f32 {
    token.logprob as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, logprob: f64, rank: u32) -> CandidateToken {
        CandidateToken { id, text: String::new(), logprob, rank }
    }

    fn row(scored: Vec<CandidateToken>, alternatives: usize) -> (Vec<u32>, u32) {
        let position = Position { id: scored[0].id, text: String::new(), scored };
        let tensors = tensors(&[position], alternatives, false);
        assert_eq!((tensors.width, tensors.logprobs.len()), (alternatives + 1, alternatives + 1));
        (tensors.token_ids, tensors.ranks[0])
    }

    #[test]
    fn a_token_among_the_likeliest_is_in_its_row_twice() {
        assert_eq!(row(vec![token(9, -0.5, 1), token(4, -1.0, 2)], 2), (vec![9, 9, 4], 1));
        assert_eq!(row(vec![token(9, -1.5, 2), token(4, -1.0, 1)], 2), (vec![9, 4, 9], 2));
        assert_eq!(row(vec![token(9, -4.0, 3), token(4, -1.0, 1), token(5, -2.0, 2)], 2), (vec![9, 4, 5], 3));
        assert_eq!(row(vec![token(9, -4.0, 3)], 0), (vec![9], 3));
        // Recorded ones have no ranks.
        assert_eq!(row(vec![token(9, -1.5, 0), token(4, -1.0, 0)], 2), (vec![9, 4, 9], 2));
    }

    #[test]
    fn what_is_not_known_fills_the_row() {
        let known = Position { id: 3, text: String::new(), scored: Vec::new() };
        let tensors = tensors(&[known], 1, false);
        assert_eq!((tensors.token_ids, tensors.logprobs), (vec![3, 3], vec![UNKNOWN, UNKNOWN]));
    }
}
