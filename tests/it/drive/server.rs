//! A server of the tests' own that notes what it is sent.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::SystemTime,
};

use serde_json::Value;

/// A request that came.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) at: SystemTime,
    pub(super) path: String,
    pub(super) head: String,
    pub(super) body: Value,
}

/// It answers each request with what `answer` makes of its path and body; a text is a stream of events.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    sent: Arc<Mutex<Vec<Sent>>>,
}

impl Server {
    pub(super) fn start(answer: impl Fn(&str, &Value) -> Value + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sent, answer) = (Arc::<Mutex<Vec<Sent>>>::default(), Arc::new(answer));
        let seen = Arc::clone(&sent);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                thread::spawn(move || serve(client, &seen, &*answer));
            }
        });
        Self { address, sent }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What was sent to its endpoints, in the order in which it came.
    pub(super) fn sent(&self) -> Vec<Sent> {
        self.sent
            .lock()
            .unwrap()
            .iter()
            .filter(|sent| sent.path.starts_with("/v1/") && !sent.body.is_null())
            .cloned()
            .collect()
    }
}

fn serve(mut client: TcpStream, seen: &Mutex<Vec<Sent>>, answer: &dyn Fn(&str, &Value) -> Value) {
    let Some((head, body)) = request(&mut client) else { return };
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    seen.lock().unwrap().push(Sent { at: SystemTime::now(), path: path.clone(), head, body: body.clone() });
    let answer = answer(&path, &body);
    let (kind, text) = match &answer {
        Value::String(events) => ("text/event-stream", events.clone()),
        other => ("application/json", other.to_string()),
    };
    let status = if answer.is_null() { "404 Not Found" } else { "200 OK" };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        text.len()
    );
    let _left = client.write_all((head + &text).as_bytes());
}

/// A server whose responses are the bytes that `answer` writes; returns its URL.
pub(super) fn raw(answer: fn(&mut TcpStream)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || request(&mut client).map(|_| answer(&mut client)));
        }
    });
    url
}

fn request(client: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 65536]);
    loop {
        let count = client.read(&mut buffer).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&buffer[..count]);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        let whole = end + 4 + length.unwrap_or(0);
        if bytes.len() >= whole {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            return Some((head, bytes[end + 4..whole].to_vec()));
        }
    }
}
