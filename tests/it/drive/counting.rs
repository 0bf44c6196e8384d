//! How the tokens of servers are counted that name no ids, or refuse to be asked for them.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::support::{
    peer::{End, Script, Upstream, answer, event_stream},
    running::vcr,
    traces::Trace,
};

/// What a server does with fields that it was asked for.
#[derive(Clone, Copy)]
struct Server {
    refuses_ids: bool,
    refuses_continuous: bool,
    sends_usage: bool,
}

/// Events of 1, 2 and 8 tokens.
fn events(asked: &Value, server: Server) -> Vec<String> {
    let options = &asked["stream_options"];
    let is_continuous = options["continuous_usage_stats"] == true && server.sends_usage;
    let usage = |tokens: u32| json!({"prompt_tokens": 4, "completion_tokens": tokens});
    let mut events: Vec<Value> = [1, 3, 11]
        .map(|so_far| {
            let mut event = json!({"choices": [{"index": 0, "text": "word "}]});
            if is_continuous {
                event["usage"] = usage(so_far);
            }
            event
        })
        .into();
    events[2]["choices"][0]["finish_reason"] = json!("length");
    if options["include_usage"] == true && server.sends_usage {
        events.push(json!({"choices": [], "usage": usage(11)}));
    }
    events.iter().map(Value::to_string).chain(["[DONE]".to_owned()]).collect()
}

fn body(request: &[u8]) -> Value {
    let text = String::from_utf8_lossy(request);
    serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap_or_default()
}

/// Drives four requests, one after the other, at a server; returns the results and the fields that the server was asked for.
async fn drive(server: Server) -> (Value, Vec<Value>) {
    let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
    let seen = Arc::clone(&asked);
    let upstream = Upstream::start(move |request| {
        if request.starts_with(b"GET ") {
            return Script { pieces: answer("404 Not Found", "{}"), end: End::KeepAlive };
        }
        let body = body(request);
        let is_continuous = body["stream_options"]["continuous_usage_stats"] == true;
        let refused =
            (server.refuses_ids && body["return_token_ids"] == true) || (server.refuses_continuous && is_continuous);
        seen.lock().unwrap().push(json!([body["return_token_ids"] == true, body["stream_options"]]));
        if refused {
            return Script { pieces: answer("400 Bad Request", "{}"), end: End::KeepAlive };
        }
        let events = events(&body, server);
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        Script { pieces: event_stream(&events), end: End::KeepAlive }
    })
    .await;
    let record = |number: u32| {
        json!({"prompt_tokens": 4, "output_tokens": 11, "ttft_ms": 1.0, "itl_ms": vec![1.0; 10], "arrival_ms": number,
            "endpoint": "completions", "stream": true, "status": 200, "outcome": "finished"})
    };
    let trace = Trace::of(&(0..4).map(record).collect::<Vec<_>>());
    let target = format!("http://{}", upstream.address);
    let output = tokio::task::spawn_blocking(move || {
        let path = trace.file.to_str().unwrap();
        vcr(&[
            "replay",
            path,
            "--target",
            &target,
            "--json",
            "--concurrency",
            "1",
            "--threads",
            "1",
            "--timeout",
            "20s",
        ])
    });
    let output = output.await.unwrap();
    let printed: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let asked = asked.lock().unwrap().clone();
    (printed["results"].clone(), asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ignores_the_request_for_ids_counts_with_every_event() {
    let (results, asked) = drive(Server { refuses_ids: false, refuses_continuous: false, sends_usage: true }).await;
    let continuous = json!({"include_usage": true, "continuous_usage_stats": true});
    assert_eq!(asked, [true, true, true, false].map(|ids| json!([ids, continuous])));
    assert_eq!(results["counted_by"], json!({"continuous_usage": 4}), "{results:#}");
    assert_eq!((&results["output_tokens"], &results["tokens_per_event"]), (&json!(44), &json!(44.0 / 12.0)));
    // Of 11 tokens 10 come after the first event.
    assert_eq!((&results["itl_ms"]["count"], &results["chunk_gap_ms"]["count"]), (&json!(40), &json!(8)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_is_asked_for_less_until_it_accepts() {
    let (results, asked) = drive(Server { refuses_ids: true, refuses_continuous: false, sends_usage: true }).await;
    let continuous = json!({"include_usage": true, "continuous_usage_stats": true});
    assert_eq!(asked, [true, false, false, false, false].map(|ids| json!([ids, continuous])));
    assert_eq!(results["counted_by"], json!({"continuous_usage": 4}));
    let (results, asked) = drive(Server { refuses_ids: true, refuses_continuous: true, sends_usage: true }).await;
    assert_eq!(asked.len(), 6);
    assert!(asked[2..].iter().all(|asked| *asked == json!([false, {"include_usage": true}])), "{asked:?}");
    assert_eq!(results["counted_by"], json!({"usage": 4}));
    assert_eq!(results["output_tokens"], 44);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_count_events_are_counted_and_the_report_says_so() {
    let (results, _) = drive(Server { refuses_ids: false, refuses_continuous: false, sends_usage: false }).await;
    assert_eq!(results["counted_by"], json!({"events": 4}));
    assert_eq!((&results["output_tokens"], &results["tokens_per_event"]), (&json!(12), &json!(1.0)));
}
