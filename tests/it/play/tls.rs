//! HTTPS, with certificates that are made here.

use std::{fs, path::Path, sync::Arc, time::Duration};

use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};
use vllm_vcr::{
    net::server::{ClientCertificates, Listener, Tls, TlsFiles},
    play::Player,
    recording::trace::FinishReason,
    replay::matching::MatchBy,
};

use crate::support::{
    play_server::{config, record},
    running::Running,
};

/// An authority and what it signs.
pub(crate) struct Signer(CertifiedIssuer<'static, KeyPair>);

impl Signer {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes a certificate for `localhost` and its key.
    pub(crate) fn sign(&self, directory: &Path, name: &str, purpose: ExtendedKeyUsagePurpose) -> (String, String) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().unwrap();
        let (certificate, key) = (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem());
        fs::write(directory.join(format!("{name}.pem")), &certificate).unwrap();
        fs::write(directory.join(format!("{name}.key")), &key).unwrap();
        (certificate, key)
    }

    /// What a client has to know.
    pub(crate) fn client(&self, protocols: &[&[u8]], own: Option<&(String, String)>) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let mut config = match own {
            Some((certificate, key)) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                    PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
                )
                .unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        TlsConnector::from(Arc::new(config))
    }
}

pub(crate) fn files(directory: &Path) -> TlsFiles {
    TlsFiles {
        certificate: directory.join("server.pem"),
        key: Some(directory.join("server.key")),
        authorities: None,
        clients: ClientCertificates::None,
        refresh: false,
    }
}

struct Server {
    address: std::net::SocketAddr,
    _stop: oneshot::Sender<()>,
}

async fn serve(files: TlsFiles) -> Server {
    let played = config(&[MatchBy::Next], vec![record(&[20, 21, 22], Duration::ZERO, FinishReason::Stop)]);
    let player = Player::load(played).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listener = Listener::from(listener).with_tls(Tls::load(files).unwrap());
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(async move { player.serve(listener, async { drop(stopped.await) }).await });
    Server { address, _stop: stop }
}

async fn connect(server: &Server, client: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(server.address).await.unwrap();
    client.connect(ServerName::try_from("localhost").unwrap(), stream).await
}

async fn ask(server: &Server, client: &TlsConnector, path: &str) -> std::io::Result<String> {
    let mut stream = connect(server, client).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn http_1_1_is_served_and_redirects_stay_secure() {
    let (directory, signer) = (tempfile::tempdir().unwrap(), Signer::new());
    signer.sign(directory.path(), "server", ExtendedKeyUsagePurpose::ServerAuth);
    let server = serve(files(directory.path())).await;
    let answer = ask(&server, &signer.client(&[], None), "/version").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with(r#"{"version":"0.32.0"}"#), "{answer}");
    let answer = ask(&server, &signer.client(&[b"http/1.1"], None), "/v1/models/?a=b").await.unwrap();
    assert!(answer.contains("\r\nlocation: https://here/v1/models?a=b\r\n"), "{answer}");
}

#[tokio::test]
async fn http_2_is_negotiated() {
    let (directory, signer) = (tempfile::tempdir().unwrap(), Signer::new());
    signer.sign(directory.path(), "server", ExtendedKeyUsagePurpose::ServerAuth);
    let server = serve(files(directory.path())).await;
    let stream = connect(&server, &signer.client(&[b"h2", b"http/1.1"], None)).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get("https://localhost/version").body(Empty::<bytes::Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!((response.version(), response.status().as_u16()), (http::Version::HTTP_2, 200));
    assert_eq!(&response.into_body().collect().await.unwrap().to_bytes()[..], br#"{"version":"0.32.0"}"#);
}

#[tokio::test]
async fn a_client_without_a_handshake_delays_no_other_client() {
    let (directory, signer) = (tempfile::tempdir().unwrap(), Signer::new());
    signer.sign(directory.path(), "server", ExtendedKeyUsagePurpose::ServerAuth);
    let server = serve(files(directory.path())).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    let honest = timeout(Duration::from_secs(4), ask(&server, &signer.client(&[], None), "/health")).await;
    assert!(honest.expect("silent clients take no place").unwrap().starts_with("HTTP/1.1 200 OK"));
    let mut plain = TcpStream::connect(server.address).await.unwrap();
    plain.write_all(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut told = Vec::new();
    let _ = timeout(Duration::from_secs(5), plain.read_to_end(&mut told)).await.unwrap();
    assert!(!told.starts_with(b"HTTP"), "{told:?}");
    assert!(ask(&server, &signer.client(&[], None), "/health").await.unwrap().starts_with("HTTP/1.1 200 OK"));
}

#[tokio::test]
async fn clients_may_have_to_show_a_certificate() {
    let (directory, signer, stranger) = (tempfile::tempdir().unwrap(), Signer::new(), Signer::new());
    signer.sign(directory.path(), "server", ExtendedKeyUsagePurpose::ServerAuth);
    let good = signer.sign(directory.path(), "client", ExtendedKeyUsagePurpose::ClientAuth);
    let bad = stranger.sign(directory.path(), "stranger", ExtendedKeyUsagePurpose::ClientAuth);
    fs::write(directory.path().join("ca.pem"), signer.0.pem()).unwrap();
    for (clients, without) in [(ClientCertificates::Required, false), (ClientCertificates::Optional, true)] {
        let authorities = Some(directory.path().join("ca.pem"));
        let server = serve(TlsFiles { authorities, clients, ..files(directory.path()) }).await;
        for (own, let_in) in [(None, without), (Some(&good), true), (Some(&bad), false)] {
            let answer = ask(&server, &signer.client(&[], own), "/health").await;
            assert_eq!(answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")), let_in, "{clients:?} {own:?}");
        }
    }
}

#[tokio::test]
async fn the_log_names_why_a_clients_certificate_is_refused() {
    let (directory, signer, stranger) = (tempfile::tempdir().unwrap(), Signer::new(), Signer::new());
    let path = |name: &str| directory.path().join(name).display().to_string();
    signer.sign(directory.path(), "server", ExtendedKeyUsagePurpose::ServerAuth);
    fs::write(path("ca.pem"), signer.0.pem()).unwrap();
    let mut server = Running::start(
        &[
            &["play", "--synthetic", "random", "--served-model-name", "m", "--instant", "--port", "0"][..],
            &["--ssl-certfile", &path("server.pem"), "--ssl-keyfile", &path("server.key")],
            &["--ssl-cert-reqs", "2", "--ssl-ca-certs", &path("ca.pem")],
        ]
        .concat(),
    );
    let own = stranger.sign(directory.path(), "stranger", ExtendedKeyUsagePurpose::ClientAuth);
    let (stop, _stopped) = oneshot::channel();
    let of_it = Server { address: server.address, _stop: stop };
    assert!(ask(&of_it, &signer.client(&[], Some(&own)), "/health").await.is_err());
    server.waits_for("a client's certificate is refused");
    server.waits_for("invalid peer certificate");
}

#[tokio::test]
async fn changed_files_are_read_again_where_that_was_asked_for() {
    let (directory, old, new) = (tempfile::tempdir().unwrap(), Signer::new(), Signer::new());
    old.sign(directory.path(), "server", ExtendedKeyUsagePurpose::ServerAuth);
    let server = serve(TlsFiles { refresh: true, ..files(directory.path()) }).await;
    assert!(ask(&server, &old.client(&[], None), "/health").await.is_ok());
    tokio::time::sleep(Duration::from_millis(20)).await;
    fs::write(directory.path().join("server.pem"), "nonsense").unwrap();
    assert!(ask(&server, &old.client(&[], None), "/health").await.is_ok(), "the old one stays");
    tokio::time::sleep(Duration::from_millis(20)).await;
    new.sign(directory.path(), "server", ExtendedKeyUsagePurpose::ServerAuth);
    assert!(ask(&server, &new.client(&[], None), "/health").await.is_ok());
    assert!(ask(&server, &old.client(&[], None), "/health").await.is_err());
}

#[test]
fn faults_name_the_file_and_the_flag() {
    let (directory, signer) = (tempfile::tempdir().unwrap(), Signer::new());
    let path = directory.path();
    signer.sign(path, "server", ExtendedKeyUsagePurpose::ServerAuth);
    signer.sign(path, "other", ExtendedKeyUsagePurpose::ServerAuth);
    fs::write(path.join("empty.pem"), "").unwrap();
    fs::write(path.join("cut.pem"), "-----BEGIN CERTIFICATE-----\nAAAA\n").unwrap();
    let fault = |change: &dyn Fn(&mut TlsFiles)| {
        let mut files = files(path);
        change(&mut files);
        Tls::load(files).unwrap_err().to_string().replace(&path.display().to_string(), "DIR")
    };
    for (told, expected) in [
        (fault(&|files| files.certificate = path.join("none.pem")), "cannot read DIR/none.pem (--ssl-certfile)"),
        (fault(&|files| files.key = Some(path.join("none.key"))), "cannot read DIR/none.key (--ssl-keyfile)"),
        (
            fault(&|files| files.certificate = path.join("empty.pem")),
            "DIR/empty.pem (--ssl-certfile) holds no certificate",
        ),
        (fault(&|files| files.certificate = path.join("cut.pem")), "DIR/cut.pem (--ssl-certfile) is not a PEM file"),
        (
            fault(&|files| files.key = Some(path.join("server.pem"))),
            "DIR/server.pem (--ssl-keyfile) holds no private key that can be read without a password",
        ),
        (
            fault(&|files| files.key = None),
            "DIR/server.pem (--ssl-certfile) holds no private key that can be read without a password",
        ),
        (
            fault(&|files| files.key = Some(path.join("other.key"))),
            "the certificate of DIR/server.pem (--ssl-certfile) and the key of DIR/other.key (--ssl-keyfile) cannot be used",
        ),
        (
            fault(&|files| files.clients = ClientCertificates::Required),
            "--ssl-cert-reqs needs --ssl-ca-certs: a file of authorities that sign clients' certificates",
        ),
    ] {
        assert_eq!(told, expected);
    }
}
