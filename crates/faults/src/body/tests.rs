//! Writes of bodies with faults in them.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::StreamExt;
use http::HeaderMap;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};

use super::FaultedBody;
use crate::{FaultRequest, FaultSet, RefusalContext};
use api::Endpoint;

/// The writes that become of four events of eight bytes each, and whether the body ends properly.
async fn writes(lines: &[&str]) -> (Vec<String>, bool) {
    let events: Vec<String> = (1..=4).map(|number| format!("data:{number}\n\n")).collect();
    writes_of(lines, &events, true).await
}

/// The first thousand writes that become of these frames.
async fn writes_of(lines: &[&str], frames: &[String], is_stream: bool) -> (Vec<String>, bool) {
    paced_writes_of(lines, frames, Duration::ZERO, is_stream).await
}

/// The same of frames that come so long after each other, the first one after the head.
async fn paced_writes_of(lines: &[&str], frames: &[String], gap: Duration, is_stream: bool) -> (Vec<String>, bool) {
    let set = FaultSet::new(lines.iter().map(|line| line.parse().unwrap()).collect(), 0);
    let request =
        FaultRequest { path: "/v1/completions", headers: &HeaderMap::new(), body: b"", session: None, replica: 0 };
    let events: Vec<_> = frames.iter().map(|frame| Ok::<_, Infallible>(Frame::data(frame.clone().into()))).collect();
    let inner = StreamBody::new(futures(events, gap));
    let endpoint = Endpoint::Completions;
    let context =
        RefusalContext { endpoint, max_model_len: 1, names: Arc::default(), model: String::new(), rpc_id: None };
    let mut body = FaultedBody::new(inner, is_stream, context, set.choose(&request), Arc::new(|_| {}));
    let mut written = Vec::new();
    loop {
        if written.len() == 1000 {
            return (written, false);
        }
        match body.frame().await {
            None => return (written, true),
            Some(Err(_)) => return (written, false),
            Some(Ok(frame)) => written.push(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()),
        }
    }
}

fn futures(
    events: Vec<Result<Frame<Bytes>, Infallible>>,
    gap: Duration,
) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>> + Unpin {
    Box::pin(futures_util::stream::iter(events).then(move |event| async move {
        if !gap.is_zero() {
            tokio::time::sleep(gap).await;
        }
        event
    }))
}

#[tokio::test]
async fn writes_end_at_the_named_bytes() {
    let (written, ends) = writes(&["merge:1000", "split-at:9,3,30"]).await;
    assert_eq!(written, ["dat", "a:1\n\nd", "ata:2\n\ndata:3\n\ndata:4", "\n\n"]);
    assert!(ends);
    let (written, _) = writes(&["split-at:3,8,11"]).await;
    assert_eq!(written, ["dat", "a:1\n\n", "dat", "a:2\n\n", "data:3\n\n", "data:4\n\n"]);
    let (written, _) = writes(&["crlf", "split-at:8"]).await;
    assert_eq!(written[..2], ["data:1\r\n", "\r\n"], "bytes are counted as they are sent");
}

#[tokio::test(start_paused = true)]
async fn a_fault_at_a_time_comes_so_long_after_the_head() {
    let events: Vec<String> = (1..=4).map(|number| format!("data:{number}\n\n")).collect();
    let two = events[..2].to_vec();
    let with = |more: &str| [two.as_slice(), &[more.to_owned()], &events[2..]].concat();
    for (line, written, ends, took) in [
        ("truncate at time 100ms", two.clone(), true, 100),
        ("close at time 100ms", two.clone(), false, 100),
        ("keep-alive:1 at time 100ms", with(": keep-alive\n\n"), true, 160),
        // The last event's 40 ms begin when it is asked for.
        ("stall:200ms at time 100ms", events.clone(), true, 340),
        ("malformed at time 100ms", events.clone(), true, 160),
        ("truncate at time 170ms", events.clone(), true, 160),
    ] {
        let start = tokio::time::Instant::now();
        let found = paced_writes_of(&[line], &events, Duration::from_millis(40), true).await;
        assert_eq!((found.0, found.1, start.elapsed().as_millis()), (written, ends, took), "{line}");
    }
}

#[tokio::test]
async fn what_is_merged_leaves_before_a_fault_at_a_place() {
    let (written, ends) = writes(&["merge:1000", "reset at event 2"]).await;
    assert_eq!((written.as_slice(), ends), (["data:1\n\ndata:2\n\n".to_owned()].as_slice(), false));
    let (written, _) = writes(&["merge:1000", "huge-line:3 at event 3"]).await;
    assert_eq!(written, ["data:1\n\ndata:2\n\ndata:3\n\n", ": ", "x", "\n\n", "data:4\n\n"]);
}

#[tokio::test(start_paused = true)]
async fn a_body_without_events_repeats_after_itself() {
    let body = ["{\"a\":".to_owned(), "1}".to_owned()];
    for line in ["repeat:2", "repeat:2 at byte 3", "repeat:2 at token 4", "repeat:2 at event 1"] {
        let (written, ends) = writes_of(&[line], &body, false).await;
        assert_eq!((written.concat(), ends), ("{\"a\":1}".repeat(3), true), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_at_a_byte_that_has_passed_stops_nothing() {
    // No event has output that could be repeated; a pace begins at the first byte.
    assert_eq!(writes(&["repeat:2 at byte 3"]).await.0.concat(), writes(&[]).await.0.concat());
    assert_eq!(writes(&["drip:4 at byte 0"]).await.0.first().map(String::len), Some(4));
}

#[tokio::test(start_paused = true)]
async fn copies_of_copies_are_bounded() {
    let event = ["data:1\n\n".to_owned()];
    let (written, _) = writes_of(&["duplicate:3 at event 0", "duplicate:1 at event 0"], &event, true).await;
    assert_eq!(written.len(), 5, "the second fault copies one of the copies");
    let copies = "duplicate:1000,count=1000 at event 0";
    let endless = [copies, copies, "merge:1000 at event 0", copies];
    assert!(!writes_of(&endless, &event, true).await.0.is_empty());
}

#[tokio::test(start_paused = true)]
async fn copies_that_others_hold_back_are_bounded_too() {
    let event = ["data:1\n\n".to_owned()];
    let (copies, held) = ("duplicate:1000,count=1000000 at event 0", "merge:10000 at event 0");
    // A thousand million pieces, of which each is held back.
    let (written, ends) = writes_of(&[copies, copies, copies, held], &event, true).await;
    assert!(ends && (1..=11).contains(&written.len()), "{}", written.len());
    assert!(written.concat().len() <= 100_000 * event[0].len());
    // Put together again and again, they would be more bytes than there is memory for.
    let (written, _) = writes_of(&[copies, held, copies, held, copies, held], &event, true).await;
    assert!(written.iter().map(String::len).sum::<usize>() <= 256 << 20);
}
