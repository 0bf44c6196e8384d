//! `play`: from its arguments to a running server, and its greeting.

use std::{net::SocketAddr, path::Path, process::ExitCode, sync::Arc};

use super::{
    args::PlayArgs,
    cassette_admin::{self, AdminAt},
    child, conclude,
    failure::{Exit, Failure},
    loading, mcp_tapped, output,
    play_cassettes::Played,
    play_config,
    play_fleet::FleetPlan,
    play_greeting::{brief, greeting, reachable},
    play_server, play_stats, play_synthetic, runtime, signals, sources,
};
use crate::{
    net::server::{self, Listener},
    play::{Config, PlayError, Player},
    replay::account::Concern,
    text::prompt::HashKey,
};

/// Serves until a signal, or the end of the wrapped command.
///
/// # Errors
/// When the trace, its tokenizer or the address cannot be had.
pub(super) fn run(mut args: PlayArgs) -> Result<ExitCode, Failure> {
    let address = args.address();
    child::needs_an_address(&args.cassettes.command, args.server.uds.as_deref())?;
    child::needs_plain_http(args.cassettes.block_network, args.server.ssl_certfile.is_some())?;
    play_synthetic::refuse(&args)?;
    play_config::choose_pace(&mut args);
    let (admin, concerns) = (admin(&args)?, concerns(&args));
    let played = Played::new(&mut args, &admin)?;
    let mut fleet = FleetPlan::of(&args)?;
    let command = std::mem::take(&mut args.cassettes.command);
    let uds = args.server.uds.clone();
    let key = play_server::keys(&args.server).into_iter().next();
    let tls = play_server::tls(&args.server).map_err(|error| Failure::new(Exit::BadInput, error))?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let cassette_player = played.as_ref().map(|played| Arc::clone(&played.cassette_player));
    let (cassettes, stats) = (args.cassettes.clone(), args.stats_json.clone());
    let hash_key = args.hash_key_file.as_deref().map(HashKey::read).transpose()?;
    cassettes.report.as_deref().map_or(Ok(()), conclude::writable)?;
    let config = Config { hash_key, cassette_player, admin: admin.beside(), ..play_config::config(args)? };
    let progress = Arc::clone(&config.progress);
    let player = loading::watched(&progress, || Player::load(config))?;
    server::raise_descriptor_limit();
    runtime::run(|shutdown| async move {
        signals::outlive_file_limits();
        let admin_api = match player.ledger() {
            Some(ledger) => cassette_admin::answer(&admin, || ledger).await?,
            None => None,
        };
        let mut child = None;
        let listener = match &uds {
            Some(path) => bind_unix(path).await?,
            None => {
                let listener = server::bind(&address).await?;
                let local = listener.local_addr().map_err(|error| Failure::new(Exit::Environment, error))?;
                fleet.bind_others(local).await?;
                greet(&command, scheme, local, &player);
                fleet.announce();
                let root = format!("{scheme}://{}", reachable(local));
                played.iter().for_each(|played| played.serves_at(local, &root, &admin, admin_api.as_ref()));
                let around = played.as_ref().map(|played| played.around_command(&cassettes)).unwrap_or_default();
                child = child::start(&command, &child::Environment { root: &root, key: key.as_deref(), around })?;
                Listener::from(listener)
            }
        };
        let listener = match tls {
            Some(tls) => listener.with_tls(tls),
            None => listener,
        };
        Played::begin(played.as_ref()).await?;
        cassette_admin::announce(admin_api.as_ref());
        let mut code = None;
        let stop = async { code = child::until(child.as_mut(), shutdown).await };
        let drained = fleet.serve(&player, listener, stop).await?;
        conclude::note_cut(drained.cut);
        player.finish_mcp().iter().for_each(|recorded| output::warn(&mcp_tapped::missing(recorded)));
        play_stats::end(command.is_empty(), stats.as_deref(), player.lateness())?;
        let cassette_player = played.as_ref().map(|played| &*played.cassette_player);
        let ended = conclude::ended(cassette_player, player.ledger().as_deref(), &cassettes, &concerns)?;
        Ok(ended.exit_code(code))
    })
}

/// Prints where the server is. Beside what a command prints, the address and the source are enough.
fn greet(command: &[String], scheme: &str, local: SocketAddr, player: &Player) {
    let text = if command.is_empty() { greeting } else { brief };
    output::note(&text(scheme, local, &player.serving()));
}

/// Binds the socket of the file system, where one was named.
async fn bind_unix(path: &Path) -> Result<Listener, Failure> {
    let listener = server::bind_unix(path).await?;
    output::note(&format!("play on unix:{}\n", path.display()));
    Ok(Listener::from(listener))
}

/// Reads the address of `/vcr/…`.
///
/// # Errors
/// When others would reach them without a token.
fn admin(args: &PlayArgs) -> Result<AdminAt, Failure> {
    // Only this machine can reach a Unix socket.
    let address = if args.server.uds.is_some() { "localhost:0".to_owned() } else { args.address() };
    cassette_admin::at(&args.cassettes, args.admin_listen.as_deref(), &address)
}

/// Reads the events that end the program with 1. The built-in trace is for trying things out, so its unconsumed records are no failure.
fn concerns(args: &PlayArgs) -> Vec<Concern> {
    let mut concerns = conclude::concerns(&args.cassettes.fail_on, args.strict);
    if args.cassettes.fail_on.is_empty() && sources::of(args) == [sources::Kind::BuiltIn] {
        concerns.retain(|concern| *concern != Concern::Unconsumed);
    }
    concerns
}

impl From<PlayError> for Failure {
    fn from(error: PlayError) -> Self {
        Self::new(Exit::BadInput, error)
    }
}
