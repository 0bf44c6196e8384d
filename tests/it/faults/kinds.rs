//! Proofs: what a client sees of each kind, over HTTP/1.1 and its chunks, HTTP/2 and TLS.

use std::time::Duration;

use vllm_vcr::faults::{CATALOGUE, FaultStage};

use super::{
    COMPLETIONS, Ending, ask, faults, hits, request, served, stream_body, timeless,
    transports::{Transport, over},
};
use crate::support::play_server::start;

/// Events of the answer without faults.
pub(super) type Events = [Vec<u8>];

/// What a fault in the body makes of the events: chunks, and the end.
pub(super) struct BodyProof {
    /// The kind.
    pub(super) kind: &'static str,
    /// The line, which may name a byte of these events.
    pub(super) line: fn(&Events) -> String,
    /// The chunks.
    pub(super) chunks: fn(&Events) -> Vec<Vec<u8>>,
    pub(super) ending: Ending,
    /// It takes so long at least, in milliseconds.
    pub(super) at_least: u64,
}

/// What a fault before the answer gives.
pub(super) struct HeadProof {
    pub(super) line: &'static str,
    /// Parts of the head, in lower case.
    pub(super) head: &'static [&'static str],
    /// The body; `None` for that of the answer.
    pub(super) body: Option<&'static str>,
    pub(super) at_least: u64,
}

const fn proof(
    kind: &'static str,
    line: fn(&Events) -> String,
    chunks: fn(&Events) -> Vec<Vec<u8>>,
    ending: Ending,
) -> BodyProof {
    BodyProof { kind, line, chunks, ending, at_least: 0 }
}

fn text(event: &[u8]) -> String {
    String::from_utf8(event.to_vec()).unwrap()
}

fn each(events: &Events, change: impl Fn(&str) -> String) -> Vec<Vec<u8>> {
    events.iter().map(|event| change(&text(event)).into_bytes()).collect()
}

/// Puts chunks between events.
fn between(events: &Events, at: usize, more: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    [events[..at].to_vec(), more, events[at..].to_vec()].concat()
}

fn size(events: &Events) -> usize {
    events.concat().len()
}

/// The first so many bytes, in their chunks.
fn first_bytes(events: &Events, mut count: usize) -> Vec<Vec<u8>> {
    let mut chunks = Vec::new();
    for event in events {
        let taken = count.min(event.len());
        chunks.push(event[..taken].to_vec());
        count -= taken;
        if count == 0 {
            break;
        }
    }
    chunks
}

/// Cuts the third event after 30 bytes.
fn in_third(events: &Events) -> usize {
    size(&events[..2]) + 30
}

pub(super) const BODY_PROOFS: &[BodyProof] = &[
    BodyProof { at_least: 120, ..proof("stall", |_| "stall:120ms at event 2".into(), <[_]>::to_vec, Ending::Whole) },
    proof("stall", |_| "stall at token 2".into(), |events| events[..2].to_vec(), Ending::Open),
    BodyProof {
        at_least: 60,
        ..proof(
            "stall",
            |events| format!("stall:60ms at byte {}", in_third(events)),
            |events| {
                let cut = vec![events[2][..30].to_vec(), events[2][30..].to_vec()];
                [events[..2].to_vec(), cut, events[3..].to_vec()].concat()
            },
            Ending::Whole,
        )
    },
    proof("reset", |_| "reset at event 3".into(), |events| events[..3].to_vec(), Ending::Reset),
    proof(
        "reset",
        |events| format!("reset at byte {}", in_third(events)),
        |events| first_bytes(events, in_third(events)),
        Ending::Reset,
    ),
    proof("close", |_| "close at byte 100".into(), |events| first_bytes(events, 100), Ending::Cut),
    proof("half-close", |_| "half-close at event 3".into(), |events| events[..3].to_vec(), Ending::Cut),
    proof("truncate", |_| "truncate at token 3".into(), |events| events[..3].to_vec(), Ending::Whole),
    proof("error-event", |_| "error-event at event 0".into(), |_| error_chunks(), Ending::Whole),
    proof(
        "error-event",
        |_| "error-event at event 2".into(),
        |events| [events[..2].to_vec(), error_chunks()].concat(),
        Ending::Whole,
    ),
    proof(
        "keep-alive",
        |_| "keep-alive:3 at event 2".into(),
        |events| between(events, 2, vec![b": keep-alive\n\n".to_vec(); 3]),
        Ending::Whole,
    ),
    proof(
        "huge-line",
        |_| "huge-line:40000 at event 2".into(),
        |events| {
            let line = [
                b": ".to_vec(),
                vec![b'x'; 16384],
                vec![b'x'; 16384],
                vec![b'x'; 40_000 - 2 - 32_768],
                b"\n\n".to_vec(),
            ];
            between(events, 2, line.to_vec())
        },
        Ending::Whole,
    ),
    proof(
        "drip",
        |_| "drip:7".into(),
        |events| events.iter().flat_map(|event| event.chunks(7).map(<[_]>::to_vec)).collect(),
        Ending::Whole,
    ),
    proof("jitter", |_| "jitter:20ms".into(), <[_]>::to_vec, Ending::Whole),
    proof(
        "malformed",
        |_| "malformed at event 2".into(),
        |events| {
            let event = text(&events[2]);
            let start = event.find('{').unwrap();
            let json = event.trim_end();
            let broken = format!("{}\n\n", &json[..start + (json.len() - start) / 2]);
            [events[..2].to_vec(), vec![broken.into_bytes()], events[3..].to_vec()].concat()
        },
        Ending::Whole,
    ),
    proof(
        "malformed",
        |events| format!("malformed at byte {}", in_third(events)),
        |events| {
            let broken = [&events[2][..30], b"\n\n"].concat();
            [events[..2].to_vec(), vec![broken], events[3..].to_vec()].concat()
        },
        Ending::Whole,
    ),
    proof(
        "split",
        |_| "split:utf8".into(),
        |events| {
            let cut = |event: &Vec<u8>| match event.iter().position(|byte| *byte >= 0xc0) {
                Some(at) => vec![event[..=at].to_vec(), event[at + 1..].to_vec()],
                None => vec![event.clone()],
            };
            events.iter().flat_map(cut).collect()
        },
        Ending::Whole,
    ),
    proof(
        "split",
        |_| "split:end".into(),
        |events| {
            let cut = |event: &Vec<u8>| [event[..event.len() - 1].to_vec(), b"\n".to_vec()];
            events.iter().flat_map(cut).collect()
        },
        Ending::Whole,
    ),
    proof(
        "split",
        |_| "split:byte,every=0ms".into(),
        |events| events.concat().iter().map(|byte| vec![*byte]).collect(),
        Ending::Whole,
    ),
    proof(
        "split",
        |events| format!("split at byte {}", in_third(events)),
        |events| {
            let cut = vec![events[2][..30].to_vec(), events[2][30..].to_vec()];
            [events[..2].to_vec(), cut, events[3..].to_vec()].concat()
        },
        Ending::Whole,
    ),
    proof(
        "split-at",
        |events| format!("split-at:1,7,{},every=0ms", in_third(events)),
        |events| {
            let first = [events[0][..1].to_vec(), events[0][1..7].to_vec(), events[0][7..].to_vec()].to_vec();
            let third = vec![events[2][..30].to_vec(), events[2][30..].to_vec()];
            [first, vec![events[1].clone()], third, events[3..].to_vec()].concat()
        },
        Ending::Whole,
    ),
    proof("merge", |_| "merge:3".into(), |events| events.chunks(3).map(<[_]>::concat).collect(), Ending::Whole),
    proof(
        "duplicate",
        |_| "duplicate:2 at event 1".into(),
        |events| between(events, 1, vec![events[1].clone(); 2]),
        Ending::Whole,
    ),
    proof(
        "repeat",
        |_| "repeat:4,every=1ms at token 2".into(),
        |events| between(events, 2, vec![events[1].clone(); 4]),
        Ending::Whole,
    ),
    proof(
        "reorder",
        |_| "reorder at event 1".into(),
        |events| {
            let turned = vec![events[2].clone(), events[1].clone()];
            [events[..1].to_vec(), turned, events[3..].to_vec()].concat()
        },
        Ending::Whole,
    ),
    proof("crlf", |_| "crlf".into(), |events| each(events, |event| event.replace('\n', "\r\n")), Ending::Whole),
    proof(
        "comments",
        |_| "comments at event 1".into(),
        |events| [events[..1].to_vec(), each(&events[1..], |event| format!(": comment\n\n{event}"))].concat(),
        Ending::Whole,
    ),
    proof(
        "no-space",
        |_| "no-space".into(),
        |events| each(events, |event| event.replace("data: ", "data:")),
        Ending::Whole,
    ),
    proof(
        "bom",
        |_| "bom at event 0".into(),
        |events| [vec![[b"\xef\xbb\xbf", &events[0][..]].concat()], events[1..].to_vec()].concat(),
        Ending::Whole,
    ),
    proof("no-done", |_| "no-done".into(), |events| events[..events.len() - 1].to_vec(), Ending::Whole),
    proof(
        "no-finish",
        |_| "no-finish".into(),
        |events| each(events, |event| event.replace(r#""finish_reason":"stop""#, r#""finish_reason":null"#)),
        Ending::Whole,
    ),
    proof(
        "usage",
        |_| "usage:2".into(),
        |events| {
            let counts = regex::Regex::new(r#""(total_tokens|completion_tokens)":(\d+)"#).unwrap();
            each(events, |event| {
                let more =
                    |found: &regex::Captures<'_>| format!("\"{}\":{}", &found[1], found[2].parse::<u64>().unwrap() + 2);
                counts.replace_all(event, more).into_owned()
            })
        },
        Ending::Whole,
    ),
];

fn error_chunks() -> Vec<Vec<u8>> {
    let error = "data: {\"error\": {\"message\": \"EngineCore encountered an issue. See stack trace (above) for the root \
                 cause.\", \"type\": \"InternalServerError\", \"param\": null, \"code\": 500}}\n\n";
    vec![error.as_bytes().to_vec(), b"data: [DONE]\n\n".to_vec()]
}

const fn head(line: &'static str, head: &'static [&'static str], body: Option<&'static str>) -> HeadProof {
    HeadProof { line, head, body, at_least: 0 }
}

pub(super) const HEAD_PROOFS: &[HeadProof] = &[
    head(
        "400",
        &["http/1.1 400 "],
        Some(
            r#"{"error":{"message":"This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=4097)","type":"BadRequestError","param":"input_tokens","code":400}}"#,
        ),
    ),
    head(
        "invalid-request",
        &["http/1.1 400 "],
        Some(
            r#"{"error":{"message":"temperature must be in [0, 2], got 3.5. (parameter=temperature, value=3.5)","type":"BadRequestError","param":"temperature","code":400}}"#,
        ),
    ),
    head("401", &["http/1.1 401 "], Some(r#"{"error":"Unauthorized"}"#)),
    head(
        "404",
        &["http/1.1 404 "],
        Some(
            r#"{"error":{"message":"The model `` does not exist. Valid aliases: m.","type":"NotFoundError","param":"model","code":404}}"#,
        ),
    ),
    head(
        "429:retry-after=1500ms,requests=3",
        &[
            "http/1.1 429 ",
            "\r\nretry-after: 2\r\n",
            "\r\nretry-after-ms: 1500\r\n",
            "\r\nx-ratelimit-limit-requests: 3\r\n",
            "\r\nx-ratelimit-remaining-requests: 0\r\n",
            "\r\nx-ratelimit-reset-requests: 1.5s\r\n",
            "\r\nx-ratelimit-remaining-tokens: 60000\r\n",
        ],
        Some(
            r#"{"error":{"message":"Too many requests. Please try again later.","type":"RateLimitError","param":null,"code":429}}"#,
        ),
    ),
    head(
        "500",
        &["http/1.1 500 "],
        Some(
            r#"{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","type":"InternalServerError","param":null,"code":500}}"#,
        ),
    ),
    head(
        "503",
        &["http/1.1 503 "],
        Some(
            r#"{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}"#,
        ),
    ),
    head(
        "error:529,message=overloaded",
        &["http/1.1 529 "],
        Some(r#"{"error":{"message":"overloaded","type":"InternalServerError","param":null,"code":529}}"#),
    ),
    HeadProof { at_least: 100, ..head("delay:100ms", &["http/1.1 200 "], None) },
    // A head of more than 150 bytes in pieces of 16.
    HeadProof { at_least: 36, ..head("slow-head:16,every=4ms", &["http/1.1 200 "], None) },
    head("content-type:text/html", &["http/1.1 200 ", "\r\ncontent-type: text/html\r\n"], None),
];

/// Kinds before the answer of which there is no answer.
pub(super) const NO_ANSWER: &[(&str, Ending)] =
    &[("hang", Ending::Open), ("reset", Ending::Reset), ("close", Ending::Cut)];

#[test]
fn every_kind_has_a_proof() {
    let proven = |name: &str| {
        BODY_PROOFS.iter().any(|proof| proof.kind == name)
            || HEAD_PROOFS.iter().any(|proof| proof.line.split(':').next() == Some(name))
            || NO_ANSWER.iter().any(|(kind, _)| *kind == name)
    };
    let stages = [FaultStage::Before, FaultStage::Body];
    let missing: Vec<&str> = CATALOGUE
        .iter()
        .filter(|row| stages.contains(&row.stage))
        .map(|row| row.name)
        .filter(|name| !proven(name))
        .collect();
    assert!(missing.is_empty(), "no proof of {missing:?}");
}

/// Events of the answer without faults, each in a chunk of its own.
pub(super) async fn clean() -> Vec<Vec<u8>> {
    let server = start(served(faults(&[], 0))).await;
    let heard = ask(server.address, &request(COMPLETIONS, &stream_body()), None).await;
    assert_eq!(heard.ending, Ending::Whole);
    assert!(heard.chunks.len() > 8 && heard.chunks.iter().all(|chunk| chunk.ends_with(b"\n\n")), "{heard:?}");
    // The number of seconds has ten digits, as the answer with the fault has them.
    let zeros = regex::bytes::Regex::new(r#""created":\d{10}"#).unwrap();
    heard.chunks.iter().map(|chunk| zeros.replace_all(chunk, &br#""created":0000000000"#[..]).into_owned()).collect()
}

/// Makes the times in what was heard those of [`clean`].
pub(super) fn zeroed(chunks: &[Vec<u8>]) -> Vec<Vec<u8>> {
    // The digits may be cut apart; they are found in the whole, and put back into their chunks.
    let mut whole = chunks.concat();
    let digits = regex::bytes::Regex::new(r#""created":(\d{1,10})"#).unwrap();
    let spans: Vec<_> = digits.captures_iter(&whole).map(|found| found.get(1).unwrap().range()).collect();
    spans.into_iter().for_each(|span| whole[span].fill(b'0'));
    let mut rest = &whole[..];
    chunks
        .iter()
        .map(|chunk| {
            let (first, more) = rest.split_at(chunk.len());
            rest = more;
            first.to_vec()
        })
        .collect()
}

async fn prove_bodies(transport: Transport) {
    let clean = clean().await;
    for proof in BODY_PROOFS {
        let line = (proof.line)(&clean);
        let expected = (proof.chunks)(&clean);
        let open = (proof.ending == Ending::Open).then(|| expected.concat().len());
        let (start, faults) = (tokio::time::Instant::now(), faults(&[&line], 0));
        let heard = over(transport, served(faults.clone()), &request(COMPLETIONS, &stream_body()), open).await;
        let told = |chunks: &[Vec<u8>]| {
            chunks.iter().map(|chunk| String::from_utf8_lossy(chunk).into_owned()).collect::<Vec<_>>()
        };
        if transport.shows_writes() {
            assert_eq!(told(&zeroed(&heard.chunks)), told(&expected), "{line} {transport:?}");
        } else {
            assert_eq!(told(&zeroed(&[heard.body()])), told(&[expected.concat()]), "{line} {transport:?}");
        }
        assert_eq!(heard.ending, transport.ending(proof.ending), "{line} {transport:?}");
        assert!(start.elapsed() >= Duration::from_millis(proof.at_least), "{line} {transport:?}");
        let happened = faults.current().hits(10);
        assert_eq!(happened.len(), 1, "{line}: {happened:?}");
    }
}

async fn prove_heads(transport: Transport) {
    let clean = clean().await;
    for proof in HEAD_PROOFS {
        let (start, faults) = (tokio::time::Instant::now(), faults(&[proof.line], 0));
        let heard = over(transport, served(faults.clone()), &request(COMPLETIONS, &stream_body()), None).await;
        assert!(start.elapsed() >= Duration::from_millis(proof.at_least), "{} {transport:?}", proof.line);
        for part in proof.head {
            assert!(transport.has_head(&heard.head, part), "{} {transport:?}: {part}\n{}", proof.line, heard.head);
        }
        let expected = proof.body.map_or_else(|| clean.concat(), |body| body.as_bytes().to_vec());
        assert_eq!(zeroed(&[heard.body()]).concat(), expected, "{} {transport:?}", proof.line);
        assert_eq!((heard.ending, faults.current().hits(10).len()), (Ending::Whole, 1), "{}", proof.line);
    }
}

async fn prove_silence(transport: Transport) {
    for (kind, ending) in NO_ANSWER {
        let (faults, open) = (faults(&[kind], 0), (*ending == Ending::Open).then_some(0));
        let heard = over(transport, served(faults.clone()), &request(COMPLETIONS, &stream_body()), open).await;
        assert_eq!((heard.head.as_str(), heard.ending), ("", transport.ending(*ending)), "{kind} {transport:?}");
        assert_eq!(faults.current().hits(10).len(), 1);
    }
}

#[tokio::test]
async fn in_the_body_over_http_1() {
    prove_bodies(Transport::Http1).await;
}

#[tokio::test]
async fn in_the_body_over_http_2() {
    prove_bodies(Transport::Http2).await;
}

#[tokio::test]
async fn in_the_body_over_tls() {
    prove_bodies(Transport::Tls).await;
}

#[tokio::test]
async fn before_the_answer_over_each_transport() {
    for transport in [Transport::Http1, Transport::Http2, Transport::Tls] {
        prove_heads(transport).await;
        prove_silence(transport).await;
    }
}

#[tokio::test]
async fn several_faults_of_one_response_all_happen() {
    let clean = clean().await;
    let server = start(served(faults(
        &["delay:1ms", "crlf", "duplicate at event 1", "stall:1ms at event 2", "reset at event 4"],
        0,
    )))
    .await;
    let heard = ask(server.address, &request(COMPLETIONS, &stream_body()), None).await;
    let crlf = |event: &Vec<u8>| text(event).replace('\n', "\r\n");
    let expected: String = [0, 1, 1, 2, 3].iter().map(|at| crlf(&clean[*at])).collect();
    assert_eq!((text(&zeroed(&[heard.body()]).concat()), heard.ending), (expected, Ending::Reset));
    assert_eq!(hits(server.address).await.len(), 5);
}

#[tokio::test]
async fn a_held_event_is_sent_before_the_break() {
    let clean = clean().await;
    let server = start(served(faults(&["merge:4", "close at event 2"], 0))).await;
    let heard = ask(server.address, &request(COMPLETIONS, &stream_body()), None).await;
    assert_eq!((zeroed(&heard.chunks).concat(), heard.ending), (clean[..2].concat(), Ending::Cut));
}

#[tokio::test]
async fn a_body_without_events_breaks_in_its_middle() {
    let body = serde_json::json!({"prompt": "x"});
    let server = start(served(faults(&[], 0))).await;
    let whole = ask(server.address, &request(COMPLETIONS, &body), None).await.body();
    for (line, ending) in
        [("reset at event 1", Ending::Reset), ("close at token 5", Ending::Cut), ("truncate", Ending::Whole)]
    {
        let server = start(served(faults(&[line], 0))).await;
        let heard = ask(server.address, &request(COMPLETIONS, &body), None).await;
        assert_eq!(
            timeless(&zeroed(&[heard.body()]).concat()),
            timeless(&zeroed(&[whole[..whole.len() / 2].to_vec()]).concat()),
            "{line}"
        );
        assert_eq!(heard.ending, ending, "{line}");
    }
    let server = start(served(faults(&["no-finish", "usage:-1", "keep-alive:2"], 0))).await;
    let heard = ask(server.address, &request(COMPLETIONS, &body), None).await;
    let answer: serde_json::Value = serde_json::from_slice(&heard.body()).unwrap();
    let clean: serde_json::Value = serde_json::from_slice(&whole).unwrap();
    assert!(heard.body().starts_with(b"\n\n{") && answer["choices"][0]["finish_reason"].is_null());
    assert_eq!(answer["usage"]["completion_tokens"], clean["usage"]["completion_tokens"].as_u64().unwrap() - 1);
}
