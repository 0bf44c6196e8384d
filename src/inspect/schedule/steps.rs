//! Runs a workload and writes its steps, in JSON as Python's `json.dumps` writes it: a space after commas and colons, ASCII only.

use std::{
    fmt::{Display, Write as _},
    io::{self, Write},
};

use super::{ScheduleWorkload, workload::ScheduledArrival};
use crate::{
    engine::{
        kv_cache::{BlockStored, KvCacheEvent},
        scheduler::{Decisions, EngineCoreOutput, RequestId, ScheduledAs, ScheduledRequest, Scheduler},
    },
    text::python::{json_float, write_string},
};

impl ScheduleWorkload {
    /// Runs the workload and writes a line of JSON for each step that scheduled, finished or changed something.
    ///
    /// # Errors
    /// When `out` cannot be written.
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
            line.clear();
            self.write_step(step, &mut scheduler, &mut line);
            out.write_all(line.as_bytes())?;
        }
        Ok(())
    }

    /// Runs one step and writes its line, unless nothing happened.
    fn write_step(&self, step: u64, scheduler: &mut Scheduler, line: &mut String) {
        scheduler.schedule();
        line.push_str("{\"step\": ");
        number(line, step);
        self.write_schedule(scheduler, line);
        scheduler.update_from_output();
        let decisions = scheduler.decisions();
        self.write_outputs(decisions, line);
        line.push_str(", \"events\": ");
        list(line, scheduler.events(), write_event);
        line.push_str("}\n");
        let is_empty = decisions.scheduled.is_empty() && scheduler.events().next().is_none();
        if is_empty {
            line.clear();
        }
    }

    /// What is known before anything is sampled.
    fn write_schedule(&self, scheduler: &Scheduler, line: &mut String) {
        let Decisions { scheduled, preempted, .. } = scheduler.decisions();
        let name = |scheduled: &&ScheduledRequest| self.name(scheduled.request_id);
        let of = |kind: ScheduledAs| scheduled.iter().filter(move |scheduled| scheduled.scheduled_as == kind);
        line.push_str(", \"scheduled\": ");
        object(line, scheduled, name, |out, scheduled| number(out, scheduled.num_tokens));
        for (key, kind) in [("new", ScheduledAs::New), ("resumed", ScheduledAs::Resumed)] {
            number(line, format_args!(", \"{key}\": "));
            list(line, of(kind), |out, scheduled| text(out, name(&scheduled)));
        }
        let mut preempted: Vec<&str> = preempted.iter().map(|id| self.name(*id)).collect();
        preempted.sort_unstable();
        line.push_str(", \"preempted\": ");
        list(line, preempted, text);
        let by_kind = of(ScheduledAs::New).chain(of(ScheduledAs::Running)).chain(of(ScheduledAs::Resumed));
        line.push_str(", \"computed\": ");
        object(line, by_kind, name, |out, scheduled| number(out, scheduled.num_computed_tokens));
        line.push_str(", \"blocks\": ");
        object(line, scheduled, name, |out, scheduled| {
            list(out, scheduler.block_ids(scheduled.request_id), number);
        });
    }

    /// What was sampled, and the state after the step.
    fn write_outputs(&self, decisions: &Decisions, line: &mut String) {
        let Decisions { outputs, stats, .. } = decisions;
        let name = |output: &&EngineCoreOutput| self.name(output.request_id);
        let of_burst = |burst: &&[EngineCoreOutput]| burst.first().map_or("", |first| self.name(first.request_id));
        line.push_str(", \"outputs\": ");
        object(line, outputs.chunk_by(|output, _| output.has_more), of_burst, |out, burst| {
            list(out, burst.iter().map(|output| output.new_token_id), number);
        });
        line.push_str(", \"finished\": ");
        let finished = outputs.iter().filter(|output| output.finish_reason.is_some());
        object(line, finished, name, |out, output| text(out, output.finish_reason.map_or("", |reason| reason.name())));
        line.push_str(", \"cached\": ");
        let first = outputs.iter().filter(|output| output.num_cached_tokens.is_some());
        object(line, first, name, |out, output| number(out, output.num_cached_tokens.unwrap_or_default()));
        let (running, waiting) = (stats.num_running_reqs, stats.num_waiting_reqs);
        number(line, format_args!(", \"running\": {running}, \"waiting\": {waiting}, \"usage\": "));
        share(line, stats.kv_cache_usage);
        let prefix = &stats.prefix_cache_stats;
        let (requests, queries, hits) = (prefix.requests, prefix.queries, prefix.hits);
        let prefix =
            format_args!(", \"prefix\": {{\"requests\": {requests}, \"queries\": {queries}, \"hits\": {hits}}}");
        number(line, prefix);
    }

    fn name(&self, id: RequestId) -> &str {
        let arrival = usize::try_from(id).ok().and_then(|at| self.requests.get(at));
        arrival.map_or("", |ScheduledArrival { id, .. }| id)
    }
}

fn write_event(out: &mut String, event: KvCacheEvent<'_>) {
    match event {
        KvCacheEvent::BlockStored(stored) => write_stored(out, &stored),
        KvCacheEvent::BlockRemoved { block_hash } => {
            let hash = block_hash.external();
            number(
                out,
                format_args!(
                    "{{\"kind\": \"BlockRemoved\", \"block_hashes\": [{hash}], \"medium\": \"GPU\", \"group_idx\": 0}}"
                ),
            );
        }
        KvCacheEvent::AllBlocksCleared => out.push_str("{\"kind\": \"AllBlocksCleared\"}"),
    }
}

/// Fields without a value are left out.
fn write_stored(out: &mut String, stored: &BlockStored<'_>) {
    out.push_str("{\"kind\": \"BlockStored\", \"block_hashes\": ");
    list(out, stored.block_hashes, |out, hash| number(out, hash.external()));
    if let Some(parent) = stored.parent_block_hash {
        number(out, format_args!(", \"parent_block_hash\": {}", parent.external()));
    }
    out.push_str(", \"token_ids\": ");
    list(out, stored.token_ids, number);
    number(out, format_args!(", \"block_size\": {}", stored.block_size));
    if let Some(lora) = stored.lora {
        number(out, format_args!(", \"lora_id\": {}", lora.lora_int_id));
    }
    out.push_str(", \"medium\": \"GPU\"");
    if let Some(lora) = stored.lora {
        out.push_str(", \"lora_name\": ");
        text(out, &lora.lora_name);
    }
    out.push_str(", \"extra_keys\": ");
    list(out, 0..stored.block_hashes.len(), |out, block| {
        if stored.extra_keys(block).next().is_none() {
            return out.push_str("null");
        }
        list(out, stored.extra_keys(block), text);
    });
    out.push_str(", \"group_idx\": 0, \"kv_cache_spec_kind\": \"full_attention\"}");
}

fn list<T>(out: &mut String, items: impl IntoIterator<Item = T>, mut item: impl FnMut(&mut String, T)) {
    out.push('[');
    for (at, value) in items.into_iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        item(out, value);
    }
    out.push(']');
}

/// Writes an object with one entry for each item; `entry` gives the key and writes the value behind it.
fn object<'a, T>(
    out: &mut String,
    items: impl IntoIterator<Item = T>,
    key: impl Fn(&T) -> &'a str,
    mut value: impl FnMut(&mut String, T),
) {
    out.push('{');
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        text(out, key(&item));
        out.push_str(": ");
        value(out, item);
    }
    out.push('}');
}

fn number(out: &mut String, number: impl Display) {
    let _infallible = write!(out, "{number}");
}

fn text(out: &mut String, text: &str) {
    write_string(text, true, out);
}

/// Writes a share from 0 to 1, rounded to six places.
fn share(out: &mut String, share: f64) {
    // Formatting rounds the exact value, as Python's `round` does; a product would be rounded twice.
    out.push_str(&json_float(format!("{share:.6}").parse().unwrap_or(share)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut String)) -> String {
        let mut out = String::new();
        write(&mut out);
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
            assert_eq!(written(|out| share(out, value)), expected, "{value}");
        }
    }

    #[test]
    fn texts_are_ascii() {
        assert_eq!(written(|out| text(out, "a\"\\\n\u{7f}é😀")), r#""a\"\\\n\u007f\u00e9\ud83d\ude00""#);
    }
}
