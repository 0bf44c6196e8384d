//! Runs a workload and writes its steps.

use std::io::{self, Write};

use super::{Workload, json, workload::Arrival};
use crate::engine::{
    kv_cache::{BlockStored, KvCacheEvent},
    scheduler::{Decisions, EngineCoreOutput, RequestId, ScheduledAs, ScheduledRequest, Scheduler},
};

impl Workload {
    /// Runs the workload and writes a line of JSON for each step that scheduled, finished or changed something.
    ///
    /// # Errors
    /// When `out` cannot be written.
    pub fn write_steps(&self, out: &mut impl Write) -> io::Result<()> {
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
            while let Some((at, request)) = aborts.get(aborted).filter(|(at, _)| *at <= now) {
                // One whose step has passed, or is before its arrival, aborts nothing.
                if *at == now {
                    scheduler.abort(*request as RequestId);
                }
                aborted += 1;
            }
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
        json::number(line, step);
        self.write_schedule(scheduler, line);
        scheduler.update_from_output();
        let decisions = scheduler.decisions();
        self.write_outputs(decisions, line);
        line.push_str(", \"events\": ");
        json::list(line, scheduler.events(), write_event);
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
        json::object(line, scheduled, name, |out, scheduled| json::number(out, scheduled.num_tokens));
        for (key, kind) in [("new", ScheduledAs::New), ("resumed", ScheduledAs::Resumed)] {
            json::number(line, format_args!(", \"{key}\": "));
            json::list(line, of(kind), |out, scheduled| json::text(out, name(&scheduled)));
        }
        let mut preempted: Vec<&str> = preempted.iter().map(|id| self.name(*id)).collect();
        preempted.sort_unstable();
        line.push_str(", \"preempted\": ");
        json::list(line, preempted, json::text);
        let by_kind = of(ScheduledAs::New).chain(of(ScheduledAs::Running)).chain(of(ScheduledAs::Resumed));
        line.push_str(", \"computed\": ");
        json::object(line, by_kind, name, |out, scheduled| json::number(out, scheduled.num_computed_tokens));
        line.push_str(", \"blocks\": ");
        json::object(line, scheduled, name, |out, scheduled| {
            json::list(out, scheduler.block_ids(scheduled.request_id), json::number);
        });
    }

    /// What was sampled, and the state after the step.
    fn write_outputs(&self, decisions: &Decisions, line: &mut String) {
        let Decisions { outputs, stats, .. } = decisions;
        let name = |output: &&EngineCoreOutput| self.name(output.request_id);
        let of_burst = |burst: &&[EngineCoreOutput]| burst.first().map_or("", |first| self.name(first.request_id));
        line.push_str(", \"outputs\": ");
        json::object(line, outputs.chunk_by(|output, _| output.has_more), of_burst, |out, burst| {
            json::list(out, burst.iter().map(|output| output.new_token_id), json::number);
        });
        line.push_str(", \"finished\": ");
        let finished = outputs.iter().filter(|output| output.finish_reason.is_some());
        json::object(line, finished, name, |out, output| {
            json::text(out, output.finish_reason.map_or("", |reason| reason.name()))
        });
        line.push_str(", \"cached\": ");
        let first = outputs.iter().filter(|output| output.num_cached_tokens.is_some());
        json::object(line, first, name, |out, output| json::number(out, output.num_cached_tokens.unwrap_or_default()));
        let (running, waiting) = (stats.num_running_reqs, stats.num_waiting_reqs);
        json::number(line, format_args!(", \"running\": {running}, \"waiting\": {waiting}, \"usage\": "));
        json::share(line, stats.kv_cache_usage);
        let prefix = &stats.prefix_cache_stats;
        let (requests, queries, hits) = (prefix.requests, prefix.queries, prefix.hits);
        let prefix =
            format_args!(", \"prefix\": {{\"requests\": {requests}, \"queries\": {queries}, \"hits\": {hits}}}");
        json::number(line, prefix);
    }

    /// The id of a request in the workload.
    fn name(&self, id: RequestId) -> &str {
        let arrival = usize::try_from(id).ok().and_then(|at| self.requests.get(at));
        arrival.map_or("", |Arrival { id, .. }| id)
    }
}

fn write_event(out: &mut String, event: KvCacheEvent<'_>) {
    match event {
        KvCacheEvent::BlockStored(stored) => write_stored(out, &stored),
        KvCacheEvent::BlockRemoved { block_hash } => {
            let hash = block_hash.external();
            json::number(
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
    json::list(out, stored.block_hashes, |out, hash| json::number(out, hash.external()));
    if let Some(parent) = stored.parent_block_hash {
        json::number(out, format_args!(", \"parent_block_hash\": {}", parent.external()));
    }
    out.push_str(", \"token_ids\": ");
    json::list(out, stored.token_ids, json::number);
    json::number(out, format_args!(", \"block_size\": {}", stored.block_size));
    if let Some(lora) = stored.lora {
        json::number(out, format_args!(", \"lora_id\": {}", lora.lora_int_id));
    }
    out.push_str(", \"medium\": \"GPU\"");
    if let Some(lora) = stored.lora {
        out.push_str(", \"lora_name\": ");
        json::text(out, &lora.lora_name);
    }
    out.push_str(", \"extra_keys\": ");
    json::list(out, 0..stored.block_hashes.len(), |out, block| {
        if stored.extra_keys(block).next().is_none() {
            return out.push_str("null");
        }
        json::list(out, stored.extra_keys(block), json::text);
    });
    out.push_str(", \"group_idx\": 0, \"kv_cache_spec_kind\": \"full_attention\"}");
}
