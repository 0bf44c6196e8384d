//! Which requests get a fault.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use serde_json::json;
use tokio::{sync::Semaphore, task::JoinSet};

use super::{COMPLETIONS, Ending, ask, faults, hits, request, served};
use crate::support::{
    play_server::{Server, start},
    running::Running,
};

/// The request of this number.
fn numbered(number: usize) -> Vec<u8> {
    request(COMPLETIONS, &json!({"prompt": [number + 1, 2, 3], "stream": true}))
}

fn status(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or_default()
}

#[tokio::test]
async fn each_of_200_retrying_clients_sees_exactly_two_refusals() {
    let server = start(served(faults(&["429:retry-after=0s where first=2"], 0))).await;
    let mut clients = JoinSet::new();
    for number in 0..200 {
        let address = server.address;
        clients.spawn(async move {
            let mut seen = Vec::new();
            while seen.last().is_none_or(|last| last == "429") {
                seen.push(status(&ask(address, &numbered(number), None).await.head).to_owned());
            }
            seen
        });
    }
    for seen in clients.join_all().await {
        assert_eq!(seen, ["429", "429", "200"]);
    }
    assert_eq!(hits(server.address).await.len(), 400);
}

/// Sends requests, so many at a time; tells how many were refused, cut and whole.
async fn send_all(address: SocketAddr, count: usize, at_a_time: usize) -> [usize; 3] {
    let (places, mut sent) = (Arc::new(Semaphore::new(at_a_time)), JoinSet::new());
    for number in 0..count {
        let place = Arc::clone(&places).acquire_owned().await.unwrap();
        sent.spawn(async move {
            let heard = ask(address, &numbered(number), None).await;
            drop(place);
            match (status(&heard.head), heard.ending) {
                ("503", Ending::Whole) => 0,
                ("200", Ending::Reset) => 1,
                ("200", Ending::Whole) => 2,
                other => panic!("{other:?}"),
            }
        });
    }
    let mut counts = [0; 3];
    sent.join_all().await.into_iter().for_each(|kind: usize| counts[kind] += 1);
    counts
}

const DRAWN: &[&str] = &["503 where rate=0.2", "reset at event 2 where rate=0.2"];

async fn drawing(seed: u64) -> Server {
    start(served(faults(DRAWN, seed))).await
}

async fn sorted_hits(server: &Server) -> BTreeSet<String> {
    hits(server.address).await.into_iter().collect()
}

#[tokio::test]
async fn the_same_seed_gives_the_same_list_whatever_the_concurrency() {
    let (one, many, other) = (drawing(7).await, drawing(7).await, drawing(8).await);
    let counts = send_all(one.address, 300, 1).await;
    assert_eq!(counts, send_all(many.address, 300, 64).await);
    send_all(other.address, 300, 64).await;
    let list = sorted_hits(&one).await;
    assert_eq!(list, sorted_hits(&many).await);
    assert_ne!(list, sorted_hits(&other).await);
    assert_eq!(list.len(), counts[0] + counts[1]);
    // A line of the list alone gives that fault alone.
    let line = list.iter().find(|line| line.starts_with("reset")).unwrap();
    let alone = start(served(faults(&[line], 99))).await;
    assert_eq!(send_all(alone.address, 300, 16).await, [0, 1, 299]);
    assert_eq!(hits(alone.address).await, std::slice::from_ref(line));
}

#[tokio::test]
async fn the_flags_of_llm_d_become_lines() {
    let server = Running::start(&[
        "play",
        "--port",
        "0",
        "--synthetic",
        "random",
        "--instant",
        "--failure-injection-rate",
        "100",
        "--failure-types",
        "rate_limit,server_error",
        "--fault-seed",
        "3",
    ]);
    let mut seen = BTreeSet::new();
    for number in 0..40 {
        seen.insert(status(&ask(server.address, &numbered(number), None).await.head).to_owned());
    }
    assert_eq!(seen, BTreeSet::from(["429".to_owned(), "503".to_owned()]));
    let (_, said) = server.stop();
    let listed = said.split_once("40 faults happened; each of these flags repeats one:\n").map(|(_, listed)| listed);
    assert!(
        listed.is_some_and(|listed| listed.starts_with("  --fault 'rate_limit where request=")
            || listed.starts_with("  --fault 'server_error where request=")),
        "{said}"
    );
}
