//! Reading of a request: its session, whether the player answers it at all, its body.

pub(in crate::player) mod body;

use std::sync::{Arc, atomic::Ordering::Relaxed};

use bytes::Bytes;
use http::{Extensions, HeaderMap, Method, Request, StatusCode, header, request::Parts, uri::PathAndQuery};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    account::{
        DEFAULT_SESSION,
        http::{plain, read},
        session_of, upstream_of,
    },
    matching::{named_later::NamedSecret, requests::Retry},
    player::{
        CassettePlayer, Decided, Decision, PlayerConfig, Unanswered, config::forwarding::Forwarding,
        decide::ReceivedRequest, receive::body::ReadBody, secrets,
    },
};
use api::endpoints::route;
use net::{server::RequestBody, wire::percent_decoded};
use recording::{
    canonical::{Identity, RequestParts, SharedBody, UPSTREAM_HEADER, boundary, upstream_suffix},
    redaction::{Redactor, SeenSecrets},
};

/// Maximum number of sessions: any request may name a new one.
pub(super) const MOST_SESSIONS: usize = 10_000;

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
        let session = session_of(&parts.extensions, &parts.headers, &self.config.secrets);
        let session = session.map_err(|wrong| refused(&wrong.to_string()))?;
        upstream_of(&parts.extensions).map_err(|wrong| refused(&wrong.to_string()))?;
        let session = session.unwrap_or_else(|| DEFAULT_SESSION.to_owned());
        if !self.has_room_for(&session) {
            return Err(refused(&format!(
                "there are {MOST_SESSIONS} sessions, which is the most; end one with DELETE /vcr/sessions/NAME"
            )));
        }
        let own = self.lock().get(&session).and_then(|state| state.own.clone());
        let cassette_player = own.unwrap_or_else(|| Arc::clone(self));
        if cassette_player.is_foreign(&parts) {
            self.passed.fetch_add(1, Relaxed);
            return Err(here(Decision::Pass(Request::from_parts(parts, body))));
        }
        let body = read(body, self.config.body_limit).await.map_err(|refusal| here(Decision::Answer(refusal)))?;
        let at = Instant::now();
        let asked = IncomingRequest::new(parts, body, session, &cassette_player.config);
        Ok(Box::new(ReceivedRequest { asked, at, cassette_player }))
    }

    /// Returns whether a session is known, or may begin.
    pub(super) fn has_room_for(&self, session: &str) -> bool {
        let sessions = self.lock();
        session == DEFAULT_SESSION || sessions.len() < MOST_SESSIONS || sessions.contains_key(session)
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
        let is_selected = matches!(selection.decide(*mode, *on_miss, &boundary, path), Forwarding::Now(_));
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

/// A request that was read.
#[derive(Debug, Clone)]
pub(in crate::player) struct IncomingRequest {
    pub(in crate::player) parts: Parts,
    pub(in crate::player) bytes: Bytes,
    /// JSON where it is, else text; null for none.
    pub(in crate::player) body: SharedBody,
    /// The body where it is neither.
    pub(in crate::player) raw: Option<Vec<u8>>,
    /// The body without its secrets, bytes by their name.
    pub(in crate::player) shown: SharedBody,
    /// Its secrets, with the placeholders that stand for them.
    pub(in crate::player) seen: SeenSecrets,
    /// The headers that count, without their secrets.
    pub(in crate::player) counted: Vec<(String, String)>,
    pub(in crate::player) session: String,
    pub(in crate::player) identity: Identity,
    /// What was delivered of the answer that it continues.
    pub(in crate::player) delivered: Option<String>,
}

impl IncomingRequest {
    pub(in crate::player) fn new(parts: Parts, bytes: Bytes, session: String, config: &PlayerConfig) -> Self {
        Self::knowing(&[], (parts, bytes), session, config)
    }

    /// The same request, in which these values are secrets too.
    pub(in crate::player) fn with_secrets(&self, secrets: &[NamedSecret], config: &PlayerConfig) -> Self {
        Self::knowing(secrets, (self.parts.clone(), self.bytes.clone()), self.session.clone(), config)
    }

    fn knowing(known: &[NamedSecret], (parts, bytes): (Parts, Bytes), session: String, config: &PlayerConfig) -> Self {
        let rules = &config.rules;
        let ReadBody { value: body, raw } = ReadBody::read(&parts.headers, &bytes, config.body_limit);
        let mut headers = texts(&parts.headers, |name| rules.headers.iter().any(|counted| counted == name));
        headers.extend(upstream_header(&parts.extensions));
        let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let mut redactor = Redactor::new(&config.secrets);
        known.iter().for_each(|(placeholder, value)| redactor.learn_placed(value, placeholder));
        let body = SharedBody::from(body);
        secrets::learn_request(&mut redactor, path, &headers);
        let (shown, _) = secrets::shown_body(&mut redactor, &body, None);
        let path = secrets::shown_path(&mut redactor, path);
        let shown = raw.as_deref().map_or(shown, |raw| secrets::shown_bytes(&mut redactor, raw).into());
        let counted = secrets::headers_by(&mut redactor, headers);
        let call = RequestParts { method: parts.method.as_str(), path: &path, headers: &counted, body: &shown };
        let identity = rules.identify(&call);
        let seen = redactor.seen();
        Self { identity, parts, bytes, body, raw, shown, seen, counted, session, delivered: None }
    }

    /// The same request, which continues an answer of which this was delivered.
    pub(in crate::player) fn continuing(&self, delivered: String) -> Self {
        Self { delivered: Some(delivered), ..self.clone() }
    }

    pub(in crate::player) fn header(&self, name: &str) -> Option<&str> {
        self.parts.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(in crate::player) fn path(&self) -> &str {
        self.parts.uri.path()
    }

    /// Path and query.
    pub(in crate::player) fn target(&self) -> &str {
        self.parts.uri.path_and_query().map_or("/", PathAndQuery::as_str)
    }

    pub(in crate::player) fn streams(&self) -> bool {
        self.body.get("stream") == Some(&Value::Bool(true))
    }

    /// Counts the choices that an engine would generate: `n` for each prompt.
    pub(in crate::player) fn choices(&self) -> u64 {
        let of_each = self.body.get("n").and_then(Value::as_u64).unwrap_or(1).max(1);
        let prompts = match self.body.get("prompt").and_then(Value::as_array) {
            Some(prompts) if prompts.first().is_some_and(|prompt| !prompt.is_number()) => prompts.len(),
            _ => 1,
        };
        of_each.saturating_mul(prompts as u64)
    }

    pub(in crate::player) fn wants_usage(&self) -> bool {
        wants_usage(&self.body)
    }

    /// The id that its client gave it, in a header or in the body.
    pub(in crate::player) fn request_id(&self) -> Option<&str> {
        self.header("x-request-id").or_else(|| self.body.get("request_id").and_then(Value::as_str))
    }

    pub(in crate::player) fn retry(&self) -> Retry {
        let count = self.header("x-stainless-retry-count").and_then(|count| count.parse::<u32>().ok());
        if count.is_some_and(|count| count > 0) { Retry::Again } else { Retry::First }
    }

    /// The request as it came.
    pub(in crate::player) fn into_request(self) -> Request<RequestBody> {
        Request::from_parts(self.parts, RequestBody::Read(Some(self.bytes)))
    }
}

/// The upstream that a request names, as the header by which it counts.
pub(in crate::player) fn upstream_header(extensions: &Extensions) -> Option<(String, String)> {
    let named = upstream_of(extensions).ok().flatten()?;
    Some((UPSTREAM_HEADER.to_owned(), named.to_owned()))
}

/// Returns whether a stream is to end with token counts.
pub(in crate::player) fn wants_usage(body: &SharedBody) -> bool {
    body.get("stream_options").and_then(|options| options.get("include_usage")) == Some(&Value::Bool(true))
}

/// Headers by name, those that are wanted.
pub(in crate::player) fn texts(headers: &HeaderMap, wanted: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let wanted = headers.iter().filter(|(name, _)| wanted(name.as_str()));
    wanted
        .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect()
}
