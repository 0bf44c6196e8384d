//! Flags of `play` for those of the simulator.

use std::num::NonZeroU32;

use serde_json::{Map, Value, json};

use super::{GivenFlags, SimulatorFlag, is_true, row_of};
use crate::{
    base::units::parse_duration,
    cli::{
        failure::Failure,
        stepping::{count, model_length},
        vllm_flags::ValueCount,
    },
    play::DEFAULT_GPU_BLOCKS,
};

/// The simulator's defaults.
const MAX_MODEL_LEN: &str = "1024";
const MAX_NUM_SEQS: u32 = 5;
const CACHE_BLOCKS: u32 = 1024;
const BLOCK_SIZE: u32 = 16;
const ZMQ_ENDPOINT: &str = "tcp://127.0.0.1:5557";

/// Sources of `play`, which take the place of made-up tokens.
const SOURCES: [&str; 4] = ["replay-tokens", "cassette", "answers", "synthetic"];

/// Latencies of a calculator: of prompts by their length, and whatever their length is; then the same of transfers.
const PER_TOKEN: [&[&str]; 2] = [
    &["prefill-overhead", "prefill-time-per-token", "prefill-time-std-dev"],
    &["kv-cache-transfer-time-per-token", "kv-cache-transfer-time-std-dev"],
];
const CONSTANT: [&[&str]; 2] = [
    &["time-to-first-token", "time-to-first-token-std-dev"],
    &["kv-cache-transfer-latency", "kv-cache-transfer-latency-std-dev"],
];

/// Flags of `play`, and notes for who typed those of the simulator.
#[derive(Debug, Default)]
pub(super) struct Meaning {
    pub(super) flags: Vec<String>,
    pub(super) notes: Vec<String>,
}

/// What is typed means; `has_name` is true where the program has the simulator's name.
pub(super) fn of(
    given: &GivenFlags,
    has_name: bool,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Meaning, Failure> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    let of_variable = variable("SIM_MODEL").filter(|_| has_name);
    let model = given.value("model").or(of_variable.as_deref());
    let mut meaning = Meaning::default();
    meaning.verbosity(given);
    meaning.rows(given)?;
    if has_name {
        meaning.server(given);
        if let Some(model) = &of_variable {
            meaning.usual(given, "model", model);
        }
    }
    if !given.flags.contains_key("mode") && !SOURCES.iter().any(|source| given.has(source)) {
        meaning.set("synthetic", "random");
    }
    meaning.latencies(given)?;
    meaning.engine(given)?;
    meaning.cache(given, variable("POD_IP").as_deref(), model)?;
    Ok(meaning)
}

impl Meaning {
    fn flag(&mut self, name: &str) {
        self.flags.push(format!("--{name}"));
    }

    fn set(&mut self, name: &str, value: impl Into<String>) {
        self.flag(name);
        self.flags.push(value.into());
    }

    /// Sets a flag of `play` that was not typed.
    fn usual(&mut self, given: &GivenFlags, name: &str, value: impl Into<String>) {
        if !given.has(name) && !given.flags.contains_key(name) {
            self.set(name, value);
        }
    }

    fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Flags that do not depend on others.
    fn rows(&mut self, given: &GivenFlags) -> Result<(), Failure> {
        for (&name, values) in &given.flags {
            let Some(SimulatorFlag { becomes, note, values: count, .. }) = row_of(name) else { continue };
            let is_switch = *count == ValueCount::None;
            let is_off = is_switch && !values.last().map_or(Ok(true), |value| is_true(name, value))?;
            match *becomes {
                _ if is_off || values.is_empty() => {}
                "none" => self.note(format!("--{name} has no effect: {note}")),
                // A YAML file has been read; any other is for the program as a whole.
                "some" if name == "config" => self.set(name, values.join(" ")),
                "some" | "default" => {}
                "--synthetic" if SOURCES.iter().any(|source| given.has(source)) => {
                    self.note(format!("--{name} has no effect: another source is named"));
                }
                // Lists of `play` have commas here.
                "=" if name == "failure-types" => self.set(name, values.join(",")),
                flag if is_switch => self.flag(if flag == "=" { name } else { flag.trim_start_matches('-') }),
                flag => {
                    self.flag(if flag == "=" { name } else { flag.trim_start_matches('-') });
                    self.flags.extend(values.iter().cloned());
                }
            }
        }
        Ok(())
    }

    /// The simulator's log levels: 4 is debug, 5 is trace.
    fn verbosity(&mut self, given: &GivenFlags) {
        let level = given.value("v").and_then(|level| level.parse::<u8>().ok()).unwrap_or_default();
        let times = if level >= 5 { 2 } else { usize::from(level == 4) };
        self.flags.extend(std::iter::repeat_n("-v".to_owned(), times));
    }

    /// What the simulator always does as a server.
    fn server(&mut self, given: &GivenFlags) {
        self.usual(given, "host", "0.0.0.0");
        self.flag("simulator-endpoints");
        for switch in ["fault-headers", "enable-scale-out"] {
            if !given.has(switch) {
                self.flag(switch);
            }
        }
    }

    /// The latencies that the calculator looks at. Without one, those of prompts by their length count where the others are zero.
    fn latencies(&mut self, given: &GivenFlags) -> Result<(), Failure> {
        let calculator = given.value("latency-calculator").unwrap_or_default();
        if !["", "constant", "per-token"].contains(&calculator) {
            let message = format!("--latency-calculator {calculator} does not exist");
            return Err(Failure::usage(message).hint("use constant or per-token"));
        }
        let is_set = |name: &&str| {
            given.value(name).is_some_and(|value| parse_duration(value).is_ok_and(|time| !time.is_zero()))
        };
        for (constant, per_token) in CONSTANT.iter().zip(PER_TOKEN) {
            let is_constant = match calculator {
                "constant" => true,
                "per-token" => false,
                _ => constant.iter().any(is_set) || !per_token.iter().any(is_set),
            };
            for name in if is_constant { *constant } else { per_token } {
                if let Some(value) = given.value(name) {
                    self.set(name, value);
                }
            }
        }
        // Without any, an engine has the times of the trace that it serves; the simulator's are zero.
        for name in ["time-to-first-token", "inter-token-latency"] {
            if !self.flags.iter().any(|flag| *flag == format!("--{name}"))
                && !given.has("instant")
                && !given.has("latency-profile")
            {
                self.set(name, "0");
            }
        }
        Ok(())
    }

    fn engine(&mut self, given: &GivenFlags) -> Result<(), Failure> {
        for switch in ["engine", "enable-lora"] {
            if !given.has(switch) {
                self.flag(switch);
            }
        }
        if !given.flags.contains_key("max-running-requests") {
            self.usual(given, "max-num-seqs", MAX_NUM_SEQS.to_string());
        }
        self.usual(given, "max-model-len", MAX_MODEL_LEN);
        if let Some(seed) = given.value("seed") {
            let negative = seed.parse::<i64>().ok().filter(|seed| *seed < 0).map(i64::cast_unsigned);
            self.set("seed", negative.map_or_else(|| seed.to_owned(), |seed| seed.to_string()));
        }
        if let Some(waiting) = given.value("max-waiting-queue-length") {
            let running = given.value("max-num-seqs").and_then(|running| running.parse().ok()).unwrap_or(MAX_NUM_SEQS);
            let waiting: u32 = waiting.parse().map_err(|_| {
                Failure::usage(format!("--max-waiting-queue-length {waiting} is not a number of requests"))
            })?;
            self.usual(given, "max-num-queued-reqs", running.saturating_add(waiting).to_string());
        }
        Ok(())
    }

    /// The cache and its events, and the connector through which other engines read it.
    fn cache(&mut self, given: &GivenFlags, pod_ip: Option<&str>, model: Option<&str>) -> Result<(), Failure> {
        let publishes = given.is_on("enable-kvcache")?;
        let requested = given.value("kv-cache-size").map(|blocks| {
            blocks
                .parse::<u32>()
                .map_err(|_| Failure::usage(format!("--kv-cache-size {blocks} is not a number of blocks")))
        });
        let requested = requested.transpose()?;
        let length = given.value("max-model-len").unwrap_or(MAX_MODEL_LEN);
        let length = model_length(length).ok().and_then(|length| length.0);
        let block_size =
            given.value("block-size").and_then(|size| count(size).ok()).map_or(BLOCK_SIZE, NonZeroU32::get);
        // One block is never used.
        let needed = length.map_or(2, |length| length.get().div_ceil(block_size).saturating_add(1));
        let blocks = requested.unwrap_or(if publishes { CACHE_BLOCKS } else { DEFAULT_GPU_BLOCKS });
        if requested.is_some_and(|requested| requested < needed) {
            self.note(format!(
                "--kv-cache-size {blocks} is raised to {needed} blocks, which a request of --max-model-len needs; vLLM would not start with fewer"
            ));
        }
        if !given.has("num-gpu-blocks-override") && (requested.is_some() || blocks.max(needed) != DEFAULT_GPU_BLOCKS) {
            self.set("num-gpu-blocks-override", blocks.max(needed).to_string());
        }
        if publishes {
            if !given.has("enable-prompt-tokens-details") {
                self.flag("enable-prompt-tokens-details");
            }
            self.events(given, pod_ip, model)?;
        }
        if !given.has("kv-transfer-config") {
            self.set("kv-transfer-config", connector(pod_ip));
        }
        Ok(())
    }

    fn events(&mut self, given: &GivenFlags, pod_ip: Option<&str>, model: Option<&str>) -> Result<(), Failure> {
        // Of the model itself, whatever name it is served by.
        let (ip, model) = (pod_ip.unwrap_or("{ip}"), model.unwrap_or("{model}"));
        let mut config = Map::from_iter([
            ("enable_kv_cache_events".to_owned(), json!(true)),
            ("publisher".to_owned(), json!("zmq")),
            ("endpoint".to_owned(), json!(given.value("zmq-endpoint").unwrap_or(ZMQ_ENDPOINT))),
            ("topic".to_owned(), json!(format!("kv@{ip}:{{port}}@{model}"))),
        ]);
        if let Some(replay) = given.value("kv-events-replay-endpoint").filter(|endpoint| !endpoint.is_empty()) {
            let steps = given.value("kv-events-replay-queue-size").unwrap_or("1024").parse::<usize>();
            let steps =
                steps.map_err(|_| Failure::usage("--kv-events-replay-queue-size: a number of batches is needed"))?;
            config.insert("replay_endpoint".to_owned(), json!(replay));
            config.insert("buffer_steps".to_owned(), json!(steps));
        }
        if !given.has("kv-events-config") {
            self.set("kv-events-config", Value::Object(config).to_string());
        }
        if !given.is_on("use-vllm-map-event-format")? {
            self.usual(given, "kv-events-encoding", "array");
        }
        Ok(())
    }
}

/// The connector: requests may name any host, as pods have addresses of their own, and its port is a free one.
fn connector(pod_ip: Option<&str>) -> String {
    let extra = match pod_ip {
        Some(pod_ip) => json!({"side_channel_port": 0, "side_channel_host": pod_ip, "peers": ["*"]}),
        None => json!({"side_channel_port": 0}),
    };
    json!({"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}).to_string()
}
