//! Faults on purpose: what a server does wrong, to which requests, and where in a response.
//!
//! A [`Fault`] is one line, `KIND[:ARGUMENTS] [at PLACE] [where CONDITIONS]`, such as `reset at event 3 where rate=0.1`. The kinds are
//! rows of the [`catalogue`]; a [`FaultSet`] chooses those of a request, and a [`FaultedBody`] puts them into its response. What has
//! sockets, engines or metrics around it is the server's.
//!
//! A choice is a function of the seed, the line and the request alone: its path, its body, and how often the same one came before. So
//! the same requests get the same faults whatever else is in progress, and each fault that happened is a line that repeats it.
//!
//! Faults before the first byte of a response are *retryable*: a gateway may send the request elsewhere. Later ones are *committed*.
//!
//! Places are those of the body without faults. A body that is no stream of events is one event: a place after its start, by event or
//! token, is its middle, and what is added to it is white space before it.
//!
//! Limits: a token is an event that carries output, or as many as its `token_ids`, and a place by tokens is the first end of an event
//! with so many.
//!
//! See docs/decisions/0122-faults-are-lines.md.

mod active;
mod body;
mod catalogue;
mod edits;
mod fault;
mod hit;
mod kind;
mod piece;
mod quota;
mod rate_limits;
mod request;
mod rule;
mod selection;
mod set;
mod signal;
mod signal_rows;
mod stage;
mod steps;
mod timed;
mod wire;

pub use self::{
    active::OnFault,
    body::FaultedBody,
    catalogue::{CATALOGUE, CatalogueRow, catalogue, rows},
    edits::EventEdit,
    fault::{Fault, FaultPlace, FaultSyntaxError},
    hit::{FaultHit, UnappliedFault},
    kind::{FaultKind, NamedLimits, RefusalContext, RefusalFault, StreamFault},
    quota::{QuotaLimits, QuotaRefusal},
    request::FaultRequest,
    selection::{FaultSelection, SequenceKey, ServedNames},
    set::{ChosenFault, FaultCounts, FaultSet},
    signal::{BatchNumber, EventsFault, MetricsFault, ServerCondition, ServerFault},
    stage::FaultStage,
    timed::{QuotaOutcome, QuotaTicket},
    wire::tokens_of,
};
