//! Priority of threads whose work grows with a request, beside those that serve connections.
//!
//! See docs/decisions/0059-heavy-work-yields-to-streams.md.

/// How much less urgent than a thread that serves connections, in steps of `nice`: about a third of its share where both want a core.
#[cfg(target_os = "linux")]
const STEPS: i32 = 5;

/// Lowers the priority of the calling thread for as long as it lives; threads that it starts inherit it. Does nothing where a
/// priority is that of the whole process (systems other than Linux), or where the system refuses.
pub fn lower_priority() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getpriority_process, setpriority_process};
        let lowered = getpriority_process(None).and_then(|nice| setpriority_process(None, nice.saturating_add(STEPS)));
        if let Err(error) = lowered {
            tracing::debug!(%error, "cannot lower the priority of a thread");
        }
    }
}
