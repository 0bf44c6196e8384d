//! Requests of MCP that go to the real servers, whose responses pass as they are.
//!
//! A session that a client began here has one of its own at the real server. It is opened with the client's own `initialize` when the first
//! request goes there, and once more where the server has forgotten it. Requests of the modern era need none.
//!
//! Limits: the stream of a GET is not opened there: what a real server sends outside of the responses to requests does not arrive.
//!
//! See docs/decisions/0092-novel-calls-go-to-the-real-server.md.

use std::{collections::HashMap, hash::RandomState, sync::Arc};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, request::Parts};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::sync::Mutex as AsyncMutex;

use super::opening::{Failed, Opened, open};
use base::{bounded_cache::BoundedCache, lock::Lock};
use net::server::{ResponseBody, receive_whole};
use net::upstream::{BodyObserver, NamedEndpoint, NamedUpstream, Observed, OutgoingBody, UpstreamError, remove};
use recording::cassette::CassetteError;
use replay::mcp::{McpForward, SessionKey};
use replay::mcp_traffic::{ExchangeEnd, ExchangeObserver, McpRecorded, McpRecorder, SESSION};
use replay::player::{CassettePlayer, RecordPlace, StartedServer};

/// Sessions of one real server that are remembered.
const MOST_SESSIONS: usize = 10_000;

const MOST_REFUSAL: usize = 1 << 20;

/// Headers of a client that do not go on to a real server: what belongs to its connection and account here, and compression, with which a
/// response could not be read.
const WITHHELD: [&str; 4] = ["x-vcr-session", "accept-encoding", "content-length", "expect"];

/// The same, where the client's session is not that of the real server.
const WITHHELD_OF_SESSION: [&str; 6] = {
    let [account, encoding, length, expect] = WITHHELD;
    [account, encoding, length, expect, SESSION, "last-event-id"]
};

type ServerResponse = http::Response<ResponseBody>;

/// A session of a client, and the session at the real server.
type RealSessions = BoundedCache<SessionKey, Arc<AsyncMutex<Opened>>, RandomState>;

#[derive(Debug)]
pub(super) struct RealServers {
    servers: Vec<RealServer>,
    recorder: Arc<McpRecorder>,
    player: Arc<CassettePlayer>,
}

#[derive(Debug)]
pub(super) struct RealServer {
    place: usize,
    reached: Reached,
    slots: Lock<RealSessions>,
}

#[derive(Debug)]
enum Reached {
    Called(Box<NamedUpstream>),
    Started(Arc<dyn StartedServer>),
}

pub(super) struct RealRequest<'a> {
    pub(super) server: &'a str,
    pub(super) session: &'a str,
    /// Method and headers, as the client sent them.
    pub(super) parts: &'a Parts,
    pub(super) body: Bytes,
}

impl RealServers {
    /// The servers of a player; `None` where there are none.
    pub(super) fn start(player: &Arc<CassettePlayer>) -> Result<Option<Self>, CassetteError> {
        let called = |endpoint: &_| {
            Reached::Called(Box::new(NamedUpstream::new(NamedEndpoint::clone(endpoint), &player.config().reach)))
        };
        let called = player.config().mcp_upstreams.iter().map(called);
        let started = player.config().mcp_started.iter().map(|server| Reached::Started(Arc::clone(server)));
        let slots = || Lock::new(BoundedCache::new(MOST_SESSIONS, 1));
        let server = |(place, reached)| RealServer { place, reached, slots: slots() };
        let servers: Vec<RealServer> = called.chain(started).enumerate().map(server).collect();
        if servers.is_empty() {
            return Ok(None);
        }
        let names = servers.iter().map(|server| server.name().to_owned()).collect();
        let recorder = Arc::new(McpRecorder::of_servers(names, player, /* notes */ false)?);
        Ok(Some(Self { servers, recorder, player: Arc::clone(player) }))
    }

    /// Ends the recording; blocks until the records are handed over.
    pub(super) fn finish(&self) -> Option<McpRecorded> {
        self.recorder.finish()
    }

    /// Whether all messages to a server go to the real one.
    pub(super) fn passes_all(&self, server: &str) -> bool {
        self.player.is_comparing() && self.server(server).is_some()
    }

    /// Forwards a message that no record answers; an error is the answer to its request.
    pub(super) async fn forward(
        &self,
        outgoing: &RealRequest<'_>,
        forward: &McpForward,
        place: Option<&SessionKey>,
    ) -> Response {
        let Some(server) = self.server(outgoing.server) else {
            return Failed::Unknown.response(outgoing.server, forward.id.as_ref());
        };
        match self.answer(server, outgoing, forward, place).await {
            Ok(response) => response,
            Err(failed) => {
                tracing::warn!(server = outgoing.server, "{failed}");
                failed.response(outgoing.server, forward.id.as_ref())
            }
        }
    }

    async fn answer(
        &self,
        server: &RealServer,
        outgoing: &RealRequest<'_>,
        forward: &McpForward,
        place: Option<&SessionKey>,
    ) -> Result<Response, Failed> {
        let opening = forward.opening.as_ref().zip(place);
        let opened = match opening {
            Some((opening, place)) => server.opened(place, opening, &outgoing.parts.headers).await?,
            None => Opened::default(),
        };
        let send = async |opened: &Opened| {
            let place = forward.is_recorded.then(|| self.player.place_in(outgoing.session)).flatten();
            let parts = server.in_session(outgoing.parts, opened);
            self.send((server, outgoing.session), parts, &outgoing.body, place.map(Some)).await
        };
        let (mut response, mut observer) = send(&opened).await?;
        if let (Some((opening, place)), StatusCode::NOT_FOUND) = (opening, response.status())
            && opened.session.is_some()
        {
            // The server has forgotten the session.
            observer.ended(ExchangeEnd::Whole);
            server.forget(place, &opened).await;
            let opened = server.opened(place, opening, &outgoing.parts.headers).await?;
            (response, observer) = send(&opened).await?;
        }
        if !response.status().is_success() {
            return refused(response, observer, forward).await;
        }
        if let (Some(_), Some(place)) = (&forward.session, place) {
            server.keep(place, response.headers()).await;
        }
        let mut response = observed(response, observer);
        let named = forward.session.as_deref().and_then(|session| HeaderValue::from_str(session).ok());
        response.headers_mut().remove(SESSION);
        named.map(|session| response.headers_mut().insert(SESSION, session));
        Ok(response)
    }

    /// Forwards a message as it is, whatever is recorded, so that its answer can be compared.
    pub(super) async fn pass(&self, outgoing: &RealRequest<'_>) -> Response {
        let Some(server) = self.server(outgoing.server) else {
            return Failed::Unknown.response(outgoing.server, None);
        };
        let parts = server.head(outgoing.parts, &WITHHELD);
        match self.send((server, outgoing.session), parts, &outgoing.body, Some(None)).await {
            Ok((response, observer)) => observed(response, observer),
            Err(failed) => failed.response(outgoing.server, id_of(&outgoing.body).as_ref()),
        }
    }

    /// Sends a message, which is observed where it has `observed`, the place of its record.
    async fn send(
        &self,
        (server, session): (&RealServer, &str),
        parts: Parts,
        body: &Bytes,
        observed: Option<Option<RecordPlace>>,
    ) -> Result<(ServerResponse, ExchangeObserver), Failed> {
        let begin = |place| self.recorder.begin((session, server.place), &parts, Some(body.clone()), place);
        let mut observer = observed.map_or_else(ExchangeObserver::none, begin);
        match server.send(parts, body.clone()).await {
            Ok(response) => {
                observer.answered(response.status(), response.headers());
                Ok((response, observer))
            }
            Err(error) => {
                observer.ended(ExchangeEnd::Unanswered);
                Err(Failed::Unanswered(error))
            }
        }
    }

    pub(super) fn end(self: &Arc<Self>, (server, session): (&str, &str), place: SessionKey, parts: &Parts) {
        let Some(RealServer { place: at, .. }) = self.server(server) else { return };
        let (upstreams, session, parts, at) = (Arc::clone(self), session.to_owned(), parts.clone(), *at);
        tokio::spawn(async move {
            let Some(server) = upstreams.servers.get(at) else { return };
            let opened = std::mem::take(&mut *server.slot(&place).lock().await);
            if opened.session.is_some() {
                let parts = server.in_session(&parts, &opened);
                // The recorder need not wait for further messages of the session.
                let is_recording = upstreams.recorder.observes(&session);
                let begin = || upstreams.recorder.begin((&session, at), &parts, None, None);
                let mut observer = if is_recording { begin() } else { ExchangeObserver::none() };
                if let Ok(response) = server.send(parts, Bytes::new()).await {
                    observer.answered(response.status(), response.headers());
                }
                observer.ended(ExchangeEnd::Whole);
            }
        });
    }

    fn server(&self, name: &str) -> Option<&RealServer> {
        self.servers.iter().find(|server| server.name() == name)
    }
}

impl RealServer {
    fn name(&self) -> &str {
        match &self.reached {
            Reached::Called(named) => &named.endpoint.name,
            Reached::Started(server) => server.name(),
        }
    }

    /// Sends a message; a server that is started answers always.
    pub(super) async fn send(&self, parts: Parts, body: Bytes) -> Result<ServerResponse, UpstreamError> {
        match &self.reached {
            Reached::Called(named) => {
                let response = named.upstream.send(Request::from_parts(parts, OutgoingBody::whole(body))).await?;
                Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
            }
            Reached::Started(server) => Ok(server.answer(&parts, body).await),
        }
    }

    /// The head of a client's request as it goes to the real server.
    fn head(&self, client: &Parts, withheld: &[&str]) -> Parts {
        let (mut parts, ()) = Request::new(()).into_parts();
        (parts.method, parts.uri, parts.headers) = (client.method.clone(), client.uri.clone(), client.headers.clone());
        match &self.reached {
            Reached::Called(named) => named.address(&mut parts, "", withheld),
            Reached::Started(_) => remove(&mut parts.headers, |name| withheld.contains(&name.as_str())),
        }
        parts
    }

    /// The same, in a session there.
    pub(super) fn in_session(&self, client: &Parts, opened: &Opened) -> Parts {
        let mut parts = self.head(client, &WITHHELD_OF_SESSION);
        opened.put_into(&mut parts.headers);
        parts
    }

    /// The session of a client's session, which is opened where it is not.
    async fn opened(&self, place: &SessionKey, opening: &Value, headers: &HeaderMap) -> Result<Opened, Failed> {
        let slot = self.slot(place);
        let mut opened = slot.lock().await;
        if !opened.is_open {
            *opened = open(self, opening, headers).await?;
        }
        Ok(opened.clone())
    }

    /// Forgets a session, unless another one was opened since.
    async fn forget(&self, place: &SessionKey, gone: &Opened) {
        let slot = self.slot(place);
        let mut opened = slot.lock().await;
        if opened.session == gone.session {
            *opened = Opened::default();
        }
    }

    /// Keeps the session that a client's own `initialize` began.
    async fn keep(&self, place: &SessionKey, headers: &HeaderMap) {
        let session = headers.get(SESSION).cloned();
        *self.slot(place).lock().await = Opened { is_open: true, session, version: None };
    }

    fn slot(&self, place: &SessionKey) -> Arc<AsyncMutex<Opened>> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(place) {
            return Arc::clone(slot);
        }
        let slot: Arc<AsyncMutex<Opened>> = Arc::default();
        slots.insert(place.clone(), Arc::clone(&slot), 1);
        slot
    }
}

/// Passes a response on, with its observer. Streams of MCP are idle for long: no limit of pauses holds for them.
fn observed(response: ServerResponse, observer: ExchangeObserver) -> Response {
    Observed::of(response, observer).map(|body| body.map_or_else(|_| Body::empty(), Body::new))
}

/// Passes a refusal on that answers the request; any other one is a failure of ours to the client, whose session here is well.
async fn refused(
    response: ServerResponse,
    mut observer: ExchangeObserver,
    forward: &McpForward,
) -> Result<Response, Failed> {
    let (parts, body) = response.into_parts();
    let body = receive_whole(body, MOST_REFUSAL).await.unwrap_or_default();
    observer.data(&body);
    observer.ended(ExchangeEnd::Whole);
    let is_answer = forward.id.is_some() && id_of(&body) == forward.id;
    if !is_answer {
        return Err(Failed::Refused(parts.status));
    }
    let mut response = Response::from_parts(parts, Body::from(body));
    response.headers_mut().remove(SESSION);
    Ok(response)
}

fn id_of(body: &[u8]) -> Option<Value> {
    let mut message: HashMap<String, Value> = serde_json::from_slice(body).ok()?;
    message.remove("id").filter(|id| !id.is_null())
}
