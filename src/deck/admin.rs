//! `/vcr/…`: what was served, for tests in any language.

use std::sync::Arc;

use http::{Method, Response, StatusCode, request::Parts};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::{Concern, Deck, Room, body::value_of, request, whole};
use crate::{openai::Query, redaction::Redactor, serve::AnswerBody};

/// More than any question of these needs.
const LARGEST_BODY: usize = 1 << 20;

impl Deck {
    /// Answers a question about the deck itself.
    pub(super) async fn administer(self: &Arc<Self>, parts: &Parts, body: Incoming) -> Response<AnswerBody> {
        let body = match request::read(body, LARGEST_BODY).await {
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
        if let Some(name) = session.filter(|name| !self.knows(name)) {
            return self.wrong(StatusCode::NOT_FOUND, &format!("no such session: {name}"));
        }
        match (&parts.method, path) {
            (&Method::GET, "report") => ok(&self.report(session).json(&[])),
            (&Method::POST, "verify") => self.verify(session, &body),
            (&Method::GET, "unconsumed") => {
                let report = self.report(session);
                ok(&report
                    .sessions
                    .values()
                    .flat_map(|session| &session.unconsumed)
                    .collect::<Vec<_>>()
                    .into_iter()
                    .cloned()
                    .collect())
            }
            (&Method::GET, "misses") => ok(&self.misses(session)),
            (&Method::POST, "reset") if session.is_none() && body.as_object().is_some_and(|body| !body.is_empty()) => {
                error(
                    StatusCode::BAD_REQUEST,
                    "a reset takes a session and nothing else; without one it is of all sessions",
                )
            }
            (&Method::POST, "reset") => {
                self.reset(session);
                ok(&json!({"reset": session.map_or(json!("all"), Value::from)}))
            }
            (&Method::GET, "records") => {
                let deck = self.of_session(session);
                ok(&(0..deck.records.len()).map(|at| deck.shown(at, session)).collect())
            }
            (&Method::GET, path) if path.starts_with("records/") => self.of_session(session).one_record(path, session),
            (&Method::GET, "sessions") => ok(&self.lock().keys().map(|name| shown_session(name)).collect()),
            (&Method::POST, "sessions") => self.opened(body).await,
            (&Method::DELETE, path) if path.starts_with("sessions/") => {
                self.closed(path.trim_start_matches("sessions/").to_owned()).await
            }
            _ => error(
                StatusCode::NOT_FOUND,
                "no such question: report, verify, unconsumed, misses, reset, records, sessions",
            ),
        }
    }

    /// An error that repeats something of the question, without the secrets in it.
    fn wrong(&self, status: StatusCode, message: &str) -> Response<AnswerBody> {
        error(status, Redactor::new(&self.config.secrets).text(message).as_deref().unwrap_or(message))
    }

    /// Whether a session was opened or used.
    fn knows(&self, session: &str) -> bool {
        session == request::DEFAULT_SESSION || self.lock().contains_key(session)
    }

    fn verify(&self, session: Option<&str>, body: &Value) -> Response<AnswerBody> {
        let named = body.get("fail_on").and_then(Value::as_array);
        let concerns = match named {
            None => Ok(vec![Concern::Miss, Concern::Unconsumed]),
            Some(names) => names.iter().map(|name| name.as_str().unwrap_or_default().parse()).collect(),
        };
        let concerns: Vec<Concern> = match concerns {
            Ok(concerns) => concerns,
            Err(wrong) => {
                return self.wrong(StatusCode::BAD_REQUEST, &super::report::UnknownConcern::to_string(&wrong));
            }
        };
        let report = self.report(session);
        let status = if report.failing(&concerns).is_empty() { 200 } else { 409 };
        whole(status, "application/json", report.json(&concerns).to_string())
    }

    fn misses(&self, session: Option<&str>) -> Value {
        let sessions = self.lock();
        let wanted = sessions.iter().filter(|(name, _)| session.is_none_or(|session| session == *name));
        let of_room = |(name, room): (&String, &Room)| match &room.own {
            Some(own) => own.lock().get(name).map(|room| room.misses.clone()).unwrap_or_default(),
            None => room.misses.clone(),
        };
        wanted.flat_map(of_room).collect()
    }

    fn reset(&self, session: Option<&str>) {
        let mut sessions = self.lock();
        match session {
            None => sessions.values_mut().for_each(rewind),
            Some(name) => sessions.get_mut(name).into_iter().for_each(rewind),
        }
    }

    /// The deck that serves a session.
    fn of_session(self: &Arc<Self>, session: Option<&str>) -> Arc<Self> {
        let own = session.and_then(|name| self.lock().get(name)?.own.clone());
        own.unwrap_or_else(|| Arc::clone(self))
    }

    /// A record without its bodies.
    fn shown(&self, at: usize, session: Option<&str>) -> Value {
        let name = session.unwrap_or(request::DEFAULT_SESSION);
        let times = self.lock().get(name).map_or(0, |room| room.session.times(at));
        let identity = self.tape.identity(at);
        let line = self.records.get(at).map(|(_, record)| record.line);
        json!({"index": at, "record": self.name_of(at), "line": line, "at": identity.map(|it| it.boundary.clone()),
            "route": identity.map(|it| it.route.clone()), "served": times})
    }

    fn one_record(&self, path: &str, session: Option<&str>) -> Response<AnswerBody> {
        let index = path.trim_start_matches("records/").parse::<usize>().ok();
        let Some((at, (_, record))) = index.and_then(|at| Some((at, self.records.get(at)?))) else {
            return error(StatusCode::NOT_FOUND, "no such record");
        };
        let mut shown = self.shown(at, session);
        if let Some(fields) = shown.as_object_mut() {
            fields.insert("body".to_owned(), super::secrets::shown_record(&self.config.secrets, record));
            fields.insert("status".to_owned(), record.answer.status.into());
        }
        ok(&shown)
    }

    /// Opens a session; its files are read where nobody waits for it.
    async fn opened(self: &Arc<Self>, asked: Value) -> Response<AnswerBody> {
        let deck = Arc::clone(self);
        match tokio::task::spawn_blocking(move || deck.open_session(&asked)).await {
            Ok(Ok(name)) => whole(201, "application/json", shown_session(&name).to_string()),
            Ok(Err(wrong)) => self.wrong(StatusCode::BAD_REQUEST, &wrong.to_string()),
            Err(_) => error(StatusCode::INTERNAL_SERVER_ERROR, "the session could not be opened"),
        }
    }

    async fn closed(self: &Arc<Self>, name: String) -> Response<AnswerBody> {
        let report = self.report(Some(&name));
        let deck = Arc::clone(self);
        match tokio::task::spawn_blocking(move || deck.end_session(&name)).await {
            Ok(Ok(true)) => ok(&report.json(&[])),
            Ok(Ok(false)) => error(StatusCode::NOT_FOUND, "no such session"),
            Ok(Err(wrong)) => self.wrong(StatusCode::INTERNAL_SERVER_ERROR, &wrong.to_string()),
            Err(_) => error(StatusCode::INTERNAL_SERVER_ERROR, "the session could not be closed"),
        }
    }
}

/// Forgets what was served; the cassettes of a session stay its own.
fn rewind(room: &mut Room) {
    let own = room.own.take();
    own.iter().for_each(|own| own.reset(None));
    *room = Room { own, ..Room::default() };
}

fn shown_session(name: &str) -> Value {
    json!({"name": name, "base_url": format!("/vcr/s/{name}/v1")})
}

fn ok(body: &Value) -> Response<AnswerBody> {
    whole(200, "application/json", body.to_string())
}

fn error(status: StatusCode, message: &str) -> Response<AnswerBody> {
    whole(status.as_u16(), "application/json", json!({"error": message}).to_string())
}
