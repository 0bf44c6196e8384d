//! `play --engine-core`: which flags mean something there, and its run.

use std::{process::ExitCode, sync::Arc};

use engine_core::layout::{KNOWN_VERSIONS, VersionFamily};

use crate::{
    base::one_line::counted,
    cli::{
        failure::Failure,
        flags::Typed,
        loading, output,
        play::{admin_at, args::PlayArgs, concerns, configuration, faults, fleet, reload},
        player::{admin, conclude},
        runtime,
    },
    faults::Fault,
    net::server,
    play::{EngineCoreConfig, Player},
};

/// Structs of flags that are about HTTP, or about what is put in its place.
const OF_HTTP: &[&str] = &["ServerArgs", "FaultArgs", "McpServersArgs", "@http"];

/// Flags of these structs that count here too.
const COUNT_TOO: [&str; 5] = ["startup_duration", "max_num_queued_reqs", "fault", "faults", "fault_seed"];

/// Refuses what has no effect behind a front end.
pub(in crate::cli) fn check(args: &PlayArgs, typed: &Typed<'_>) -> Result<(), Failure> {
    if args.simulated.engine_core.is_none() {
        return Ok(());
    }
    if !args.cassettes.command.is_empty() {
        return Err(Failure::usage("--engine-core serves a front end of vLLM, which a command cannot call")
            .hint("start the command separately, with the address of the front end"));
    }
    let is_about_http = |id: &str| !COUNT_TOO.contains(&id);
    if let Some(flag) = typed.tagged(OF_HTTP).find(|flag| is_about_http(flag.get_id().as_str()) && typed.is_given(flag))
    {
        return Err(Failure::usage(format!("{} has no effect with --engine-core", typed.shown(flag)))
            .hint("it applies to this program's own HTTP server; leave it out"));
    }
    typed.tagged(&["@answers"]).filter(|flag| typed.is_given(flag)).for_each(|flag| {
        output::note(&format!("{} has no effect with --engine-core: the front end makes answers\n", typed.shown(flag)));
    });
    config(args).map(drop)
}

/// Reads where the front end is; `None` without one.
pub(in crate::cli) fn config(args: &PlayArgs) -> Result<Option<EngineCoreConfig>, Failure> {
    let Some(front_end) = args.simulated.engine_core.clone() else { return Ok(None) };
    let requested = args.engine.vllm_version.requested.trim_start_matches('v');
    let version = if requested.split('.').count() < 3 { format!("{requested}.0") } else { requested.to_owned() };
    let family = VersionFamily::of_version(&version).ok_or_else(|| {
        Failure::usage(format!("--vllm-version {requested}: the protocol of its engine core is not known"))
            .hint(format!("known versions: {KNOWN_VERSIONS}"))
    })?;
    if let Some(why) = faults::lines(&args.faults)?.faults.iter().find_map(Fault::without_http) {
        let hint = "faults of whole servers (die, refuse, slower, kv-exhausted) and of KV events do";
        return Err(Failure::usage(why).hint(hint));
    }
    let script = fleet::script(&args.simulated)?;
    Ok(Some(EngineCoreConfig { front_end, version, family, script }))
}

/// Serves a front end until a signal.
pub(in crate::cli) fn run(args: PlayArgs, config: EngineCoreConfig) -> Result<ExitCode, Failure> {
    let (admin_at, concerns, cassettes) = (admin_at(&args)?, concerns(&args), args.cassettes.clone());
    let fault_args = args.faults.clone();
    cassettes.report.as_deref().map_or(Ok(()), conclude::writable)?;
    let server = configuration(args, None, &admin_at)?;
    let (progress, faults) = (Arc::clone(&server.progress), Arc::clone(&server.faults));
    let read_again = Arc::clone(&faults);
    let player = loading::watched(&progress, || Player::load(server))?;
    server::raise_descriptor_limit();
    runtime::run(|shutdown| async move {
        runtime::at_hangups(move || reload(&fault_args, &read_again))?;
        let admin_api = admin::answer(&admin_at, |access| player.admin_pages(access)).await?;
        output::note(&greeting(&player, &config));
        admin::announce(admin_api.as_ref(), player.ledger().map_or("/metrics", |_| "/vcr/report"));
        player.serve_engine_core(config, shutdown.requested()).await.map_err(Failure::environment)?;
        let (account, faults) = (player.ledger(), faults.current());
        let ended = conclude::ended(None, account.as_deref(), &faults, (&cassettes, &concerns))?;
        Ok(ended.exit_code(None))
    })
}

fn greeting(player: &Player, config: &EngineCoreConfig) -> String {
    let (serving, EngineCoreConfig { front_end, version, .. }) = (player.serving(), config);
    let source = serving.trace.map_or_else(
        || "synthetic tokens".to_owned(),
        |trace| format!("{trace} ({})", counted(serving.records, "record")),
    );
    let port = front_end.rsplit_once(':').map_or("", |(_, port)| port);
    format!(
        "engine core of vLLM {version} for the front end at {front_end}\nserving {source}; tokenizer {}; Ctrl-C ends it\n\n\
         front end:\n  vllm serve MODEL --data-parallel-size-local 0 --data-parallel-rpc-port {port}\n",
        serving.tokenizer
    )
}
