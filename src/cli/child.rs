//! Runs a command beside a server: `vllm-vcr play … -- pytest`.

use std::{os::unix::process::ExitStatusExt, path::Path, process::ExitStatus, time::Duration};

use tokio::{
    process::{Child, Command},
    time::timeout,
};

use crate::{
    cli::{
        failure::Failure,
        player::args::{CassetteArgs, ModeArg},
        runtime::Shutdown,
    },
    replay::{account::client_urls, player::CassettePlayer},
};

/// How long a command may take to end after Ctrl-C before it is asked to.
const AFTER_INTERRUPT: Duration = Duration::from_secs(5);

/// Environment variables of a wrapped command.
#[derive(Debug, Clone, Default)]
pub(in crate::cli) struct ChildEnvironment<'a> {
    pub(in crate::cli) root: &'a str,
    /// What the command prints goes to stderr: stdout has what is printed about its run.
    pub(in crate::cli) is_beside_output: bool,
    /// The key that the server asks for, if it does.
    pub(in crate::cli) key: Option<&'a str>,
    /// The player of cassettes, if there is one, and its flags.
    pub(in crate::cli) cassettes: Option<(&'a CassettePlayer, &'a CassetteArgs)>,
}

impl ChildEnvironment<'_> {
    /// Sets the variables of a command. A key that is set stays, unless the server asks for one.
    fn set(&self, child: &mut Command) {
        let Self { root, key, is_beside_output: _, cassettes } = self;
        let upstreams = cassettes.map(|(player, _)| player.upstreams()).unwrap_or_default();
        child.envs(client_urls(root, &upstreams));
        for name in ["OPENAI_API_KEY", "ANTHROPIC_API_KEY"] {
            if key.is_some() || std::env::var_os(name).is_none() {
                child.env(name, key.unwrap_or("vcr"));
            }
        }
        let base_time = cassettes.and_then(|(player, _)| player.base_time());
        let mode = cassettes.map(|(_, args)| args.mode.unwrap_or(ModeArg::None).name());
        // Which Anthropic's clients send as `Authorization: Bearer`.
        for (name, value) in
            [("ANTHROPIC_AUTH_TOKEN", *key), ("VLLM_VCR_BASE_TIME", base_time.as_deref()), ("VLLM_VCR_MODE", mode)]
        {
            if let Some(value) = value {
                child.env(name, value);
            }
        }
        match cassettes {
            Some((_, args)) if args.block_network => block_network(child, root, &args.allow_host),
            _ => spare_own(child, root),
        }
    }
}

/// Has a command call this server without the proxy that the environment names.
fn spare_own(child: &mut Command, root: &str) {
    let variable = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let proxies = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    let host = root.split_once("://").and_then(|(_, own)| own.rsplit_once(':')).map(|(host, _)| host);
    let (Some(host), true) = (host, proxies.iter().any(|name| variable(name).is_some())) else { return };
    let spared = ["no_proxy", "NO_PROXY"].iter().find_map(variable);
    let spared = match spared {
        // All hosts, where nothing else is named.
        Some(all) if all == "*" => all,
        Some(others) => format!("{others},{host}"),
        None => host.to_owned(),
    };
    child.env("NO_PROXY", &spared).env("no_proxy", &spared);
}

/// Makes this server the proxy of a command's calls to all hosts but these.
fn block_network(child: &mut Command, root: &str, allowed: &[String]) {
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        child.env(name, root).env(name.to_ascii_lowercase(), root);
    }
    // With its port: other servers of this machine are others too.
    let own = root.split_once("://").map_or(root, |(_, own)| own);
    let direct = std::iter::once(own).chain(allowed.iter().map(String::as_str)).collect::<Vec<_>>().join(",");
    child.env("NO_PROXY", &direct).env("no_proxy", &direct);
    // Without it Node reads none of them.
    child.env("NODE_USE_ENV_PROXY", "1");
}

/// Refuses to block a command's calls through a server that speaks TLS: clients would have to trust it as their proxy.
pub(in crate::cli) fn needs_plain_http(blocks: bool, has_tls: bool) -> Result<(), Failure> {
    match blocks && has_tls {
        true => Err(Failure::usage("--block-network needs a server without TLS").hint("leave out --ssl-certfile")),
        false => Ok(()),
    }
}

/// Starts a command, if there is one, whose OpenAI and Anthropic clients talk to the server.
pub(in crate::cli) fn start(command: &[String], environment: &ChildEnvironment<'_>) -> Result<Option<Child>, Failure> {
    let Some((program, arguments)) = command.split_first() else { return Ok(None) };
    let mut child = Command::new(program);
    child.args(arguments).kill_on_drop(true);
    environment.set(&mut child);
    if environment.is_beside_output {
        child.stdout(std::io::stderr());
    }
    child.spawn().map(Some).map_err(|error| Failure::environment(format!("cannot run {program}: {error}")))
}

/// The URL for the command's clients.
pub(in crate::cli) fn needs_an_address(command: &[String], socket: Option<&Path>) -> Result<(), Failure> {
    match socket {
        Some(socket) if !command.is_empty() => {
            let message = format!("a command cannot be pointed at the socket {}", socket.display());
            Err(Failure::usage(message).hint("leave out --uds: the command gets a free port"))
        }
        _ => Ok(()),
    }
}

fn terminate(child: &Child) {
    let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
    if let Some(id) = id {
        let _gone = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    }
}

/// The exit code that a shell would show.
fn code(status: ExitStatus) -> u8 {
    let signal = || status.signal().map(|signal| 128 + signal);
    status.code().or_else(signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Waits until the command ends, or ends it when a signal asks for it; without one, waits for the signal. The command's exit
/// code, where there is one.
///
/// A terminal sends Ctrl-C to the command too, which may want to print what it has: it gets a moment before it is asked to end.
pub(in crate::cli) async fn until(child: Option<&mut Child>, shutdown: Shutdown) -> Option<u8> {
    let Some(child) = child else {
        shutdown.requested().await;
        return None;
    };
    let ended = tokio::select! {
        ended = child.wait() => ended,
        is_interrupt = shutdown.by_interrupt() => {
            let own_end = if is_interrupt { AFTER_INTERRUPT } else { Duration::ZERO };
            match timeout(own_end, child.wait()).await {
                Ok(ended) => ended,
                Err(_) => {
                    terminate(child);
                    child.wait().await
                }
            }
        }
    };
    Some(ended.map_or(1, code))
}
