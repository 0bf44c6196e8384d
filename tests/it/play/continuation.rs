//! Continuation after death: a prompt with the first tokens of a recorded answer gets the rest of it.

use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::oneshot};
use vllm_vcr::{
    play::{Config, Fleet, FleetScript, Player, Source, Synthetic, Unmatched},
    recording::trace::{FinishReason, Record},
    replay::matching::{MatchBy, MinMatch},
    text::parsers::{Formats, ReasoningFormat, ToolFormat},
    text::prompt::{BlockHashAlgorithm, BlockHasher, SkipSpecial, SpecialTokens},
};

use crate::support::{
    CHAT,
    client::{self, Answer, post},
    play_server::{Server, config, record, start, tokenizer},
    router::{Router, events},
    running::{Running, vcr},
    simulated::engine,
    tree,
};

const COMPLETIONS: &str = "/v1/completions";

const MS: Duration = Duration::from_millis(1);

fn ids(text: &str) -> Vec<u32> {
    tokenizer().encode(text, SpecialTokens::Skip).unwrap()
}

fn text(ids: &[u32]) -> String {
    tokenizer().decode(ids, SkipSpecial::Skip).unwrap()
}

fn joined(prompt: &[u32], more: &[u32]) -> Vec<u32> {
    [prompt, more].concat()
}

fn recorded(prompt: &[u32], answer: &[u32]) -> Record {
    let hashes = BlockHasher::new(BlockHashAlgorithm::Fnv1a64, 4).hash(prompt);
    Record {
        prompt_tokens: u32::try_from(prompt.len()).unwrap(),
        block_hashes: hashes.blocks.into(),
        prompt_hash: hashes.whole,
        ..record(answer, MS, FinishReason::Length)
    }
}

async fn serve(records: Vec<Record>) -> Server {
    start(config(&[MatchBy::Auto], records)).await
}

async fn ask(server: &Server, path: &str, body: Value) -> Answer {
    let answer = client::send(server.address, &post(path, &body)).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    answer
}

/// How a request was matched, and the text of its answer.
async fn asked(server: &Server, path: &str, body: Value) -> (String, String) {
    let answer = ask(server, path, body).await;
    let choice = answer.json()["choices"][0].clone();
    let text = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap();
    (answer.header("x-vcr-match").unwrap().to_owned(), text.to_owned())
}

/// An answer of single letters, which become other tokens when their text is tokenized.
fn spelled() -> Vec<u32> {
    let letters: Vec<u32> = "hello there, caf\u{e9}".chars().flat_map(|letter| ids(&letter.to_string())).collect();
    assert_ne!(ids(&text(&letters)), letters);
    letters
}

#[tokio::test]
async fn ids_go_on_from_each_token_with_counts_and_end_of_the_rest() {
    let (prompt, answer) = (ids("The quick brown fox jumps over"), spelled());
    let served = Config { scale_out: true, ..config(&[MatchBy::Auto], vec![recorded(&prompt, &answer)]) };
    let server = start(served).await;
    for k in 1..answer.len() {
        let sent = joined(&prompt, &answer[..k]);
        let body = json!({"model": "m", "prompt": sent, "max_tokens": answer.len() - k, "return_token_ids": true});
        let got = ask(&server, COMPLETIONS, body).await;
        assert!(got.header("x-vcr-match").unwrap().ends_with(&format!(";from={k}")), "{:?}", got.headers);
        let got = got.json();
        assert_eq!(got["choices"][0]["token_ids"], json!(answer[k..]), "{k}");
        assert_eq!(got["choices"][0]["finish_reason"], "length");
        let usage = [&got["usage"]["prompt_tokens"], &got["usage"]["completion_tokens"]];
        assert_eq!(usage, [sent.len(), answer.len() - k], "{k}");
        let shown = text(&answer[..k]) + got["choices"][0]["text"].as_str().unwrap();
        // What a character's first bytes were is only told with the last of them.
        assert!(shown.contains('\u{fffd}') || shown == text(&answer), "{k}: {shown}");
    }
    let short = json!({"model": "m", "prompt": joined(&prompt, &answer[..2]), "max_tokens": 3});
    assert_eq!(asked(&server, COMPLETIONS, short).await.1, text(&answer[2..5]));
    let generate = json!({"model": "m", "token_ids": joined(&prompt, &answer[..3]),
        "sampling_params": {"max_tokens": 100}});
    let got = ask(&server, "/inference/v1/generate", generate).await;
    assert_eq!(got.json()["choices"][0]["token_ids"], json!(answer[3..]));
    assert!(got.header("x-vcr-match").unwrap().ends_with(";from=3"));
}

#[tokio::test]
async fn a_text_is_compared_as_text_and_may_end_within_a_token() {
    let prompt = "Once upon a time,";
    let whole = " there was a lighthouse keeper in a caf\u{e9}.";
    for answer in [ids(whole), whole.chars().flat_map(|letter| ids(&letter.to_string())).collect()] {
        let server = serve(vec![recorded(&ids(prompt), &answer)]).await;
        let all = text(&answer);
        for cut in (2..all.len()).filter(|cut| all.is_char_boundary(*cut)) {
            let body = json!({"model": "m", "prompt": format!("{prompt}{}", &all[..cut]), "max_tokens": 90});
            let (by, rest) = asked(&server, COMPLETIONS, body).await;
            assert_eq!((by.contains(";from="), &all[..cut], rest.as_str()), (true, &all[..cut], &all[cut..]), "{by}");
        }
    }
}

#[tokio::test]
async fn a_chat_goes_on_from_its_last_message() {
    let messages = json!([{"role": "user", "content": "Tell me a story."}]);
    let probe = serve(vec![record(&[1], MS, FinishReason::Stop)]).await;
    let rendered = ask(&probe, "/tokenize", json!({"model": "m", "messages": messages})).await.json();
    let prompt: Vec<u32> = serde_json::from_value(rendered["tokens"].clone()).unwrap();
    let answer = ids("It was a dark and stormy night, and the wind said hello.");
    let server = serve(vec![recorded(&prompt, &answer)]).await;
    let all = text(&answer);
    for (k, stream) in (1..answer.len()).flat_map(|k| [(k, false), (k, true)]) {
        let said = text(&answer[..k]);
        let sent = json!([messages[0], {"role": "assistant", "content": said}]);
        let body = json!({"model": "m", "messages": sent, "continue_final_message": true, "stream": stream,
            "add_generation_prompt": false, "max_tokens": 100});
        let got = ask(&server, CHAT, body).await;
        assert!(got.header("x-vcr-match").unwrap().ends_with(&format!(";from={k}")), "{:?}", got.headers);
        let rest = if stream { streamed(&got).0 } else { content(&got.json()) };
        assert_eq!(said + &rest, all);
    }
}

/// Of what was parsed, the content was delivered: the rest of it follows, and the calls behind it.
#[tokio::test]
async fn an_answer_that_is_parsed_goes_on_whole_and_streamed() {
    let call = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"sea\"}}\n</tool_call>";
    let qwen3 = Formats { reasoning: Some(ReasoningFormat::Qwen3), tools: None };
    let hermes = Formats { reasoning: None, tools: Some(ToolFormat::Hermes) };
    let said = "It was a dark and stormy night, and the wind said hello.";
    for (parsers, answer, calls) in
        [(qwen3, format!("<think>\nHm.\n</think>\n\n{said}"), 0), (hermes, format!("{said}{call}"), 1)]
    {
        let mut body =
            json!({"model": "m", "max_tokens": 200, "messages": [{"role": "user", "content": "Tell me a story."}]});
        if calls > 0 {
            body["tools"] =
                json!([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]);
        }
        let probe = serve(vec![record(&[1], MS, FinishReason::Stop)]).await;
        let rendered = ask(&probe, "/tokenize", body.clone()).await.json();
        let prompt: Vec<u32> = serde_json::from_value(rendered["tokens"].clone()).unwrap();
        let records = vec![recorded(&prompt, &ids(&answer))];
        let server = start(Config { parsers, ..config(&[MatchBy::Auto], records) }).await;
        let whole = ask(&server, CHAT, body.clone()).await.json();
        let all = content(&whole);
        assert!(all.trim_start() == said, "{whole}");
        body["continue_final_message"] = true.into();
        body["add_generation_prompt"] = false.into();
        for (cut, stream) in [" dark", ", and", " hello"].iter().flat_map(|word| [(word, false), (word, true)]) {
            let delivered = &all[..all.find(cut).unwrap()];
            body["messages"] = json!([body["messages"][0], {"role": "assistant", "content": delivered}]);
            body["stream"] = stream.into();
            let got = ask(&server, CHAT, body.clone()).await;
            assert!(got.header("x-vcr-match").unwrap().contains(";from="), "{cut} {stream}: {:?}", got.headers);
            if stream {
                assert_eq!(delivered.to_owned() + &streamed(&got).0, all, "{cut}");
                continue;
            }
            let (rest, message) = (got.json(), &whole["choices"][0]["message"]);
            let rest = &rest["choices"][0];
            assert_eq!(delivered.to_owned() + rest["message"]["content"].as_str().unwrap(), all, "{cut}");
            assert!(rest["message"]["reasoning"].is_null(), "{rest}");
            let functions = |message: &Value| -> Vec<Value> {
                message["tool_calls"].as_array().into_iter().flatten().map(|call| call["function"].clone()).collect()
            };
            assert_eq!(functions(&rest["message"]), functions(message), "{rest}");
            assert_eq!(functions(message).len(), calls);
            assert_eq!(rest["finish_reason"], whole["choices"][0]["finish_reason"]);
        }
        // Whole answers are counted once each, those that were continued too.
        let page = client::send(server.address, &client::get("/metrics")).await.text();
        let counted = page.lines().filter(|line| {
            let is_whole = line.starts_with("vllm:tool_call_parser_invocations_total{mode=\"non_streaming\"");
            is_whole && line.contains("\"tool_call\"") && line.ends_with(" 4.0")
        });
        assert_eq!(counted.count(), calls);
    }
}

fn content(body: &Value) -> String {
    body["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

/// Text and ids of the events that came, and whether the stream came to its end.
fn streamed(answer: &Answer) -> (String, Vec<u32>, bool) {
    events(&answer.text())
}

#[tokio::test]
async fn what_is_no_continuation_is_matched_as_before() {
    let (prompt, answer) = (ids("The quick brown fox jumps over"), ids(" the lazy dog and then sleeps"));
    let longer = joined(&prompt, &answer[..2]);
    let server = serve(vec![
        recorded(&prompt, &answer),
        recorded(&longer, &ids(" an answer of its own")),
        recorded(&ids("Something else that is long"), &ids(" a third answer")),
    ])
    .await;
    let plain = |prompt: Vec<u32>| json!({"model": "m", "prompt": prompt, "max_tokens": 90});
    let with = |mut body: Value, more: Value| {
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let begun = joined(&prompt, &answer[..3]);
    for (body, why) in [
        (plain(longer.clone()), "it was recorded itself"),
        (plain(joined(&prompt, &answer)), "all was delivered"),
        (plain([&prompt[..], &answer, &ids(" What next?")].concat()), "a next turn"),
        (plain([&prompt[..], &ids(" a brown bear")].concat()), "another text"),
        (with(plain(begun.clone()), json!({"n": 2})), "two choices"),
        (with(plain(begun.clone()), json!({"structured_outputs": {"choice": ["a", "b"]}})), "a constraint"),
    ] {
        let (by, _) = asked(&server, COMPLETIONS, body).await;
        assert!(!by.contains("from="), "{why}: {by}");
    }
    assert_eq!(asked(&server, COMPLETIONS, plain(begun)).await.1, text(&answer[3..]));
}

#[tokio::test]
async fn it_is_the_same_record_and_not_the_next_of_its_prompt() {
    let prompt = ids("The quick brown fox jumps over");
    let answers = [" the lazy dog today", " the lazy cat today", " the lazy dog tomorrow"].map(ids);
    let server = serve(answers.iter().map(|answer| recorded(&prompt, answer)).collect()).await;
    let body = |prompt: &[u32]| json!({"model": "m", "prompt": prompt, "max_tokens": 90});
    assert_eq!(asked(&server, COMPLETIONS, body(&prompt)).await.1, text(&answers[0]));
    let begun = [&prompt[..], &answers[0][..2]].concat();
    assert_eq!(asked(&server, COMPLETIONS, body(&begun)).await.1, text(&answers[0][2..]));
    assert_eq!(asked(&server, COMPLETIONS, body(&prompt)).await.1, text(&answers[1]), "the next is still there");
    let named = body(&begun);
    let mut named = post(COMPLETIONS, &named);
    named.headers.push(("x-request-id", "replay-2"));
    let answer = client::send(server.address, &named).await;
    assert_eq!(answer.json()["choices"][0]["text"], text(&answers[2][2..]), "{}", answer.text());
    assert_eq!(answer.header("x-vcr-match"), Some("index;from=2"));
}

#[tokio::test]
async fn held_back_text_and_log_probabilities_are_those_of_the_whole_answer() {
    let (prompt, answer) = (ids("The quick brown fox jumps over"), ids(" the lazy dog and then it sleeps all day"));
    let server = serve(vec![recorded(&prompt, &answer)]).await;
    let body = |sent: &[u32]| {
        json!({"model": "m", "prompt": sent, "max_tokens": 90, "stop": ["never that"], "logprobs": 1,
        "stream": true, "return_token_ids": true})
    };
    let whole = ask(&server, COMPLETIONS, body(&prompt)).await;
    let events: Vec<Value> = whole.events().iter().filter_map(|event| serde_json::from_str(&event[6..]).ok()).collect();
    let values = |events: &[Value]| -> Vec<Value> {
        events
            .iter()
            .flat_map(|event| event["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap().clone())
            .collect()
    };
    for k in 1..answer.len() {
        let said: String = events[..k].iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
        let got = ask(&server, COMPLETIONS, body(&joined(&prompt, &answer[..k]))).await;
        let rest: Vec<Value> = got.events().iter().filter_map(|event| serde_json::from_str(&event[6..]).ok()).collect();
        assert_eq!(said + &streamed(&got).0, text(&answer), "{k}");
        assert_eq!(values(&rest), values(&events)[k..], "{k}");
    }
}

/// Answers of 200 tokens to prompts of their own.
fn long_records() -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    let words = tokenizer().ordinary_ids().to_vec();
    let drawn = |seed: usize, at: usize| words[(seed * 7919 + at * 104_729 + at * at * seed) % words.len()];
    let list = |count: usize, salt: usize| -> Vec<Vec<u32>> {
        (0..64).map(|seed| (0..count).map(|at| drawn(seed + salt, at)).collect()).collect()
    };
    (list(37, 1), list(200, 1000))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_dies_under_64_streams_leaves_each_client_its_whole_answer() {
    let (prompts, answers) = long_records();
    let records = prompts.iter().zip(&answers).map(|(prompt, answer)| recorded(prompt, answer)).collect();
    let (engine, drain, max_model_len) = (Some(engine(20 * MS)), Duration::ZERO, Some(1024));
    let served = Config { engine, drain, max_model_len, ..config(&[MatchBy::Auto], records) };
    let script = FleetScript::parse("- {at: 2500ms, replica: 1, do: die}\n", 2).unwrap();
    let fleet = Fleet::new(Player::load(served).unwrap(), 2, script).unwrap();
    let (mut listeners, mut backends) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        backends.push(listener.local_addr().unwrap());
        listeners.push(listener.into());
    }
    let (_stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(async move { fleet.serve(listeners, async { drop(stopped.await) }).await });
    let router = Router { backends, drops_after: usize::MAX, continues: true, broken: AtomicUsize::new(0) };
    let (address, router) = router.start().await;
    let streams = prompts.iter().map(|prompt| {
        let body = json!({"model": "m", "prompt": prompt, "max_tokens": 200, "stream": true});
        tokio::spawn(async move { client::send(address, &post(COMPLETIONS, &body)).await })
    });
    let streams: Vec<_> = streams.collect();
    for (stream, answer) in streams.into_iter().zip(&answers) {
        let (said, ids, is_whole) = streamed(&stream.await.unwrap());
        assert!(is_whole && ids == *answer, "{} tokens", ids.len());
        assert_eq!(said, whole_text(answer));
    }
    assert!(router.broken.load(SeqCst) > 0, "no stream was broken");
}

/// The text of an answer as a stream has it: an incomplete character at the end is never shown.
fn whole_text(answer: &[u32]) -> String {
    let mut detokenizer = tokenizer().detokenizer(&[1], SkipSpecial::Skip);
    answer.iter().map(|id| detokenizer.push(*id).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_client_names_the_first_difference_where_a_router_does_not_continue() {
    let trace = tree::root().join("traces/builtin.jsonl.gz");
    let server = Running::start(&["play", "--instant", "--port", "0", "--match", "auto"]);
    for (continues, part) in [(true, "check      0 of "), (false, "token 5")] {
        let router = Router { backends: vec![server.address], drops_after: 5, continues, broken: AtomicUsize::new(0) };
        let (address, router) = router.start().await;
        let (trace, target) = (trace.to_str().unwrap().to_owned(), format!("http://{address}"));
        let run = move || vcr(&["replay", &trace, "--target", &target, "--arrivals", "burst", "--check"]);
        let output = tokio::task::spawn_blocking(run).await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(part), "{said}");
        assert!(router.broken.load(SeqCst) > 0);
    }
}

#[tokio::test]
async fn made_up_answers_go_on_where_they_are_recognised() {
    let made_up =
        || start(Config { source: Source::Synthetic(Synthetic::Random), ..config(&[MatchBy::Next], Vec::new()) });
    let (server, other) = (made_up().await, made_up().await);
    let prompt = ids("Tell me about the history of tea");
    for more in [json!({"temperature": 0}), json!({"seed": 7}), json!({})] {
        let body = |prompt: &[u32], max_tokens: usize| {
            let mut body = json!({"model": "m", "prompt": prompt, "max_tokens": max_tokens, "return_token_ids": true});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let whole = ask(&server, COMPLETIONS, body(&prompt, 40)).await.json();
        let answer: Vec<u32> = serde_json::from_value(whole["choices"][0]["token_ids"].clone()).unwrap();
        for k in [4, 5, 20, 39] {
            let got = ask(&other, COMPLETIONS, body(&joined(&prompt, &answer[..k]), 40 - k)).await;
            assert_eq!(got.header("x-vcr-match"), Some(&*format!("random;from={k}")), "{more}");
            assert_eq!(got.json()["choices"][0]["token_ids"], json!(answer[k..]));
            assert_eq!(got.json()["choices"][0]["text"], text(&answer)[text(&answer[..k]).len()..]);
        }
        let changed = joined(&joined(&prompt, &answer[..9]), &answer[..1]);
        assert_eq!(asked(&other, COMPLETIONS, body(&changed, 4)).await.0, "random");
    }
    let messages = json!([{"role": "user", "content": "Tell me a story."}]);
    let body = json!({"model": "m", "messages": messages, "max_tokens": 12, "temperature": 0});
    let whole = content(&ask(&server, CHAT, body).await.json());
    let answer = ids(&whole);
    for k in 1..12 {
        let said = text(&answer[..k]);
        let sent = json!([messages[0], {"role": "assistant", "content": said}]);
        let body = json!({"model": "m", "messages": sent, "continue_final_message": true, "temperature": 0,
            "add_generation_prompt": false, "max_tokens": 12 - k});
        let got = ask(&other, CHAT, body).await;
        assert_eq!(
            (got.header("x-vcr-match"), said + &content(&got.json())),
            (Some(&*format!("random;from={k}")), whole.clone())
        );
    }
}

#[tokio::test]
async fn a_miss_names_where_what_was_delivered_and_the_record_part() {
    let (prompt, answer) = (ids("The quick brown fox jumps over"), ids(" the lazy dog and then sleeps"));
    let served = config(&[MatchBy::Auto], vec![recorded(&prompt, &answer)]);
    let server = start(Config { min_match: MinMatch::Whole, unmatched: Unmatched::Refuse, ..served }).await;
    let sent = joined(&prompt, &ids(" the lazy dog and thus"));
    let body = json!({"model": "m", "prompt": sent, "max_tokens": 9});
    let answer = client::send(server.address, &post(COMPLETIONS, &body)).await;
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    let line = "It almost continues the answer of record 0: the first 20 characters are the same, then it differs: 'us', \
                recorded 'en sleeps'";
    assert!(message.contains(line), "{message}");
}
