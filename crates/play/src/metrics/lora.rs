//! `vllm:lora_requests_info`: the adapters of the requests that the engine answers.
//!
//! As in vLLM 0.32.0 an adapter is there from the first token of a request until the end of its last one, under both labels, and
//! each combination of labels keeps the time of the last step that had it.

use std::sync::Arc;

use super::Metrics;
use ::engine::kv_cache::LoraRequest;
use base::lock::Lock;
use base::stats::exposition::Exposition;

const NAME: &str = "vllm:lora_requests_info";

/// Combinations that are kept; the one that is longest ago goes first. vLLM keeps all.
const MOST: usize = 1000;

/// Adapters of running requests, and what was shown of them.
#[derive(Debug)]
pub(super) struct LoraRequestsInfo {
    max_loras: usize,
    state: Lock<LoraState>,
}

#[derive(Debug, Default)]
struct LoraState {
    /// Requests of each adapter, in the order in which the adapters came.
    running: Vec<(Arc<LoraRequest>, u64)>,
    /// Whether the names have changed since the last step.
    is_changed: bool,
    /// Names, and the time in seconds since 1970 when they ran last; the current ones at the end.
    shown: Vec<(String, f64)>,
}

/// A request of an adapter, which counts until this is dropped.
#[derive(Debug)]
pub(in super::super) struct RunningAdapter {
    info: Arc<LoraRequestsInfo>,
    lora: Arc<LoraRequest>,
}

impl LoraState {
    fn position(&self, lora: &LoraRequest) -> Option<usize> {
        self.running.iter().position(|(running, _)| running.lora_name == lora.lora_name)
    }
}

impl LoraRequestsInfo {
    pub(super) fn new(max_loras: usize) -> Arc<Self> {
        Arc::new(Self { max_loras, state: Lock::new(LoraState { is_changed: true, ..LoraState::default() }) })
    }

    /// Notes the end of a step at a time in seconds since 1970.
    pub(super) fn step(&self, now: f64) {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.is_changed) {
            let names: Vec<&str> = state.running.iter().map(|(lora, _)| lora.lora_name.as_str()).collect();
            let names = names.join(",");
            state.shown.retain(|(shown, _)| *shown != names);
            if state.shown.len() >= MOST {
                state.shown.remove(0);
            }
            state.shown.push((names, now));
        } else if let Some((_, time)) = state.shown.last_mut() {
            *time = now;
        }
    }

    pub(super) fn append(&self, page: &mut Exposition) {
        page.family(NAME, "gauge", "Running stats on lora requests.");
        let max_loras = self.max_loras.to_string();
        for (names, time) in &self.state.lock().shown {
            let labels =
                [("max_lora", max_loras.as_str()), ("running_lora_adapters", names), ("waiting_lora_adapters", names)];
            page.sample(NAME, &labels, *time);
        }
    }
}

impl Metrics {
    /// The same counters of a server with adapters, of which so many may be in a step.
    pub(in super::super) fn with_adapters(mut self, max_loras: Option<usize>) -> Self {
        self.lora = max_loras.map(LoraRequestsInfo::new);
        self
    }

    /// Counts a request of an adapter from its first token on.
    pub(in super::super) fn run_adapter(&self, lora: &Arc<LoraRequest>) -> Option<RunningAdapter> {
        let info = self.lora.as_ref()?;
        let mut state = info.state.lock();
        match state.position(lora).and_then(|at| state.running.get_mut(at)) {
            Some((_, count)) => *count += 1,
            None => {
                state.running.push((Arc::clone(lora), 1));
                state.is_changed = true;
            }
        }
        Some(RunningAdapter { info: Arc::clone(info), lora: Arc::clone(lora) })
    }
}

impl Drop for RunningAdapter {
    fn drop(&mut self) {
        let mut state = self.info.state.lock();
        let Some(at) = state.position(&self.lora) else { return };
        if let Some((_, count)) = state.running.get_mut(at) {
            *count -= 1;
            if *count == 0 {
                state.running.remove(at);
                state.is_changed = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::stats::exposition::NumberFormat;

    fn adapter(name: &str) -> Arc<LoraRequest> {
        Arc::new(LoraRequest { lora_int_id: 1, lora_name: name.to_owned(), lora_path: "/none".to_owned() })
    }

    fn lines(metrics: &Metrics) -> Vec<String> {
        let mut page = Exposition::new(NumberFormat::Python, 0);
        metrics.lora.as_ref().unwrap().append(&mut page);
        page.into_text().lines().skip(2).map(|line| line.replace("vllm:lora_requests_info", "")).collect()
    }

    #[test]
    fn combinations_keep_the_time_of_their_last_step() {
        let metrics = Metrics::new(100).with_adapters(Some(2));
        let info = metrics.lora.as_ref().unwrap();
        assert!(lines(&metrics).is_empty());
        let first = metrics.run_adapter(&adapter("sql"));
        let second = metrics.run_adapter(&adapter("a\"b"));
        let again = metrics.run_adapter(&adapter("sql"));
        info.step(1.0);
        info.step(2.0);
        drop((first, second));
        info.step(3.0);
        drop(again);
        info.step(4.0);
        let labels = |names: &str| {
            format!("{{max_lora=\"2\",running_lora_adapters=\"{names}\",waiting_lora_adapters=\"{names}\"}}")
        };
        let expected = [("sql,a\\\"b", "2.0"), ("sql", "3.0"), ("", "4.0")];
        assert_eq!(lines(&metrics), expected.map(|(names, time)| format!("{} {time}", labels(names))));
    }

    #[test]
    fn what_is_longest_ago_goes_first() {
        let metrics = Metrics::new(100).with_adapters(Some(1));
        for number in 0..MOST + 3 {
            let _running = metrics.run_adapter(&adapter(&number.to_string()));
            metrics.lora.as_ref().unwrap().step(1.0);
        }
        let lines = lines(&metrics);
        assert_eq!((lines.len(), lines.first().unwrap().contains("running_lora_adapters=\"3\"")), (MOST, true));
    }
}
