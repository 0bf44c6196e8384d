//! The streams that are known: hand-written scenarios, and recordings, as the events that `play` sends of them.
//!
//! Each source is asked once, by every endpoint that its records are for. What comes is kept as events, so that the server behind the
//! gateway sends the same bytes for each case.

use std::{path::Path, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{
    behind::{BehindServer, GroundTruthError},
    client::StreamClient,
    events::ReadEvents,
    marker::stream_marker,
};
use crate::{
    api::{
        DONE, Endpoint,
        answers::{Answer, ChoicePart},
    },
    net::upstream::{UpstreamOptions, UpstreamUrl},
    play::{Config, Source, Synthetic, TokenizerSource, Unmatched},
    recording::cassette::{
        AnswerContent, Cassette, CassetteRecord, RecordedAnswer, SseEvent, parse, template::is_template,
    },
    replay::{
        matching::MatchBy,
        player::{CassettePlayer, Ids, PlayerConfig},
        timing::Pacing,
    },
};

/// The scenarios: a cassette of hand-written records.
const SCENARIOS: &str = include_str!("scenarios.yaml");

/// The endpoints that generate text.
pub const ENDPOINTS: [Endpoint; 4] = [Endpoint::Chat, Endpoint::Completions, Endpoint::Messages, Endpoint::Responses];

/// Names of the scenarios, as their conditions have them, and which of these endpoints have them.
const SCENARIO_NAMES: [(&str, &[usize]); 5] = [
    ("text", &[0, 1, 2, 3]),
    ("tools", &[0, 2, 3]),
    ("reasoning", &[0, 2, 3]),
    ("length", &[0, 1, 2, 3]),
    ("logprobs", &[0, 1]),
];

/// Tokens that are requested of a recording: more would only take longer.
const MOST_TOKENS: u32 = 48;

/// Number of the stream whose answer repeats the prompt, so that each case has its own marker in what it gets.
pub(super) const ECHO: usize = 999;

/// Maximum number of records of a recording that are requested.
const MOST_RECORDS: usize = 16;

/// Records of the built-in trace that are requested.
const BUILT_IN_RECORDS: usize = 2;

/// Time without a byte after which a source counts as broken.
const SILENCE: Duration = Duration::from_secs(30);

/// A stream that is known.
#[derive(Debug, Clone)]
pub struct GroundStream {
    /// Its name.
    pub name: String,
    /// Its events by endpoint.
    pub by_endpoint: Vec<(Endpoint, Vec<SseEvent>)>,
    /// What it has beside text.
    pub extras: Extras,
}

/// Recordings that are streams beside the scenarios.
#[derive(Debug, Default)]
pub struct GroundSources {
    /// A trace and its tokenizer; `None` for the one in the binary.
    pub trace: Option<(Source, TokenizerSource)>,
    /// Cassettes.
    pub cassettes: Vec<Cassette>,
}

/// Reads all streams.
///
/// # Errors
/// When a source cannot be played, or has no stream.
pub async fn ground_truth(sources: GroundSources, model: &str) -> Result<Vec<GroundStream>, GroundTruthError> {
    let mut streams = scenarios(model).await?;
    let trace = sources.trace.unwrap_or((Source::BuiltIn, TokenizerSource::BuiltIn));
    if sources.cassettes.is_empty() || !matches!(trace.0, Source::BuiltIn) {
        streams.extend(of_trace(trace, model).await?);
    }
    if !sources.cassettes.is_empty() {
        streams.extend(of_cassettes(sources.cassettes, model).await?);
    }
    streams.truncate(ECHO);
    Ok(streams)
}

async fn scenarios(model: &str) -> Result<Vec<GroundStream>, GroundTruthError> {
    let cassette = parse(Path::new("scenarios.yaml"), SCENARIOS)?;
    let requested = AskedSource::start(at_once(vec![cassette], model)?, HeaderMap::new()).await?;
    let mut streams = Vec::new();
    for (name, on) in SCENARIO_NAMES {
        let prompt = format!("scenario-{name}");
        let is_on = |endpoint| on.iter().any(|place| ENDPOINTS.get(*place) == Some(&endpoint));
        let body = |endpoint| is_on(endpoint).then(|| request(endpoint, model, &prompt, &Extras::default()));
        streams.extend(requested.stream(name.to_owned(), &body).await);
    }
    Ok(streams)
}

async fn of_trace(
    (source, tokenizer): (Source, TokenizerSource),
    model: &str,
) -> Result<Vec<GroundStream>, GroundTruthError> {
    let (name, most) = match &source {
        Source::BuiltIn => ("built-in".to_owned(), BUILT_IN_RECORDS),
        Source::Files(files) => {
            (files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" "), MOST_RECORDS)
        }
        Source::Trace { name, .. } => (name.clone(), MOST_RECORDS),
        Source::Synthetic(_) => ("made up".to_owned(), 1),
    };
    let config = Config {
        source,
        tokenizer,
        order: vec![MatchBy::Index],
        unmatched: Unmatched::Refuse,
        served_model_names: vec![model.to_owned()],
        ..Config::default()
    };
    let mut requested = AskedSource::start(config, HeaderMap::new()).await?;
    let mut streams = Vec::new();
    for record in 0..most {
        if let Ok(id) = HeaderValue::from_str(&format!("replay-{record}")) {
            requested.headers.insert(HeaderName::from_static("x-request-id"), id);
        }
        let body = |endpoint| Some(request(endpoint, model, "recorded", &Extras::default()));
        streams.extend(requested.stream(format!("{name}#{record}"), &body).await);
    }
    if streams.is_empty() { Err(GroundTruthError::Empty(name)) } else { Ok(streams) }
}

async fn of_cassettes(cassettes: Vec<Cassette>, model: &str) -> Result<Vec<GroundStream>, GroundTruthError> {
    let name = cassettes.iter().map(|cassette| cassette.path.display().to_string()).collect::<Vec<_>>().join(" ");
    let mut requests: Vec<(String, Endpoint, Value)> = Vec::new();
    for cassette in &cassettes {
        let path = cassette.path.display();
        let recorded =
            cassette.records.iter().filter(|record| record.answer.status == 200 && record.answer.fault.is_none());
        requests.extend(recorded.filter_map(|record| {
            let endpoint = Endpoint::of_path(&record.path);
            let mut body = record.body.value();
            body.as_object_mut().filter(|_| endpoint.generates())?.extend(streamed(endpoint));
            Some((format!("{path}#{}", record.id), endpoint, body))
        }));
    }
    let requested = AskedSource::start(at_once(cassettes, model)?, HeaderMap::new()).await?;
    let mut streams = Vec::new();
    for (name, of, body) in requests.into_iter().take(MOST_RECORDS) {
        streams.extend(requested.stream(name, &|endpoint| (endpoint == of).then(|| body.clone())).await);
    }
    if streams.is_empty() { Err(GroundTruthError::Empty(name)) } else { Ok(streams) }
}

struct AskedSource {
    server: BehindServer,
    url: UpstreamUrl,
    headers: HeaderMap,
}

impl AskedSource {
    async fn start(config: Config, headers: HeaderMap) -> Result<Self, GroundTruthError> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let server = BehindServer::start(listener, config, |_| None)?;
        let url = format!("http://{}", server.address).parse()?;
        Ok(Self { server, url, headers })
    }

    /// The stream that answers these requests; `None` where no endpoint has one.
    async fn stream(&self, name: String, body: &dyn Fn(Endpoint) -> Option<Value>) -> Option<GroundStream> {
        debug_assert!(self.server.address.ip().is_loopback());
        let client = StreamClient::new(self.url.clone(), &UpstreamOptions::default(), self.headers.clone(), SILENCE);
        let mut stream = GroundStream { name, by_endpoint: Vec::new(), extras: Extras::default() };
        for endpoint in ENDPOINTS {
            let (Some(path), Some(body)) = (endpoint.path(), body(endpoint)) else { continue };
            let received = client.post(path, Bytes::from(body.to_string())).await;
            let read = ReadEvents::of(&received.body());
            let Some(answer) = Answer::accumulate(endpoint, &answer_events(&read.events)) else { continue };
            if received.status != 200 {
                continue;
            }
            for choice in answer.choices() {
                stream.extras.has_logprobs |= choice.logprobs.is_some();
                for part in &choice.parts {
                    if let ChoicePart::Call(call) = part
                        && !stream.extras.tools.iter().any(|tool| tool == call.name)
                    {
                        stream.extras.tools.push(call.name.to_owned());
                    }
                }
            }
            stream.by_endpoint.push((endpoint, read.events));
        }
        (!stream.by_endpoint.is_empty()).then_some(stream)
    }
}

/// The data of events that make up an answer, without the `[DONE]` after it.
#[must_use]
pub fn answer_events(events: &[SseEvent]) -> Vec<Value> {
    events.iter().filter(|event| event.data != DONE).map(|event| event.data.clone()).collect()
}

/// Outputs of a request beside text.
#[derive(Debug, Clone, Default)]
pub struct Extras {
    /// Names of tools.
    pub tools: Vec<String>,
    /// Log probabilities.
    pub has_logprobs: bool,
}

/// A request for a stream with usage, in the form of an endpoint.
#[must_use]
pub fn request(endpoint: Endpoint, model: &str, prompt: &str, extras: &Extras) -> Value {
    let message = json!([{"role": "user", "content": prompt}]);
    let most = if endpoint == Endpoint::Responses { "max_output_tokens" } else { "max_tokens" };
    let mut fields = vec![("model", model.into()), (most, MOST_TOKENS.into())];
    fields.push(match endpoint {
        Endpoint::Completions => ("prompt", prompt.into()),
        Endpoint::Responses => ("input", message),
        _ => ("messages", message),
    });
    let schema = json!({"type": "object", "properties": {}});
    let tool = |name: &String| match endpoint {
        Endpoint::Messages => json!({"name": name, "input_schema": schema}),
        Endpoint::Responses => json!({"type": "function", "name": name, "parameters": schema}),
        _ => json!({"type": "function", "function": {"name": name, "parameters": schema}}),
    };
    if !extras.tools.is_empty() && endpoint != Endpoint::Completions {
        fields.push(("tools", extras.tools.iter().map(tool).collect()));
    }
    match endpoint {
        Endpoint::Chat if extras.has_logprobs => {
            fields.extend([("logprobs", true.into()), ("top_logprobs", 1.into())]);
        }
        Endpoint::Completions if extras.has_logprobs => fields.push(("logprobs", 1.into())),
        _ => {}
    }
    let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value));
    Value::Object(fields.chain(streamed(endpoint)).collect())
}

/// The fields that ask for a stream with usage.
fn streamed(endpoint: Endpoint) -> serde_json::Map<String, Value> {
    let mut fields = serde_json::Map::from_iter([("stream".to_owned(), true.into())]);
    if endpoint.has_choices() {
        fields.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    fields
}

/// What the server behind the gateway serves: each stream to the requests whose prompt has its marker.
///
/// # Errors
/// When no player takes it.
pub fn served_config(streams: &[GroundStream], model: &str) -> Result<Config, GroundTruthError> {
    let mut records: Vec<CassetteRecord> = Vec::new();
    for (number, stream) in streams.iter().enumerate() {
        records.extend(stream.by_endpoint.iter().filter_map(|(endpoint, events)| {
            let literal =
                |event: &SseEvent| SseEvent { name: event.name.clone(), data: without_templates(&event.data) };
            let content = AnswerContent::Events(events.iter().map(literal).collect());
            Some(stream_record(number, endpoint.path()?.to_owned(), content))
        }));
    }
    let echo = "{{ last_user_message }} – ç ".repeat(12);
    let choice = json!({"index": 0, "message": {"role": "assistant", "content": echo}, "finish_reason": "stop"});
    let usage = Some(json!({"prompt_tokens": 5, "completion_tokens": 24, "total_tokens": 29}));
    let choices = choice.as_object().cloned().into_iter().collect();
    let mut echo = stream_record(ECHO, String::new(), AnswerContent::Choices { choices, usage });
    echo.method = String::new();
    records.push(echo);
    let mut cassette = Cassette::default();
    (cassette.path, cassette.records) = ("ground-truth.yaml".into(), records);
    at_once(vec![cassette], model)
}

/// The record that answers requests with the marker of a stream on this path.
#[must_use]
pub fn stream_record(stream: usize, path: String, content: AnswerContent) -> CassetteRecord {
    CassetteRecord {
        id: u64::try_from(stream).unwrap_or_default(),
        method: "POST".to_owned(),
        path,
        is_fixture: true,
        body: json!({"match": {"contains": stream_marker(stream)}}).into(),
        answer: RecordedAnswer { status: 200, content, ..RecordedAnswer::default() },
        ..CassetteRecord::default()
    }
}

/// A value whose texts are served as they are.
#[must_use]
pub fn without_templates(value: &Value) -> Value {
    match value {
        Value::String(text) if is_template(text) => format!("{{% raw %}}{text}{{% endraw %}}").into(),
        Value::Array(items) => items.iter().map(without_templates).collect(),
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), without_templates(value))).collect(),
        other => other.clone(),
    }
}

fn at_once(cassettes: Vec<Cassette>, model: &str) -> Result<Config, GroundTruthError> {
    cassette_config(PlayerConfig { cassettes, pacing: Pacing::Instant, ..PlayerConfig::default() }, model)
}

/// What plays to a model's clients, with the ids that records have.
///
/// # Errors
/// When no player takes the cassettes.
pub fn cassette_config(player: PlayerConfig, model: &str) -> Result<Config, GroundTruthError> {
    let player = PlayerConfig { ids: Ids::Recorded, ..player };
    Ok(Config {
        source: Source::Synthetic(Synthetic::Random),
        unmatched: Unmatched::Refuse,
        cassette_player: Some(CassettePlayer::new(player)?),
        served_model_names: vec![model.to_owned()],
        ..Config::default()
    })
}
