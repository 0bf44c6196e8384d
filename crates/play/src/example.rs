//! A request to try, which the greeting shows.

use serde_json::{Value, json};

use crate::{ServerState, Source};
use replay::matching::MatchBy;

/// A prompt of the built-in trace.
const BUILT_IN: &str = "Explain in two or three sentences why the sky is blue.";

/// A request that people can try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExampleRequest {
    /// Where it goes.
    pub path: String,
    /// The request id that names its record, where its prompt does not.
    pub request_id: Option<String>,
    /// Its body.
    pub body: Value,
}

impl ExampleRequest {
    /// A request that was recorded; else one that names a record by its number; any where tokens are made up.
    pub(crate) fn of(state: &ServerState) -> Option<Self> {
        if let Some(cassette_player) = &state.config.cassette_player {
            return cassette_player.example().map(|(path, body)| Self { path, request_id: None, body });
        }
        let Some(replay) = &state.replay else { return Some(chat("What is the capital of France?")) };
        let ways = &replay.matcher.rules().order;
        let by_prompt = ways.iter().any(|way| matches!(way, MatchBy::Auto | MatchBy::Prefix));
        let recorded = || {
            let example = replay.records.example.clone()?;
            Some(Self { path: example.path.to_owned(), request_id: None, body: example.body })
        };
        let is_named = ways.iter().any(|way| matches!(way, MatchBy::Auto | MatchBy::Index));
        let by_number = || {
            let record = replay.matcher.servable().first()?;
            let (path, body) = ("/v1/completions", json!({"prompt": "any prompt gets this record", "stream": true}));
            is_named.then(|| Self { path: path.to_owned(), request_id: Some(format!("replay-{record}")), body })
        };
        let response_by_number = || {
            let record = replay.recordings.first()?;
            let path = replay.records.get(record)?.path()?.to_owned();
            is_named.then(|| Self { path, request_id: Some(format!("replay-{record}")), body: json!({}) })
        };
        let by_number = || by_number().or_else(response_by_number);
        match state.config.source {
            Source::BuiltIn if by_prompt => Some(chat(BUILT_IN)),
            _ if by_prompt => recorded().or_else(by_number),
            _ => by_number(),
        }
    }
}

fn chat(content: &str) -> ExampleRequest {
    let body = json!({"messages": [{"role": "user", "content": content}], "stream": true});
    ExampleRequest { path: "/v1/chat/completions".to_owned(), request_id: None, body }
}
