//! Line charts as SVG: a few series over a logarithmic scale of streams.

use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 44.0;
const COLORS: [&str; 4] = ["#1f6feb", "#d1242f", "#2da44e", "#8250df"];

/// One line.
#[derive(Debug)]
pub struct ChartSeries {
    /// Written beside its end.
    pub name: &'static str,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// Whether the upright axis is logarithmic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChartScale {
    /// From 0.
    Linear,
    /// By powers of ten.
    Logarithmic,
}

/// A chart with a title, the names of both axes and its lines.
#[must_use]
pub fn chart(title: &str, (across, up): (&str, &str), scale: ChartScale, series: &[ChartSeries]) -> String {
    let all = || series.iter().flat_map(|series| &series.points);
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        all().map(of).fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
    };
    let ((left, right), (low, high)) = (bounds(|point| point.0), bounds(|point| point.1));
    let (low, high) = match scale {
        ChartScale::Linear => (0.0, nice(high)),
        ChartScale::Logarithmic => {
            (10_f64.powf(low.max(1e-3).log10().floor()), 10_f64.powf(high.max(2e-3).log10().ceil()))
        }
    };
    let place = |x: f64| LEFT + (x / left).log10() / (right / left).log10().max(1e-9) * (WIDTH - LEFT - RIGHT);
    let rise = |y: f64| {
        let part = match scale {
            ChartScale::Linear => y / high,
            ChartScale::Logarithmic => (y.max(low) / low).log10() / (high / low).log10(),
        };
        HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-weight=\"bold\">{title}</text>\n"
    );
    for y in ticks(low, high, scale) {
        let at = rise(y);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            plain(y)
        );
    }
    for (x, _) in series.first().map(|series| series.points.as_slice()).unwrap_or_default() {
        let y = HEIGHT - BOTTOM + 16.0;
        let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", place(*x), plain(*x));
    }
    for (series, color) in series.iter().zip(COLORS) {
        line(&mut svg, series, color, &|(x, y)| (place(x), rise(y)));
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{across}</text>\
         <text x=\"14\" y=\"{:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 14 {:.1})\">{up}</text>\n</svg>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0,
        (TOP + HEIGHT - BOTTOM) / 2.0,
        (TOP + HEIGHT - BOTTOM) / 2.0
    );
    svg
}

fn line(svg: &mut String, series: &ChartSeries, color: &str, place: &dyn Fn((f64, f64)) -> (f64, f64)) {
    let points: Vec<(f64, f64)> = series.points.iter().map(|point| place(*point)).collect();
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ =
        writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>", path.join(" "));
    for (x, y) in &points {
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{color}\"/>");
    }
    if let Some((x, y)) = points.last() {
        let _ =
            writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{color}\">{}</text>", x + 8.0, y + 4.0, series.name);
    }
}

fn ticks(low: f64, high: f64, scale: ChartScale) -> Vec<f64> {
    match scale {
        ChartScale::Linear => (0..=4).map(|part| high * f64::from(part) / 4.0).collect(),
        ChartScale::Logarithmic => std::iter::successors(Some(low), |tick| Some(tick * 10.0))
            .take_while(|tick| *tick <= high * 1.001)
            .collect(),
    }
}

/// The next number upward that reads well.
fn nice(value: f64) -> f64 {
    let decade = 10_f64.powf(value.max(1e-9).log10().floor());
    [1.0, 2.0, 4.0, 6.0, 8.0, 10.0].into_iter().map(|step| step * decade).find(|step| *step >= value).unwrap_or(value)
}

fn plain(value: f64) -> String {
    if value >= 1000.0 {
        let (thousands, rest) = ((value / 1000.0).floor(), value % 1000.0);
        return format!("{thousands},{rest:03.0}");
    }
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
