//! Sections of a page: which figures stand where.

use std::fmt::Write;

use serde_json::Value;

use super::{
    chart::{Axis, Chart, ChartMark, ChartSeries},
    figures::{Cell, Format, PageFigures, token},
    html::escaped,
    tables::{Column, Table},
};

/// Values of a feature that are listed, at most.
const MOST_VALUES: usize = 10;

/// Prefixes that are listed, at most.
const MOST_PREFIXES: usize = 20;

/// Latencies by their names in the JSON.
const LATENCIES: [(&str, &str); 4] = [("ttft", "TTFT"), ("itl", "ITL"), ("tpot", "TPOT"), ("e2e", "E2E")];

const DISTRIBUTION: [(&str, &str); 8] = [
    ("Count", "count"),
    ("Min", "min"),
    ("Mean", "mean"),
    ("p50", "p50"),
    ("p90", "p90"),
    ("p99", "p99"),
    ("p99.9", "p999"),
    ("Max", "max"),
];

/// Figures of a trace as a whole, below its place in the JSON.
const TOTALS: [Column; 15] = [
    ("Model", "/summary/meta/model", None),
    ("vLLM", "/summary/meta/vllm_version", None),
    ("Recorder", "/summary/meta/recorder", None),
    ("Started", "/summary/meta/started_at", None),
    ("Records", "/summary/records", Some(Format::Count)),
    ("Requests", "/summary/requests", Some(Format::Count)),
    ("Failed requests", "/failed/count", Some(Format::Count)),
    ("Bad lines", "/summary/bad_lines/count", Some(Format::Count)),
    ("Duration", "/summary/duration_ms", Some(Format::Millis)),
    ("Arrivals", "/summary/arrival_rate", Some(Format::PerSecond)),
    ("Prompt tokens", "/summary/tokens/prompt_total", Some(Format::Count)),
    ("Cached tokens", "/summary/tokens/cached_total", Some(Format::Count)),
    ("Output tokens", "/summary/tokens/output_total", Some(Format::Count)),
    ("Most requests at once", "/summary/concurrency/max", Some(Format::Count)),
    ("Mean requests at once", "/summary/concurrency/mean", Some(Format::Decimal)),
];

const RESPONSE: [Column; 15] = [
    ("Request", "request_id", None),
    ("Arrival", "at_s", Some(Format::Seconds)),
    ("E2E", "e2e_ms", Some(Format::Millis)),
    ("TTFT", "ttft_ms", Some(Format::Millis)),
    ("TPOT", "tpot_ms", Some(Format::Millis)),
    ("Longest gap", "longest_gap_ms", Some(Format::Millis)),
    ("Prompt", "prompt_tokens", Some(Format::Count)),
    ("Cached", "cached_tokens", Some(Format::Count)),
    ("Output", "output_tokens", Some(Format::Count)),
    ("Status", "status", None),
    ("Outcome", "outcome", None),
    ("Finish", "finish_reason", None),
    ("Endpoint", "endpoint", None),
    ("Session", "session", None),
    ("Model", "model", None),
];

/// Figures of a failed request.
const FAILURE: [Column; 8] = [
    ("Request", "request_id", None),
    ("Arrival", "at_s", Some(Format::Seconds)),
    ("Status", "status", None),
    ("Outcome", "outcome", None),
    ("Error", "error", None),
    ("E2E", "e2e_ms", Some(Format::Millis)),
    ("Endpoint", "endpoint", None),
    ("Session", "session", None),
];

const SECONDS: Axis = Axis { title: "Seconds from the first arrival", format: Format::Seconds, is_log: false };

pub(super) fn letter(run: usize) -> char {
    ('A'..='Z').nth(run).unwrap_or('?')
}

fn cell(figures: &PageFigures, pointer: &str, format: Option<Format>) -> Cell {
    match format {
        Some(format) => figures.number(pointer, format),
        None => figures.name(pointer),
    }
}

/// The heading of what belongs to one run; nothing where it is the only one.
fn heading(figures: &PageFigures, run: usize) -> String {
    if figures.count("/runs") < 2 {
        return String::new();
    }
    let name = escaped(figures.text(&format!("/runs/{run}/name")));
    format!("<h3><span class=\"letter run{run}\">{}</span> <bdi>{name}</bdi></h3>\n", letter(run))
}

/// Titles of columns: the letters of the runs, or `alone` where there is one.
fn run_titles(runs: usize, alone: &'static str) -> impl Iterator<Item = String> {
    (0..runs).map(move |run| if runs < 2 { alone.to_owned() } else { letter(run).to_string() })
}

/// Warnings, totals, distributions, the comparison, and records by feature.
pub(super) fn overview(figures: &PageFigures) -> String {
    let runs = figures.count("/runs");
    let mut totals = Table::new("Traces", std::iter::once(String::new()).chain(run_titles(runs, "Value")));
    for (title, pointer, format) in TOTALS {
        let cells: Vec<Cell> = (0..runs).map(|run| cell(figures, &format!("/runs/{run}{pointer}"), format)).collect();
        if cells.iter().any(|cell| !cell.html.contains("class=\"none\"")) {
            totals.row(std::iter::once(Cell::label(title)).chain(cells));
        }
    }
    let latencies = [("First event", "first_event")].into_iter().chain(LATENCIES.map(|(name, title)| (title, name)));
    let latencies =
        distributions(figures, "Latencies of all responses", "/summary/latencies", latencies, Format::Millis);
    let tokens = [("Prompt", "prompt"), ("Cached", "cached"), ("Output", "output")];
    let tokens = distributions(figures, "Tokens", "/summary/tokens", tokens, Format::Count);
    warnings(figures)
        + &comparison(figures)
        + &beside(&[latencies, tokens])
        + &beside(&[totals.html(), features(figures)])
}

/// Tables side by side, where there is room.
fn beside(tables: &[String]) -> String {
    format!("<div class=\"beside\">\n{}</div>\n", tables.concat())
}

fn warnings(figures: &PageFigures) -> String {
    let lists = (0..figures.count("/runs")).map(|run| format!("/runs/{run}/summary/warnings"));
    let mut items = String::new();
    for (run, list) in lists.enumerate() {
        for warning in figures.at(&list).as_array().into_iter().flatten().filter_map(Value::as_str) {
            let _ = write!(items, "<li>{} <bdi>{}</bdi></li>", letter(run), escaped(warning));
        }
    }
    if items.is_empty() { items } else { format!("<ul class=\"warnings\" aria-label=\"Warnings\">{items}</ul>\n") }
}

fn distributions<'a>(
    figures: &PageFigures,
    caption: &str,
    below: &str,
    rows: impl IntoIterator<Item = (&'a str, &'a str)>,
    format: Format,
) -> String {
    let runs = figures.count("/runs");
    let mut table = Table::new(caption, std::iter::once("").chain(DISTRIBUTION.map(|(title, _)| title)));
    for (title, name) in rows {
        for run in 0..runs {
            let title = if runs > 1 { format!("{title} {}", letter(run)) } else { title.to_owned() };
            let place = format!("/runs/{run}{below}/{name}");
            if figures.at(&place).is_null() {
                continue;
            }
            let number = |(_, figure): (&str, &str)| {
                let format = if figure == "count" { Format::Count } else { format };
                figures.number(&format!("{place}/{figure}"), format)
            };
            table.row(std::iter::once(Cell::label(&title)).chain(DISTRIBUTION.map(number)));
        }
    }
    table.html()
}

fn comparison(figures: &PageFigures) -> String {
    let Value::Object(metrics) = figures.at("/comparison/metrics") else { return String::new() };
    let head = ["", "A", "B", "Change", "Difference, from", "to (95 %)", ""];
    let mut table = Table::new("B compared with A: responses that ended well", head);
    for (name, compared) in metrics {
        let format = match compared.get("unit").and_then(Value::as_str) {
            Some("ms") => Format::Millis,
            Some("share") => Format::Share,
            Some("per_second") => Format::PerSecond,
            Some("requests") => Format::Count,
            _ => Format::Decimal,
        };
        let place = format!("/comparison/metrics/{}", token(name));
        let number = |figure: &str, format| figures.number(&format!("{place}/{figure}"), format);
        let shows = match compared.get("judgement").and_then(Value::as_str) {
            Some("better") => "better",
            Some("worse") => "worse",
            Some("other") => "changed",
            Some(_) => "no change shown",
            None => "",
        };
        let mut shown = Cell::label(shows);
        shown.html =
            format!("<span class=\"judgement {}\">{}</span>", shows.split(' ').next().unwrap_or(""), shown.html);
        table.row([
            Cell::label(name),
            number("a", format),
            number("b", format),
            number("change_percent", Format::Change),
            number("interval/low", format),
            number("interval/high", format),
            shown,
        ]);
    }
    table.html()
}

/// Records by endpoint, model and so on: the most frequent values of any run.
fn features(figures: &PageFigures) -> String {
    let runs = figures.count("/runs");
    let mut table = Table::new(
        "Records by feature",
        ["".to_owned(), "Value".to_owned()].into_iter().chain(run_titles(runs, "Records")),
    );
    for (title, feature) in [
        ("Endpoint", "endpoint"),
        ("Model", "model"),
        ("Streamed", "stream"),
        ("Status", "status"),
        ("Outcome", "outcome"),
        ("Finish reason", "finish_reason"),
    ] {
        let counts =
            |run: usize| figures.at(&format!("/runs/{run}/summary/by/{feature}")).as_object().into_iter().flatten();
        let mut values: std::collections::BTreeMap<&String, u64> = std::collections::BTreeMap::new();
        for (value, count) in (0..runs).flat_map(counts) {
            *values.entry(value).or_default() += count.as_u64().unwrap_or_default();
        }
        let left_out = values.len().saturating_sub(MOST_VALUES);
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (value, _) in values.iter().take(MOST_VALUES) {
            let number =
                |run| figures.number(&format!("/runs/{run}/summary/by/{feature}/{}", token(value)), Format::Count);
            let mut name = Cell::label(value);
            name.html = format!("<bdi>{}</bdi>", name.html);
            table.row([Cell::label(title), name].into_iter().chain((0..runs).map(number)));
        }
        if left_out > 0 {
            table.row([Cell::label(title), Cell::label(&format!("{left_out} further values"))]);
        }
    }
    table.html()
}

/// Survival curves, and quantiles of two runs against each other.
pub(super) fn latencies(figures: &PageFigures) -> String {
    let time = |title| Axis { title, format: Format::Millis, is_log: true };
    let mut charts = Vec::new();
    for (name, title) in LATENCIES {
        charts.push(Chart {
            title: format!("{title}: share of the values that are larger"),
            x: time("Time"),
            y: Axis { title: "Share that is larger", format: Format::Share, is_log: true },
            series: per_run(figures, ChartMark::Line, &format!("/survival/{name}")),
            has_diagonal: false,
        });
    }
    for (name, title) in LATENCIES.into_iter().filter(|_| !figures.at("/quantiles").is_null()) {
        let pointer = format!("/quantiles/{name}");
        charts.push(Chart {
            title: format!("{title}: quantiles of B against A (Q–Q)"),
            x: time("A"),
            y: time("B"),
            series: vec![ChartSeries { name: "Quantiles".to_owned(), run: 1, mark: ChartMark::Dots, pointer }],
            has_diagonal: true,
        });
    }
    let note = "<p class=\"note\">All responses that have the latency, whether or not they ended well. Both axes are logarithmic. \
                Above the diagonal B is slower.</p>\n";
    let note = if figures.at("/quantiles").is_null() {
        note.replace(" Above the diagonal B is slower.", "")
    } else {
        note.to_owned()
    };
    note + &grid(figures, &charts)
}

/// TTFT, tokens and requests in the course of the runs.
pub(super) fn over_time(figures: &PageFigures) -> String {
    let mut ttft = per_run(figures, ChartMark::Line, "/ttft_over_time/p50");
    ttft.iter_mut().for_each(|series| series.name = format!("{} median", series.name).trim().to_owned());
    let mut largest = per_run(figures, ChartMark::Dots, "/ttft_over_time/max");
    largest.iter_mut().for_each(|series| series.name = format!("{} largest", series.name).trim().to_owned());
    ttft.append(&mut largest);
    let y = |title, format, is_log| Axis { title, format, is_log };
    let chart = |title: &str, y, series| Chart { title: title.to_owned(), x: SECONDS, y, series, has_diagonal: false };
    let charts = [
        chart("TTFT of neighbouring responses", y("TTFT", Format::Millis, true), ttft),
        chart(
            "Output tokens per second",
            y("Tokens per second", Format::Count, false),
            per_run(figures, ChartMark::Steps, "/output_tokens_per_s"),
        ),
        chart(
            "Requests at once",
            y("Requests", Format::Decimal, false),
            per_run(figures, ChartMark::Steps, "/summary/concurrency"),
        ),
    ];
    let html = grid(figures, &charts);
    if html.is_empty() { "<p class=\"nothing\">The traces have no arrival times.</p>\n".to_owned() } else { html }
}

fn per_run(figures: &PageFigures, mark: ChartMark, below: &str) -> Vec<ChartSeries> {
    let runs = figures.count("/runs");
    let name = |run| if runs < 2 { String::new() } else { letter(run).to_string() };
    (0..runs).map(|run| ChartSeries { name: name(run), run, mark, pointer: format!("/runs/{run}{below}") }).collect()
}

fn grid(figures: &PageFigures, charts: &[Chart]) -> String {
    let charts: String = charts.iter().map(|chart| chart.html(figures)).collect();
    if charts.is_empty() { charts } else { format!("<div class=\"charts\">\n{charts}</div>\n") }
}

/// What belongs to each run, under its heading.
fn each_run(figures: &PageFigures, section: impl Fn(usize) -> String) -> String {
    (0..figures.count("/runs")).map(|run| heading(figures, run) + &section(run)).collect()
}

/// Prefixes that prompts share, of each run.
pub(super) fn prefixes(figures: &PageFigures) -> String {
    each_run(figures, |run| prefixes_of(figures, run))
}

fn prefixes_of(figures: &PageFigures, run: usize) -> String {
    let place = format!("/runs/{run}/prefixes");
    if figures.at(&place).is_null() {
        return "<p class=\"nothing\">The trace has no block hashes.</p>\n".to_owned();
    }
    let sharing = format!("/runs/{run}/summary/sharing");
    let mut totals = Table::new("Prefix sharing", ["", "Value"]);
    for (title, figure, format) in [
        ("Blocks of all prompts", "blocks", Format::Count),
        ("Blocks that an earlier prompt had", "shared_blocks", Format::Count),
        ("Share of them", "shared_ratio", Format::Share),
        ("Distinct first blocks", "distinct_first_blocks", Format::Count),
        ("Repeated prompts", "duplicate_prompts", Format::Count),
        ("Longest shared prefix, in blocks", "deepest_shared_chain", Format::Count),
    ] {
        totals.row([Cell::label(title), figures.number(&format!("{sharing}/{figure}"), format)]);
    }
    let shared = figures.at(&format!("{place}/shared")).as_array().map_or(&[][..], Vec::as_slice);
    let reused = |at: &usize| shared.get(*at).and_then(|prefix| prefix.get("reused_blocks")?.as_u64());
    let mut order: Vec<usize> = (0..shared.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(reused(at)));
    let head = ["Prefix up to block", "Prompts", "Blocks", "Own blocks", "Reused blocks"];
    let mut table = Table::new("Prefixes that save most", head).sortable();
    for at in order.into_iter().take(MOST_PREFIXES) {
        let number = |figure| figures.number(&format!("{place}/shared/{at}/{figure}"), Format::Count);
        let hash = figures.name(&format!("{place}/shared/{at}/hash"));
        table.row([hash].into_iter().chain(["prompts", "length", "own_blocks", "reused_blocks"].map(number)));
    }
    super::tree::html(figures, &place) + &beside(&[totals.html(), table.html()])
}

/// The slowest responses of each run.
pub(super) fn slowest(figures: &PageFigures) -> String {
    let lists = [("Largest E2E", "slowest_e2e"), ("Largest TTFT", "slowest_ttft")];
    let table = |run, (caption, list)| responses(figures, caption, &format!("/runs/{run}/{list}"), &RESPONSE);
    each_run(figures, |run| lists.map(|list| table(run, list)).concat())
}

fn responses(figures: &PageFigures, caption: &str, list: &str, columns: &[Column]) -> String {
    let count = figures.count(list);
    let is_known = |name: &str| (0..count).any(|at| !figures.at(&format!("{list}/{at}/{name}")).is_null());
    let known: Vec<&Column> = columns.iter().filter(|(_, name, _)| is_known(name)).collect();
    let titles = std::iter::once("").chain(known.iter().map(|(title, ..)| *title));
    let mut table = Table::new(caption, titles).sortable();
    for at in 0..count {
        let cells = known.iter().map(|(_, name, format)| cell(figures, &format!("{list}/{at}/{name}"), *format));
        table.row(std::iter::once(Cell::label(&(at + 1).to_string())).chain(cells));
    }
    table.html()
}

/// Requests of each run that failed.
pub(super) fn errors(figures: &PageFigures) -> String {
    each_run(figures, |run| {
        let place = format!("/runs/{run}/failed");
        let mut kinds = Table::new("Failed requests by status and outcome", ["Status", "Outcome", "Requests"]);
        for at in 0..figures.count(&format!("{place}/by_kind")) {
            let pointer = |name: &str| format!("{place}/by_kind/{at}/{name}");
            let count = figures.number(&pointer("count"), Format::Count);
            kinds.row([figures.name(&pointer("status")), figures.name(&pointer("outcome")), count]);
        }
        let first = format!("{place}/first");
        let is_any = figures.count(&first) > 0;
        let first = is_any.then(|| responses(figures, "The first of them", &first, &FAILURE));
        kinds.html() + &first.unwrap_or_default()
    })
}
