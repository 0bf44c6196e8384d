//! Reading of a request: its session, whether the player answers it at all, its body.

pub(crate) mod body;

use std::sync::{Arc, atomic::Ordering::Relaxed};

use http::{Extensions, HeaderMap, Method, Request, StatusCode, header, request::Parts};
use serde_json::Value;

use crate::{
    account::{
        DEFAULT_SESSION,
        http::{plain, read},
        session_of, upstream_of,
    },
    player::{
        CassettePlayer, Decided, Decision, PlayerConfig, Unanswered,
        config::forwarding::Forwarding,
        decide::ReceivedRequest,
        incoming::{IncomingRequest, upstream_header},
    },
};
use api::endpoints::route;
use net::{server::RequestBody, wire::percent_decoded};
use recording::{
    canonical::{boundary, upstream_suffix},
    redaction::Redactor,
};

/// Maximum number of sessions: any request may name a new one.
const MOST_SESSIONS: usize = 10_000;

impl CassettePlayer {
    /// Reads a request for which a record may be looked for.
    ///
    /// # Errors
    /// With the decision, where none is: it cannot be read, or the server around the player answers it.
    pub async fn receive(
        self: &Arc<Self>,
        request: Request<RequestBody>,
    ) -> Result<Box<ReceivedRequest>, Box<Decided>> {
        let (parts, body) = request.into_parts();
        let here = |decision| Box::new(Decided { decision, session: None, cassette_player: Arc::clone(self) });
        let refused = |why: &str| here(Decision::Answer(plain(StatusCode::BAD_REQUEST, why)));
        let session = self.session_in(&parts.extensions, &parts.headers).map_err(|why| refused(&why))?;
        let cassette_player = self.own_of(&session).unwrap_or_else(|| Arc::clone(self));
        if cassette_player.is_foreign(&parts) {
            self.passed.fetch_add(1, Relaxed);
            return Err(here(Decision::Pass(Request::from_parts(parts, body))));
        }
        let body = read(body, self.config.body_limit).await.map_err(|refusal| here(Decision::Answer(refusal)))?;
        let request = IncomingRequest::new(parts, body, session, &cassette_player.config);
        Ok(Box::new(ReceivedRequest { request, cassette_player }))
    }

    /// The session of a request, one that is known or may begin; why there is none, or no upstream that it may name.
    pub(super) fn session_in(&self, extensions: &Extensions, headers: &HeaderMap) -> Result<String, String> {
        let named = session_of(extensions, headers, &self.config.secrets).map_err(|wrong| wrong.to_string())?;
        upstream_of(extensions).map_err(|wrong| wrong.to_string())?;
        let Some(session) = named else { return Ok(DEFAULT_SESSION.to_owned()) };
        let sessions = self.sessions.lock();
        if sessions.len() < MOST_SESSIONS || sessions.contains_key(&session) {
            return Ok(session);
        }
        Err(format!("there are {MOST_SESSIONS} sessions, which is the most; end one with DELETE /vcr/sessions/NAME"))
    }

    /// The player of a session that differs from the others.
    pub(super) fn own_of(&self, session: &str) -> Option<Arc<Self>> {
        self.sessions.lock().get(session)?.own.clone()
    }

    /// Returns whether the server around the player answers a request: one that only reads, or that only a tokenizer needs, unless
    /// it was recorded. What is asked of the API is recorded, whether anything was posted or not; whether the server is
    /// alive and how it does is not.
    fn is_foreign(&self, parts: &Parts) -> bool {
        let (method, path) = (&parts.method, &*percent_decoded(parts.uri.path()));
        let upstream = upstream_suffix(upstream_header(&parts.extensions).as_slice());
        if self.has_route(method, path, &upstream) {
            return false;
        }
        let PlayerConfig { selection, mode, on_miss, .. } = &self.config;
        let boundary = boundary(method.as_str(), path, &Value::Null) + &upstream;
        let is_selected = matches!(selection.decide(*mode, *on_miss, &boundary, path), Forwarding::Now { .. });
        let looks = [Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
        let of_api = method == Method::GET && path.starts_with("/v1/") && !parts.headers.contains_key(header::UPGRADE);
        let may_leave = (mode.records() || is_selected) && (!looks || of_api);
        let counts = route(path).is_some_and(|route| route.only_tokenizes);
        let is_unanswered = parts.extensions.get::<Unanswered>().is_some();
        // Nothing of another kind could have been recorded as a model's answer, nor have an answer without a record.
        (looks || counts || !(boundary.starts_with("llm:") || is_unanswered)) && !may_leave
    }

    /// Returns whether any record has this route; records have paths without their secrets.
    fn has_route(&self, method: &Method, path: &str, upstream: &str) -> bool {
        let has = |path: &str| self.index.has_route(method.as_str(), &format!("{path}{upstream}"));
        let is_ruled = || self.answer_rules().is_some_and(|rules| rules.has_route(method, path));
        has(path) || is_ruled() || Redactor::new(&self.config.secrets).text(path).is_some_and(|shown| has(&shown))
    }
}
