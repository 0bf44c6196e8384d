//! What llm-d-inference-sim serves beside vLLM's endpoints: probes, `/admin/config`, and headers that name the pod.
//!
//! `/admin/config` shows what is in effect, under that simulator's names, and changes latencies, failures and values of metrics for the
//! requests that come then. All of a request is checked before any of it takes effect. `/fake_metrics` stands beside it.
//!
//! Source: `docs/api.md` of llm-d-inference-sim. See docs/decisions/0140-another-simulators-command-line.md.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    response::Response,
    routing::{get, post},
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::{Map, Value, json};

use crate::{
    HandlerState, ServerState,
    admin_calls::{AdminResult, RefusedAdminCall, body_of, json_of, shown},
    config::SimulatorOptions,
    faults::InjectedFailures,
    http::empty,
    metrics::{self, of_fake_metrics},
};
use ::engine::step_clock::{Knobs, StepTimes, TransferTimes};
use base::units::{duration_text, parse_duration};

/// Maximum size of new settings, in bytes.
const LARGEST: usize = 4 << 20;

/// The headers that name the pod.
pub(super) fn pod_headers(state: &ServerState) -> HeaderMap {
    let SimulatorOptions { endpoints, pod, namespace, .. } = &state.config.server.simulator;
    let port = pod.as_ref().and(state.port()).map(|port| port.to_string());
    let named = [("x-inference-pod", pod), ("x-inference-port", &port), ("x-inference-namespace", namespace)];
    let header = |(name, value): (&'static str, &Option<String>)| {
        Some((HeaderName::from_static(name), HeaderValue::from_str(value.as_deref()?).ok()?))
    };
    named.into_iter().filter(|_| *endpoints).filter_map(header).collect()
}

/// `/health/ready` and `/ready`: this is behind what refuses until the server is ready.
pub(super) fn probes() -> Router {
    let ready = || async { empty(StatusCode::OK) };
    Router::new().route("/health/ready", get(ready)).route("/ready", get(ready))
}

/// `/admin/config` and `/fake_metrics`.
pub(super) fn routes(state: &Arc<ServerState>) -> Router {
    Router::new()
        .route("/admin/config", get(show).post(change))
        .route("/fake_metrics", post(fake))
        .with_state(Arc::clone(state))
}

/// Settings that were read, before they take effect.
#[derive(Debug, Default)]
struct SimulatorChange {
    times: Option<SimulatorLatencies>,
    failures: Option<InjectedFailures>,
    metrics: Option<Value>,
}

async fn show(State(state): HandlerState) -> Response {
    shown(&settings(&state))
}

async fn change(State(state): HandlerState, request: Request) -> AdminResult {
    let body = body_of(request, LARGEST).await?;
    let new = SimulatorChange::read(&state, &body).map_err(RefusedAdminCall::wrong)?;
    new.apply(&state).map_err(RefusedAdminCall::wrong)?;
    let now = settings(&state);
    tracing::info!("/admin/config is changed: {now}");
    Ok(shown(&now))
}

async fn fake(State(state): HandlerState, request: Request) -> AdminResult {
    let fields = json_of(request, LARGEST).await?;
    let values = state.fake_values(&fields).map_err(RefusedAdminCall::wrong)?;
    state.set_values(&values).map_err(RefusedAdminCall::wrong)?;
    Ok(empty(StatusCode::NO_CONTENT))
}

fn knobs(state: &ServerState) -> Option<Knobs> {
    match state.engine.as_ref()?.times() {
        StepTimes::Knobs(knobs) => Some(knobs),
        StepTimes::Instant => Some(Knobs { max_num_seqs: max_num_seqs(state), ..Knobs::default() }),
        StepTimes::Fitted(_) | StepTimes::Profile(_) => None,
    }
}

fn max_num_seqs(state: &ServerState) -> u32 {
    let engine = state.config.engine.as_ref();
    engine.map_or(1, |engine| u32::try_from(engine.scheduler.max_num_seqs).unwrap_or(u32::MAX))
}

/// What is in effect, under that simulator's names.
fn settings(state: &ServerState) -> Value {
    let (config, model) = (&state.config, &state.model);
    let InjectedFailures { percent, types } = config.faults.failures();
    let mut fields = json!({
        "model": &*model.root,
        "served-model-name": model.names,
        "max-model-len": model.max_model_len,
        "max-num-seqs": max_num_seqs(state),
        "max-loras": config.lora.as_ref().map_or(0, |lora| lora.max_loras),
        "mode": state.synthetic().name(),
        "seed": config.seed,
        "block-size": state.block_size,
        "enable-kvcache": config.engine.as_ref().is_some_and(|engine| engine.kv_events.is_some()),
        "data-parallel-size": config.server.simulator.servers.saturating_mul(config.data_parallel_size),
        "enable-request-id-headers": config.request_id_headers,
        "startup-duration": duration_text(config.server.startup),
        "failure-injection-rate": percent,
        "failure-types": types,
        "fake-metrics": state.overrides.fake_metrics(),
    });
    if let Some(fields) = fields.as_object_mut() {
        let blocks = state.engine.as_ref().map(|engine| engine.config.kv_cache.num_gpu_blocks);
        fields.extend(blocks.map(|blocks| ("kv-cache-size".to_owned(), json!(blocks))));
        fields.extend(SimulatorLatencies::of(state).shown());
    }
    fields
}

impl SimulatorChange {
    fn read(state: &ServerState, body: &[u8]) -> Result<Self, String> {
        let fields: Map<String, Value> =
            serde_json::from_slice(body).map_err(|error| format!("a JSON object is needed: {error}"))?;
        let mut new = Self::default();
        let mut latencies = SimulatorLatencies::of(state);
        for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            let wrong = |why: String| format!("{name}: {why}");
            match name.as_str() {
                "failure-injection-rate" | "failure-types" => {
                    let failures = new.failures.get_or_insert_with(|| state.config.faults.failures());
                    failure(failures, name, value).map_err(wrong)?;
                }
                "fake-metrics" => new.metrics = Some(state.fake_values(value).map_err(wrong)?),
                "latency-calculator" => {
                    value.as_str().ok_or_else(|| wrong("constant or per-token is needed".to_owned()))?;
                }
                name => {
                    latencies.set(name, value).map_err(wrong)?;
                    new.times = Some(latencies);
                }
            }
        }
        if let Some(calculator) = fields.get("latency-calculator").and_then(Value::as_str) {
            latencies.calculate(calculator)?;
            new.times = Some(latencies);
        }
        new.failures.as_ref().map_or(Ok(Vec::new()), InjectedFailures::lines)?;
        Ok(new)
    }

    fn apply(self, state: &ServerState) -> Result<(), String> {
        if let Some(metrics) = self.metrics {
            state.set_values(&metrics)?;
        }
        if let Some(failures) = self.failures {
            state.config.faults.fail(failures)?;
        }
        if let (Some(SimulatorLatencies { steps, transfers }), Some(engine)) = (self.times, &state.engine) {
            transfers.into_iter().for_each(|times| engine.set_transfer_times(times));
            // Steps under way end where their times change.
            let changed = steps.filter(|steps| knobs(state) != Some(*steps));
            changed.into_iter().for_each(|knobs| engine.set_times(StepTimes::Knobs(knobs)));
        }
        Ok(())
    }
}

/// Latencies of `/admin/config`; `None` where there are none of a kind.
#[derive(Debug, Clone, Copy)]
struct SimulatorLatencies {
    /// Of steps, where they were set one by one.
    steps: Option<Knobs>,
    /// Of transfers between engines, where there is a KV connector.
    transfers: Option<TransferTimes>,
}

impl SimulatorLatencies {
    fn of(state: &ServerState) -> Self {
        let transfers = state.engine.as_ref().and_then(|engine| engine.transfer_times());
        Self { steps: knobs(state), transfers }
    }

    /// The durations under the simulator's names.
    fn places(&mut self) -> impl Iterator<Item = (&'static str, &mut Duration)> {
        let of_steps = self.steps.as_mut().map(|knobs| {
            [
                ("time-to-first-token", &mut knobs.time_to_first_token.mean),
                ("time-to-first-token-std-dev", &mut knobs.time_to_first_token.std_dev),
                ("inter-token-latency", &mut knobs.inter_token_latency.mean),
                ("inter-token-latency-std-dev", &mut knobs.inter_token_latency.std_dev),
                ("prefill-overhead", &mut knobs.prefill_overhead),
                ("prefill-time-per-token", &mut knobs.prefill_time_per_token.mean),
                ("prefill-time-std-dev", &mut knobs.prefill_time_per_token.std_dev),
            ]
        });
        let of_transfers = self.transfers.as_mut().map(|times| {
            [
                ("kv-cache-transfer-latency", &mut times.latency.mean),
                ("kv-cache-transfer-latency-std-dev", &mut times.latency.std_dev),
                ("kv-cache-transfer-time-per-token", &mut times.per_token.mean),
                ("kv-cache-transfer-time-std-dev", &mut times.per_token.std_dev),
            ]
        });
        of_steps.into_iter().flatten().chain(of_transfers.into_iter().flatten())
    }

    fn shown(mut self) -> Map<String, Value> {
        let mut fields: Map<String, Value> =
            self.places().map(|(name, time)| (name.to_owned(), json!(duration_text(*time)))).collect();
        if let Some(Knobs { prefill_overhead, prefill_time_per_token, time_factor_under_load, .. }) = self.steps {
            let is_per_token = !prefill_overhead.is_zero() || !prefill_time_per_token.mean.is_zero();
            fields.insert("time-factor-under-load".to_owned(), json!(time_factor_under_load));
            let calculator = if is_per_token { "per-token" } else { "constant" };
            fields.insert("latency-calculator".to_owned(), json!(calculator));
        }
        fields
    }

    fn set(&mut self, name: &str, value: &Value) -> Result<(), String> {
        if name == "time-factor-under-load" {
            let factor = value.as_f64().filter(|factor| (1.0..=1000.0).contains(factor));
            self.steps.as_mut().ok_or(NO_STEPS)?.time_factor_under_load =
                factor.ok_or("a factor from 1 to 1000 is needed")?;
            return Ok(());
        }
        let why = self.why_not(name);
        let place = self.places().find_map(|(known, place)| (known == name).then_some(place)).ok_or(why)?;
        // A number is nanoseconds, as in the simulator.
        let text = value.as_str().map(str::to_owned).or_else(|| value.as_u64().map(|nanos| format!("{nanos}ns")));
        let text = text.ok_or("a duration such as \"250ms\" is needed")?;
        *place = parse_duration(&text).map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Why a name has no place here.
    fn why_not(&self, name: &str) -> &'static str {
        let mut all = Self { steps: Some(Knobs::default()), transfers: Some(TransferTimes::default()) };
        let is_one = all.places().any(|(known, _)| known == name);
        match is_one {
            true if name.starts_with("kv-cache-transfer") => NO_TRANSFERS,
            true => NO_STEPS,
            false => NO_FIELD,
        }
    }

    /// Leaves out the latencies that a calculator does not look at.
    fn calculate(&mut self, calculator: &str) -> Result<(), String> {
        let Self { steps, transfers } = self;
        match calculator {
            "constant" => {
                if let Some(knobs) = steps {
                    (knobs.prefill_overhead, knobs.prefill_time_per_token) = Default::default();
                }
                transfers.iter_mut().for_each(|times| times.per_token = Default::default());
            }
            "per-token" => {
                steps.iter_mut().for_each(|knobs| knobs.time_to_first_token = Default::default());
                transfers.iter_mut().for_each(|times| times.latency = Default::default());
            }
            "" => {}
            other => return Err(format!("latency-calculator: {other} is none: there are constant and per-token")),
        }
        Ok(())
    }
}

const NO_STEPS: &str =
    "there are no latencies that were set one by one (--time-to-first-token and others with --engine)";
const NO_TRANSFERS: &str = "there is no KV connector whose transfers take time (--kv-transfer-config with --engine)";
const NO_FIELD: &str = "no field that can change while the server runs: there are latencies, latency-calculator, \
                        time-factor-under-load, failure-injection-rate, failure-types and fake-metrics";

fn failure(failures: &mut InjectedFailures, name: &str, value: &Value) -> Result<(), String> {
    if name == "failure-types" {
        let names =
            value.as_array().and_then(|names| names.iter().map(|name| name.as_str().map(str::to_owned)).collect());
        failures.types = names.ok_or("a list of names is needed")?;
        return Ok(());
    }
    let percent = value.as_u64().and_then(|percent| u8::try_from(percent).ok()).filter(|percent| *percent <= 100);
    failures.percent = percent.ok_or("a percentage from 0 to 100 is needed")?;
    Ok(())
}

impl ServerState {
    /// Values for what `fake-metrics` means.
    fn fake_values(&self, fields: &Value) -> Result<Value, String> {
        let max_loras = self.config.lora.as_ref().map_or(0, |lora| lora.max_loras);
        of_fake_metrics(fields, &metrics::page(self), max_loras)
    }

    fn set_values(&self, values: &Value) -> Result<(), String> {
        self.overrides.set(values, &metrics::page(self), true)
    }

    pub(super) fn set_fake_metrics(&self) -> Result<(), String> {
        let Some(fields) = &self.config.server.simulator.fake_metrics else { return Ok(()) };
        self.set_values(&self.fake_values(fields)?)
    }
}
