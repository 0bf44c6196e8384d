//! Two taps in a row, joined by TLS, HTTP/2 or a Unix socket: the client sees the engine's own bytes all the same.

use std::sync::Arc;

use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use vllm_vcr::{
    net::server::{self, ClientCertificates, Listener, NO_ADDRESS, Tls, TlsFiles},
    net::upstream::{Authorities, UpstreamOptions},
    tap::Setup,
};

use crate::support::{
    CHAT,
    peer::{End, Script, Upstream, answer, event_stream, exchange, post},
    tapping::Tapping,
};

async fn engine() -> Upstream {
    Upstream::start(|request| {
        let text = String::from_utf8_lossy(request);
        let ids = if text.contains("\"return_token_ids\":true") { "[7]" } else { "null" };
        if !text.contains("\"stream\":true") {
            return Script { pieces: answer("200 OK", r#"{"whole":1}"#), end: End::KeepAlive };
        }
        let event = |text: &str, finish: &str| {
            format!(r#"{{"id":"1","choices":[{{"index":0,"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":{finish},"token_ids":{ids}}}]}}"#)
        };
        let events = [event("a", "null"), event("b", "\"stop\""), "[DONE]".to_owned()];
        Script { pieces: event_stream(&events.each_ref().map(String::as_str)), end: End::KeepAlive }
    })
    .await
}

/// Asks through a tap before `second`, directly, and compares.
async fn compare(upstream: &Upstream, second: Tapping, url: &str, change: impl FnOnce(&mut Setup)) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let first = Tapping::behind(listener, address, url, change).await;
    for body in [r#"{"stream":true}"#, "{}", r#"{"stream":true,"return_token_ids":true}"#] {
        let direct = exchange(upstream.address, &post(CHAT, body)).await;
        let tapped = exchange(first.address, &post(CHAT, body)).await;
        assert_eq!((tapped.status, tapped.body()), (direct.status, direct.body()), "{url} {body}");
        assert!(tapped.complete);
    }
    let (_, near) = first.records().await;
    let (_, far) = second.records().await;
    let ids = |records: &[vllm_vcr::recording::trace::Record]| {
        records.iter().map(|record| record.output_token_ids.clone()).collect::<Vec<_>>()
    };
    assert_eq!((near.len(), ids(&near)), (3, ids(&far)));
    assert_eq!(near[0].output_token_ids.as_deref(), Some(&[7, 7][..]));
}

#[tokio::test]
async fn through_tls_with_http_2() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("a.pem"), folder.path().join("a.key"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = Tls::load(TlsFiles {
        certificate: certificate.clone(),
        key: Some(key),
        authorities: None,
        clients: ClientCertificates::None,
        refresh: false,
    })
    .unwrap();
    let upstream = engine().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listener = Listener::from(listener).with_http2().with_tls(tls);
    let second = Tapping::behind(listener, address, &format!("http://{}", upstream.address), |_| {}).await;
    let url = format!("https://localhost:{}", address.port());
    compare(&upstream, second, &url, |setup| {
        let authorities = Authorities::read(&certificate).unwrap();
        setup.reach = UpstreamOptions { authorities: Some(Arc::new(authorities)), ..UpstreamOptions::default() };
    })
    .await;
}

#[tokio::test]
async fn an_untrusted_certificate_is_a_502() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let both = folder.path().join("both.pem");
    std::fs::write(&both, format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem())).unwrap();
    let files =
        TlsFiles { certificate: both, key: None, authorities: None, clients: ClientCertificates::None, refresh: false };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let upstream = engine().await;
    let listener = Listener::from(listener).with_tls(Tls::load(files).unwrap());
    let second = Tapping::behind(listener, address, &format!("http://{}", upstream.address), |_| {}).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let first = Tapping::behind(listener, at, &format!("https://localhost:{}", address.port()), |_| {}).await;
    let refused = exchange(first.address, &post(CHAT, "{}")).await;
    assert_eq!(refused.status, 502);
    assert!(refused.body().contains("certificate"), "{}", refused.body());
    first.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn through_http_2_without_tls() {
    let upstream = engine().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listener = Listener::from(listener).with_http2();
    let second = Tapping::behind(listener, address, &format!("http://{}", upstream.address), |_| {}).await;
    compare(&upstream, second, &format!("h2c://{address}"), |_| {}).await;
}

#[tokio::test]
async fn through_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tap.sock");
    let upstream = engine().await;
    let listener = server::bind_unix(&path).await.unwrap();
    let second = Tapping::behind(listener, NO_ADDRESS, &format!("http://{}", upstream.address), |_| {}).await;
    compare(&upstream, second, &format!("unix:{}", path.display()), |_| {}).await;
}

/// A tap whose clients may speak HTTP/2.
async fn with_http2(upstream: &Upstream) -> Tapping {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listener = Listener::from(listener).with_http2();
    Tapping::behind(listener, address, &format!("http://{}", upstream.address), |_| {}).await
}

#[tokio::test]
async fn a_client_may_speak_http_2() {
    let upstream = engine().await;
    let tap = with_http2(&upstream).await;
    let address = tap.address;
    let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post(format!("http://{address}{CHAT}"))
        .header("content-type", "application/json")
        .body(Full::new(bytes::Bytes::from_static(br#"{"stream":true}"#)))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!((response.version(), response.status().as_u16()), (http::Version::HTTP_2, 200));
    assert!(!response.headers().contains_key("transfer-encoding"));
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let direct = exchange(upstream.address, &post(CHAT, r#"{"stream":true}"#)).await;
    assert_eq!(String::from_utf8_lossy(&body), direct.body());
    drop(sender);
    let (_, records) = tap.records().await;
    assert_eq!(records[0].output_token_ids.as_deref(), Some(&[7, 7][..]));
}

#[tokio::test]
async fn a_request_that_an_http_2_client_takes_back_is_accounted_for() {
    let upstream = engine().await;
    let tap = with_http2(&upstream).await;
    let address = tap.address;
    let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    // Its body never comes.
    let body = StreamBody::new(futures_util::stream::pending::<Result<Frame<bytes::Bytes>, std::io::Error>>());
    let request = http::Request::post(format!("http://{address}{CHAT}")).body(body).unwrap();
    let asking = tokio::spawn(async move { sender.send_request(request).await.map(drop) });
    tap.until("vcr_requests_total", 1.0).await;
    asking.abort();
    tap.until("vcr_requests_not_recorded_total{reason=\"incomplete\"}", 1.0).await;
    tap.stop().await;
}
