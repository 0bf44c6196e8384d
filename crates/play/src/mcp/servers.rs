//! MCP servers over streamable HTTP, at `/mcp/NAME`: requests in, responses and streams of events out. What is in them is decided by
//! [`McpEndpoint`](replay::mcp::McpEndpoint).

use std::{collections::VecDeque, ops::ControlFlow, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{
    future::{BoxFuture, FutureExt},
    stream,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming as IncomingBody;
use tokio::time::{sleep, sleep_until, timeout};

use crate::{
    http::{ErrorResponse, body_of_type, empty_with, events_of_type, header_text, read_body},
    mcp::{
        origin,
        stdio::{MOST_PAUSES, PAUSE},
        streams::{Incoming, Streams, event},
        upstreams::{RealRequest, RealServers},
    },
    middleware::Intercept,
    request::{
        blocking::{INLINE_BYTES, off_the_loop},
        budget::{MemoryReservation, held_json},
    },
};
use api::ApiError;
use net::{
    server::{BodyError, ResponseBody},
    wire::percent_decoded,
};
use recording::cassette::CassetteError;
use replay::{
    account::http::{plain, put, record_names},
    mcp::{EndpointAnswer, EndpointReply, HttpSender, McpEndpoint, McpHeaders, PARAMETER, Servers, SessionKey},
    mcp_traffic::{McpRecorded, SESSION},
    player::CassettePlayer,
};

/// Path below which the servers are.
pub(crate) const ROOT: &str = "/mcp/";

/// Time after which a silent stream gets a comment.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The MCP servers of cassettes, over HTTP.
#[derive(Debug)]
pub struct McpService {
    player: Arc<CassettePlayer>,
    streams: Arc<Streams>,
    /// The real servers, where requests may go there.
    upstreams: Option<Arc<RealServers>>,
    access: McpAccess,
}

/// Limits of calls to MCP servers: allowed callers, and sizes.
#[derive(Debug, Clone, Default)]
pub struct McpAccess {
    /// Names with a dot under which they are served.
    pub hosts: Vec<String>,
    /// Web pages of other machines that may call them.
    pub origins: Vec<String>,
    /// Bytes of a message at most.
    pub body_limit: usize,
}

impl McpService {
    /// Starts the servers of the player's cassettes.
    ///
    /// # Errors
    /// When the recording of a real server cannot begin.
    pub fn start(player: &Arc<CassettePlayer>, access: McpAccess) -> Result<Self, CassetteError> {
        let upstreams = RealServers::start(player)?.map(Arc::new);
        Ok(Self { player: Arc::clone(player), streams: Arc::default(), upstreams, access })
    }

    /// Answers a request to a path below `/mcp/`, without a server around this one.
    pub fn play(
        self: Arc<Self>,
        request: http::Request<IncomingBody>,
    ) -> BoxFuture<'static, http::Response<ResponseBody>> {
        let answer = async move {
            match self.answer(request.map(Body::new)).await {
                ControlFlow::Break(response) => response.map(|body| body.map_err(BodyError::broken).boxed_unsync()),
                ControlFlow::Continue(_) => plain(StatusCode::NOT_FOUND, "no MCP server was recorded"),
            }
        };
        answer.boxed()
    }

    /// Ends all streams, which would go on until their clients leave.
    pub fn end_streams(&self) {
        self.streams.end();
    }

    /// Ends the recording of real servers; blocks until their records are handed over. `None` where there are none.
    #[must_use]
    pub fn finish(&self) -> Option<McpRecorded> {
        self.upstreams.as_ref()?.finish()
    }
}

/// The same, before the models.
#[derive(Debug, Clone)]
pub(crate) struct RecordedMcpServers(pub(crate) Arc<McpService>);

impl Intercept for RecordedMcpServers {
    fn takes(&self, request: &Request) -> bool {
        let path = request.uri().path();
        path.starts_with(ROOT) || path == "/mcp"
    }

    async fn answer(self, request: Request) -> ControlFlow<Response, Request> {
        self.0.answer(request).await
    }
}

#[derive(Debug)]
struct Target {
    endpoint: Arc<McpEndpoint>,
    name: String,
    session: String,
    head: McpHeaders,
}

impl McpService {
    /// Answers a request to a path below `/mcp/`; gives it back where there is no server at all.
    pub async fn answer(self: Arc<Self>, request: Request) -> ControlFlow<Response, Request> {
        let (parts, body) = request.into_parts();
        let (session, servers) = match self.player.enter_mcp(&parts.extensions, &parts.headers) {
            Ok(entered) => entered,
            Err(refused) => return ControlFlow::Break((*refused).map(Body::new)),
        };
        if servers.is_empty() {
            return ControlFlow::Continue(Request::from_parts(parts, body));
        }
        let name = parts.uri.path().strip_prefix(ROOT).unwrap_or_default();
        let name = percent_decoded(name.strip_suffix('/').unwrap_or(name)).into_owned();
        let McpAccess { hosts, origins, .. } = &self.access;
        let refusal = origin::check(&parts.headers, &parts.uri, hosts, origins);
        let mut response = if let Err(why) = refusal {
            plain(StatusCode::FORBIDDEN, why).map(Body::new)
        } else if let Some(endpoint) = servers.get(&name) {
            let (endpoint, session) = (Arc::clone(endpoint), session.clone());
            let target = Target { endpoint, name, session, head: head(&parts.headers) };
            Box::pin(self.method(target, &parts, body))
                .await
                .unwrap_or_else(|error| ErrorResponse::from(error).into_response())
        } else {
            unknown(&servers).map(Body::new)
        };
        let headers = response.headers_mut();
        put(headers, "x-vcr-session", &session);
        if parts.headers.contains_key(header::ORIGIN) {
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(SESSION));
        }
        ControlFlow::Break(response)
    }

    /// The real servers, where all messages to the one of this name go there.
    fn upstreams(&self, name: &str) -> Option<&Arc<RealServers>> {
        self.upstreams.as_ref().filter(|upstreams| upstreams.passes_all(name))
    }

    async fn method(&self, target: Target, parts: &Parts, body: Body) -> Result<Response, ApiError> {
        if let Some(upstreams) = self.upstreams(&target.name) {
            let body = read_body(body, self.access.body_limit).await?;
            let outgoing = RealRequest { server: &target.name, session: &target.session, parts, body };
            return Ok(Box::pin(upstreams.pass(&outgoing)).await);
        }
        Ok(match parts.method {
            Method::POST => Box::pin(self.post(target, parts, body)).await?,
            Method::GET => self.listen(&Arc::new(target))?,
            Method::DELETE => {
                let (reply, deliveries, place) = target.endpoint.end(&target.head, &target.session);
                self.streams.deliver(deliveries);
                if let (Some(upstreams), Some(place)) = (&self.upstreams, place) {
                    upstreams.end((&target.name, &target.session), place, parts);
                }
                response(&Arc::new(target), reply, None, None)?
            }
            _ => not_allowed(&target),
        })
    }

    async fn post(&self, target: Target, parts: &Parts, body: Body) -> Result<Response, ApiError> {
        let body = read_body(body, self.access.body_limit).await?;
        let incoming = self.streams.open();
        let weight = if target.endpoint.is_heavy() { body.len().max(INLINE_BYTES + 1) } else { body.len() };
        let fresh = format!("{:032x}", rand::random::<u128>());
        let (target, streams, player) = (Arc::new(target), Arc::clone(&self.streams), Arc::clone(&self.player));
        let (of_work, message) = (Arc::clone(&target), body.clone());
        let (answered, place, deadline, records) = off_the_loop(weight, move || {
            let Target { endpoint, session, head, .. } = &*of_work;
            let sender = HttpSender { session, fresh: &fresh, stream: incoming.number(), now: streams.now() };
            let EndpointAnswer { reply, deliveries, place, deadline, journal, served } =
                endpoint.post(head, &body, &sender);
            streams.deliver(deliveries);
            let records = record_names(served.iter().filter_map(|at| endpoint.record_name(*at)));
            player.note_mcp(session, journal);
            player.copy_mcp(served.into_iter().filter_map(|at| endpoint.record(at)));
            let answered = match reply {
                EndpointReply::Forward(forward) => ControlFlow::Continue(forward),
                reply => ControlFlow::Break(response(&of_work, reply, place.clone(), Some(incoming))?),
            };
            Ok((answered, place, deadline, records))
        })
        .await?;
        if let (Some(place), Some(deadline)) = (place.clone(), deadline) {
            self.expire_at(Arc::clone(&target), place, deadline);
        }
        let mut response = match answered {
            ControlFlow::Break(response) => response,
            ControlFlow::Continue(forward) => {
                let Target { name: server, session, .. } = &*target;
                let outgoing = RealRequest { server, session, parts, body: message };
                match &self.upstreams {
                    Some(upstreams) => Box::pin(upstreams.forward(&outgoing, &forward, place.as_ref())).await,
                    None => not_allowed(&target),
                }
            }
        };
        if !records.is_empty() {
            put(response.headers_mut(), "x-vcr-record", &records);
        }
        Ok(response)
    }

    fn listen(&self, target: &Arc<Target>) -> Result<Response, ApiError> {
        let incoming = self.streams.open();
        match target.endpoint.listen(&target.head, &target.session, incoming.number()) {
            Ok((place, messages, before)) => {
                self.streams.deliver(before);
                let reply = EndpointReply::Events { messages, is_open: true, session: None };
                response(target, reply, Some(place), Some(incoming))
            }
            Err(reply) => response(target, reply, None, None),
        }
    }

    /// Goes on without a reply of the client once it is due.
    fn expire_at(&self, target: Arc<Target>, place: SessionKey, deadline: Duration) {
        let streams = Arc::clone(&self.streams);
        tokio::spawn(async move {
            sleep_until(streams.at(deadline)).await;
            streams.deliver(target.endpoint.expire(&place, streams.now()));
        });
    }
}

/// Makes the response of a reply that is not forwarded; its stream, where it may be one, goes on with what comes in where the session
/// says so.
/// Errors: 503 where other responses took the memory that there is.
fn response(
    target: &Arc<Target>,
    reply: EndpointReply,
    place: Option<SessionKey>,
    incoming: Option<Incoming>,
) -> Result<Response, ApiError> {
    let mut memory = MemoryReservation::default();
    let (messages, is_open, is_broken, session) = match reply {
        EndpointReply::Whole { status, body, session } => {
            let body = body.map(|body| body.to_string());
            memory.try_reserve(body.as_ref().map_or(0, String::len))?;
            return Ok(whole(target, status, body, memory, session));
        }
        EndpointReply::Events { messages, is_open, session } => (messages, is_open, false, session),
        EndpointReply::Ended(messages) => (messages, false, true, None),
        EndpointReply::Forward(_) => return Ok(not_allowed(target)),
    };
    let Some(incoming) = incoming else { return Ok(not_allowed(target)) };
    let mut frames = VecDeque::with_capacity(messages.len());
    for message in messages {
        let frame = event(&message);
        memory.try_reserve(frame.len())?;
        frames.push_back(frame);
    }
    let closing = place.map(|place| Closing { target: Arc::clone(target), place, stream: incoming.number() });
    let incoming = is_open.then_some(incoming);
    Ok(events(Flow { frames, incoming, is_broken, sent: 0, _closing: closing, _memory: memory }, session))
}

#[derive(Debug)]
struct Flow {
    frames: VecDeque<Bytes>,
    incoming: Option<Incoming>,
    is_broken: bool,
    sent: u64,
    _closing: Option<Closing>,
    _memory: MemoryReservation,
}

impl Flow {
    async fn next(mut self) -> Option<(Result<Frame<Bytes>, BodyError>, Self)> {
        let frame = match self.frames.pop_front() {
            Some(frame) => frame,
            None if std::mem::take(&mut self.is_broken) => {
                // The connection writes what it has.
                sleep(PAUSE).await;
                return Some((Err(BodyError::Aborted("the recorded server ended here")), self));
            }
            None => match timeout(KEEP_ALIVE, self.incoming.as_mut()?.next()).await {
                Ok(frame) => frame?,
                Err(_) => return Some((Ok(Frame::data(Bytes::from_static(b": \n\n"))), self)),
            },
        };
        if (1..MOST_PAUSES).contains(&self.sent) {
            sleep(PAUSE).await;
        }
        self.sent += 1;
        Some((Ok(Frame::data(frame)), self))
    }
}

/// A stream that its session forgets when it is dropped: at its end, or when its client left.
#[derive(Debug)]
struct Closing {
    target: Arc<Target>,
    place: SessionKey,
    stream: u64,
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.target.endpoint.closed(&self.place, self.stream);
    }
}

fn events(flow: Flow, session: Option<String>) -> Response {
    let mut extra = HeaderMap::new();
    extra.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    extra.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    extra.extend(session_header(session));
    let frames = stream::unfold(flow, Flow::next);
    events_of_type(StatusCode::OK, HeaderValue::from_static("text/event-stream"), frames, extra).map(Body::new)
}

fn whole(
    target: &Target,
    status: u16,
    body: Option<String>,
    memory: MemoryReservation,
    session: Option<String>,
) -> Response {
    let extra = HeaderMap::from_iter(session_header(session));
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match body {
        _ if status == StatusCode::METHOD_NOT_ALLOWED => not_allowed(target),
        Some(body) if status == StatusCode::OK => held_json(body, memory, extra),
        Some(body) => body_of_type(status, Some(HeaderValue::from_static("application/json")), body.into(), extra),
        None => empty_with(status, extra),
    }
}

fn session_header(session: Option<String>) -> Option<(HeaderName, HeaderValue)> {
    Some((HeaderName::from_static(SESSION), HeaderValue::try_from(session?).ok()?))
}

fn not_allowed(target: &Target) -> Response {
    let allow =
        HeaderMap::from_iter([(header::ALLOW, HeaderValue::from_static(target.endpoint.allowed(&target.head)))]);
    empty_with(StatusCode::METHOD_NOT_ALLOWED, allow)
}

fn unknown(servers: &Servers) -> http::Response<net::server::ResponseBody> {
    let names: Vec<String> = servers.names().map(|name| format!("{ROOT}{name}")).collect();
    plain(StatusCode::NOT_FOUND, &format!("no such MCP server was recorded: there is {}", names.join(", ")))
}

fn head(headers: &HeaderMap) -> McpHeaders {
    let text = |name: &str| header_text(headers, name).map(str::to_owned);
    let accept: Vec<&str> = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let parameters = headers.iter().filter_map(|(name, value)| {
        let name = name.as_str().strip_prefix(PARAMETER)?;
        Some((name.to_owned(), value.to_str().ok()?.to_owned()))
    });
    let parameters = parameters.collect();
    McpHeaders {
        accept: (!accept.is_empty()).then(|| accept.join(", ")),
        session: text(SESSION),
        version: text("mcp-protocol-version"),
        method: text("mcp-method"),
        name: text("mcp-name"),
        parameters,
    }
}
