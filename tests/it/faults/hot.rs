//! Faults that come and go while the server runs, and those that requests name.

use std::sync::Arc;

use serde_json::json;
use vllm_vcr::{
    faults::rows,
    play::{FaultLines, ServerFaults},
};

use super::{COMPLETIONS, faults, served, stream_body};
use crate::support::{
    client::{self, Request, get, post},
    play_server::{Server, start},
};

async fn status(server: &Server, headers: &[(&'static str, &'static str)]) -> u16 {
    let mut request = post(COMPLETIONS, &stream_body());
    request.headers.extend(headers);
    client::send(server.address, &request).await.status
}

async fn change(server: &Server, method: &str, body: &str) -> client::Answer {
    let request = Request { method, path: "/vcr/faults", headers: Vec::new(), body: body.as_bytes().to_vec() };
    client::send(server.address, &request).await
}

#[tokio::test]
async fn faults_are_replaced_and_removed_while_the_server_runs() {
    let server = start(served(faults(&["503"], 0))).await;
    assert_eq!(status(&server, &[]).await, 503);
    let shown = client::send(server.address, &get("/vcr/faults")).await.json();
    assert_eq!(shown["faults"], json!([{"fault": "503", "happened": 1, "not_said": 0}]));
    assert_eq!(change(&server, "PUT", "faults:\n- 429 where first=1\n").await.status, 200);
    assert_eq!([status(&server, &[]).await, status(&server, &[]).await], [429, 200]);
    let refused = change(&server, "PUT", "faults:\n- 429\n- explode\n").await;
    assert!(
        refused.status == 400 && refused.text().contains("line 3: `explode` is no kind of fault"),
        "{}",
        refused.text()
    );
    // What cannot be read replaces nothing.
    let shown = client::send(server.address, &get("/vcr/faults")).await.json();
    assert_eq!(shown["faults"], json!([{"fault": "429 where first=1", "happened": 1, "not_said": 0}]));
    assert_eq!(change(&server, "PUT", "[500]").await.status, 200);
    assert_eq!(status(&server, &[]).await, 500);
    let removed = change(&server, "DELETE", "").await.json();
    assert_eq!([&removed["faults"], &removed["hits"], &removed["not_said"]], [&json!([]); 3]);
    assert_eq!(status(&server, &[]).await, 200);
    let shown = client::send(server.address, &get("/vcr/faults")).await.json();
    let hits = shown["hits"].as_array().unwrap().iter();
    let hits = hits.map(|hit| (hit["fault"].as_str().unwrap().split(' ').next().unwrap(), &hit["of"]));
    assert_eq!(hits.collect::<Vec<_>>(), ["503", "429", "500"].map(|name| (name, &json!(null))));
}

#[tokio::test]
async fn a_stream_in_progress_keeps_its_faults() {
    let server = start(served(faults(&["stall:150ms at event 1", "reset at event 3"], 0))).await;
    let mut stream = client::open(server.address, &post(COMPLETIONS, &stream_body())).await;
    client::read_until(&mut stream, "data: ").await;
    change(&server, "DELETE", "").await;
    let mut rest = Vec::new();
    let ended = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest).await;
    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn requests_name_faults_only_where_that_is_enabled() {
    let headers: [&[(&str, &str)]; 2] = [&[("x-vcr-fault", "error:418")], &[("x-return-error", "429")]];
    let server = start(served(faults(&[], 0))).await;
    for header in headers {
        assert_eq!(status(&server, header).await, 200);
    }
    let enabled = Arc::new(ServerFaults::new(FaultLines::default(), true));
    let server = start(served(enabled)).await;
    assert_eq!(status(&server, headers[0]).await, 418);
    assert_eq!(status(&server, headers[1]).await, 429);
    assert_eq!(status(&server, &[("x-return-error", "model_not_found")]).await, 404);
    assert_eq!(status(&server, &[("x-return-error", "502")]).await, 502);
    assert_eq!(status(&server, &[("x-vcr-fault", "explode")]).await, 400);
    assert_eq!(status(&server, &[]).await, 200);
    let listed = super::hits(server.address).await;
    let kinds: Vec<&str> = listed.iter().map(|line| line.split(" where ").next().unwrap()).collect();
    assert_eq!(kinds, ["error:418", "429", "model_not_found", "error:502"]);
}

#[tokio::test]
async fn the_line_of_a_fault_that_a_request_named_repeats_it_alone() {
    for (header, named, status) in [("x-vcr-fault", "error:418 where rate=1", 418), ("x-return-error", "503", 503)] {
        let server = start(served(Arc::new(ServerFaults::new(FaultLines::default(), true)))).await;
        let mut seen = Vec::new();
        for own in [&[][..], &[], &[(header, named)], &[]] {
            seen.push(self::status(&server, own).await);
        }
        assert_eq!(seen, [200, 200, status, 200]);
        let [line] = super::hits(server.address).await.try_into().unwrap();
        let again = start(served(faults(&[&line], 5))).await;
        let mut repeated = Vec::new();
        for _ in 0..4 {
            repeated.push(self::status(&again, &[]).await);
        }
        assert_eq!(repeated, seen, "{line}");
    }
}

#[tokio::test]
async fn the_catalogue_is_served() {
    let server = start(served(faults(&[], 0))).await;
    let served = client::send(server.address, &get("/vcr/faults/catalog")).await.json();
    let kinds: Vec<&str> = served.as_array().unwrap().iter().map(|row| row["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, rows().map(|row| row.name).collect::<Vec<_>>());
}
