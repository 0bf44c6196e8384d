//! `/vcr/config` and `/vcr/metrics`: what may change while the server runs, without a stream that is dropped.
//!
//! All of a request is checked before any of it takes effect. What began before keeps its pace and its faults.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    response::Response,
    routing::get,
};
use serde_json::{Map, Value, json};
use tokio::task::spawn_blocking;

use crate::{
    HandlerState, ServerState,
    admin_calls::{AdminResult, RefusedAdminCall, body_of, json_of, shown},
    faults::FaultLines,
    metrics,
};
use base::units::{TimeScale, duration_text, parse_duration};
use net::wire::value_text;
use replay::{player::AnswerRules, timing::Pacing};

/// Maximum size of new settings, in bytes.
const LARGEST: usize = 1 << 20;

/// The same of values of metrics.
const LARGEST_METRICS: usize = 4 << 20;

const PACE: &str = r#"`pace` is "recorded", "instant", null for that of the start, {"time_scale": 2}, or {"time_to_first_token": "200ms", "inter_token_latency": "20ms"}"#;

/// `/vcr/config` and `/vcr/metrics`.
pub(super) fn routes(state: &Arc<ServerState>) -> Router {
    Router::new()
        .route("/vcr/config", get(show).put(change))
        .route("/vcr/metrics", get(show_metrics).put(replace_metrics).delete(clear_metrics))
        .with_state(Arc::clone(state))
}

/// Settings that were read, before they take effect.
#[derive(Debug, Default)]
struct NewSettings {
    pacing: Option<Option<Pacing>>,
    faults: Option<FaultLines>,
    /// Whether files of answers are read again.
    reads_answers: bool,
}

impl NewSettings {
    /// Reads what is to change; faults without a seed get this one.
    fn read(text: &str, seed: u64) -> Result<Self, String> {
        let fields: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| format!("a JSON object is needed: {error}"))?;
        let mut new = Self::default();
        for (name, value) in &fields {
            match name.as_str() {
                "pace" => new.pacing = Some(pacing(value)?),
                "faults" => {
                    let lines = FaultLines::parse(&value.to_string(), "faults", seed);
                    new.faults = Some(lines.map_err(|error| format!("`faults`: {}", error.message))?);
                }
                "answers" if value == "reload" => new.reads_answers = true,
                "answers" => return Err(r#"`answers` is "reload": the files of --answers are read again"#.to_owned()),
                other => {
                    return Err(format!("`{other}` is no setting that can change; there are pace, faults and answers"));
                }
            }
        }
        Ok(new)
    }
}

fn pacing(value: &Value) -> Result<Option<Pacing>, String> {
    let wrong = || PACE.to_owned();
    let fields = match value {
        Value::Null => return Ok(None),
        Value::String(word) if word == "recorded" => return Ok(Some(Pacing::default())),
        Value::String(word) if word == "instant" => return Ok(Some(Pacing::Instant)),
        Value::Object(fields) if !fields.is_empty() => fields,
        _ => return Err(wrong()),
    };
    let (mut ttft, mut itl, mut scale) = (None, None, None);
    for (name, value) in fields {
        let time = |value: &Value| parse_duration(&value_text(value)).map_err(|error| format!("`{name}`: {error}"));
        match name.as_str() {
            "time_to_first_token" => ttft = Some(time(value)?),
            "inter_token_latency" => itl = Some(time(value)?),
            "time_scale" => {
                let factor: TimeScale = value.to_string().parse().map_err(|error| format!("`time_scale`: {error}"))?;
                scale = Some(factor);
            }
            _ => return Err(wrong()),
        }
    }
    match scale {
        Some(_) if ttft.or(itl).is_some() => Err(wrong()),
        Some(scale) => Ok(Some(Pacing::Recorded { scale })),
        None => Ok(Some(Pacing::Fixed { ttft: ttft.unwrap_or_default(), itl: itl.unwrap_or_default() })),
    }
}

fn settings(state: &ServerState) -> Value {
    let pace = match state.pacing() {
        Pacing::Instant => json!("instant"),
        Pacing::Recorded { scale } => json!({"time_scale": scale.factor()}),
        Pacing::Fixed { ttft, itl } => {
            json!({"time_to_first_token": duration_text(ttft), "inter_token_latency": duration_text(itl)})
        }
    };
    let set = state.config.faults.current();
    let faults: Vec<String> = set.counts().map(|(fault, _)| fault.to_string()).collect();
    let mut shown = json!({"pace": pace, "faults": {"seed": set.seed(), "faults": faults}});
    if let (Some(answers), Some(fields)) = (answers(state), shown.as_object_mut()) {
        let files: Vec<String> = answers.paths().iter().map(|path| path.display().to_string()).collect();
        fields.insert("answers".to_owned(), json!({"files": files, "rules": answers.len()}));
    }
    shown
}

/// The rules of files of answers, where there are any.
fn answers(state: &ServerState) -> Option<&Arc<AnswerRules>> {
    state.config.cassette_player.as_ref()?.config().answers.as_ref()
}

/// Reads the files of answers again.
/// Errors: where there are none, or one is wrong; the rules of before stay.
async fn read_answers(state: &ServerState) -> Result<(), String> {
    let answers = answers(state).ok_or("`answers`: there are no files of --answers to read again")?;
    let answers = Arc::clone(answers);
    let reading = spawn_blocking(move || answers.reload().map_err(|error| format!("`answers`: {error}")));
    reading.await.map_err(|_| "`answers`: the files could not be read".to_owned())?.map(drop)
}

async fn show(State(state): HandlerState) -> Response {
    shown(&settings(&state))
}

async fn change(State(state): HandlerState, request: Request) -> AdminResult {
    let body = body_of(request, LARGEST).await?;
    let faults = &state.config.faults;
    let new = NewSettings::read(&String::from_utf8_lossy(&body), faults.current().seed());
    let mut new = new.map_err(RefusedAdminCall::wrong)?;
    new.faults = new.faults.map(|lines| faults.with_secrets(lines)).transpose().map_err(RefusedAdminCall::wrong)?;
    if new.reads_answers {
        // What can be wrong with files comes before what takes effect.
        read_answers(&state).await.map_err(RefusedAdminCall::wrong)?;
    }
    if let Some(pacing) = new.pacing {
        state.config.changed_pacing.set(pacing);
    }
    if let Some(lines) = new.faults {
        faults.replace(lines);
    }
    let now = settings(&state);
    tracing::info!("settings are changed: {now}");
    Ok(shown(&now))
}

async fn show_metrics(State(state): HandlerState) -> Response {
    shown(&state.overrides.shown())
}

async fn clear_metrics(State(state): HandlerState) -> Response {
    state.overrides.clear();
    shown(&state.overrides.shown())
}

async fn replace_metrics(State(state): HandlerState, request: Request) -> AdminResult {
    let values = json_of(request, LARGEST_METRICS).await?;
    state.overrides.set(&values, &metrics::page(&state), false).map_err(RefusedAdminCall::wrong)?;
    Ok(shown(&state.overrides.shown()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn paces_are_read() {
        let read = |value: Value| pacing(&value);
        assert_eq!(read(json!("instant")), Ok(Some(Pacing::Instant)));
        assert_eq!(read(Value::Null), Ok(None));
        let fixed = Pacing::Fixed { ttft: Duration::from_millis(200), itl: Duration::from_millis(20) };
        assert_eq!(read(json!({"time_to_first_token": "200ms", "inter_token_latency": 20})), Ok(Some(fixed)));
        for wrong in [json!("fast"), json!({}), json!({"time_scale": 2, "inter_token_latency": 1}), json!({"speed": 2})]
        {
            assert_eq!(read(wrong), Err(PACE.to_owned()));
        }
        assert!(read(json!({"time_scale": 0})).unwrap_err().starts_with("`time_scale`"));
    }

    #[test]
    fn nothing_of_wrong_settings_is_read() {
        let error = NewSettings::read(r#"{"pace": "instant", "faults": ["explode"]}"#, 0).unwrap_err();
        assert!(error.starts_with("`faults`: `explode` is no kind of fault"), "{error}");
        assert!(NewSettings::read(r#"{"speed": 2}"#, 0).unwrap_err().contains("there are pace, faults and answers"));
    }
}
