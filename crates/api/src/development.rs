//! Requests to the development endpoints, judged in the engine's words.

use serde_json::{Map, Value};

use super::{
    body::ValidBody,
    error::ApiError,
    issues::{Issues, Loc},
    json, python,
    query::Query,
    schema::{
        Field, Kind,
        Need::{Nullable, Required},
        check_fields,
    },
};

/// Treatment of requests in progress when the engine pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PauseMode {
    /// They end.
    #[default]
    Abort,
    /// They go on, and the pause begins after them.
    Wait,
    /// They are held like all others.
    Keep,
}

/// Requests that are to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Abort {
    /// All.
    All,
    /// Those of these ids.
    Named(Vec<String>),
    /// The engine fails over what was given: with this error.
    Failing(String),
}

/// Action on the weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WeightCheck {
    /// Sum them up.
    Checksum,
    /// Recompute them.
    Reset,
    /// Compare their sums with these.
    Compare(Map<String, Value>),
}

/// `/pause`, and whether caches are cleared with it.
///
/// # Errors
/// A parameter that does not fit.
pub fn pause(query: &Query) -> Result<(PauseMode, bool), ApiError> {
    let mut issues = Issues::new();
    let mode = mode(query, &mut issues);
    let clears = query.flag("clear_cache", true, &mut issues);
    issues.unless_any((mode, clears))
}

/// `/sleep`: how deep, from 0 to 2.
///
/// # Errors
/// A parameter that does not fit.
pub fn sleep(query: &Query) -> Result<(u8, PauseMode), ApiError> {
    let mut issues = Issues::new();
    let level = query.number("level", 2, &mut issues).unwrap_or(1);
    let mode = mode(query, &mut issues);
    issues.unless_any((level, mode))
}

/// `/reset_prefix_cache`: whether the cache of running requests is given up too.
///
/// # Errors
/// A parameter that does not fit.
pub fn reset(query: &Query) -> Result<bool, ApiError> {
    let mut issues = Issues::new();
    let is_forced = query.flag("reset_running_requests", false, &mut issues);
    query.flag("reset_external", false, &mut issues);
    issues.unless_any(is_forced)
}

/// `/get_world_size`: whether data parallel ranks count.
///
/// # Errors
/// A parameter that does not fit.
pub fn world_size(query: &Query) -> Result<bool, ApiError> {
    let mut issues = Issues::new();
    let counts_ranks = query.flag("include_dp", true, &mut issues);
    issues.unless_any(counts_ranks)
}

/// `/server_info`: whether its configuration is requested as JSON instead of text.
///
/// # Errors
/// A parameter that does not fit.
pub fn server_info(query: &Query) -> Result<(), ApiError> {
    let mut issues = Issues::new();
    query.word("config_format", &["text", "json"], &mut issues);
    issues.unless_any(())
}

/// `/collective_rpc`: the method that the workers are to call.
///
/// # Errors
/// Not JSON, not an object, or without a method.
pub fn collective_rpc(body: &[u8]) -> Result<Value, ApiError> {
    let body = json::read_plainly(body).map_err(|fault| refused(format!("JSON decode error: {fault}")))?;
    let method = plain_object(body)?.remove("method").filter(|method| !method.is_null());
    method.ok_or_else(|| refused("Missing 'method' in request body"))
}

/// `/abort_requests`
///
/// # Errors
/// Not JSON, or not an object.
pub fn abort_requests(body: &[u8]) -> Result<Abort, ApiError> {
    let body = json::read_plainly(body).map_err(|_| refused("Invalid JSON format"))?;
    Ok(match plain_object(body)?.remove("request_ids") {
        Some(Value::Array(ids)) if !ids.is_empty() => {
            Abort::Named(ids.iter().map(|id| id.as_str().unwrap_or_default().to_owned()).collect())
        }
        Some(Value::String(id)) if !id.is_empty() => Abort::Named(vec![id]),
        Some(other @ (Value::Number(_) | Value::Bool(true))) if python::truthy(Some(&other)) => {
            let kind = if other.is_f64() {
                "float"
            } else if other.is_boolean() {
                "bool"
            } else {
                "int"
            };
            Abort::Failing(format!("Failed to abort requests: '{kind}' object is not iterable"))
        }
        _ => Abort::All,
    })
}

/// `/inference/v1/abort_requests`: the ids of requests.
///
/// # Errors
/// Not JSON, or no ids.
pub fn abort_tokens(body: &[u8]) -> Result<Vec<String>, ApiError> {
    let body = json::read_plainly(body).map_err(|error| refused(format!("JSON decode error: {error}")))?;
    match body.get("request_ids") {
        _ if !body.is_object() => Err(ApiError::internal("Internal server error")),
        None | Some(Value::Null) => Err(refused("Missing 'request_ids' in request body")),
        Some(Value::String(id)) => Ok(vec![id.clone()]),
        Some(ids) => Ok(ids.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()),
    }
}

/// `/update_weight_version`: the new version.
///
/// # Errors
/// A body that does not fit.
pub fn new_version(body: &[u8]) -> Result<String, ApiError> {
    let map = embedded(&[Field("new_version", Kind::Text, Required)], body)?;
    Ok(ValidBody(&map).text("new_version").unwrap_or_default())
}

/// `/finish_weight_update`: the version that the weights have now, where it is given.
///
/// # Errors
/// A body that does not fit.
pub fn finished_version(body: &[u8]) -> Result<Option<String>, ApiError> {
    let map = embedded(&[Field("weight_version", Kind::Text, Nullable)], body)?;
    Ok(ValidBody(&map).text("weight_version"))
}

/// `/init_weight_transfer_engine`: an object under `init_info`.
///
/// # Errors
/// A body that does not fit.
pub fn init_info(body: &[u8]) -> Result<(), ApiError> {
    embedded(&[Field("init_info", Kind::Dictionary, Required)], body).map(drop)
}

/// `/update_weights`: an object or a list under `update_info`.
///
/// # Errors
/// A body that does not fit.
pub fn update_info(body: &[u8]) -> Result<(), ApiError> {
    const UPDATE: Kind = Kind::AnyOf(&[Kind::Dictionary, Kind::List(&Kind::Any)]);
    embedded(&[Field("update_info", UPDATE, Required)], body).map(drop)
}

/// `/scale_elastic_ep`: how many engines there are to be.
///
/// # Errors
/// Not JSON, or numbers that make no sense.
pub fn engines(body: &[u8]) -> Result<i64, ApiError> {
    let body = json::read_plainly(body).map_err(|_| refused("Invalid JSON format"))?;
    let whole = |name: &str, value: &Value| {
        let number = value.as_i64().or_else(|| value.as_bool().map(i64::from)).filter(|number| *number > 0);
        number.ok_or_else(|| refused(format!("{name} must be a positive integer")))
    };
    let size = body.get("new_data_parallel_size").filter(|size| !size.is_null());
    let size = size.ok_or_else(|| refused("new_data_parallel_size is required"))?;
    let size = whole("new_data_parallel_size", size)?;
    body.get("drain_timeout").map_or(Ok(0), |timeout| whole("drain_timeout", timeout))?;
    Ok(size)
}

/// `/weight_checker`
///
/// # Errors
/// A body that does not fit.
pub fn weight_check(body: &[u8]) -> Result<WeightCheck, ApiError> {
    const ACTION: Kind = Kind::OneOf(&["checksum", "reset", "compare"]);
    let map = embedded(&[Field("action", ACTION, Required), Field("baseline", Kind::Dictionary, Nullable)], body)?;
    match (map.get("action").and_then(Value::as_str), map.get("baseline").and_then(Value::as_object)) {
        (Some("reset"), _) => Ok(WeightCheck::Reset),
        (Some("compare"), Some(baseline)) => Ok(WeightCheck::Compare(baseline.clone())),
        (Some("compare"), None) => Err(refused("action='compare' requires a 'baseline' object")),
        _ => Ok(WeightCheck::Checksum),
    }
}

/// The text of the framework's own exception.
fn refused(message: impl Into<String>) -> ApiError {
    ApiError::framework(message, None)
}

fn mode(query: &Query, issues: &mut Issues) -> PauseMode {
    match query.word("mode", &["abort", "wait", "keep"], issues) {
        Some(1) => PauseMode::Wait,
        Some(2) => PauseMode::Keep,
        _ => PauseMode::Abort,
    }
}

fn plain_object(body: Value) -> Result<Map<String, Value>, ApiError> {
    match body {
        Value::Object(map) => Ok(map),
        _ => Err(refused("Request body must be a JSON object")),
    }
}

/// The parameters of a body: none are there where it is empty or no object.
fn embedded(fields: &[Field], body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let map = match json::read(body)? {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let mut issues = Issues::new();
    check_fields(fields, &map, None, &Loc::BODY, &mut issues);
    issues.unless_any(map)
}
