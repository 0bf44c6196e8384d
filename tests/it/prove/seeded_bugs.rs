//! Each seeded bug is found, and made small; a proxy without one passes.

use std::{collections::BTreeSet, sync::atomic::AtomicU64, time::Duration};

use http::HeaderMap;
use tokio::net::TcpListener;
use vllm_vcr::{
    api::Endpoint,
    net::upstream::UpstreamOptions,
    prove::{
        BehindServer, CompareBy, CompareRules, GroundSources, PriceTable, Proof, ProveCheck, ProvePlan, Prover,
        ScriptPlaces, StreamClient, ground_truth, marker_in, served_config,
    },
};

use super::proxy::{Bug, Proxy};

/// What is proven of the proxy, with two streams of chats.
async fn proof(bug: Bug, only: &[ProveCheck]) -> Proof {
    proof_until(bug, only, None).await
}

/// The same, stopped after so many requests.
async fn proof_until(bug: Bug, only: &[ProveCheck], most: Option<usize>) -> Proof {
    let proxy = Proxy::start(bug).await;
    let mut accepted = proxy.accepted.clone();
    let stop = async move {
        accepted.wait_for(|count| most.is_some_and(|most| *count >= most)).await.unwrap();
    };
    let mut streams = ground_truth(GroundSources::default(), "m").await.unwrap();
    streams.truncate(2);
    streams.iter_mut().for_each(|stream| stream.by_endpoint.retain(|(endpoint, _)| *endpoint == Endpoint::Chat));
    let mut prover = prover(&proxy, streams).await;
    let places = ScriptPlaces {
        gateway: proxy.address.to_string(),
        is_tls: false,
        prefix: String::new(),
        upstream: prover.behind.address,
    };
    let plan = ProvePlan {
        only: only.iter().copied().collect::<BTreeSet<_>>(),
        cases: 30,
        duration: most.map(|_| Duration::from_secs(3600)),
        isolation: 40,
        shrink: 10,
        wait: Duration::from_secs(30),
        places,
    };
    prover.prove(&plan, stop).await.unwrap()
}

async fn prover(proxy: &Proxy, streams: Vec<vllm_vcr::prove::GroundStream>) -> Prover {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let behind = BehindServer::start(listener, served_config(&streams, "m").unwrap(), marker_in).unwrap();
    proxy.upstream.send_replace(Some(behind.address));
    let url = format!("http://{}", proxy.address).parse().unwrap();
    Prover {
        behind,
        client: StreamClient::new(url, &UpstreamOptions::default(), HeaderMap::new(), Duration::from_secs(60)),
        streams,
        rules: CompareRules {
            by: CompareBy::Events,
            ignored: BTreeSet::new(),
            prices: PriceTable::default(),
            model: "m".to_owned(),
        },
        concurrency: 16,
        pause_ms: 20,
        stall: Duration::from_millis(500),
        seed: 1,
        counter: AtomicU64::new(0),
    }
}

/// Checks that a bug fails this check and no other, in so many writes at most, with these kinds of faults; `what` is part of the words.
async fn is_found(bug: Bug, check: ProveCheck, writes: usize, faults: &[&str], what: &str) {
    let proof = proof(bug, &ProveCheck::ALL).await;
    let failed: Vec<ProveCheck> =
        proof.checks.iter().filter(|result| result.failed > 0).map(|result| result.check).collect();
    assert!(failed.contains(&check), "{bug:?}: {proof:#?}");
    let failure = proof.failures.iter().find(|failure| failure.check == check);
    let failure = failure.unwrap_or_else(|| panic!("{bug:?}: {proof:#?}"));
    // A connection that breaks before the first event has no write.
    let least = usize::from(check != ProveCheck::Error);
    assert!((least..=writes).contains(&failure.writes), "{bug:?}: {failure:#?}");
    let kinds: Vec<&str> = failure.faults.iter().map(|line| line.split([':', ' ']).next().unwrap()).collect();
    assert_eq!(kinds, faults, "{bug:?}: {failure:#?}");
    assert!(failure.what.contains(what), "{bug:?}: {}", failure.what);
    assert!(failure.script.contains("socket.create_connection") && !failure.script.contains('@'), "{bug:?}");
    assert!(!proof.holds());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_without_a_bug_passes() {
    let proof = proof(Bug::Nothing, &ProveCheck::ALL).await;
    assert!(proof.holds() && proof.failures.is_empty(), "{proof:#?}");
    assert_eq!(proof.checks.len(), 5);
    assert!(proof.checks.iter().all(|check| check.cases >= 16), "{proof:#?}");
    assert_eq!((proof.endpoints, proof.together), (vec![Endpoint::Chat], 40));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_found_is_kept_when_it_is_stopped() {
    let found = proof_until(Bug::Drop, &[ProveCheck::Stream, ProveCheck::Error], Some(300)).await;
    assert!(found.is_stopped && !found.holds() && found.checks[0].failed > 0, "{:?}", found.checks);
    assert_eq!((found.checks[1].cases, found.checks[1].failed), (0, 0));
    assert_eq!(found.failures[0].check, ProveCheck::Stream);
    assert!(found.failures[0].script.contains("event 4 of"), "{}", found.failures[0].script);
    let found = proof_until(Bug::Nothing, &[ProveCheck::Stream], Some(300)).await;
    assert!(!found.holds() && found.failures.is_empty(), "{:?}", found.failures);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_event() {
    is_found(Bug::Drop, ProveCheck::Stream, 1, &["merge"], "event 4 of").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doubled_event() {
    is_found(Bug::Double, ProveCheck::Stream, 1, &["merge"], "event 4 of").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_change_places() {
    is_found(Bug::Reorder, ProveCheck::Stream, 1, &["merge"], "event 2 of").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_character_in_two_reads() {
    is_found(Bug::CutCharacter, ProveCheck::Stream, 2, &["merge", "split-at"], "\u{fffd}").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_that_end_in_crlf() {
    is_found(Bug::DeafToCrlf, ProveCheck::Stream, 1, &["crlf", "merge"], "is missing").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_without_a_space() {
    is_found(Bug::DeafToNoSpace, ProveCheck::Stream, 1, &["no-space", "merge"], "is missing").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_that_is_off_by_one() {
    is_found(Bug::UsageOff, ProveCheck::Usage, 1, &["merge"], "42 out, not 17 in (16 cached), 41 out").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_mixed_up() {
    is_found(Bug::Mixed, ProveCheck::Isolation, 2, &["merge", "stall"], "has something of").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_that_become_a_stop() {
    is_found(Bug::ErrorToStop, ProveCheck::Error, 2, &["close", "merge"], "ends properly with `stop`").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_too_long() {
    is_found(Bug::LineLimit, ProveCheck::Stream, 3, &["huge-line", "merge"], "the stream broke").await;
}
