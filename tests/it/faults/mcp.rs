//! Each kind of fault in the responses of an MCP server, by the proofs of models' streams.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{io::AsyncReadExt, net::TcpStream, time::Instant};

use super::{
    Ending, Heard, ask, hits,
    kinds::{BODY_PROOFS, HEAD_PROOFS, NO_ANSWER},
    request,
};
use crate::support::{cassettes::Shelf, running::Running};

/// Kinds of what only streams of models have: tokens, usage, a reason for the end, a last event.
const OF_MODELS: [&str; 4] = ["repeat", "no-done", "no-finish", "usage"];

/// A server whose only call is answered with eight notifications and a result.
fn server() -> String {
    let mut tape = String::from(
        "vcr: 1\nrecords:\n- request: POST /mcp/shop\n  body: {method: initialize, params: {protocolVersion: 2025-06-18, capabilities: {}, \
         clientInfo: {name: hand, version: '1'}}}\n  answer: {json: {result: {protocolVersion: 2025-06-18, capabilities: {tools: {}}, \
         serverInfo: {name: shop, version: '1'}}}}\n- request: POST /mcp/shop\n  body: {method: tools/call, params: {name: buy, arguments: \
         {}, _meta: {progressToken: 1}}}\n  answer:\n    events:\n",
    );
    for count in 1..=8 {
        let params = json!({"progressToken": 1, "progress": count, "message": "near Z\u{fc}rich"});
        tape.push_str(&format!("    - data: {}\n", json!({"method": "notifications/progress", "params": params})));
    }
    tape + "    - data: {result: {content: [{type: text, text: bought}], isError: false}}\n"
}

/// A message to the server, with these headers too.
fn message(body: &Value, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut request = request("/mcp/shop", body);
    let at = request.windows(2).position(|window| window == b"\r\n").unwrap() + 2;
    let accept = [("accept", "application/json, text/event-stream")];
    let lines: String = headers.iter().chain(&accept).map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    request.splice(at..at, lines.into_bytes());
    request
}

/// A client of the server, whose calls name their faults.
struct Client {
    server: Running,
    session: String,
}

impl Client {
    async fn start(server: Running) -> Self {
        let params =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        let head = ask(server.address, &message(&body, &[]), None).await.head;
        let session = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap().to_owned();
        Self { server, session }
    }

    async fn call(&self, fault: &str, at_most: Option<usize>) -> Heard {
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
            "params": {"name": "buy", "arguments": {}, "_meta": {"progressToken": 1}}});
        let named = [("mcp-session-id", self.session.as_str()), ("x-vcr-fault", fault)];
        let headers = if fault.is_empty() { &named[..1] } else { &named };
        ask(self.server.address, &message(&body, headers), at_most).await
    }

    async fn clean(&self) -> Vec<Vec<u8>> {
        let heard = self.call("", None).await;
        assert_eq!((heard.ending, heard.chunks.len()), (Ending::Whole, 9), "{heard:?}");
        heard.chunks
    }

    async fn hits(&self) -> usize {
        hits(self.server.address).await.len()
    }
}

fn shown(chunks: &[Vec<u8>]) -> Vec<String> {
    chunks.iter().map(|chunk| String::from_utf8_lossy(chunk).into_owned()).collect()
}

#[tokio::test]
async fn each_kind_in_a_body_is_at_its_event_or_byte() {
    let shelf = Shelf::with(&server());
    let client = Client::start(shelf.play(&["--fault-headers"])).await;
    let clean = client.clean().await;
    let error = json!({"jsonrpc": "2.0", "id": 7, "error": {"code": -32603, "message": "lost"}});
    let error = format!("event: message\ndata: {error}\n\n").into_bytes();
    let mut happened = 0;
    for proof in BODY_PROOFS {
        let mut line = (proof.line)(&clean).replace("at token", "at event");
        let mut expected = (proof.chunks)(&clean);
        if proof.kind == "error-event" {
            let before = line.rsplit(' ').next().unwrap().parse().unwrap();
            line = line.replace("error-event", "error-event:500,message=lost");
            expected = [clean[..before].to_vec(), vec![error.clone()]].concat();
        }
        let is_there = !OF_MODELS.contains(&proof.kind);
        let expected = if is_there { expected } else { clean.clone() };
        let open = (proof.ending == Ending::Open).then(|| expected.concat().len());
        let start = Instant::now();
        let heard = client.call(&line, open).await;
        assert_eq!((shown(&heard.chunks), heard.ending), (shown(&expected), proof.ending), "{line}");
        assert!(start.elapsed() >= Duration::from_millis(proof.at_least), "{line}");
        happened += usize::from(is_there);
        assert_eq!(client.hits().await, happened, "{line}");
    }
}

#[tokio::test]
async fn each_kind_before_the_answer_is_there() {
    let shelf = Shelf::with(&server());
    let client = Client::start(shelf.play(&["--fault-headers"])).await;
    let clean = client.clean().await;
    for proof in HEAD_PROOFS {
        let start = Instant::now();
        let heard = client.call(proof.line, None).await;
        assert!(start.elapsed() >= Duration::from_millis(proof.at_least), "{}", proof.line);
        assert!(proof.head.iter().all(|part| heard.head.contains(part)), "{}: {}", proof.line, heard.head);
        let is_refusal = proof.body.is_some();
        assert_eq!(heard.body() != clean.concat(), is_refusal, "{}", proof.line);
        assert_eq!(heard.ending, Ending::Whole, "{}", proof.line);
    }
    for (kind, ending) in NO_ANSWER {
        let heard = client.call(kind, (*ending == Ending::Open).then_some(0)).await;
        assert_eq!((heard.head.as_str(), heard.ending), ("", *ending), "{kind}");
    }
    assert_eq!(client.hits().await, HEAD_PROOFS.len() + NO_ANSWER.len());
    let refused = client.call("empty", None).await;
    let why = "cannot get the fault empty: no text of a model answers /mcp/shop";
    assert!(refused.head.contains(" 400 ") && String::from_utf8(refused.body()).unwrap().contains(why));
}

#[tokio::test]
async fn a_fault_of_a_record_concerns_the_call_that_it_answers() {
    let shelf = Shelf::with(&server());
    for record in ["tape.yaml#1", "some/folder/tape.yaml#1"] {
        let line = format!("truncate at event 1 where record={record}");
        let client = Client::start(shelf.play(&["--fault", &line])).await;
        let heard = client.call("", None).await;
        assert!(heard.head.contains("\r\nx-vcr-record: tape.yaml#1\r\n"), "{}", heard.head);
        assert_eq!((heard.chunks.len(), client.hits().await), (1, 1), "{record}");
    }
}

#[tokio::test]
async fn an_error_has_no_id_where_the_request_has_none() {
    let shelf = Shelf::with(&server());
    let client = Client::start(shelf.play(&["--fault", "error-event:500,message=lost at event 0"])).await;
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": {"name": "buy", "arguments": {}, "_meta": {"progressToken": 1}}});
    let headers = [("mcp-session-id", client.session.as_str())];
    for (body, id) in [(call.clone(), json!(7)), (json!([call]), Value::Null)] {
        let heard = ask(client.server.address, &message(&body, &headers), None).await;
        let text = String::from_utf8(heard.body()).unwrap();
        let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": "lost"}}).to_string();
        assert!(text.contains(&error) && !text.contains("[DONE]"), "{text}");
    }
}

#[tokio::test]
async fn a_server_that_refuses_cuts_connections_and_closes_its_port() {
    let shelf = Shelf::with(&server());
    let client = Client::start(shelf.play(&["--fault-headers"])).await;
    let mut open = TcpStream::connect(client.server.address).await.unwrap();
    let put = crate::support::client::Request {
        method: "PUT",
        ..crate::support::client::post("/vcr/faults", &json!({"faults": ["refuse"]}))
    };
    assert_eq!(crate::support::client::send(client.server.address, &put).await.status, 200);
    let mut rest = Vec::new();
    let _end_or_reset = open.read_to_end(&mut rest).await;
    for _ in 0..1500 {
        if TcpStream::connect(client.server.address).await.is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("its port is open");
}
