//! The ways to a server: HTTP/1.1 and HTTP/2 as they are, and HTTP/1.1 in TLS.

use std::error::Error as _;

use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::ExtendedKeyUsagePurpose;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};
use tokio_rustls::rustls::pki_types::ServerName;
use vllm_vcr::{
    net::server::{Listener, Tls},
    play::{Config, Player},
};

use super::{COMPLETIONS, Ending, Heard, faults, hear, request, served, stream_body};
use crate::{
    play::tls::{Signer, files},
    support::play_server::start,
};

/// A way to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Http1,
    Http2,
    Tls,
}

impl Transport {
    /// Returns true if the chunks of a body are those of the writes.
    pub(super) fn shows_writes(self) -> bool {
        self != Self::Http2
    }

    /// How a response ends here: over HTTP/2 a stream that breaks is always reset.
    pub(super) fn ending(self, ending: Ending) -> Ending {
        match ending {
            Ending::Cut if self == Self::Http2 => Ending::Reset,
            ending => ending,
        }
    }

    /// Returns true if a head has this part.
    pub(super) fn has_head(self, head: &str, part: &str) -> bool {
        let part = if self == Self::Http2 { part.replace("http/1.1 ", "http/2 ") } else { part.to_owned() };
        head.contains(&part)
    }
}

/// Starts a server, sends a request and reads what comes.
pub(super) async fn over(transport: Transport, config: Config, request: &[u8], at_most: Option<usize>) -> Heard {
    match transport {
        Transport::Http1 => {
            let server = start(config).await;
            super::ask(server.address, request, at_most).await
        }
        Transport::Http2 => {
            let server = start(config).await;
            let body = request[request.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4..].to_vec();
            http2(TcpStream::connect(server.address).await.unwrap(), body, at_most).await
        }
        Transport::Tls => {
            let (directory, signer) = (tempfile::tempdir().unwrap(), Signer::new());
            signer.sign(directory.path(), "server", ExtendedKeyUsagePurpose::ServerAuth);
            let tls = Tls::load(files(directory.path())).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (_stop, stopped) = oneshot::channel::<()>();
            let player = Player::load(config).unwrap();
            tokio::spawn(async move {
                player.serve(Listener::from(listener).with_tls(tls), async { drop(stopped.await) }).await
            });
            let stream = TcpStream::connect(address).await.unwrap();
            let connector = signer.client(&[b"http/1.1"], None);
            let mut stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
            hear(&mut stream, request, at_most).await
        }
    }
}

fn is_stream_reset(error: &hyper::Error) -> bool {
    error.source().is_some_and(|source| source.to_string().contains("stream error received"))
}

async fn http2(stream: TcpStream, body: Vec<u8>, at_most: Option<usize>) -> Heard {
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post(format!("http://x{COMPLETIONS}"))
        .header("content-type", "application/json")
        .header("x-request-id", "fixed")
        .body(Full::new(bytes::Bytes::from(body)))
        .unwrap();
    let nothing = |ending| Heard { head: String::new(), chunks: Vec::new(), ending };
    let wait = std::time::Duration::from_millis(150);
    let responding = sender.send_request(request);
    let response = if at_most == Some(0) {
        match tokio::time::timeout(wait, responding).await {
            Ok(response) => response,
            Err(_) => return nothing(Ending::Open),
        }
    } else {
        responding.await
    };
    let response = match response {
        Ok(response) => response,
        Err(error) if is_stream_reset(&error) => return nothing(Ending::Reset),
        Err(error) => panic!("{error}: {:?}", error.source()),
    };
    let fields = response.headers().iter().map(|(name, value)| format!("{name}: {}\r\n", value.to_str().unwrap()));
    let head = format!("http/2 {} \r\n{}", response.status().as_u16(), fields.collect::<String>());
    let (mut body, mut chunks) = (response.into_body(), Vec::new());
    let ending = loop {
        let has_all = at_most.is_some_and(|most| chunks.iter().map(Vec::len).sum::<usize>() >= most);
        let frame = if has_all {
            match tokio::time::timeout(wait, body.frame()).await {
                Ok(frame) => frame,
                Err(_) => break Ending::Open,
            }
        } else {
            body.frame().await
        };
        match frame {
            None => break Ending::Whole,
            Some(Ok(frame)) => chunks.extend(frame.into_data().map(|data| data.to_vec())),
            Some(Err(error)) if is_stream_reset(&error) => break Ending::Reset,
            Some(Err(error)) => panic!("{error}: {:?}", error.source()),
        }
    };
    Heard { head, chunks, ending }
}

#[tokio::test]
async fn a_reset_stream_leaves_the_connection_and_its_other_streams() {
    let server = start(served(faults(&["reset at event 2 where nth=1"], 0))).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut endings = Vec::new();
    for _ in 0..2 {
        let body = Full::new(bytes::Bytes::from(stream_body().to_string()));
        let request = http::Request::post(format!("http://x{COMPLETIONS}")).header("content-type", "application/json");
        let response = sender.clone().send_request(request.body(body).unwrap()).await.unwrap();
        endings.push(response.into_body().collect().await.is_ok());
    }
    assert_eq!(endings, [false, true]);
}

/// What the client sends after the server's end arrives: the server reads it, and resets nothing.
#[tokio::test]
async fn a_half_closed_connection_is_read_on_until_the_client_closes() {
    let server = start(served(faults(&["half-close at event 2"], 0))).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let heard = hear(&mut stream, &request(COMPLETIONS, &stream_body()), None).await;
    assert_eq!(heard.ending, Ending::Cut);
    for _ in 0..50 {
        stream.write_all(&[b'x'; 4096]).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    stream.shutdown().await.unwrap();
    // A closed connection would have been reset by these bytes.
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
}
