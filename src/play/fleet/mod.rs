//! Several servers in one process, each with an engine, a KV cache and metrics of its own, and the script of their lives.
//!
//! All replicas answer from the same records, of which each is consumed once by whichever replica is asked, and one account is kept of them.
//! A replica that dies is dropped with everything that it has: its connections are cut, its port refuses new ones. When it starts
//! again it is another server on the same port, with an empty cache and metrics at zero.
//!
//! Limits: replicas share the records, the model and the process; a port that another program takes while its replica is dead
//! stays lost.
//!
//! See docs/decisions/0076-replicas-in-one-process.md.

mod script;

use std::{future::Future, net::SocketAddr, sync::Arc};

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until},
};

pub use self::script::{FleetScript, ScriptError};
use self::script::{ReplicaChange, ScriptEvent};
use crate::{
    base::stats::Lateness,
    net::server::{self, DrainReport, Listener},
    play::{
        Config, PlayError, Player,
        engine::{Engine, Slowdown},
        load::{LoadedTrace, model::Model},
        state::{ReplicaContext, ServerState},
    },
};

/// Servers of the same records with engines of their own.
#[derive(Debug)]
pub struct Fleet {
    replicas: Vec<Replica>,
    script: FleetScript,
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

/// What servers are made of: all that they share.
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
    ///
    /// # Errors
    /// When the engine cannot start.
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
}

/// Whether a replica is to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Alive,
    Dead,
    /// The program ends.
    Over,
}

impl Fleet {
    /// So many servers, of which the first one is given.
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
        let mut replicas = vec![Replica { number: 0, player: first, slowdown, origin }];
        replicas.extend(others);
        Ok(Self { replicas, script })
    }

    /// Serves each replica on its listener until `shutdown` completes, then drains.
    pub async fn serve(self, listeners: Vec<Listener>, shutdown: impl Future<Output = ()>) -> DrainReport {
        let start = Instant::now();
        let mut lives = Vec::new();
        let mut serving = JoinSet::new();
        let slowdowns: Vec<Arc<Slowdown>> = self.replicas.iter().map(|replica| Arc::clone(&replica.slowdown)).collect();
        for (replica, listener) in self.replicas.into_iter().zip(listeners) {
            let (life, lived) = watch::channel(Life::Alive);
            lives.push(life);
            serving.spawn(replica.live(listener, lived));
        }
        let follow = async {
            for event in &self.script.events {
                sleep_until(start + event.at).await;
                apply(event, &lives, &slowdowns);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = shutdown => {}
            () = follow => {}
        }
        for life in &lives {
            life.send_replace(Life::Over);
        }
        let mut cut = 0;
        while let Some(ended) = serving.join_next().await {
            match ended {
                Ok(report) => cut += report.cut,
                Err(error) => tracing::error!(%error, "a replica failed"),
            }
        }
        DrainReport { cut }
    }
}

/// Lets an event happen.
fn apply(event: &ScriptEvent, lives: &[watch::Sender<Life>], slowdowns: &[Arc<Slowdown>]) {
    tracing::warn!("{event}");
    let life = lives.get(event.replica);
    match event.change {
        ReplicaChange::Die => life.map(|life| life.send_replace(Life::Dead)),
        ReplicaChange::Start => life.map(|life| life.send_replace(Life::Alive)),
        ReplicaChange::Slower(factor) => {
            slowdowns.iter().skip(event.replica).take(1).for_each(|slowdown| slowdown.set(factor));
            None
        }
    };
}

impl Replica {
    /// Serves while it is to be there. The report is that of the last server.
    async fn live(self, listener: Listener, mut life: watch::Receiver<Life>) -> DrainReport {
        let Self { number, player, slowdown, origin } = self;
        let address = listener.local_addr();
        let mut first = Some((player, listener));
        loop {
            let ready = match (first.take(), address) {
                (None, Some(address)) => again(&origin, number, address, &slowdown).await,
                (first, _) => first,
            };
            if let Some((player, listener)) = ready {
                let mut until_over = life.clone();
                let over = async move { until(&mut until_over, |life| life == Life::Over).await };
                let serving = player.serve(listener, over);
                // Dropped where it dies: nothing is drained, and its requests are aborted.
                tokio::select! {
                    report = serving => return report,
                    () = until(&mut life, |life| life == Life::Dead) => {}
                }
                // Its caller may still hold the player, and KV events their port.
                player.state.engine.iter().for_each(Engine::end);
            } else {
                until(&mut life, |life| life != Life::Alive).await;
            }
            until(&mut life, |life| life != Life::Dead).await;
            if *life.borrow() == Life::Over {
                return DrainReport::default();
            }
        }
    }
}

/// A new server on the same port; `None` where there is none to be had.
async fn again(
    origin: &ServerParts,
    number: u32,
    address: SocketAddr,
    slowdown: &Arc<Slowdown>,
) -> Option<(Player, Listener)> {
    let listener = server::bind(&address.to_string()).await;
    let listener = listener.map_err(|error| tracing::error!("replica {number} cannot start again: {error}")).ok()?;
    let player = origin.server(number, slowdown);
    let player = player.map_err(|error| tracing::error!("replica {number} cannot start again: {error}")).ok()?;
    Some((player, listener.into()))
}

/// Waits for a life; for ever once nothing changes it any more.
async fn until(life: &mut watch::Receiver<Life>, is_there: impl Fn(Life) -> bool) {
    if life.wait_for(|life| is_there(*life)).await.is_err() {
        std::future::pending::<()>().await;
    }
}
