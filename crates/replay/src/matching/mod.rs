//! Which record answers a request.
//!
//! One [`RecordSelection`] per request decides content and timing. Records are named by their index in replay order
//! ([`recording::trace::replay_order`]). A record is consumed by its first match, whichever way found it, and is served again
//! only by its index or, where [`OnExhausted`] lets it, when every record that matches as well is consumed. Each session
//! has a [`Consumption`] of its own.
//!
//! Limits: only records with output or of an error take part. The others keep their place in the numbering, and a request for the index
//! of one has no match. At most 4 billion records. Prefixes are compared by the block hashes that prompt and trace
//! share; a trace whose hashes were made another way never matches by prefix.
//!
//! Selecting takes no lock: N requests for one prompt at once get N different records, the earlier call the earlier one.

mod consumption;
mod continuation;
mod family;
pub(crate) mod named_later;
mod query;
pub mod requests;
mod rules;
#[cfg(test)]
mod tests;
mod trie;

use std::ops::Range;

pub use consumption::Consumption;
use consumption::{ANY, FRESH, LeafPlaces};
pub use continuation::BegunRecord;
use continuation::PromptEnds;
use family::Families;
pub use query::{Keys, MatchQuery, MissReason, Nearest, PromptMiss, RecordSelection, WholePrompt};
pub use rules::{MatchBy, MatchRules, MinMatch, MinMatchError, OnExhausted};
use trie::{Builder, LongestPrefix, Trie, TriePrompt};

/// Finds the record for each request.
#[derive(Debug)]
pub struct Matcher {
    rules: MatchRules,
    trie: Trie,
    places: LeafPlaces,
    families: Families,
    ends: PromptEnds,
    /// Every record that can be served, in replay order.
    turns: Box<[u32]>,
}

/// Result of one way.
enum MatchStep {
    Found(RecordSelection),
    Exhausted(Option<Nearest>),
    Nothing(Option<Nearest>),
}

impl Matcher {
    /// Indexes `records`, which are in replay order.
    #[must_use]
    pub fn new<'a, R>(records: R, rules: MatchRules) -> Self
    where
        R: IntoIterator<Item: Into<Keys<'a>>, IntoIter: ExactSizeIterator + Clone>,
    {
        let records = records.into_iter();
        let count = records.len();
        let servable = || (0..u32::MAX).zip(records.clone().map(Into::into)).filter(|(_, keys)| keys.servable);
        let mut builder = Builder::new(count);
        let mut of_model = Vec::new();
        let by_model = rules.clone();
        let salt_of = |model: Option<&str>| by_model.salt(model);
        for (number, keys) in servable() {
            let salt = rules.salt(keys.model);
            let chain = salted(keys.chain, salt, &mut of_model);
            builder.insert(number, chain, keys.prompt_hash.map(|hash| hash ^ salt));
        }
        let (trie, by_position) = builder.finish();
        Self {
            rules,
            trie,
            places: LeafPlaces::new(&by_position, count),
            families: Families::new(servable()),
            ends: PromptEnds::new(servable().map(|(number, keys)| (number, keys, salt_of(keys.model)))),
            turns: servable().map(|(number, _)| number).collect(),
        }
    }

    /// A session that consumed nothing.
    #[must_use]
    pub fn session(&self) -> Consumption {
        Consumption::new(&self.places)
    }

    /// Bytes that a session takes.
    #[must_use]
    pub fn session_bytes(&self) -> usize {
        self.places.bytes()
    }

    /// The records that can be served, in replay order.
    #[must_use]
    pub fn servable(&self) -> &[u32] {
        &self.turns
    }

    /// Returns whether a record can be served.
    #[must_use]
    pub fn is_servable(&self, record: usize) -> bool {
        u32::try_from(record).is_ok_and(|record| self.turns.binary_search(&record).is_ok())
    }

    /// How requests are matched.
    #[must_use]
    pub fn rules(&self) -> &MatchRules {
        &self.rules
    }

    /// Selects the records for one prompt and consumes them. The ways of the rules are tried one after the other; one whose
    /// records are all consumed ends the search, unless [`MatchRules::loose_after_exhausted`] lets later ones follow.
    ///
    /// Siblings of the record found (same `group` and prompt) serve the other choices. Where there are too few,
    /// the same way finds further records, and where it finds none, the chosen ones are repeated.
    ///
    /// # Errors
    /// When no way finds a record.
    pub fn select(&self, session: &Consumption, query: &MatchQuery<'_>) -> Result<RecordSelection, PromptMiss> {
        let repeats = !self.rules.loose_after_exhausted;
        let (mut exhausted, mut nearest) = (None, None);
        for by in &self.rules.order {
            match self.step(*by, session, query, repeats) {
                MatchStep::Found(selection) => return Ok(selection),
                MatchStep::Nothing(near) => nearest = nearest.or(near),
                MatchStep::Exhausted(near) if repeats => {
                    return Err(PromptMiss::new(MissReason::Exhausted, near, query));
                }
                MatchStep::Exhausted(near) => _ = exhausted.get_or_insert((*by, near)),
            }
        }
        let Some((by, near)) = exhausted else { return Err(PromptMiss::new(MissReason::NoMatch, nearest, query)) };
        match self.step(by, session, query, true) {
            MatchStep::Found(selection) => Ok(selection),
            MatchStep::Exhausted(_) | MatchStep::Nothing(_) => Err(PromptMiss::new(MissReason::Exhausted, near, query)),
        }
    }

    /// Selects records one way; `repeats` lets consumed ones be served again as the rules have it.
    fn step(&self, by: MatchBy, session: &Consumption, query: &MatchQuery<'_>, repeats: bool) -> MatchStep {
        match by {
            MatchBy::Auto => match query.request_id.and_then(replay_index) {
                Some(index) => self.by_index(session, query, Some(index)),
                None => self.by_prefix(session, query, repeats),
            },
            MatchBy::Index => self.by_index(session, query, query.request_id.and_then(index_in)),
            MatchBy::Prefix => self.by_prefix(session, query, repeats),
            MatchBy::Next => self.by_turn(session, query, repeats),
        }
    }

    /// The records of a query's whole prompt, of which none is consumed.
    #[must_use]
    pub fn whole_prompt(&self, session: &Consumption, query: &MatchQuery<'_>) -> Option<WholePrompt> {
        let found = self.find(query).filter(|found| found.whole)?;
        Some(WholePrompt { fresh: session.first_fresh(&found.positions), last: found.last as usize })
    }

    /// The records whose whole prompts a query's prompt begins with, longest first. `whole` gives the chained hash of so many of its
    /// first tokens, `None` for more than it has.
    pub fn begun<'a>(
        &'a self,
        query: &MatchQuery<'a>,
        whole: impl Fn(usize) -> Option<u64> + 'a,
    ) -> impl Iterator<Item = BegunRecord> + 'a {
        self.ends.begun(&query.hashes.blocks, self.rules.salt(query.model), whole)
    }

    /// Selects a record to go on with: the same one, whether it was consumed or not. It is consumed.
    pub fn go_on(&self, session: &Consumption, query: &MatchQuery<'_>, record: usize, by: MatchBy) -> RecordSelection {
        session.take(u32::try_from(record).unwrap_or(u32::MAX));
        let total_blocks = query.hashes.blocks.len();
        RecordSelection {
            records: vec![record],
            by,
            matched_blocks: total_blocks,
            total_blocks,
            whole: false,
            again: false,
        }
    }

    /// Consumes a record and the others of its request. False when it was consumed before.
    pub fn consume(&self, session: &Consumption, record: usize) -> bool {
        let Ok(record) = u32::try_from(record) else { return false };
        let is_fresh = session.take(record);
        for sibling in self.families.family(record).filter(|sibling| *sibling != record) {
            session.take(sibling);
        }
        is_fresh
    }

    /// The choices of a request of which a record was consumed: that and its siblings.
    #[must_use]
    pub fn of_request(&self, query: &MatchQuery<'_>, record: usize, again: bool) -> RecordSelection {
        let mut choices = Choices::of(query);
        let family = u32::try_from(record).map(|record| self.families.family(record));
        family.into_iter().flatten().take(choices.missing).for_each(|sibling| choices.add(sibling));
        if choices.records.is_empty() {
            choices.records.push(record);
            choices.missing -= 1;
        }
        RecordSelection { whole: true, ..choices.selection(query, MatchBy::Prefix, again) }
    }

    /// The index that a request's id names, where the rules look at it.
    #[must_use]
    pub fn index_of(&self, request_id: Option<&str>) -> Option<usize> {
        let named = |by: &MatchBy| match by {
            MatchBy::Auto => replay_index(request_id?),
            MatchBy::Index => index_in(request_id?),
            MatchBy::Prefix | MatchBy::Next => None,
        };
        self.rules.order.iter().find_map(named).map(|index| index as usize)
    }

    fn by_index(&self, session: &Consumption, query: &MatchQuery<'_>, index: Option<u32>) -> MatchStep {
        let Some(record) = index.filter(|index| self.is_servable(*index as usize)) else {
            return MatchStep::Nothing(None);
        };
        let record = self.families.of_prompt(record, query.choices_before);
        let again = !session.take(record);
        let mut choices = Choices::of(query);
        self.add_family(session, record, &mut choices, |_| true);
        MatchStep::Found(choices.selection(query, MatchBy::Index, again))
    }

    fn by_prefix(&self, session: &Consumption, query: &MatchQuery<'_>, repeats: bool) -> MatchStep {
        let (found, total) = (self.find(query), query.hashes.blocks.len());
        let Some(found) = found else { return MatchStep::Nothing(None) };
        let nearest = Some(Nearest { record: found.first as usize, matched_blocks: found.blocks });
        if !found.whole && !self.rules.least.is_reached(found.blocks, total) {
            return MatchStep::Nothing(nearest);
        }
        let on_exhausted = self.on_exhausted(OnExhausted::Last, repeats);
        let Some((choices, again)) = self.choose(session, query, (&found.positions, found.last), on_exhausted) else {
            return MatchStep::Exhausted(nearest);
        };
        let selection = choices.selection(query, MatchBy::Prefix, again);
        MatchStep::Found(RecordSelection { matched_blocks: found.blocks, whole: found.whole, ..selection })
    }

    /// The records that share the most of the prompt.
    fn find(&self, query: &MatchQuery<'_>) -> Option<LongestPrefix> {
        let salt = self.rules.salt(query.model);
        let mut of_model = Vec::new();
        let blocks = salted(&query.hashes.blocks, salt, &mut of_model);
        let prompt = TriePrompt { blocks, whole: query.hashes.whole.map(|whole| whole ^ salt) };
        let found = self.trie.find(prompt)?;
        let equal = || self.trie.find_equal_blocks(prompt);
        if found.whole || self.rules.least != MinMatch::Whole { Some(found) } else { Some(equal().unwrap_or(found)) }
    }

    fn by_turn(&self, session: &Consumption, query: &MatchQuery<'_>, repeats: bool) -> MatchStep {
        let Some(last) = self.turns.last() else { return MatchStep::Nothing(None) };
        let all = 0..self.turns.len();
        match self.choose(session, query, (&all, *last), self.on_exhausted(OnExhausted::Cycle, repeats)) {
            Some((choices, again)) => MatchStep::Found(choices.selection(query, MatchBy::Next, again)),
            None => MatchStep::Exhausted(None),
        }
    }

    fn on_exhausted(&self, usual: OnExhausted, repeats: bool) -> OnExhausted {
        if repeats { self.rules.on_exhausted.unwrap_or(usual) } else { OnExhausted::Error }
    }

    /// The records at some positions, and whether they were consumed before; `None` where they were and must not be served again.
    fn choose(
        &self,
        session: &Consumption,
        query: &MatchQuery<'_>,
        (positions, last): (&Range<usize>, u32),
        on_exhausted: OnExhausted,
    ) -> Option<(Choices, bool)> {
        let mut choices = Choices::of(query);
        while choices.missing > 0 {
            let Some(record) = session.take_least(positions, FRESH) else { break };
            self.add_family(session, record, &mut choices, |fresh| fresh);
        }
        if !choices.records.is_empty() {
            return Some((choices, false));
        }
        match on_exhausted {
            OnExhausted::Error => return None,
            OnExhausted::Last => {
                session.take(last);
                self.add_family(session, last, &mut choices, |_| true);
            }
            OnExhausted::Cycle => {
                while choices.missing > 0 {
                    let record = session.take_least(positions, ANY)?;
                    self.add_family(session, record, &mut choices, |_| true);
                }
            }
        }
        Some((choices, true))
    }

    /// Adds a record that was taken, and those of its siblings that `wants` accepts, given whether they are fresh.
    fn add_family(&self, session: &Consumption, record: u32, choices: &mut Choices, wants: impl Fn(bool) -> bool) {
        let family = self.families.family(record);
        if family.len() == 0 {
            choices.add(record);
        }
        let mut spare = choices.missing.saturating_sub(1);
        for sibling in family {
            if sibling == record {
                choices.add(record);
            } else if spare > 0 && wants(session.take(sibling)) {
                spare -= 1;
                choices.add(sibling);
            }
        }
    }
}

/// Hashes of a model's own, put into `room` where they are others.
fn salted<'a>(hashes: &'a [u64], salt: u64, room: &'a mut Vec<u64>) -> &'a [u64] {
    if salt == 0 {
        return hashes;
    }
    room.clear();
    room.extend(hashes.iter().map(|hash| hash ^ salt));
    room
}

/// The number after the last `-`.
fn index_in(request_id: &str) -> Option<u32> {
    let (_, number) = request_id.rsplit_once('-')?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.parse().ok())?
}

/// The index that an id of the form `replay-<index>` names; one beyond all records where it is too large a number.
fn replay_index(request_id: &str) -> Option<u32> {
    let number = request_id.strip_prefix("replay-")?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| number.parse().unwrap_or(u32::MAX))
}

/// The choices of a selection while they are found.
struct Choices {
    records: Vec<usize>,
    missing: usize,
}

impl Choices {
    fn of(query: &MatchQuery<'_>) -> Self {
        Self { records: Vec::new(), missing: query.choices.max(1) }
    }

    fn add(&mut self, record: u32) {
        self.records.push(record as usize);
        self.missing = self.missing.saturating_sub(1);
    }

    fn selection(mut self, query: &MatchQuery<'_>, by: MatchBy, again: bool) -> RecordSelection {
        let wanted = self.records.len() + self.missing;
        self.records = self.records.iter().copied().cycle().take(wanted).collect();
        let total_blocks = query.hashes.blocks.len();
        RecordSelection { records: self.records, by, matched_blocks: 0, total_blocks, whole: false, again }
    }
}
