//! Requests of MCP that go to the real servers, whose responses pass as they are.
//!
//! A session that a client began here has one of its own at the real server. It is opened with the client's own `initialize` when the first
//! request goes there, and once more where the server has forgotten it. Requests of the modern era need none.
//!
//! Limits: the stream of a GET is not opened there: what a real server sends outside of the responses to requests does not arrive.
//!
//! See docs/decisions/0092-novel-calls-go-to-the-real-server.md.

use std::{
    collections::HashMap,
    hash::RandomState,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header, request::Parts};
use http_body::Body as _;
use http_body_util::Full;
use serde_json::Value;
use tokio::sync::Mutex as AsyncMutex;

use super::opening::{Failed, Opened, open, whole};
use crate::{
    base::bounded_cache::BoundedCache,
    net::upstream::{self, BodyObserver, NamedEndpoint, Observed, Relayed, Upstream, UpstreamBody},
    recording::cassette::CassetteError,
    replay::mcp::{Forward, Place},
    replay::mcp_traffic::{Copies, End, JournalNotes, McpRecorded, SESSION, Traffic},
    replay::player::CassettePlayer,
};

/// Sessions of one real server that are remembered.
const MOST_SESSIONS: usize = 10_000;

/// Bytes of a refusal that are read.
const MOST_REFUSAL: usize = 1 << 20;

/// A response of a real server.
type Received = Response<UpstreamBody<Full<Bytes>>>;

/// A session of a client, and the session at the real server.
type Slots = BoundedCache<Place, Arc<AsyncMutex<Opened>>, RandomState>;

/// The real servers of a player.
#[derive(Debug)]
pub(in crate::play) struct Upstreams {
    sites: Vec<Site>,
    /// `None` where nothing is recorded.
    traffic: Option<Arc<Traffic>>,
    player: Arc<CassettePlayer>,
}

/// A real server.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) endpoint: NamedEndpoint,
    pub(super) upstream: Upstream<Full<Bytes>>,
    slots: Mutex<Slots>,
}

/// A message to a real server.
pub(super) struct Outgoing<'a> {
    /// Name of the server.
    pub(super) server: &'a str,
    /// The session of the account.
    pub(super) session: &'a str,
    /// Method and headers, as the client sent them.
    pub(super) parts: &'a Parts,
    pub(super) body: Bytes,
}

impl Upstreams {
    /// The servers of a player; `None` where there are none.
    ///
    /// # Errors
    /// When the recorder cannot be started.
    pub(in crate::play) fn start(player: &Arc<CassettePlayer>) -> Result<Option<Self>, CassetteError> {
        let endpoints = player.mcp_upstreams();
        if endpoints.is_empty() {
            return Ok(None);
        }
        let site = |endpoint: &NamedEndpoint| Site {
            upstream: Upstream::new(endpoint.url.origin().clone(), player.reach()),
            endpoint: endpoint.clone(),
            slots: Mutex::new(BoundedCache::new(MOST_SESSIONS, 1)),
        };
        let names = endpoints.iter().map(|endpoint| endpoint.name.clone()).collect();
        let sites = endpoints.iter().map(site).collect();
        let traffic = Traffic::start(names, Arc::clone(player), JournalNotes::Elsewhere)?;
        Ok(Some(Self { sites, traffic: Some(Arc::new(traffic)), player: Arc::clone(player) }))
    }

    /// Ends the recording; blocks until the records are handed over.
    pub(in crate::play) fn finish(&self) -> Option<McpRecorded> {
        self.traffic.as_ref()?.finish()
    }

    /// Whether all messages to a server go to the real one.
    pub(super) fn passes_all(&self, server: &str) -> bool {
        self.player.is_comparing() && self.site(server).is_some()
    }

    /// Forwards a message that no record answers; an error is the answer to its request.
    pub(super) async fn forward(&self, outgoing: &Outgoing<'_>, forward: &Forward, place: Option<&Place>) -> Response {
        let Some((at, site)) = self.site(outgoing.server) else {
            return Failed::Unknown.response(outgoing.server, forward.id.as_ref());
        };
        match self.answer((at, site), outgoing, forward, place).await {
            Ok(response) => response,
            Err(failed) => {
                tracing::warn!(server = outgoing.server, "{failed}");
                failed.response(outgoing.server, forward.id.as_ref())
            }
        }
    }

    async fn answer(
        &self,
        (at, site): (usize, &Site),
        outgoing: &Outgoing<'_>,
        forward: &Forward,
        place: Option<&Place>,
    ) -> Result<Response, Failed> {
        let opening = forward.opening.as_ref().zip(place);
        let opened = match opening {
            Some((opening, place)) => site.opened(place, opening, &outgoing.parts.headers).await?,
            None => Opened::default(),
        };
        let (mut response, mut copies) = self.send((at, site), outgoing, forward, &opened).await?;
        if let (Some((opening, place)), StatusCode::NOT_FOUND) = (opening, response.status())
            && opened.session.is_some()
        {
            // The server has forgotten the session.
            copies.answered(response.status(), response.headers());
            copies.ended(End::Whole);
            site.forget(place, &opened).await;
            let opened = site.opened(place, opening, &outgoing.parts.headers).await?;
            (response, copies) = self.send((at, site), outgoing, forward, &opened).await?;
        }
        copies.answered(response.status(), response.headers());
        if !response.status().is_success() {
            return refused(response, copies, forward).await;
        }
        if let (Some(_), Some(place)) = (&forward.session, place) {
            site.keep(place, response.headers()).await;
        }
        let mut response = observed(response, copies);
        let named = forward.session.as_deref().and_then(|session| HeaderValue::from_str(session).ok());
        response.headers_mut().remove(SESSION);
        named.map(|session| response.headers_mut().insert(SESSION, session));
        Ok(response)
    }

    async fn send(
        &self,
        (at, site): (usize, &Site),
        outgoing: &Outgoing<'_>,
        forward: &Forward,
        opened: &Opened,
    ) -> Result<(Received, Copies), Failed> {
        let mut request = site.request(outgoing.parts, outgoing.body.clone());
        opened.put_into(request.headers_mut());
        let (parts, body) = request.into_parts();
        let place = forward.is_recorded.then(|| self.player.place_in(outgoing.session)).flatten();
        let traffic = self.traffic.as_ref().filter(|_| place.is_some());
        let begin = |traffic: &Arc<Traffic>| traffic.begin(at, &parts, Some(outgoing.body.clone()), place);
        let mut copies = traffic.map_or_else(Copies::none, begin);
        match site.upstream.send(Request::from_parts(parts, body)).await {
            Ok(response) => Ok((response, copies)),
            Err(error) => {
                copies.ended(End::Unanswered);
                Err(Failed::Unanswered(error))
            }
        }
    }

    /// Forwards a message as it is, whatever is recorded, so that its answer can be compared.
    pub(super) async fn pass(&self, outgoing: &Outgoing<'_>) -> Response {
        let Some((at, site)) = self.site(outgoing.server) else {
            return Failed::Unknown.response(outgoing.server, None);
        };
        let mut request = site.request(outgoing.parts, outgoing.body.clone());
        let headers = [SESSION, "last-event-id"].map(|name| (name, outgoing.parts.headers.get(name).cloned()));
        for (name, value) in headers {
            value.map(|value| request.headers_mut().insert(name, value));
        }
        let (parts, body) = request.into_parts();
        let begin = |traffic: &Arc<Traffic>| traffic.begin(at, &parts, Some(outgoing.body.clone()), None);
        let mut copies = self.traffic.as_ref().map_or_else(Copies::none, begin);
        match site.upstream.send(Request::from_parts(parts, body)).await {
            Ok(response) => {
                copies.answered(response.status(), response.headers());
                observed(response, copies)
            }
            Err(error) => {
                copies.ended(End::Unanswered);
                let id = id_of(&outgoing.body);
                Failed::Unanswered(error).response(outgoing.server, id.as_ref())
            }
        }
    }

    /// Ends the session at the real server, if there is one.
    pub(super) fn end(self: &Arc<Self>, server: &str, place: Place, parts: &Parts) {
        let Some((at, _)) = self.site(server) else { return };
        let (upstreams, parts) = (Arc::clone(self), parts.clone());
        tokio::spawn(async move {
            let Some(site) = upstreams.sites.get(at) else { return };
            let opened = std::mem::take(&mut *site.slot(&place).lock().await);
            if opened.session.is_some() {
                let mut request = site.request(&parts, Bytes::new());
                opened.put_into(request.headers_mut());
                let (parts, body) = request.into_parts();
                let traffic = upstreams.traffic.as_ref().filter(|_| upstreams.player.is_recording());
                // The recorder need not wait for further messages of the session.
                let begin = |traffic: &Arc<Traffic>| traffic.begin(at, &parts, None, None);
                let mut copies = traffic.map_or_else(Copies::none, begin);
                if let Ok(response) = site.upstream.send(Request::from_parts(parts, body)).await {
                    copies.answered(response.status(), response.headers());
                }
                copies.ended(End::Whole);
            }
        });
    }

    fn site(&self, server: &str) -> Option<(usize, &Site)> {
        self.sites.iter().enumerate().find(|(_, site)| site.endpoint.name == server)
    }
}

impl Site {
    /// A request with a client's headers but those of its session here.
    pub(super) fn request(&self, parts: &Parts, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = parts.method.clone();
        *request.uri_mut() = self.endpoint.url.target("", parts.uri.query()).into();
        let mut headers = parts.headers.clone();
        upstream::remove(&mut headers, |name| {
            let own = [SESSION, "x-vcr-session", "last-event-id"];
            own.contains(&name.as_str())
                || [header::ACCEPT_ENCODING, header::CONTENT_LENGTH, header::EXPECT].contains(name)
        });
        for (name, value) in &self.endpoint.headers {
            headers.insert(name, value.clone());
        }
        *request.headers_mut() = headers;
        request
    }

    /// The session of a client's session, which is opened where it is not.
    async fn opened(&self, place: &Place, opening: &Value, headers: &HeaderMap) -> Result<Opened, Failed> {
        let slot = self.slot(place);
        let mut opened = slot.lock().await;
        if !opened.is_open {
            *opened = open(self, opening, headers).await?;
        }
        Ok(opened.clone())
    }

    /// Forgets a session, unless another one was opened since.
    async fn forget(&self, place: &Place, gone: &Opened) {
        let slot = self.slot(place);
        let mut opened = slot.lock().await;
        if opened.session == gone.session {
            *opened = Opened::default();
        }
    }

    /// Keeps the session that a client's own `initialize` began.
    async fn keep(&self, place: &Place, headers: &HeaderMap) {
        let session = headers.get(SESSION).cloned();
        *self.slot(place).lock().await = Opened { is_open: true, session, version: None };
    }

    fn slot(&self, place: &Place) -> Arc<AsyncMutex<Opened>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(place) {
            return Arc::clone(slot);
        }
        let slot: Arc<AsyncMutex<Opened>> = Arc::default();
        slots.insert(place.clone(), Arc::clone(&slot), 1);
        slot
    }
}

/// Passes a response on, with copies. Streams of MCP are idle for long: no limit of pauses holds for them.
fn observed(response: Received, mut copies: Copies) -> Response {
    let has_no_bytes = response.headers().get(header::CONTENT_LENGTH).is_some_and(|length| length == "0");
    if has_no_bytes || response.body().is_end_stream() {
        copies.ended(End::Whole);
        return response.map(|_| Body::empty());
    }
    response.map(|body| Body::new(Observed::new(Relayed::untouched(body), copies)))
}

/// Passes a refusal on that answers the request; any other one is a failure of ours to the client, whose session here is well.
async fn refused(response: Received, mut copies: Copies, forward: &Forward) -> Result<Response, Failed> {
    let (parts, body) = response.into_parts();
    let body = whole(body, MOST_REFUSAL).await.unwrap_or_default();
    copies.data(&body);
    copies.ended(End::Whole);
    let is_answer = forward.id.is_some() && id_of(&body) == forward.id;
    if !is_answer {
        return Err(Failed::Refused(parts.status));
    }
    let mut response = Response::from_parts(parts, Body::from(body));
    response.headers_mut().remove(SESSION);
    Ok(response)
}

/// The id of a message.
fn id_of(body: &[u8]) -> Option<Value> {
    let mut message: HashMap<String, Value> = serde_json::from_slice(body).ok()?;
    message.remove("id").filter(|id| !id.is_null())
}
