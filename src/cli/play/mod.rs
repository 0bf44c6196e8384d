//! `play`: from its arguments to a running server, and its greeting.

mod answers;
pub(in crate::cli) mod args;
mod cassettes;
mod config;
mod engine;
pub(in crate::cli) mod engine_core;
mod faults;
mod fleet;
mod greeting;
mod kv_events;
mod kv_transfer;
mod lora;
pub(in crate::cli) mod model;
mod server;
pub(in crate::cli) mod sources;
mod speculative;
mod stats;

use std::{net::SocketAddr, path::Path, process::ExitCode, sync::Arc};

use crate::{
    base::one_line::counted,
    cli::{
        child::{self, ChildEnvironment},
        failure::Failure,
        loading,
        mcp::servers as mcp_servers,
        output,
        play::{
            args::PlayArgs,
            cassettes::Played,
            faults::FaultArgs,
            fleet::FleetPlan,
            greeting::{brief, reachable},
        },
        player::{
            admin::{self, AdminAt},
            conclude,
        },
        runtime,
        stepping::in_flags,
    },
    net::server::{self as http, Listener},
    play::{Config, EngineError, KvEventsError, PlayError, Player, ServerFaults},
    recording::cassette::FaultReader,
    replay::account::Concern,
    text::prompt::HashKey,
};

/// Serves clients, or a front end of vLLM.
pub(in crate::cli) fn run(args: PlayArgs) -> Result<ExitCode, Failure> {
    match engine_core::config(&args)? {
        Some(engine_core) => engine_core::run(args, engine_core),
        None => serve(args),
    }
}

/// Serves clients until a signal, or the end of the wrapped command.
fn serve(mut args: PlayArgs) -> Result<ExitCode, Failure> {
    let address = args.address();
    child::needs_an_address(&args.cassettes.command, args.server.uds.as_deref())?;
    child::needs_plain_http(args.cassettes.block_network, args.server.ssl_certfile.is_some())?;
    config::choose_pace(&mut args);
    let (admin_at, concerns) = (admin_at(&args)?, concerns(&args));
    let played = Played::new(&mut args, &admin_at)?;
    let mut fleet = FleetPlan::of(&args)?;
    let command = std::mem::take(&mut args.cassettes.command);
    let uds = args.server.uds.clone();
    let key = args.server.keys().into_iter().next();
    let tls = args.server.tls().map_err(Failure::input)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let (cassettes, stats) = (args.cassettes.clone(), args.stats_json.clone());
    cassettes.report.as_deref().map_or(Ok(()), conclude::writable)?;
    let fault_args = args.faults.clone();
    let config = configuration(args, played.as_ref(), &admin_at)?;
    let (faults, read_again) = (Arc::clone(&config.faults), Arc::clone(&config.faults));
    let progress = Arc::clone(&config.progress);
    let player = loading::watched(&progress, || Player::load(config))?;
    http::raise_descriptor_limit();
    runtime::run(|shutdown| async move {
        runtime::outlive_file_limits();
        runtime::at_hangups(move || reload(&fault_args, &read_again))?;
        let admin_api = admin::answer(&admin_at, |access| player.admin_pages(access)).await?;
        let mut child = None;
        let cassette_player = played.as_ref().map(|played| &*played.cassette_player);
        answers::keep_reading(cassette_player)?;
        let listener = match &uds {
            Some(path) => bind_unix(path).await?,
            None => {
                let listener = http::bind(&address).await?;
                let local = listener.local_addr().map_err(Failure::environment)?;
                fleet.bind_others(local).await?;
                greet(&command, scheme, local, &player);
                fleet.announce();
                let root = format!("{scheme}://{}", reachable(local));
                let served = cassette_player.into_iter();
                served.for_each(|it| admin::serves_at(it, (Some(local), &root), &admin_at, admin_api.as_ref()));
                let of_cassettes = cassette_player.map(|player| (player, &cassettes));
                let key = key.as_deref();
                let environment = ChildEnvironment { root: &root, key, cassettes: of_cassettes, ..Default::default() };
                child = child::start(&command, &environment)?;
                Listener::from(listener)
            }
        };
        let listener = if let Some(tls) = tls { listener.with_tls(tls) } else { listener };
        Played::begin(played.as_ref()).await?;
        admin::announce(admin_api.as_ref(), player.ledger().map_or("/vcr/faults", |_| "/vcr/report"));
        let mut code = None;
        let stop = async { code = child::until(child.as_mut(), shutdown).await };
        let drained = fleet.serve(&player, listener, stop).await?;
        conclude::note_cut(drained.cut);
        player.finish_mcp().iter().for_each(|recorded| output::warn(&mcp_servers::missing(recorded)));
        stats::end(command.is_empty(), stats.as_deref(), player.lateness())?;
        let (account, faults) = (player.ledger(), faults.current());
        let ended = conclude::ended(cassette_player, account.as_deref(), &faults, (&cassettes, &concerns))?;
        Ok(ended.exit_code(code))
    })
}

/// The configuration of the server, with its cassettes.
fn configuration(args: PlayArgs, played: Option<&Played>, admin_at: &AdminAt) -> Result<Config, Failure> {
    let hash_key = args.hash_key_file.as_deref().map(HashKey::read).transpose()?;
    let cassette_player = played.map(|played| Arc::clone(&played.cassette_player));
    let changed_pacing = played.map(|it| it.cassette_player.config().changed_pacing.clone()).unwrap_or_default();
    let admin = admin_at.beside();
    let config = Config { hash_key, cassette_player, changed_pacing, admin, ..config::config(args)? };
    if let Some(player) = &config.cassette_player {
        let reader: Arc<dyn FaultReader> = Arc::clone(&config.faults) as _;
        player.give_faults(&reader)?;
    }
    Ok(config)
}

/// Reads the files of faults again; where one is wrong, all stays as it is.
fn reload(args: &FaultArgs, faults: &ServerFaults) {
    match faults::lines(args) {
        Ok(lines) => {
            tracing::info!("SIGHUP: read {} again", counted(lines.faults.len(), "fault"));
            faults.reload(lines);
        }
        Err(failure) => tracing::error!("SIGHUP: {}; the faults stay as they are", failure.text()),
    }
}

/// Prints where the server is. Beside what a command prints, the address and the source are enough.
fn greet(command: &[String], scheme: &str, local: SocketAddr, player: &Player) {
    let text = if command.is_empty() { greeting::greeting } else { brief };
    output::note(&text(scheme, local, &player.serving()));
}

/// Binds the socket of the file system, where one was named.
async fn bind_unix(path: &Path) -> Result<Listener, Failure> {
    let listener = http::bind_unix(path).await?;
    output::note(&format!("play on unix:{}\n", path.display()));
    Ok(Listener::from(listener))
}

fn admin_at(args: &PlayArgs) -> Result<AdminAt, Failure> {
    // Only this machine can reach a Unix socket.
    let is_core = args.simulated.engine_core.is_some();
    if is_core && args.admin_listen.is_none() {
        return Ok(AdminAt::Nowhere);
    }
    let address = if args.server.uds.is_some() { "localhost:0".to_owned() } else { args.address() };
    admin::at(&args.cassettes, args.admin_listen.as_deref(), &address)
}

/// Reads the events that end the program with 1. The built-in trace is for trying things out, so its unconsumed records are no failure.
fn concerns(args: &PlayArgs) -> Vec<Concern> {
    let mut concerns = conclude::concerns(&args.cassettes.fail_on, args.strict);
    if args.cassettes.fail_on.is_empty() && sources::of(args) == [sources::SourceKind::BuiltIn] {
        concerns.retain(|concern| *concern != Concern::Unconsumed);
    }
    concerns
}

impl From<PlayError> for Failure {
    fn from(error: PlayError) -> Self {
        match error {
            PlayError::Engine(EngineError::Scheduler(error)) => Self::input(format!("--engine: {}", in_flags(&error))),
            PlayError::Engine(EngineError::KvEvents(KvEventsError::Endpoint(_))) => Self::usage(error),
            error => Self::input(error),
        }
    }
}
