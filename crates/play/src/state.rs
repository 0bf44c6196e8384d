//! State that all requests to a server share, by duty.

use std::{
    net::SocketAddr,
    num::NonZeroU32,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::extract::State;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue};
use rand::random;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    Config, PlayError, Source, Synthetic, UnmatchedPace,
    engine::{Engine, EngineConfig, PublisherFaults, RecordedTiming, Slowdown},
    http::REQUEST_ID,
    load::{
        BLOCK_SIZE, LoadedSources, account::TraceSession, adapters::Adapters, model::Model, samples::Samples,
        trace::LoadedTrace,
    },
    mcp::{McpAccess, McpService},
    metrics::{AdmissionPermit, MetricOverrides, Metrics, ResponseMetrics},
    request::{
        admission::{Development, Hold},
        blocking::{DrawingPool, INLINE_BYTES},
        request_cache::RequestCache,
        response_store::StoredResponses,
    },
    selection::arrival_order::Turns,
};
use api::{ApiError, RequestTemplates, ServerProfile, VocabularyLimits};
use base::stats::Lateness;
use replay::{
    account::{Both, Ledger, session_of},
    player::{CassettePlayer, CassettePlayerError, Generated, PlayerConfig},
    timing::Pacing,
};

/// A loaded replay server; [`Config`] has an example. It is what handlers get, too.
#[derive(Debug, Clone)]
pub struct Player {
    pub(super) state: Arc<ServerState>,
}

/// What handlers take of it.
pub(super) type HandlerState = State<Arc<ServerState>>;

/// State that all requests share; nothing in it is locked across a wait.
#[derive(Debug)]
pub(super) struct ServerState {
    pub(super) config: Config,
    pub(super) model: Arc<Model>,
    pub(super) adapters: Adapters,
    /// `None` for synthetic tokens.
    pub(super) replay: Option<Arc<LoadedTrace>>,
    /// Tokens per block of the prefix cache.
    pub(super) block_size: u32,
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
    /// A player without cassettes, which writes the answers of semantic faults, once there was one and no other player is there.
    semantic_player: OnceLock<Arc<CassettePlayer>>,
    /// The MCP servers of its cassettes; `None` where it has none.
    pub(super) mcp: Option<Arc<McpService>>,
    /// Ids and seeds that were given out, from a random number on.
    given_out: AtomicU64,
    port: OnceLock<u16>,
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
    /// Whether the engine's first library took its first constraint.
    pub(super) has_first_library: OnceLock<bool>,
}

impl ServerState {
    /// The state of a server before its first request.
    pub(super) fn new(config: Config, loaded: LoadedSources) -> Result<Self, PlayError> {
        let replay = loaded.replay.clone();
        let model = Arc::new(Model::new(&config, loaded)?);
        let place = ReplicaContext { replica: 0, slowdown: Arc::default(), lateness: Arc::default() };
        Self::of(config, model, replay, place)
    }

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
        let block_size = block_size(&config, replay.as_deref());
        let start = |engine: &EngineConfig| {
            let name = model.first_name().to_owned();
            let pace = replay.as_ref().and_then(|replay| replay.pace);
            let mut resolved = engine.resolved(length, block_size, pace)?;
            resolved.kv_transfer = resolved.kv_transfer.map(|config| config.of_replica(replica, ranks.get()));
            let seed = config.seed.wrapping_add(u64::from(replica) * u64::from(ranks.get()));
            let faults = PublisherFaults { faults: Arc::clone(&config.faults), replica, rank: 0 };
            Engine::start(resolved, &metrics, &name, seed, (slowdown, &faults))
        };
        if let Some(player) = &config.cassette_player {
            introduce(player, &config, &model);
        }
        let adapters = Adapters::new(config.lora.as_ref(), config.server.runtime_lora_updating, &model)?;
        let state = Self {
            engine: config.engine.as_ref().map(start).transpose()?,
            metrics,
            overrides: Arc::default(),
            replica,
            model,
            adapters,
            replay,
            block_size,
            samples: Samples::default(),
            work: Work {
                turns: Turns::new(),
                drawing: DrawingPool::new(),
                memo: RequestCache::new(),
                has_first_library: OnceLock::new(),
            },
            lateness,
            dev: Arc::default(),
            kept: config.server.responses_store.then(Arc::default),
            semantic_player: OnceLock::new(),
            mcp: mcp_service(&config)?,
            given_out: AtomicU64::new(random()),
            ready: OnceLock::new(),
            port: OnceLock::new(),
            config,
        };
        state.set_fake_metrics().map_err(PlayError::FakeMetrics)?;
        Ok(state)
    }

    /// What writes the answers of semantic faults: the player of cassettes, or one without any, which is made when the first such fault is
    /// chosen and counts with the model's tokenizer.
    pub(super) fn semantic_player(&self) -> Result<Arc<CassettePlayer>, CassettePlayerError> {
        let config = &self.config;
        if let Some(player) = config.cassette_player.as_ref().or_else(|| self.semantic_player.get()) {
            return Ok(Arc::clone(player));
        }
        let (pacing, changed_pacing) = (config.pacing, Arc::clone(&config.changed_pacing));
        let player = CassettePlayer::new(PlayerConfig { pacing, changed_pacing, ..PlayerConfig::default() })?;
        player.count_with(self.model.tokenizer.clone());
        introduce(&player, config, &self.model);
        Ok(Arc::clone(self.semantic_player.get_or_init(|| player)))
    }

    /// Notes that the server begins to serve, from when its start-up counts.
    pub(super) fn begin(&self) {
        self.ready.get_or_init(|| Instant::now() + self.config.server.startup);
    }

    /// Takes note of its address; `None` where it has none.
    pub(super) fn serves_at(&self, address: Option<SocketAddr>) {
        if let Some(address) = address {
            let _noted_before = self.port.set(address.port());
        }
        self.engine.iter().for_each(|engine| engine.serves_at(address));
    }

    pub(super) fn port(&self) -> Option<u16> {
        self.port.get().copied()
    }

    /// Checks whether the model would be loaded by now.
    pub(super) fn is_ready(&self) -> bool {
        self.config.server.startup.is_zero() || self.ready.get().is_some_and(|ready| *ready <= Instant::now())
    }

    /// That of cassettes, of the trace, or of both.
    pub(super) fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        let player = self.config.cassette_player.clone().map(|player| player as Arc<dyn Ledger>);
        let replay = self.replay.clone().map(|replay| replay as Arc<dyn Ledger>);
        match (player, replay) {
            (Some(first), Some(behind)) => Some(Arc::new(Both { first, behind })),
            (player, replay) => player.or(replay),
        }
    }

    /// Weight of a request by the bytes of its body. A chat template of its own may do much in few bytes.
    pub(super) fn weight_of(&self, bytes: usize) -> usize {
        match self.config.request_templates {
            RequestTemplates::Trusted => bytes.max(INLINE_BYTES + 1),
            RequestTemplates::Refused => bytes,
        }
    }

    /// The admission of an answer of some choices; `None` where no endpoint could hold or end it.
    pub(super) fn hold(&self, id: String, choices: u32) -> Option<Hold> {
        if !self.config.server.dev_mode && !self.config.scale_out {
            return None;
        }
        Some(self.dev.gate.enter(id, choices, &self.metrics))
    }

    /// The choices of a recorded response among the engine's counters, and in the simulated engine where there is one.
    /// Errors: 503 where the engine has no room for more, 400 where the response takes too much memory.
    pub(super) fn response_metrics(
        &self,
        permit: AdmissionPermit,
        generated: &Generated,
        timing: RecordedTiming<'_>,
    ) -> Result<ResponseMetrics, ApiError> {
        let at = timing.arrived;
        let run = self.engine.as_ref().map(|engine| engine.run_recorded(generated, timing)).transpose()?.flatten();
        let limit = match generated.max_tokens {
            0 => self.model.max_model_len.saturating_sub(generated.prompt_tokens),
            limit => limit,
        };
        Ok(ResponseMetrics::of(&self.metrics, at, generated, limit, permit, run))
    }

    /// The session of the trace that a request names; `None` for the default one.
    /// Errors: 400 for a name that no session can have, and where there are too many sessions.
    pub(super) fn session(
        &self,
        extensions: &Extensions,
        headers: &HeaderMap,
    ) -> Result<Option<Arc<TraceSession>>, ApiError> {
        let Some(replay) = &self.replay else { return Ok(None) };
        let name = session_of(extensions, headers, &replay.secrets);
        let Some(name) = name.map_err(|wrong| ApiError::bad_request(wrong.to_string()))? else { return Ok(None) };
        let session = replay.account.named(&name, &replay.matcher);
        session.map(Some).map_err(|full| ApiError::bad_request(full.to_string()))
    }

    /// The rank of a request that names one; `None` where the server chooses.
    /// Errors: 400 for one that is not there. A server without an engine has one rank.
    pub(super) fn rank(&self, named: Option<i128>) -> Result<Option<usize>, ApiError> {
        let ranks = self.engine.as_ref().map_or(1, Engine::ranks);
        let Some(named) = named else { return Ok(None) };
        match usize::try_from(named) {
            Ok(rank) if rank < ranks => Ok(Some(rank)),
            _ => Err(ApiError::bad_request(format!("data_parallel_rank {named} is out of range [0, {ranks})."))),
        }
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
        let sent = headers.get(REQUEST_ID).cloned();
        let value = sent.or_else(|| HeaderValue::from_str(&format!("{}{}", self.fresh_id(), self.fresh_id())).ok())?;
        Some((REQUEST_ID, value))
    }
}

/// The MCP servers that a player of cassettes has.
fn mcp_service(config: &Config) -> Result<Option<Arc<McpService>>, PlayError> {
    let Some(player) = &config.cassette_player else { return Ok(None) };
    let access = McpAccess {
        hosts: config.mcp_hosts.clone(),
        origins: config.server.cors.origins.clone(),
        body_limit: config.body_limit,
    };
    Ok(Some(Arc::new(McpService::start(player, access)?)))
}

/// Gives a player the model's name, and its length where answers pass through an engine.
fn introduce(player: &CassettePlayer, config: &Config, model: &Model) {
    player.serve_as(model.first_name());
    if config.engine.is_some() {
        player.make_engine_inputs(model.max_model_len);
    }
}

/// Tokens per block of the prefix cache: as configured, as the recorded engine had it, or as the trace's prompts are hashed.
fn block_size(config: &Config, replay: Option<&LoadedTrace>) -> u32 {
    let recorded = || {
        let size = replay?.records.meta.extra.get("upstream")?.get("cache")?.get("block_size")?.as_u64()?;
        u32::try_from(size).ok().and_then(NonZeroU32::new)
    };
    let hashed = || u32::try_from(replay?.hasher.block_size()).ok();
    config.block_size.or_else(recorded).map(NonZeroU32::get).or_else(hashed).unwrap_or(BLOCK_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Source, Synthetic, TokenizerSource, load};

    fn state(cassette_player: Option<Arc<CassettePlayer>>) -> ServerState {
        let config = Config { source: Source::Synthetic(Synthetic::Random), cassette_player, ..Config::default() };
        let loaded = load::load(&config).unwrap();
        ServerState::new(config, loaded).unwrap()
    }

    #[test]
    fn the_recorded_engine_has_the_size_of_its_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.jsonl");
        let record = r#"{"prompt_tokens":4,"output_tokens":1,"ttft_ms":1.0,"output_token_ids":[7]}"#;
        for (meta, expected) in [
            (r#"{"block_size":32}"#, 32),
            (r#"{"block_size":32,"upstream":{"cache":{"block_size":128}}}"#, 128),
            (r#"{"block_size":32,"upstream":{"cache":{"block_size":0}}}"#, 32),
        ] {
            std::fs::write(&path, format!("{{\"meta\":{meta}}}\n{record}\n")).unwrap();
            let source = Source::Files(vec![path.clone()]);
            let mut config = Config { source, tokenizer: TokenizerSource::None, ..Config::default() };
            let loaded = load::load(&config).unwrap();
            let trace = loaded.replay.as_deref();
            assert_eq!(block_size(&config, trace), expected, "{meta}");
            config.block_size = NonZeroU32::new(64);
            assert_eq!(block_size(&config, trace), 64);
        }
    }

    #[test]
    fn the_recorded_engine_has_the_length_of_its_model() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.jsonl");
        for (upstream, prompt_tokens, typed, expected) in [
            ("{}", 4, None, 32_768),
            (r#"{"max_model_len":4096}"#, 4, None, 4096),
            (r#"{"max_model_len":4096}"#, 4, Some(512), 512),
            (r#"{"max_model_len":4096}"#, 5000, None, 5001),
        ] {
            let meta = format!(r#"{{"meta":{{"block_size":16,"upstream":{upstream}}}}}"#);
            let record = format!(
                r#"{{"prompt_tokens":{prompt_tokens},"output_tokens":1,"ttft_ms":1.0,"output_token_ids":[7]}}"#
            );
            std::fs::write(&path, format!("{meta}\n{record}\n")).unwrap();
            let source = Source::Files(vec![path.clone()]);
            let tokenizer = TokenizerSource::None;
            let config = Config { source, tokenizer, max_model_len: typed, ..Config::default() };
            assert_eq!(load::load(&config).unwrap().max_model_len, expected, "{upstream}");
        }
    }

    #[tokio::test]
    async fn a_player_of_semantic_faults_is_made_with_the_first_one_where_there_is_no_other() {
        let without = state(None);
        assert!(without.semantic_player.get().is_none());
        let first = without.semantic_player().unwrap();
        assert!(Arc::ptr_eq(&first, &without.semantic_player().unwrap()));
        let player = CassettePlayer::new(PlayerConfig::default()).unwrap();
        let with = state(Some(Arc::clone(&player)));
        assert!(Arc::ptr_eq(&player, &with.semantic_player().unwrap()) && with.semantic_player.get().is_none());
    }
}
