//! A player is made of cassettes that were read.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU64},
};

use crate::account::SessionRecording;
use crate::player::{
    CassetteOutput, CassettePlayer, CassettePlayerError, Mode, PlayerConfig, PlayerState,
    answer::put_back::value_plans,
    decide::fixtures::tried::Fixtures,
    index::{self, PlayableRecords},
    record::recorder::CassetteRecorder,
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
    pub fn new(config: PlayerConfig) -> Result<Arc<Self>, CassettePlayerError> {
        Self::sharing(config, Arc::default())
    }

    pub(super) fn sharing(
        mut config: PlayerConfig,
        shared: Arc<PlayerState>,
    ) -> Result<Arc<Self>, CassettePlayerError> {
        let (put_back, warnings) = value_plans(&config.cassettes, &config.supplied, |_| true);
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        let put_back = Arc::new(put_back);
        let PlayableRecords { index, across, records, mcp } = index::playable(&mut config, &put_back)?;
        let begin = |output: &CassetteOutput| {
            if config.if_unended == SessionRecording::Drop {
                remove_unfinished(&output.path)?;
            }
            CassetteRecorder::create(output, &config)
        };
        let recorder = config.output.as_ref().map(begin).transpose()?;
        let comparer = (config.mode == Mode::Compare).then(|| CassetteRecorder::comparing(&config)).transpose()?;
        let fixtures = Fixtures::new(records.iter().map(|(at, record)| (config.cassette(*at), record)), 0);
        Ok(Arc::new(Self {
            upstream: config.upstream.clone().map(|url| Upstream::new(url, &config.reach)),
            config,
            index,
            across,
            shared,
            groups: RecordGroups::new(&records),
            fixtures: Arc::new(fixtures),
            put_back,
            mcp: Arc::new(mcp),
            hand_over: Default::default(),
            earlier: Lock::default(),
            used: records.iter().map(|_| AtomicBool::new(false)).collect(),
            records,
            sessions: Lock::default(),
            recorder: recorder.map(Arc::new),
            comparer: comparer.map(Arc::new),
            comparisons: Arc::default(),
            environment: OnceLock::new(),
            fault_reader: OnceLock::new(),
            fresh_ids: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            ended: Lock::default(),
            recorded_by_sessions: Lock::default(),
        }))
    }
}
