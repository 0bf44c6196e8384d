//! Runs a command beside a server: `vllm-vcr play … -- pytest`.

use std::{os::unix::process::ExitStatusExt, path::Path, process::ExitStatus};

use tokio::process::{Child, Command};

use super::{
    failure::{Exit, Failure},
    signals::Shutdown,
};

/// Environment variables of a wrapped command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Environment<'a> {
    /// The server's URL.
    pub(super) root: &'a str,
    /// The key that the server asks for, if it does.
    pub(super) key: Option<&'a str>,
    /// The time of what is played.
    pub(super) base_time: Option<&'a str>,
}

/// Starts a command, if there is one, whose OpenAI and Anthropic clients talk to the server. A key that is set stays, unless the server asks for one.
///
/// # Errors
/// When it cannot be started.
pub(super) fn start(command: &[String], environment: Environment<'_>) -> Result<Option<Child>, Failure> {
    let Environment { root, key, base_time } = environment;
    let Some((program, arguments)) = command.split_first() else { return Ok(None) };
    let mut child = Command::new(program);
    child.args(arguments).kill_on_drop(true);
    for name in ["OPENAI_BASE_URL", "OPENAI_API_BASE"] {
        child.env(name, format!("{root}/v1"));
    }
    for name in ["ANTHROPIC_BASE_URL", "VLLM_VCR_URL"] {
        child.env(name, root);
    }
    for name in ["OPENAI_API_KEY", "ANTHROPIC_API_KEY"] {
        if key.is_some() || std::env::var_os(name).is_none() {
            child.env(name, key.unwrap_or("vcr"));
        }
    }
    // Which Anthropic's clients send as `Authorization: Bearer`.
    key.into_iter().for_each(|key| {
        child.env("ANTHROPIC_AUTH_TOKEN", key);
    });
    base_time.into_iter().for_each(|time| {
        child.env("VLLM_VCR_BASE_TIME", time);
    });
    child.spawn().map(Some).map_err(|error| Failure::new(Exit::Environment, format!("cannot run {program}: {error}")))
}

/// The URL for the command's clients.
///
/// # Errors
/// When there is a command and the server listens on a Unix socket.
pub(super) fn needs_an_address(command: &[String], socket: Option<&Path>) -> Result<(), Failure> {
    match socket {
        Some(socket) if !command.is_empty() => {
            let message = format!("a command cannot be pointed at the socket {}", socket.display());
            Err(Failure::usage(message).hint("leave out --uds: the command gets a free port"))
        }
        _ => Ok(()),
    }
}

/// Asks a command to end.
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
pub(super) async fn until(child: Option<&mut Child>, shutdown: Shutdown) -> Option<u8> {
    let Some(child) = child else {
        shutdown.requested().await;
        return None;
    };
    let ended = tokio::select! {
        ended = child.wait() => ended,
        () = shutdown.requested() => {
            terminate(child);
            child.wait().await
        }
    };
    Some(ended.map_or(1, code))
}
