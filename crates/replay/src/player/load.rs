//! A player is made of cassettes that were read.

use std::{
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64},
    },
};

use crate::account::SessionRecording;
use crate::player::{
    CassetteOutput, CassettePlayer, CassettePlayerError, Mode, PlayerConfig,
    answer::{generated::Counter, put_back::value_plans},
    decide::fixtures::tried::Fixtures,
    index::{self, PlayableRecords},
    kept::HandOvers,
    record::{compare::Comparisons, recorder::CassetteRecorder},
    report::groups::RecordGroups,
};
use base::lock::Lock;
use net::upstream::Upstream;
use recording::cassette::remove_unfinished;

impl CassettePlayer {
    /// Makes a player of cassettes that were read.
    ///
    /// # Errors
    /// When the cassette that is to be written cannot be, or those that were read hold secrets and must not.
    pub fn new(mut config: PlayerConfig) -> Result<Arc<Self>, CassettePlayerError> {
        let (put_back, warnings) = value_plans(&config.cassettes, &config.supplied, |_| true);
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        let put_back = Arc::new(put_back);
        let PlayableRecords { index, across, records, mcp } = index::playable(&mut config, &put_back)?;
        let secrets = &config.secrets;
        let begin = |output: &CassetteOutput| {
            if config.if_unended == SessionRecording::Drop {
                remove_unfinished(&output.path)?;
            }
            CassetteRecorder::create(output, config.keep, config.record_errors, secrets.clone())
                .map(|recorder| recorder.completing(config.complete_within))
        };
        let recorder = config.output.as_ref().map(begin).transpose()?;
        let comparisons: Arc<Comparisons> = Arc::default();
        let comparing = || {
            CassetteRecorder::comparing(config.secrets.clone(), Arc::clone(&comparisons))
                .map(|comparer| comparer.completing(config.complete_within))
        };
        let comparer = (config.mode == Mode::Compare).then(comparing).transpose()?;
        let used = records.iter().map(|_| AtomicBool::new(false)).collect();
        let upstream = config.upstream.clone().map(|url| Upstream::new(url, &config.reach));
        let path_of = |at: usize| config.cassettes.get(at).map_or(Path::new(""), |cassette| cassette.path.as_path());
        let fixtures = Fixtures::new(records.iter().map(|(at, record)| (path_of(*at), record)), 0);
        Ok(Arc::new(Self {
            config,
            index,
            across,
            counter: Counter::default(),
            groups: RecordGroups::new(&records),
            fixtures: Arc::new(fixtures),
            put_back,
            mcp: Arc::new(mcp),
            hand_over: HandOvers::default(),
            earlier: Lock::default(),
            records,
            sessions: Lock::default(),
            upstream,
            recorder: recorder.map(Arc::new),
            comparer: comparer.map(Arc::new),
            comparisons,
            environment: OnceLock::new(),
            fault_reader: OnceLock::new(),
            fresh_ids: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            used,
            ended: Lock::default(),
            recorded_by_sessions: Lock::default(),
            pages: OnceLock::new(),
            journal: OnceLock::new(),
        }))
    }
}
