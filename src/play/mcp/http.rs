//! MCP servers over streamable HTTP, at `/mcp/NAME`: requests in, responses and streams of events out. What is in them is decided by
//! [`Endpoint`](crate::replay::mcp::Endpoint).

use std::{collections::VecDeque, ops::ControlFlow, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts};
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::time::{sleep, sleep_until, timeout};

use crate::{
    api::ApiError,
    net::{server::BodyError, wire::percent_decoded},
    play::{
        http::{body_of_type, empty_with, events_of_type, held_json, read_body},
        mcp::{
            origin,
            stdio::{MOST_PAUSES, PAUSE},
            streams::{Incoming, event},
            upstreams::{Outgoing, Upstreams},
        },
        middleware::Replay,
        request::{
            blocking::{INLINE_BYTES, off_the_loop},
            budget::MemoryReservation,
            extract::ErrorResponse,
        },
        state::State,
    },
    replay::{
        account::http::{plain, put},
        mcp::{Answered, Endpoint, Forward, Head, HttpSender, PARAMETER, Place, Reply, Servers},
        player::CassettePlayer,
    },
};

/// Path below which the servers are.
const ROOT: &str = "/mcp/";

/// The header that names a session.
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

/// Time after which a silent stream gets a comment.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The MCP servers of a server's cassettes.
#[derive(Debug, Clone)]
pub(in crate::play) struct McpServers {
    pub(in crate::play) player: Arc<CassettePlayer>,
    pub(in crate::play) state: Arc<State>,
}

impl Replay for McpServers {
    fn takes(&self, request: &Request) -> bool {
        request.uri().path().starts_with(ROOT)
    }

    async fn answer(self, request: Request) -> ControlFlow<Response, Request> {
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
        let config = &self.state.config;
        let refusal = origin::check(&parts.headers, &parts.uri, &config.mcp_hosts, &config.server.cors.origins);
        let mut response = if let Err(why) = refusal {
            plain(StatusCode::FORBIDDEN, why).map(Body::new)
        } else if servers.get(&name).is_none() {
            unknown(&servers).map(Body::new)
        } else if let Some(upstreams) = self.upstreams(&name) {
            match read_body(body, config.body_limit).await {
                Ok(body) => {
                    let outgoing = Outgoing { server: &name, session: &session, parts: &parts, body };
                    Box::pin(upstreams.pass(&outgoing)).await
                }
                Err(error) => ErrorResponse::from(error).into_response(),
            }
        } else {
            let target = Target { servers, name, session: session.clone(), head: head(&parts.headers) };
            Box::pin(self.method(target, &parts, body)).await
        };
        let headers = response.headers_mut();
        put(headers, "x-vcr-session", &session);
        if parts.headers.contains_key(header::ORIGIN) {
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("mcp-session-id"));
        }
        ControlFlow::Break(response)
    }
}

/// A server and a request to it.
#[derive(Debug)]
struct Target {
    servers: Arc<Servers>,
    name: String,
    session: String,
    head: Head,
}

impl Target {
    fn endpoint(&self) -> Option<&Endpoint> {
        self.servers.get(&self.name)
    }

    fn allowed(&self) -> &'static str {
        self.endpoint().map_or("POST", |endpoint| endpoint.allowed(&self.head))
    }
}

/// A response whose bytes are made.
#[derive(Debug)]
enum Ready {
    Whole { status: u16, body: Option<(String, MemoryReservation)>, session: Option<String> },
    Events { frames: Vec<Bytes>, ending: Ending, session: Option<String>, memory: MemoryReservation },
    Forward(Box<Forward>),
}

/// End of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// After what is there.
    Now,
    /// When the session says so.
    Later,
    /// After what is there, in the middle of the body.
    Broken,
}

impl McpServers {
    /// The real servers, where all messages to the one of this name go there.
    fn upstreams(&self, name: &str) -> Option<&Arc<Upstreams>> {
        self.state.mcp_upstreams.as_ref().filter(|upstreams| upstreams.passes_all(name))
    }

    async fn method(self, target: Target, parts: &Parts, body: Body) -> Response {
        match parts.method {
            Method::POST => match Box::pin(self.post(target, parts, body)).await {
                Ok(response) => response,
                Err(error) => ErrorResponse::from(error).into_response(),
            },
            Method::GET => self.listen(target),
            Method::DELETE => {
                let (reply, deliveries, place) = match target.endpoint() {
                    Some(endpoint) => endpoint.end(&target.head, &target.session),
                    None => return not_allowed(&target),
                };
                self.state.mcp.deliver(deliveries);
                if let (Some(upstreams), Some(place)) = (&self.state.mcp_upstreams, place) {
                    upstreams.end(&target.name, place, parts);
                }
                self.whole_reply(&target, &reply)
            }
            _ => not_allowed(&target),
        }
    }

    /// Answers a message of the client.
    async fn post(self, target: Target, parts: &Parts, body: Body) -> Result<Response, ApiError> {
        let body = read_body(body, self.state.config.body_limit).await?;
        let incoming = self.state.mcp.open();
        let stream = incoming.number();
        let is_heavy = target.endpoint().is_some_and(Endpoint::is_heavy);
        let weight = if is_heavy { body.len().max(INLINE_BYTES + 1) } else { body.len() };
        let fresh = format!("{}{}", self.state.fresh_id(), self.state.fresh_id());
        let (target, state, player) = (Arc::new(target), Arc::clone(&self.state), Arc::clone(&self.player));
        let (of_work, message) = (Arc::clone(&target), body.clone());
        let (ready, place, deadline) = off_the_loop(weight, move || {
            let endpoint = of_work.endpoint().ok_or_else(|| ApiError::internal("Internal server error"))?;
            let sender = HttpSender { session: &of_work.session, fresh: &fresh, stream, now: state.mcp.now() };
            let Answered { reply, deliveries, place, deadline, journal } = endpoint.post(&of_work.head, &body, &sender);
            state.mcp.deliver(deliveries);
            player.note_mcp(&of_work.session, journal);
            Ok((ready(reply)?, place, deadline))
        })
        .await?;
        if let (Some(place), Some(deadline)) = (place.clone(), deadline) {
            self.expire_at(Arc::clone(&target), place, deadline);
        }
        Ok(match ready {
            Ready::Whole { status, body, session } => whole(&target, status, body, session),
            Ready::Forward(forward) => {
                let Target { name: server, session, .. } = &*target;
                let outgoing = Outgoing { server, session, parts, body: message };
                match &self.state.mcp_upstreams {
                    Some(upstreams) => Box::pin(upstreams.forward(&outgoing, &forward, place.as_ref())).await,
                    None => not_allowed(&target),
                }
            }
            Ready::Events { frames, ending, session, memory } => {
                let closing = place.map(|place| Closing { target, place, stream });
                let incoming = (ending == Ending::Later).then_some(incoming);
                let is_broken = ending == Ending::Broken;
                events(
                    Flow { frames: frames.into(), incoming, is_broken, sent: 0, _closing: closing, _memory: memory },
                    session,
                )
            }
        })
    }

    /// Opens the stream of a GET.
    fn listen(&self, target: Target) -> Response {
        let incoming = self.state.mcp.open();
        let stream = incoming.number();
        let Some(endpoint) = target.endpoint() else { return not_allowed(&target) };
        let (place, messages, before) = match endpoint.listen(&target.head, &target.session, stream) {
            Ok(listening) => listening,
            Err(reply) => return self.whole_reply(&target, &reply),
        };
        self.state.mcp.deliver(before);
        let frames = messages.iter().map(event).collect();
        let closing = Some(Closing { target: Arc::new(target), place, stream });
        let memory = MemoryReservation::default();
        let flow =
            Flow { frames, incoming: Some(incoming), is_broken: false, sent: 0, _closing: closing, _memory: memory };
        events(flow, None)
    }

    fn whole_reply(&self, target: &Target, reply: &Reply) -> Response {
        match reply {
            Reply::Whole { status: 405, .. } => not_allowed(target),
            Reply::Whole { status, body, .. } => {
                whole(target, *status, body.as_ref().map(|body| (body.to_string(), MemoryReservation::default())), None)
            }
            Reply::Events { .. } | Reply::Ended(_) | Reply::Forward(_) => not_allowed(target),
        }
    }

    /// Goes on without a reply of the client once it is due.
    fn expire_at(&self, target: Arc<Target>, place: Place, deadline: Duration) {
        let state = Arc::clone(&self.state);
        tokio::spawn(async move {
            sleep_until(state.mcp.at(deadline)).await;
            if let Some(endpoint) = target.endpoint() {
                state.mcp.deliver(endpoint.expire(&place, state.mcp.now()));
            }
        });
    }
}

/// Makes the bytes of a response.
///
/// # Errors
/// 503 where other responses took the memory that there is.
fn ready(reply: Reply) -> Result<Ready, ApiError> {
    let mut memory = MemoryReservation::default();
    let (messages, ending, session) = match reply {
        Reply::Whole { status, body, session } => {
            let body = body.map(|body| body.to_string());
            memory.try_reserve(body.as_ref().map_or(0, String::len))?;
            return Ok(Ready::Whole { status, body: body.map(|body| (body, memory)), session });
        }
        Reply::Events { messages, is_open, session } => {
            (messages, if is_open { Ending::Later } else { Ending::Now }, session)
        }
        Reply::Ended(messages) => (messages, Ending::Broken, None),
        Reply::Forward(forward) => return Ok(Ready::Forward(forward)),
    };
    let mut frames = Vec::with_capacity(messages.len());
    for message in messages {
        let frame = event(&message);
        memory.try_reserve(frame.len())?;
        frames.push(frame);
    }
    Ok(Ready::Events { frames, ending, session, memory })
}

/// A stream of events on its way.
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
    /// The next frame.
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
    place: Place,
    stream: u64,
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.target.endpoint().into_iter().for_each(|endpoint| endpoint.closed(&self.place, self.stream));
    }
}

fn events(flow: Flow, session: Option<String>) -> Response {
    let mut extra = HeaderMap::new();
    extra.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    extra.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    extra.extend(session_header(session));
    let nothing = stream::empty::<Bytes>();
    let head = events_of_type(StatusCode::OK, HeaderValue::from_static("text/event-stream"), nothing, extra);
    head.map(|_| Body::new(StreamBody::new(stream::unfold(flow, Flow::next))))
}

fn whole(target: &Target, status: u16, body: Option<(String, MemoryReservation)>, session: Option<String>) -> Response {
    let extra = HeaderMap::from_iter(session_header(session));
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match body {
        _ if status == StatusCode::METHOD_NOT_ALLOWED => not_allowed(target),
        Some((body, memory)) if status == StatusCode::OK => held_json(body, memory, extra),
        Some((body, _)) => body_of_type(status, Some(HeaderValue::from_static("application/json")), body.into(), extra),
        None => empty_with(status, extra),
    }
}

fn session_header(session: Option<String>) -> Option<(HeaderName, HeaderValue)> {
    Some((SESSION, HeaderValue::try_from(session?).ok()?))
}

fn not_allowed(target: &Target) -> Response {
    let allow = HeaderMap::from_iter([(header::ALLOW, HeaderValue::from_static(target.allowed()))]);
    empty_with(StatusCode::METHOD_NOT_ALLOWED, allow)
}

fn unknown(servers: &Servers) -> http::Response<crate::net::server::ResponseBody> {
    let names: Vec<String> = servers.names().map(|name| format!("{ROOT}{name}")).collect();
    plain(StatusCode::NOT_FOUND, &format!("no such MCP server was recorded: there is {}", names.join(", ")))
}

fn head(headers: &HeaderMap) -> Head {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let accept: Vec<&str> = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let parameters = headers.iter().filter_map(|(name, value)| {
        let name = name.as_str().strip_prefix(PARAMETER)?;
        Some((name.to_owned(), value.to_str().ok()?.to_owned()))
    });
    let parameters = parameters.collect();
    Head {
        accept: (!accept.is_empty()).then(|| accept.join(", ")),
        session: text("mcp-session-id"),
        version: text("mcp-protocol-version"),
        method: text("mcp-method"),
        name: text("mcp-name"),
        parameters,
    }
}
