//! A cassette of 10,000 records: a thousand agents with a system prompt of 2 KB, two tools and ten turns, streamed.
//!
//! `cargo bench --bench cassettes -- --json FILE`. Reports the time to record it, to load it and to make it ready to be
//! played, and its memory; the time to find a request's record; and, over HTTP on one thread, the times of requests that are
//! played and of misses, alone and beside each other.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss
)]

mod shared;

use std::{convert::Infallible, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value, json};
use tokio::{net::TcpStream, runtime::Builder, sync::oneshot, time::Instant};
use vllm_vcr::{
    net::server,
    recording::canonical::{CanonicalRules, RequestParts},
    recording::cassette::{
        self, AnswerContent, CassetteRecord, CassetteWriter, Header, Moment, RecordedAnswer, RecordedExchange, Sidecar,
        WriteMode,
    },
    recording::redaction,
    replay::account::{self, Access, Admin},
    replay::delivery::Clock,
    replay::matching::requests::{CassetteIndex, LookupRequest, MatchPolicy, RequestSession},
    replay::player::{CassettePlayer, Decision, PlayerConfig, RecordErrors},
    replay::timing::{Pacer, Pacing},
};

const AGENTS: usize = 1000;
const TURNS: usize = 10;
/// Turns of one long conversation.
const LONG: usize = 2000;
const PATH: &str = "/v1/chat/completions";

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tape.yaml");
    let figures = [chain(&folder.path().join("chain.yaml")), load(&file), matching(&file), serving(&file)];
    shared::report("cassettes", &figures);
}

/// Records, loads, and makes ready.
fn load(file: &Path) -> Value {
    let start = Instant::now();
    record(file);
    let recorded = start.elapsed().as_secs_f64();
    let before = shared::memory("VmRSS:");
    let loaded = best_of_3(|| cassette::load(file).unwrap());
    let ready = best_of_3(|| cassette_player(file));
    let kept = cassette_player(file);
    let size = |path: &Path| std::fs::metadata(path).unwrap().len() / 1_000_000;
    json!({
        "records": kept.len(), "yaml_mb": size(file), "sidecar_mb": size(&cassette::sidecar_of(file).join("timing.jsonl")),
        "record_s": recorded, "load_s": loaded.as_secs_f64(), "ready_s": ready.as_secs_f64(),
        "resident_mb": shared::memory("VmRSS:") - before,
    })
}

/// One conversation of many turns, each of which continues the one before: loads it, makes it ready, runs the tools of cassettes
/// over it, and finds the record of its longest request.
fn chain(file: &Path) -> Value {
    std::fs::write(file, long_conversation()).unwrap();
    let before = shared::memory("VmRSS:");
    let start = Instant::now();
    let loaded = cassette::load(file).unwrap();
    let load = start.elapsed().as_secs_f64();
    let resident = shared::memory("VmRSS:") - before;
    let emitted = best_of_3(|| cassette::emit(&loaded.header, &loaded.records, &loaded.tools));
    let searched = best_of_3(|| vllm_vcr::replay::player::secrets(&redaction::RedactionRules::default(), &loaded));
    let redacted = best_of_3(|| {
        vllm_vcr::replay::player::redact_cassette(&redaction::RedactionRules::default(), &mut loaded.clone())
    });
    let ready = best_of_3(|| cassette_player(file));
    let longest = loaded.records.last().unwrap().body.value();
    let identified = best_of_3(|| {
        let body = longest.clone().into();
        CanonicalRules::default().identify(&RequestParts { method: "POST", path: PATH, headers: &[], body: &body })
    });
    let kept = cassette_player(file);
    json!({
        "chain_turns": kept.len(), "chain_load_s": load, "chain_resident_mb": resident,
        "chain_ready_s": ready.as_secs_f64(), "chain_ready_resident_mb": shared::memory("VmRSS:") - before,
        "chain_fmt_s": emitted.as_secs_f64(), "chain_secrets_s": searched.as_secs_f64(),
        "chain_redact_s": redacted.as_secs_f64(), "chain_request_ms": identified.as_secs_f64() * 1000.0,
    })
}

fn long_conversation() -> String {
    let turn = |at: usize| {
        let start = match at {
            0 => format!(
                "  request: POST {PATH}\n  body: {{model: m, messages: [{{role: user, content: '{}'}}]}}\n",
                asked(0, 0)
            ),
            at => format!(
                "  like: {}\n  body:\n    messages+:\n    - {{role: user, content: '{}'}}\n",
                at - 1,
                asked(0, at)
            ),
        };
        format!(
            "- id: {at}\n{start}  answer:\n    message: {{role: assistant, content: '{}'}}\n    finish_reason: stop\n",
            said(0, at)
        )
    };
    format!("vcr: 1\nkey: 1\nrecords:\n{}", (0..LONG).map(turn).collect::<String>())
}

/// The best time to make something, not counting what it takes to take it apart.
fn best_of_3<T>(make: impl Fn() -> T) -> Duration {
    let once = |_| {
        let start = Instant::now();
        let made = make();
        let took = start.elapsed();
        drop(made);
        took
    };
    (0..3).map(once).min().unwrap()
}

/// Finding a record without a server: the identity of a parsed request, and its selection.
fn matching(file: &Path) -> Value {
    let records = cassette::load(file).unwrap().records;
    let (rules, mut tape) = (CanonicalRules::default(), CassetteIndex::default());
    // As a request comes: nothing of it is in memory yet.
    let identify =
        |body: Value| rules.identify(&RequestParts { method: "POST", path: PATH, headers: &[], body: &body.into() });
    records.iter().for_each(|record| tape.push(identify(record.body.value()), true));
    let policy = MatchPolicy::default();
    let mut session = RequestSession::default();
    let mut taken: Vec<Duration> = Vec::new();
    for at in 0..records.len() {
        let body = records[(at * 7919) % records.len()].body.value();
        let start = Instant::now();
        let identity = identify(body);
        let question = LookupRequest { identity: &identity, request_id: None, is_retry: false, idempotency_key: None };
        std::hint::black_box(session.select(&tape, &policy, &question));
        taken.push(start.elapsed());
    }
    json!({ "canonical_match_us": quantiles(taken) })
}

/// Whole requests over HTTP to a server on a thread of its own.
fn serving(file: &Path) -> Value {
    let cassette_player = cassette_player(file);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = std::thread::spawn(move || {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let until = async { drop(stopped.await) };
            let pacer = Pacer::precise();
            let service = move |mut request: http::Request<hyper::body::Incoming>, _| {
                let (cassette_player, pacer) = (Arc::clone(&cassette_player), pacer.clone());
                async move {
                    account::enter(&mut request);
                    let clock = Clock { pacer, lateness: server::LatenessTracker::default() };
                    match cassette_player.decide(request.map(server::RequestBody::Live)).await.decision {
                        Decision::Answer(response) => response.map(axum::body::Body::new),
                        Decision::Replay(response) => {
                            response.deliver::<Infallible, ()>(clock, None, None, ()).await.map(axum::body::Body::new)
                        }
                        Decision::Pass(_) | Decision::Forward(_) => panic!("every request is the player's"),
                    }
                }
            };
            server::run(listener, service, until, Duration::from_secs(1)).await;
        });
    });
    let figures = Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let known = |at: usize| body(at * 7919 % AGENTS, 1 + at % TURNS, "");
        let unknown = |at: usize| body(at * 7919 % AGENTS, 1 + at % TURNS, &format!(" edited {at}"));
        let played = times((address, "a"), 3000, 200, &known).await;
        let missed = times((address, "b"), 1000, 422, &unknown).await;
        let beside = times((address, "c"), 3000, 200, &known);
        let (beside, _) = tokio::join!(beside, times((address, "d"), 1000, 422, &unknown));
        json!({ "played_us": played, "miss_us": missed, "played_beside_misses_us": beside })
    });
    drop(stop);
    server.join().unwrap();
    figures
}

async fn times(
    (address, name): (std::net::SocketAddr, &str),
    count: usize,
    status: u16,
    body: &dyn Fn(usize) -> Value,
) -> Value {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut sender, connection): (SendRequest<Full<Bytes>>, _) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut taken = Vec::new();
    for at in 0..count {
        let request = http::Request::post(PATH).header("host", "bench").header("content-type", "application/json");
        // No session asks for a record twice.
        let request = request.header("x-vcr-session", format!("{name}{}", at / AGENTS));
        let request = request.body(Full::from(body(at).to_string())).unwrap();
        let start = Instant::now();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), status);
        answer.into_body().collect().await.unwrap();
        taken.push(start.elapsed());
    }
    quantiles(taken)
}

fn quantiles(mut taken: Vec<Duration>) -> Value {
    taken.sort_unstable();
    let at = |part: f64| taken[((taken.len() - 1) as f64 * part) as usize].as_nanos() as f64 / 1000.0;
    json!({ "p50": at(0.5), "p99": at(0.99), "max": at(1.0) })
}

fn cassette_player(file: &Path) -> Arc<CassettePlayer> {
    let config = PlayerConfig {
        cassettes: vec![cassette::load(file).unwrap()],
        record_errors: RecordErrors::All,
        pacing: Pacing::Instant,
        admin: Admin::Here(Access::default()),
        body_limit: 1 << 24,
        ..PlayerConfig::default()
    };
    CassettePlayer::new(config).unwrap()
}

fn record(file: &Path) {
    let mut scribe = CassetteWriter::create(file, &Header::default(), WriteMode::Replace).unwrap();
    for agent in 0..AGENTS {
        for turn in 1..=TURNS {
            scribe.add(episode(agent, turn));
        }
    }
    scribe.finish().unwrap();
}

fn episode(agent: usize, turn: usize) -> RecordedExchange {
    let said = said(agent, turn);
    let choice = json!({"message": {"role": "assistant", "content": said}, "finish_reason": "stop"});
    let choices: Vec<Map<String, Value>> = choice.as_object().cloned().into_iter().collect();
    let usage = Some(json!({"prompt_tokens": 700 + turn * 100, "completion_tokens": 80}));
    let answer =
        RecordedAnswer { status: 200, content: AnswerContent::Choices { choices, usage }, ..RecordedAnswer::default() };
    let record = CassetteRecord {
        method: "POST".into(),
        path: PATH.into(),
        body: body(agent, turn, "").into(),
        answer,
        ..CassetteRecord::default()
    };
    let event = |(at, piece): (usize, &str)| {
        let delta = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [{"index": 0, "delta": {"content": piece}, "logprobs": null, "finish_reason": null}]});
        Moment(20.0 + at as f64 * 5.0, Some(delta.to_string()), None)
    };
    let events = said.split_inclusive(' ').enumerate().map(event).collect();
    RecordedExchange { record, side: Sidecar { ms: 300.0, events, ..Sidecar::default() }, is_retry: false }
}

/// The request of one turn: everything that was said before, and a question with something at its end.
fn body(agent: usize, turn: usize, more: &str) -> Value {
    let mut messages =
        vec![json!({"role": "system", "content": "You help with the weather and the calendar. ".repeat(45)})];
    for earlier in 1..turn {
        messages.push(json!({"role": "user", "content": asked(agent, earlier)}));
        messages.push(json!({"role": "assistant", "content": said(agent, earlier)}));
    }
    messages.push(json!({"role": "user", "content": asked(agent, turn) + more}));
    let tool = |name: &str| {
        json!({"type": "function", "function": {"name": name, "description": "Looks something up for the user",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "A city"},
            "day": {"type": "string", "description": "A day"}}, "required": ["city"]}}})
    };
    json!({"model": "m", "temperature": 0.2, "stream": true, "messages": messages, "tools": [tool("weather"), tool("calendar")]})
}

fn asked(agent: usize, turn: usize) -> String {
    format!("Agent {agent} asks for the {turn}th time: what comes after all that was said so far, and why? ").repeat(3)
}

fn said(agent: usize, turn: usize) -> String {
    format!("Answer {turn} for agent {agent}: it is what it was, and more of it will come. ").repeat(4)
}
