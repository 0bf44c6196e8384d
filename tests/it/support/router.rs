//! A router that goes on with a broken stream at another server, as new routers do.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::client::{self, post};

/// A router that goes on with a broken stream at its next backend.
pub(crate) struct Router {
    pub(crate) backends: Vec<SocketAddr>,
    /// Tokens after which it drops the first backend's stream.
    pub(crate) drops_after: usize,
    /// Whether it sends what was delivered, or the request as it came.
    pub(crate) continues: bool,
    pub(crate) broken: AtomicUsize,
}

impl Router {
    pub(crate) async fn start(self) -> (SocketAddr, Arc<Self>) {
        let (router, listener) = (Arc::new(self), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap();
        let shared = Arc::clone(&router);
        tokio::spawn(async move {
            let mut turn = 0;
            while let Ok((client, _)) = listener.accept().await {
                turn += 1;
                tokio::spawn(Arc::clone(&shared).relay(client, turn));
            }
        });
        (address, router)
    }

    /// Passes an answer on as it is.
    async fn copy(&self, path: &str, id: Option<&str>, body: &Value, client: &mut TcpStream) {
        let mut request = post(path, body);
        request.headers.extend(id.map(|id| ("x-request-id", id)));
        let mut backend = client::open(self.backends[0], &request).await;
        tokio::io::copy(&mut backend, client).await.unwrap();
    }

    async fn relay(self: Arc<Self>, mut client: TcpStream, turn: usize) {
        let (path, id, mut body) = read_request(&mut client).await;
        let ids = body["prompt"].as_array().filter(|prompt| prompt.iter().all(Value::is_u64)).cloned();
        let most = body["max_tokens"].as_u64().map_or(0, |most| usize::try_from(most).unwrap());
        let stream = body["stream"] == true && body["n"].as_u64().is_none_or(|n| n == 1);
        if !stream || ids.is_none() {
            return self.copy(&path, id.as_deref(), &body, &mut client).await;
        }
        let may_break = most > self.drops_after || self.drops_after == usize::MAX;
        let prompt = ids.unwrap_or_default();
        body["return_token_ids"] = true.into();
        client
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut delivered: Vec<u32> = Vec::new();
        for at in turn..turn + 500 {
            if self.continues && may_break {
                body["prompt"] = prompt.iter().cloned().chain(delivered.iter().map(|id| json!(id))).collect();
                body["max_tokens"] = (most - delivered.len()).into();
            }
            let mut request = post(&path, &body);
            request.headers.extend(id.as_deref().map(|id| ("x-request-id", id)));
            let backend = self.backends[at % self.backends.len()];
            let most_here = if at == turn && may_break { self.drops_after } else { usize::MAX };
            let (ids, is_whole) = pass(backend, &request, (&mut client, delivered.len()), most_here).await;
            delivered.extend(ids);
            if is_whole {
                break;
            }
            self.broken.fetch_add(1, SeqCst);
        }
    }
}

/// Passes the events of a backend on until it ends, breaks off or has sent so many tokens: their ids, and whether it came to its end.
async fn pass(
    backend: SocketAddr,
    request: &client::Request<'_>,
    (client, delivered): (&mut TcpStream, usize),
    most: usize,
) -> (Vec<u32>, bool) {
    if TcpStream::connect(backend).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        return (Vec::new(), false);
    }
    let (mut stream, mut raw, mut sent) = (client::open(backend, request).await, Vec::new(), 0);
    loop {
        let mut some = [0; 4096];
        let count = stream.read(&mut some).await.unwrap_or(0);
        raw.extend_from_slice(&some[..count]);
        let body = String::from_utf8(client::body_so_far(&raw)).unwrap();
        while let Some(end) = body[sent..].find("\n\n").map(|end| sent + end + 2) {
            client.write_all(counted(&body[sent..end], delivered).as_bytes()).await.unwrap();
            sent = end;
            let (_, ids, is_whole) = events(&body[..sent]);
            if is_whole || ids.len() >= most {
                return (ids, is_whole);
            }
        }
        if count == 0 {
            return (events(&body[..sent]).1, false);
        }
    }
}

/// An event with the token counts of the client's request: what was delivered before is no part of its prompt.
fn counted(event: &str, delivered: usize) -> String {
    let data = event.strip_prefix("data: ").and_then(|data| serde_json::from_str::<Value>(data).ok());
    let Some(mut data) = data.filter(|data| data["usage"].is_object()) else { return event.to_owned() };
    let delivered = u64::try_from(delivered).unwrap();
    let usage = &mut data["usage"];
    usage["prompt_tokens"] = (usage["prompt_tokens"].as_u64().unwrap() - delivered).into();
    usage["completion_tokens"] = (usage["completion_tokens"].as_u64().unwrap() + delivered).into();
    format!("data: {data}\n\n")
}

/// Path, id and body of a request.
async fn read_request(client: &mut TcpStream) -> (String, Option<String>, Value) {
    let mut raw = Vec::new();
    loop {
        let mut some = [0; 65536];
        let count = client.read(&mut some).await.unwrap();
        raw.extend_from_slice(&some[..count]);
        let Some(end) = raw.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(raw[..end].to_vec()).unwrap();
        let field = |name: &str| {
            let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}: ")))?;
            Some(line.split_once(": ")?.1.to_owned())
        };
        let length: usize = field("content-length").unwrap().parse().unwrap();
        if raw.len() >= end + 4 + length {
            let path = head.split(' ').nth(1).unwrap().to_owned();
            return (path, field("x-request-id"), serde_json::from_slice(&raw[end + 4..]).unwrap());
        }
    }
}

/// Text and ids of the events of a stream, and whether it came to its end.
pub(crate) fn events(body: &str) -> (String, Vec<u32>, bool) {
    let (mut text, mut ids) = (String::new(), Vec::new());
    for data in body.split_inclusive("\n\n").filter_map(|event| event.strip_suffix("\n\n")?.strip_prefix("data: ")) {
        if data == "[DONE]" {
            return (text, ids, true);
        }
        let event: Value = serde_json::from_str(data).unwrap();
        let choice = &event["choices"][0];
        text += choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default();
        ids.extend(
            choice["token_ids"].as_array().into_iter().flatten().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()),
        );
    }
    (text, ids, false)
}
