//! Figures as rows of a table, and the machine that they are of.

use std::fs;

use serde_json::{Value, json};
use time::OffsetDateTime;

/// A load average from which on figures are not to be trusted.
const BUSY: f64 = 0.7;

/// A row of the published table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableEntry {
    /// What was measured, with its unit.
    pub what: &'static str,
    /// What it should be at most, or at least.
    pub target: String,
    /// The figures of `play`.
    pub measured: String,
    /// Those of the floor.
    pub floor: String,
}

/// What it was measured on, and when.
#[must_use]
pub fn machine() -> Value {
    let first = |path: &str, key: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default().to_owned();
        line.rsplit(':').next().unwrap_or_default().trim().to_owned()
    };
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    json!({
        "processor": first("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": first("/proc/meminfo", "MemTotal"),
        "kernel": kernel.trim().split('-').next(),
        "load_before": load.split(' ').next(),
        "date": OffsetDateTime::now_utc().date().to_string(),
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// The machine in a line, and whether it was busy.
#[must_use]
pub fn machine_line(found: &Value) -> String {
    let machine = &found["machine"];
    let text = |key: &str| machine[key].as_str().unwrap_or("?").to_owned();
    let load = machine["load_before"].as_str().and_then(|load| load.parse::<f64>().ok()).unwrap_or(0.0);
    let warning = if load > BUSY {
        "\nThe machine was busy with other work: latencies, rates and processor time mean little here.\n"
    } else {
        ""
    };
    format!(
        "{}: {}, {} cores, {} memory, Linux {}; vllm-vcr {}; load average before the run {}.\n{warning}",
        text("date"),
        text("processor"),
        machine["cores"],
        text("memory"),
        text("kernel"),
        text("version"),
        text("load_before")
    )
}

/// A figure with so many decimals; `–` where there is none.
#[must_use]
pub fn figure(value: &Value, decimals: usize) -> String {
    value.as_f64().map_or_else(|| "–".to_owned(), |value| format!("{value:.decimals$}"))
}

/// Several figures of a distribution, by their names.
#[must_use]
pub fn quantiles(of: &Value, names: &[&str], decimals: usize) -> String {
    names.iter().map(|name| figure(&of[*name], decimals)).collect::<Vec<_>>().join(" / ")
}

/// The rows that were measured, of a table of all.
#[must_use]
pub fn entries(found: &Value) -> Vec<TableEntry> {
    let mut rows = Vec::new();
    let mut row = |name: &str, what, target: &str, figures: &dyn Fn(&Value) -> String| {
        if !found[name].is_null() {
            let floor = &found["floor"][name];
            let floor = if floor.is_null() { "–".to_owned() } else { figures(floor) };
            let bound = if name == "many" { "≥" } else { "≤" };
            let target = format!("{bound} {target}");
            rows.push(TableEntry { what, target, measured: figures(&found[name]), floor });
        }
    };
    row("paced", "10 ms gaps, 512 streams, seen by the client: error of gaps, p90 / p99, ms", "0.15 / 0.9", &|row| {
        quantiles(&row["gap_error_ms"], &["p90", "p99"], 3)
    });
    row("paced", "… drift of a stream of 512 tokens, p50 / p99, %", "0.05", &|row| {
        quantiles(&row["drift_percent"], &["p50", "p99"], 4)
    });
    row("lateness", "lateness, 1,000 streams × 50 tokens/s: p50 / p99 / p99.9, ms", "0.05 / 0.3 / 2", &|row| {
        quantiles(&row["lateness_ms"], &["p50", "p99", "p999"], 3)
    });
    row("many", "10,000 streams: most events/s with a p99 of lateness ≤ 1 ms", "75,000", &|rows| {
        let held = rows
            .as_array()
            .into_iter()
            .flatten()
            .filter(|row| row["lateness_ms"]["p99"].as_f64().is_some_and(|p99| p99 <= 1.0) && row["failures"] == 0);
        held.filter_map(|row| row["events_per_second"].as_u64()).max().unwrap_or(0).to_string()
    });
    row("memory", "memory per idle stream, bytes", "8,192", &|row| figure(&row["bytes_per_stream"], 0));
    row("at_once", "zero delay, 64 streams × 128 tokens: server CPU per token, µs", "1.0", &|row| {
        figure(&row["cpu_us_per_token"], 2)
    });
    row("small", "small answers that are no streams: server CPU per request, µs", "15", &|row| {
        figure(&row["cpu_us_per_request"], 1)
    });
    row("one_by_one", "TTFT, one request after the other, zero delay: p50 / p99, ms", "0.15", &|row| {
        quantiles(&row["ttft_ms"], &["p50", "p99"], 3)
    });
    row("burst", "TTFT of 512 requests at once, zero delay: p50 / p99, ms", "twice the floor's", &|row| {
        quantiles(&row["ttft_ms"], &["p50", "p99"], 1)
    });
    row("burst", "… over connections that are new, p50 / p99, ms", "twice the floor's", &|row| {
        quantiles(&row["new_ttft_ms"], &["p50", "p99"], 1)
    });
    row("start", "start on the built-in trace until it takes connections, p50, ms", "50", &|row| {
        quantiles(&row["start_ms"], &["p50"], 0)
    });
    row("start", "… until the first answer has come, p50, ms", "50", &|row| {
        quantiles(&row["first_answer_ms"], &["p50"], 0)
    });
    row("start", "idle memory, MB", "25", &|row| megabytes(&row["idle_bytes"]));
    rows
}

/// Bytes as megabytes.
#[must_use]
pub fn megabytes(bytes: &Value) -> String {
    bytes.as_f64().map_or_else(|| "–".to_owned(), |bytes| format!("{:.1}", bytes / 1e6))
}

/// A quantile of lateness over numbers of streams, of the rows at a pointer.
#[must_use]
pub fn lateness(found: &Value, rows: &str, quantile: &str) -> Vec<(f64, f64)> {
    points(found, rows, |row| row["lateness_ms"][quantile].as_f64())
}

/// A figure over numbers of streams, of the rows at a pointer.
pub fn points(found: &Value, rows: &str, figure: impl Fn(&Value) -> Option<f64>) -> Vec<(f64, f64)> {
    let point = |row: &Value| Some((row["streams"].as_f64()?, figure(row)?));
    found.pointer(rows).and_then(Value::as_array).into_iter().flatten().filter_map(point).collect()
}
