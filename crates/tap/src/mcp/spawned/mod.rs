//! MCP servers over stdio behind the tap's own address: a process for each session of a client.
//!
//! Only the revisions with sessions are served; clients of later ones get a list of them. A response is a stream of events where the client
//! takes one. Messages of the server go to the stream of the request that they answer or report on, others to that of the last
//! request without an answer, and else to the stream of a GET, for which they wait.
//!
//! Limits: no batches, no events that can be resumed. A client that does not read holds its own process up.
//!
//! See docs/decisions/0096-a-process-for-each-session.md.

mod process;
mod routes;

use std::{collections::HashMap, convert::Infallible, ffi::OsString, io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};
use tokio::{runtime::Handle, sync::mpsc::Receiver, task::JoinHandle, time::timeout};

use self::process::Process;
use super::bridge::message::OutgoingMessage;
use base::lock::Lock;
use net::{
    server::{ResponseBody, whole_body},
    wire::encode_event,
};
use replay::{
    account::{DEFAULT_SESSION, http::whole},
    mcp::error_response,
    mcp_traffic::{McpRecorder, SESSION},
    player::StartedServer,
};

const MOST_PROCESSES: usize = 100;

/// Longest wait for all processes at the end.
const END_WITHIN: Duration = Duration::from_secs(3);

const JSON: &str = "application/json";

const VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// An MCP server to start and record beside the engine.
#[derive(Debug, Clone)]
pub struct McpCommand {
    /// Its name: its place is `/mcp/NAME`.
    pub name: String,
    /// The command that starts it.
    pub command: Vec<OsString>,
}

#[derive(Debug)]
pub(super) struct Spawned {
    pub(super) server: McpCommand,
    /// Its place among all servers.
    place: usize,
    recorder: Option<Arc<McpRecorder>>,
    /// Processes outlive the connection that began them.
    runtime: Handle,
    sessions: Arc<Lock<HashMap<String, Arc<Process>>>>,
    tasks: Lock<Vec<JoinHandle<()>>>,
}

/// Makes servers of commands, which are started for each session; has to be called on the runtime of their processes.
#[must_use]
pub fn stand_for(commands: &[McpCommand]) -> Vec<Arc<dyn StartedServer>> {
    let stand = |command: &McpCommand| Arc::new(Spawned::new(command.clone(), 0, None)) as Arc<dyn StartedServer>;
    commands.iter().map(stand).collect()
}

impl StartedServer for Spawned {
    fn name(&self) -> &str {
        &self.server.name
    }

    fn answer<'a>(&'a self, parts: &'a Parts, body: Bytes) -> BoxFuture<'a, Response<ResponseBody>> {
        // What forwards the message observes it.
        Box::pin(Spawned::answer(self, parts, body, DEFAULT_SESSION))
    }

    fn end(&self) -> BoxFuture<'_, ()> {
        Box::pin(Spawned::end(self))
    }
}

impl Spawned {
    /// A server of which no process runs; has to be called on the runtime of its processes.
    pub(super) fn new(server: McpCommand, place: usize, recorder: Option<Arc<McpRecorder>>) -> Self {
        let (sessions, tasks) = (Arc::default(), Lock::default());
        Self { server, place, recorder, runtime: Handle::current(), sessions, tasks }
    }

    pub(super) async fn answer(&self, parts: &Parts, body: Bytes, account: &str) -> Response<ResponseBody> {
        let session =
            parts.headers.get(SESSION).map(|session| String::from_utf8_lossy(session.as_bytes()).into_owned());
        let process = session.as_ref().and_then(|session| self.sessions.lock().get(session).cloned());
        match (&parts.method, &session, process) {
            (&Method::POST, None, _) => self.open(&parts.headers, body, account).await,
            (&Method::POST, _, Some(process)) => match OutgoingMessage::read(body.to_vec()) {
                Some(outgoing) => post(&process, &parts.headers, outgoing).await,
                None => error(StatusCode::BAD_REQUEST, -32700, "the message is not JSON", None),
            },
            (&Method::GET, _, Some(process)) => stream(None, process.listen().await),
            (&Method::DELETE, Some(session), Some(process)) => {
                self.sessions.lock().remove(session);
                process.close();
                whole(200, JSON, "{}")
            }
            (&Method::POST | &Method::GET | &Method::DELETE, Some(_), None) => {
                error(StatusCode::NOT_FOUND, -32600, "there is no such session; begin with initialize", None)
            }
            (&Method::GET | &Method::DELETE, None, _) => {
                error(StatusCode::BAD_REQUEST, -32600, "the request names no session", None)
            }
            _ => {
                let mut response = error(StatusCode::METHOD_NOT_ALLOWED, -32600, "use POST, GET or DELETE", None);
                response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST, GET, DELETE"));
                response
            }
        }
    }

    async fn open(&self, headers: &HeaderMap, body: Bytes, account: &str) -> Response<ResponseBody> {
        let bad = |code, why, data| error(StatusCode::BAD_REQUEST, code, why, data);
        let Some(outgoing) = OutgoingMessage::read(body.to_vec()) else {
            return bad(-32700, "the message is not JSON", None);
        };
        if let Some(version) = outgoing.version() {
            let data = json!({"supported": VERSIONS, "requested": version});
            return bad(-32022, "a server over stdio is served with sessions only", Some(data));
        }
        if !outgoing.opens_session() {
            return bad(-32600, "the request names no session; begin with initialize", None);
        }
        if self.sessions.lock().len() >= MOST_PROCESSES {
            return error(StatusCode::SERVICE_UNAVAILABLE, -32603, "too many sessions of this server are open", None);
        }
        let session = format!("{:032x}", rand::random::<u128>());
        let process = match self.start(&session, account).await {
            Ok(process) => process,
            Err(why) => {
                tracing::error!("{why}");
                return error(StatusCode::BAD_GATEWAY, -32603, &why, None);
            }
        };
        let takes_events = takes_events(headers);
        let first = match process.ask(outgoing, takes_events).await {
            Some(mut messages) => messages.recv().await.map(|first| (first, messages)),
            None => None,
        };
        let Some((first, messages)) = first else {
            let why = format!("{} ended before it answered `initialize`{}", self.shown(), process.status());
            return error(StatusCode::BAD_GATEWAY, -32603, &why, None);
        };
        let mut response = if takes_events { stream(Some(first), messages) } else { whole(200, JSON, first) };
        response
            .headers_mut()
            .extend(session.parse().ok().map(|session| (header::HeaderName::from_static(SESSION), session)));
        response
    }

    async fn start(&self, session: &str, account: &str) -> Result<Arc<Process>, String> {
        let (shown, command) = (self.shown(), self.server.command.clone());
        let observer = self.recorder.as_ref().and_then(|recorder| recorder.process((account, self.place)));
        let started = self.runtime.spawn(async move { process::start(&command, shown, observer) }).await;
        let started = started.map_err(io::Error::from).flatten();
        let (process, running) = started.map_err(|error| format!("{} cannot be started: {error}", self.shown()))?;
        self.sessions.lock().insert(session.to_owned(), Arc::clone(&process));
        let (sessions, session) = (Arc::clone(&self.sessions), session.to_owned());
        let task = self.runtime.spawn(async move {
            running.await;
            sessions.lock().remove(&session);
        });
        let mut tasks = self.tasks.lock();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
        Ok(process)
    }

    /// The server in messages: its name, its flag and its program.
    fn shown(&self) -> String {
        let program = self.server.command.first().map(|program| program.to_string_lossy()).unwrap_or_default();
        format!("the MCP server {} (--mcp-stdio, {program})", self.server.name)
    }

    pub(super) async fn end(&self) {
        let processes: Vec<Arc<Process>> = self.sessions.lock().drain().map(|(_, process)| process).collect();
        processes.iter().for_each(|process| process.close());
        let tasks = std::mem::take(&mut *self.tasks.lock());
        let _late = timeout(END_WITHIN, futures_util::future::join_all(tasks)).await;
    }
}

/// Hands a message to a process and answers with what comes back.
async fn post(process: &Process, headers: &HeaderMap, outgoing: OutgoingMessage) -> Response<ResponseBody> {
    let Some(id) = outgoing.id.clone() else {
        let is_message = outgoing.line.trim_ascii_start().starts_with(b"{");
        return match is_message && process.send(outgoing).await {
            true => {
                let mut accepted = Response::new(whole_body(Bytes::new()));
                *accepted.status_mut() = StatusCode::ACCEPTED;
                accepted
            }
            false => error(StatusCode::BAD_REQUEST, -32600, "no message that a running server could take", None),
        };
    };
    let takes_events = takes_events(headers);
    let Some(mut messages) = process.ask(outgoing, takes_events).await else {
        return error(StatusCode::NOT_FOUND, -32600, "the server has ended; begin with initialize", None);
    };
    if takes_events {
        return stream(None, messages);
    }
    match messages.recv().await {
        Some(message) => whole(200, JSON, message),
        None => {
            let id = serde_json::from_str(&id).unwrap_or_default();
            let message = error_response(id, -32603, "the server ended without an answer", None);
            whole(200, JSON, message.to_string())
        }
    }
}

fn takes_events(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    let mut kinds = accepted.flat_map(|accept| accept.split(','));
    kinds.any(|kind| matches!(kind.split(';').next().unwrap_or_default().trim(), "text/event-stream" | "*/*"))
}

/// An error that answers no request.
fn error(status: StatusCode, code: i64, why: &str, data: Option<Value>) -> Response<ResponseBody> {
    let message = error_response(Value::Null, code, &format!("vllm-vcr: {why}"), data);
    whole(status.as_u16(), JSON, message.to_string())
}

/// A stream of events, one for each message; the first one may be there.
fn stream(first: Option<Bytes>, messages: Receiver<Bytes>) -> Response<ResponseBody> {
    let events = futures_util::stream::unfold((first, messages), |(mut first, mut messages)| async move {
        let message = match first.take() {
            Some(first) => first,
            None => messages.recv().await?,
        };
        let event = encode_event(Some("message"), &String::from_utf8_lossy(&message));
        Some((Ok::<_, Infallible>(Frame::data(event)), (first, messages)))
    });
    let body = StreamBody::new(events).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
