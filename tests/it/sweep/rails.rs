//! Each weakness is named, and a rail that holds is one.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use http::HeaderMap;
use tokio::net::TcpListener;
use vllm_vcr::{
    net::upstream::{UpstreamOptions, UpstreamUrl},
    prove::{BehindServer, ENDPOINTS, StreamClient, marker_in},
    sweep::{Canary, CleanCompare, SweepPlan, SweepReport, Sweeper, matrix, sampled, served_answers},
};

use super::rail::{CANARY, Rail, RunningRail};

/// What a sweep says of a rail: cells with all of these parts, so many at most.
async fn swept(rail: Rail, only: &str, cells: usize, compare: CleanCompare) -> SweepReport {
    let canary = Canary::new(CANARY.to_owned(), vec!["sk-Kanarienvogel".to_owned()]).unwrap();
    swept_of(canary, rail, (only, cells), compare).await
}

async fn swept_of(canary: Canary, rail: Rail, cells: (&str, usize), compare: CleanCompare) -> SweepReport {
    swept_until(canary, rail, cells, compare, u64::MAX).await
}

/// The same, stopped after so many requests.
async fn swept_until(
    canary: Canary,
    rail: Rail,
    (only, cells): (&str, usize),
    compare: CleanCompare,
    most: u64,
) -> SweepReport {
    let running = RunningRail::start(rail).await;
    let only: Vec<Vec<String>> = only.split(' ').map(|only| only.split('/').map(str::to_owned).collect()).collect();
    let only = if only[0][0].is_empty() { Vec::new() } else { only };
    let cells = sampled(matrix(&canary, &ENDPOINTS, &only, 1), cells, 1);
    let (model, wait) = ("m".to_owned(), Duration::from_secs(60));
    let plan = SweepPlan { canary, cells, model, compare, has_usage: true, allowed: 0, concurrency: 16, wait };
    let config = served_answers(&plan, Duration::from_millis(1)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let behind = BehindServer::start(listener, config, marker_in).unwrap();
    running.upstream.send_replace(Some(behind.address));
    let client = |address| {
        let url: UpstreamUrl = format!("http://{address}").parse().unwrap();
        StreamClient::new(url, &UpstreamOptions::default(), HeaderMap::new(), Duration::from_secs(60))
    };
    let (through, direct) = (client(running.address), client(behind.address));
    let sweeper = Sweeper { behind, client: through, direct, plan, counter: AtomicU64::new(0) };
    let stop = async {
        while sweeper.counter.load(Ordering::Relaxed) < most {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    sweeper.sweep(stop).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_found_is_kept_when_it_is_stopped() {
    let canary = Canary::new(CANARY.to_owned(), Vec::new()).unwrap();
    let found = swept_until(canary, Rail::PassThrough, ("", 5000), CleanCompare::Bytes, 200).await;
    assert!(found.is_stopped && !found.holds() && !found.failed.is_empty(), "{:?}", found.rows);
    assert!((1..5000).contains(&found.cells()), "{}", found.cells());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rail_that_holds_lets_nothing_through() {
    // The text in another language is none that this rail knows.
    let report = swept(Rail::Holds, "plain base64", 500, CleanCompare::Bytes).await;
    assert!(report.holds(), "{:#?} {:#?}", report.failed, report.clean);
    assert_eq!((report.cells(), report.rows.len(), report.absent.len()), (500, 34, 0));
    assert!(report.rows.iter().all(|row| row.most == 0 && row.refused == 0), "{:#?}", report.rows);
    assert!(report.clean.iter().all(|clean| clean.answers > 0 && clean.same_bytes == clean.answers));
    assert!(report.latency.clean.ttft.summary().is_some() && report.latency.direct.itl.summary().is_some());
    let unknown = swept(Rail::Holds, "other-1/chat/whole", 500, CleanCompare::Bytes).await;
    assert!(unknown.rows.iter().all(|row| row.leaked == row.cells && row.whole == row.cells && row.most == 16));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_rail_everything_is_seen_and_clean_answers_are_the_same_bytes() {
    let report = swept(Rail::PassThrough, "", 600, CleanCompare::Bytes).await;
    assert_eq!(report.cells(), 600);
    let seen = report.rows.iter().all(|row| row.whole == row.cells && row.leaked == row.cells && row.invalid == 0);
    assert!(seen, "{:#?}", report.rows);
    assert!(report.clean.iter().all(|clean| clean.same_bytes == clean.answers && clean.damaged == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_carry_over_rail_lets_the_first_half_out() {
    let report = swept(Rail::CarryOver, "chat/stream/content/plain", 1000, CleanCompare::Content).await;
    assert!(report.clean.iter().all(|clean| clean.damaged == 0), "{:#?}", report.clean);
    for outcome in &report.failed {
        let split = outcome.cell.split.to_string();
        let expected = match split.strip_prefix("at-") {
            Some(place) => place.parse::<usize>().unwrap(),
            None if split == "characters" => CANARY.len() - 1,
            None => continue,
        };
        assert_eq!((outcome.leaked, &outcome.invalid), (expected, &None), "{}", outcome.cell);
    }
    let cut = report.failed.iter().filter(|outcome| outcome.cell.split.to_string().starts_with("at-")).count();
    assert_eq!(cut, 3 * (CANARY.len() - 1));
    // One token is caught.
    assert!(report.failed.iter().all(|outcome| outcome.cell.split.to_string() != "whole"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sampling_rail_damages_clean_streams() {
    let report = swept(Rail::Samples, "chat/stream/content/middle", 40, CleanCompare::Content).await;
    assert!(!report.holds());
    let clean = &report.clean[0];
    assert_eq!((clean.damaged, clean.same_bytes), (clean.answers, 0));
    let (_, what) = clean.damage.clone().unwrap();
    assert!(what.starts_with("choices[0].texts.text is \"The note here"), "{what}");
    assert!(clean.first_difference.clone().unwrap().starts_with("byte "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rail_that_is_off_for_streams_leaks_streams_only() {
    let report = swept(Rail::BodiesOnly, "plain/whole", 1000, CleanCompare::Bytes).await;
    for row in &report.rows {
        let expected = if row.is_stream { row.cells } else { 0 };
        assert_eq!((row.whole, row.leaked, row.invalid), (expected, expected, 0), "{}", row.name());
    }
    assert_eq!((report.rows.len(), report.clean.iter().map(|clean| clean.damaged).sum::<usize>()), (34, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_no_client_can_read_is_named() {
    let report = swept(Rail::InvalidBlock, "plain/whole/middle", 1000, CleanCompare::Bytes).await;
    for row in &report.rows {
        let expected = if row.is_stream { row.cells } else { 0 };
        assert_eq!((row.invalid, row.most), (expected, 0), "{}", row.name());
    }
    assert!(report.failed.iter().all(|outcome| outcome.invalid.as_deref() == Some("event 1 is no JSON")));
}

/// Measures; run it by hand: `cargo test --test it sweep::rails::ten_thousand -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes up to a minute"]
async fn ten_thousand_cells() {
    let others = ["sk-Kanarienvogel", "sk-oiseau-canari", "sk-uccello-canarino"].map(str::to_owned).to_vec();
    let canary = Canary::new(CANARY.to_owned(), others).unwrap();
    let start = tokio::time::Instant::now();
    let report = swept_of(canary, Rail::PassThrough, ("", 10_000), CleanCompare::Bytes).await;
    eprintln!("{} cells in {:?}", report.cells(), start.elapsed());
    assert_eq!(report.cells(), 10_000);
    assert_eq!(report.cells(), report.rows.iter().map(|row| row.whole).sum::<usize>());
    assert!(report.clean.iter().all(|clean| clean.same_bytes == clean.answers && clean.bursts == 0));
}
