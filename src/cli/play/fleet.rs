//! `play --replicas`: the ports of the replicas, and the script of their lives.

use std::{
    future::Future,
    net::SocketAddr,
    num::{NonZeroU32, NonZeroUsize},
    thread,
};

use crate::{
    base::bounded_read,
    cli::{
        failure::Failure,
        output,
        play::{args::PlayArgs, engine::SimulatedArgs, sources},
    },
    net::server::{self, DrainReport, Listener},
    play::{Fleet, FleetScript, Player},
};

/// Replicas, what happens to them, and the listeners of all but the first.
#[derive(Debug)]
pub(in crate::cli) struct FleetPlan {
    replicas: u32,
    script: FleetScript,
    /// Where each listens; none where they take ports after the first one's.
    addresses: Vec<String>,
    /// Whether each takes a free port.
    takes_free_ports: bool,
    others: Vec<Listener>,
}

impl FleetPlan {
    pub(in crate::cli) fn of(args: &PlayArgs) -> Result<Self, Failure> {
        let simulated = &args.simulated;
        let replicas = simulated.replicas();
        let flag = match (&simulated.script, simulated.replica_addresses.is_empty()) {
            (Some(_), _) => "--script",
            (None, false) => "--replica-addresses",
            (None, true) => "--replicas",
        };
        let refused = [
            (args.server.uds.is_some(), "--uds: replicas have ports"),
            (args.server.ssl_certfile.is_some(), "--ssl-certfile: replicas speak HTTP"),
            (sources::of(args).contains(&sources::SourceKind::Cassette), "a cassette, which needs no engine"),
        ];
        if (replicas > 1 || simulated.script.is_some())
            && let Some((_, what)) = refused.iter().find(|(is_given, _)| *is_given)
        {
            return Err(Failure::usage(format!("{flag} cannot be used with {what}")).hint("leave one of them out"));
        }
        let script = script(simulated)?;
        let takes_free_ports = args.address().ends_with(":0");
        let addresses = simulated.replica_addresses.clone();
        Ok(Self { replicas, script, addresses, takes_free_ports, others: Vec::new() })
    }

    pub(in crate::cli) async fn bind_others(&mut self, first: SocketAddr) -> Result<(), Failure> {
        for number in 1..self.replicas {
            let address = self.address(number, first)?;
            self.others.push(Listener::from(server::bind(&address).await?));
        }
        Ok(())
    }

    pub(in crate::cli) fn announce(&self) {
        for (number, listener) in (1..).zip(&self.others) {
            if let Some(bound) = listener.local_addr() {
                output::note(&format!("replica {number} on http://{bound}\n"));
            }
        }
    }

    /// Where a replica behind the first one listens.
    fn address(&self, number: u32, first: SocketAddr) -> Result<String, Failure> {
        let given = usize::try_from(number).ok().and_then(|number| self.addresses.get(number));
        if let Some(given) = given {
            return Ok(given.clone());
        }
        let after = || u16::try_from(u32::from(first.port()) + number).ok();
        let port = if self.takes_free_ports { Some(0) } else { after() };
        let port = port.ok_or_else(|| Failure::usage(format!("replica {number} would have a port beyond 65535")))?;
        Ok(SocketAddr::new(first.ip(), port).to_string())
    }

    /// Serves until `shutdown` completes, then drains.
    pub(in crate::cli) async fn serve(
        self,
        player: &Player,
        first: Listener,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<DrainReport, Failure> {
        let fleet = Fleet::new(player.clone(), self.replicas, self.script)?;
        let listeners = std::iter::once(first).chain(self.others).collect();
        Ok(fleet.serve(listeners, shutdown).await)
    }
}

/// Reads the script of the replicas' lives.
pub(in crate::cli) fn script(simulated: &SimulatedArgs) -> Result<FleetScript, Failure> {
    let Some(path) = &simulated.script else { return Ok(FleetScript::default()) };
    let failed = |error: std::io::Error| Failure::input(format!("cannot read {}: {error}", path.display()));
    let text = bounded_read::read_text(path).map_err(failed)?;
    FleetScript::parse(&text, simulated.replicas())
        .map_err(|error| Failure::input(format!("{}:{}: {}", path.display(), error.line, error.message)))
}

/// Threads for the connections of each replica: as many as the machine has cores, shared by all.
pub(in crate::cli) fn threads(replicas: u32) -> Option<NonZeroUsize> {
    let replicas = NonZeroU32::new(replicas).and_then(|count| NonZeroUsize::try_from(count).ok())?;
    let cores = thread::available_parallelism().ok()?;
    NonZeroUsize::new((cores.get() / replicas).max(1))
}
