//! `tap` where what is recorded is a cassette.
//!
//! Limits: what belongs to traces is refused here (rotation, hashes, text without requests).

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use crate::{
    cli::{
        child,
        failure::Failure,
        mcp::servers,
        output,
        player::{
            self, PlayerSettings,
            admin::{self, AdminApi, AdminAt},
            args::{CassetteArgs, DEFAULT_FILE, ModeArg},
            conclude::{self, PlayerEnd},
        },
        runtime,
        tap::{args::TapArgs, open, playback::McpPlayed, refuse_circle, refuse_remote, setup},
    },
    recording::cassette::{CassetteError, FaultReader, RecordFault},
    replay::{
        account::{self, Ledger},
        player::{CassettePlayer, Fork, PlayerConfig, ServerEnvironment, StartedServer},
    },
    tap::{Setup, Tap, mcp::stand_for},
};

/// Proxies, plays and records in the chosen mode, until a signal or until the command ends.
pub(in crate::cli) fn run(args: TapArgs) -> Result<ExitCode, Failure> {
    serve(args, None, |_, end, code| Ok(end.exit_code(code)))
}

/// Does the same, and leaves the cassette where the fork has its own; `conclude` has the exit code of the command that ran.
pub(in crate::cli) fn serve(
    mut args: TapArgs,
    fork: Option<(Fork, PathBuf)>,
    conclude: impl FnOnce(&CassettePlayer, PlayerEnd, Option<u8>) -> Result<ExitCode, Failure>,
) -> Result<ExitCode, Failure> {
    prepare(&mut args)?;
    let listen = setup::listen(&args)?;
    child::needs_an_address(&args.cassettes.command, args.network.uds.as_deref())?;
    child::needs_plain_http(args.cassettes.block_network, args.network.ssl_certfile.is_some())?;
    let address = args.network.uds.as_ref().map_or_else(|| args.address(), |_| "localhost:0".to_owned());
    let admin = admin::at(&args.cassettes, args.network.admin_listen.as_deref(), &address)?;
    let cassettes = args.cassettes.clone();
    let command = std::mem::take(&mut args.cassettes.command);
    let redaction = args.privacy.redaction.clone();
    let mut setup = setup::setup(args)?;
    setup.amends &= setup.config.record_tokens;
    runtime::run(|shutdown| async move {
        runtime::outlive_file_limits();
        let is_remote_allowed = listen.remote_is_allowed;
        let (listener, at) = open(listen).await?;
        if let (AdminAt::Listener(address, _), false) = (&admin, is_remote_allowed) {
            refuse_remote("--admin-listen", address).await?;
        }
        refuse_circle(&at, &setup).await?;
        let started = stand_for(&setup.mcp_commands);
        let (upstream, file) = (setup.config.upstream.clone(), setup.config.trace_out.clone());
        let environment = ServerEnvironment::at(&upstream, &setup.reach).await;
        let settings = PlayerSettings {
            paths: std::slice::from_ref(&file),
            base: behind(&setup, &started),
            is_strict: false,
            admin: &admin,
            redaction: &redaction,
            environment: environment.clone(),
            mcp: None,
            fork: fork.clone(),
        };
        let cassette_player = player_of(&cassettes, settings)?;
        servers::refuse_unrecorded(&cassette_player, &file)?;
        setup.mcp_playback = Some(Arc::new(McpPlayed::start(&cassette_player, started)?));
        cassette_player.compare(&environment).iter().for_each(|change| output::note(&format!("drift: {change}\n")));
        let _admin_api = serve_admin(&cassette_player, &admin, &at).await?;
        let further = further(&setup);
        let tap = Tap::start_player(setup, Arc::clone(&cassette_player)).await?;
        output::note(&format!("tap on {at} -> {upstream}{further}\ncassette {}; Ctrl-C ends it\n", file.display()));
        let environment = child::ChildEnvironment {
            root: &at,
            key: None,
            is_beside_output: fork.is_some(),
            cassettes: Some((&cassette_player, &cassettes)),
        };
        let mut child = child::start(&command, &environment)?;
        let mut code = None;
        let stop = async { code = child::until(child.as_mut(), shutdown).await };
        let report = tap.serve(listener, stop).await?;
        conclude::note_cut(report.cut);
        report.mcp.iter().for_each(|recorded| output::warn(&servers::missing(recorded)));
        conclude(&cassette_player, close(Arc::clone(&cassette_player), cassettes).await?, code)
    })
}

/// Answers on a listener of their own for the pages of what was served and recorded, if that is where, until it is dropped.
async fn serve_admin(player: &Arc<CassettePlayer>, admin: &AdminAt, at: &str) -> Result<Option<AdminApi>, Failure> {
    let ledger = Arc::clone(player) as Arc<dyn Ledger>;
    let admin_api = admin::answer(admin, |access| account::router(ledger, access.clone())).await?;
    admin::announce(admin_api.as_ref(), "/vcr/report");
    let own = at.strip_prefix("http://").and_then(|own| own.parse().ok());
    admin::serves_at(player, (own, at), admin, admin_api.as_ref());
    Ok(admin_api)
}

/// The configuration of a player in front of what the tap is in front of.
fn behind(setup: &Setup, started: &[Arc<dyn StartedServer>]) -> PlayerConfig {
    PlayerConfig {
        upstream: Some(setup.config.upstream.clone()),
        reach: setup.reach.clone(),
        named_upstreams: setup
            .routes
            .iter()
            .filter_map(|route| Some(route.selector.as_ref()?.name()?.to_owned()))
            .collect(),
        mcp_upstreams: setup.mcp.clone(),
        mcp_started: started.to_vec(),
        ..PlayerConfig::default()
    }
}

/// Checks and completes what was typed.
fn prepare(args: &mut TapArgs) -> Result<(), Failure> {
    choose_mode(args)?;
    servers::hide_headers(&args.mcp.upstream_header, &mut args.privacy.redaction);
    Ok(())
}

/// Closes the recording, on a thread that may block: a second signal ends the caller's task, and so the program.
async fn close(cassette_player: Arc<CassettePlayer>, cassettes: CassetteArgs) -> Result<PlayerEnd, Failure> {
    let closing = tokio::task::spawn_blocking(move || {
        cassette_player.finish_comparing();
        let concerns = conclude::concerns(&cassettes.fail_on, false);
        conclude::cassettes(&cassette_player, &cassette_player.report(None), None, &cassettes, &concerns)
    });
    closing.await.map_err(Failure::environment)?
}

/// Formats what the tap is in front of besides the upstream.
fn further(setup: &Setup) -> String {
    let servers = setup.mcp.iter().map(|server| format!(", /mcp/{}={}", server.name, server.url));
    let commands = setup.mcp_commands.iter().map(|server| format!(", /mcp/{}", server.name));
    setup.routes.iter().map(|route| format!(", {route}")).chain(servers).chain(commands).collect()
}

/// Takes a folder for the cassette `default.yaml` in it: sessions record theirs beside it, and what is there is played.
pub(in crate::cli) fn choose_file(args: &mut TapArgs) {
    let is_folder = args.trace_out.is_dir() || args.trace_out.as_os_str().as_encoded_bytes().ends_with(b"/");
    if is_folder {
        args.trace_out.push(DEFAULT_FILE);
        // Sessions choose their own.
        let usual = if args.cassettes.sessions_only { ModeArg::None } else { ModeArg::Once };
        if !(args.overwrite || args.append) {
            args.cassettes.mode.get_or_insert(usual);
        }
    }
}

/// Chooses the mode where none was typed: a new file is recorded, one that is there needs a choice.
fn choose_mode(args: &mut TapArgs) -> Result<(), Failure> {
    if args.cassettes.mode.is_none() {
        if args.trace_out.exists() && !args.overwrite && !args.append {
            let message = format!("{} exists", args.trace_out.display());
            return Err(Failure::usage(message).hint("choose --mode once, new-episodes, all or none"));
        }
        args.cassettes.mode = Some(if args.append { ModeArg::NewEpisodes } else { ModeArg::All });
    }
    Ok(())
}

/// The player of cassettes that ask for no fault.
fn player_of(cassettes: &CassetteArgs, settings: PlayerSettings<'_>) -> Result<Arc<CassettePlayer>, Failure> {
    let cassette_player = player::cassette_player(cassettes, settings)?;
    cassette_player.give_faults(&(Arc::new(NoFaults) as Arc<dyn FaultReader>))?;
    Ok(cassette_player)
}

/// A tap, which lets no fault of a hand-written record happen.
#[derive(Debug)]
struct NoFaults;

impl FaultReader for NoFaults {
    fn take(&self, _: Option<&str>, faults: &[RecordFault]) -> Result<(), Vec<CassetteError>> {
        let wrong = |fault: &RecordFault| fault.wrong(&format!("`{}` happens with `play` only", fault.text));
        if faults.is_empty() { Ok(()) } else { Err(faults.iter().map(wrong).collect()) }
    }
}
