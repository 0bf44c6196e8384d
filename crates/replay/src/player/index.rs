//! The index of a player's records: each is searched for secrets and identified, on all cores.

use std::{
    collections::{HashMap, HashSet},
    num::NonZero,
    sync::Arc,
    thread,
};

use serde_json::Value;

use crate::{
    matching::requests::{CassetteIndex, Retries},
    mcp::{McpRecordError, Servers},
    player::{
        ModeExceptions, PlayerConfig,
        decide::cross,
        mcp,
        record::recorder::route_of,
        secrets::{self, Leak, SearchedConversation, around},
    },
    values::ValuePlans,
};
use api::endpoints::CHAT;
use base::one_line::counted;
use recording::{
    canonical::{CanonicalProgress, CanonicalRules, ConversationStart, Identity, RequestParts, SharedList},
    cassette::{CassetteError, CassetteRecord, Inherited, bases, shares},
    redaction::{Redactor, SeenSecrets},
};

/// Fewer records are not worth a thread.
const FEWEST: usize = 256;

/// Reason for which a cassette player cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CassettePlayerError {
    /// The cassette that is to be written cannot be.
    #[error(transparent)]
    Cassette(#[from] CassetteError),
    /// A record of an MCP server is none.
    #[error(transparent)]
    Mcp(#[from] McpRecordError),
    /// A fork is behind the last record that can be played.
    #[error("--at {at}: the cassette has {} that can be played", counted(*records, "request"))]
    Fork {
        /// The request, from 1.
        at: usize,
        /// How many there are.
        records: usize,
    },
    /// Cassettes hold secrets.
    #[error("the cassettes hold secrets ({}):\n  {}", .0.len(), listed(.0))]
    Secrets(Vec<String>),
}

fn listed(found: &[String]) -> String {
    found.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n  ")
}

struct SearchedRecord {
    identity: Identity,
    /// As it is compared with requests of other families.
    across: Option<Identity>,
    secrets: Vec<Leak>,
}

pub(super) struct PlayableRecords {
    pub(super) index: CassetteIndex,
    /// The same records as chats for other families, where those are answered.
    pub(super) across: Option<(CassetteIndex, CanonicalRules)>,
    /// In the order of the index: the cassette and its record.
    pub(super) records: Vec<(usize, CassetteRecord)>,
    pub(super) mcp: Servers,
}

/// Moves the records out of the cassettes and makes their index.
pub(super) fn playable(
    config: &mut PlayerConfig,
    put_back: &Arc<ValuePlans>,
) -> Result<PlayableRecords, CassettePlayerError> {
    let (mcp, leaks) = mcp::take(config, put_back)?;
    let cassettes = config.cassettes.iter().enumerate();
    let across = config.cross_api.then(|| cross::rules(&config.rules));
    let look = Look { config, across: across.as_ref() };
    let all: Vec<SearchedRecord> = cassettes.flat_map(|(at, cassette)| look.at(at, &cassette.records)).collect();
    let mut across = across.map(|rules| (CassetteIndex::default(), rules));
    let mut records: Vec<(usize, CassetteRecord)> = Vec::new();
    for (at, cassette) in config.cassettes.iter_mut().enumerate() {
        records.extend(std::mem::take(&mut cassette.records).into_iter().map(|record| (at, record)));
    }
    let (mut index, mut found) = (CassetteIndex::default(), leaks);
    let mut servable = servable(&records, config.matching.retries);
    if let ModeExceptions::Fork(fork) = &config.selection {
        let playable: Vec<&mut bool> = servable.iter_mut().filter(|it| **it).collect();
        if fork.played >= playable.len() {
            return Err(CassettePlayerError::Fork { at: fork.played + 1, records: playable.len() });
        }
        playable.into_iter().skip(fork.played).for_each(|it| *it = false);
    }
    for (at, (_, record)) in records.iter().enumerate() {
        if let Some(times) = record.times {
            index.allow(at, times);
            across.iter_mut().for_each(|(index, _)| index.allow(at, times));
        }
    }
    for (known, servable) in all.into_iter().zip(servable) {
        found.extend(known.secrets);
        if let Some((index, _)) = &mut across {
            let is_chat = servable && known.across.is_some();
            index.push(known.across.unwrap_or_else(|| known.identity.clone()), is_chat);
        }
        index.push(known.identity, servable);
    }
    let searched = config.cassettes.iter().filter(|cassette| config.refuses_secrets_of(cassette));
    searched.for_each(|cassette| around((&config.secrets, &SeenSecrets::default()), cassette, &mut found));
    if found.is_empty() {
        Ok(PlayableRecords { index, across, records, mcp })
    } else {
        Err(CassettePlayerError::Secrets(found.iter().map(Leak::to_string).collect()))
    }
}

/// Returns whether each record is played: no exchange whose client left before anything came or to try again, and a retry only
/// where no earlier try that is played succeeded, since a client that is served a success does not retry; or where retries take
/// the next record as any request.
fn servable(records: &[(usize, CassetteRecord)], retries: Retries) -> Vec<bool> {
    let mut succeeded: HashSet<(usize, u64)> = HashSet::new();
    // Every try names the first one.
    let request_of = |cassette: usize, record: &CassetteRecord| (cassette, record.retry_of.unwrap_or(record.id));
    let last_tries: HashMap<(usize, u64), u64> =
        records.iter().map(|(cassette, record)| (request_of(*cassette, record), record.id)).collect();
    let of_record = |(cassette, record): &(usize, CassetteRecord)| {
        // Conditions are compared apart from requests.
        if record.is_fixture {
            return false;
        }
        let request = request_of(*cassette, record);
        let is_needless = record.retry_of.is_some() && retries == Retries::Reserve && succeeded.contains(&request);
        // A client that tried again got nothing that it could use.
        let is_useless =
            record.aborted.is_some() && (!record.plays_partly() || last_tries.get(&request) != Some(&record.id));
        if is_useless || is_needless {
            return false;
        }
        if !record.has_failed() {
            succeeded.insert(request);
        }
        true
    };
    records.iter().map(of_record).collect()
}

/// Rules by which records are searched and identified.
#[derive(Clone, Copy)]
struct Look<'a> {
    config: &'a PlayerConfig,
    /// How chats are compared with requests of other families.
    across: Option<&'a CanonicalRules>,
}

/// State of a conversation so far: its secrets and its canonical forms.
#[derive(Clone, Default)]
struct ConversationState {
    searched: SearchedConversation,
    messages: SharedList<Value>,
    canonical: Option<CanonicalProgress>,
    across: Option<CanonicalProgress>,
}

impl Look<'_> {
    /// Looks at the records of a cassette. Those that continue each other are looked at one after the other, and what they have in
    /// common only once.
    fn at(self, cassette: usize, records: &[CassetteRecord]) -> Vec<SearchedRecord> {
        let bases = bases(records);
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let shares = shares(&bases, threads.min(records.len() / FEWEST + 1));
        let of_some = |places: &[usize]| {
            let (mut redactor, mut begun) = (Redactor::new(&self.config.secrets), Inherited::new(&bases));
            let mut known = Vec::with_capacity(places.len());
            for at in places {
                let Some(record) = records.get(*at) else { continue };
                let before = begun.of(*at).and_then(|(base, begun)| Some((records.get(base)?.body.messages()?, begun)));
                let (one, so_far) = self.one(&mut redactor, (cassette, record), before);
                begun.keep(*at, so_far);
                known.push((*at, one));
            }
            known
        };
        let mut known: Vec<(usize, SearchedRecord)> = thread::scope(|scope| {
            let working: Vec<_> = shares.iter().map(|some| (some, scope.spawn(|| of_some(some)))).collect();
            // A thread that ended badly has its share done here.
            working.into_iter().flat_map(|(some, work)| work.join().unwrap_or_else(|_| of_some(some))).collect()
        });
        known.sort_unstable_by_key(|(at, _)| *at);
        known.into_iter().map(|(_, known)| known).collect()
    }

    /// Looks at a record that goes on from these messages.
    fn one(
        self,
        redactor: &mut Redactor<'_>,
        (cassette, record): (usize, &CassetteRecord),
        before: Option<(&SharedList<Value>, ConversationState)>,
    ) -> (SearchedRecord, ConversationState) {
        let (config, CassetteRecord { method, headers, .. }) = (self.config, record);
        redactor.begin_another();
        let (earlier, begun) = before.unzip();
        let ConversationState { searched, messages: shown, canonical, across } = begun.unwrap_or_default();
        let start = earlier.map(|earlier| (earlier, searched));
        let (body, searched) = secrets::shown_body(redactor, &record.body, start);
        let path = secrets::shown_path(redactor, &record.path);
        let body = record.raw.as_deref().map_or(body, |raw| secrets::shown_bytes(redactor, raw).into());
        let headers = &secrets::headers_by(redactor, headers.clone());
        let call = RequestParts { method, path: &path, headers, body: &body };
        let start = |progress: Option<CanonicalProgress>| {
            progress.map(|progress| ConversationStart { messages: &shown, progress })
        };
        let (identity, canonical) = config.rules.identify_after(&call, start(canonical));
        let is_chat = method == "POST" && route_of(&path) == CHAT;
        let across = self.across.filter(|_| is_chat).map(|rules| rules.identify_after(&call, start(across)));
        let (across, of_across) = across.unzip();
        let refused = config.cassettes.get(cassette).filter(|cassette| config.refuses_secrets_of(cassette));
        let secrets = refused.map(|cassette| secrets::found_in(redactor, record, &cassette.path)).unwrap_or_default();
        let messages = body.messages().cloned().unwrap_or_default();
        (
            SearchedRecord { identity, across, secrets },
            ConversationState { searched, messages, canonical, across: of_across.flatten() },
        )
    }
}
