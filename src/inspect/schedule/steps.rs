//! Runs a workload and writes its steps, in JSON as Python's `json.dumps` writes it: a space after commas and colons, ASCII only.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::ScheduleWorkload;
use crate::{
    engine::{
        kv_cache::{BlockStored, KvCacheEvent},
        scheduler::{Decisions, RequestId, ScheduledAs, Scheduler},
    },
    text::python::{json_float, write_string},
};

impl ScheduleWorkload {
    /// Runs the workload and writes a line of JSON for each step that scheduled, finished or changed something.
    pub(crate) fn write_steps(&self, out: &mut impl Write) -> io::Result<()> {
        let mut scheduler = Scheduler::new(self.scheduler(), self.kv_cache()).map_err(io::Error::other)?;
        let mut aborts: Vec<(i64, usize)> =
            self.requests.iter().enumerate().filter_map(|(at, request)| Some((request.abort_step?, at))).collect();
        aborts.sort_unstable();
        let (mut arrived, mut aborted, mut line) = (0, 0, String::new());
        for step in 0..self.max_steps {
            let now = i64::try_from(step).unwrap_or(i64::MAX);
            if arrived == self.requests.len() && !scheduler.has_requests() {
                break;
            }
            while self.requests.get(arrived).is_some_and(|request| request.step <= now) {
                if let Some(request) = self.request(arrived) {
                    scheduler.add_request(request).map_err(|(_, rejection)| io::Error::other(rejection))?;
                }
                arrived += 1;
            }
            // One whose step has passed, or is before its arrival, aborts nothing.
            let due = aborts.get(aborted..).unwrap_or_default().iter().take_while(|(at, _)| *at <= now);
            aborted += due.clone().count();
            scheduler.abort_requests(due.filter(|(at, _)| *at == now).map(|(_, request)| *request as RequestId));
            if let Some(fields) = self.step(step, &mut scheduler) {
                line.clear();
                write_value(&mut line, &fields);
                writeln!(out, "{line}")?;
            }
        }
        Ok(())
    }

    /// Runs one step; `None` where nothing happened.
    fn step(&self, step: u64, scheduler: &mut Scheduler) -> Option<Value> {
        scheduler.schedule();
        let mut fields = self.scheduled(step, scheduler);
        scheduler.update_from_output();
        let events: Vec<Value> = scheduler.events().map(event).collect();
        let is_empty = scheduler.decisions().scheduled.is_empty() && events.is_empty();
        fields.append(&mut self.outputs(scheduler.decisions()));
        fields.insert("events".to_owned(), events.into());
        (!is_empty).then(|| fields.into())
    }

    /// What is known before anything is sampled.
    fn scheduled(&self, step: u64, scheduler: &Scheduler) -> Map<String, Value> {
        let Decisions { scheduled, preempted, .. } = scheduler.decisions();
        let of = |kind: ScheduledAs| scheduled.iter().filter(move |scheduled| scheduled.scheduled_as == kind);
        let names = |kind| of(kind).map(|scheduled| self.name(scheduled.request_id)).collect::<Vec<_>>();
        let by_kind = of(ScheduledAs::New).chain(of(ScheduledAs::Running)).chain(of(ScheduledAs::Resumed));
        let mut preempted: Vec<&str> = preempted.iter().map(|id| self.name(*id)).collect();
        preempted.sort_unstable();
        fields([
            ("step", step.into()),
            ("scheduled", self.by_name(scheduled.iter().map(|it| (it.request_id, it.num_tokens.into())))),
            ("new", names(ScheduledAs::New).into()),
            ("resumed", names(ScheduledAs::Resumed).into()),
            ("preempted", preempted.into()),
            ("computed", self.by_name(by_kind.map(|it| (it.request_id, it.num_computed_tokens.into())))),
            ("blocks", {
                let ids = |id| scheduler.block_ids(id).into();
                self.by_name(scheduled.iter().map(|it| (it.request_id, ids(it.request_id))))
            }),
        ])
    }

    /// What was sampled, and the state after the step.
    fn outputs(&self, decisions: &Decisions) -> Map<String, Value> {
        let Decisions { outputs, stats, .. } = decisions;
        let bursts = outputs.chunk_by(|output, _| output.has_more).filter_map(|burst| {
            let tokens: Vec<u32> = burst.iter().map(|output| output.new_token_id).collect();
            Some((burst.first()?.request_id, tokens.into()))
        });
        let finished = outputs.iter().filter_map(|it| Some((it.request_id, it.finish_reason?.name().into())));
        let cached = outputs.iter().filter_map(|it| Some((it.request_id, it.num_cached_tokens?.into())));
        let prefix = &stats.prefix_cache_stats;
        fields([
            ("outputs", self.by_name(bursts)),
            ("finished", self.by_name(finished)),
            ("cached", self.by_name(cached)),
            ("running", stats.num_running_reqs.into()),
            ("waiting", stats.num_waiting_reqs.into()),
            ("usage", rounded(stats.kv_cache_usage).into()),
            ("prefix", json!({"requests": prefix.requests, "queries": prefix.queries, "hits": prefix.hits})),
        ])
    }

    fn by_name(&self, values: impl Iterator<Item = (RequestId, Value)>) -> Value {
        values.map(|(id, value)| (self.name(id), value)).collect()
    }

    fn name(&self, id: RequestId) -> &str {
        usize::try_from(id).ok().and_then(|at| self.requests.get(at)).map_or("", |arrival| &arrival.id)
    }
}

fn fields<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn event(event: KvCacheEvent<'_>) -> Value {
    match event {
        KvCacheEvent::BlockStored(stored) => self::stored(&stored),
        KvCacheEvent::BlockRemoved(hash) => {
            json!({"kind": "BlockRemoved", "block_hashes": [hash.external()], "medium": "GPU", "group_idx": 0})
        }
        KvCacheEvent::AllBlocksCleared => json!({"kind": "AllBlocksCleared"}),
    }
}

/// Fields without a value are left out.
fn stored(stored: &BlockStored<'_>) -> Value {
    let hashes: Vec<u64> = stored.block_hashes.iter().map(|hash| hash.external()).collect();
    let extra_keys = |block| {
        let keys: Vec<&str> = stored.extra_keys(block).collect();
        if keys.is_empty() { Value::Null } else { keys.into() }
    };
    let all = fields([
        ("kind", "BlockStored".into()),
        ("block_hashes", hashes.into()),
        ("parent_block_hash", json!(stored.parent_block_hash.map(|hash| hash.external()))),
        ("token_ids", stored.token_ids.into()),
        ("block_size", stored.block_size.into()),
        ("lora_id", json!(stored.lora.map(|lora| lora.lora_int_id))),
        ("medium", "GPU".into()),
        ("lora_name", json!(stored.lora.map(|lora| &lora.lora_name))),
        ("extra_keys", (0..stored.block_hashes.len()).map(extra_keys).collect()),
        ("group_idx", 0.into()),
        ("kv_cache_spec_kind", "full_attention".into()),
    ]);
    all.into_iter().filter(|(_, value)| !value.is_null()).collect()
}

/// Rounds a share to six places. Formatting rounds the exact value, as Python's `round` does; a product would be rounded twice.
fn rounded(share: f64) -> f64 {
    format!("{share:.6}").parse().unwrap_or(share)
}

/// Writes a value as `json.dumps` does.
fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Number(number) if number.is_f64() => out.push_str(&json_float(number.as_f64().unwrap_or_default())),
        Value::String(text) => write_string(text, true, out),
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                write_value(out, item);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            out.push('{');
            for (at, (name, value)) in fields.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                write_string(name, true, out);
                out.push_str(": ");
                write_value(out, value);
            }
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: impl Into<Value>) -> String {
        let mut out = String::new();
        write_value(&mut out, &value.into());
        out
    }

    #[test]
    fn shares_are_pythons() {
        let cases = [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (0.25, "0.25"),
            (0.050_847_457, "0.050847"),
            (0.0001, "0.0001"),
            (0.000_099_4, "9.9e-05"),
            (0.000_05, "5e-05"),
            (0.000_001_4, "1e-06"),
            (0.000_000_4, "0.0"),
        ];
        for (value, expected) in cases {
            assert_eq!(written(rounded(value)), expected, "{value}");
        }
    }

    #[test]
    fn texts_are_ascii() {
        assert_eq!(written("a\"\\\n\u{7f}é😀"), r#""a\"\\\n\u007f\u00e9\ud83d\ude00""#);
    }
}
