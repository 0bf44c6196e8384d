//! Figures as tables, and the files of the docs that hold them.
//!
//! `performance.md` is written by hand but for what stands between `<!-- measured: NAME -->` and `<!-- end -->`: that is
//! replaced.

use std::{fmt::Write, fs, io, path::Path};

use serde_json::{Value, json};

use crate::chart::{Scale, Series, chart};

/// A load average from which on figures are not to be trusted.
const BUSY: f64 = 0.7;

/// What it was measured on, and when.
pub(crate) fn machine() -> Value {
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
        "date": date(),
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// The day, as 2026-11-21.
fn date() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    // Days to a date, as Howard Hinnant's civil_from_days has it, for years from 1970 on.
    let days = since.as_secs() / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    format!("{:04}-{month:02}-{day:02}", year + era * 400 + u64::from(month <= 2))
}

/// All tables.
pub(crate) fn tables(found: &Value) -> String {
    sections(found).into_iter().map(|(_, table)| table + "\n").collect()
}

fn sections(found: &Value) -> Vec<(&'static str, String)> {
    let all = [
        ("machine", machine_line(found)),
        ("table", main_table(found)),
        ("many", load_table(&found["many"], &found["floor"]["many"])),
        ("scaling", load_table(&found["scaling"], &found["floor"]["scaling"])),
        ("peers", peers_table(found)),
    ];
    all.into_iter().filter(|(_, table)| !table.is_empty()).collect()
}

fn machine_line(found: &Value) -> String {
    let machine = &found["machine"];
    let text = |key: &str| machine[key].as_str().unwrap_or("?").to_owned();
    let load = machine["load_before"].as_str().and_then(|load| load.parse::<f64>().ok()).unwrap_or(0.0);
    let warning = if load > BUSY {
        "\n**The machine was busy with other work: latencies, rates and processor time say little here.**\n"
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
fn figure(value: &Value, decimals: usize) -> String {
    value.as_f64().map_or_else(|| "–".to_owned(), |value| format!("{value:.decimals$}"))
}

fn quantiles(of: &Value, names: &[&str], decimals: usize) -> String {
    names.iter().map(|name| figure(&of[*name], decimals)).collect::<Vec<_>>().join(" / ")
}

fn main_table(found: &Value) -> String {
    let mut rows: Vec<(&str, &str, String, String)> = Vec::new();
    let mut row = |name: &str, what, target, figures: &dyn Fn(&Value) -> String| {
        if !found[name].is_null() {
            let floor = &found["floor"][name];
            let floor = if floor.is_null() { "–".to_owned() } else { figures(floor) };
            rows.push((what, target, figures(&found[name]), floor));
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
    let mut table = String::from("| what | target | measured | floor |\n|---|---|---|---|\n");
    for (what, target, measured, floor) in &rows {
        let _ = writeln!(table, "| {what} | ≤ {target} | {measured} | {floor} |");
    }
    if rows.is_empty() { String::new() } else { table.replace("≤ 75,000", "≥ 75,000") }
}

fn megabytes(bytes: &Value) -> String {
    bytes.as_f64().map_or_else(|| "–".to_owned(), |bytes| format!("{:.1}", bytes / 1e6))
}

fn load_table(rows: &Value, floors: &Value) -> String {
    let (Some(rows), Some(floors)) = (rows.as_array(), floors.as_array()) else { return String::new() };
    let mut table = String::from(
        "| streams | events/s | server | held | lateness p50 / p99 / p99.9, ms | gap error p90 / p99, ms | \
         CPU per event, µs | cores | KB per stream | failures |\n|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for (name, row) in rows.iter().zip(floors).flat_map(|(row, floor)| [("vllm-vcr", row), ("floor", floor)]) {
        let cpu = row["cpu_us_per_event"].as_f64().unwrap_or(0.0);
        let rate = row["events_per_second"].as_f64().unwrap_or(0.0) * row["held"].as_f64().unwrap_or(0.0);
        let _ = writeln!(
            table,
            "| {} | {} | {name} | {:.1} % | {} | {} | {cpu:.1} | {:.2} | {:.1} | {} |",
            row["streams"],
            row["events_per_second"],
            row["held"].as_f64().unwrap_or(0.0) * 100.0,
            quantiles(&row["lateness_ms"], &["p50", "p99", "p999"], 3),
            quantiles(&row["gap_error_ms"], &["p90", "p99"], 2),
            cpu * rate / 1e6,
            row["bytes_per_stream"].as_f64().unwrap_or(0.0) / 1024.0,
            row["failures"]
        );
    }
    table
}

fn peers_table(found: &Value) -> String {
    let Some(peers) = found["peers"].as_object() else { return String::new() };
    let mut table = String::from(
        "| server | gap error p90 / p99, ms | drift p50, % | CPU per token, µs | CPU per small request, µs | \
         TTFT p50 / p99, ms | … of 512 at once | start, ms | idle, MB |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    let own = [("vllm-vcr", found)];
    let all = own.into_iter().chain(peers.iter().map(|(name, peer)| (name.as_str(), peer)));
    for (name, of) in all {
        let start = &of["start"]["start_ms"];
        let start = if start.is_object() { &start["p50"] } else { start };
        let _ = writeln!(
            table,
            "| {name} | {} | {} | {} | {} | {} | {} | {} | {} |",
            quantiles(&of["paced"]["gap_error_ms"], &["p90", "p99"], 2),
            quantiles(&of["paced"]["drift_percent"], &["p50"], 3),
            figure(&of["at_once"]["cpu_us_per_token"], 1),
            figure(&of["small"]["cpu_us_per_request"], 0),
            quantiles(&of["one_by_one"]["ttft_ms"], &["p50", "p99"], 2),
            quantiles(&of["burst"]["ttft_ms"], &["p50", "p99"], 1),
            figure(start, 0),
            megabytes(&of["start"]["idle_bytes"])
        );
    }
    table
}

/// Writes the JSON, the charts, and the tables into the page, where there is one.
pub(crate) fn write(directory: &Path, found: &Value) -> io::Result<()> {
    fs::write(directory.join("performance.json"), format!("{found:#}\n"))?;
    for (name, svg) in charts(found) {
        fs::write(directory.join(name), svg)?;
    }
    let path = directory.join("performance.md");
    let mut page = fs::read_to_string(&path)?;
    for (name, table) in sections(found) {
        let (begin, end) = (format!("<!-- measured: {name} -->\n"), "<!-- end -->");
        let Some((before, rest)) = page.split_once(&begin) else { continue };
        let Some((_, after)) = rest.split_once(end) else { continue };
        page = format!("{before}{begin}\n{}\n{end}{after}", table.trim_end().to_owned() + "\n");
    }
    fs::write(path, page)
}

fn charts(found: &Value) -> Vec<(&'static str, String)> {
    let Some(rows) = found["scaling"].as_array() else { return Vec::new() };
    let series = |name: &'static str, figure: &dyn Fn(&Value) -> Option<f64>| Series {
        name,
        points: rows.iter().filter_map(|row| Some((row["streams"].as_f64()?, figure(row)?))).collect(),
    };
    let late = |name: &'static str, key: &'static str| series(name, &|row| row["lateness_ms"][key].as_f64());
    let lateness = [late("p50", "p50"), late("p99", "p99"), late("p99.9", "p999")];
    let cores = [series("cores busy", &|row| {
        Some(row["cpu_us_per_event"].as_f64()? * row["events_per_second"].as_f64()? * row["held"].as_f64()? / 1e6)
    })];
    let memory = [series("MB", &|row| Some(row["resident"].as_f64()? / 1e6))];
    let across = "streams, each 5 tokens/s";
    vec![
        ("scaling-lateness.svg", chart("Lateness of events", (across, "ms"), Scale::Logarithmic, &lateness)),
        ("scaling-cpu.svg", chart("Processor time of the server", (across, "cores"), Scale::Linear, &cores)),
        ("scaling-memory.svg", chart("Resident memory of the server", (across, "MB"), Scale::Linear, &memory)),
    ]
}
