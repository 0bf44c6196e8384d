//! Answers of a real engine: its streams, accumulated and encoded again.

use serde_json::Value;
use vllm_vcr::api::{
    Endpoint,
    answers::{Answer, Cut},
};

use crate::support::goldens::suite;

/// Suites with streams.
const SUITES: [&str; 8] = ["plain", "options", "logprobs", "tools", "turns", "parsers", "spec", "tails"];

/// The data of a golden's events.
fn data(golden: &Value) -> Vec<Value> {
    let events = golden["events"].as_array().into_iter().flatten();
    let lines = events.filter_map(|event| event["raw"].as_str()?.lines().find_map(|line| line.strip_prefix("data: ")));
    lines.filter_map(|data| serde_json::from_str(data).ok()).collect()
}

fn endpoint(golden: &Value) -> Endpoint {
    Endpoint::of_path(golden["request"]["path"].as_str().unwrap_or_default())
}

#[test]
fn streams_of_an_engine_are_encoded_again() {
    let mut seen = std::collections::HashMap::<Endpoint, usize>::new();
    for (name, golden) in SUITES.into_iter().flat_map(suite) {
        let endpoint = endpoint(&golden);
        let Some(answer) = Answer::accumulate(endpoint, &data(&golden)) else { continue };
        *seen.entry(endpoint).or_default() += 1;
        let events = answer.events(&Cut { usage: answer.fields().contains_key("usage"), ..Cut::default() });
        let again: Vec<Value> = events.iter().filter_map(|event| serde_json::from_str(&event.data).ok()).collect();
        assert_eq!(Answer::accumulate(endpoint, &again).as_ref(), Some(&answer), "{name}");
        let text = answer.clone().into_body().to_string();
        assert_eq!(Answer::read(endpoint, serde_json::from_str(&text).unwrap()).as_ref(), Some(&answer), "{name}");
    }
    for endpoint in [Endpoint::Chat, Endpoint::Completions, Endpoint::Messages, Endpoint::Responses] {
        assert!(seen.get(&endpoint).is_some_and(|count| *count > 2), "{endpoint:?}: {seen:?}");
    }
}
