//! `prove`: a gateway between a server with ground truth and a client, and whether what leaves it is what entered.
//!
//! [`BehindServer`] and [`StreamClient`] are the two sides; they know nothing of what is proven. Streams of
//! `ground_truth` are cut and edited by faults (`cases`), found again behind the gateway by their
//! `marker`, compared (`checks`), and what fails is made small (`shrink`) and written as a script; `proving` runs it all.
//!
//! Limits: what a gateway does to requests is not compared. Memory that grows is not seen from outside.
//!
//! See docs/decisions/0129-a-gateway-is-proven-from-both-sides.md.

mod behind;
mod cases;
mod checks;
mod client;
mod events;
mod gateway;
mod ground_truth;
mod marker;
mod prices;
mod proof;
mod prover;
mod proving;
mod script;
mod shrink;

pub(crate) use self::events::{is_error, type_of};
pub use self::{
    behind::{BehindServer, GroundTruthError},
    checks::{CompareBy, CompareRules, ProveCheck, answer_content, first_difference, without_fields},
    client::{ReceivedEnd, ReceivedStream, StreamClient, StreamRead},
    events::ReadEvents,
    gateway::{FirstRequest, GatewayError, offered},
    ground_truth::{
        ENDPOINTS, Extras, GroundSources, GroundStream, answer_events, cassette_config, ground_truth, request,
        served_config, stream_record, without_templates,
    },
    marker::{marker, marker_in, markers_in, stream_marker},
    prices::{PriceError, PriceTable},
    proof::{CheckResult, Proof, ProveError, ProvePlan, ProvenFailure},
    prover::Prover,
    script::ScriptPlaces,
};
