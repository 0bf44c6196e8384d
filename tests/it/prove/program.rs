//! The program: its exit codes, JUnit's file and the scripts.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
};

use tokio::{net::TcpListener, task::spawn_blocking};
use vllm_vcr::net::server::{ClientCertificates, Listener, Tls, TlsFiles};

use super::proxy::{Bug, Proxy};
use crate::support::{
    free_address,
    running::{Running, vcr},
    tapping::Tapping,
};

/// Runs the program before a proxy with a bug; its exit code, JUnit's file, and the folder of scripts.
async fn proven(bug: Bug) -> (i32, String, tempfile::TempDir, Proxy) {
    let proxy = Proxy::start(bug).await;
    let folder = tempfile::tempdir().unwrap();
    let (junit, scripts) = (folder.path().join("junit.xml"), folder.path().join("scripts"));
    let running = Running::start(&[
        "prove",
        "--via",
        &format!("http://{}", proxy.address),
        "--upstream-port",
        "0",
        "--cases",
        "10",
        "--concurrency",
        "100",
        "--only",
        "stream,usage",
        "--shrink",
        "2",
        "--junit",
        junit.to_str().unwrap(),
        "--scripts",
        scripts.to_str().unwrap(),
    ]);
    proxy.upstream.send_replace(Some(running.address));
    let code = spawn_blocking(move || running.wait()).await.unwrap();
    (code, fs::read_to_string(junit).unwrap(), folder, proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_exit_code_1_and_a_script_that_shows_it() {
    let (code, junit, folder, proxy) = proven(Bug::Drop).await;
    assert_eq!(code, 1, "{junit}");
    assert!(junit.contains("name=\"stream\"><failure") && junit.contains("name=\"usage\"></testcase>"), "{junit}");
    let script = folder.path().join("scripts/prove-1.py");
    assert!(fs::read_to_string(&script).unwrap().contains("event 4 of"));
    if Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_err()
        && std::env::var_os("CI").is_none()
    {
        eprintln!("no python3: the script is not run");
        return;
    }
    let shows = async |gateway: SocketAddr, upstream: SocketAddr, expected: i32| {
        let mut python = Command::new("python3");
        python.arg(&script).arg(gateway.to_string()).arg(upstream.to_string());
        let output = spawn_blocking(move || python.output().unwrap()).await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(expected), "{said}");
    };
    for (gateway, expected) in [(proxy, 1), (Proxy::start(Bug::Nothing).await, 0)] {
        let free = free_address();
        gateway.upstream.send_replace(Some(free));
        shows(gateway.address, free, expected).await;
    }
    let text = fs::read_to_string(&script).unwrap();
    assert!(text.contains("\nTLS = False"));
    fs::write(&script, text.replacen("\nTLS = False", "\nTLS = True", 1)).unwrap();
    let free = free_address();
    let gateway = tls_gateway(folder.path(), free).await;
    shows(gateway.address, free, 0).await;
    gateway.stop().await;
}

/// A gateway that changes nothing, behind TLS with HTTP/2.
async fn tls_gateway(folder: &Path, upstream: SocketAddr) -> Tapping {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = folder.join("both.pem");
    fs::write(&certificate, made.cert.pem() + &made.signing_key.serialize_pem()).unwrap();
    let files =
        TlsFiles { certificate, key: None, authorities: None, clients: ClientCertificates::None, refresh: false };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listener = Listener::from(listener).with_http2().with_tls(Tls::load(files).unwrap());
    Tapping::behind(listener, address, &format!("http://{upstream}"), |_| {}).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proof_is_exit_code_0() {
    let (code, junit, ..) = proven(Bug::Nothing).await;
    assert_eq!((code, junit.matches("<failure").count()), (0, 0), "{junit}");
}

#[test]
fn what_cannot_be_proven_is_no_verdict() {
    // A port below those that systems hand out for 0: the program's own upstream cannot get it.
    let via = "http://127.0.0.1:1";
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (own, own_port) = (format!("http://localhost:{}", free.port()), free.port().to_string());
    for (arguments, code, part) in [
        (vec!["--via", via, "--upstream-port", "0", "--wait", "0s"], 4, "does not pass requests on"),
        (vec!["--via", "ftp://h"], 2, "--via"),
        (vec!["--via", &own, "--upstream-port", &own_port], 2, "not a gateway"),
        (vec!["--via", via, "--only", "speed"], 2, "--only"),
        (vec!["--via", via, "--upstream-port", "0", "--prices", "/nowhere.json"], 3, "/nowhere.json"),
        (vec!["--via", via, "--upstream-port", "0", "--cassette", "/nowhere.yaml"], 3, "/nowhere.yaml"),
        (vec!["--via", via, "--upstream-port", "0", "--api-key", "a\nb"], 2, "--api-key"),
    ] {
        let output = vcr(&[["prove"].as_slice(), &arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part), "{arguments:?}: {stderr}");
    }
}
