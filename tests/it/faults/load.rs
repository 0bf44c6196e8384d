//! Many requests with many faults: counts add up, and nothing stays behind. Run with `cargo test --test it faults::load -- --ignored
//! --nocapture`; its figures are in docs/src/internals/bad-days.md.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::{net::TcpStream, sync::Mutex, task::JoinSet};

use super::{COMPLETIONS, hits};
use crate::support::{
    client::{self, get},
    running::Running,
};

const REQUESTS: usize = 100_000;
const AT_A_TIME: usize = 200;

/// Three in ten fail: before the head, instead of it, or in the body.
const LINES: [&str; 3] = ["503 where rate=0.1", "reset where rate=0.111", "reset at event 3 where rate=0.125"];

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    refused: usize,
    unanswered: usize,
    broken: usize,
    whole: usize,
}

type Sender = SendRequest<Full<bytes::Bytes>>;

async fn connect(address: SocketAddr) -> Sender {
    let (sender, connection) = handshake(TokioIo::new(TcpStream::connect(address).await.unwrap())).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Sends the request of this number, on the connection that is left or on another.
async fn send(address: SocketAddr, sender: &mut Option<Sender>, number: usize, counts: &mut Counts) {
    let body = json!({"prompt": [number % 30_000 + 1, number / 30_000 + 1, 7], "stream": true, "max_tokens": 12});
    let mut connection = match sender.take() {
        Some(open) if !open.is_closed() => open,
        _ => connect(address).await,
    };
    if connection.ready().await.is_err() {
        connection = connect(address).await;
    }
    let request = http::Request::post(COMPLETIONS).header("host", "x").header("content-type", "application/json");
    let request = request.body(Full::new(bytes::Bytes::from(body.to_string()))).unwrap();
    let Ok(response) = connection.send_request(request).await else {
        counts.unanswered += 1;
        return;
    };
    let status = response.status();
    match response.into_body().collect().await {
        Err(_) => return counts.broken += 1,
        Ok(body) if status == 200 => {
            assert!(body.to_bytes().ends_with(b"data: [DONE]\n\n"));
            counts.whole += 1;
        }
        Ok(_) => counts.refused += 1,
    }
    *sender = Some(connection);
}

async fn send_all(address: SocketAddr, requests: std::ops::Range<usize>) -> Counts {
    let (next, mut clients) = (Arc::new(Mutex::new(requests)), JoinSet::new());
    for _ in 0..AT_A_TIME {
        let next = Arc::clone(&next);
        clients.spawn(async move {
            let (mut counts, mut sender) = (Counts::default(), None);
            loop {
                let Some(number) = next.lock().await.next() else { return counts };
                send(address, &mut sender, number, &mut counts).await;
            }
        });
    }
    clients.join_all().await.into_iter().fold(Counts::default(), |sum, more| Counts {
        refused: sum.refused + more.refused,
        unanswered: sum.unanswered + more.unanswered,
        broken: sum.broken + more.broken,
        whole: sum.whole + more.whole,
    })
}

/// Resident memory in KiB and open descriptors of a process.
fn usage(id: u32) -> (u64, usize) {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let memory = line.split_whitespace().next().unwrap().parse().unwrap();
    (memory, std::fs::read_dir(format!("/proc/{id}/fd")).unwrap().count())
}

async fn until_idle(server: &Running, descriptors: usize) {
    let mut held = Vec::new();
    for _ in 0..300 {
        let page = client::send(server.address, &get("/metrics")).await.text();
        let families = ["vllm:kv_cache_usage_perc{", "vllm:num_requests_running{", "vllm:num_requests_waiting{"];
        let is_held = |line: &&str| {
            families.iter().any(|family| line.starts_with(family)) && !line.ends_with(" 0.0") && !line.ends_with(" 0")
        };
        held = page.lines().filter(is_held).map(str::to_owned).collect();
        if held.is_empty() && usage(server.id()).1 <= descriptors {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("it holds {held:?}, and {:?} instead of {descriptors}", usage(server.id()));
}

/// Plays to all requests; gives the list of faults.
async fn run(source: &[&str], lines: &[&str]) -> BTreeSet<String> {
    let fixed = ["play", "--port", "0", "--fault-seed", "11"];
    let faults: Vec<&str> = lines.iter().flat_map(|line| ["--fault", line]).collect();
    let server = Running::start(&[&fixed[..], source, &faults].concat());
    // Threads and their descriptors are made when they are needed first.
    let warm = send_all(server.address, REQUESTS..REQUESTS + 1000).await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let descriptors = usage(server.id()).1;
    let mut memory = Vec::new();
    let (mut sum, start) = (warm, tokio::time::Instant::now());
    for tenth in 0..10 {
        let counts = send_all(server.address, tenth * REQUESTS / 10..(tenth + 1) * REQUESTS / 10).await;
        sum.refused += counts.refused;
        sum.unanswered += counts.unanswered;
        sum.broken += counts.broken;
        sum.whole += counts.whole;
        until_idle(&server, descriptors).await;
        memory.push(usage(server.id()).0 / 1024);
    }
    let list = hits(server.address).await;
    eprintln!("{source:?} {lines:?}: {sum:?} in {:?}; MiB after each tenth {memory:?}", start.elapsed());
    assert_eq!(sum.refused + sum.unanswered + sum.broken + sum.whole, REQUESTS + 1000);
    assert_eq!(list.len(), sum.refused + sum.unanswered + sum.broken);
    let of = |start: &str| list.iter().filter(|line| line.starts_with(start)).count();
    assert_eq!(of("503 "), sum.refused);
    assert_eq!((of("reset where"), of("reset at event 3")), (sum.unanswered, sum.broken));
    // What is counted of each request, and the list, are all that grows.
    assert!(memory[9] < memory[1] + 60, "{memory:?}");
    let (_, said) = server.stop();
    eprintln!("{}", said.lines().filter(|line| line.contains("lateness of")).collect::<Vec<_>>().join("\n"));
    list.into_iter().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes"]
async fn a_hundred_thousand_requests_with_three_in_ten_faults() {
    let source = ["--synthetic", "random", "--engine", "--instant"];
    run(&source, &[]).await;
    let list = run(&source, &LINES).await;
    assert!((28_000..32_000).contains(&list.len()), "{}", list.len());
    assert_eq!(list, run(&source, &LINES).await);
}
