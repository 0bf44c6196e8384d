//! Several servers in one process, each with an engine, a KV cache and metrics of its own, and the script of their lives.
//!
//! All replicas answer from the same records, of which each is consumed once, by the replica that gets the request, in one account.
//! A replica that dies is dropped with everything that it has: its connections are cut, its port refuses new ones. When it starts
//! again it is another server on the same port, with an empty cache and metrics at zero. One that nobody reaches loses its connections
//! and its port only.
//!
//! What happens to them are faults of whole servers ([`ServerFaults`]), which may be replaced while they run; a script is a list of them.
//!
//! Limits: replicas share the records, the model and the process; a port that another program takes while its replica is dead
//! stays lost.
//!
//! See docs/decisions/0076-replicas-in-one-process.md.

mod script;

use std::{collections::HashSet, future::Future, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

pub use self::script::{FleetScript, ScriptError};
use crate::{
    Config, EngineCoreConfig, EngineCoreError, PlayError, Player, ServerFaults,
    engine::{Engine, Slowdown},
    load::{model::Model, trace::LoadedTrace},
    state::{ReplicaContext, ServerState},
};
use ::faults::{FaultSet, ServedNames, ServerCondition};
use base::stats::Lateness;
use net::server::{DrainReport, Listener, ListenerPlace};

/// Time after which a port is tried again that its last listener has not left yet, and how often.
const RETRY: Duration = Duration::from_millis(20);
const MOST_TRIES: u32 = 100;

/// Servers of the same records with engines of their own.
#[derive(Debug)]
pub struct Fleet {
    replicas: Vec<Replica>,
    script: FleetScript,
    faults: Arc<ServerFaults>,
}

/// One of them, alive or dead.
#[derive(Debug)]
struct Replica {
    number: u32,
    /// The server that starts.
    player: Player,
    slowdown: Arc<Slowdown>,
    origin: Arc<ServerParts>,
}

/// Parts that all servers share.
#[derive(Debug)]
struct ServerParts {
    config: Config,
    model: Arc<Model>,
    replay: Option<Arc<LoadedTrace>>,
    lateness: Arc<Lateness>,
}

impl ServerParts {
    fn of(player: &Player) -> Self {
        let ServerState { config, model, replay, lateness, .. } = &*player.state;
        let (model, replay, lateness) = (Arc::clone(model), replay.clone(), Arc::clone(lateness));
        Self { config: config.clone(), model, replay, lateness }
    }

    /// A server with an engine, a cache and metrics of its own. Each replica draws other step times.
    fn server(&self, number: u32, slowdown: &Arc<Slowdown>) -> Result<Player, PlayError> {
        let place =
            ReplicaContext { replica: number, slowdown: Arc::clone(slowdown), lateness: Arc::clone(&self.lateness) };
        let mut config = self.config.clone();
        let ranks = config.data_parallel_size.get();
        let kv_events = config.engine.as_mut().and_then(|engine| engine.kv_events.as_mut());
        kv_events.into_iter().for_each(|kv_events| kv_events.port_offset = number.saturating_mul(ranks));
        let state = ServerState::of(config, Arc::clone(&self.model), self.replay.clone(), place)?;
        Ok(Player { state: Arc::new(state) })
    }

    /// Returns true if a server that has died can be served again as it is: one of cassettes without an engine.
    fn has_nothing_cold(&self) -> bool {
        self.config.cassette_player.is_some() && self.config.engine.is_none()
    }

    /// A server in place of one that is dead; `None` where there is none to be had.
    fn again(&self, number: u32, slowdown: &Arc<Slowdown>) -> Option<Player> {
        let player = self.server(number, slowdown);
        player.map_err(|error| tracing::error!("replica {number} cannot start again: {error}")).ok()
    }
}

/// Desired state of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    Alive,
    /// It is there, and nobody reaches it.
    Unreachable,
    Dead,
    /// The program ends.
    Over,
}

impl Fleet {
    /// So many servers, of which the first one is given. The script is added to its faults.
    ///
    /// # Errors
    /// When an engine cannot start.
    pub fn new(first: Player, replicas: u32, script: FleetScript) -> Result<Self, PlayError> {
        let origin = Arc::new(ServerParts::of(&first));
        let others = (1..replicas).map(|number| {
            let slowdown = Arc::<Slowdown>::default();
            let player = origin.server(number, &slowdown)?;
            Ok(Replica { number, player, slowdown, origin: Arc::clone(&origin) })
        });
        let others = others.collect::<Result<Vec<Replica>, PlayError>>()?;
        let slowdown = first.state.engine.as_ref().map(|engine| Arc::clone(&engine.slowdown)).unwrap_or_default();
        let mut replicas = vec![Replica { number: 0, player: first, slowdown, origin: Arc::clone(&origin) }];
        replicas.extend(others);
        Ok(Self { replicas, script, faults: Arc::clone(&origin.config.faults) })
    }

    /// What can be of its requests. Cassettes and adapters answer for other models too.
    fn served_names(&self) -> ServedNames {
        let state = self.replicas.first().map(|replica| &replica.player.state);
        let takes_others = |state: &ServerState| {
            let config = &state.config;
            config.cassette_player.is_some() || config.lora.is_some() || config.server.runtime_lora_updating
        };
        let models = state.filter(|state| !takes_others(state)).map(|state| state.model.names.clone());
        let engine = state.and_then(|state| state.config.engine.as_ref());
        let publishes = engine.is_some_and(|engine| engine.kv_events.is_some());
        let replicas = u32::try_from(self.replicas.len()).unwrap_or(u32::MAX);
        ServedNames { models, replicas, publishes, is_engine_core: false }
    }

    /// Serves each replica on its listener until `shutdown` completes, then drains. The times of its faults begin now.
    pub async fn serve(self, listeners: Vec<Listener>, shutdown: impl Future<Output = ()> + Send) -> DrainReport {
        let mut listeners = listeners.into_iter();
        let serving = |replica: Replica, life| listeners.next().map(|listener| replica.live(listener, life));
        let served = self.served_names();
        let reports = self.live(served, serving, shutdown).await;
        DrainReport { cut: reports.iter().map(|report| report.cut).sum() }
    }

    /// Lets the first replica be the engine core of a front end until `shutdown` completes. The times of its faults begin now.
    /// Errors: where it has no engine, or no thread for it.
    pub(crate) async fn serve_front_end(
        self,
        config: Arc<EngineCoreConfig>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), EngineCoreError> {
        let serving = |replica: Replica, life| Some(replica.live_behind(Arc::clone(&config), life));
        let served = ServedNames { is_engine_core: true, ..self.served_names() };
        self.live(served, serving, shutdown).await.into_iter().collect()
    }

    /// Starts each replica, and lets its faults happen until `shutdown` completes or all replicas have ended. Gives what they end with.
    async fn live<F>(
        self,
        served: ServedNames,
        mut serving: impl FnMut(Replica, watch::Receiver<Life>) -> Option<F>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Vec<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.faults.begin(self.script.faults(), served);
        let (mut controls, mut running) = (Vec::new(), JoinSet::new());
        for replica in self.replicas {
            let (life, lived) = watch::channel(Life::Alive);
            let (slowdown, has_engine) = (Arc::clone(&replica.slowdown), replica.player.state.engine.is_some());
            if let Some(replica) = serving(replica, lived) {
                controls.push(ReplicaControl { life, slowdown, has_engine });
                running.spawn(replica);
            }
        }
        let all_ended = async {
            let mut ended = Vec::new();
            while let Some(end) = running.join_next().await {
                end.map_or_else(|error| tracing::error!(%error, "a replica failed"), |end| ended.push(end));
            }
            ended
        };
        let mut all_ended = std::pin::pin!(all_ended);
        tokio::select! {
            () = shutdown => {}
            () = follow(&self.faults, &controls) => {}
            ended = &mut all_ended => return ended,
        }
        for control in &controls {
            control.life.send_replace(Life::Over);
        }
        all_ended.await
    }
}

/// State of a replica that is changed from outside.
#[derive(Debug)]
struct ReplicaControl {
    life: watch::Sender<Life>,
    slowdown: Arc<Slowdown>,
    has_engine: bool,
}

/// Time that a replica has to see a change before the next one.
const SEEN_WITHIN: Duration = Duration::from_millis(5);

/// Lets the faults of whole servers happen, for ever.
async fn follow(faults: &ServerFaults, controls: &[ReplicaControl]) {
    let mut changes = faults.changes();
    loop {
        changes.borrow_and_update();
        let set = faults.current();
        let mut begun: HashSet<(u32, usize)> = HashSet::new();
        let mut at = Instant::now();
        loop {
            for (replica, control) in (0..).zip(controls) {
                let (condition, active) = set.of_server(replica, at);
                for number in active {
                    if begun.insert((replica, number)) {
                        control.begin(&set, number, replica);
                    }
                }
                control.apply(condition);
            }
            let until_next = async {
                match set.next_change(at) {
                    // None is left out where a busy machine was late for several.
                    Some(next) => {
                        sleep_until(next.max(Instant::now() + SEEN_WITHIN)).await;
                        next
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                next = until_next => at = next,
                changed = changes.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return std::future::pending().await,
                },
            }
        }
    }
}

impl ReplicaControl {
    /// Notes and prints a fault that begins, where it can happen.
    fn begin(&self, set: &FaultSet, number: usize, replica: u32) {
        let fault = set.counts().nth(number).map(|(fault, _)| fault);
        match fault.filter(|fault| fault.needs_engine() && !self.has_engine) {
            Some(fault) => tracing::warn!("`{fault}` is about a simulated engine: nothing happens without --engine"),
            None => tracing::warn!("fault: --fault '{}'", set.began(number, replica)),
        }
    }

    fn apply(&self, condition: ServerCondition) {
        let life = match condition {
            ServerCondition { is_dead: true, .. } => Life::Dead,
            ServerCondition { refuses: true, .. } => Life::Unreachable,
            _ => Life::Alive,
        };
        self.life.send_if_modified(|now| std::mem::replace(now, life) != life);
        self.slowdown.set(condition.slower);
        self.slowdown.exhaust(condition.is_exhausted);
    }
}

impl Replica {
    /// Serves while it is to be there. The report is that of the last server.
    async fn live(self, listener: Listener, mut life: watch::Receiver<Life>) -> DrainReport {
        let Self { number, player, slowdown, origin } = self;
        let place = listener.place();
        let (mut alive, mut first) = (Some(player), Some(listener));
        loop {
            let listener = match (first.take(), &place) {
                (None, Some(place)) => reopened(place, number, &life).await,
                (first, _) => first,
            };
            let player = match alive.take() {
                None if listener.is_some() => origin.again(number, &slowdown),
                alive => alive,
            };
            match (player, listener) {
                (Some(player), Some(listener)) => {
                    let mut until_over = life.clone();
                    let over = async move { until(&mut until_over, |life| life == Life::Over).await };
                    let serving = player.serve(listener, over);
                    // Dropped where it dies or nobody reaches it: nothing is drained, and its requests are aborted.
                    tokio::select! {
                        report = serving => return report,
                        () = until(&mut life, |life| matches!(life, Life::Dead | Life::Unreachable)) => {}
                    }
                    alive = Some(player);
                }
                (player, _) => {
                    alive = player;
                    until(&mut life, |life| life != Life::Alive).await;
                }
            }
            loop {
                let now = *life.borrow_and_update();
                match now {
                    Life::Over => return DrainReport::default(),
                    Life::Alive => break,
                    // Its caller may still hold the player, and KV events their port.
                    Life::Dead if origin.has_nothing_cold() => {}
                    Life::Dead => {
                        alive.take().iter().for_each(|player| player.state.engine.iter().for_each(Engine::end))
                    }
                    Life::Unreachable => {}
                }
                until(&mut life, |life| life != now).await;
            }
        }
    }

    /// Is the engine core of a front end while it is to be there; after it was dead it is another one.
    async fn live_behind(
        self,
        config: Arc<EngineCoreConfig>,
        mut life: watch::Receiver<Life>,
    ) -> Result<(), EngineCoreError> {
        let Self { number, mut player, slowdown, origin } = self;
        loop {
            player.serve_ranks(&config, &life).await?;
            let now = *life.borrow_and_update();
            match now {
                Life::Over => return Ok(()),
                Life::Dead => player.state.engine.iter().for_each(Engine::end),
                Life::Alive | Life::Unreachable => {}
            }
            until(&mut life, |life| matches!(life, Life::Alive | Life::Over)).await;
            if now == Life::Dead && *life.borrow() == Life::Alive {
                player = origin.server(number, &slowdown)?;
            }
        }
    }
}

/// A listener at the same place, as soon as the one before has left it; `None` where there is none to be had.
async fn reopened(place: &ListenerPlace, number: u32, life: &watch::Receiver<Life>) -> Option<Listener> {
    let mut tries = 0;
    loop {
        match place.listen().await {
            Ok(listener) => return Some(listener),
            Err(error) if tries == MOST_TRIES || *life.borrow() != Life::Alive => {
                tracing::error!("replica {number} cannot start again: {error}");
                return None;
            }
            Err(_) => sleep(RETRY).await,
        }
        tries += 1;
    }
}

/// Waits until the state is one of these; for ever once nothing changes it any more.
async fn until(life: &mut watch::Receiver<Life>, is_there: impl Fn(Life) -> bool) {
    if life.wait_for(|life| is_there(*life)).await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::FaultLines;

    #[tokio::test(start_paused = true)]
    async fn a_busy_machine_that_is_late_for_two_changes_leaves_none_out() {
        let faults = vec!["die where from=500ms until=600ms".parse().unwrap()];
        let faults = ServerFaults::new(FaultLines { faults, ..FaultLines::default() }, false);
        let (life, mut lived) = watch::channel(Life::Alive);
        let controls = [ReplicaControl { life, slowdown: Arc::default(), has_engine: false }];
        let seen = async {
            let mut seen = Vec::new();
            while seen.len() < 2 {
                lived.changed().await.unwrap();
                seen.push(*lived.borrow_and_update());
            }
            seen
        };
        let late = async {
            tokio::time::advance(Duration::from_secs(1)).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            // The time passes once the faults are followed.
            biased;
            seen = seen => assert_eq!(seen, [Life::Dead, Life::Alive]),
            () = follow(&faults, &controls) => {}
            () = late => {}
        }
    }
}
