//! Engines that are not a new vLLM: what is recorded where ids, usage or OpenAI's shape are missing.

use serde_json::json;
use vllm_vcr::recording::trace::{Endpoint, FinishReason, Outcome};

use crate::support::{
    CHAT,
    peer::{End, Script, Upstream, answer, event_stream, exchange, post},
    tapping::Tapping,
};

/// Events with a name, as Anthropic and OpenAI's responses send them.
fn named_stream(events: &[(&str, &str)]) -> Vec<Vec<u8>> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = |(name, data): &(&str, &str)| {
        let event = format!("event: {name}\ndata: {data}\n\n");
        format!("{:x}\r\n{event}\r\n", event.len()).into_bytes()
    };
    std::iter::once(head.as_bytes().to_vec()).chain(events.iter().map(chunk)).chain([b"0\r\n\r\n".to_vec()]).collect()
}

async fn streaming(pieces: Vec<Vec<u8>>) -> Upstream {
    Upstream::start(move |request| {
        if request.starts_with(b"GET ") {
            return Script { pieces: answer("404 Not Found", "{}"), end: End::KeepAlive };
        }
        Script { pieces: pieces.clone(), end: End::KeepAlive }
    })
    .await
}

#[tokio::test]
async fn messages_are_recorded_with_their_tokens_and_times() {
    let upstream = streaming(named_stream(&[
        ("message_start", r#"{"type":"message_start","message":{"id":"msg_1","type":"message","usage":{"input_tokens":12,"cache_read_input_tokens":8,"output_tokens":1}}}"#),
        ("content_block_start", r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#),
        ("ping", r#"{"type":"ping"}"#),
        ("content_block_delta", r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}"#),
        ("content_block_delta", r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" there"}}"#),
        ("content_block_stop", r#"{"type":"content_block_stop","index":0}"#),
        ("message_delta", r#"{"type":"message_delta","delta":{"stop_reason":"max_tokens","stop_sequence":null},"usage":{"output_tokens":5}}"#),
        ("message_stop", r#"{"type":"message_stop"}"#),
    ]))
    .await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    let body = r#"{"model":"claude","max_tokens":5,"stream":true,"messages":[]}"#;
    let direct = exchange(upstream.address, &post("/v1/messages", body)).await;
    assert_eq!(exchange(tap.address, &post("/v1/messages", body)).await.pieces, direct.pieces);
    // It is sent as it came.
    assert!(upstream.bodies().iter().all(|sent| sent == body));
    let (_, records) = tap.records().await;
    let record = &records[0];
    assert_eq!((record.endpoint, record.outcome), (Some(Endpoint::Messages), Some(Outcome::Finished)));
    assert_eq!((record.prompt_tokens, record.cached_tokens, record.output_tokens), (20, Some(8), 5));
    assert_eq!((record.chunks.len(), record.finish_reason), (2, Some(FinishReason::Length)));
    assert_eq!((record.model.as_deref(), record.request_id.as_deref()), (Some("claude"), Some("msg_1")));
}

#[tokio::test]
async fn a_message_that_ends_short_of_its_end_is_no_finished_one() {
    let upstream = streaming(named_stream(&[
        ("message_start", r#"{"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":1}}}"#),
        ("content_block_delta", r#"{"type":"content_block_delta","delta":{"text":"Hello"}}"#),
    ]))
    .await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    exchange(tap.address, &post("/v1/messages", r#"{"stream":true}"#)).await;
    let (_, records) = tap.records().await;
    assert_eq!((records[0].outcome, records[0].output_tokens), (Some(Outcome::UpstreamFailed), 1));
}

#[tokio::test]
async fn responses_are_recorded_streamed_or_not() {
    let streamed = named_stream(&[
        ("response.created", r#"{"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}"#),
        ("response.output_text.delta", r#"{"type":"response.output_text.delta","delta":"Hi"}"#),
        ("response.output_text.done", r#"{"type":"response.output_text.done","text":"Hi"}"#),
        (
            "response.completed",
            r#"{"type":"response.completed","response":{"id":"resp_1","status":"completed","usage":{"input_tokens":3,"output_tokens":2,"input_tokens_details":{"cached_tokens":1}}}}"#,
        ),
    ]);
    let whole = r#"{"id":"resp_2","object":"response","status":"completed","output":[{"type":"message"}],"usage":{"input_tokens":4,"output_tokens":6}}"#;
    let upstream = Upstream::start(move |request| {
        let is_streamed = String::from_utf8_lossy(request).contains("\"stream\":true");
        Script { pieces: if is_streamed { streamed.clone() } else { answer("200 OK", whole) }, end: End::KeepAlive }
    })
    .await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    exchange(tap.address, &post("/v1/responses", r#"{"stream":true}"#)).await;
    assert_eq!(exchange(tap.address, &post("/v1/responses", "{}")).await.body(), whole);
    let (_, records) = tap.records().await;
    let told: Vec<_> = records
        .iter()
        .map(|record| {
            (record.endpoint, record.outcome, record.prompt_tokens, record.output_tokens, record.cached_tokens)
        })
        .collect();
    let finished = Some(Outcome::Finished);
    assert_eq!(
        told,
        [(Some(Endpoint::Responses), finished, 3, 2, Some(1)), (Some(Endpoint::Responses), finished, 4, 6, None)]
    );
}

#[tokio::test]
async fn engines_own_endpoints_are_recorded_as_far_as_they_tell() {
    let tgi = event_stream(&[
        r#"{"index":1,"token":{"id":42,"text":" a","special":false},"generated_text":null,"details":null}"#,
        r#"{"index":2,"token":{"id":2,"text":"</s>","special":true},"generated_text":" a","details":{"finish_reason":"eos_token","generated_tokens":2,"input_length":5}}"#,
    ]);
    let llama = event_stream(&[
        r#"{"content":" a","stop":false,"tokens":[7]}"#,
        r#"{"content":" b","stop":false,"tokens":[8]}"#,
        r#"{"content":"","stop":true,"stop_type":"limit","tokens_predicted":2,"tokens_evaluated":3}"#,
    ]);
    let unknown = event_stream(&[r#"{"progress":1}"#, r#"{"progress":2}"#]);
    let upstream = Upstream::start(move |request| {
        let text = String::from_utf8_lossy(request);
        let pieces = match text.split(' ').nth(1).unwrap_or_default() {
            "/generate_stream" => tgi.clone(),
            "/completion" => llama.clone(),
            "/jobs" => unknown.clone(),
            "/v1/embeddings" => {
                answer("200 OK", r#"{"data":[{"embedding":[0.1]}],"usage":{"prompt_tokens":8,"total_tokens":8}}"#)
            }
            "/score" => answer("503 Service Unavailable", r#"{"detail":"busy"}"#),
            _ => answer("200 OK", "[1]"),
        };
        Script { pieces, end: End::KeepAlive }
    })
    .await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    for path in ["/generate_stream", "/completion", "/jobs", "/v1/embeddings", "/score", "/list"] {
        let direct = exchange(upstream.address, &post(path, r#"{"inputs":"x"}"#)).await;
        assert_eq!(exchange(tap.address, &post(path, r#"{"inputs":"x"}"#)).await.pieces, direct.pieces, "{path}");
    }
    let (_, records) = tap.records().await;
    let finished = Some(Outcome::Finished);
    let told: Vec<_> = records
        .iter()
        .map(|record| {
            let path = record.extra.get("path").and_then(|path| path.as_str()).unwrap_or("-");
            (path, record.outcome, record.status, record.prompt_tokens, record.output_tokens)
        })
        .collect();
    assert_eq!(
        told,
        [
            ("/generate_stream", finished, Some(200), 5, 2),
            ("/completion", finished, Some(200), 3, 2),
            ("/jobs", finished, Some(200), 0, 0),
            ("-", finished, Some(200), 8, 0),
            ("/score", Some(Outcome::Error), Some(503), 0, 0),
            ("/list", finished, Some(200), 0, 0),
        ]
    );
    assert_eq!(records[0].output_token_ids.as_deref(), Some(&[42, 2][..]));
    assert_eq!(records[1].output_token_ids.as_deref(), Some(&[7, 8][..]));
    assert_eq!((records[2].extra["stream_events"].as_u64(), records[2].stream), (Some(2), Some(true)));
}

#[tokio::test]
async fn tokens_in_and_out_and_invocations_are_recorded_with_their_ids() {
    let events = event_stream(&[
        r#"{"request_id":"generate-tokens-1","usage":null,"output_mode":"tokens","choices":[{"index":0,"finish_reason":null,"token_ids":[7,8]}]}"#,
        r#"{"request_id":"generate-tokens-1","usage":null,"output_mode":"tokens","choices":[{"index":0,"finish_reason":"length","token_ids":[9]}]}"#,
    ]);
    let whole = r#"{"id":"cmpl-1","choices":[{"index":0,"text":"a","finish_reason":"stop","prompt_token_ids":[4,5],"token_ids":[6]}],"usage":{"prompt_tokens":2,"completion_tokens":1}}"#;
    let upstream = Upstream::start(move |request| {
        let is_stream = request.starts_with(b"POST /inference/v1/generate ");
        Script { pieces: if is_stream { events.clone() } else { answer("200 OK", whole) }, end: End::KeepAlive }
    })
    .await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    let tokens = r#"{"token_ids":[1,2,3],"sampling_params":{"max_tokens":3},"stream":true}"#;
    let direct = exchange(upstream.address, &post("/inference/v1/generate", tokens)).await;
    assert_eq!(exchange(tap.address, &post("/inference/v1/generate", tokens)).await.pieces, direct.pieces);
    assert_eq!(upstream.bodies(), [tokens, tokens]);
    exchange(tap.address, &post("/invocations", r#"{"prompt":"x"}"#)).await;
    let (_, records) = tap.records().await;
    let told: Vec<_> = records
        .iter()
        .map(|record| (record.endpoint, record.prompt_tokens, record.prompt_hash.is_some(), &record.output_token_ids))
        .collect();
    let completion = Some(Endpoint::Completions);
    assert_eq!(told, [(completion, 3, true, &Some(vec![7, 8, 9])), (completion, 2, true, &Some(vec![6]))]);
    assert_eq!(records[0].extra["path"], "/inference/v1/generate");
    assert_eq!(records[0].request_id.as_deref(), Some("generate-tokens-1"));
    assert_eq!(records[1].extra["path"], "/invocations");
}

#[tokio::test]
async fn an_engine_that_names_no_ids_is_soon_asked_as_its_clients_ask() {
    let body = r#"{"id":"x","choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
    let upstream = Upstream::start(move |_| Script { pieces: answer("200 OK", body), end: End::KeepAlive }).await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    for _ in 0..5 {
        assert_eq!(exchange(tap.address, &post(CHAT, r#"{"model":"m"}"#)).await.body(), body);
    }
    let asked: Vec<bool> = upstream.bodies().iter().map(|body| body.contains("return_token_ids")).collect();
    assert_eq!(asked, [true, true, true, false, false]);
    let (_, records) = tap.records().await;
    assert!(records.iter().all(|record| record.output_tokens == 2 && record.outcome == Some(Outcome::Finished)));
}

#[tokio::test]
async fn nothing_is_asked_for_where_nothing_is_to_be() {
    let upstream = Upstream::start(|_| Script { pieces: answer("200 OK", "{}"), end: End::KeepAlive }).await;
    let tap = Tapping::start(upstream.address, |setup| setup.amends = false).await;
    exchange(tap.address, &post(CHAT, r#"{"stream":true}"#)).await;
    assert_eq!(upstream.bodies(), [r#"{"stream":true}"#]);
    tap.stop().await;
}

/// A chat's stream of two events with ids, and what the engine counts at its end.
fn counted(counts: &str) -> Vec<Vec<u8>> {
    event_stream(&[
        r#"{"id":"c","choices":[{"index":0,"delta":{"content":"a"},"token_ids":[5]}]}"#,
        r#"{"id":"c","choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop","token_ids":[9]}]}"#,
        &format!(r#"{{"id":"c","choices":[],"usage":{counts}}}"#),
        "[DONE]",
    ])
}

#[tokio::test]
async fn an_answer_whose_ids_and_counts_disagree_is_recorded_as_it_was() {
    let whole = r#"{"id":"c","choices":[{"index":0,"message":{"content":"ab"},"finish_reason":"stop","token_ids":[5,9]}],"usage":{"prompt_tokens":3,"completion_tokens":9}}"#;
    let upstream = Upstream::start(move |request| {
        let text = String::from_utf8_lossy(request);
        let pieces = match text.split_once("\r\n\r\n") {
            _ if text.starts_with("GET ") => answer("200 OK", r#"{"version":"0.32.0"}"#),
            Some((_, body)) if !body.contains("\"stream\":true") => answer("200 OK", whole),
            Some((_, body)) if body.contains("agree") => counted(r#"{"prompt_tokens":3,"completion_tokens":2}"#),
            _ => counted(r#"{"prompt_tokens":3,"completion_tokens":20}"#),
        };
        Script { pieces, end: End::KeepAlive }
    })
    .await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    let chat = |content: &str, stream: bool| {
        post(CHAT, &format!(r#"{{"messages":[{{"role":"user","content":"{content}"}}],"stream":{stream}}}"#))
    };
    for (content, stream) in [("agree", true), ("more", true), ("whole", false), ("agree", true)] {
        exchange(tap.address, &chat(content, stream)).await;
    }
    let (_, mut records) = tap.records().await;
    records.sort_by_key(|record| record.arrival);
    let kept: Vec<_> = records
        .iter()
        .map(|record| (record.output_token_ids.is_some(), record.response.is_some(), record.request_key.is_some()))
        .collect();
    assert_eq!(kept, [(true, false, false), (false, true, true), (false, true, true), (true, false, false)]);
}

#[tokio::test]
async fn log_probabilities_count_the_tokens_of_several_choices() {
    let scores = |tokens: &[&str]| {
        let numbers = vec!["-1.5"; tokens.len()].join(",");
        format!(r#"{{"tokens":{},"token_logprobs":[{numbers}],"text_offset":[],"top_logprobs":[]}}"#, json!(tokens))
    };
    let choice = |index: u32, told: &str, prompt: u32| {
        let prompt = vec!["null"; prompt as usize].join(",");
        format!(
            r#"{{"index":{index},"text":"x","finish_reason":"length","logprobs":{told},"prompt_logprobs":[{prompt}]}}"#
        )
    };
    let body = format!(
        r#"{{"id":"c","choices":[{},{}],"usage":{{"prompt_tokens":5,"completion_tokens":4}}}}"#,
        choice(0, &scores(&["p", "p", "p", "a"]), 3),
        choice(1, &scores(&["p", "p", "a", "b", "c"]), 2),
    );
    let upstream = streaming(answer("200 OK", &body)).await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    exchange(tap.address, &post("/v1/completions", r#"{"prompt":[[1,2,3],[7,8]],"echo":true,"logprobs":0}"#)).await;
    let (_, mut records) = tap.records().await;
    records.sort_by_key(|record| record.choice);
    let counts: Vec<_> = records.iter().map(|record| (record.prompt_tokens, record.output_tokens)).collect();
    assert_eq!(counts, [(3, 1), (2, 3)]);
}

/// Returns for each of five requests whether the engine may compress its response; `asks` is false for `--ask-nothing`.
async fn accepted_encodings(asks: bool, request: &[u8]) -> Vec<bool> {
    let upstream = Upstream::start(|_| Script {
        pieces: answer("200 OK", r#"{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}"#),
        end: End::KeepAlive,
    })
    .await;
    let tap = Tapping::start(upstream.address, |setup| setup.amends = asks).await;
    for _ in 0..5 {
        exchange(tap.address, request).await;
    }
    let requests = upstream.requests.lock().unwrap();
    let posted = requests.iter().filter(|request| request.starts_with(b"POST"));
    posted.map(|request| String::from_utf8_lossy(request).contains("accept-encoding: gzip")).collect()
}

#[tokio::test]
async fn what_is_recorded_is_not_compressed_by_engines_without_ids_either() {
    let with = |path: &str, headers: &str| {
        let request = String::from_utf8(post(path, "{\"messages\":[]}")).unwrap();
        request.replacen("host: test\r\n", &format!("host: test\r\naccept-encoding: gzip\r\n{headers}"), 1).into_bytes()
    };
    for path in [CHAT, "/v1/messages", "/v1/embeddings"] {
        assert_eq!(accepted_encodings(true, &with(path, "")).await, [false; 5], "{path}");
        assert_eq!(accepted_encodings(false, &with(path, "")).await, [true; 5], "{path}");
    }
    assert_eq!(accepted_encodings(true, &with(CHAT, "content-digest: sha-256=:x:\r\n")).await, [true; 5]);
}
