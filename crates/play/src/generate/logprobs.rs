//! Log probabilities of recorded and made-up tokens.
//!
//! A trace may hold them ([`crate::recorded::logprobs`]); where it does not, or holds less than is asked for, they are made up: from the server's seed, the token, its place and the tokens before it, so
//! that the same answer has the same numbers in every run, streamed or not. They are shaped as a model's are: they are
//! never above 0, they fall with the rank, the probabilities of one place add up to less than 1, and most tokens are the
//! likeliest of their place. The alternatives are ordinary tokens of the vocabulary. Nothing can be learned from them
//! about the model that was recorded.
//!
//! The texts of tokens are real: a token that only completes a character later has none, and the one that completes it
//! has all of it, as the engine sends it.

use std::{collections::HashSet, sync::Arc};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::recorded::logprobs as recorded_logprobs;
use api::{
    Api, CandidateToken, Digits, GenerationRequest, LogprobsOptions, Position, WholeLogprobs, chat_logprobs,
    completion_logprobs, prompt_logprobs as prompt_json,
};
use recording::trace::{Logprobs, PromptLogprobs, TokenLogprobs};
use text::prompt::{SkipSpecial, Tokenizer};

/// Tokens before one that its text may depend on: a character has up to four bytes.
const CONTEXT: usize = 4;

/// A token that is named beside the likely ones is this unlikely at least.
const UNLIKELY: f32 = -10.0;

/// Makes the log probabilities of sequences.
#[derive(Debug, Clone)]
pub(crate) struct Scorer {
    tokenizer: Tokenizer,
    seed: u64,
    requested: Arc<LogprobsOptions>,
}

impl Scorer {
    pub(crate) fn new(tokenizer: &Tokenizer, seed: u64, requested: &LogprobsOptions) -> Self {
        let mut requested = requested.clone();
        // A token is named once, whatever a request lists; each position goes through all of them.
        let mut seen = HashSet::new();
        requested.token_ids.retain(|id| seen.insert(*id));
        Self { tokenizer: tokenizer.clone(), seed, requested: Arc::new(requested) }
    }

    /// The positions of a prompt; the first token has none.
    pub(crate) fn prompt(&self, prompt: &[u32], recorded: Option<&PromptLogprobs>) -> Vec<Position> {
        let Some(others) = self.requested.prompt else { return Vec::new() };
        let recorded_values = recorded
            .and_then(|recorded_values| recorded_logprobs::prompt(recorded_values, prompt, others, &self.tokenizer));
        if let Some(positions) = recorded_values {
            return positions;
        }
        let mut positions: Vec<Position> = Vec::with_capacity(prompt.len());
        for (at, id) in prompt.iter().enumerate() {
            // The engine keeps no place for the first token, so it is no context for the others.
            let context = prompt.get(at.saturating_sub(CONTEXT).max(1)..at).unwrap_or_default();
            let scored =
                if at == 0 { Vec::new() } else { self.scored(*id, context, key(at, *id, context), others, &[]) };
            let text = scored.first().map_or_else(|| self.alone(*id), |first| first.text.clone());
            positions.push(Position { id: *id, text, scored });
        }
        positions
    }

    /// A token of an answer after these.
    fn sample(&self, id: u32, at: usize, context: &[u32]) -> Position {
        let named = self.requested.token_ids.as_slice();
        let others = if named.is_empty() { self.requested.sample.unwrap_or(0) } else { 0 };
        let scored = self.scored(id, context, key(at, id, context), others, named);
        let text = scored.first().map_or_else(String::new, |first| first.text.clone());
        Position { id, text, scored }
    }

    /// The token first, then so many of the likeliest by rank, then those that were named.
    fn scored(&self, id: u32, context: &[u32], key: u64, others: usize, named: &[u32]) -> Vec<CandidateToken> {
        let place = RankDistribution::new(xxh3_64_with_seed(&key.to_le_bytes(), self.seed));
        let mut scored: Vec<CandidateToken> = Vec::with_capacity(others + named.len() + 1);
        let mut put = |id: u32, rank: u32, logprob: f32| {
            // Alternatives are few. Named ids differ, so they can repeat but the first.
            let repeats = match named.is_empty() {
                true => scored.iter().any(|there| there.id == id),
                false => scored.first().is_some_and(|first| first.id == id),
            };
            if !repeats {
                scored.push(CandidateToken {
                    id,
                    text: self.tokenizer.token_text(id, context),
                    logprob: f64::from(logprob),
                    rank,
                });
            }
        };
        put(id, place.rank, place.logprob(place.rank));
        let mut draw = 0;
        for rank in (1..).take(others) {
            if rank == place.rank {
                continue;
            }
            let Some(other) = self.other(&place, &mut draw, id) else { break };
            put(other, rank, place.logprob(rank));
        }
        for other in named {
            let spread = hash(place.hash, u64::from(*other)) % 4096;
            put(*other, u32::MAX, UNLIKELY - part(spread, 4096) * 16.0);
        }
        scored
    }

    /// The next alternative of a place: an ordinary token other than its own.
    fn other(&self, place: &RankDistribution, draw: &mut u64, own: u32) -> Option<u32> {
        let ordinary = self.tokenizer.ordinary_ids();
        let count = u64::try_from(ordinary.len()).ok().filter(|count| *count > 1)?;
        // Consecutive draws are far apart and never meet before the vocabulary is used up.
        loop {
            let at = (place.hash % count + *draw) % count;
            *draw += 1;
            let id = ordinary.get(usize::try_from(at).ok()?).copied()?;
            if id != own || *draw > count {
                return (id != own).then_some(id);
            }
        }
    }

    fn alone(&self, id: u32) -> String {
        self.tokenizer.decode(&[id], SkipSpecial::Keep).unwrap_or_default()
    }
}

/// Seed of a position's values.
fn key(at: usize, id: u32, context: &[u32]) -> u64 {
    let start = hash(u64::try_from(at).unwrap_or(u64::MAX), u64::from(id));
    context.iter().fold(start, |key, id| hash(key, u64::from(*id)))
}

fn hash(one: u64, other: u64) -> u64 {
    xxh3_64_with_seed(&other.to_le_bytes(), one)
}

fn part(steps: u64, of: u64) -> f32 {
    steps as f32 / of as f32
}

/// Distribution of probability over one place: each rank takes the same share of what the ranks before it left.
#[derive(Debug)]
struct RankDistribution {
    hash: u64,
    rank: u32,
    share: f32,
}

impl RankDistribution {
    fn new(hash: u64) -> Self {
        // 3 of 4 tokens are the likeliest of their place, 1 of 5 is the second, few are the third or fourth.
        let rank = match hash % 256 {
            0..192 => 1,
            192..243 => 2,
            243..252 => 3,
            _ => 4,
        };
        Self { hash, rank, share: 0.35 + 0.6 * part((hash >> 8) % 4096, 4096) }
    }

    fn logprob(&self, rank: u32) -> f32 {
        self.share.ln() + (rank - 1) as f32 * (1.0 - self.share).ln()
    }
}

/// The log probabilities of one choice while it is sent.
#[derive(Debug)]
pub(crate) struct SequenceLogprobs {
    scorer: Scorer,
    api: Api,
    /// The last tokens, oldest first.
    context: Vec<u32>,
    produced: usize,
    /// The prompt's positions, where they are sent before the first token.
    echoed: Arc<[Position]>,
    /// True where the tokens themselves have none.
    only_echoes: bool,
    /// Characters sent so far.
    offset: usize,
    /// What a whole body has of it so far.
    kept: WholeLogprobs,
    /// Recorded values of its tokens, where they are enough.
    recorded: Option<Arc<Logprobs>>,
}

impl SequenceLogprobs {
    /// `None` where output tokens have none.
    pub(crate) fn new(scorer: &Scorer, request: &GenerationRequest, echoed: &Arc<[Position]>) -> Option<Self> {
        let sequence = Self::of(scorer, request.api, echoed)?;
        Some(Self { only_echoes: request.only_echoes(), ..sequence })
    }

    fn of(scorer: &Scorer, api: Api, echoed: &Arc<[Position]>) -> Option<Self> {
        scorer.requested.sample?;
        Some(Self {
            scorer: scorer.clone(),
            api,
            only_echoes: false,
            context: Vec::new(),
            produced: 0,
            echoed: Arc::clone(echoed),
            offset: 0,
            kept: WholeLogprobs::default(),
            recorded: None,
        })
    }

    /// Goes on behind these tokens.
    pub(crate) fn after(mut self, delivered: &[u32]) -> Self {
        self.produced = delivered.len();
        self.context = delivered.get(delivered.len().saturating_sub(CONTEXT)..).unwrap_or_default().to_vec();
        self
    }

    /// With what was recorded of the tokens, and of the prompt where that is repeated, as far as it is enough.
    pub(crate) fn with_recorded(mut self, recorded_values: Option<&Arc<Logprobs>>, prompt: &[u32]) -> Self {
        let requested = Arc::clone(&self.scorer.requested);
        let Some(recorded_values) = recorded_values
            .filter(|recorded_values| recorded_logprobs::is_enough(recorded_values, self.api, &requested))
        else {
            return self;
        };
        if self.echoed.len() == recorded_values.prompt.len() && prompt.len() == recorded_values.prompt.len() {
            let place = |(at, token): (usize, &TokenLogprobs)| {
                let context = prompt.get(at.saturating_sub(CONTEXT).max(1)..at).unwrap_or_default();
                self.recorded_position(recorded_values, token, prompt.get(at).copied().unwrap_or_default(), context)
            };
            self.echoed = recorded_values.prompt.iter().enumerate().map(place).collect();
        }
        self.recorded = Some(Arc::clone(recorded_values));
        self
    }

    fn recorded_position(
        &self,
        recorded_values: &Logprobs,
        token: &TokenLogprobs,
        id: u32,
        context: &[u32],
    ) -> Position {
        let requested = recorded_logprobs::LogprobsQuery {
            api: self.api,
            logprobs: &self.scorer.requested,
            top: recorded_values.top,
        };
        recorded_logprobs::position(&requested, token, id, context, &self.scorer.tokenizer)
    }

    /// The log probabilities of these tokens as values, behind those of a prompt that is repeated.
    pub(crate) fn take(&mut self, ids: &[u32]) -> Vec<Position> {
        let mut positions = std::mem::take(&mut self.echoed).to_vec();
        for id in ids.iter().filter(|_| !self.only_echoes) {
            let recorded = self.recorded.as_ref();
            let recorded = recorded
                .and_then(|recorded_values| Some((recorded_values, recorded_values.tokens.get(self.produced)?)));
            // The engine sent nothing about the token of an answer that only repeated its prompt.
            let recorded = recorded.filter(|(_, token)| token.logprob.is_some());
            positions.push(match recorded {
                Some((recorded_values, token)) => self.recorded_position(recorded_values, token, *id, &self.context),
                None => self.scorer.sample(*id, self.produced, &self.context),
            });
            self.produced += 1;
            self.context.push(*id);
            if self.context.len() > CONTEXT {
                self.context.remove(0);
            }
        }
        positions
    }

    /// The log probabilities of an event with these tokens.
    pub(crate) fn event(&mut self, ids: &[u32]) -> String {
        let positions = self.take(ids);
        self.json(&positions)
    }

    /// Keeps these tokens for the body, and returns how many bytes of it they take.
    pub(crate) fn keep(&mut self, ids: &[u32]) -> usize {
        let positions = self.take(ids);
        self.kept.push(self.form(), &positions, &self.scorer.requested)
    }

    /// The log probabilities of a body, of all that was kept.
    pub(crate) fn body(&mut self) -> String {
        std::mem::take(&mut self.kept).finish(self.form())
    }

    /// The family whose form they have.
    fn form(&self) -> Api {
        if self.scorer.requested.spelling.is_of_tokens_in() { Api::Chat } else { self.api }
    }

    fn json(&mut self, positions: &[Position]) -> String {
        match self.form() {
            Api::Chat => chat_logprobs(positions, &self.scorer.requested, Digits::Event),
            Api::Completions => {
                let (json, end) = completion_logprobs(positions, &self.scorer.requested, self.offset, Digits::Event);
                self.offset = end;
                json
            }
        }
    }
}

/// The log probabilities of a prompt in a body; `None` where it was not asked for.
pub(crate) fn prompt_logprobs_json(scorer: &Scorer, positions: &[Position]) -> Option<String> {
    scorer.requested.prompt.map(|_| prompt_json(positions))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Player;
    use text::prompt::SpecialTokens;

    fn scorer(requested: &LogprobsOptions) -> Scorer {
        Scorer::new(&Player::builtin_tokenizer().unwrap(), 3, requested)
    }

    #[test]
    fn the_numbers_are_a_distribution_and_the_same_in_every_cut() {
        let requested = LogprobsOptions { sample: Some(20), ..LogprobsOptions::default() };
        let ids: Vec<u32> = (500..560).collect();
        let mut whole = SequenceLogprobs::of(&scorer(&requested), Api::Chat, &Arc::default()).unwrap();
        let whole = whole.take(&ids);
        let mut cut = SequenceLogprobs::of(&scorer(&requested), Api::Chat, &Arc::default()).unwrap();
        assert_eq!(ids.chunks(7).flat_map(|ids| cut.take(ids)).collect::<Vec<_>>(), whole);
        for position in &whole {
            assert_eq!(position.scored.len(), 20);
            assert_eq!(position.scored[0].id, position.id);
            let total: f64 = position.scored.iter().map(|scored| scored.logprob.exp()).sum();
            assert!(total <= 1.0001, "{position:?}");
            assert!(position.scored[1..].windows(2).all(|pair| pair[0].logprob > pair[1].logprob));
            let mut ids: Vec<u32> = position.scored.iter().map(|scored| scored.id).collect();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), 20, "each id once");
        }
        let first = whole.iter().filter(|position| position.scored[0].rank == 1).count();
        assert!((30..58).contains(&first), "{first} of 60 are the likeliest");
    }

    #[test]
    fn a_character_of_several_tokens_comes_with_the_last_of_them() {
        let scorer = scorer(&LogprobsOptions { prompt: Some(0), ..LogprobsOptions::default() });
        let prompt = scorer.tokenizer.encode("Hi. 🦀!", SpecialTokens::Skip).unwrap();
        let positions = scorer.prompt(&prompt, None);
        assert!(positions[0].scored.is_empty());
        let texts: Vec<&str> = positions.iter().map(|position| position.text.as_str()).collect();
        assert_eq!(texts.concat(), "Hi. 🦀!");
        assert!(texts.contains(&"") && texts.iter().any(|text| text.ends_with('🦀')), "{texts:?}");
    }

    #[test]
    fn named_ids_take_the_place_of_the_best() {
        let requested = LogprobsOptions { sample: Some(0), token_ids: vec![700, 600], ..LogprobsOptions::default() };
        let mut sequence = SequenceLogprobs::of(&scorer(&requested), Api::Chat, &Arc::default()).unwrap();
        let positions = sequence.take(&[600, 601]);
        let ids = |at: usize| positions[at].scored.iter().map(|scored| scored.id).collect::<Vec<_>>();
        assert_eq!((ids(0), ids(1)), (vec![600, 700], vec![601, 700, 600]));
    }
}
