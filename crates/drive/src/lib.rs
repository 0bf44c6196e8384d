//! The load client: sends the requests of a recording at servers when they were sent, and measures what comes back.
//!
//! One request, in order:
//! - [`workload`] reads it from a trace, [`cassettes`] from a cassette, with its arrival, its session and what came back when it was recorded.
//! - [`plan`] decides when it is sent: at a time of its own (open loop), when a place is free (closed loop), or its recorded think time after
//!   the turn before it has ended.
//! - [`prompt`] makes its body: the recorded one, with [the answers of this run](history) in place of recorded ones where that is wanted, or a prompt of
//!   token ids or of [`text`] with the same length and the same shared blocks.
//! - [`before`] sends what comes before the run: prefixes to prime caches with, prompts by which lengths are measured.
//! - [`run`] waits for that time and sends it through a [`tap`]: the tap asks for token ids, observes the response and makes a record of it as it does
//!   for any client, so that results are a trace and a token is counted in one way everywhere.
//! - [`results`] gets that record on the recorder's thread, with the intended start of its request, and adds it to the figures; [`verdict`] says
//!   whether they may be believed.
//!
//! Before a run, [`calibrate`](mod@calibrate) finds what this client itself reaches; [`machine`] measures what the machine adds to every figure. [`find_max`] makes run after run to find what the server reaches.
//!
//! Times: a latency is counted from when the request was sent and, beside it, from when it was to be sent, so that a server that stalls the client is
//! not flattered. What TTFT, ITL, TPOT and E2E mean is defined in [`replay::meter`].
//!
//! Limits: the trace is read whole; a request is sent once and never repeated.
//!
//! See docs/decisions/0115-the-load-client-sends-through-a-tap.md.

pub mod before;
pub mod calibrate;
pub mod cassettes;
pub mod check;
mod distribution;
pub mod drift;
pub mod export;
pub mod find_max;
pub mod history;
pub mod machine;
pub mod numbers;
pub mod peers;
pub mod plan;
pub mod prompt;
pub mod results;
pub mod run;
pub mod rung;
pub mod scrape;
pub mod steady;
pub mod text;
pub mod timeline;
mod turns;
pub mod verdict;
pub mod workload;

pub use calibrate::{Ceiling, calibrate};
pub use history::History;
pub use peers::{LoadClient, PeerReport};
pub use plan::{Arrivals, Load, Plan, Selection};
pub use results::Results;
pub use run::{Drive, DriveError, Driven, drive};
pub use text::PromptTexts;
pub use verdict::{Reason, Verdict};
pub use workload::{Workload, WorkloadError};
