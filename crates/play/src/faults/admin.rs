//! `/vcr/faults`: the faults as they are, what happened, and other ones.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    response::Response,
    routing::get,
};
use http::Uri;
use serde_json::{Value, json};

use crate::{
    admin_calls::{AdminResult, RefusedAdminCall, body_of, shown},
    faults::{FaultLines, ServerFaults},
};
use ::faults::{Fault, FaultCounts, FaultHit, UnappliedFault, catalogue};
use api::Query;

/// Maximum size of a list of faults, in bytes.
const LARGEST: usize = 1 << 20;

/// Hits that are listed if a request names no number.
const LISTED: usize = 1000;

/// `/vcr/faults` and `/vcr/faults/catalog`.
pub(crate) fn routes(faults: Arc<ServerFaults>, replica: u32) -> Router {
    Router::new()
        .route("/vcr/faults", get(show).put(replace).delete(clear))
        .route("/vcr/faults/catalog", get(kinds))
        .with_state((faults, replica))
}

/// The state of these pages: the faults of all replicas, and the number of the one whose pages they are.
type OwnFaults = State<(Arc<ServerFaults>, u32)>;

fn listed(faults: &ServerFaults, replica: u32, most: usize) -> Value {
    let set = faults.current();
    let counted = |(fault, count): (&Fault, FaultCounts)| json!({"fault": fault.to_string(), "happened": count.happened, "not_said": count.unapplied});
    let counts: Vec<Value> = set.counts().map(counted).collect();
    let hits = set.hits(most);
    let millis = |at: Duration| u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
    let hit =
        |hit: &FaultHit| json!({"fault": hit.line, "of": hit.rule, "replica": hit.replica, "at_ms": millis(hit.at)});
    let hits: Vec<Value> = hits.iter().map(hit).collect();
    let unapplied = |unapplied: &UnappliedFault| json!({"fault": unapplied.line, "of": unapplied.rule, "at_ms": millis(unapplied.at), "reason": unapplied.reason});
    let unapplied: Vec<Value> = set.unapplied(most).iter().map(unapplied).collect();
    json!({"seed": set.seed(), "replica": replica, "elapsed_ms": millis(set.elapsed()), "faults": counts, "hits": hits, "not_said": unapplied})
}

async fn show(State((faults, replica)): OwnFaults, uri: Uri) -> Response {
    let most = Query::new(uri.query()).all("hits").pop().and_then(|most| most.parse().ok()).unwrap_or(LISTED);
    shown(&listed(&faults, replica, most))
}

async fn kinds() -> Response {
    shown(&catalogue())
}

async fn clear(State((faults, replica)): OwnFaults) -> Response {
    faults.replace(FaultLines { faults: Vec::new(), seed: faults.current().seed() });
    shown(&listed(&faults, replica, 0))
}

async fn replace(State((faults, replica)): OwnFaults, request: Request) -> AdminResult {
    let body = body_of(request, LARGEST).await?;
    let lines = FaultLines::parse(&String::from_utf8_lossy(&body), "body", faults.current().seed());
    let lines = lines.map_err(|error| RefusedAdminCall::wrong(format!("line {}: {}", error.line, error.message)))?;
    let lines = faults.with_secrets(lines).map_err(RefusedAdminCall::wrong)?;
    faults.check(&lines).map_err(RefusedAdminCall::wrong)?;
    let written: Vec<String> = lines.faults.iter().map(ToString::to_string).collect();
    tracing::info!("faults are replaced by: {}", written.join(" | "));
    faults.replace(lines);
    Ok(shown(&listed(&faults, replica, 0)))
}
