//! `/vcr/faults`: the faults as they are, what happened, and other ones.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    response::Response,
    routing::get,
};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use crate::{
    faults::catalogue,
    play::{
        faults::{FaultLines, ServerFaults},
        http::{json as json_page, read_body},
    },
    replay::account::Access,
};

/// Most bytes of a list of faults.
const LARGEST: usize = 1 << 20;

/// Hits that are listed if a request does not say how many.
const LISTED: usize = 1000;

/// What the routes share.
#[derive(Debug, Clone)]
struct FaultDesk {
    faults: Arc<ServerFaults>,
    access: Access,
}

/// `/vcr/faults` and `/vcr/faults/catalog`.
pub(in crate::play) fn routes(faults: Arc<ServerFaults>, access: Access) -> Router {
    Router::new()
        .route("/vcr/faults", get(show).put(replace).delete(clear))
        .route("/vcr/faults/catalog", get(kinds))
        .with_state(FaultDesk { faults, access })
}

fn page(status: StatusCode, value: &Value) -> Response {
    json_page(status, value.to_string(), HeaderMap::new())
}

fn failed(status: StatusCode, message: &str) -> Response {
    page(status, &json!({"error": {"message": message}}))
}

impl FaultDesk {
    fn checked(&self, request: Request) -> Result<(http::request::Parts, axum::body::Body), Box<Response>> {
        let (parts, body) = request.into_parts();
        self.access.check(&parts).map_err(|(status, message)| Box::new(failed(status, message)))?;
        Ok((parts, body))
    }

    fn shown(&self, most: usize) -> Value {
        let set = self.faults.current();
        let faults: Vec<Value> =
            set.counts().map(|(fault, count)| json!({"fault": fault.to_string(), "happened": count})).collect();
        let hits = set.hits(most);
        let hits: Vec<Value> = hits
            .iter()
            .map(|hit| json!({"fault": hit.line, "of": hit.rule, "at_ms": u64::try_from(hit.at.as_millis()).unwrap_or(u64::MAX)}))
            .collect();
        json!({"seed": set.seed(), "faults": faults, "hits": hits})
    }
}

async fn show(State(desk): State<FaultDesk>, request: Request) -> Response {
    let parts = match desk.checked(request) {
        Ok((parts, _)) => parts,
        Err(refused) => return *refused,
    };
    let query = crate::api::Query::new(parts.uri.query());
    let most = query.all("hits").pop().and_then(|most| most.parse().ok()).unwrap_or(LISTED);
    page(StatusCode::OK, &desk.shown(most))
}

async fn kinds(State(desk): State<FaultDesk>, request: Request) -> Response {
    desk.checked(request).map_or_else(|refused| *refused, |_| page(StatusCode::OK, &catalogue()))
}

async fn clear(State(desk): State<FaultDesk>, request: Request) -> Response {
    if let Err(refused) = desk.checked(request) {
        return *refused;
    }
    desk.faults.replace(FaultLines::default());
    page(StatusCode::OK, &desk.shown(0))
}

async fn replace(State(desk): State<FaultDesk>, request: Request) -> Response {
    let body = match desk.checked(request) {
        Ok((_, body)) => body,
        Err(refused) => return *refused,
    };
    let text = match read_body(body, LARGEST).await {
        Ok(body) => String::from_utf8_lossy(&body).into_owned(),
        Err(error) => return failed(StatusCode::BAD_REQUEST, &error.message),
    };
    match FaultLines::parse(&text, "body") {
        Ok(lines) => {
            let shown: Vec<String> = lines.faults.iter().map(ToString::to_string).collect();
            tracing::info!("faults are replaced by: {}", shown.join(" | "));
            desk.faults.replace(lines);
            page(StatusCode::OK, &desk.shown(0))
        }
        Err(error) => failed(StatusCode::BAD_REQUEST, &format!("line {}: {}", error.line, error.message)),
    }
}
