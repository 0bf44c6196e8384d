//! Figures as tables, and the files of the docs that hold them.
//!
//! `performance.md` is written by hand but for what stands between `<!-- measured: NAME -->` and `<!-- end -->`: that is
//! replaced.

use std::{fmt::Write, fs, io, path::Path};

use serde_json::Value;
use vllm_vcr::{
    benchmark::table::{entries, figure, lateness, machine_line, megabytes, points, quantiles},
    inspect::{Axis, Format, line_chart},
};

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

fn main_table(found: &Value) -> String {
    let rows = entries(found);
    let mut table = String::from("| what | target | measured | floor |\n|---|---|---|---|\n");
    for row in &rows {
        let _ = writeln!(table, "| {} | {} | {} | {} |", row.what, row.target, row.measured, row.floor);
    }
    if rows.is_empty() { String::new() } else { table }
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
    for (name, svg) in charts(found).into_iter().filter(|(_, svg)| !svg.is_empty()) {
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

/// Charts of the scaling study, each with its file's name.
fn charts(found: &Value) -> [(&'static str, String); 3] {
    let x = Axis { title: "streams, each 5 tokens/s", format: Format::Count, is_log: true };
    let late = |name, quantile| (name, lateness(found, "/scaling", quantile));
    let cores = |row: &Value| {
        Some(row["cpu_us_per_event"].as_f64()? * row["events_per_second"].as_f64()? * row["held"].as_f64()? / 1e6)
    };
    let resident = |row: &Value| Some(row["resident"].as_f64()? / 1e6);
    let axis = |title, format| Axis { title, format, is_log: format == Format::Millis };
    let lateness = [late("p50", "p50"), late("p99", "p99"), late("p99.9", "p999")];
    [
        ("scaling-lateness.svg", line_chart("Lateness of events", x, axis("lateness", Format::Millis), &lateness)),
        (
            "scaling-cpu.svg",
            line_chart(
                "Processor time of the server",
                x,
                axis("cores", Format::Decimal),
                &[("", points(found, "/scaling", cores))],
            ),
        ),
        (
            "scaling-memory.svg",
            line_chart("Resident memory", x, axis("MB", Format::Count), &[("", points(found, "/scaling", resident))]),
        ),
    ]
}
