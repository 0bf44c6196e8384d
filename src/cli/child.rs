//! Runs a command beside a server: `vllm-vcr play … -- pytest`.

use std::{os::unix::process::ExitStatusExt, process::ExitStatus};

use tokio::process::{Child, Command};

use super::{
    failure::{Exit, Failure},
    signals::Shutdown,
};

/// Starts a command whose OpenAI and Anthropic clients talk to the server at `root`, and that can ask for the time of what is
/// played. A key that is set stays.
///
/// # Errors
/// When it cannot be started.
pub(super) fn start(command: &[String], root: &str, base_time: Option<&str>) -> Result<Child, Failure> {
    let Some((program, arguments)) = command.split_first() else { return Err(Failure::usage("there is no command")) };
    let mut child = Command::new(program);
    child.args(arguments).kill_on_drop(true);
    for name in ["OPENAI_BASE_URL", "OPENAI_API_BASE"] {
        child.env(name, format!("{root}/v1"));
    }
    for name in ["ANTHROPIC_BASE_URL", "VLLM_VCR_URL"] {
        child.env(name, root);
    }
    for name in ["OPENAI_API_KEY", "ANTHROPIC_API_KEY"] {
        if std::env::var_os(name).is_none() {
            child.env(name, "vcr");
        }
    }
    base_time.into_iter().for_each(|time| {
        child.env("VLLM_VCR_BASE_TIME", time);
    });
    child.spawn().map_err(|error| Failure::new(Exit::Environment, format!("cannot run {program}: {error}")))
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
