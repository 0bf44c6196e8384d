//! MCP servers behind the tap's own address: each is at `/mcp/NAME`, and its HTTP passes as it is.
//!
//! Methods, statuses, headers, streams and disconnects pass both ways; the tap sets `host`, adds the headers that were requested, and
//! asks for no compression. Redirects are not followed.
//!
//! Limits: the transport of revision 2024-11-05, which names a second endpoint, is not supported: its stream is broken. A request that a page of
//! another host makes is refused, since the server cannot see from its `host` any more that the page is foreign.

use std::{mem, sync::Arc};

use bytes::Bytes;
use futures_util::{
    StreamExt,
    future::{join, join_all},
};
use http::{HeaderMap, Method, Request, Response, StatusCode, header, request::Parts, uri::Uri};
use http_body::Frame;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::body::Incoming;

use super::{McpCommand, McpRecorded, SharedPlayback, spawned::Spawned};
use crate::{
    body::ProxyBody,
    gather::{Gathered, gather},
    proxy::Proxy,
    response::{broken_off, passed, refusal},
};
use net::server::{BodyError, media_type};
use net::upstream::{NamedEndpoint, NamedUpstream, Observed, Relayed, UpstreamBody, UpstreamOptions};
use recording::cassette::CassetteError;
use replay::account::DEFAULT_SESSION;
use replay::mcp_traffic::{ExchangeEnd, ExchangeObserver, McpRecorder, SESSION};
use replay::player::CassettePlayer;

/// Path below which the servers are.
const ROOT: &str = "/mcp/";

/// Headers of a client that do not go on: a compressed response could not be read, and its session is one here.
const WITHHELD: [&str; 2] = ["accept-encoding", "x-vcr-session"];

/// Bytes of a line of a stream that are looked at.
const LONGEST_LINE: usize = 32;

#[derive(Debug)]
pub(crate) struct McpServers {
    called: Vec<NamedUpstream>,
    /// Servers that are started, after the others.
    spawned: Arc<Vec<Spawned>>,
    /// `None` where nothing is recorded.
    recorder: Option<Arc<McpRecorder>>,
    /// What answers in their place, where a cassette is played.
    playback: SharedPlayback,
}

enum FoundServer<'s, 'p> {
    /// It is called at its URL; with its place among all, and the rest of the path.
    Called {
        place: usize,
        server: &'s NamedUpstream,
        rest: &'p str,
    },
    Spawned(&'s Spawned),
}

impl McpServers {
    /// Begins to record these servers in the player's cassette.
    pub(crate) fn start(
        (servers, commands): (Vec<NamedEndpoint>, Vec<McpCommand>),
        reach: &UpstreamOptions,
        (player, playback): (Option<&Arc<CassettePlayer>>, SharedPlayback),
    ) -> Result<Self, CassetteError> {
        let names = servers.iter().map(|server| &server.name).chain(commands.iter().map(|command| &command.name));
        let names: Vec<String> = names.cloned().collect();
        // Sessions may record where the tap itself does not.
        let player = player.filter(|_| !names.is_empty());
        let start = |player| McpRecorder::of_servers(names, player, /* notes */ true);
        let recorder = player.map(start).transpose()?.map(Arc::new);
        let called: Vec<_> = servers.into_iter().map(|server| NamedUpstream::new(server, reach)).collect();
        let spawned =
            (called.len()..).zip(commands).map(|(place, command)| Spawned::new(command, place, recorder.clone()));
        Ok(Self { called, spawned: Arc::new(spawned.collect()), recorder, playback })
    }

    /// Clones the servers with connections of their own.
    pub(crate) fn apart(&self) -> Self {
        let called = self.called.iter().map(NamedUpstream::with_own_connections).collect();
        let (spawned, recorder) = (Arc::clone(&self.spawned), self.recorder.clone());
        Self { called, spawned, recorder, playback: self.playback.clone() }
    }

    pub(crate) async fn end(&self) {
        let playback = self.playback.iter().map(|playback| playback.end());
        join(join_all(self.spawned.iter().map(Spawned::end)), join_all(playback)).await;
    }

    pub(crate) fn end_streams(&self) {
        self.playback.iter().for_each(|playback| playback.end_streams());
    }

    /// Ends the recording; blocks until the records are handed over. `None` where nothing was recorded.
    pub(crate) fn finish(&self) -> Option<McpRecorded> {
        let own = self.recorder.as_ref().and_then(|recorder| recorder.finish());
        let played = self.playback.as_ref().and_then(|playback| playback.finish());
        own.into_iter().chain(played).reduce(McpRecorded::and)
    }

    /// Returns the server of a path, its place among all, and the rest of the path.
    fn find<'p>(&self, path: &'p str) -> Option<FoundServer<'_, 'p>> {
        let path = path.strip_prefix(ROOT)?;
        let (name, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
        let spawned =
            || self.spawned.iter().find(|it| it.server.name == name && rest.is_empty()).map(FoundServer::Spawned);
        let mut called = self.called.iter().enumerate();
        let called = called.find(|(_, server)| server.endpoint.name == name);
        called.map(|(place, server)| FoundServer::Called { place, server, rest }).or_else(spawned)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let called = self.called.iter().map(|server| server.endpoint.name.as_str());
        called.chain(self.spawned.iter().map(|server| server.server.name.as_str()))
    }

    /// The response to a request for a server that is not there: the engine behind the tap is none.
    fn unknown(&self) -> Response<ProxyBody> {
        let known: Vec<String> = self.names().map(|name| format!("{ROOT}{name}")).collect();
        let message =
            format!("vllm-vcr: there is no such MCP server, but {}; name it with --mcp NAME=URL", known.join(", "));
        refusal(StatusCode::NOT_FOUND, &message)
    }

    /// Begins to observe an exchange of a session of the account.
    fn begin(&self, (account, place): (&str, usize), parts: &Parts, body: Option<bytes::Bytes>) -> ExchangeObserver {
        let begin =
            |recorder: &Arc<McpRecorder>| recorder.begin((account, place), parts, body, recorder.place(account));
        let recorder = self.recorder.as_ref().filter(|recorder| recorder.observes(account));
        recorder.map_or_else(ExchangeObserver::none, begin)
    }
}

impl Proxy {
    /// Forwards a request to an MCP server; gives back one that is for none.
    pub(crate) async fn pass_mcp(&self, request: Request<Incoming>) -> Result<Response<ProxyBody>, Request<Incoming>> {
        // A client that names no server is told which there are.
        let path = request.uri().path();
        if !path.starts_with(ROOT) && (path != "/mcp" || !is_of_mcp(request.headers())) {
            return Err(request);
        }
        let entered = self.cassette_player().map(|player| player.enter_mcp(request.extensions(), request.headers()));
        let account = match entered.transpose() {
            Ok(entered) => entered.map_or_else(|| DEFAULT_SESSION.to_owned(), |(session, _)| session),
            Err(refused) => return Ok(refused.map(|body| ProxyBody::Played(Box::new(body)))),
        };
        let player = self.cassette_player().filter(|player| player.plays_mcp(&account));
        if let Some(playback) = self.mcp.playback.as_ref().filter(|_| player.is_some()) {
            return Ok(playback.answer(request).await.map(|body| ProxyBody::Played(Box::new(body))));
        }
        let (place, server, rest) = match self.mcp.find(request.uri().path()) {
            None if self.mcp.names().next().is_some() && is_of_mcp(request.headers()) => return Ok(self.mcp.unknown()),
            None => return Err(request),
            Some(_) if is_foreign_page(request.headers()) => {
                let why = "vllm-vcr: a page of another host may not call MCP servers here";
                return Ok(refusal(StatusCode::FORBIDDEN, why));
            }
            Some(FoundServer::Spawned(spawned)) => return Ok(self.answer_by(spawned, &account, request).await),
            Some(FoundServer::Called { place, server, rest }) => (place, server, rest.to_owned()),
        };
        let (mut parts, body) = request.into_parts();
        let (mut observer, body) =
            match gather(Relayed::untouched(body.into()).within(self.idle), &self.shared.bodies).await {
                Gathered::Whole(body) => {
                    (self.mcp.begin((&account, place), &parts, Some(body.bytes.clone())), body.into_body())
                }
                Gathered::TooLarge { body, .. } => (self.mcp.begin((&account, place), &parts, None), body),
                Gathered::Broken(error) => return Ok(broken_off(&error)),
            };
        server.address(&mut parts, &rest, &WITHHELD);
        let reads = parts.method == Method::GET;
        Ok(match server.upstream.send(Request::from_parts(parts, body)).await {
            Ok(response) if reads && media_type(response.headers()) == "text/event-stream" => {
                without_endpoint(observed(response, observer), server.endpoint.name.clone())
            }
            Ok(response) => observed(response, observer),
            Err(error) => {
                observer.ended(ExchangeEnd::Unanswered);
                self.unanswered(&error)
            }
        })
    }

    async fn answer_by(&self, spawned: &Spawned, account: &str, request: Request<Incoming>) -> Response<ProxyBody> {
        let (parts, body) = request.into_parts();
        match gather(Relayed::untouched(body).within(self.idle), &self.shared.bodies).await {
            Gathered::Whole(body) => {
                spawned.answer(&parts, body.bytes, account).await.map(|body| ProxyBody::Played(Box::new(body)))
            }
            Gathered::TooLarge { .. } => refusal(StatusCode::PAYLOAD_TOO_LARGE, "vllm-vcr: the message is too large"),
            Gathered::Broken(error) => broken_off(&error),
        }
    }
}

/// Passes a response on, with its observer. Streams of MCP are idle for long: no limit of pauses holds for them.
fn observed(response: Response<UpstreamBody>, mut observer: ExchangeObserver) -> Response<ProxyBody> {
    observer.answered(response.status(), response.headers());
    let (parts, body) = Observed::of(response, observer).into_parts();
    match body {
        Ok(body) => Response::from_parts(parts, ProxyBody::Mcp(Box::new(body))),
        Err(body) => passed(Response::from_parts(parts, body), None),
    }
}

/// Breaks a stream that names a second endpoint: the client would send what follows, its credentials too, to that path here, which is
/// the model's.
fn without_endpoint(response: Response<ProxyBody>, name: String) -> Response<ProxyBody> {
    let mut line: Vec<u8> = Vec::new();
    let checked = move |frame: Result<Frame<Bytes>, BodyError>| {
        let frame = frame?;
        for byte in frame.data_ref().into_iter().flatten() {
            if !matches!(byte, b'\n' | b'\r') {
                line.extend(Some(*byte).filter(|_| line.len() < LONGEST_LINE));
                continue;
            }
            if matches!(&*mem::take(&mut line), b"event: endpoint" | b"event:endpoint") {
                tracing::warn!(
                    "the MCP server {name} has the transport of two endpoints (2024-11-05), which is not supported"
                );
                return Err(BodyError::Aborted("the transport of two endpoints is not supported"));
            }
        }
        Ok(frame)
    };
    response.map(|body| ProxyBody::Played(Box::new(StreamBody::new(BodyStream::new(body).map(checked)).boxed_unsync())))
}

/// Whether a client of MCP sent this: it takes both kinds of answers, or names the protocol. Other requests are the engine's.
fn is_of_mcp(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    let accepted = accepted.collect::<Vec<_>>().join(",");
    let takes_both = accepted.contains("application/json") && accepted.contains("text/event-stream");
    takes_both || headers.contains_key(SESSION) || headers.contains_key("mcp-protocol-version")
}

/// Whether a browser sent this for a page that is not of this machine.
fn is_foreign_page(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return false };
    let uri = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host != "localhost" && !host.ends_with(".localhost") && !address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn pages_of_other_hosts_are_foreign() {
        for (origin, is_foreign) in [
            ("http://localhost:6274", false),
            ("http://127.0.0.1", false),
            ("http://[::1]:8001", false),
            ("http://example.org", true),
            ("http://127.0.0.1.example.org:8001", true),
            ("null", true),
            ("", true),
        ] {
            let headers = HeaderMap::from_iter([(header::ORIGIN, HeaderValue::from_static(origin))]);
            assert_eq!(is_foreign_page(&headers), is_foreign, "{origin}");
        }
        assert!(!is_foreign_page(&HeaderMap::new()));
    }
}
