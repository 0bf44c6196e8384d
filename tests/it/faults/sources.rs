//! Everything that is served fails alike: traces (everywhere else here), made-up tokens, an engine, cassettes and MCP servers.

use std::time::Duration;

use serde_json::json;
use vllm_vcr::{play::Config, replay::matching::MatchBy};

use super::{COMPLETIONS, Ending, ask, faults, request};
use crate::{
    mcp::SERVER,
    support::{
        CHAT,
        cassettes::{self, Shelf, tape},
        play_server::{config, start},
        running::Running,
        simulated::{behind, engine, until},
    },
};

/// Faults, the whole answer's events being more.
const LINES: &[&str] = &["429 where first=1", "reset at event 2"];

#[tokio::test]
async fn made_up_tokens_and_an_engine_fail_and_leave_no_block() {
    let made_up = Config {
        source: vllm_vcr::play::Source::Synthetic(vllm_vcr::play::Synthetic::Random),
        ..config(&[MatchBy::Next], Vec::new())
    };
    for (config, has_engine) in [(made_up, false), (behind(engine(Duration::ZERO)), true)] {
        let server = start(Config { faults: faults(LINES, 0), ..config }).await;
        let body = json!({"prompt": "x", "stream": true, "max_tokens": 20});
        let refused = ask(server.address, &request(COMPLETIONS, &body), None).await;
        assert!(refused.head.starts_with("http/1.1 429 "), "{}", refused.head);
        let cut = ask(server.address, &request(COMPLETIONS, &body), None).await;
        assert_eq!((cut.chunks.len(), cut.ending), (2, Ending::Reset));
        if has_engine {
            until(&server, &[("vllm:kv_cache_usage_perc", 0.0), ("vllm:num_requests_running", 0.0)]).await;
        }
    }
}

#[tokio::test]
async fn cassettes_fail() {
    let shelf = Shelf::with(&tape(&[cassettes::record(&["hello"], "one two three four")]));
    let flags: Vec<&str> = LINES.iter().flat_map(|line| ["--fault", line]).collect();
    let server: Running = shelf.play(&flags);
    let mut body = cassettes::chat(&["hello"]);
    body["stream"] = json!(true);
    assert!(ask(server.address, &request(CHAT, &body), None).await.head.starts_with("http/1.1 429 "));
    let cut = ask(server.address, &request(CHAT, &body), None).await;
    assert_eq!((cut.chunks.len(), cut.ending), (2, Ending::Reset));
    let (_, said) = server.stop();
    assert!(said.contains("fault: --fault 'reset at event 2 where request="), "{said}");
}

#[tokio::test]
async fn mcp_servers_fail() {
    let shelf = Shelf::with(SERVER);
    let server = shelf.play(&["--fault", "503 where first=1 path=/mcp*", "--fault", "close at byte 5 where nth=2"]);
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
        {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}});
    let mut asked = request("/mcp/shop", &body);
    let accept = b"accept: application/json, text/event-stream\r\n";
    let at = asked.windows(2).position(|window| window == b"\r\n").unwrap() + 2;
    asked.splice(at..at, accept.iter().copied());
    assert!(ask(server.address, &asked, None).await.head.starts_with("http/1.1 503 "));
    let cut = ask(server.address, &asked, None).await;
    assert_eq!((cut.body().len(), cut.ending), (5, Ending::Cut));
    assert_eq!(ask(server.address, &asked, None).await.ending, Ending::Whole);
}
