//! Charts as SVG: axes, a line or dots for each run, and where the values are in the report's JSON. [`line_chart`] is one as a file of its own.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{
    figures::{Format, PageFigures},
    html::escaped,
};

/// Size of a chart and the margins of its plot, in units of the drawing.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 28.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 46.0;

/// Smallest value on a logarithmic axis of times: the resolution of the histograms, in milliseconds.
const SMALLEST: f64 = 1e-3;

/// Room of a file around the plot: above for the title, on the right for the names of lines.
const ABOVE: f64 = 26.0;
const BESIDE: f64 = 80.0;

/// Lines of text do not come closer, in units of the drawing.
const LINE_HEIGHT: f64 = 13.0;

/// The part of the page's style sheet about charts, for a file.
const STYLE: &str = "text{fill:#56616c;font:12px sans-serif}.axis line{stroke:#dde2e7}.axis text{text-anchor:middle}\
    [data-axis=y] text{text-anchor:end}.axis .title{text-anchor:middle}.series{fill:none;stroke-width:2}\
    .run0{stroke:#0b62c4}.run1{stroke:#c2410c}.run2{stroke:#0f766e;stroke-dasharray:3 3}.run3{stroke:#8b2fc9;stroke-dasharray:3 3}";

/// Scale of an axis.
#[derive(Debug, Clone, Copy)]
pub struct Axis {
    /// What it is.
    pub title: &'static str,
    /// How its values are written.
    pub format: Format,
    /// Whether it is by powers of ten.
    pub is_log: bool,
}

/// Draws up to four lines, each with its name and its points from left to right, as an SVG file; empty where there are no points.
#[must_use]
pub fn line_chart(title: &str, x: Axis, y: Axis, lines: &[(&str, Vec<(f64, f64)>)]) -> String {
    let points: Vec<_> = lines.iter().map(|(_, points)| points).collect();
    let series = |(run, (name, _)): (usize, &(&str, _))| ChartSeries {
        name: (*name).to_owned(),
        run,
        mark: ChartMark::Line,
        pointer: format!("/{run}"),
    };
    let series = lines.iter().enumerate().map(series).collect();
    Chart { title: title.to_owned(), x, y, series, has_diagonal: false }.file(&PageFigures::of_json(json!(points)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChartMark {
    Line,
    Dots,
    /// Each value holds from its place to the next one.
    Steps,
}

/// Values of one run.
#[derive(Debug)]
pub(super) struct ChartSeries {
    pub(super) name: String,
    /// Number of the run, for the colour.
    pub(super) run: usize,
    pub(super) mark: ChartMark,
    /// Where they are in the JSON.
    pub(super) pointer: String,
}

#[derive(Debug)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) series: Vec<ChartSeries>,
    /// Both axes have one scale, and a line shows where values are equal.
    pub(super) has_diagonal: bool,
}

impl Chart {
    /// The chart as HTML; nothing where there are no values.
    pub(super) fn html(&self, figures: &PageFigures) -> String {
        let drawn = self.drawn(figures);
        if drawn.is_empty() {
            return String::new();
        }
        let (x, y) = self.scales(&drawn);
        let title = escaped(&self.title);
        let keys: String = drawn.iter().filter(|_| self.series.len() > 1).map(|(series, _)| key(series)).collect();
        let mut svg = format!(
            "<figure class=\"chart\">\n<figcaption><span>{title}</span>{keys}</figcaption>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}. {}\" data-x=\"{}\" data-y=\"{}\">\n",
            escaped(&self.description(&drawn)),
            x.attribute(),
            y.attribute(),
        );
        self.plot(&mut svg, &drawn, (&x, &y));
        svg + "</svg>\n</figure>\n"
    }

    /// The chart as a file of its own, with a name at the end of each line.
    fn file(&self, figures: &PageFigures) -> String {
        let drawn = self.drawn(figures);
        if drawn.is_empty() {
            return String::new();
        }
        let (x, y) = self.scales(&drawn);
        let (title, description) = (escaped(&self.title), escaped(&self.description(&drawn)));
        let (width, height) = (WIDTH + BESIDE, HEIGHT + ABOVE);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 -{ABOVE} {width} {height}\" role=\"img\" aria-label=\"{title}. {description}\">\n\
             <style>{STYLE}</style>\n<rect y=\"-{ABOVE}\" width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"-8\">{title}</text>\n"
        );
        self.plot(&mut svg, &drawn, (&x, &y));
        let end = |(series, points): &(&ChartSeries, Vec<(f64, f64)>)| {
            let (across, up) = *points.last()?;
            Some((y.at(up), x.at(across), escaped(&series.name)))
        };
        let mut ends: Vec<(f64, f64, String)> = drawn.iter().filter_map(end).collect();
        ends.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut least = TOP;
        for (up, across, name) in ends {
            least = up.max(least);
            let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">{name}</text>", across + 6.0, least + 4.0);
            least += LINE_HEIGHT;
        }
        svg + "</svg>\n"
    }

    fn drawn(&self, figures: &PageFigures) -> Vec<(&ChartSeries, Vec<(f64, f64)>)> {
        let all = self.series.iter().map(|series| (series, values(figures, &series.pointer)));
        all.filter(|(_, points)| !points.is_empty()).collect()
    }

    fn scales(&self, drawn: &[(&ChartSeries, Vec<(f64, f64)>)]) -> (Scale, Scale) {
        let (mut xs, mut ys): (Vec<f64>, Vec<f64>) = drawn.iter().flat_map(|(_, points)| points).copied().unzip();
        if self.has_diagonal {
            xs.append(&mut ys.clone());
            ys.clone_from(&xs);
        }
        (Scale::of(self.x, &xs, (LEFT, WIDTH - RIGHT)), Scale::of(self.y, &ys, (HEIGHT - BOTTOM, TOP)))
    }

    /// Axes and lines.
    fn plot(&self, svg: &mut String, drawn: &[(&ChartSeries, Vec<(f64, f64)>)], (x, y): (&Scale, &Scale)) {
        self.axes(svg, x, y);
        if self.has_diagonal {
            let [(x1, y1), (x2, y2)] = [x.low, x.high].map(|value| (x.at(value), y.at(value)));
            let _ =
                writeln!(svg, "<line class=\"diagonal\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
        }
        for (series, points) in drawn {
            let path = path(points, series.mark, x, y);
            let dots = if series.mark == ChartMark::Dots { " dots" } else { "" };
            let (run, name, pointer) = (series.run, escaped(&series.name), escaped(&series.pointer));
            let _ = writeln!(
                svg,
                "<path class=\"series run{run}{dots}\" data-name=\"{name}\" data-figure=\"{pointer}\" d=\"{path}\"/>"
            );
        }
    }

    /// What a chart shows, for those who do not see it.
    fn description(&self, drawn: &[(&ChartSeries, Vec<(f64, f64)>)]) -> String {
        let mut text = format!("Across: {}. Upward: {}.", self.x.title, self.y.title);
        for (series, points) in drawn {
            let (low, high) = extent(points.iter().map(|(_, y)| *y));
            let [low, high] = [low, high].map(|value| self.y.format.text(value));
            let _ = write!(text, " {}: {low} to {high}.", series.name);
        }
        text
    }

    fn axes(&self, svg: &mut String, x: &Scale, y: &Scale) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        svg.push_str("<g class=\"axis\" data-axis=\"x\" aria-hidden=\"true\">\n");
        for value in x.ticks() {
            let (at, text) = (x.at(value), label(value, self.x.format));
            let _ = writeln!(
                svg,
                "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\"/><text x=\"{at:.1}\" y=\"{}\" data-value=\"{value}\">{text}</text>",
                bottom + 17.0
            );
        }
        let middle = f64::midpoint(LEFT, right);
        let _ = writeln!(
            svg,
            "<text class=\"title\" x=\"{middle}\" y=\"{}\">{}</text></g>",
            HEIGHT - 8.0,
            escaped(self.x.title)
        );
        svg.push_str("<g class=\"axis\" data-axis=\"y\" aria-hidden=\"true\">\n");
        for value in y.ticks() {
            let (at, text) = (y.at(value), label(value, self.y.format));
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\"/><text x=\"{}\" y=\"{:.1}\" data-value=\"{value}\">{text}</text>",
                LEFT - 7.0,
                at + 4.0
            );
        }
        let middle = f64::midpoint(TOP, bottom);
        let _ = writeln!(
            svg,
            "<text class=\"title\" x=\"14\" y=\"{middle}\" transform=\"rotate(-90 14 {middle})\">{}</text></g>",
            escaped(self.y.title)
        );
    }
}

/// The sample of a series' colour and line.
fn key(series: &ChartSeries) -> String {
    let (run, dots) = (series.run, if series.mark == ChartMark::Dots { " dots" } else { "" });
    let line = if series.mark == ChartMark::Dots { "M6 5h0M18 5h0" } else { "M0 5h24" };
    format!(
        "<span class=\"key\"><svg viewBox=\"0 0 24 10\" aria-hidden=\"true\"><path class=\"series run{run}{dots}\" d=\"{line}\"/></svg>{}</span>",
        escaped(&series.name)
    )
}

/// Points of a list of pairs, or of buckets: of these the beginning in seconds and the value, and the end of the last one.
fn values(figures: &PageFigures, pointer: &str) -> Vec<(f64, f64)> {
    let points = figures.points(pointer);
    if !points.is_empty() {
        return points;
    }
    let buckets = figures.at(pointer);
    let Some(series) = buckets.get("series").and_then(Value::as_array) else { return Vec::new() };
    let seconds = buckets.get("bucket_ms").and_then(Value::as_f64).unwrap_or_default() / 1000.0;
    let from = buckets.get("from_s").and_then(Value::as_f64).unwrap_or_default();
    let values = series.iter().filter_map(Value::as_f64);
    let last = values.clone().next_back();
    let places = std::iter::successors(Some(from), |at| Some(at + seconds));
    places.zip(values.chain(last)).collect()
}

/// Values to places in the drawing.
#[derive(Debug)]
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    is_log: bool,
    format: Format,
}

impl Scale {
    fn of(axis: Axis, values: &[f64], (from, to): (f64, f64)) -> Self {
        let (low, high) = extent(values.iter().copied());
        let (low, high) = if axis.is_log {
            logarithmic(low, high)
        } else {
            // What is measured from zero is drawn from zero.
            (0.0, if high > 0.0 { high * 1.05 } else { 1.0 })
        };
        let high = if axis.format == Format::Share { 1.0 } else { high };
        Self { low, high, from, to, is_log: axis.is_log, format: axis.format }
    }

    fn at(&self, value: f64) -> f64 {
        let part = if self.is_log {
            (value.max(self.low).ln() - self.low.ln()) / (self.high.ln() - self.low.ln())
        } else {
            (value.max(self.low) - self.low) / (self.high - self.low)
        };
        self.from + part * (self.to - self.from)
    }

    /// The scale for the script: kind, format, values and places of both ends.
    fn attribute(&self) -> String {
        let kind = if self.is_log { "log" } else { "linear" };
        format!("{kind} {:?} {} {} {} {}", self.format, self.low, self.high, self.from, self.to)
    }

    fn ticks(&self) -> Vec<f64> {
        // A logarithmic axis of less than a decade has few round places.
        if !self.is_log || self.high / self.low < 6.0 {
            let step = nice((self.high - self.low) / 6.0);
            let first = (self.low / step).ceil();
            return (0..=10)
                .map(|number| (first + f64::from(number)) * step)
                .filter(|value| *value <= self.high)
                .collect();
        }
        let (first, last) = (decade(self.low), decade(self.high));
        let within: &[f64] = match last - first {
            0..=1 => &[1.0, 2.0, 3.0, 5.0, 7.0],
            2..=3 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let all = (first..=last).flat_map(|power| within.iter().map(move |digit| digit * 10.0_f64.powi(power)));
        all.filter(|value| (self.low..=self.high * 1.000_001).contains(value)).collect()
    }
}

/// Ends of a logarithmic axis around values, with a little room.
fn logarithmic(low: f64, high: f64) -> (f64, f64) {
    let low = if low > 0.0 { low } else { SMALLEST.min(high.max(SMALLEST)) };
    let room = (high / low).powf(0.03).max(1.2);
    (low / room, high.max(low) * room)
}

fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}

#[expect(clippy::cast_possible_truncation, reason = "the decades of an f64 are some hundred")]
fn decade(value: f64) -> i32 {
    value.log10().floor() as i32
}

/// The next larger of 1, 2 and 5 times a power of ten.
fn nice(step: f64) -> f64 {
    let power = 10.0_f64.powi(decade(step.max(1e-9)));
    [1.0, 2.0, 5.0].into_iter().map(|digit| digit * power).find(|nice| *nice >= step).unwrap_or(power * 10.0)
}

/// Text of a tick: no more digits than it needs.
fn label(value: f64, format: Format) -> String {
    let plain = |value: f64| {
        let text = format!("{value:.6}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match format {
        Format::Millis | Format::Seconds => {
            let ms = if format == Format::Seconds { value * 1000.0 } else { value };
            match ms {
                0.0 => "0".to_owned(),
                ms if ms < 1.0 => plain(ms * 1000.0) + " µs",
                ms if ms < 1000.0 => plain(ms) + " ms",
                ms => plain(ms / 1000.0) + " s",
            }
        }
        Format::Share => plain(value * 100.0) + " %",
        Format::Change | Format::Count | Format::Decimal | Format::PerSecond => plain(value),
    }
}

fn path(points: &[(f64, f64)], mark: ChartMark, x: &Scale, y: &Scale) -> String {
    let mut path = String::with_capacity(points.len() * 12);
    for (place, (across, up)) in points.iter().enumerate() {
        let (across, up) = (x.at(*across), y.at(*up));
        let _ = match mark {
            ChartMark::Dots => write!(path, "M{across:.1} {up:.1}h0"),
            _ if place == 0 => write!(path, "M{across:.1} {up:.1}"),
            ChartMark::Line => write!(path, "L{across:.1} {up:.1}"),
            ChartMark::Steps => write!(path, "H{across:.1}V{up:.1}"),
        };
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Axis = Axis { title: "time", format: Format::Millis, is_log: true };
    const COUNT: Axis = Axis { title: "count", format: Format::Count, is_log: false };

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        for (low, high) in [(0.001, 5.0), (12.0, 13.0), (50.0, 50.0), (0.0, 1e6), (0.0, 0.0), (2e-3, 3.6e6)] {
            let scale = Scale::of(TIME, &[low, high], (0.0, 100.0));
            let ticks = scale.ticks();
            assert!(ticks.iter().all(|tick| (-0.1..=100.1).contains(&scale.at(*tick))), "{low} {high}: {ticks:?}");
            assert!((2..=12).contains(&ticks.len()), "{low} {high}: {ticks:?}");
            assert!(scale.at(low) >= 0.0 && scale.at(high) <= 100.0, "{scale:?}");
        }
        assert_eq!(Scale::of(COUNT, &[0.0, 9.6], (0.0, 1.0)).ticks(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(Scale::of(COUNT, &[0.0], (0.0, 1.0)).ticks().len(), 6);
        let label = |value| label(value, Format::Millis);
        assert_eq!([label(0.05), label(20.0), label(5000.0)], ["50 µs", "20 ms", "5 s"]);
    }

    #[test]
    fn a_file_has_a_name_at_the_end_of_each_line() {
        let line = |name, up: f64| (name, vec![(100.0, 0.5), (5000.0, up)]);
        let streams = Axis { title: "streams & more", format: Format::Count, is_log: true };
        let svg = line_chart("Lateness", streams, TIME, &[line("p50", 1.0), line("p99", 1.001), ("floor", Vec::new())]);
        assert!(
            svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n") && svg.contains("streams &amp; more"),
            "{svg}"
        );
        let place = |name: &str| {
            let (before, _) = svg.split_once(&format!("\">{name}</text>")).unwrap();
            before.rsplit_once("y=\"").unwrap().1.parse::<f64>().unwrap()
        };
        assert!(place("p50") - place("p99") >= LINE_HEIGHT && !svg.contains("floor"), "{svg}");
        assert_eq!(line_chart("", TIME, TIME, &[("p50", Vec::new())]), "");
    }

    #[test]
    fn a_chart_without_values_is_none() {
        let figures =
            PageFigures::of(&serde_json::json!({"a": [], "b": {"bucket_ms": 500.0, "series": [1.0, 3.0]}})).unwrap();
        let series =
            |pointer: &str| ChartSeries { name: "A".into(), run: 0, mark: ChartMark::Steps, pointer: pointer.into() };
        let chart = |pointer| Chart {
            title: "t".into(),
            x: COUNT,
            y: COUNT,
            series: vec![series(pointer)],
            has_diagonal: false,
        };
        assert_eq!(chart("/a").html(&figures), "");
        assert_eq!(values(&figures, "/b"), [(0.0, 1.0), (0.5, 3.0), (1.0, 3.0)]);
        assert!(chart("/b").html(&figures).contains("data-figure=\"/b\""));
    }
}
