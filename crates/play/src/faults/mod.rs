//! Faults before everything that the server answers.
//!
//! The layer stands behind the middleware of the server and before cassettes, traces and endpoints, so that all of them can fail alike. A
//! server without faults pays for a look at one number. With faults, the body of a request is read before it is decided.
//!
//! See docs/decisions/0122-faults-are-lines.md.

mod admin;
mod file;
mod layer;
mod notes;
mod observed;
mod pages;
mod quota;
mod server;

pub(super) use self::{
    admin::routes,
    layer::{FaultLayer, FaultsOf},
    pages::{MetricsPages, PageSource},
    quota::PromptTokens,
};
pub use self::{
    file::{FaultFileError, FaultLines},
    observed::{ServedChunk, ServedEnd, ServedKey, ServedLog, ServedResponse},
    server::{FAILURE_TYPES, InjectedFailures, ServerFaults, fault_of_record},
};
