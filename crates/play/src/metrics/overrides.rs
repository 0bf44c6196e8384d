//! Values of `/metrics` that were set from outside, in place of those that the server has.

use std::{collections::BTreeMap, f64::consts::TAU, time::Duration};

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use base::lock::Lock;
use base::{
    stats::scraped::{self, Scraped},
    units::parse_duration,
};

/// Maximum number of samples that are set.
const MOST: usize = 10_000;

const WAITING: &str = "vllm:num_requests_waiting";

/// The parts of that, which are set with it: their sum is the same.
const WAITING_BY_REASON: &str = "vllm:num_requests_waiting_by_reason";

/// A value, constant or over time.
#[derive(Debug, Clone, PartialEq)]
enum SetValue {
    Constant(f64),
    Wave { shape: WaveShape, start: f64, end: f64, period: Duration },
}

base::named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum WaveShape {
        /// A sine between both.
        Oscillate = "oscillate",
        /// From one to the other, and it stays there.
        Ramp = "ramp",
        /// From one to the other, again and again.
        RampReset = "rampreset",
        /// Half of the time each.
        SquareWave = "squarewave",
    }
}

/// Samples with these labels have this value.
#[derive(Debug, Clone, PartialEq)]
struct SetSample {
    labels: BTreeMap<String, String>,
    value: SetValue,
    /// As it was written.
    written: Value,
}

base::with_defaults! {
    /// Values that are set, by the names of samples.
    #[derive(Debug)]
    pub(in super::super) struct MetricOverrides {
        set: Lock<BTreeMap<String, Vec<SetSample>>>,
        start: Instant = Instant::now(),
    }
}

impl MetricOverrides {
    /// The page with the values that are set.
    pub(in super::super) fn apply(&self, page: String) -> String {
        let set = self.set.lock();
        if set.is_empty() {
            return page;
        }
        let elapsed = self.start.elapsed();
        let page = match set.get(LORA_INFO) {
            Some(samples) => with_samples(&page, samples, elapsed),
            None => page,
        };
        scraped::with_values(&page, |sample| {
            let is_part = sample.name == WAITING_BY_REASON && !set.contains_key(WAITING_BY_REASON);
            let name = if is_part { WAITING } else { sample.name };
            let found = set.get(name)?.iter().rev().find(|set| set.is_of(sample))?;
            let is_nothing = is_part && sample.label("reason") != Some("capacity");
            Some(if is_nothing { 0.0 } else { found.value.at(elapsed) })
        })
    }

    /// Sets values: an object of names, each with a value for all samples or a list of `{"labels": {}, "value": 1}`. Those that were set
    /// before are replaced, or kept where they are not named.
    /// Errors: what is wrong with them; nothing is set then.
    pub(in super::super) fn set(&self, values: &Value, page: &str, keeps: bool) -> Result<(), String> {
        let shape = "an object is needed, such as {\"vllm:num_requests_waiting\": 30}";
        let mut read = BTreeMap::new();
        for (name, value) in values.as_object().ok_or(shape)? {
            let samples = read_samples(name, value)?;
            // Its labels are its contents.
            let name = if name == LORA_INFO { LORA_INFO.to_owned() } else { known(name, &samples, page)? };
            read.insert(name, samples);
        }
        let mut set = self.set.lock();
        let mut all = if keeps { set.clone() } else { BTreeMap::new() };
        all.extend(read);
        if all.values().map(Vec::len).sum::<usize>() > MOST {
            return Err(format!("more than {MOST} samples are set"));
        }
        *set = all;
        Ok(())
    }

    /// Forgets them.
    pub(in super::super) fn clear(&self) {
        self.set.lock().clear();
    }

    /// What is set, as it can be set again.
    pub(in super::super) fn shown(&self) -> Value {
        let samples = |samples: &Vec<SetSample>| match samples.as_slice() {
            [only] if only.labels.is_empty() => only.written.clone(),
            samples => samples.iter().map(|set| json!({"labels": set.labels, "value": set.written})).collect(),
        };
        let set: Map<String, Value> = self.set.lock().iter().map(|(name, set)| (name.clone(), samples(set))).collect();
        Value::Object(set)
    }

    /// The same as llm-d-inference-sim's `fake-metrics`, as far as that has fields for it.
    pub(in super::super) fn fake_metrics(&self) -> Value {
        let set = self.set.lock();
        let of = |name: &str| set.get(name).map(Vec::as_slice);
        let mut fields = Map::new();
        for (field, name) in SCALARS {
            if let Some([only]) = of(name).filter(|samples| samples.iter().all(|set| set.labels.is_empty())) {
                fields.insert(field.to_owned(), only.written.clone());
            }
        }
        for (field, histogram, _) in BUCKETS {
            let counts = of(&format!("{histogram}_bucket")).and_then(counts_of);
            fields.extend(counts.map(|counts| (field.to_owned(), json!(counts))));
        }
        let adapter = |set: &SetSample| {
            let [running, waiting] = [RUNNING, WAITING_ADAPTERS].map(|label| set.labels.get(label));
            json!({"running": running, "waiting": waiting, "timestamp": set.written})
        };
        let adapters = of(LORA_INFO).map(|set| ("loras".to_owned(), set.iter().map(adapter).collect()));
        let reason = |set: &SetSample| Some((set.labels.get("finished_reason")?.clone(), set.written.clone()));
        let reasons =
            of(SUCCESS).map(|set| ("request-success-total".to_owned(), set.iter().filter_map(reason).collect()));
        fields.extend(adapters.into_iter().chain(reasons));
        Value::Object(fields)
    }
}

/// How many observations each bucket has; `None` where they were set to what is no whole number, or falls from one to the next.
fn counts_of(buckets: &[SetSample]) -> Option<Vec<u64>> {
    let mut before = 0;
    let count = |bucket: &SetSample| {
        let cumulated = bucket.written.as_u64()?;
        cumulated.checked_sub(std::mem::replace(&mut before, cumulated))
    };
    buckets.iter().map(count).collect()
}

impl SetSample {
    fn is_of(&self, sample: &Scraped<'_>) -> bool {
        self.labels.iter().all(|(name, value)| sample.label(name) == Some(value))
    }
}

impl SetValue {
    fn read(value: &Value) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{value} is no value: use a number, \"NaN\", \"+Inf\", \"-Inf\", or a wave such as \"oscillate:0:10:5s\" (oscillate, ramp, rampreset or squarewave, from, to, period)"
            )
        };
        let text = match value {
            Value::Number(number) => return number.as_f64().map(Self::Constant).ok_or_else(wrong),
            Value::String(text) => text,
            _ => return Err(wrong()),
        };
        match text.as_str() {
            "NaN" => return Ok(Self::Constant(f64::NAN)),
            "+Inf" => return Ok(Self::Constant(f64::INFINITY)),
            "-Inf" => return Ok(Self::Constant(f64::NEG_INFINITY)),
            _ => {}
        }
        let parts: Vec<&str> = text.split(':').collect();
        let [shape, start, end, period] = parts.as_slice() else { return Err(wrong()) };
        let shape = WaveShape::ALL.into_iter().find(|known| known.name() == *shape).ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite()).ok_or_else(wrong);
        let period = parse_duration(period).ok().filter(|period| !period.is_zero()).ok_or_else(wrong)?;
        Ok(Self::Wave { shape, start: number(start)?, end: number(end)?, period })
    }

    fn at(&self, elapsed: Duration) -> f64 {
        let (shape, start, end, period) = match self {
            Self::Constant(value) => return *value,
            Self::Wave { shape, start, end, period } => (shape, start, end, period),
        };
        let periods = elapsed.as_secs_f64() / period.as_secs_f64();
        let (within, range) = (periods.fract(), end - start);
        match shape {
            WaveShape::Oscillate => start + range / 2.0 + range / 2.0 * (TAU * within).sin(),
            WaveShape::Ramp => start + range * periods.min(1.0),
            WaveShape::RampReset => start + range * within,
            WaveShape::SquareWave if within < 0.5 => *start,
            WaveShape::SquareWave => *end,
        }
    }
}

fn read_samples(name: &str, value: &Value) -> Result<Vec<SetSample>, String> {
    let wrong = |why: String| format!("{name}: {why}");
    let one = |labels: BTreeMap<String, String>, written: &Value| {
        let value = SetValue::read(written).map_err(wrong)?;
        Ok(SetSample { labels, value, written: written.clone() })
    };
    let Some(list) = value.as_array() else { return Ok(vec![one(BTreeMap::new(), value)?]) };
    let shape = || wrong("a list has items such as {\"labels\": {\"engine\": \"0\"}, \"value\": 3}".to_owned());
    let read = |item: &Value| {
        let (fields, value) = (item.as_object().ok_or_else(shape)?, item.get("value").ok_or_else(shape)?);
        if fields.keys().any(|key| !["labels", "value"].contains(&key.as_str())) {
            return Err(shape());
        }
        let labels = item.get("labels").map_or(Some(BTreeMap::new()), |labels| {
            let text = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
            labels.as_object()?.iter().map(text).collect()
        });
        one(labels.ok_or_else(shape)?, value)
    };
    list.iter().map(read).collect()
}

/// The name of the samples on the page that a name means; a counter may be named without `_total`.
fn known(name: &str, samples: &[SetSample], page: &str) -> Result<String, String> {
    let total = format!("{name}_total");
    let found = scraped::samples(page).find(|sample| sample.name == name || sample.name == total);
    let Some(found) = found else {
        let is_histogram = scraped::samples(page).any(|sample| scraped::is_of_family(sample.name, name));
        return Err(if is_histogram {
            format!("{name} is a histogram: set {name}_sum, {name}_count and {name}_bucket")
        } else {
            format!("{name} is no family of /metrics, which are only those that this server has with its flags")
        });
    };
    let found = found.name;
    let absent =
        samples.iter().find(|set| !scraped::samples(page).any(|sample| sample.name == found && set.is_of(&sample)));
    match absent {
        Some(set) => Err(format!("{name} has no sample with the labels {}", json!(set.labels))),
        None => Ok(found.to_owned()),
    }
}

/// The family whose samples are set with their labels.
const LORA_INFO: &str = "vllm:lora_requests_info";
const RUNNING: &str = "running_lora_adapters";
const WAITING_ADAPTERS: &str = "waiting_lora_adapters";

const SUCCESS: &str = "vllm:request_success_total";

/// The page with these samples of that family in place of its own.
fn with_samples(page: &str, samples: &[SetSample], elapsed: Duration) -> String {
    let mut text = scraped::without_family(page, LORA_INFO);
    text.push_str(&format!("# HELP {LORA_INFO} Running stats on lora requests.\n# TYPE {LORA_INFO} gauge\n"));
    for sample in samples {
        let labels: Vec<String> = sample.labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
        text.push_str(&format!("{LORA_INFO}{{{}}} {:?}\n", labels.join(","), sample.value.at(elapsed)));
    }
    text
}

/// Samples of adapters: `{"running": "a,b", "waiting": "c", "timestamp": 1257894567}`, or the same as text.
fn adapters(value: &Value, max_loras: usize) -> Result<Value, String> {
    let wrong =
        || r#"a list is needed, such as [{"running": "a,b", "waiting": "c", "timestamp": 1257894567}]"#.to_owned();
    let sample = |item: &Value| {
        let read = item.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
        let fields = read.as_ref().unwrap_or(item).as_object()?;
        let names = |field: &str| fields.get(field).map_or(Some(""), Value::as_str);
        let labels = json!({
            "max_lora": max_loras.to_string(),
            RUNNING: names("running")?,
            WAITING_ADAPTERS: names("waiting")?,
        });
        Some(json!({"labels": labels, "value": fields.get("timestamp").map_or(Some(0.0), Value::as_f64)?}))
    };
    value.as_array().and_then(|items| items.iter().map(sample).collect::<Option<Value>>()).ok_or_else(wrong)
}

/// Fields of llm-d-inference-sim's `fake-metrics` that are a single value, and their samples.
const SCALARS: [(&str, &str); 7] = [
    ("running-requests", "vllm:num_requests_running"),
    ("waiting-requests", "vllm:num_requests_waiting"),
    ("kv-cache-usage", "vllm:kv_cache_usage_perc"),
    ("total-prompt-tokens", "vllm:prompt_tokens_total"),
    ("total-generation-tokens", "vllm:generation_tokens_total"),
    ("prefix-cache-hits", "vllm:prefix_cache_hits_total"),
    ("prefix-cache-queries", "vllm:prefix_cache_queries_total"),
];

/// Those that are lists of counts by bucket, their histograms, and the counter that their sum is, if none is given.
const BUCKETS: [(&str, &str, Option<&str>); 12] = [
    ("ttft-buckets-values", "vllm:time_to_first_token_seconds", None),
    ("tpot-buckets-values", "vllm:inter_token_latency_seconds", None),
    ("e2erl-buckets-values", "vllm:e2e_request_latency_seconds", None),
    ("queue-time-buckets-values", "vllm:request_queue_time_seconds", None),
    ("inf-time-buckets-values", "vllm:request_inference_time_seconds", None),
    ("prefill-time-buckets-values", "vllm:request_prefill_time_seconds", None),
    ("decode-time-buckets-values", "vllm:request_decode_time_seconds", None),
    ("request-tpot-buckets-values", "vllm:request_time_per_output_token_seconds", None),
    ("request-prompt-tokens", "vllm:request_prompt_tokens", Some("vllm:prompt_tokens_total")),
    ("request-generation-tokens", "vllm:request_generation_tokens", Some("vllm:generation_tokens_total")),
    ("request-max-generation-tokens", "vllm:request_max_num_generation_tokens", None),
    ("request-params-max-tokens", "vllm:request_params_max_tokens", None),
];

/// The values that a `fake-metrics` object of llm-d-inference-sim means, for [`MetricOverrides::set`].
///
/// Source: `docs/configuration.md` of llm-d-inference-sim. Fields that are `null` are as if they were not there.
/// Errors: a field that is none, or has no such value.
pub(in super::super) fn of_fake_metrics(fields: &Value, page: &str, max_loras: usize) -> Result<Value, String> {
    let fields = fields.as_object().ok_or("an object is needed, such as {\"running-requests\": 16}")?;
    let mut values = Map::new();
    for (field, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        if SCALARS.iter().any(|(known, _)| known == field) {
            // A total that is given stands after one that is a sum.
            continue;
        } else if let Some((_, histogram, total)) = BUCKETS.iter().find(|(known, ..)| known == field) {
            let sum = bucket_values(histogram, value, page, &mut values).map_err(|why| format!("{field}: {why}"))?;
            values.extend(total.map(|total| (total.to_owned(), json!(sum))));
        } else if field == "loras" {
            let samples = adapters(value, max_loras).map_err(|why| format!("{field}: {why}"))?;
            values.insert(LORA_INFO.to_owned(), samples);
        } else if field == "request-success-total" {
            let counts = value.as_object().ok_or_else(|| format!("{field}: an object of reasons is needed"))?;
            let sample =
                |(reason, count): (&String, &Value)| json!({"labels": {"finished_reason": reason}, "value": count});
            values.insert(SUCCESS.to_owned(), counts.iter().map(sample).collect());
        } else {
            let known = SCALARS.iter().map(|(known, _)| *known).chain(BUCKETS.iter().map(|(known, ..)| *known));
            let known: Vec<&str> = known.chain(["request-success-total", "loras"]).collect();
            return Err(format!("{field} is no field that can be set here: use {}", known.join(", ")));
        }
    }
    for (field, name) in SCALARS {
        if let Some(value) = fields.get(field).filter(|value| !value.is_null()) {
            values.insert(name.to_owned(), value.clone());
        }
    }
    Ok(Value::Object(values))
}

/// Adds the samples of a histogram with so many observations in each bucket, each at the bucket's bound or, in the last one, 1 above the
/// bound before it; gives their sum.
fn bucket_values(histogram: &str, counts: &Value, page: &str, values: &mut Map<String, Value>) -> Result<f64, String> {
    let list = counts.as_array().and_then(|list| list.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>());
    let list = list.ok_or("a list of counts is needed, one for each bucket from the first on")?;
    let bucket = format!("{histogram}_bucket");
    let mut bounds: Vec<&str> = Vec::new();
    for bound in scraped::samples(page).filter(|sample| sample.name == bucket).filter_map(|sample| sample.label("le")) {
        if bounds.contains(&bound) {
            break;
        }
        bounds.push(bound);
    }
    if list.len() > bounds.len() {
        return Err(format!("{histogram} has {} buckets", bounds.len()));
    }
    let (mut cumulated, mut sum, mut last, mut samples) = (0_u64, 0.0, 0.0, Vec::new());
    for (at, bound) in bounds.iter().enumerate() {
        let count = list.get(at).copied().unwrap_or_default();
        last = bound.parse::<f64>().ok().filter(|bound| bound.is_finite()).unwrap_or(last + 1.0);
        cumulated = cumulated.saturating_add(count);
        sum += count as f64 * last;
        samples.push(json!({"labels": {"le": bound}, "value": cumulated}));
    }
    values.insert(bucket, samples.into());
    values.insert(format!("{histogram}_sum"), json!(sum));
    values.insert(format!("{histogram}_count"), json!(cumulated));
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 0.0
vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 0.0
vllm:prompt_tokens_total{engine=\"0\"} 7.0
vllm:request_prompt_tokens_bucket{engine=\"0\",le=\"1.0\"} 0.0
vllm:request_prompt_tokens_bucket{engine=\"0\",le=\"2.0\"} 0.0
vllm:request_prompt_tokens_bucket{engine=\"0\",le=\"+Inf\"} 0.0
vllm:request_prompt_tokens_count{engine=\"0\"} 0.0
vllm:request_prompt_tokens_sum{engine=\"0\"} 0.0
";

    fn values(overrides: &MetricOverrides) -> Vec<f64> {
        scraped::samples(&overrides.apply(PAGE.to_owned())).map(|sample| sample.value).collect()
    }

    #[test]
    fn values_are_set_for_all_samples_or_for_those_with_labels() {
        let overrides = MetricOverrides::default();
        let set = json!({"vllm:num_requests_running": 5, "vllm:prompt_tokens": 9});
        overrides.set(&set, PAGE, false).unwrap();
        assert_eq!(values(&overrides), [5.0, 5.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let one = json!({"vllm:num_requests_running": [{"labels": {"engine": "1"}, "value": 2.5}]});
        overrides.set(&one, PAGE, true).unwrap();
        assert_eq!(values(&overrides).get(..3), Some([0.0, 2.5, 9.0].as_slice()));
        let shown = overrides.shown();
        let again = MetricOverrides::default();
        again.set(&shown, PAGE, false).unwrap();
        assert_eq!(values(&again), values(&overrides));
        overrides.set(&one, PAGE, false).unwrap();
        assert_eq!(values(&overrides).get(..3), Some([0.0, 2.5, 7.0].as_slice()));
        overrides.clear();
        assert_eq!(overrides.apply(PAGE.to_owned()), PAGE);
    }

    #[test]
    fn what_is_not_there_cannot_be_set() {
        let overrides = MetricOverrides::default();
        for (set, part) in [
            (json!([]), "an object is needed"),
            (json!({"vllm:no_such": 1}), "vllm:no_such is no family"),
            (json!({"vllm:request_prompt_tokens": 1}), "is a histogram: set"),
            (json!({"vllm:num_requests_running": "many"}), "\"many\" is no value"),
            (json!({"vllm:num_requests_running": "ramp:0:1:0s"}), "is no value"),
            (
                json!({"vllm:num_requests_running": [{"labels": {"engine": "2"}, "value": 1}]}),
                "no sample with the labels",
            ),
            (json!({"vllm:num_requests_running": [{"label": {}, "value": 1}]}), "a list has items"),
            (json!({"vllm:num_requests_running": 1, "vllm:num_requests_running_total": 1}), "no family"),
        ] {
            let error = overrides.set(&set, PAGE, false).unwrap_err();
            assert!(error.contains(part), "{set}: {error}");
        }
        assert_eq!(overrides.shown(), json!({}));
        overrides.set(&json!({"vllm:prompt_tokens": 9}), PAGE, false).unwrap();
        let many = vec![json!({"labels": {"engine": "1"}, "value": 1}); MOST];
        assert!(
            overrides.set(&json!({"vllm:num_requests_running": many}), PAGE, true).unwrap_err().contains("more than")
        );
        assert_eq!(overrides.shown(), json!({"vllm:prompt_tokens_total": 9}));
    }

    #[test]
    fn reasons_have_the_sum_of_what_waits() {
        let page = "vllm:num_requests_waiting{engine=\"0\"} 0.0\n\
                    vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 0.0\n\
                    vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"deferred\"} 2.0\n";
        let overrides = MetricOverrides::default();
        let with = |values: Value| {
            overrides.set(&values, page, true).unwrap();
            scraped::samples(&overrides.apply(page.to_owned())).map(|sample| sample.value).collect::<Vec<_>>()
        };
        assert_eq!(with(json!({WAITING: 3})), [3.0, 3.0, 0.0]);
        let deferred = json!({"labels": {"reason": "deferred"}, "value": 5});
        assert_eq!(with(json!({WAITING_BY_REASON: [deferred]})), [3.0, 0.0, 5.0]);
    }

    #[test]
    fn waves_go_from_one_value_to_the_other() {
        let at = |text: &str, millis: u64| SetValue::read(&json!(text)).unwrap().at(Duration::from_millis(millis));
        let each = |shape: &str| [0, 1000, 2000, 3000].map(|millis| at(&format!("{shape}:2:6:4s"), millis).round());
        assert_eq!(each("ramp"), [2.0, 3.0, 4.0, 5.0]);
        assert_eq!(each("squarewave"), [2.0, 2.0, 6.0, 6.0]);
        assert_eq!(each("oscillate"), [4.0, 6.0, 4.0, 2.0]);
        assert_eq!((at("ramp:2:6:4s", 9000), at("rampreset:2:6:4s", 9000)), (6.0, 3.0));
    }

    #[test]
    fn the_simulators_fields_are_samples() {
        let fields = json!({
            "running-requests": 16, "waiting-requests": null, "request-prompt-tokens": [1, 0, 2],
            "total-prompt-tokens": 100,
        });
        let set = of_fake_metrics(&fields, PAGE, 1).unwrap();
        let overrides = MetricOverrides::default();
        overrides.set(&set, PAGE, false).unwrap();
        assert_eq!(values(&overrides), [16.0, 16.0, 100.0, 1.0, 1.0, 3.0, 3.0, 7.0]);
        let loras = json!({"loras": ["{\"running\":\"a,b\",\"timestamp\":7}", {"waiting": "c", "timestamp": 8}]});
        overrides.set(&of_fake_metrics(&loras, PAGE, 2).unwrap(), PAGE, false).unwrap();
        let page = overrides.apply(PAGE.to_owned());
        let lines: Vec<&str> = page.lines().filter(|line| line.starts_with(LORA_INFO)).collect();
        let expected = [
            "vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"a,b\",waiting_lora_adapters=\"\"} 7.0",
            "vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"\",waiting_lora_adapters=\"c\"} 8.0",
        ];
        assert_eq!(lines, expected);
        let shown = overrides.fake_metrics();
        let all = json!({"loras": [{"running": "a,b", "waiting": "", "timestamp": 7.0}, {"running": "", "waiting": "c", "timestamp": 8.0}]});
        assert_eq!(shown, all);
        overrides.set(&set, PAGE, true).unwrap();
        let shown = overrides.fake_metrics();
        assert_eq!((&shown["running-requests"], &shown["request-prompt-tokens"]), (&json!(16), &json!([1, 0, 2])));
        let (again, page) = (MetricOverrides::default(), overrides.apply(PAGE.to_owned()));
        again.set(&of_fake_metrics(&shown, PAGE, 2).unwrap(), PAGE, false).unwrap();
        assert_eq!(again.apply(PAGE.to_owned()), page);
        let without = of_fake_metrics(&json!({"request-prompt-tokens": [0, 3]}), PAGE, 1).unwrap();
        assert_eq!(without["vllm:prompt_tokens_total"], 6.0);
        for (fields, part) in [
            (json!({"runing-requests": 1}), "runing-requests is no field"),
            (json!({"request-prompt-tokens": [1, 2, 3, 4]}), "has 3 buckets"),
            (json!({"request-prompt-tokens": 4}), "a list of counts"),
            (json!({"loras": [{"running": 1}]}), "\"timestamp\""),
        ] {
            let error = of_fake_metrics(&fields, PAGE, 1).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
