//! Log probabilities from an engine's answer through a trace into a replay, digit for digit.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use vllm_vcr::{
    play::{Config, Player, Source, TokenizerSource},
    recording::trace::{Record, Trace},
    replay::matching::MatchBy,
    text::prompt::Tokenizer,
};

use crate::support::{
    client,
    peer::{End, Script, Upstream, answer, event_stream, exchange, post},
    play_server::start,
    tapping::Tapping,
    tokenizers, tree,
};

/// An exchange with vLLM, of `tests/goldens/vllm-0.32.0/logprobs.jsonl`.
#[derive(Debug, Deserialize)]
struct Golden {
    case: String,
    request: Request,
    events: Option<Vec<(f64, String)>>,
    body: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Request {
    path: String,
    body: Value,
}

impl Golden {
    /// Events, or the whole answer as one.
    fn payloads(&self) -> Vec<String> {
        match &self.events {
            Some(events) => events.iter().map(|(_, event)| event.trim_start_matches("data: ").to_owned()).collect(),
            None => self.body.iter().cloned().collect(),
        }
    }
}

fn goldens() -> Vec<Golden> {
    let text = tree::read("tests/goldens/vllm-0.32.0/logprobs.jsonl");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What an answer tells of log probabilities, character by character: for each choice, and of the prompt.
fn told(payloads: &[String]) -> BTreeMap<String, Vec<String>> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(default, borrow)]
        choices: Vec<Choice<'a>>,
        #[serde(default, borrow)]
        prompt_logprobs: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Choice<'a> {
        index: u32,
        #[serde(default, borrow)]
        logprobs: Option<&'a RawValue>,
        #[serde(default, borrow)]
        prompt_logprobs: Option<&'a RawValue>,
    }
    let mut told: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut put = |what: String, value: Option<&RawValue>| {
        if let Some(value) = value.filter(|value| value.get() != "null") {
            told.entry(what).or_default().push(value.get().to_owned());
        }
    };
    for payload in payloads.iter().filter(|payload| *payload != "[DONE]") {
        let answer: Answer<'_> = serde_json::from_str(payload).unwrap();
        put("prompt".to_owned(), answer.prompt_logprobs);
        for choice in answer.choices {
            put(format!("choice {}", choice.index), choice.logprobs);
            put(format!("prompt of choice {}", choice.index), choice.prompt_logprobs);
        }
    }
    told
}

/// A tap that records log probabilities before an engine that says this to everything.
async fn tapped(path: &str, body: &Value, payloads: &[String], streams: bool) -> (String, Vec<Record>) {
    let said = payloads.to_vec();
    let upstream = Upstream::start(move |request| {
        let pieces = match request.starts_with(b"GET ") {
            true => answer("200 OK", r#"{"version":"0.32.0"}"#),
            false if streams => event_stream(&said.iter().map(String::as_str).collect::<Vec<_>>()),
            false => answer("200 OK", &said[0]),
        };
        Script { pieces, end: End::KeepAlive }
    })
    .await;
    let tap = Tapping::start(upstream.address, |setup| setup.content.logprobs = true).await;
    let got = exchange(tap.address, &post(path, &body.to_string())).await.body();
    let (_, traces) = tap.stop().await;
    (got, traces.into_iter().flat_map(|trace| trace.records).collect())
}

fn played(records: &[Record], tokenizer: &Tokenizer) -> Config {
    let mut trace = Trace { records: records.to_vec(), ..Trace::default() };
    trace.meta.block_size = Some(2);
    trace.meta.block_hash = Some(vllm_vcr::text::prompt::BlockHashAlgorithm::Xxh3_64);
    let config = crate::support::play_server::config(&[MatchBy::Prefix], Vec::new());
    Config {
        source: Source::Trace { name: "what was tapped".to_owned(), trace: trace.into() },
        tokenizer: TokenizerSource::Loaded(tokenizer.clone()),
        served_model_names: vec!["tiny-qwen3".to_owned()],
        ..config
    }
}

async fn replayed(records: &[Record], tokenizer: &Tokenizer, path: &str, body: &Value) -> Vec<String> {
    let server = start(played(records, tokenizer)).await;
    let answer = client::send(server.address, &client::post(path, body)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    match body["stream"] == true {
        true => answer.events().iter().map(|event| event.trim_start_matches("data: ").to_owned()).collect(),
        false => vec![answer.text()],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engines_log_probabilities_are_replayed_digit_for_digit() {
    let Some(tokenizer) = tokenizers::qwen3() else { return };
    let mut differences = Vec::new();
    for golden in goldens() {
        let (path, body, payloads) = (&golden.request.path, &golden.request.body, golden.payloads());
        let (_, records) = tapped(path, body, &payloads, golden.events.is_some()).await;
        let again = replayed(&records, &tokenizer, path, body).await;
        let (expected, got) = (told(&payloads), told(&again));
        assert!(!expected.is_empty(), "{}", golden.case);
        if expected != got {
            differences.push(format!("{}:\n  {expected:?}\n  {got:?}", golden.case));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

fn golden(case: &str) -> Golden {
    goldens().into_iter().find(|golden| golden.case == case).unwrap()
}

#[tokio::test]
async fn a_request_for_fewer_gets_the_first_of_them_and_one_for_more_gets_others() {
    let Some(tokenizer) = tokenizers::qwen3() else { return };
    let Golden { request: Request { path, mut body }, events, body: whole, .. } = golden("chat_5_full");
    let payloads: Vec<String> = whole.into_iter().collect();
    let (_, records) = tapped(&path, &body, &payloads, events.is_some()).await;
    let content = |payload: &str| -> Vec<Value> {
        let answer: Value = serde_json::from_str(payload).unwrap();
        answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone()
    };
    let mut expected = content(&payloads[0]);
    for top in [2_usize, 0] {
        body["top_logprobs"] = top.into();
        expected.iter_mut().for_each(|place| place["top_logprobs"].as_array_mut().unwrap().truncate(top));
        let got = content(&replayed(&records, &tokenizer, &path, &body).await[0]);
        assert_eq!(got, expected, "{top}");
    }
    body["top_logprobs"] = 6.into();
    let got = content(&replayed(&records, &tokenizer, &path, &body).await[0]);
    assert!(got.iter().zip(&expected).all(|(got, told)| got["token"] == told["token"]), "{got:?}");
    assert!(got.iter().all(|place| place["logprob"].as_f64() > Some(-11.0)), "made up: {got:?}");
    body["top_logprobs"] = 1.into();
    body["return_tokens_as_token_ids"] = true.into();
    let got = content(&replayed(&records, &tokenizer, &path, &body).await[0]);
    let ids: Vec<Value> =
        records[0].output_token_ids.iter().flatten().map(|id| json!(format!("token_id:{id}"))).collect();
    assert_eq!(got.iter().map(|place| place["token"].clone()).collect::<Vec<_>>(), ids);
    assert_eq!(
        got.iter().map(|place| place["logprob"].clone()).collect::<Vec<_>>(),
        expected.iter().map(|place| place["logprob"].clone()).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn they_are_recorded_only_on_demand_and_pass_unchanged() {
    let Golden { request: Request { path, body }, body: whole, .. } = golden("comp_5_full");
    let payloads: Vec<String> = whole.into_iter().collect();
    let (got, records) = tapped(&path, &body, &payloads, false).await;
    assert_eq!(got, payloads[0]);
    assert_eq!(records[0].logprobs.as_ref().map(|told| (told.top, told.tokens.len())), Some((5, 6)));
    let upstream =
        Upstream::start(move |_| Script { pieces: answer("200 OK", &payloads[0]), end: End::KeepAlive }).await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    exchange(tap.address, &post(&path, &body.to_string())).await;
    let (_, records) = tap.records().await;
    assert_eq!((&records[0].logprobs, records[0].extra.len()), (&None, 0));
}

#[tokio::test]
async fn a_secret_in_pieces_takes_the_log_probabilities_with_it() {
    let place = |token: &str| json!({"token": token, "logprob": -0.5, "bytes": token.as_bytes(), "top_logprobs": []});
    let pieces = ["my key is sk-pro", "j-AbCdEfGhIjKl", "MnOpQrSt, bye"];
    let told = json!({"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": pieces.concat()},
        "logprobs": {"content": pieces.map(place)}, "finish_reason": "stop", "token_ids": [5, 6, 7]}],
        "prompt_token_ids": [1, 2, 3], "usage": {"prompt_tokens": 3, "completion_tokens": 3}});
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "logprobs": true});
    let (got, records) = tapped("/v1/chat/completions", &body, &[told.to_string()], false).await;
    assert!(got.contains("MnOpQrSt"));
    assert_eq!((&records[0].logprobs, &records[0].output_token_ids), (&None, &None));
}

/// Numbers that this engine never returned, but others do.
#[tokio::test]
async fn small_numbers_keep_their_digits() {
    let Some(tokenizer) = tokenizers::qwen3() else { return };
    let ids = [785_u32, 3974, 13876];
    let numbers = ["-4.2e-05", "-1.1920928955078125e-07", "-0.0"];
    let place = |number: &str| format!(r#"{{"token":"a","logprob":{number},"bytes":[97],"top_logprobs":[]}}"#);
    let content = numbers.map(place).join(",");
    let told = format!(
        r#"{{"id":"x","choices":[{{"index":0,"message":{{"role":"assistant","content":"a"}},"logprobs":{{"content":[{content}]}},"finish_reason":"length","token_ids":{}}}],"prompt_token_ids":[1,2,3],"usage":{{"prompt_tokens":3,"completion_tokens":3}}}}"#,
        json!(ids)
    );
    let body = json!({"model": "tiny-qwen3", "messages": [{"role": "user", "content": "hi"}], "logprobs": true, "max_tokens": 3});
    let (_, mut records) = tapped("/v1/chat/completions", &body, &[told], false).await;
    // Whatever the prompt was.
    records[0].block_hashes = Vec::new().into();
    let config = Config { order: vec![MatchBy::Next], ..played(&records, &tokenizer) };
    let server = start(config).await;
    for (streams, expected) in [(false, numbers), (true, ["-0.000042", "-1.1920928955078125e-7", "-0.0"])] {
        let mut body = body.clone();
        body["stream"] = streams.into();
        let answer = client::send(server.address, &client::post("/v1/chat/completions", &body)).await;
        for number in expected {
            assert!(answer.text().contains(&format!(r#""logprob":{number},"#)), "{number}: {}", answer.text());
        }
    }
}

#[tokio::test]
async fn a_prompt_is_scored_as_it_was_recorded_whatever_this_server_would_make_of_it() {
    let tokenizer = Player::builtin_tokenizer().unwrap();
    // The engine's template and tokenizer are others: of this prompt it has two tokens.
    let scores = r#"[null,{"7":{"logprob":-4.2e-05,"rank":1,"decoded_token":"hi"},"8":{"logprob":-9.5,"rank":2,"decoded_token":"ho"}}]"#;
    let said = format!(
        r#"{{"id":"x","object":"chat.completion","created":1,"model":"tiny-qwen3","choices":[{{"index":0,"message":{{"role":"assistant","content":"a"}},"logprobs":null,"finish_reason":"stop","token_ids":[785]}}],"usage":{{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1}},"prompt_logprobs":{scores},"prompt_token_ids":[1,7]}}"#
    );
    let body = json!({"model": "tiny-qwen3", "messages": [{"role": "user", "content": "hi"}], "prompt_logprobs": 1, "max_tokens": 1});
    let (_, records) = tapped("/v1/chat/completions", &body, &[said], false).await;
    assert!(records[0].response.is_some() && records[0].output_token_ids.is_none(), "{records:?}");
    let again = replayed(&records, &tokenizer, "/v1/chat/completions", &body).await;
    assert_eq!(told(&again)["prompt"], [scores]);
}
