//! Bad days, drawn at random: whatever upstream, client and disk do, bytes that pass are unchanged, every recorded request
//! has exactly one outcome, and the counts add up.

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
};
use vllm_vcr::recording::trace::{CreateMode, Outcome, RotationLimits};

use crate::support::{
    CHAT,
    peer::{End, Script, Upstream, answer, event_stream, parse, post},
    tapping::Tapping,
};

/// What the upstream does with a request, and what it comes to for a client that stays.
const FAULTS: [(&str, Outcome); 10] = [
    ("fine", Outcome::Finished),
    ("whole", Outcome::Finished),
    ("no-answer", Outcome::UpstreamFailed),
    ("half-a-head", Outcome::UpstreamFailed),
    ("garbage", Outcome::UpstreamFailed),
    ("cut-stream", Outcome::UpstreamFailed),
    ("cut-json", Outcome::UpstreamFailed),
    ("error-500", Outcome::Error),
    ("error-event", Outcome::Error),
    ("empty-stream", Outcome::UpstreamFailed),
];

fn act(request: &[u8]) -> Script {
    let text = String::from_utf8_lossy(request);
    if text.starts_with("GET ") {
        return Script { pieces: answer("404 Not Found", "{}"), end: End::KeepAlive };
    }
    let ids = |list: &str| if text.contains("return_token_ids") { list.to_owned() } else { "null".to_owned() };
    let event = |word: &str, list: &str, finish: &str| {
        format!(
            r#"{{"id":"1","choices":[{{"index":0,"delta":{{"content":"{word}"}},"logprobs":null,"finish_reason":{finish},"token_ids":{}}}]}}"#,
            ids(list)
        )
    };
    let stream = || {
        let mut events: Vec<String> = (0..20).map(|at| event(&format!("w{at}"), &format!("[{at}]"), "null")).collect();
        events.push(event("", "[99]", "\"stop\""));
        events.push("[DONE]".to_owned());
        event_stream(&events.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let fault = FAULTS.iter().find(|(name, _)| text.contains(&format!("\"fault\":\"{name}\""))).unwrap().0;
    let (pieces, end) = match fault {
        "fine" => (stream(), End::KeepAlive),
        "whole" => {
            let body = format!(
                r#"{{"id":"1","choices":[{{"index":0,"text":"a","finish_reason":"stop","token_ids":{}}}],"usage":{{"prompt_tokens":1,"completion_tokens":2}}}}"#,
                ids("[1,2]")
            );
            (answer("200 OK", &body), End::KeepAlive)
        }
        "no-answer" => (Vec::new(), End::Close),
        "half-a-head" => (vec![b"HTTP/1.1 200 OK\r\ncontent-ty".to_vec()], End::Close),
        "garbage" => (vec![b"\x16\x03\x01 this is no HTTP\r\n\r\n".to_vec()], End::Close),
        "cut-stream" => (stream().into_iter().take(8).collect(), End::Close),
        "cut-json" => (
            vec![b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"id\":".to_vec()],
            End::Close,
        ),
        "error-500" => (answer("500 Internal Server Error", r#"{"error":"x"}"#), End::KeepAlive),
        "error-event" => (event_stream(&[r#"{"error":{"message":"no"}}"#, "[DONE]"]), End::KeepAlive),
        _ => (event_stream(&[]), End::KeepAlive),
    };
    Script { pieces, end }
}

/// What came for a request, whole or up to where its client left.
async fn ask(address: SocketAddr, request: &[u8], leaves_after: Option<usize>) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(request).await.ok()?;
    let mut received = Vec::new();
    match leaves_after {
        Some(bytes) => {
            let mut taken = stream.take(bytes as u64);
            let _broken = taken.read_to_end(&mut received).await;
        }
        None => {
            let _broken = stream.read_to_end(&mut received).await;
        }
    }
    Some(received)
}

#[derive(Clone, Copy)]
enum Disk {
    Sound,
    Small,
    Full,
}

async fn bad_day(requests: usize, disk: Disk, seed: u64) {
    let upstream = Upstream::start(act).await;
    let tap = Tapping::start(upstream.address, |setup| match disk {
        Disk::Sound => {}
        Disk::Small => setup.limits = RotationLimits { records: Some(50), ..RotationLimits::default() },
        Disk::Full => {
            std::os::unix::fs::symlink("/dev/full", &setup.config.trace_out).unwrap();
            setup.config.create = CreateMode::Truncate;
            setup.start_without_file = true;
        }
    })
    .await;
    let mut random = StdRng::seed_from_u64(seed);
    let (room, mut expected) = (Arc::new(Semaphore::new(32)), HashMap::<Outcome, u64>::new());
    let direct = directly(upstream.address).await;
    let mut asking = tokio::task::JoinSet::new();
    let (mut left, mut stayed) = (0_u64, 0_u64);
    for _ in 0..requests {
        let (name, outcome) = FAULTS[random.random_range(0..FAULTS.len())];
        let leaves = (random.next_u32() % 5 == 0).then(|| random.random_range(0..600));
        match leaves {
            Some(_) => left += 1,
            None => {
                stayed += 1;
                *expected.entry(outcome).or_default() += 1;
            }
        }
        let (address, room, whole) = (tap.address, Arc::clone(&room), direct[name].clone());
        asking.spawn(async move {
            let _place = room.acquire().await.unwrap();
            let received = ask(address, &request(name), leaves).await.unwrap();
            if leaves.is_none() {
                let (tapped, whole) = (parse(&received), parse(&whole));
                let answered = whole.status != 0 && name != "cut-json";
                if answered {
                    assert_eq!(
                        (tapped.status, tapped.body(), tapped.complete),
                        (whole.status, whole.body(), whole.complete),
                        "{name}"
                    );
                } else {
                    assert_eq!(tapped.status, 502, "{name}");
                }
            }
        });
    }
    asking.join_all().await;
    check(tap, (left, stayed), &expected, requests as u64).await;
}

fn request(fault: &str) -> Vec<u8> {
    let stream = !["whole", "cut-json", "error-500"].contains(&fault);
    post(CHAT, &format!(r#"{{"messages":[],"stream":{stream},"fault":"{fault}"}}"#))
}

/// The answer to each fault without a tap.
async fn directly(upstream: SocketAddr) -> HashMap<&'static str, Vec<u8>> {
    let mut direct = HashMap::new();
    for (name, _) in FAULTS {
        let whole = ask(upstream, &request(name), None).await.unwrap();
        let readable = whole.starts_with(b"HTTP/1.1 ") && name != "half-a-head";
        direct.insert(name, if readable { whole } else { Vec::new() });
    }
    direct
}

async fn check(tap: Tapping, (left, stayed): (u64, u64), expected: &HashMap<Outcome, u64>, requests: u64) {
    // Who left early may not be noticed yet.
    let ended = |tap: &Tapping| -> u64 {
        ["finished", "error", "client_gone", "upstream_failed", "timed_out", "cut"]
            .iter()
            .map(|name| tap.count(&format!("vcr_exchanges_total{{outcome=\"{name}\"}}")))
            .sum()
    };
    let incomplete = |tap: &Tapping| tap.count("vcr_requests_not_recorded_total{reason=\"incomplete\"}");
    for _ in 0..3000 {
        if ended(&tap) + incomplete(&tap) == tap.count("vcr_requests_total")
            && tap.metric("vcr_exchanges_in_flight") == 0.0
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let received = tap.count("vcr_requests_total");
    assert_eq!(ended(&tap) + incomplete(&tap), received);
    assert!(received <= requests && received >= stayed, "{received} of {requests}");
    let recorded = ended(&tap);
    let link = tap.folder.path().join("trace.jsonl.gz");
    if link.is_symlink() {
        std::fs::remove_file(link).unwrap();
    }
    let (report, traces) = tap.stop().await;
    let dropped = report.recorder.write_failed + report.recorder.queue_full + report.recorder.broken;
    assert_eq!(report.recorder.written + dropped, recorded, "{report:?}");
    let in_files: u64 = traces.iter().map(|trace| trace.records.len() as u64).sum();
    assert_eq!(in_files, report.recorder.written);
    let told: u64 = traces.iter().map(|trace| trace.end.as_ref().unwrap().dropped).sum();
    assert_eq!(told, dropped);
    if dropped == 0 {
        let mut counted: HashMap<Outcome, u64> = HashMap::new();
        for record in traces.iter().flat_map(|trace| &trace.records) {
            *counted.entry(record.outcome.unwrap()).or_default() += 1;
        }
        for (outcome, count) in expected {
            assert!(counted.get(outcome).copied().unwrap_or(0) >= *count, "{outcome:?}: {counted:?} {expected:?}");
        }
        assert!(counted.values().sum::<u64>() <= stayed + left);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_sound_disk() {
    bad_day(400, Disk::Sound, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_small_files() {
    bad_day(400, Disk::Small, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_disk() {
    bad_day(200, Disk::Full, 3).await;
}

/// `cargo test --release --test it -- --ignored a_hundred_thousand`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes"]
async fn a_hundred_thousand_requests() {
    bad_day(100_000, Disk::Small, 4).await;
}
