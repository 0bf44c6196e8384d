//! Player and recorder of cassettes.
//!
//! One pipeline for `play` and `tap`: session, route and [identity](recording::canonical); whether the request may go upstream
//! ([`ModeExceptions`], decided before matching); match; serve or forward; record. The server around it answers requests that no
//! cassette concerns ([`Decision::Pass`]).
//!
//! A record is served as it was recorded: the events of a stream with their bytes and times. A stream is also served as one body,
//! and a body as a stream, for the clients that ask so. An edited answer keeps the recorded times.
//!
//! Limits: bodies are held in memory. A conversation in the Messages or Responses family that was recorded as one body is
//! streamed in a few events.

mod answer;
mod config;
mod convert;
mod decide;
mod drift;
mod failed_tries;
mod forward;
mod incoming;
mod index;
mod kept;
mod load;
mod mcp;
mod miss;
mod outcome;
mod receive;
mod record;
mod report;
mod secrets;
mod sessions;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64},
    },
};

use base::lock::Lock;
use http::Request;

pub(crate) use crate::player::record::record_report::RecordCounts;
pub use crate::player::{
    answer::{
        content::{other_form, stream_error},
        engine_input::{EngineExchange, EngineInput, response_texts},
        fresh_ids::Ids,
        generated::{Generated, GeneratedChoice, token_limit},
        put_back::{SuppliedSecrets, SuppliedSecretsError, not_put_back, restore_requests, value_plans},
        response::ReplayedResponse,
    },
    config::{
        COMPLETE_WITHIN, CassetteOutput, MissDetail, PlayerConfig, REPLY_WITHIN, RecordErrors, StartedServer,
        forwarding::{Fork, Mode, ModeExceptions, OnMiss, SelectionError, Selector},
        header_rules::{HeaderRulesError, check_top, secrets as secrets_of_top, ways},
    },
    convert::{
        ConvertedFixtures, Counts, FromTrace, HttpLog, ToTrace, aimock, from_trace, http_log, is_aimock, is_http_log,
        to_trace,
    },
    decide::{
        ReceivedRequest,
        fixtures::{
            rules::AnswerRules,
            semantic_reply::{OnReply, SemanticReplies, SemanticReply, why_unanswerable},
        },
        match_command::{MatchCommand, PATIENCE},
    },
    drift::{DriftCheck, DriftFinding, DriftVerdict},
    failed_tries::FailedTries,
    forward::{
        Forward,
        completion::{Completed, CompletedBody, Completions},
    },
    incoming::{RETRY_COUNT, is_retry},
    index::CassettePlayerError,
    outcome::{ConcernsRecord, Decided, Decision, ReplacedRecords, Unanswered},
    record::{
        record_report::RecordReport,
        recorder::{PendingExchange, RecordPlace},
    },
    report::environment::{PROBE, ServerEnvironment, tokenizer_name},
    secrets::{redact_cassette, redact_exchange, redact_named, redact_response, secrets},
};
use crate::{
    account::{EnvironmentChange, Journal, KeptMisses, SessionRecording, SessionReport},
    matching::requests::{CassetteIndex, RequestSession},
    mcp::Servers,
    player::{
        answer::generated::Counter,
        decide::fixtures::tried::Fixtures,
        kept::{Earlier, HandOvers, Pages, RecordUse},
        record::{compare::Comparisons, recorder::CassetteRecorder},
        report::groups::RecordGroups,
    },
    values::{EarlierValues, ValuePlans},
};
use net::{server::RequestBody, upstream::Upstream};
use recording::{
    canonical::CanonicalRules,
    cassette::{AnswersError, CassetteError, CassetteRecord, FaultReader, RecordFault},
};
use text::prompt::Tokenizer;

/// Player and recorder of cassettes; a server takes it as `cassette_player` of its configuration.
///
/// ```no_run
/// use std::path::Path;
/// use recording::cassette::load;
/// use vllm_vcr_replay::player::{CassettePlayer, PlayerConfig};
///
/// # fn player() -> Result<(), Box<dyn std::error::Error>> {
/// let cassettes = vec![load(Path::new("agent.yaml"))?];
/// let cassette_player = CassettePlayer::new(PlayerConfig { cassettes, ..PlayerConfig::default() })?;
/// println!("{} records", cassette_player.len());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CassettePlayer {
    config: PlayerConfig,
    index: CassetteIndex,
    /// The same records as chats for other families, and how these are compared.
    across: Option<(CassetteIndex, CanonicalRules)>,
    shared: Arc<PlayerState>,
    /// In the order of the index: the cassette and its record.
    records: Vec<(usize, CassetteRecord)>,
    groups: RecordGroups,
    /// The servers of MCP, which are played by their own sessions.
    mcp: Arc<Servers>,
    /// What hands records of MCP servers over before a session ends.
    hand_over: HandOvers,
    fixtures: Arc<Fixtures>,
    put_back: Arc<ValuePlans>,
    earlier: Lock<Earlier>,
    sessions: Lock<BTreeMap<String, SessionState>>,
    upstream: Option<Upstream>,
    recorder: Option<Arc<CassetteRecorder>>,
    /// What compares responses with records, where that is the mode.
    comparer: Option<Arc<CassetteRecorder>>,
    comparisons: Arc<Comparisons>,
    /// What is not as it was recorded of the server that is asked, once that is known.
    environment: OnceLock<Vec<EnvironmentChange>>,
    /// What takes the faults of hand-written records, those of sessions' own cassettes too.
    fault_reader: OnceLock<Arc<dyn FaultReader>>,
    /// Answers with fresh ids so far.
    fresh_ids: AtomicU64,
    /// Requests that were passed on so far.
    passed: AtomicU64,
    /// Whether each record was ever served, in any session.
    used: Vec<AtomicBool>,
    /// The same of the records of sessions' players that ended.
    ended: Lock<BTreeMap<(String, u64), RecordUse>>,
    /// What sessions recorded in cassettes of their own and have ended.
    recorded_by_sessions: Lock<RecordReport>,
}

/// State of a player that those of its sessions share.
#[derive(Debug, Default)]
struct PlayerState {
    counter: Counter,
    /// Numbers and address of misses.
    pages: Pages,
    /// The latest requests.
    journal: Journal,
}

#[derive(Debug, Default)]
struct SessionState {
    session: RequestSession,
    misses: KeptMisses,
    /// Counts of what became of requests; `requests` are those that a selection sent upstream before a record was looked for.
    counts: SessionReport,
    /// Values of requests that later answers have, by the records that answered them.
    values: EarlierValues,
    /// The player of a session that differs from the others.
    own: Option<Arc<CassettePlayer>>,
    /// Its cassette is its own too; else that player has the records of all.
    has_own_cassette: bool,
}

impl CassettePlayer {
    /// Counts tokens with the model's tokenizer from now on, where a record does not have their number.
    pub fn count_with(&self, tokenizer: Tokenizer) {
        self.shared.counter.tokenizer.get_or_init(|| tokenizer);
    }

    /// Names this model in made answers to requests that name none; the first one stays.
    pub fn serve_as(&self, model: &str) {
        self.config.served_model.get_or_init(|| model.to_owned());
    }

    /// Makes content under constraints with this tokenizer from now on.
    pub fn draw_with(&self, tokenizer: Tokenizer) {
        self.shared.counter.drawing.get_or_init(|| (tokenizer, OnceLock::new()));
    }

    /// Its configuration, whose cassettes have no records any more.
    pub fn config(&self) -> &PlayerConfig {
        &self.config
    }

    /// Hands the faults of hand-written records to a server that lets them happen, now and whenever rules are read again or a session with a
    /// cassette of its own is opened or ends.
    ///
    /// # Errors
    /// All that are wrong.
    pub fn give_faults(&self, reader: &Arc<dyn FaultReader>) -> Result<(), AnswersError> {
        match &self.config.answers {
            Some(rules) => rules.give_faults(Arc::clone(reader), self.record_faults())?,
            None => reader.take(None, &self.record_faults()).map_err(AnswersError)?,
        }
        self.fault_reader.get_or_init(|| Arc::clone(reader));
        Ok(())
    }

    /// The faults of hand-written records of the cassettes.
    fn record_faults(&self) -> Vec<RecordFault> {
        self.records.iter().filter_map(|(at, record)| RecordFault::of(self.config.cassette(*at), record)).collect()
    }

    /// Makes token ids of exchanges from now on, for a simulated engine whose requests have so many tokens at the most.
    pub fn make_engine_inputs(&self, most_tokens: u32) {
        self.shared.counter.most_tokens.get_or_init(|| most_tokens);
    }

    /// Sets the URL of the server that answers `/vcr/…`, which messages of misses name.
    pub fn pages_are_at(&self, root: &str) {
        self.shared.pages.root.get_or_init(|| root.to_owned());
    }

    /// Returns how many records there are to play.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns whether there is none, nor a rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.is_empty() && self.answer_rules().is_none()
    }

    /// Closes the recording, and those of sessions with cassettes of their own: every one, also where some cannot be written.
    ///
    /// # Errors
    /// The first of them, where any cannot be written; the others are logged.
    pub fn finish(&self) -> Result<Option<RecordReport>, CassetteError> {
        self.config.match_command.iter().for_each(|command| command.end());
        let mut failed = self.close_sessions();
        let own = self.recorder.as_ref().map(|recorder| recorder.finish()).transpose();
        let own = own.unwrap_or_else(|error| {
            failed.push(error);
            None
        });
        let mut failed = failed.into_iter();
        let first = failed.next();
        failed.for_each(|error| tracing::error!("{error}"));
        first.map_or_else(|| Ok(self.with_sessions(own)), Err)
    }

    /// Closes the recording of this session's player; `recorded` says what becomes of it where the session was ended.
    fn close(&self, recorded: Option<SessionRecording>) -> Result<Option<RecordReport>, CassetteError> {
        match recorded.unwrap_or(self.config.if_unended) {
            SessionRecording::Keep => self.finish(),
            SessionRecording::Drop => {
                let dropped = self.recorder.as_ref().map(|recorder| recorder.discard()).transpose()?;
                Ok(self.with_sessions(dropped))
            }
        }
    }

    /// Begins to receive no further responses whose clients leave; those that are being received go on.
    pub fn stop_completing(&self) {
        self.own_players().iter().for_each(|own| own.stop_completing());
        let recorders = self.recorder.iter().chain(&self.comparer);
        recorders.for_each(|recorder| recorder.completions().close());
    }

    /// Waits until the responses whose clients have left are received, or until their limits end that.
    pub async fn completed(self: &Arc<Self>) {
        let cassette_player = Arc::clone(self);
        let waiting = tokio::task::spawn_blocking(move || cassette_player.wait_for_completions());
        if waiting.await.is_err() {
            tracing::debug!("the wait for responses whose clients have left ended early");
        }
    }

    /// The same, blocking.
    fn wait_for_completions(&self) {
        self.own_players().iter().for_each(|own| own.wait_for_completions());
        self.recorder.iter().chain(&self.comparer).for_each(|recorder| recorder.completions().wait());
    }

    /// Decides how a request is handled: a record answers it, it goes upstream, or it is passed on.
    pub async fn decide(self: &Arc<Self>, request: Request<RequestBody>) -> Decided {
        match self.receive(request).await {
            Ok(received) => received.decide().await,
            Err(decided) => *decided,
        }
    }

    /// A record as people find it: its file and its number there.
    fn name_of(&self, record: usize) -> String {
        let Some((at, of_cassette)) = self.records.get(record) else {
            return self.answer_rules().and_then(|rules| rules.name(record).map(str::to_owned)).unwrap_or_default();
        };
        of_cassette.name_in(self.config.cassette(*at))
    }

    /// Changes a session, which begins where there is none.
    fn in_session<T>(&self, name: &str, change: impl FnOnce(&mut SessionState) -> T) -> T {
        let mut sessions = self.sessions.lock();
        match sessions.get_mut(name) {
            Some(state) => change(state),
            None => change(sessions.entry(name.to_owned()).or_default()),
        }
    }
}
