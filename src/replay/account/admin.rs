//! `/vcr/…`: what was served, for tests in any language.

use std::{sync::Arc, time::Duration};

use http::{Method, Request, Response, StatusCode, request::Parts};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::{
    Concern, Ledger, UnknownConcern,
    http::{plain, read, whole},
};
use crate::{
    api::Query,
    net::server::{self, AnswerBody, DrainReport, Listener},
};

/// More than any question of these needs.
const LARGEST_BODY: usize = 1 << 20;

/// How long a question may go on after shutdown begins.
const DRAIN: Duration = Duration::from_millis(100);

/// Whether questions about the account are answered beside everything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admin {
    /// They are.
    Here,
    /// They are not.
    Off,
}

/// Answers questions about an account, `/vcr/…`, and nothing else, until `shutdown` completes.
pub async fn serve(
    ledger: Arc<dyn Ledger>,
    listener: impl Into<Listener>,
    shutdown: impl Future<Output = ()>,
) -> DrainReport {
    let service = move |request: Request<Incoming>, _| {
        let ledger = Arc::clone(&ledger);
        async move {
            let (parts, body) = request.into_parts();
            if parts.uri.path().starts_with("/vcr/") {
                return administer(&ledger, &parts, body).await;
            }
            plain(StatusCode::NOT_FOUND, "only /vcr/... is answered here")
        }
    };
    server::run(listener, service, shutdown, DRAIN).await
}

/// Answers a question about an account.
pub async fn administer(ledger: &Arc<dyn Ledger>, parts: &Parts, body: Incoming) -> Response<AnswerBody> {
    let body = match read(body, LARGEST_BODY).await {
        Ok(body) => value_of(&String::from_utf8_lossy(&body)),
        Err(refusal) => return refusal,
    };
    let query = Query::new(parts.uri.query());
    let asked = query.all("session").pop().map(str::to_owned);
    let session = asked.or_else(|| body.get("session").and_then(Value::as_str).map(str::to_owned));
    let session = session.as_deref();
    let path = parts.uri.path().trim_start_matches("/vcr/");
    if !(body.is_null() || body.is_object()) {
        return error(StatusCode::BAD_REQUEST, "the body has to be a JSON object");
    }
    if let Some(name) = session.filter(|name| !ledger.knows(name)) {
        return wrong(&**ledger, StatusCode::NOT_FOUND, &format!("no such session: {name}"));
    }
    match (&parts.method, path) {
        (&Method::GET, "report") => ok(&ledger.report(session).json(&[])),
        (&Method::POST, "verify") => verify(&**ledger, session, &body),
        (&Method::GET, "unconsumed") => ok(&ledger.report(session).unconsumed().into()),
        (&Method::GET, "misses") => ok(&ledger.misses(session).into()),
        (&Method::POST, "reset") if session.is_none() && body.as_object().is_some_and(|body| !body.is_empty()) => {
            error(
                StatusCode::BAD_REQUEST,
                "a reset takes a session and nothing else; without one it is of all sessions",
            )
        }
        (&Method::POST, "reset") => {
            ledger.reset(session);
            ok(&json!({"reset": session.map_or(json!("all"), Value::from)}))
        }
        (&Method::GET, "records") => ok(&ledger.records(session).into()),
        (&Method::GET, path) if path.starts_with("records/") => {
            let at = path.trim_start_matches("records/").parse::<usize>().ok();
            let found = at.and_then(|at| ledger.record(at, session));
            found.map_or_else(|| error(StatusCode::NOT_FOUND, "no such record"), |record| ok(&record))
        }
        (&Method::GET, "sessions") => ok(&ledger.sessions().iter().map(|name| shown_session(name)).collect()),
        (&Method::POST, "sessions") => opened(ledger, body).await,
        (&Method::DELETE, path) if path.starts_with("sessions/") => {
            ended(ledger, path.trim_start_matches("sessions/").to_owned()).await
        }
        _ => error(
            StatusCode::NOT_FOUND,
            "no such question: report, verify, unconsumed, misses, reset, records, sessions",
        ),
    }
}

/// JSON where it is, else text; null for none.
fn value_of(text: &str) -> Value {
    match text.is_empty() {
        true => Value::Null,
        false => serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)),
    }
}

fn verify(ledger: &dyn Ledger, session: Option<&str>, body: &Value) -> Response<AnswerBody> {
    let named = body.get("fail_on").and_then(Value::as_array);
    let concerns: Result<Vec<Concern>, UnknownConcern> = match named {
        None => Ok(vec![Concern::Miss, Concern::Unconsumed]),
        Some(names) => names.iter().map(|name| name.as_str().unwrap_or_default().parse()).collect(),
    };
    let concerns = match concerns {
        Ok(concerns) => concerns,
        Err(unknown) => return wrong(ledger, StatusCode::BAD_REQUEST, &unknown.to_string()),
    };
    let report = ledger.report(session);
    let status = if report.failing(&concerns).is_empty() { 200 } else { 409 };
    whole(status, "application/json", report.json(&concerns).to_string())
}

/// Opens a session; its files are read where nobody waits for it.
async fn opened(ledger: &Arc<dyn Ledger>, asked: Value) -> Response<AnswerBody> {
    let opening = Arc::clone(ledger);
    match tokio::task::spawn_blocking(move || opening.open(&asked)).await {
        Ok(Ok(name)) => whole(201, "application/json", shown_session(&name).to_string()),
        Ok(Err(why)) => wrong(&**ledger, StatusCode::BAD_REQUEST, &why),
        Err(_) => error(StatusCode::INTERNAL_SERVER_ERROR, "the session could not be opened"),
    }
}

async fn ended(ledger: &Arc<dyn Ledger>, name: String) -> Response<AnswerBody> {
    let report = ledger.report(Some(&name));
    let ending = Arc::clone(ledger);
    match tokio::task::spawn_blocking(move || ending.end(&name)).await {
        Ok(Ok(true)) => ok(&report.json(&[])),
        Ok(Ok(false)) => error(StatusCode::NOT_FOUND, "no such session"),
        Ok(Err(why)) => wrong(&**ledger, StatusCode::INTERNAL_SERVER_ERROR, &why),
        Err(_) => error(StatusCode::INTERNAL_SERVER_ERROR, "the session could not be closed"),
    }
}

fn shown_session(name: &str) -> Value {
    let base_url = format!("/vcr/s/{name}/v1");
    json!({"name": name, "base_url": base_url})
}

/// An error that repeats something of the question, without the secrets in it.
fn wrong(ledger: &dyn Ledger, status: StatusCode, message: &str) -> Response<AnswerBody> {
    error(status, &ledger.shown(message))
}

fn ok(body: &Value) -> Response<AnswerBody> {
    whole(200, "application/json", body.to_string())
}

fn error(status: StatusCode, message: &str) -> Response<AnswerBody> {
    whole(status.as_u16(), "application/json", json!({"error": message}).to_string())
}
