//! `/vcr/…`: what was served, for tests in any language.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::{FromRequest, Path, Request},
    routing::{any, delete, get, post},
};
use http::{Response, StatusCode};
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tower_service::Service;

use super::{
    Access, Concern, Ledger, SessionRecording, UnknownConcern,
    access::check_type,
    http::{plain, read, whole},
};
use api::Query;
use net::server::{self, DrainReport, Listener, ResponseBody};

/// Maximum bytes of a request's body.
const LARGEST_BODY: usize = 1 << 20;

/// Time that a request may go on after shutdown begins.
const DRAIN: Duration = Duration::from_millis(100);

/// Serving of `/vcr/…` beside everything else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admin {
    /// It is, to these callers.
    Here(Access),
    /// It is not.
    Off,
}

/// Serves the pages of `/vcr/…`, and nothing else, until `shutdown` completes.
pub async fn serve(
    pages: Router,
    listener: impl Into<Listener>,
    shutdown: impl Future<Output = ()> + Send,
) -> DrainReport {
    let router = pages.fallback(|| async { plain(StatusCode::NOT_FOUND, "only /vcr/... is answered here") });
    serve_router(router, listener, shutdown).await
}

/// Serves an operator's routes until `shutdown` completes; a request may go on for 100 ms after it.
pub async fn serve_router(
    router: Router,
    listener: impl Into<Listener>,
    shutdown: impl Future<Output = ()> + Send,
) -> DrainReport {
    let service = move |request, _| {
        let answering = router.clone().call(request);
        async move { answering.await.unwrap_or_else(|never: Infallible| match never {}) }
    };
    server::run(listener, service, shutdown, DRAIN).await
}

/// State that the routes share.
#[derive(Clone)]
struct Desk {
    ledger: Arc<dyn Ledger>,
    access: Access,
}

/// The routes of `/vcr/…`. The extractor of every handler checks the caller.
pub fn router(ledger: Arc<dyn Ledger>, access: Access) -> Router {
    Router::new()
        .route("/vcr/report", get(|it: AdminRequest| async move { ok(&it.ledger.report(it.session()).json(&[])) }))
        .route("/vcr/verify", post(verify))
        .route("/vcr/unconsumed", get(unconsumed))
        .route("/vcr/misses", get(|it: AdminRequest| async move { ok(&it.ledger.misses(it.session()).into()) }))
        .route("/vcr/misses/{number}", get(miss))
        .route("/vcr/requests", get(|it: AdminRequest| async move { ok(&it.ledger.requests(it.session()).into()) }))
        .route("/vcr/clock", get(clock))
        .route("/vcr/reset", post(reset))
        .route("/vcr/records", get(|it: AdminRequest| async move { ok(&it.ledger.records(it.session()).into()) }))
        .route("/vcr/records/{index}", get(record))
        .route("/vcr/sessions", get(sessions).post(open))
        .route("/vcr/sessions/{name}", delete(end))
        .route("/vcr/", any(unknown))
        .route("/vcr/{*path}", any(unknown))
        .method_not_allowed_fallback(unknown)
        .with_state(Desk { ledger, access })
}

type AdminResponse = Response<ResponseBody>;

/// A call that was let in: the session that it is about, all of them without one, what becomes of what that recorded, and the body: a
/// JSON object, or null for none.
struct AdminRequest {
    ledger: Arc<dyn Ledger>,
    session: Option<String>,
    recorded: SessionRecording,
    body: Value,
}

impl FromRequest<Desk> for AdminRequest {
    type Rejection = AdminResponse;

    async fn from_request(request: Request, Desk { ledger, access }: &Desk) -> Result<Self, AdminResponse> {
        let refused = |(status, message)| error(status, message);
        let (parts, body) = request.into_parts();
        access.check(&parts).map_err(refused)?;
        let body = read(body, LARGEST_BODY).await?;
        if !body.is_empty() {
            check_type(&parts.headers).map_err(refused)?;
        }
        let body = match String::from_utf8_lossy(&body) {
            none if none.is_empty() => Value::Null,
            text => serde_json::from_str(&text).unwrap_or_else(|_| Value::from(text)),
        };
        let query = Query::new(parts.uri.query());
        let named = |name| query.all(name).pop().or_else(|| body.get(name).and_then(Value::as_str)).map(str::to_owned);
        let (session, recorded) = (named("session"), named("recorded"));
        let recorded = recorded.map_or(Ok(SessionRecording::Keep), |word| word.parse());
        let recorded = recorded.map_err(|unknown| wrong(&**ledger, StatusCode::BAD_REQUEST, &unknown))?;
        if !(body.is_null() || body.is_object()) {
            return Err(error(StatusCode::BAD_REQUEST, "the body has to be a JSON object"));
        }
        match session.as_deref().filter(|name| !ledger.knows(name)) {
            Some(name) => Err(wrong(&**ledger, StatusCode::NOT_FOUND, &format!("no such session: {name}"))),
            None => Ok(Self { ledger: Arc::clone(ledger), session, recorded, body }),
        }
    }
}

impl AdminRequest {
    fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }
}

async fn unconsumed(it: AdminRequest) -> AdminResponse {
    ok(&it.ledger.report(it.session()).unconsumed().into())
}

async fn miss(Path(number): Path<String>, it: AdminRequest) -> AdminResponse {
    let found = number.parse::<u64>().ok().and_then(|number| it.ledger.miss(number));
    found.map_or_else(|| error(StatusCode::NOT_FOUND, "no such miss"), |miss| ok(&miss))
}

/// The time of the recording, also in seconds since 1970 for programs that freeze their clock there.
async fn clock(it: AdminRequest) -> AdminResponse {
    let base_time = it.ledger.clock(it.session());
    let parsed = base_time.as_deref().and_then(|time| OffsetDateTime::parse(time, &Rfc3339).ok());
    ok(&json!({"base_time": base_time, "unix": parsed.map(OffsetDateTime::unix_timestamp)}))
}

async fn verify(it: AdminRequest) -> AdminResponse {
    let named = it.body.get("fail_on").and_then(Value::as_array);
    let concerns: Result<Vec<Concern>, UnknownConcern> = match named {
        None => Ok(vec![Concern::Miss, Concern::Unconsumed]),
        Some(names) => names.iter().map(|name| name.as_str().unwrap_or_default().parse()).collect(),
    };
    let concerns = match concerns {
        Ok(concerns) => concerns,
        Err(unknown) => return wrong(&*it.ledger, StatusCode::BAD_REQUEST, &unknown.to_string()),
    };
    let report = it.ledger.report(it.session()).of_now();
    let status = if report.failing(&concerns).is_empty() { 200 } else { 409 };
    whole(status, "application/json", report.json(&concerns).to_string())
}

async fn reset(it: AdminRequest) -> AdminResponse {
    let session = it.session();
    if session.is_none() && it.body.as_object().is_some_and(|body| !body.is_empty()) {
        return error(
            StatusCode::BAD_REQUEST,
            "a reset takes a session and nothing else; without one it is of all sessions",
        );
    }
    it.ledger.reset(session);
    ok(&json!({"reset": session.map_or(json!("all"), Value::from)}))
}

async fn record(Path(index): Path<String>, it: AdminRequest) -> AdminResponse {
    let found = index.parse::<usize>().ok().and_then(|index| it.ledger.record(index, it.session()));
    found.map_or_else(|| error(StatusCode::NOT_FOUND, "no such record"), |record| ok(&record))
}

async fn sessions(AdminRequest { ledger, .. }: AdminRequest) -> AdminResponse {
    ok(&ledger.sessions().iter().map(|name| shown_session(&*ledger, name)).collect())
}

/// Opens a session; its files are read on a thread where they hold up no request.
async fn open(AdminRequest { ledger, body, .. }: AdminRequest) -> AdminResponse {
    let opening = Arc::clone(&ledger);
    match tokio::task::spawn_blocking(move || opening.open(&body)).await {
        Ok(Ok(name)) => whole(201, "application/json", shown_session(&*ledger, &name).to_string()),
        Ok(Err(why)) => wrong(&*ledger, StatusCode::BAD_REQUEST, &why),
        Err(_) => error(StatusCode::INTERNAL_SERVER_ERROR, "the session could not be opened"),
    }
}

async fn end(Path(name): Path<String>, AdminRequest { ledger, recorded, .. }: AdminRequest) -> AdminResponse {
    let report = ledger.report(Some(&name));
    let ending = Arc::clone(&ledger);
    match tokio::task::spawn_blocking(move || ending.end(&name, recorded)).await {
        Ok(Ok(true)) => ok(&report.json(&[])),
        Ok(Ok(false)) => error(StatusCode::NOT_FOUND, "no such session"),
        Ok(Err(why)) => wrong(&*ledger, StatusCode::INTERNAL_SERVER_ERROR, &why),
        Err(_) => error(StatusCode::INTERNAL_SERVER_ERROR, "the session could not be closed"),
    }
}

async fn unknown(_: AdminRequest) -> AdminResponse {
    error(
        StatusCode::NOT_FOUND,
        "no such page: report, verify, unconsumed, misses, requests, records, sessions, reset, clock",
    )
}

/// A session with its paths; `env` has those that clients' libraries look for, by the names of their variables.
fn shown_session(ledger: &dyn Ledger, name: &str) -> Value {
    let root = format!("/vcr/s/{name}");
    let base_url = format!("{root}/v1");
    json!({"name": name, "base_url": base_url, "env": client_urls(&root, &ledger.upstreams(name))})
}

/// Returns the environment variables in which clients' libraries look for a server, with the URLs below `root`, which has no `/` at its
/// end. Each of the `upstreams` is at a URL of its own, `VLLM_VCR_URL_NAME`; those called `openai` and `anthropic` are what the clients of these find.
#[must_use]
pub fn client_urls(root: &str, upstreams: &BTreeSet<String>) -> BTreeMap<String, String> {
    let of = |name: &str| match upstreams.contains(name) {
        true => format!("{root}/vcr/u/{name}"),
        false => root.to_owned(),
    };
    let openai = format!("{}/v1", of("openai"));
    let usual = [
        ("OPENAI_BASE_URL", openai.clone()),
        ("OPENAI_API_BASE", openai),
        ("ANTHROPIC_BASE_URL", of("anthropic")),
        ("VLLM_VCR_URL", root.to_owned()),
    ];
    let usual = usual.map(|(name, url)| (name.to_owned(), url));
    let named = upstreams.iter().map(|name| (format!("VLLM_VCR_URL_{}", variable(name)), of(name)));
    usual.into_iter().chain(named).collect()
}

fn variable(name: &str) -> String {
    let word = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' };
    name.chars().map(word).collect()
}

/// An error that repeats something of the request, without the secrets in it.
fn wrong(ledger: &dyn Ledger, status: StatusCode, message: &str) -> AdminResponse {
    error(status, &ledger.shown(message))
}

fn ok(body: &Value) -> AdminResponse {
    whole(200, "application/json", body.to_string())
}

fn error(status: StatusCode, message: &str) -> AdminResponse {
    whole(status.as_u16(), "application/json", json!({"error": message}).to_string())
}
