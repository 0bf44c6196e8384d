//! State that all requests to a server share, by duty.

use std::{
    num::NonZeroU32,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use http::{HeaderMap, HeaderName, HeaderValue};
use rand::random;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    api::{ApiError, RequestTemplates, ServerProfile, VocabularyLimits},
    base::stats::Lateness,
    play::{
        Config, PlayError, Source, Synthetic, UnmatchedPace,
        engine::{Engine, EngineConfig, ReplicaFaults, Slowdown},
        generate::samples::Samples,
        load::{LoadedSources, LoadedTrace, adapters::Adapters, model::Model},
        mcp::{McpAccess, McpService},
        metrics::{MetricOverrides, Metrics},
        rare::{dev::Development, response_store::StoredResponses},
        request::{
            blocking::{DrawingPool, INLINE_BYTES},
            info,
            request_cache::RequestCache,
        },
        selection::arrival_order::Turns,
    },
    replay::{
        account::{Both, Ledger},
        player::{CassettePlayer, PlayerConfig},
        timing::Pacing,
    },
};

/// State that all requests share; nothing in it is locked across a wait.
#[derive(Debug)]
pub(super) struct ServerState {
    pub(super) config: Config,
    pub(super) model: Arc<Model>,
    pub(super) adapters: Adapters,
    /// `None` for synthetic tokens.
    pub(super) replay: Option<Arc<LoadedTrace>>,
    /// Those of a server without a trace; with one each session has its own.
    pub(super) samples: Samples,
    pub(super) work: Work,
    pub(super) metrics: Arc<Metrics>,
    /// Values that `/metrics` has in place of these.
    pub(super) overrides: Arc<MetricOverrides>,
    /// Its number among several servers.
    pub(super) replica: u32,
    pub(super) lateness: Arc<Lateness>,
    pub(super) dev: Arc<Development>,
    /// The responses that are kept, where they are.
    pub(super) kept: Option<Arc<StoredResponses>>,
    /// The simulated engine that answers pass through, where there is one.
    pub(super) engine: Option<Engine>,
    /// The player of cassettes, or one without any: what writes the answers of semantic faults.
    pub(super) semantic_player: Arc<CassettePlayer>,
    /// The MCP servers of its cassettes; `None` where it has none.
    pub(super) mcp: Option<Arc<McpService>>,
    /// Ids and seeds that were given out, from a random number on.
    given_out: AtomicU64,
    /// When it is ready, from when it serves on.
    ready: OnceLock<Instant>,
}

/// One of several servers, and what it shares with the others beside records and model.
#[derive(Debug)]
pub(super) struct ReplicaContext {
    pub(super) replica: u32,
    pub(super) slowdown: Arc<Slowdown>,
    pub(super) lateness: Arc<Lateness>,
}

/// Bounds on the work of reading and making up text, and what need not be read again.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) turns: Turns,
    pub(super) drawing: DrawingPool,
    pub(super) memo: RequestCache,
}

impl ServerState {
    /// The state of a server before its first request.
    ///
    /// # Errors
    /// A chat template or a configuration of generation that cannot be read.
    pub(super) fn new(config: Config, loaded: LoadedSources) -> Result<Self, PlayError> {
        let replay = loaded.replay.clone();
        let model = Arc::new(Model::new(&config, loaded)?);
        let place = ReplicaContext { replica: 0, slowdown: Arc::default(), lateness: Arc::default() };
        Self::of(config, model, replay, place)
    }

    /// The state of a server of these records and this model.
    ///
    /// # Errors
    /// When its engine cannot start.
    pub(super) fn of(
        config: Config,
        model: Arc<Model>,
        replay: Option<Arc<LoadedTrace>>,
        place: ReplicaContext,
    ) -> Result<Self, PlayError> {
        let length = model.max_model_len;
        let ranks = config.data_parallel_size;
        let metrics = match &config.engine {
            Some(engine) => Metrics::scheduled(length, ranks, engine),
            None => Metrics::new(length),
        };
        let metrics = Arc::new(metrics.with_adapters(config.lora.as_ref().map(|lora| lora.max_loras)));
        let ReplicaContext { replica, slowdown, lateness } = place;
        let start = |engine: &EngineConfig| {
            let name = model.first_name().to_owned();
            let pace = replay.as_ref().and_then(|replay| replay.pace);
            let mut resolved = engine.resolved(length, block_size(&config, replay.as_deref()), pace)?;
            resolved.kv_transfer = resolved.kv_transfer.map(|config| config.of_replica(replica, ranks.get()));
            let seed = config.seed.wrapping_add(u64::from(replica) * u64::from(ranks.get()));
            let faults = ReplicaFaults { faults: Arc::clone(&config.faults), replica };
            Engine::start(&resolved, &metrics, &name, seed, (slowdown, faults))
        };
        let semantic_player = semantic_player(&config, &model)?;
        if config.engine.is_some() {
            semantic_player.make_engine_inputs(length);
        }
        let adapters = Adapters::new(config.lora.as_ref(), config.server.runtime_lora_updating, &model)?;
        let access = McpAccess {
            hosts: config.mcp_hosts.clone(),
            origins: config.server.cors.origins.clone(),
            body_limit: config.body_limit,
        };
        let mcp = config.cassette_player.as_ref().map(|player| McpService::start(player, access)).transpose();
        Ok(Self {
            engine: config.engine.as_ref().map(start).transpose()?,
            metrics,
            overrides: Arc::default(),
            replica,
            model,
            adapters,
            replay,
            samples: Samples::default(),
            work: Work { turns: Turns::new(), drawing: DrawingPool::new(), memo: RequestCache::new() },
            lateness,
            dev: Arc::new(Development::new()),
            kept: config.server.responses_store.then(Arc::default),
            semantic_player,
            mcp: mcp?.map(Arc::new),
            given_out: AtomicU64::new(random()),
            ready: OnceLock::new(),
            config,
        })
    }

    /// Notes that the server begins to serve, from when its start-up counts.
    pub(super) fn begin(&self) {
        self.ready.get_or_init(|| Instant::now() + self.config.server.startup);
    }

    /// Checks whether the model would be loaded by now.
    pub(super) fn is_ready(&self) -> bool {
        self.config.server.startup.is_zero() || self.ready.get().is_some_and(|ready| *ready <= Instant::now())
    }

    /// That of cassettes, of the trace, or of both.
    pub(super) fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        let cassette_player =
            self.config.cassette_player.clone().map(|cassette_player| cassette_player as Arc<dyn Ledger>);
        let replay = self.replay.clone().map(|replay| replay as Arc<dyn Ledger>);
        match (cassette_player, replay) {
            (Some(first), Some(behind)) => Some(Arc::new(Both { first, behind })),
            (cassette_player, replay) => cassette_player.or(replay),
        }
    }

    /// Weight of a request by the bytes of its body. A chat template of its own may do much in few bytes.
    pub(super) fn weight_of(&self, bytes: usize) -> usize {
        match self.config.request_templates {
            RequestTemplates::Trusted => bytes.max(INLINE_BYTES + 1),
            RequestTemplates::Refused => bytes,
        }
    }

    /// The rank of a request that names one; `None` where the server chooses.
    ///
    /// # Errors
    /// 400 for one that is not there. A server without an engine has one rank.
    pub(super) fn rank(&self, named: Option<i128>) -> Result<Option<usize>, ApiError> {
        let ranks = self.engine.as_ref().map_or(1, Engine::ranks);
        let Some(named) = named else { return Ok(None) };
        usize::try_from(named)
            .ok()
            .filter(|rank| *rank < ranks)
            .map(Some)
            .ok_or_else(|| ApiError::bad_request(format!("data_parallel_rank {named} is out of range [0, {ranks}).")))
    }

    /// A number that was not given out before.
    pub(super) fn fresh_seed(&self) -> u64 {
        let count = self.given_out.fetch_add(1, Ordering::Relaxed);
        xxh3_64_with_seed(&count.to_le_bytes(), self.config.seed)
    }

    /// An id as the engine makes them: 16 hexadecimal digits, the lower half of a random UUID.
    pub(super) fn fresh_id(&self) -> String {
        format!("{:016x}", (self.fresh_seed() >> 2) | 0x8000_0000_0000_0000)
    }

    /// Tokens per block of the prefix cache: as configured, or as in the trace.
    pub(super) fn block_size(&self) -> u32 {
        block_size(&self.config, self.replay.as_deref())
    }

    /// The limits that requests are validated with.
    pub(super) fn served(&self) -> ServerProfile {
        ServerProfile {
            templates: self.config.request_templates,
            finds_calls: self.model.parsers.formats.tools.is_some(),
            max_model_len: self.model.max_model_len,
        }
    }

    /// The limits of ids and log probabilities in requests.
    pub(super) fn vocabulary(&self) -> VocabularyLimits {
        let vocabulary = self.model.tokenizer.model_vocabulary();
        VocabularyLimits { vocabulary, most_logprobs: self.config.max_logprobs }
    }

    /// The model that answers: the one that is asked where records of several models are served, else the first one.
    pub(super) fn asked_model<'a>(&'a self, asked: Option<&'a str>) -> &'a str {
        let by_model = self.replay.as_ref().is_some_and(|replay| replay.matcher.rules().by_model);
        asked.filter(|name| by_model && !name.is_empty()).unwrap_or_else(|| self.model.first_name())
    }

    /// Checks whether a request names no model, and several were recorded.
    pub(super) fn takes_any_model(&self, asked: Option<&str>) -> bool {
        asked.is_none_or(str::is_empty) && self.replay.as_ref().is_some_and(|replay| replay.matcher.rules().by_model)
    }

    /// Kind of tokens that are made up where nothing was recorded.
    pub(super) fn synthetic(&self) -> Synthetic {
        match self.config.source {
            Source::Synthetic(synthetic) => synthetic,
            Source::BuiltIn | Source::Files(_) | Source::Trace { .. } => Synthetic::Random,
        }
    }

    /// Pacing of what begins now.
    pub(super) fn pacing(&self) -> Pacing {
        self.config.changed_pacing.or(self.config.pacing)
    }

    /// Pacing of made-up tokens.
    pub(super) fn made_up_pacing(&self) -> Pacing {
        let recorded = self.pacing();
        let replay = self.replay.as_ref().filter(|_| self.config.unmatched_pace == UnmatchedPace::Trace);
        replay.and_then(|replay| replay.pace).map_or(recorded, |pace| pace.pacing(recorded))
    }

    /// Checks whether made-up answers repeat their prompts.
    pub(super) fn echoes(&self) -> bool {
        self.synthetic() == Synthetic::Echo
    }

    /// The `x-request-id` of the answer, where answers have one.
    pub(super) fn request_id_header(&self, headers: &HeaderMap) -> Option<(HeaderName, HeaderValue)> {
        if !self.config.request_id_headers {
            return None;
        }
        let name = HeaderName::from_static("x-request-id");
        let sent = headers.get(&name).cloned();
        let value = sent.or_else(|| HeaderValue::from_str(&format!("{}{}", self.fresh_id(), self.fresh_id())).ok())?;
        Some((name, value))
    }
}

/// The player of cassettes, or one without any, which counts with the model's tokenizer.
///
/// # Errors
/// None of one without any.
fn semantic_player(config: &Config, model: &Model) -> Result<Arc<CassettePlayer>, PlayError> {
    if let Some(player) = &config.cassette_player {
        return Ok(Arc::clone(player));
    }
    let (pacing, changed_pacing) = (config.pacing, Arc::clone(&config.changed_pacing));
    let player = CassettePlayer::new(PlayerConfig { pacing, changed_pacing, ..PlayerConfig::default() })?;
    player.count_with(model.tokenizer.clone());
    Ok(player)
}

/// Tokens per block of the prefix cache: as configured, or as in the trace.
pub(super) fn block_size(config: &Config, replay: Option<&LoadedTrace>) -> u32 {
    let traced = || u32::try_from(replay?.hasher.block_size()).ok();
    config.block_size.map(NonZeroU32::get).or_else(traced).unwrap_or(info::DEFAULT_BLOCK_SIZE)
}
