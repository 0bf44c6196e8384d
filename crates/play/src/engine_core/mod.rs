//! The engine core behind vLLM's own front end (`vllm serve`, `vllm-rs serve`), without a model.
//!
//! The front end renders, tokenizes, detokenizes and parses; what reaches this engine are ids and sampling parameters. Each request takes the
//! way of a request for tokens over HTTP from there on ([`request`]): it is matched with the records, or made up, and runs on the simulated
//! engine. What the steps of that give goes out in one message for each step and client, with the scheduler's figures ([`session`]). Calls of a front
//! end change the state that the development endpoints of the HTTP server change ([`utility`]).
//!
//! A front end that is not there yet is waited for, one that is gone is waited for again; its requests end with it. Each rank has its own
//! session. An engine that dies by a fault notifies its front end, as vLLM's does; one that is unreachable sends nothing more, as one that was killed.
//!
//! Limits: pooling, prompts as embeddings and lock step of experts are refused in words. Stop strings are the front end's to find.
//!
//! See docs/decisions/0135-the-engine-core-is-the-simulated-engine.md.

mod logprobs;
mod request;
mod running;
mod session;
mod utility;

use std::{future::Future, io, sync::Arc, time::Duration};

use engine_core::{handshake::ReadyResponse, layout::VersionFamily, msgpack::MsgpackValue, session::EngineSession};
use tokio::{
    runtime::{Builder, Runtime},
    select,
    sync::watch,
    task::{JoinSet, spawn_blocking},
    time::sleep,
};

use self::session::{FrontEnd, SessionEnd};
use super::{
    Player, ServerState,
    engine::Engine,
    error::PlayError,
    fleet::{Fleet, FleetScript, Life},
};

/// Time until a front end that could not be joined is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The front end's address, and what is sent to it.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineCoreConfig {
    /// `tcp://HOST:PORT`, where it waits for engines (vLLM's `--data-parallel-rpc-port`).
    pub front_end: String,
    /// The version of vLLM that this engine stands for, such as `0.32.0`.
    pub version: String,
    /// What is sent by position in that version.
    pub family: VersionFamily,
    /// What happens to it, as to the one replica of a fleet.
    pub script: FleetScript,
}

/// Reasons for which no front end is served.
#[derive(Debug, thiserror::Error)]
pub enum EngineCoreError {
    /// There is no engine.
    #[error("a front end of vLLM needs a simulated engine, and this server has none")]
    NoEngine,
    /// The system starts no thread.
    #[error("the thread of an engine core ended: {0}")]
    Thread(#[source] io::Error),
    /// The front end is one that this engine cannot serve.
    #[error("the front end at {at} cannot be served: {source}")]
    FrontEnd {
        /// Its address.
        at: String,
        /// Why.
        source: io::Error,
    },
    /// The engine does not start.
    #[error(transparent)]
    Start(#[from] PlayError),
}

/// A rank as its front end sees it.
#[derive(Debug, Clone)]
struct CoreRank {
    state: Arc<ServerState>,
    config: Arc<EngineCoreConfig>,
    rank: u16,
}

impl Player {
    /// Serves a front end of vLLM as its engine cores, one for each rank, until `shutdown` completes. Requests in progress are aborted then,
    /// and the front end is notified that the engine is dead. Faults of whole servers happen to it meanwhile, as to the one replica of a fleet.
    ///
    /// # Errors
    /// Where there is no simulated engine, no thread for it, or a front end that it cannot serve.
    pub async fn serve_engine_core(
        &self,
        config: EngineCoreConfig,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), EngineCoreError> {
        let fleet = Fleet::new(self.clone(), 1, config.script.clone())?;
        fleet.serve_front_end(Arc::new(config), shutdown).await
    }

    /// Serves the front end while the engine is alive.
    pub(super) async fn serve_ranks(
        &self,
        config: &Arc<EngineCoreConfig>,
        life: &watch::Receiver<Life>,
    ) -> Result<(), EngineCoreError> {
        let engine = self.state.engine.as_ref().ok_or(EngineCoreError::NoEngine)?;
        engine.serves_at(None);
        self.state.begin();
        let mut ranks = JoinSet::new();
        sleep(self.state.config.server.startup).await;
        for rank in (0..=u16::MAX).take(engine.ranks()) {
            let core = CoreRank { state: Arc::clone(&self.state), config: Arc::clone(config), rank };
            let life = life.clone();
            // What a step gives is collected in one place, on one thread.
            let runtime = Builder::new_current_thread().enable_all().build().map_err(EngineCoreError::Thread)?;
            ranks.spawn(spawn_blocking(move || core.run(&runtime, life)));
        }
        while let Some(ended) = ranks.join_next().await {
            ended.and_then(|ended| ended).map_err(|error| EngineCoreError::Thread(error.into()))??;
        }
        Ok(())
    }
}

impl CoreRank {
    fn run(self, runtime: &Runtime, life: watch::Receiver<Life>) -> Result<(), EngineCoreError> {
        runtime.block_on(self.serve(life))
    }

    /// Joins one front end after the other while it is alive.
    async fn serve(self, mut life: watch::Receiver<Life>) -> Result<(), EngineCoreError> {
        let (mut last_failure, ready) = (None, self.ready());
        loop {
            let joined = select! {
                joined = EngineSession::join(&self.config.front_end, self.rank, &ready) => joined,
                _ = life.wait_for(|life| *life != Life::Alive) => return Ok(()),
            };
            match joined {
                Ok(session) => {
                    last_failure = None;
                    tracing::info!(rank = self.rank, clients = session.clients(), "a front end has joined");
                    match FrontEnd::new(self.clone(), session).serve(&mut life).await {
                        SessionEnd::Stopped => return Ok(()),
                        SessionEnd::Gone(reason) => {
                            tracing::warn!(
                                rank = self.rank,
                                "the front end is gone ({reason}); the next one is waited for"
                            );
                        }
                    }
                }
                Err(source) if source.kind() == io::ErrorKind::Unsupported => {
                    return Err(EngineCoreError::FrontEnd { at: self.config.front_end.clone(), source });
                }
                Err(error) => {
                    let failure = error.to_string();
                    if last_failure.as_ref() != Some(&failure) {
                        let at = &self.config.front_end;
                        tracing::warn!(
                            "{at} is no front end of vLLM that waits for engines ({failure}); it is tried again"
                        );
                        last_failure = Some(failure);
                    }
                    select! {
                        () = sleep(RETRY) => {}
                        _ = life.wait_for(|life| *life != Life::Alive) => return Ok(()),
                    }
                }
            }
        }
    }

    fn engine(&self) -> Option<&Engine> {
        self.state.engine.as_ref()
    }

    /// Its description of itself.
    fn ready(&self) -> ReadyResponse {
        let (state, of) = (&self.state, |size: usize| u32::try_from(size).unwrap_or(u32::MAX));
        let ranks = u16::try_from(self.engine().map_or(1, Engine::ranks)).unwrap_or(u16::MAX);
        let config = self.engine().map(|engine| &engine.config);
        ReadyResponse {
            max_model_len: state.model.max_model_len,
            num_gpu_blocks: config.map_or(0, |config| config.kv_cache.num_gpu_blocks),
            block_size: config.map_or(0, |config| of(config.kv_cache.block_size)),
            vllm_version: self.config.version.clone(),
            data_parallel: (ranks, self.rank),
            max_num_seqs: config.map_or(0, |config| config.scheduler.max_num_seqs),
            max_num_batched_tokens: config.map_or(0, |config| config.scheduler.max_num_batched_tokens),
            instance_id: state.fresh_seed().to_string(),
            max_loras: state.config.lora.as_ref().map_or(0, |lora| of(lora.max_loras)),
            enable_sleep_mode: true,
            kv_events_config: self.kv_events(),
        }
    }

    /// `KVEventsConfig`, where events are published.
    fn kv_events(&self) -> MsgpackValue {
        let sources = self.engine().map(Engine::event_sources).unwrap_or_default();
        let Some(source) = sources.get(&u32::from(self.rank)) else { return MsgpackValue::Nil };
        MsgpackValue::map([
            ("enable_kv_cache_events", source.enable_kv_cache_events.into()),
            ("publisher", source.publisher.into()),
            ("endpoint", source.endpoint.as_str().into()),
            ("replay_endpoint", source.replay_endpoint.as_deref().into()),
            ("buffer_steps", source.buffer_steps.into()),
            ("hwm", source.hwm.into()),
            ("max_queue_size", source.max_queue_size.get().into()),
            ("topic", source.topic.as_str().into()),
        ])
    }
}
