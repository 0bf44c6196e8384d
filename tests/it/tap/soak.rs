//! Long runs, to be asked for:
//!
//! `cargo test --release --test it -- --ignored --nocapture soak`
//!
//! `VCR_SOAK_SECONDS` (600) and `VCR_SOAK_STREAMS` (2000) say how long and how many; a line every ten seconds shows the
//! tap's memory and open files. `VCR_KILLS` (200) says how often a tap is killed.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{Instant, sleep},
};
use vllm_vcr::recording::trace;

use crate::support::{
    CHAT,
    peer::post,
    tap_program::{Program, killed_after},
};

/// Connections to an upstream that one thread of the tap keeps (`crates/net/src/upstream/pool.rs`).
const MOST_IDLE: usize = 512;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Streams forty events, one every 50 ms; one stream in fifty is reset.
async fn pacing_engine() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut random = StdRng::seed_from_u64(7);
        while let Ok((stream, _)) = listener.accept().await {
            let reset = (random.random_range(0..50) == 0).then(|| random.random_range(1..40));
            tokio::spawn(stream_on(stream, reset));
        }
    });
    address
}

async fn stream_on(mut stream: TcpStream, reset: Option<u32>) -> std::io::Result<()> {
    let mut buffer = [0; 16384];
    while stream.read(&mut buffer).await? > 0 {
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            .await?;
        for at in 0..40 {
            if reset == Some(at) {
                stream.set_zero_linger()?;
                return Ok(());
            }
            sleep(Duration::from_millis(50)).await;
            let finish = if at == 39 { "\"stop\"" } else { "null" };
            let event = format!(
                "data: {{\"id\":\"1\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"w\"}},\"finish_reason\":{finish},\"token_ids\":[{at}]}}]}}\n\n"
            );
            stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await?;
        }
        stream.write_all(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n").await?;
    }
    Ok(())
}

#[derive(Default)]
struct Seen {
    sent: AtomicU64,
    whole: AtomicU64,
    broken: AtomicU64,
    left: AtomicU64,
}

/// Asks again and again; one answer in fifty is left in the middle.
async fn client(address: SocketAddr, seed: u64, until: Instant, seen: Arc<Seen>) {
    let mut random = StdRng::seed_from_u64(seed);
    sleep(Duration::from_millis(random.random_range(0..2000))).await;
    while Instant::now() < until {
        let Ok(mut stream) = TcpStream::connect(address).await else { continue };
        if stream.write_all(&post(CHAT, r#"{"stream":true,"messages":[]}"#)).await.is_err() {
            continue;
        }
        seen.sent.fetch_add(1, Relaxed);
        if random.random_range(0..50) == 0 {
            let _some = stream.read_exact(&mut [0; 2000]).await;
            seen.left.fetch_add(1, Relaxed);
            continue;
        }
        let mut answer = Vec::new();
        let _reset = stream.read_to_end(&mut answer).await;
        let is_whole = answer.ends_with(b"data: [DONE]\n\n\r\n0\r\n\r\n");
        if is_whole { &seen.whole } else { &seen.broken }.fetch_add(1, Relaxed);
    }
}

/// Resident kilobytes and open files.
fn weigh(process: u32) -> (u64, usize) {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    (resident.trim().trim_end_matches(" kB").parse().unwrap(), files)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes ten minutes"]
async fn memory_and_files_stay_flat() {
    let (seconds, streams) = (setting("VCR_SOAK_SECONDS", 600), setting("VCR_SOAK_STREAMS", 2000));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("soak.jsonl.gz");
    let mut program = Program::start(pacing_engine().await, &path, &["--record-tokens"]);
    let process = program.child.id();
    let (start, seen) = (Instant::now(), Arc::new(Seen::default()));
    let until = start + Duration::from_secs(seconds);
    let empty = weigh(process);
    eprintln!("seconds  resident-kB  files  sent  whole  broken  left\n0  {}  {}", empty.0, empty.1);
    let clients: Vec<_> =
        (0..streams).map(|seed| tokio::spawn(client(program.address, seed, until, Arc::clone(&seen)))).collect();
    let mut curve = Vec::new();
    while Instant::now() < until {
        sleep(Duration::from_secs(10).min(until.saturating_duration_since(Instant::now()))).await;
        let (resident, files) = weigh(process);
        curve.push(resident);
        let [sent, whole, broken, left] =
            [&seen.sent, &seen.whole, &seen.broken, &seen.left].map(|one| one.load(Relaxed));
        eprintln!("{}  {resident}  {files}  {sent}  {whole}  {broken}  {left}", start.elapsed().as_secs());
    }
    for client in clients {
        client.await.unwrap();
    }
    sleep(Duration::from_secs(2)).await;
    let (_, files) = weigh(process);
    program.signal("-INT");
    assert!(program.child.wait().unwrap().success());
    let trace = trace::read(&path).unwrap();
    let sent = seen.sent.load(Relaxed);
    eprintln!("{sent} sent, {} records, {files} files at the end", trace.records.len());
    assert_eq!(trace.records.len() as u64 + trace.end.unwrap().dropped, sent);
    // What a connection takes is given back, but for idle ones to the upstream: as many as wait in the pool of each thread.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    assert!(files <= empty.1 + threads * MOST_IDLE + 10, "{files}");
    let half = curve.len() / 2;
    let (early, late) = (curve[half.saturating_sub(1)], curve[curve.len() - 1]);
    assert!(late <= early + early / 5, "memory grows: {curve:?}");
}

#[test]
#[ignore = "takes many minutes"]
fn every_kill_leaves_a_trace_that_lacks_at_most_a_second() {
    let mut random = StdRng::seed_from_u64(11);
    for round in 0..setting("VCR_KILLS", 200) {
        let name = if round % 2 == 0 { "kill.jsonl" } else { "kill.jsonl.gz" };
        killed_after(Duration::from_millis(random.random_range(50..3000)), name);
    }
}
