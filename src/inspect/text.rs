//! A summary laid out for people: aligned columns, human units.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use super::{Concurrency, PrefixSharing, SummaryReport};
use crate::base::{one_line::one_line, stats::Summary};

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

impl Display for SummaryReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.write_head(f)?;
        if self.records == 0 {
            return Ok(());
        }
        self.write_breakdown(f)?;
        self.write_tokens(f)?;
        self.write_latencies(f)?;
        if let Some(sharing) = &self.sharing {
            write_sharing(f, sharing)?;
        }
        match &self.concurrency {
            Some(concurrency) => write_concurrency(f, concurrency),
            None => Ok(()),
        }
    }
}

fn line(f: &mut Formatter<'_>, name: &str, value: impl Display) -> fmt::Result {
    writeln!(f, "{name:<16}{}", one_line(&value.to_string()))
}

impl SummaryReport {
    fn write_head(&self, f: &mut Formatter<'_>) -> fmt::Result {
        line(f, "trace", &self.path)?;
        for warning in &self.warnings {
            line(f, "warning", warning)?;
        }
        for finding in &self.bad_lines.first {
            line(f, "bad line", finding)?;
        }
        if !self.bad_lines.is_empty() {
            line(f, "bad lines", format_args!("{} that are not counted below", self.bad_lines.count))?;
        }
        if let Some(model) = &self.meta.model {
            line(f, "model", model)?;
        }
        if let Some(version) = &self.meta.vllm_version {
            line(f, "engine", format_args!("vLLM {version}"))?;
        }
        if let Some(tokenizer) = &self.meta.tokenizer {
            line(f, "tokenizer", format_args!("{} ({})", tokenizer.name, tokenizer.fingerprint))?;
        }
        let closed = self.end.as_ref().map_or(String::new(), |end| format!(", {} dropped", end.dropped));
        line(f, "records", format_args!("{} of {} requests{closed}", self.records, self.requests))?;
        if let Some(duration) = self.duration_ms {
            line(f, "duration", time(duration))?;
        }
        if let Some(rate) = self.arrival_rate {
            line(f, "arrivals", format_args!("{rate:.2} requests/s"))?;
        }
        let with = &self.carrying;
        line(
            f,
            "carrying",
            format_args!(
                "token ids {}, block hashes {}, prompt hash {}, arrival {}, request id {}, content {}",
                with.output_token_ids, with.block_hashes, with.prompt_hash, with.arrival, with.request_id, with.content
            ),
        )
    }

    fn write_breakdown(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        for (name, counts) in [
            ("endpoint", &self.by.endpoint),
            ("asked for", &self.by.model),
            ("stream", &self.by.stream),
            ("status", &self.by.status),
            ("outcome", &self.by.outcome),
            ("finish reason", &self.by.finish_reason),
        ] {
            line(f, name, listed(counts))?;
        }
        Ok(())
    }

    fn write_tokens(&self, f: &mut Formatter<'_>) -> fmt::Result {
        columns(f, "tokens", "total")?;
        let tokens = &self.tokens;
        for (name, total, summary) in [
            ("prompt", tokens.prompt_total, &tokens.prompt),
            ("output", tokens.output_total, &tokens.output),
            ("cached", tokens.cached_total, &tokens.cached),
        ] {
            row(f, name, &total.to_string(), summary.as_ref(), |value| format!("{value:.0}"))?;
        }
        Ok(())
    }

    fn write_latencies(&self, f: &mut Formatter<'_>) -> fmt::Result {
        columns(f, "latency", "count")?;
        let times = &self.latencies;
        // Without chunks of several tokens it would repeat the ITL.
        let chunk_gap = times.chunk_gap.filter(|gap| times.itl.is_some_and(|itl| itl.count != gap.count));
        for (name, summary) in [
            ("first event", &times.first_event),
            ("TTFT", &times.ttft),
            ("ITL", &times.itl),
            ("chunk gap", &chunk_gap),
            ("TPOT", &times.tpot),
            ("E2E", &times.e2e),
        ] {
            if name == "chunk gap" && summary.is_none() {
                continue;
            }
            let count = summary.map_or(0, |summary| summary.count);
            row(f, name, &count.to_string(), summary.as_ref(), time)?;
        }
        Ok(())
    }
}

fn listed(counts: &BTreeMap<String, u64>) -> String {
    let mut counts: Vec<_> = counts.iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

fn columns(f: &mut Formatter<'_>, name: &str, first: &str) -> fmt::Result {
    write!(f, "\n{name:<12}{first:>11}")?;
    for column in ["min", "mean", "p50", "p90", "p99", "p99.9", "max"] {
        write!(f, "{column:>11}")?;
    }
    writeln!(f)
}

fn row(
    f: &mut Formatter<'_>,
    name: &str,
    first: &str,
    summary: Option<&Summary>,
    spell: fn(f64) -> String,
) -> fmt::Result {
    write!(f, "{name:<12}{first:>11}")?;
    if let Some(s) = summary {
        for value in [s.min, s.mean, s.p50, s.p90, s.p99, s.p999, s.max] {
            write!(f, "{:>11}", spell(value))?;
        }
    }
    writeln!(f)
}

/// Milliseconds in the unit that suits them.
pub(super) fn time(ms: f64) -> String {
    match ms {
        ms if ms < 1.0 => format!("{:.0} µs", ms * 1e3),
        ms if ms < 1e3 => format!("{ms:.2} ms"),
        ms if ms < 6e5 => format!("{:.2} s", ms / 1e3),
        ms => format!("{:.1} min", ms / 6e4),
    }
}

fn write_sharing(f: &mut Formatter<'_>, sharing: &PrefixSharing) -> fmt::Result {
    writeln!(f)?;
    let percent = sharing.shared_ratio.unwrap_or(0.0) * 100.0;
    let of = format!("{} of {} prompt blocks came before ({percent:.1} %)", sharing.shared_blocks, sharing.blocks);
    line(f, "prefix sharing", of)?;
    let PrefixSharing { distinct_first_blocks: firsts, duplicate_prompts: again, deepest_shared_chain: deep, .. } =
        sharing;
    line(f, "", format_args!("{firsts} distinct first blocks, {again} repeated prompts, deepest chain {deep} blocks"))
}

fn write_concurrency(f: &mut Formatter<'_>, concurrency: &Concurrency) -> fmt::Result {
    writeln!(f)?;
    line(f, "concurrency", format_args!("max {}, mean {:.2}", concurrency.max, concurrency.mean))?;
    let width = time(concurrency.bucket_ms);
    line(f, "", format_args!("{} (one bar: {width})", sparkline(&concurrency.series)))
}

#[allow(clippy::cast_possible_truncation)] // 0 to 7
fn sparkline(series: &[f64]) -> String {
    let top = series.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    series.iter().filter_map(|value| BARS.get((value / top * 7.0).round() as usize)).collect()
}
